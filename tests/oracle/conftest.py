"""What the oracle's tests share: one lake for all of them, because each start of Spark takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oracle.driver import Lake

SEED = 5


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("oracle"), seed=SEED) as lake:
        yield lake
