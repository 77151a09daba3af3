"""What holds for all tests."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.aio import bounded
from tests.support.order import longest_first
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.s3 import S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By mark, instead of `timeout` in pyproject.toml. A test takes much less: only one that hangs is ended.
_TIMEOUTS_S = {"chaos": 3600, "spark": 900, "slow": 900}

# No example has to be quick: how long one takes says more about what else the machine is doing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Spark takes ten seconds to start: only the tests that are about the pipeline have a server with one.
os.environ["DOLAKE_PIPELINE_ENABLED"] = "false"
os.environ["DOLAKE_QUERY_ENABLED"] = "false"

# A shell's background job ignores Ctrl-C, and so would all that tests start: they send it to see what happens.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set each test's timeout. Sort only where workers share the files: in one process the quick tests come first."""
    for item in items:
        longest_s = max((limit for mark, limit in _TIMEOUTS_S.items() if item.get_closest_marker(mark)), default=None)
        if longest_s and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(longest_s))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = bounded(item.obj)
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Started by the first test that needs it."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One store for all tests of this process that want one; each has its own bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of this process; who reads a lake with it adds that lake's catalog."""
    from tests.support.spark import spark_session  # a second, which a run without Spark need not wait

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
