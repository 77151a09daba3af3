"""Polars on tables of a running server."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import LongType, StringType

USERS = pa.schema([("id", pa.int32()), ("name", pa.string())])


def test_it_reads_through_schema_changes_and_deletes(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyIceberg plans the scan; otherwise Polars warns that a plugin, which is another package, would be faster.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(pa.table({"id": [1, 2, 3], "name": ["ada", "bob", "cyd"]}, schema=USERS))
    before = table.metadata.current_snapshot_id
    with table.update_schema() as update:
        update.add_column("email", StringType())
        update.rename_column("name", "full_name")
        update.update_column("id", LongType())
    table.append(pa.table({"id": [2**40], "full_name": ["grace"], "email": ["g@navy.mil"]}))
    duck.execute("DELETE FROM users WHERE id = 2")  # as position deletes, which PyIceberg never writes
    table = catalog.load_table((namespace, "users"))
    assert table.inspect.delete_files().num_rows == 1

    assert rows(pl.scan_iceberg(table)) == [
        (1, "ada", None),
        (3, "cyd", None),
        (2**40, "grace", "g@navy.mil"),
    ]
    assert rows(pl.scan_iceberg(table).filter(pl.col("id") > 2).select("id", "full_name")) == [
        (3, "cyd"),
        (2**40, "grace"),
    ]
    assert [row[0] for row in rows(pl.scan_iceberg(table, snapshot_id=before))] == [1, 2, 3]


def rows(frame: pl.LazyFrame) -> list[tuple[Any, ...]]:
    return frame.sort("id").collect().rows()
