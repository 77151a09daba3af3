"""The fixtures that rooms share, and the environment that all servers of tests start in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.journals import GatedDisk
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.server import ServerProcess
from tools.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark takes ten seconds to start: only the tests that are about the pipeline have a server with one.
os.environ["DOLAKE_PIPELINE_ENABLED"] = "false"
os.environ["DOLAKE_QUERY_ENABLED"] = "false"

_PUBLISHING_SETTINGS = """\
exclude_tables = ["private.*"]
[storage]
cold_location = "cold"
[journal]
segment_size_bytes = 65536
group_size_max_bytes = 65536
[pipeline]
retry_delay_ms = 200
retry_delay_max_ms = 500
"""
"""What cannot change while a server runs, and short waits after a publish that failed."""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> GatedDisk:
    """The disk of every journal that is opened from now on."""
    gated = GatedDisk()
    monkeypatch.setattr("dolake.journal.embedded.Disk", lambda: gated)
    return gated


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
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with default settings, without pipeline and queries; each test has names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("default")) as server:
        yield server


@pytest.fixture(scope="session")
def query_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same with queries: what is asked about is the tail."""
    with ServerProcess(tmp_path_factory.mktemp("queries"), has_queries=True) as server:
        yield server


@pytest.fixture(scope="session")
def publishing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with pipeline and queries for all tests of this process that share a lake; see `lake`."""
    with ServerProcess(
        tmp_path_factory.mktemp("lake"), settings=_PUBLISHING_SETTINGS, has_pipeline=True, has_queries=True
    ) as server:
        yield server


@pytest.fixture(scope="module")
def lake(publishing_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The shared server with the module's own SETTINGS. Its tables need names that no other module has."""
    with publishing_server.configured(request.module.SETTINGS):
        yield publishing_server
        publishing_server.flush()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of this process; who reads a lake with it adds that lake's catalog."""
    from tests.support.spark import spark_session  # a second, which a run without Spark need not wait

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
