"""What the tests of all engines share: one running server, and each engine connected to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from tests.support.server import ServerProcess
from tests.support.spark import add_catalog
from tools.duckdb_client import duck_on

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(default_server: ServerProcess) -> ServerProcess:
    return default_server


@pytest.fixture(scope="session")
def catalog(server: ServerProcess) -> Iterator[RestCatalog]:
    catalog = RestCatalog("lake", uri=server.url)
    yield catalog
    catalog.close()


@pytest.fixture
def namespace(catalog: RestCatalog) -> str:
    """A namespace that no other test uses."""
    name = f"ns{next(_numbers)}"
    catalog.create_namespace(name)
    return name


@pytest.fixture
def duck(server: ServerProcess, namespace: str) -> Iterator[DuckDBPyConnection]:
    """DuckDB inside the test's namespace of the lake. Its extensions are wheels: nothing is downloaded."""
    with duck_on(server.url) as connection:
        connection.execute(f"USE lake.{namespace}")
        yield connection


@pytest.fixture(scope="session")
def spark(server: ServerProcess, spark: SparkSession) -> SparkSession:
    """Spark with the lake twice: as `lake`, and as `seeds` under the address that the seeds give their clients."""
    add_catalog(spark, "lake", server.url)
    add_catalog(spark, "seeds", f"{server.url}/lakehouse/v1")
    return spark
