"""A Spark session on the lake that writes as people do without DoLake.

From upsert.py, compact.py and checks.py. It reaches the tables through the server's REST catalog, as any user's would.
Promise: leaving the `with` block leaves no Java process behind.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from dolake.pipeline.spark import start_spark
from dolake.settings import PipelineSettings

_JVM_END_WAIT_S = 30.0


@contextlib.contextmanager
def spark_on(url: str, scratch: Path) -> Iterator[tuple[SparkSession, int]]:
    """A Spark with the lake as `lake`, two cores and 2 GiB of heap, and the id of its Java process.

    Java's own defaults, not the pipeline's: long scans, which is what a MERGE is, gain from the best machine code.
    """
    catalog = "spark.sql.catalog.lake"
    scratch.mkdir(parents=True, exist_ok=True)
    log = f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}"
    options = {
        "spark.driver.extraJavaOptions": log,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": url,
        f"{catalog}.cache-enabled": "false",
    }
    more = tuple(f"{key}={value}" for key, value in options.items())
    session = start_spark(PipelineSettings(spark_master="local[2]", spark_settings=more), scratch)
    java: subprocess.Popen[bytes] = _gateway().proc
    try:
        yield session, java.pid
    finally:
        _end(session, java)


def _gateway() -> Any:
    return SparkContext._gateway


def _end(session: SparkSession, java: subprocess.Popen[bytes]) -> None:
    """Stop Spark and its Java; `stop()` alone leaves that running until Python ends."""
    session.stop()
    _gateway().shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if java.stdin:
        java.stdin.close()  # it ends when nobody holds the other end any more
    try:
        java.wait(_JVM_END_WAIT_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
