"""What the oracle's tests share: one lake for all of them, because each start of Spark takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.oracle.driver import Lake
from tests.support.spark import spark_session

SEED = 5


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("oracle"), seed=SEED) as lake:
        yield lake


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark of the engines' tests where that runs already, else one of our own."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with spark_session(tmp_path_factory.mktemp("spark"), {}) as session:
        yield session
