"""DuckDB, PyIceberg and Spark, each as a function from a table's name to its rows.

From driver.py; all of them go through the server's REST catalog, as any user's would.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from tests.oracle.backends import Store
from tests.oracle.checks import Engine
from tests.support.spark import add_catalog
from tools.duckdb_client import duck_on

_numbers = itertools.count(1)


@contextlib.contextmanager
def opened(
    url: str, spark: SparkSession | None = None, store: Store | None = None
) -> Iterator[tuple[RestCatalog, dict[str, Engine]]]:
    """A catalog on this server, and what each engine reads of it, from a store with keys of its own."""
    keys = store.keys if store else {}
    catalog = RestCatalog("lake", uri=url, **keys)
    with duck_on(url) as duck:
        if store:
            duck.execute(store.duck_secret)
        engines: dict[str, Engine] = {
            # PyIceberg 0.12 puts lists together from their offsets alone, which turns a null into an empty list.
            "PyIceberg": Engine(lambda name: catalog.load_table(name).scan().to_arrow(), has_null_lists=False),
            "DuckDB": Engine(lambda name: duck.execute(f"FROM lake.{name}").to_arrow_table(), has_vectors=False),
        }
        if spark is not None:
            engines["Spark"] = _spark(spark, url, keys)
        try:
            yield catalog, engines
        finally:
            catalog.close()


def _spark(spark: SparkSession, url: str, keys: Mapping[str, str]) -> Engine:
    """Spark gets a catalog under a new name each time, because a server that was killed has a new address."""
    catalog = f"oracle_{next(_numbers)}"
    add_catalog(spark, catalog, url, keys)

    def read(name: str) -> pa.Table:
        with warnings.catch_warnings():
            # PySpark leaves the socket of a result to the garbage collector, and its comment says so.
            warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            return spark.table(f"{catalog}.{name}").toArrow()

    return Engine(read)
