"""Spark, started for the pipeline: one session, settings that suit many small jobs, and its end.

From __main__.py. This file and those beside it are the only ones that import pyspark. Jars come from Maven Central
once, into DoLake's cache; a Java that is missing is fetched or asked for in words.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from dolake.errors import InvalidInput, Unavailable
from dolake.pipeline.classes import archive_options
from dolake.pipeline.jars import ICEBERG_JAR, STORE_JAR, jar_in
from dolake.pipeline.java import ADVICE, cache_folder, fetch_java, find_java
from dolake.settings import PipelineSettings

# The best machine code pays off for scans of minutes; our Java work is many short calls. Measured over 130 jobs: 12 CPU
# seconds instead of 22.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_LOG = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %-7p spark %c{1}: %m%n%ex{3}
# What a task raises reaches the log by our own hand, in one line.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
"""


def start_spark(
    settings: PipelineSettings,
    scratch: Path,
    own: Mapping[str, str] | None = None,
    *,
    java_options: str | None = None,
    has_store: bool = False,
) -> SparkSession:
    """A session, with options of its own. Whatever Spark writes for itself goes to `scratch`.

    `java_options` stand in place of those for the class archive; `has_store` brings what Java needs for tables in a
    store.
    """
    java = find_java() or fetch_java(cache_folder(os.environ))
    if java is None:
        raise Unavailable("Spark needs Java", hint=ADVICE)
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(java.resolve().parents[1])
    builder = SparkSession.builder
    more = archive_options(java) if java_options is None else java_options
    options = _options(settings, scratch, more, has_store=has_store)
    for key, value in (options | _more(settings) | dict(own or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _options(settings: PipelineSettings, scratch: Path, java_options: str, *, has_store: bool) -> dict[str, str]:
    log = scratch / "log4j2.properties"
    log.write_text(_LOG)
    cache = Path(settings.jar_cache) if settings.jar_cache else cache_folder(os.environ)
    return {
        "spark.app.name": "dolake",
        "spark.master": settings.spark_master,
        "spark.driver.memory": f"{settings.driver_memory_bytes // 2**20}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} {java_options} -Dlog4j2.configurationFile={log.as_uri()}",
        **_jars(cache / "jars", [ICEBERG_JAR, STORE_JAR] if has_store else [ICEBERG_JAR]),
        "spark.local.dir": str(scratch),
        "spark.python.daemon.module": "dolake.pipeline.daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _jars(folder: Path, names: list[str]) -> dict[str, str]:
    """The jars from the cache; the first start has Spark fetch them there."""
    jars = [jar_in(folder, name) for name in names]
    if all(jar.is_file() for jar in jars):
        return {"spark.jars": ",".join(map(str, jars))}
    return {"spark.jars.packages": ",".join(names), "spark.jars.ivy": str(folder)}


def _more(settings: PipelineSettings) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in settings.spark_settings]
    if wrong := next((key for key, sign, _ in pairs if not sign), None):
        raise InvalidInput(f"pipeline.spark_settings: {wrong!r} has no =", hint="write key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}
