"""What the lake says about itself: tables, snapshots, schemas, differences, plans; and rolling back."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from dolake import errors
from dolake.client import connect
from tests.support.answering_lake import answering_lake, json_answer, plain_answer, refusal

ORDERS = {
    "namespace": "default",
    "name": "orders",
    "managed": True,
    "snapshotId": "7345987345987345987",
    "updatedAt": "2025-01-14T00:00:00Z",
    "rows": 123,
    "newWord": 1,
}
NEW = {"namespace": "shop", "name": "new", "managed": True, "snapshotId": None, "updatedAt": None, "rows": None}


def snapshot(number: int, table: str = "default.orders") -> dict[str, Any]:
    return {
        "snapshotId": str(number),
        "table": table,
        "timestamp": "2025-01-14T00:00:00.123000Z",
        "operation": "overwrite",
        "position": 1200,
        "addedRecords": 5,
        "deletedRecords": None,
        "totalRecords": 20,
        "isCurrent": True,
    }


SCHEMA = {
    "table": "default.orders",
    "version": 2,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
    "versions": [
        {"version": 1, "since": None, "fields": []},
        {"version": 2, "since": "2025-01-14T00:00:00Z", "fields": [{"id": 1, "name": "id", "type": "long"}]},
    ],
}


async def test_tables_are_listed_with_their_state() -> None:
    async with answering_lake({"GET /v1/tables": plain_answer({"tables": [ORDERS, NEW]})}) as lake:
        orders, new = await connect(lake.url).list_tables()
        await connect(lake.url).list_tables(changes=True)
    assert (orders.full_name, orders.rows, orders.snapshot_id) == ("default.orders", 123, "7345987345987345987")
    assert orders.updated_at == datetime(2025, 1, 14, tzinfo=UTC)
    assert (new.full_name, new.rows, new.snapshot_id, new.updated_at) == ("shop.new", None, None, None)
    assert [each.path for each in lake.asked] == [
        "/v1/tables?pageSize=1000",
        "/v1/tables?pageSize=1000&changes=true",
    ]


async def test_all_pages_of_tables_are_turned() -> None:
    async def turn(request: web.Request) -> web.StreamResponse:
        at = {"": 0, "a b": 1, "c": 2}[request.query.get("pageToken", "")]
        token = ["a b", "c", None][at]
        return web.json_response({"tables": [NEW | {"name": str(at)}], "nextPageToken": token})

    async with answering_lake({"GET /v1/tables": turn}) as lake:
        assert [table.name for table in await connect(lake.url).list_tables()] == ["0", "1", "2"]


async def test_snapshots_are_listed_of_a_table_and_of_the_lake() -> None:
    listed = plain_answer({"snapshots": [snapshot(7)]})
    paths = ["/v1/snapshots", "/v1/tables/default/orders/snapshots", "/v1/tables/a.b/%25%20c/snapshots"]
    async with answering_lake({f"GET {path.replace('%25%20', '% ')}": listed for path in paths}) as lake:
        client = connect(lake.url)
        (found,) = await client.list_snapshots()
        await client.list_snapshots("orders", limit=3)
        await client.list_snapshots("a.b.% c")
    assert (found.snapshot_id, found.table, found.position, found.operation) == (
        "7",
        "default.orders",
        1200,
        "overwrite",
    )
    assert found.timestamp == datetime(2025, 1, 14, 0, 0, 0, 123000, tzinfo=UTC)
    assert (found.added_records, found.deleted_records, found.total_records, found.is_current) == (
        5,
        None,
        20,
        True,
    )
    assert [each.path for each in lake.asked] == [paths[0], f"{paths[1]}?limit=3", paths[2]]


async def test_a_schema_has_its_earlier_versions() -> None:
    async with answering_lake({"GET /v1/tables/default/orders/schema": plain_answer(SCHEMA)}) as lake:
        schema = await connect(lake.url).get_schema("orders")
    assert (schema.table, schema.version, schema.fields[0].name, schema.fields[0].type) == (
        "default.orders",
        2,
        "id",
        "long",
    )
    assert [version.since for version in schema.versions] == [None, datetime(2025, 1, 14, tzinfo=UTC)]


async def test_the_schema_of_the_only_table_needs_no_name() -> None:
    answers = {
        "GET /v1/tables": plain_answer({"tables": [ORDERS]}),
        "GET /v1/tables/default/orders/schema": plain_answer(SCHEMA),
    }
    async with answering_lake(answers) as lake:
        client = connect(lake.url)
        assert (await client.get_schema()).version == 2
        lake.answers["GET /v1/tables"] = plain_answer({"tables": [ORDERS, NEW]})
        with pytest.raises(errors.InvalidInput, match=r"2 tables.*default\.orders"):
            await client.get_schema()
        lake.answers["GET /v1/tables"] = plain_answer({"tables": []})
        with pytest.raises(errors.InvalidInput, match="0 tables"):
            await client.get_schema()


async def test_a_difference_is_told_row_by_row() -> None:
    answer = {
        "table": "default.orders",
        "from": "2025-01-14T00:00:00.000000Z",
        "to": None,
        "counts": {"added": 1, "removed": 2, "changed": 3},
        "columns": [{"name": "id", "type": "BIGINT"}, {"name": "total", "type": "DECIMAL(5,1)"}],
        "added": [{"id": 1, "total": "1.5"}],
        "removed": [],
        "changed": [
            {
                "key": "2",
                "before": {"id": 2, "total": "1.0"},
                "after": {"id": 2, "total": None},
                "columns": ["total"],
            }
        ],
        "truncated": True,
    }
    answers = {
        "POST /v1/diff": plain_answer(answer),
        "GET /v1/snapshots": plain_answer({"snapshots": [snapshot(9)]}),
    }
    async with answering_lake(answers) as lake:
        client = connect(lake.url)
        diff = await client.diff("orders", from_=datetime(2025, 1, 14, tzinfo=UTC))
        (last,) = await client.list_snapshots()
        await client.diff("orders", from_={"snapshot_id": 3}, to=last, limit=10)
    assert (diff.counts.added, diff.counts.removed, diff.counts.changed, diff.truncated) == (1, 2, 3, True)
    assert (diff.added[0].total, diff.from_) == (Decimal("1.5"), "2025-01-14T00:00:00.000000Z")
    (changed,) = diff.changed
    assert (changed.key, changed.columns, changed.before.total, changed.after.total) == (
        "2",
        ["total"],
        Decimal("1.0"),
        None,
    )
    assert lake.bodies("/v1/diff") == [
        {"table": "orders", "from": "2025-01-14T00:00:00.000000Z"},
        {"table": "orders", "from": {"snapshotId": "3"}, "to": {"snapshotId": "9"}, "limit": 10},
    ]


async def test_a_plan_says_what_would_be_read_and_why_not_the_rest() -> None:
    answer = {
        "engine": "duckdb",
        "tables": [
            {
                "table": "default.events",
                "snapshotId": "7",
                "files": {"kept": 3, "pruned": 9},
                "bytes": {"kept": 300, "pruned": 900},
                "partitions": {"kept": ["dt=2024-01-01"], "pruned": []},
                "reasons": [{"file": "a.parquet", "reason": "timestamp: upper bound 2023-12-31 < 2024-01-01"}],
                "tailRows": 12,
            }
        ],
        "sql": "SELECT 1",
    }
    async with answering_lake({"POST /v1/query/plan": plain_answer(answer)}) as lake:
        client = connect(lake.url)
        plan = await client.plan("SELECT * FROM events WHERE id = ?", [3], as_of=0)
        await client.plan(table="events", where="timestamp >= '2024-01-01'")
        await client.plan(table="shop.eu.events", columns=["id"])
        with pytest.raises(errors.InvalidInput):
            await client.plan("SELECT 1", table="events")
    (table,) = plan.tables
    assert (plan.engine, plan.sql, table.table, table.files) == (
        "duckdb",
        "SELECT 1",
        "default.events",
        {"kept": 3, "pruned": 9},
    )
    assert (table.reasons[0].file, table.tail_rows) == ("a.parquet", 12)
    assert lake.bodies("/v1/query/plan") == [
        {"sql": "SELECT * FROM events WHERE id = ?", "params": [3], "asOf": 0},
        {
            "table": {"namespace": ["default"], "name": "events"},
            "columns": ["*"],
            "where": "timestamp >= '2024-01-01'",
        },
        {"table": {"namespace": ["shop", "eu"], "name": "events"}, "columns": ["id"]},
    ]


async def test_running_queries_are_listed() -> None:
    running = {
        "queryId": "q-1",
        "sql": "SELECT 1",
        "startedAt": "2025-01-14T00:00:00Z",
        "elapsedMs": 5,
        "state": "running",
    }
    async with answering_lake({"GET /v1/queries": plain_answer({"queries": [running]})}) as lake:
        (found,) = await connect(lake.url).list_queries()
    assert (found.query_id, found.sql, found.elapsed_ms, found.state) == ("q-1", "SELECT 1", 5, "running")


# --- rolling back ----------------------------------------------------------------------------------------------------

ROLLED_BACK = plain_answer(
    {"table": "default.orders", "position": 70, "changes": {"added": 1, "removed": 2, "changed": 3}}
)
ROLLBACK = "POST /v1/tables/default/orders/rollback"


async def test_a_rollback_finds_the_table_of_its_snapshot_and_later_questions_see_it() -> None:
    answers = {
        "GET /v1/snapshots": plain_answer({"snapshots": [snapshot(7), snapshot(8, "default.other")]}),
        "POST /v1/query": json_answer([], n="BIGINT"),
        ROLLBACK: ROLLED_BACK,
    }
    async with answering_lake(answers) as lake:
        client = connect(lake.url)
        rollback = await client.rollback_to(7)
        await client.rollback_to("7", table="orders")
        await client.rollback_to(table="orders", as_of=datetime(2025, 1, 14, tzinfo=UTC))
        assert (rollback.table, rollback.position, rollback.changes.removed) == ("default.orders", 70, 2)
        assert lake.bodies("/v1/tables/default/orders/rollback") == [
            {"snapshotId": "7"},
            {"snapshotId": "7"},
            {"asOf": "2025-01-14T00:00:00.000000Z"},
        ]
        await client.query("SELECT n FROM t")
        assert lake.bodies()[0]["minPosition"] == 70


async def test_a_rollback_that_is_not_clear_is_refused_before_it_is_sent() -> None:
    snapshots = plain_answer({"snapshots": [snapshot(7), snapshot(7, "default.other")]})
    async with answering_lake({"GET /v1/snapshots": snapshots}) as lake:
        client = connect(lake.url)
        with pytest.raises(errors.NoSuchSnapshot, match="snap-42"):
            await client.rollback_to("snap-42")
        with pytest.raises(errors.InvalidInput, match=r"default\.orders and default\.other"):
            await client.rollback_to(7)
        for options in ({}, {"snapshot_id": 7, "as_of": 0}, {"as_of": 0}):
            with pytest.raises(errors.InvalidInput):
                await client.rollback_to(**options)  # type: ignore[arg-type]


async def test_a_rollback_whose_answer_was_lost_may_have_happened() -> None:
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering_lake({ROLLBACK: drop}) as lake:
        with pytest.raises(errors.OutcomeUnknown):
            await connect(lake.url).rollback_to(7, table="orders")
        assert len(lake.asked) == 1
    with pytest.raises(errors.ConnectionError):
        await connect("http://127.0.0.1:1").rollback_to(7, table="orders")


async def test_a_table_that_cannot_be_is_refused_and_one_that_is_not_there_is_not_found() -> None:
    answer = refusal(404, "unknown_table", "there is no table default.none")
    async with answering_lake({"GET /v1/tables/default/none/schema": answer}) as lake:
        with pytest.raises(errors.UnknownTable, match=r"default\.none"):
            await connect(lake.url).get_schema("none")
        with pytest.raises(errors.InvalidInput, match="not the name of a table"):
            await connect(lake.url).get_schema("shop.")


async def test_an_answer_in_words_that_are_not_known_is_said_to_be_so() -> None:
    answers = {"GET /v1/tables": plain_answer({"tabellen": []}), "POST /v1/diff": plain_answer({"table": 3})}
    async with answering_lake(answers) as lake:
        with pytest.raises(errors.Unavailable, match="does not know"):
            await connect(lake.url).list_tables()
        with pytest.raises(errors.Unavailable, match="does not know"):
            await connect(lake.url).diff("orders", from_=0)


FORGET, JOB = "POST /v1/tables/shop/people/forget", "GET /v1/compaction/jobs/job-1"


def job(state: str, **more: Any) -> Any:
    return plain_answer({"jobId": "job-1", "state": state, "piecesDone": 3} | more)


async def test_a_key_is_forgotten_when_the_job_says_so() -> None:
    table = {"table": "shop.people", "snapshotsExpired": 4, "tagsRemoved": ["closing"]}
    report = {"position": 7, "rowsRemoved": 1, "tables": [table], "waits": [], "lastByteMs": 5, "newWord": 1}
    async with answering_lake({FORGET: job("queued"), JOB: job("done", forgotten=report)}) as lake:
        pieces: list[int] = []
        done = await connect(lake.url).forget("shop.people", 4711, on_progress=pieces.append)
        await connect(lake.url).forget("shop.people", "4711", source="shop-1", patient=True)
        assert lake.bodies("/v1/tables/shop/people/forget") == [
            {"key": "4711", "patient": False},
            {"key": "4711", "source": "shop-1", "patient": True},
        ]
    assert (done.position, done.rows_removed, done.last_byte_ms, pieces) == (7, 1, 5, [3])
    assert (done.tables[0].snapshots_expired, done.tables[0].tags_removed) == (4, ["closing"])


async def test_a_key_that_is_not_forgotten_is_no_success() -> None:
    async with answering_lake({FORGET: job("running"), JOB: job("failed", reason="no room")}) as lake:
        with pytest.raises(errors.Unavailable, match="no room"):
            await connect(lake.url).forget("shop.people", "1")
    async with answering_lake({FORGET: job("running"), JOB: refusal(404, "not_found")}) as lake:
        with pytest.raises(errors.OutcomeUnknown):
            await connect(lake.url).forget("shop.people", "1")
