"""DuckDB on a running server: it reads what others wrote, writes tables of its own, and travels in time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import LongType, StringType

from tests.catalog.asking import eventually
from tests.support.server import ServerProcess, plans_made

USERS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def users(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"user {id_}" for id_ in ids]}, schema=USERS)


def ask(duck: DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return duck.execute(query).fetchall()


def rows_seen_by_pyiceberg(catalog: RestCatalog, *name: str) -> list[tuple[Any, ...]]:
    rows = catalog.load_table(name).scan().to_arrow().sort_by("id").to_pylist()
    return [tuple(row.values()) for row in rows]


# --- tables of others ------------------------------------------------------------------------------------------------


def test_it_plans_for_itself_although_the_server_would(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str, server: ServerProcess
) -> None:
    catalog.create_table((namespace, "users"), USERS).append(users(1, 2, 3))
    before = plans_made(server)
    assert ask(duck, "SELECT id FROM users WHERE id > 1 ORDER BY id") == [(2,), (3,)]
    assert plans_made(server) == before


def test_it_reads_every_type_that_pyiceberg_wrote(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    noon = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
    row = {
        "id": 1,
        "flag": True,
        "small": 2,
        "real": 0.5,
        "price": Decimal("12.34"),
        "name": "Zoë",
        "raw": b"\x00\xff",
        "day": noon.date(),
        "local": noon.replace(tzinfo=None),
        "moment": noon,
        "address": {"city": "Paris", "zip": None},
        "tags": ["a", "b"],
        "counts": {"x": 1},
    }
    types: dict[str, Any] = {
        "small": pa.int32(),
        "price": pa.decimal128(10, 2),
        "local": pa.timestamp("us"),
        "moment": pa.timestamp("us", tz="UTC"),
        "address": pa.struct([("city", pa.string()), ("zip", pa.string())]),
        "counts": pa.map_(pa.string(), pa.int64()),
    }
    columns = pa.schema([(name, types.get(name) or pa.scalar(value).type) for name, value in row.items()])
    catalog.create_table((namespace, "things"), columns).append(pa.Table.from_pylist([row], schema=columns))
    # As text, because DuckDB hands moments to Python only with a library more.
    query = "SELECT * REPLACE (moment::VARCHAR AS moment) FROM things"
    assert ask(duck, query) == [tuple((row | {"moment": "2026-11-16 12:00:00+00"}).values())]


def test_it_reads_rows_from_before_and_after_a_schema_change(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    narrow = pa.schema([("id", pa.int32()), ("name", pa.string())])
    table = catalog.create_table((namespace, "users"), narrow)
    table.append(pa.table({"id": [1], "name": ["ada"]}, schema=narrow))
    with table.update_schema() as update:
        update.add_column("email", StringType())
        update.rename_column("name", "full_name")
        update.update_column("id", LongType())
    table.append(pa.table({"id": [2**40], "full_name": ["grace"], "email": ["g@navy.mil"]}))
    assert ask(duck, "SELECT id, full_name, email FROM users ORDER BY id") == [
        (1, "ada", None),
        (2**40, "grace", "g@navy.mil"),
    ]


def test_it_sees_the_commit_of_another_engine_at_once(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    for count in (1, 2, 3):
        table.append(users(count))
        assert ask(duck, "SELECT count(*) FROM users") == [(count,)]


def test_it_finds_nested_namespaces_and_lists_what_is_there(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    catalog.create_namespace((namespace, "eu"))
    catalog.create_table((namespace, "eu", "users"), USERS).append(users(1))
    assert ask(duck, f'FROM lake."{namespace}.eu".users') == [(1, "user 1")]
    assert (f"{namespace}.eu", "users") in ask(duck, "SELECT schema, name FROM (SHOW ALL TABLES)")


def test_it_scans_the_folder_of_a_table_without_any_catalog(
    duck: DuckDBPyConnection, catalog: RestCatalog, server: ServerProcess
) -> None:
    catalog.create_namespace_if_not_exists("default")
    table = catalog.create_table("default.users", USERS)
    for id_ in (1, 2):
        table.append(users(id_))
    warehouse = server.home / "warehouse"
    scan = f"FROM iceberg_scan('{warehouse}/default/users', allow_moved_paths = true)"
    eventually((warehouse / "default" / "users" / "metadata" / "version-hint.text").exists)
    eventually(lambda: sorted(ask(duck, scan)) == [(1, "user 1"), (2, "user 2")])
    duck.execute("DELETE FROM lake.default.users WHERE id = 1")
    eventually(lambda: ask(duck, scan) == [(2, "user 2")])


# --- tables of its own -----------------------------------------------------------------------------------------------


def test_it_creates_a_table_whose_rows_pyiceberg_reads(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    duck.execute("CREATE TABLE orders (id BIGINT, item VARCHAR, price DECIMAL(10, 2))")
    duck.execute("INSERT INTO orders VALUES (1, 'tea', 2.50), (2, NULL, 3.75)")
    assert ask(duck, "FROM orders ORDER BY id") == [
        (1, "tea", Decimal("2.50")),
        (2, None, Decimal("3.75")),
    ]
    assert rows_seen_by_pyiceberg(catalog, namespace, "orders") == [
        (1, "tea", Decimal("2.50")),
        (2, None, Decimal("3.75")),
    ]


def test_its_updates_deletes_and_merges_are_read_alike_by_pyiceberg(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    duck.execute("CREATE TABLE users (id BIGINT, name VARCHAR)")
    duck.execute("INSERT INTO users SELECT i, 'user ' || i FROM range(10) r(i)")
    duck.execute("UPDATE users SET name = 'renamed' WHERE id = 3")
    duck.execute("DELETE FROM users WHERE id BETWEEN 4 AND 8")
    duck.execute(
        "MERGE INTO users AS old USING (VALUES (9, 'merged'), (20, 'added')) AS new (id, name) ON old.id = new.id "
        "WHEN MATCHED THEN UPDATE SET name = new.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (new.id, new.name)"
    )
    rows = [(0, "user 0"), (1, "user 1"), (2, "user 2"), (3, "renamed"), (9, "merged"), (20, "added")]
    assert ask(duck, "FROM users ORDER BY id") == rows
    assert rows_seen_by_pyiceberg(catalog, namespace, "users") == rows
    table = catalog.load_table((namespace, "users"))
    assert table.format_version == 2
    assert table.inspect.delete_files().num_rows > 0


def test_it_partitions_evolves_renames_and_drops_its_tables(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    duck.execute("CREATE TABLE visits (id BIGINT, country VARCHAR) PARTITIONED BY (country)")
    duck.execute("INSERT INTO visits VALUES (1, 'fr'), (2, 'de')")
    duck.execute("ALTER TABLE visits ADD COLUMN page VARCHAR")
    duck.execute("ALTER TABLE visits RENAME COLUMN page TO url")
    duck.execute("INSERT INTO visits VALUES (3, 'fr', '/')")
    rows = [(1, "fr", None), (2, "de", None), (3, "fr", "/")]
    assert rows_seen_by_pyiceberg(catalog, namespace, "visits") == rows
    germany = catalog.load_table((namespace, "visits")).scan("country = 'de'")
    assert len(list(germany.plan_files())) == 1
    duck.execute("ALTER TABLE visits RENAME TO seen")
    assert catalog.list_tables(namespace) == [(namespace, "seen")]
    duck.execute("DROP TABLE seen")
    assert catalog.list_tables(namespace) == []


def test_it_creates_and_drops_namespaces(duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str) -> None:
    duck.execute(f"CREATE SCHEMA lake.{namespace}_own")
    assert catalog.namespace_exists(f"{namespace}_own")
    duck.execute(f"DROP SCHEMA lake.{namespace}_own")
    assert not catalog.namespace_exists(f"{namespace}_own")


def test_a_table_created_from_a_query_appears_with_its_rows(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # DuckDB leaves an empty folder `data` wherever it runs
    duck.execute("CREATE TABLE numbers AS SELECT i AS id FROM range(3) r(i)")
    assert rows_seen_by_pyiceberg(catalog, namespace, "numbers") == [(0,), (1,), (2,)]


# --- time and transactions -------------------------------------------------------------------------------------------


def test_it_travels_by_version_and_by_timestamp(duck: DuckDBPyConnection, namespace: str) -> None:
    duck.execute("CREATE TABLE users (id BIGINT)")
    duck.execute("INSERT INTO users VALUES (1), (2)")
    duck.execute("DELETE FROM users WHERE id = 1")
    duck.execute("INSERT INTO users VALUES (3)")
    history = ask(duck, f"FROM iceberg_snapshots(lake.{namespace}.users) ORDER BY sequence_number")
    for (_, snapshot_id, moment, *_), ids in zip(history, ([1, 2], [2], [2, 3]), strict=True):
        by_version = ask(duck, f"FROM users AT (VERSION => {snapshot_id}) ORDER BY id")
        by_time = ask(duck, f"FROM users AT (TIMESTAMP => TIMESTAMP '{moment}') ORDER BY id")
        assert by_version == by_time == [(id_,) for id_ in ids]


def test_a_transaction_over_two_tables_appears_whole_or_not_at_all(
    duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    for name in ("orders", "items"):
        catalog.create_table((namespace, name), USERS).append(users(1))

    def ids() -> tuple[list[int], list[int]]:
        orders, items = (rows_seen_by_pyiceberg(catalog, namespace, name) for name in ("orders", "items"))
        return [row[0] for row in orders], [row[0] for row in items]

    def insert_into_both(id_: int) -> None:
        duck.execute("BEGIN")
        duck.execute("INSERT INTO orders VALUES (?, 'ordered')", [id_])
        duck.execute("INSERT INTO items VALUES (?, 'wanted')", [id_])

    insert_into_both(2)
    assert ids() == ([1], [1])
    duck.execute("COMMIT")
    assert ids() == ([1, 2], [1, 2])

    insert_into_both(3)
    duck.execute("ROLLBACK")
    assert ids() == ([1, 2], [1, 2])

    insert_into_both(4)
    catalog.load_table((namespace, "items")).append(users(5))  # somebody else is faster with one of the two
    with pytest.raises(duckdb.TransactionException, match=r"transactions/commit.*409"):
        duck.execute("COMMIT")
    assert ids() == ([1, 2], [1, 2, 5])
