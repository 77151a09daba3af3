"""What the tests with a real server share: PyIceberg on the lake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.support.server import ServerProcess


@pytest.fixture
def catalog(lake: ServerProcess) -> Iterator[RestCatalog]:
    with_catalog = RestCatalog("lake", uri=lake.url)
    yield with_catalog
    with_catalog.close()
