"""Questions as the documents ask them, in Python's spelling, about changes that were sent a moment before.

000 asks through the client, 001 over plain HTTP, 004 by the name of an entity; people also ask on the command line. One
real server with everything answers, while a pipeline publishes beside it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dolake.client import LakeClient, connect, create_lake_client
from dolake.errors import (
    ForbiddenSql,
    InvalidSql,
    UnknownTable,
)
from tests.journeys.asking_support import a_moment, dicts, emptied
from tests.support.changes import delete, deliver, insert, send, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, post, query, refusal, wait_for
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = """\
freshness_target_ms = 200
"""


@pytest.fixture(scope="module")
def server(lake: ServerProcess) -> ServerProcess:
    """The lake that other files use too; here `lake` is what a client calls it."""
    return lake


@asynccontextmanager
async def shop_and_lake(server: ServerProcess, *tables: str) -> AsyncIterator[tuple[LakeClient, LakeClient]]:
    """The shop sends; somebody else, who knows nothing of that, asks. These tables are empty."""
    async with connect(server.url, source="shop") as shop:
        await emptied(shop, *tables)
        yield shop, create_lake_client(url=server.url, token=os.environ.get("LAKE_TOKEN"))


# --- 000: the client -------------------------------------------------------------------------------------------------


async def test_000_revenue_by_hour_has_the_orders_of_milliseconds_ago(server: ServerProcess) -> None:
    now = datetime.now(UTC)
    amounts = [(timedelta(hours=2), 10.5), (timedelta(hours=2), 4.5), (timedelta(0), 7.25), (timedelta(days=2), 99.0)]
    orders = [
        insert("orders", f"order-{n}", id=f"order-{n}", amount=amount, created_at=(now - age).isoformat())
        for n, (age, amount) in enumerate(amounts)
    ]
    async with shop_and_lake(server, "orders") as (shop, lake):
        await shop.send(orders)
        revenue = await lake.query("""
              SELECT
                date_trunc('hour', created_at) as hour,
                SUM(amount) as revenue,
                COUNT(*) as orders
              FROM orders
              WHERE created_at >= NOW() - INTERVAL '24 hours'
              GROUP BY 1
              ORDER BY 1
            """)
        assert f"Last hour revenue: ${revenue.rows[0].revenue}" == "Last hour revenue: $15.0"
        hours = [(now - age).replace(minute=0, second=0, microsecond=0) for age in (timedelta(hours=2), timedelta())]
        assert dicts(revenue) == [
            {"hour": hours[0], "revenue": 15.0, "orders": 2},
            {"hour": hours[1], "revenue": 7.25, "orders": 1},
        ]
        assert [column.name for column in revenue.columns] == ["hour", "revenue", "orders"]
        assert revenue.freshness.position >= shop.last_position
        assert revenue.freshness.sources["shop"].sequence >= shop.last_durable_sequence


async def test_000_inventory_then_and_now(server: ServerProcess) -> None:
    async with shop_and_lake(server, "inventory") as (shop, lake):
        await shop.send(insert("inventory", "SKU-123", product_id="SKU-123", quantity=40))
        await shop.send(insert("inventory", "SKU-9", product_id="SKU-9", quantity=1))
        last_tuesday = await a_moment()
        await shop.send(update("inventory", "SKU-123", None, {"product_id": "SKU-123", "quantity": 12}))

        historical = await lake.query(
            "SELECT * FROM inventory WHERE product_id = ?",
            params=["SKU-123"],
            as_of=last_tuesday,
        )
        current = await lake.query(
            "SELECT * FROM inventory WHERE product_id = ?",
            params=["SKU-123"],
        )
        then, now = historical.rows[0], current.rows[0]
        assert (then.product_id, then.quantity, now["quantity"]) == ("SKU-123", 40, 12)
        assert len(historical) == len(current) == 1
        assert "_key" not in then
        assert historical.freshness.as_of is not None
        assert current.freshness.as_of is None


async def test_000_the_dashboard_asks_three_things_at_once(server: ServerProcess) -> None:
    now = datetime.now(UTC)
    today, yesterday = now.date().isoformat(), (now.date() - timedelta(days=1)).isoformat()
    orders = [
        insert("orders", f"order-{n}", id=f"order-{n}", amount=amount, created_at=(now - age).isoformat())
        for n, (age, amount) in enumerate([(timedelta(minutes=1), 20), (timedelta(minutes=2), 22), (timedelta(2), 1)])
    ]
    events = [
        insert("events", f"event-{n}", user_id=user, date=day)
        for n, (user, day) in enumerate([("ada", today), ("ada", today), ("bob", today), ("cyd", yesterday)])
    ]
    inventory = [
        insert("inventory", f"SKU-{n}", product_name=f"tea {n}", quantity=quantity, reorder_point=5)
        for n, quantity in enumerate([2, 5, 9])
    ]
    async with shop_and_lake(server, "orders", "events", "inventory") as (shop, lake):

        async def get_dashboard_metrics() -> dict[str, Any]:
            revenue, users, inventory = await asyncio.gather(
                lake.query("""
                  SELECT SUM(amount) as total
                  FROM orders
                  WHERE created_at >= NOW() - INTERVAL '1 hour'
                """),
                lake.query("""
                  SELECT COUNT(DISTINCT user_id) as active
                  FROM events
                  WHERE date = CURRENT_DATE
                """),
                lake.query("""
                  SELECT product_name, quantity
                  FROM inventory
                  WHERE quantity < reorder_point
                """),
            )
            return {
                "hourly_revenue": revenue.rows[0].total,
                "active_users": users.rows[0].active,
                "low_stock_items": inventory.rows,
            }

        await shop.send([*orders, *events, *inventory])
        metrics = await get_dashboard_metrics()
        assert metrics == {
            "hourly_revenue": 42,
            "active_users": 2,
            "low_stock_items": [{"product_name": "tea 0", "quantity": 2}],
        }
        await asyncio.to_thread(server.flush)
        assert await get_dashboard_metrics() == metrics, "published, it is the same"


async def test_000_an_issue_is_investigated_at_its_time_and_through_its_whole_history(server: ServerProcess) -> None:
    async with shop_and_lake(server, "orders") as (shop, lake):
        order_id = "order-7"
        await shop.send(insert("orders", order_id, id=order_id, status="pending"))
        await a_moment()
        await shop.send(update("orders", order_id, None, {"id": order_id, "status": "paid twice"}))
        reported_at = await a_moment()
        await shop.send(update("orders", order_id, None, {"id": order_id, "status": "refunded"}))
        await a_moment()
        await shop.send(delete("orders", order_id, id=order_id, status="refunded"))

        async def investigate_issue(order_id: str, reported_at: datetime) -> tuple[list[Any], list[Any]]:
            snapshot = await lake.query(
                "SELECT * FROM orders WHERE id = ?",
                params=[order_id],
                as_of=reported_at,
            )
            history = await lake.query(
                """
                SELECT * FROM orders
                WHERE id = ?
                ORDER BY _commit_timestamp DESC
                """,
                params=[order_id],
            )
            return snapshot.rows, history.rows

        for _ in ("in the tail", "published"):
            state, history = await investigate_issue(order_id, reported_at)
            assert [row.status for row in state] == ["paid twice"]
            versions = [row.status for row in history]
            assert versions[:4] == ["refunded", "refunded", "paid twice", "pending"]
            assert not [name for name in history[0].as_dict() if name.startswith("_")]
            await asyncio.to_thread(server.flush)
        named = await lake.query("SELECT _operation, status FROM orders WHERE id = ? ORDER BY _position", [order_id])
        assert [row["_operation"] for row in named][-4:] == ["INSERT", "UPDATE", "UPDATE", "DELETE"]


async def test_000_how_many_orders_there_are_is_in_count(server: ServerProcess) -> None:
    async with shop_and_lake(server, "orders") as (shop, lake):
        await shop.send([insert("orders", f"order-{n}", id=f"order-{n}") for n in range(3)])
        result = await lake.query("SELECT COUNT(*) FROM orders")
        assert f"Total orders: {result.rows[0].count}" == "Total orders: 3"
        assert [column.name for column in result.columns] == ["count"]
        inside = await lake.query("WITH counted AS (SELECT COUNT(*) FROM orders) SELECT count + 1 AS more FROM counted")
        assert inside.rows[0].more == 4, "inside of a statement it has the same name"


async def test_000_other_tools_find_the_same_orders_once_they_are_published(server: ServerProcess) -> None:
    """The blocks for DuckDB and Trino; the latter's statement is asked in DuckDB, whose catalog has Trino's name."""
    async with shop_and_lake(server, "orders") as (shop, _):
        row = {"id": "order-1", "region": "north", "revenue": 7, "created_at": "2025-06-01T00:00:00Z"}
        old = row | {"id": "order-2", "created_at": "2024-06-01T00:00:00Z"}
        await shop.send([insert("orders", "order-1", **row), insert("orders", "order-2", **old)])
    server.flush()
    with duck_on(server.url) as duck:
        duck.execute(f"ATTACH 'lake' AS dolake (TYPE iceberg, ENDPOINT '{server.url}', AUTHORIZATION_TYPE 'none')")
        found = duck.execute("SELECT id FROM dolake.default.orders WHERE created_at > DATE '2025-01-01'").fetchall()
        assert found == [("order-1",)]
        warehouse = server.home / "warehouse"
        scan = f"SELECT id FROM iceberg_scan('{warehouse}/default/orders', allow_moved_paths = true) ORDER BY 1"  # noqa: S608

        def is_there() -> bool:  # the hint of which version is newest is written behind the publish
            return bool(duck.execute(scan).fetchall() == [("order-1",), ("order-2",)])

        wait_for(is_there, "the folder of the table has the orders")


# --- 001: plain HTTP -------------------------------------------------------------------------------------------------


async def test_001_a_query_over_http_says_rows_types_and_freshness(server: ServerProcess) -> None:
    async with shop_and_lake(server, "users") as (shop, _):
        await shop.send(insert("users", "user-123", id="user-123", name="Alice", email="alice@example.com"))
        sql = "SELECT id, COUNT(*) AS n FROM users WHERE name = :name GROUP BY id"
        ask = {"sql": sql, "params": {"name": "Alice"}, "minPosition": shop.last_position}
        answer = await asyncio.to_thread(post, server, "/v1/query", **ask)
        assert answer["rows"] == [{"id": "user-123", "n": 1}]
        assert [(column["name"], column["type"]) for column in answer["columns"]] == [
            ("id", "VARCHAR"),
            ("n", "BIGINT"),
        ]
        assert (answer["rowCount"], answer["truncated"], answer["warnings"]) == (1, False, [])
        freshness = answer["freshness"]
        assert freshness["position"] >= shop.last_position
        assert freshness["sources"]["shop"]["sequence"] >= shop.last_durable_sequence
        assert freshness["ageMs"] >= 0
        assert "default.users" in freshness["snapshots"]
        assert freshness["files"].keys() >= {"read", "pruned"}
        assert freshness["engine"] == "duckdb"


async def test_001_the_plan_of_a_month_leaves_out_the_files_of_others(server: ServerProcess) -> None:
    months = {
        month: [
            insert("events", f"{month}-{day}", id=f"{month}-{day}", timestamp=f"{month}-{day:02d}T12:00:00Z")
            for day in (1, 15, 28)
        ]
        for month in ("2023-12", "2024-01", "2024-02")
    }
    async with shop_and_lake(server, "events") as (shop, _):
        for events in months.values():
            await shop.send(events)
            await asyncio.to_thread(server.flush)
        await shop.send(insert("events", "late", id="late", timestamp="2024-01-31T23:59:59.999Z"))
    where = "timestamp >= '2024-01-01' AND timestamp < '2024-02-01'"
    plan = post(
        server,
        "/v1/query/plan",
        table={"namespace": ["default"], "name": "events"},
        columns=["*"],
        where=where,
    )
    (table,) = plan["tables"]
    assert table["table"] == "default.events"
    assert table["files"]["kept"] >= 1
    assert table["files"]["pruned"] >= 2
    assert table["bytes"]["kept"] > 0
    assert table["bytes"]["pruned"] > 0
    assert plan["engine"] == "duckdb"
    reasons = [each["reason"] for each in table["reasons"]]
    assert any("2023-12" in reason for reason in reasons), reasons
    assert any("2024-02" in reason for reason in reasons), reasons
    assert "partitions" in table
    answer = post(server, "/v1/query", sql=f"SELECT * FROM events WHERE {where} ORDER BY timestamp")  # noqa: S608
    assert [row["id"] for row in answer["rows"]] == ["2024-01-1", "2024-01-15", "2024-01-28", "late"]
    assert answer["freshness"]["files"]["pruned"] >= 2
    by_sql = post(server, "/v1/query/plan", sql=f"SELECT id FROM events WHERE {where}")  # noqa: S608
    assert by_sql["tables"][0]["files"] == table["files"]


async def test_what_cannot_be_answered_is_refused_with_its_reason(server: ServerProcess) -> None:
    await deliver(server.url, insert("orders", "order-1", id="order-1"))
    for sql, status, kind, word in (
        ("SELECT * FROM no_such_thing", 404, "unknown_table", "no_such_thing"),
        ("SELEKT 1", 400, "invalid_sql", ""),
        ("SELECT no_such_column FROM orders", 400, "invalid_sql", "no_such_column"),
        ("DELETE FROM orders", 403, "forbidden_sql", ""),
        ("SELECT * FROM read_csv('/etc/passwd')", 403, "forbidden_sql", "read_csv"),
        ("SELECT * FROM parquet_scan('r2://data-lake/events/*.parquet')", 403, "forbidden_sql", ""),
    ):
        found, error = refusal(server, "/v1/query", sql=sql)
        assert (found, error["type"], error["code"]) == (status, kind, status), (sql, error)
        assert word in error["message"], error
    lake = create_lake_client(url=server.url)
    for sql, expected in (
        ("SELECT * FROM nowhere", UnknownTable),
        ("SELEKT", InvalidSql),
        ("DROP TABLE o", ForbiddenSql),
    ):
        with pytest.raises(expected):
            await lake.query(sql)


# --- 004: entities ---------------------------------------------------------------------------------------------------


async def test_004_a_field_is_added_without_a_migration_and_a_query_spans_both_schemas(server: ServerProcess) -> None:
    async with shop_and_lake(server, "Customer") as (things, iceberg):
        await things.send(insert("Customer", "1", name="Alice", email="alice@example.com"))
        await asyncio.to_thread(server.flush)
        bob = {"name": "Bob", "email": "bob@example.com", "phone": "+1-555-0123"}
        await things.send(insert("Customer", "2", **bob))
        for _ in ("in the tail", "published"):
            customers = await iceberg.query(entity_type="Customer")
            by_name = {row.name: row for row in customers}
            assert sorted(by_name) == ["Alice", "Bob"]
            assert (by_name["Alice"].phone, by_name["Bob"].phone) == (None, "+1-555-0123")
            await asyncio.to_thread(server.flush)

        schema = await iceberg.get_schema("Customer")
        assert schema.version == 2
        assert [field.name for field in schema.fields] == ["name", "email", "phone"]
        assert [[field.name for field in each.fields] for each in schema.versions] == [
            ["name", "email"],
            ["name", "email", "phone"],
        ]


async def test_004_a_table_has_its_schema_as_soon_as_its_first_change_is_acknowledged(server: ServerProcess) -> None:
    async with shop_and_lake(server) as (things, iceberg):
        await things.send(insert("Visitor", "1", name="Alice", email="alice@example.com"))
        await things.send(insert("Visitor", "2", name="Bob", email="bob@example.com", phone="+1-555-0123"))
        schema = await iceberg.get_schema("Visitor")
        assert {field.name: field.type for field in schema.fields} == dict.fromkeys(
            ("name", "email", "phone"), "string"
        )
        assert "default.Visitor" in {table.full_name for table in await iceberg.list_tables()}


async def test_004_a_month_of_orders_is_a_partition(server: ServerProcess) -> None:
    days = ["2023-12-31", "2024-01-01", "2024-01-15", "2024-01-31", "2024-02-01"]
    async with shop_and_lake(server, "Order") as (things, iceberg):
        await things.send([insert("Order", f"{n}", number=n, date=day) for n, day in enumerate(days)])
        for _ in ("in the tail", "published"):
            jan_events = await iceberg.query(
                entity_type="Order",
                partition={"date_start": "2024-01-01", "date_end": "2024-01-31"},
            )
            assert sorted(row.number for row in jan_events) == [1, 2, 3]
            as_in_the_seed = await iceberg.query(
                entity_type="Order", partition={"dateStart": "2024-01-01", "dateEnd": "2024-01-31"}
            )
            assert len(as_in_the_seed) == 3
            one_day = await iceberg.query(entity_type="Order", partition={"date": "2024-02-01"})
            assert [row.number for row in one_day] == [4]
            await asyncio.to_thread(server.flush)


async def test_004_events_by_month_in_our_sql_and_from_the_parquet_files(server: ServerProcess) -> None:
    """The files are those of a table that only ever grew, as the document's are: nothing in them is deleted."""
    moments = ["2024-01-15T08:00:00Z", "2024-01-31T23:59:59Z", "2024-02-01T00:00:00Z"]
    sql = "SELECT DATE_TRUNC('month', ts) as month, COUNT(*) as events FROM {} GROUP BY 1 ORDER BY 1"
    months = [(datetime(2024, month, 1, tzinfo=UTC), count) for month, count in ((1, 2), (2, 1))]
    async with shop_and_lake(server) as (things, iceberg):
        await things.send([insert("tenant_a.visits", f"{n}", ts=ts) for n, ts in enumerate(moments)])
        results = await iceberg.query(sql.format("tenant_a.visits"))
        assert [(row.month, row.events) for row in results] == months
    server.flush()
    files = server.home / "warehouse" / "tenant_a" / "visits" / "**" / "*.parquet"
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        found = db.execute(sql.format(f"parquet_scan('{files}')")).to_arrow_table().to_pylist()
    assert [(row["month"].astimezone(UTC), row["events"]) for row in found] == months


# --- what SQL can say ------------------------------------------------------------------------------------------------


async def test_joins_windows_and_ctes_work_over_tail_and_tables_together(server: ServerProcess) -> None:
    people = {"1": "Oslo", "2": "Rome", "3": "Oslo"}
    sales = [("1", 5), ("1", 9), ("2", 4), ("3", 8), ("3", 1)]
    async with shop_and_lake(server, "people", "sales") as (shop, lake):
        await shop.send([insert("people", key, id=key, city=city) for key, city in people.items()])
        await asyncio.to_thread(server.flush)  # one table is published, the other one is in the tail
        rows = enumerate(sales)
        await shop.send([insert("sales", f"{n}", person=key, amount=amount) for n, (key, amount) in rows])
        result = await lake.query(
            """
            WITH by_city AS (
              SELECT city, person, SUM(amount) AS amount,
                     RANK() OVER (PARTITION BY city ORDER BY SUM(amount) DESC) AS place
              FROM sales JOIN people ON people.id = sales.person
              GROUP BY city, person
            )
            SELECT city, person, amount FROM by_city WHERE place = $place ORDER BY city
            """,
            {"place": 1},
        )
        assert [tuple(row) for row in result] == [("Oslo", "1", 14), ("Rome", "2", 4)]
        positional = await lake.query("SELECT COUNT(*) FROM sales WHERE amount BETWEEN $1 AND $2", [4, 8])
        assert positional.scalar() == 3
        limited = await lake.query("SELECT amount FROM sales ORDER BY amount DESC", limit=2)
        assert ([row.amount for row in limited], limited.truncated) == ([9, 8], True)


async def test_a_star_shows_the_users_columns_and_hidden_ones_are_there_when_named(server: ServerProcess) -> None:
    async with shop_and_lake(server, "people") as (shop, lake):
        await shop.send(insert("people", "7", id="7", city="Oslo"))
        for _ in ("in the tail", "published"):
            star = await lake.query("SELECT * FROM people")
            assert dicts(star) == [{"id": "7", "city": "Oslo"}]
            named = await lake.query("SELECT _key, city FROM people")
            assert dicts(named) == [{"_key": "7", "city": "Oslo"}], "a key alone is no history"
            changes = await lake.query("SELECT * FROM people__changes WHERE _key = '7' AND city = 'Oslo'")
            assert changes.rows[-1]["_operation"] in ("INSERT", "DELETE")
            await asyncio.to_thread(server.flush)


async def test_a_table_that_begins_with_changes_without_columns_is_answered_for(server: ServerProcess) -> None:
    """A source that was connected late sends deletes of rows that nobody has seen, and updates with old columns."""
    async with shop_and_lake(server) as (shop, lake):
        for table, first in (("late", delete("late", "1")), ("bare", insert("bare", "1"))):
            await shop.send(first)
            keys = await lake.query(f"SELECT _key FROM {table}")  # noqa: S608 - our own names
            assert [row["_key"] for row in keys] == ([] if table == "late" else ["1"])
            assert (await lake.query(f"SELECT COUNT(*) FROM {table}")).rows[0].count == len(keys)  # noqa: S608
            await shop.send(insert(table, "2", n=7))
            found = await lake.query(f"SELECT n FROM {table} WHERE _key = '2'")  # noqa: S608
            assert found.scalar() == 7
        odd = update("odd", "1", {"name": "only before"}, {"n": 1, "nothing": []})
        await shop.send([odd, insert("odd", "2", n=2)])
        assert (await lake.query("SELECT SUM(n) AS total FROM odd")).rows[0].total == 3


_EXACT = {
    "small": 9007199254740991,
    "large": 9007199254740993,
    "most": 9223372036854775807,
    "least": -9223372036854775808,
    "moment": "2026-01-02T03:04:05.123456Z",
    "note": 'a "quoted", text\nin two lines; ünïcode 🙂',
}
_EXACT_SQL = """
    SELECT small, large, most, least, moment, note, CAST('12345678901234567890.123456789' AS DECIMAL(38, 9)) AS price,
           CAST(most AS HUGEINT) * 10 AS huge, CAST('NaN' AS DOUBLE) AS odd, DATE '2025-01-14' AS day, NULL AS nothing
    FROM exact
"""


async def test_nothing_is_lost_in_json_csv_arrow_or_python(server: ServerProcess) -> None:
    await deliver(server.url, insert("exact", "1", **_EXACT))
    for _ in ("in the tail", "published"):
        (row,) = query(server, _EXACT_SQL)
        assert row == {
            "small": 9007199254740991,
            "large": "9007199254740993",
            "most": "9223372036854775807",
            "least": "-9223372036854775808",
            "moment": "2026-01-02T03:04:05.123456Z",
            "note": _EXACT["note"],
            "price": "12345678901234567890.123456789",
            "huge": "92233720368547758070",
            "odd": "NaN",
            "day": "2025-01-14",
            "nothing": None,
        }
        names, values = csv.reader(io.StringIO(_raw(server, _EXACT_SQL, "csv").decode(), newline=""))
        found = dict(zip(names, values, strict=True))
        assert found["note"] == _EXACT["note"]
        assert found["moment"] == "2026-01-02T03:04:05.123456Z"
        for name in ("large", "most", "least"):
            assert int(found[name]) == _EXACT[name]
        assert (found["price"], found["huge"], found["nothing"]) == (row["price"], row["huge"], "")
        (arrow,) = pa.ipc.open_stream(_raw(server, _EXACT_SQL, "arrow")).read_all().to_pylist()
        assert [arrow[name] for name in ("small", "large", "most", "least")] == list(_EXACT.values())[:4]
        moment = datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
        assert arrow["moment"].astimezone(UTC) == moment
        assert arrow["price"] == Decimal("12345678901234567890.123456789")
        await _in_python(server, moment)
        server.flush()


async def _in_python(server: ServerProcess, moment: datetime) -> None:
    result = await create_lake_client(url=server.url).query(_EXACT_SQL)
    row = result.rows[0]
    assert [row.small, row.large, row.most, row.least] == list(_EXACT.values())[:4]
    assert (row.moment, row.note, row.day, row.nothing) == (moment, _EXACT["note"], date(2025, 1, 14), None)
    assert row.price == Decimal("12345678901234567890.123456789")
    assert row.huge == 92233720368547758070
    assert result.to_polars()["large"].to_list() == [9007199254740993]
    assert result.to_arrow()["most"].to_pylist() == [9223372036854775807]


async def test_decimals_in_a_table_of_somebody_else_are_exact(server: ServerProcess) -> None:
    price = Decimal("1234567890123456789012345678.0123456789")
    with duck_on(server.url) as duck:
        duck.execute("CREATE SCHEMA IF NOT EXISTS lake.finance")
        duck.execute("CREATE TABLE lake.finance.prices (id BIGINT, price DECIMAL(38, 10))")
        duck.execute("INSERT INTO lake.finance.prices VALUES (1, ?), (2, NULL)", [price])
    sql = "SELECT id, price FROM finance.prices ORDER BY id"
    assert query(server, sql) == [{"id": 1, "price": str(price)}, {"id": 2, "price": None}]
    result = await create_lake_client(url=server.url).query(sql)
    assert [row.price for row in result] == [price, None]


def _raw(server: ServerProcess, sql: str, kind: str) -> bytes:
    body = json.dumps({"sql": sql, "format": kind}).encode()
    request = urllib.request.Request(f"{server.url}/v1/query", data=body, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        assert answer.headers["X-DoLake-Query-Id"]
        raw: bytes = answer.read()
    return raw


# --- the command line ------------------------------------------------------------------------------------------------


async def test_people_ask_on_the_command_line(server: ServerProcess) -> None:
    async with shop_and_lake(server, "people") as (shop, _):
        await shop.send([insert("people", "1", id="1", city="Oslo"), insert("people", "2", id="2", city="Rome")])
        await asyncio.to_thread(server.flush)
        before = await a_moment()
        await shop.send(
            [update("people", "1", None, {"id": "1", "city": "Bergen"}), delete("people", "2", id="2", city="Rome")]
        )
        await shop.send(insert("people", "3", id="3", city="Wien"))
    moment = before.isoformat()
    sql = "SELECT id, city FROM people ORDER BY id"
    shown = _typed("query", sql, "--url", server.url)
    assert "Bergen" in shown
    assert "Wien" in shown
    assert "Rome" not in shown
    then = _typed("query", sql, "--url", server.url, "--as-of", moment)
    assert "Oslo" in then
    assert "Rome" in then
    as_json = json.loads(_typed("query", sql, "--url", server.url, "--format", "json"))
    rows = as_json["rows"] if isinstance(as_json, dict) else as_json
    assert rows == [{"id": "1", "city": "Bergen"}, {"id": "3", "city": "Wien"}]
    as_csv = list(csv.reader(io.StringIO(_typed("query", sql, "--url", server.url, "--format", "csv"))))
    assert as_csv == [["id", "city"], ["1", "Bergen"], ["3", "Wien"]]

    assert re.search(r"\bpeople\b", _typed("tables", "--url", server.url))
    newest = post_free(server, "/v1/tables/default/people/snapshots")["snapshots"][0]["snapshotId"]
    assert newest in _typed("snapshots", "people", "--url", server.url)
    schema = _typed("schema", "people", "--url", server.url)
    assert "city" in schema
    assert "string" in schema
    difference = _typed("diff", "people", "--from", moment, "--url", server.url)
    for word in ("Oslo", "Bergen", "Rome", "Wien"):
        assert word in difference

    wrong = dolake("query", "SELECT * FROM no_such_thing", "--url", server.url)
    assert wrong.returncode == 1
    assert "no_such_thing" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_shell_answers_what_comes_through_a_pipe(server: ServerProcess) -> None:
    send(server.url, insert("piped", "1", word="first"), insert("piped", "2", word="second"))
    typed = (
        "SELECT word\nFROM piped\nORDER BY word;\nSELECT COUNT(*) FROM piped;\n"
        "SELECT nothing FROM nowhere;\nSELECT MAX(word) AS latest FROM piped;\n"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    done = subprocess.run(
        [sys.executable, "-m", "dolake.cli", "shell", "--url", server.url],
        input=typed,
        env=environ | {"COLUMNS": "200", "NO_COLOR": "1", "HOME": str(server.home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    for word in ("first", "second", "count", "2", "latest"):
        assert word in done.stdout, done
    assert "nowhere" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def _typed(*arguments: object) -> str:
    done = dolake(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def post_free(server: ServerProcess, path: str) -> dict[str, Any]:
    status, answer = server.get(path)
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer
