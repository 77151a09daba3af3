"""How long engines take to read a table, beside a clean copy of the same rows.

From checks.py. The copy is a plain Iceberg table in the same catalog, in the namespace `clean`, written
by DuckDB in one statement: one snapshot, no deletes, few files. Both are read in turns, so that a busy machine slows
both. Promise: a copy replaces the one before it, and its files are gone.
"""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Sequence
from statistics import median
from typing import Protocol

import duckdb
from pyspark.sql import SparkSession

from benchmarks.stream import Json, ask
from dolake.cli.child import ChildServer

NAMESPACE = "clean"


class Engine(Protocol):
    """Somebody who reads the lake."""

    name: str
    reads: int
    """How many of them are compared; their median counts."""

    def read(self, table: str, column: str) -> None:
        """Count the rows and add up a column."""


class Duck:
    """DuckDB, as engines.py gives it."""

    name = "duckdb"
    reads = 9

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def read(self, table: str, column: str) -> None:
        self._connection.execute(_query(table, column)).fetchone()


class Spark:
    """Spark, as engines.py gives it."""

    name = "spark"
    reads = 3  # each takes long

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def read(self, table: str, column: str) -> None:
        self._session.sql(_query(table, column)).collect()


def _query(table: str, column: str) -> str:
    return f"SELECT count(*), sum({column}) FROM lake.{table}"  # noqa: S608 - our own names


class CleanCopies:
    """Copies of tables of the namespace `default`, made by DuckDB."""

    def __init__(self, server: ChildServer, connection: duckdb.DuckDBPyConnection) -> None:
        self._server, self._connection = server, connection
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS lake.{NAMESPACE}")

    def make(self, table: str) -> None:
        """Copy the table as it is now."""
        path = f"/v1/namespaces/{NAMESPACE}/tables/{table}?purgeRequested=true"
        try:
            ask(self._server, path, "DELETE")
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
        self._connection.execute(f"CREATE TABLE lake.{NAMESPACE}.{table} AS FROM lake.default.{table}")


def compare_reads(engines: Sequence[Engine], table: str, column: str) -> Json:
    """For each engine the median of its reads of the table and of the copy, and how many times longer ours takes."""
    found: Json = {}
    for engine in engines:
        times_ms: dict[str, list[float]] = {"default": [], NAMESPACE: []}
        for _ in range(engine.reads + 1):
            for namespace, times in times_ms.items():
                began = time.perf_counter()
                engine.read(f"{namespace}.{table}", column)
                times.append((time.perf_counter() - began) * 1000)
        # The first read of each finds nothing in any cache, and is not compared.
        ours_ms, clean_ms = (median(times[1:]) for times in times_ms.values())
        found[engine.name] = {
            "ms": round(ours_ms, 2),
            "clean_ms": round(clean_ms, 2),
            "ratio": round(ours_ms / clean_ms, 2),
        }
    return found
