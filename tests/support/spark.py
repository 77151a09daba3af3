"""Spark for a whole test session: one JVM, started when a test first asks for it, ended with the session.

From conftest.py, whose `spark` all tests share: a second session of one process would be the first one under another
name, and its end would be the end of both. Promise: closing the session leaves no JVM behind. The jars come from Maven
Central once, into DoLake's cache.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dolake.pipeline.classes import archive_options
from dolake.pipeline.java import ADVICE, cache_folder, find_java

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_STORES = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
_JVM_END_WAIT_S = 30.0
_HASTE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives a minute gains nothing from the best code
_QUIET = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


@contextlib.contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """A local Spark without any catalog; whatever it writes for itself goes to `scratch`."""
    java = find_java()
    if java is None:
        pytest.fail(ADVICE, pytrace=False)
    log = scratch / "log4j2.properties"
    log.write_text(_QUIET)
    options = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_HASTE} {archive_options(java)} -Dlog4j2.configurationFile={log.as_uri()}",
        "spark.jars.packages": f"{ICEBERG},{_STORES}",
        "spark.jars.ivy": str(cache_folder(os.environ) / "jars"),
        "spark.local.dir": str(scratch),
        "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than our few rows
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with _environment(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(java.resolve().parents[1])):
        builder = SparkSession.builder
        for key, value in options.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        _end(session)


def add_catalog(session: SparkSession, name: str, uri: str, options: Mapping[str, str] | None = None) -> None:
    """A REST catalog under a name that no other test uses: Spark keeps the first one that it opened under a name."""
    catalog = f"spark.sql.catalog.{name}"
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    # A cached table would hide what other engines commit.
    for option, value in ({"type": "rest", "uri": uri, "cache-enabled": "false"} | dict(options or {})).items():
        session.conf.set(f"{catalog}.{option}", value)


def rows_of(session: SparkSession, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement and fetch its rows, as tuples."""
    with warnings.catch_warnings():
        # PySpark leaves the socket of a result to the garbage collector, and its comment says so.
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        return [tuple(row) for row in session.sql(statement).collect()]


def _end(session: SparkSession) -> None:
    """Stop Spark and its JVM; `stop()` alone leaves the JVM running until Python ends."""
    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin:
        process.stdin.close()  # the JVM ends when nobody holds the other end any more
    try:
        process.wait(_JVM_END_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables for as long as the JVM starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
