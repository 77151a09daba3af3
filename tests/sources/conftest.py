"""The SQLite file that the tests of its source share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.followed import Followed


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Followed]:
    followed = Followed(tmp_path)
    yield followed
    followed.db.close()
