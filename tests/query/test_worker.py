"""The query process, on a real socket over a real lake: answers, errors, turns, and queries that are ended."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pyarrow as pa
import pytest

from dolake.errors import InvalidSql, UnknownTable
from dolake.identity.grants import Grant
from dolake.query.__main__ import open_parts
from dolake.query.announcing import CheckWanted, Entry, PagesWanted, Wish, encode
from dolake.query.answering import Parts, opened
from dolake.query.changes import Changes
from dolake.query.link import Sections
from dolake.query.planning import Planner
from dolake.query.question import Question
from dolake.query.reader import Asked, Reference, Run, View
from dolake.query.relation import Relation
from dolake.query.watch import Stop, Watch
from dolake.query.worker import EXIT_BROKEN, EXIT_STUCK, Worker, listening
from dolake.settings import CatalogSettings, DoLakeConfig, QuerySettings
from tests.support.aio import until
from tests.verify.lake import HandLake, delete, insert, update

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
LONG = "SELECT i, 'some text of row ' || i AS text FROM range({}) t(i)"
ORDERS = [{"id": number, "city": ["Oslo", "Rome"][number % 2], "amount": number * 1.5} for number in range(10)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten orders, eight of them in the table, one changed and one removed in the tail."""
    folder = tmp_path_factory.mktemp("lake")
    lake = HandLake(folder)
    lake.publish(*[insert(f"k{order['id']}", "orders", **order) for order in ORDERS[:8]])
    lake.publish(insert("u1", "shop.users", name="Ada", score=2**60))
    lake.append(*[insert(f"k{order['id']}", "orders", **order) for order in ORDERS[8:]])
    lake.append(update("k0", ORDERS[0], ORDERS[0] | {"city": "Bern"}, "orders"), delete("k1", ORDERS[1], "orders"))
    lake.close()
    return folder


@dataclass
class QueryClient:
    """A client, and the process that it asks."""

    worker: Worker
    session: aiohttp.ClientSession
    left: list[int] = field(default_factory=list)

    async def ask(self, sql: str, path: str = "/query", **body: Any) -> tuple[int, Any]:
        status, _, answer = await self.post(path, {"sql": sql, **body})
        return status, answer

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=data, headers=headers) as answer:
            raw = await answer.read()
            return answer.status, answer.headers, json.loads(raw) if answer.content_type == "application/json" else raw

    async def rows(self, sql: str, **body: Any) -> list[tuple[Any, ...]]:
        status, answer = await self.ask(sql, **body)
        assert status == 200, answer
        return [tuple(row.values()) for row in answer["rows"]]

    async def running(self) -> list[Any]:
        async with self.session.get("/queries") as answer:
            return cast("list[Any]", (await answer.json())["queries"])

    async def until_running(self, count: int, state: str = "running") -> None:
        while [each["state"] for each in await self.running()] != [state] * count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class OpenLake:
    """What takes seconds to open: for all tests of this file."""

    home: Path
    parts: Parts


@pytest.fixture(scope="module")
def lake(home: Path) -> Iterator[OpenLake]:
    watch = Watch()
    settings = QuerySettings(threads=2, memory_max_bytes=256 << 20, spill_max_bytes=1 << 20)
    parts, reader = open_parts(home, Sections(settings, DoLakeConfig(), CatalogSettings()), watch)
    yield OpenLake(home, parts)
    parts.engine.close()
    reader.close()
    watch.close()


@asynccontextmanager
async def query_client(lake: OpenLake, **settings: Any) -> AsyncIterator[QueryClient]:
    left: list[int] = []
    worker = Worker(QuerySettings(**settings), left.append)
    worker.parts = lake.parts
    socket = str(lake.home / "q.sock")
    try:
        async with (
            listening(worker, socket),
            aiohttp.ClientSession("http://query", connector=aiohttp.UnixConnector(socket)) as session,
        ):
            yield QueryClient(worker, session, left)
    finally:
        worker.watch.close()
        Path(socket).unlink(missing_ok=True)


async def until_at_rest() -> None:
    """This process computes nothing any more; on a busy machine it may only wait for its turn, so look three times."""
    quiet_count = 0
    while quiet_count < 3:
        before_s = time.process_time()
        await asyncio.sleep(0.05)
        quiet_count = quiet_count + 1 if time.process_time() - before_s < 0.01 else 0


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_an_answer_has_the_table_and_what_is_not_in_it_yet(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        status, answer = await client.ask("SELECT COUNT(*), SUM(amount) AS total FROM orders")
        assert status == 200
        assert [column["name"] for column in answer["columns"]] == ["count", "total"]
        assert answer["rows"] == [{"count": 9, "total": 66.0}]
        assert (answer["rowCount"], answer["truncated"], answer["warnings"]) == (1, False, [])
        freshness = answer["freshness"]
        assert (freshness["position"], freshness["tailRows"], freshness["engine"]) == (13, 3, "duckdb")
        assert freshness["files"] == {"read": 1, "pruned": 0}
        assert list(freshness["snapshots"]) == ["default.orders"]
        assert await client.rows("SELECT city FROM orders WHERE id = 0") == [("Bern",)]
        assert await client.rows("SELECT * FROM shop.users") == [("Ada", str(2**60))]


async def test_questions_have_parameters_a_namespace_and_a_limit(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        by_city = "SELECT id FROM orders WHERE city = ? AND id > ? ORDER BY id"
        assert await client.rows(by_city, params=["Rome", 4]) == [(5,), (7,), (9,)]
        assert await client.rows("SELECT id FROM orders WHERE id = :id", params={"id": 3}) == [(3,)]
        assert await client.rows("SELECT name FROM users", namespace="shop") == [("Ada",)]
        status, answer = await client.ask("SELECT id FROM orders ORDER BY id", limit=2)
        assert (status, answer["rows"], answer["truncated"]) == (200, [{"id": 0}, {"id": 2}], True)
        for params in ([], ["Rome"], ["Rome", 4, 5], {"city": "Rome"}, None):
            status, answer = await client.ask(by_city, params=params)
            assert (status, answer["error"]["type"]) == (400, "invalid_sql")
        assert (await client.ask("SELECT 1 AS one", params=[1]))[0] == 400


async def test_a_partition_narrows_the_tables_that_have_its_columns(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        assert await client.rows("SELECT COUNT(*) FROM orders", partition={"city": "Oslo"}) == [(4,)]
        assert await client.rows("SELECT COUNT(*) FROM orders", partition={"city": ["Oslo", "Bern"]}) == [(5,)]
        status, plan = await client.ask("SELECT * FROM orders", "/plan", partition={"id": 8})
        assert (status, plan["tables"][0]["files"]) == (200, {"kept": 0, "pruned": 1})
        status, answer = await client.ask("SELECT COUNT(*) FROM orders", partition={"dateStart": "2024-01-01"})
        assert (status, answer["error"]["type"]) == (400, "invalid_input")
        assert "amount, city, id" in answer["error"]["hint"]


async def test_the_format_comes_from_the_body_or_from_accept(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        body = {"sql": "SELECT id, city FROM orders ORDER BY id LIMIT 2"}
        status, headers, raw = await client.post("/query", body, {"Accept": "text/csv"})
        assert (status, raw) == (200, b'id,city\r\n0,"Bern"\r\n2,"Oslo"\r\n')
        assert headers["Content-Type"] == "text/csv; charset=utf-8"
        assert json.loads(headers["X-DoLake-Freshness"])["position"] == 13
        assert headers["X-DoLake-Query-Id"]
        status, headers, raw = await client.post("/query", {**body, "format": "arrow"}, {"Accept": "text/csv"})
        assert headers["Content-Type"] == "application/vnd.apache.arrow.stream"
        table = pa.ipc.open_stream(raw).read_all()
        assert table.to_pylist() == [{"id": 0, "city": "Bern"}, {"id": 2, "city": "Oslo"}]
        notes = json.loads(table.schema.metadata[b"dolake"])
        assert notes["queryId"] == headers["X-DoLake-Query-Id"]
        accept = {"Accept": "application/vnd.apache.arrow.stream, */*;q=0.1"}
        assert pa.ipc.open_stream((await client.post("/query", body, accept))[2]).read_all().num_rows == 2
        assert (await client.post("/query", body, {"Accept": "*/*"}))[2]["rowCount"] == 2


async def test_a_plan_says_what_would_be_read_and_runs_nothing(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        status, plan = await client.ask("SELECT * FROM orders WHERE id > 100", "/plan")
        assert (status, plan["engine"]) == (200, "duckdb")
        (table,) = plan["tables"]
        assert (table["table"], table["files"], table["tailRows"]) == (
            "default.orders",
            {"kept": 0, "pruned": 1},
            3,
        )
        assert "upper bound" in table["reasons"][0]["reason"]
        assert table["bytes"]["pruned"] > 0
        body = {"table": {"namespace": ["default"], "name": "orders"}, "columns": ["id"], "where": "id < 3"}
        _, _, plan = await client.post("/plan", body)
        assert plan["tables"][0]["files"] == {"kept": 1, "pruned": 0}
        assert plan["sql"].startswith('SELECT "id" FROM')
        status, _, plan = await client.post("/plan", body | {"where": "id < 3; DROP TABLE orders"})
        assert (status, plan["error"]["type"]) == (403, "forbidden_sql")
        assert (await client.post("/plan", {}))[0] == 400


async def test_a_diff_has_rows_that_came_went_and_changed(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        (snapshot,) = (await client.ask("SELECT 1 AS one FROM orders LIMIT 1"))[1]["freshness"]["snapshots"].values()
        body = {"table": "orders", "from": {"snapshotId": snapshot}}
        status, _, diff = await client.post("/diff", body)
        assert status == 200, diff
        assert diff["counts"] == {"added": 2, "removed": 1, "changed": 1}
        assert diff["removed"] == [ORDERS[1]]
        assert sorted(row["id"] for row in diff["added"]) == [8, 9]
        assert diff["changed"] == [
            {"key": "k0", "before": ORDERS[0], "after": ORDERS[0] | {"city": "Bern"}, "columns": ["city"]}
        ]
        assert [column["name"] for column in diff["columns"]] == ["id", "city", "amount"]
        _, _, diff = await client.post("/diff", body | {"limit": 1})
        assert (len(diff["added"]), diff["counts"]["added"], diff["truncated"]) == (1, 2, True)
        _, _, raw = await client.post("/diff", body | {"format": "arrow"})
        assert sorted(pa.ipc.open_stream(raw).read_all().column("kind").to_pylist()) == [
            "added", "added", "changed", "removed",
        ]  # fmt: skip


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "invalid_input"),
        (b"[]", 400, "invalid_input"),
        (b"{}", 400, "invalid_input"),
        (b'{"sql": 1}', 400, "invalid_input"),
        (b'{"sql": "SELECT 1 AS x", "format": "xml"}', 400, "invalid_input"),
        (b'{"sql": "SELECT 1 AS x", "limit": -1}', 400, "invalid_input"),
        (b'{"sql": "SELECT 1 AS x", "timeoutMs": 0}', 400, "invalid_input"),
        (b'{"sql": "SELEC 1"}', 400, "invalid_sql"),
        (b'{"sql": "SELECT nothing FROM orders"}', 400, "invalid_sql"),
        (b'{"sql": "DROP TABLE orders"}', 403, "forbidden_sql"),
        (b'{"sql": "SELECT * FROM read_text(\'/etc/passwd\')"}', 403, "forbidden_sql"),
        (b'{"sql": "SELECT * FROM nowhere"}', 404, "unknown_table"),
        (b'{"sql": "SELECT * FROM orders", "snapshotId": 1}', 404, "no_such_snapshot"),
        (b'{"sql": "SELECT * FROM orders", "asOf": "soon"}', 400, "invalid_input"),
        (b'{"sql": "SELECT * FROM orders", "minPosition": 99, "timeoutMs": 50}', 503, "unavailable"),
    ],
)
async def test_what_is_wrong_has_its_status_and_is_told_in_words(
    lake: OpenLake, body: bytes, status: int, kind: str
) -> None:
    async with query_client(lake) as client:
        found, _, answer = await client.post("/query", body)
        assert (found, answer["error"]["type"], answer["error"]["code"]) == (status, kind, status)
        assert answer["error"]["message"]
        assert await client.rows("SELECT 1 AS one") == [(1,)]
        assert not client.left


async def test_tables_and_columns_are_listed_by_sql(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        assert ("default", "orders") in await client.rows("SHOW TABLES")
        assert ("default",) in await client.rows("SHOW NAMESPACES")
        described = await client.rows("DESCRIBE orders")
        assert described == [("id", "BIGINT", "YES"), ("city", "VARCHAR", "YES"), ("amount", "DOUBLE", "YES")]
        found = await client.rows(
            "SELECT t.table_name, count(*) FROM information_schema.tables t "
            "JOIN information_schema.columns c USING (table_schema, table_name) "
            "WHERE t.table_name = 'orders' GROUP BY ALL"
        )
        assert found == [("orders", 3)]
        status, _, answer = await client.post("/plan", {"sql": "SHOW TABLES"})
        assert (status, answer["tables"][0]["table"]) == (200, "information_schema.tables")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/query", {"sql": "SELECT * FROM ordrs"}),
        ("/query", {"sql": "DESCRIBE Order"}),
        ("/plan", {"sql": "SELECT * FROM default.oders"}),
        ("/diff", {"table": "ordres", "from": 0}),
    ],
)
async def test_the_closest_table_is_named_where_one_is_not_there(lake: OpenLake, path: str, body: Any) -> None:
    async with query_client(lake) as client:
        status, _, answer = await client.post(path, body)
        assert (status, answer["error"]["type"]) == (404, "unknown_table")
        assert answer["error"]["hint"] == "did you mean orders? GET /v1/tables lists them"


async def test_a_client_may_name_its_query_but_not_as_another_is_named(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        named = {"X-DoLake-Query-Id": "mine-1"}
        _, headers, answer = await client.post("/query", {"sql": "SELECT 1 AS one"}, named)
        assert answer["queryId"] == headers["X-DoLake-Query-Id"] == "mine-1"
        _, headers, _ = await client.post("/query", {"sql": "SELECT nothing FROM orders"}, named)
        assert headers["X-DoLake-Query-Id"] == "mine-1", "errors say it too"
        for wrong in ("", "a b", "x" * 65, "ü"):
            assert (await client.post("/query", {"sql": "SELECT 1 AS x"}, {"X-DoLake-Query-Id": wrong}))[0] == 400
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(client.post("/query", {"sql": ENDLESS, "timeoutMs": 1_000}, named))
            await client.until_running(1)
            assert (await client.post("/query", {"sql": "SELECT 1 AS x"}, named))[0] == 409
        assert first.result()[0] == 504


# --- queries that are ended ------------------------------------------------------------------------------------------


async def test_an_endless_query_is_stopped_when_its_time_is_over_and_the_next_one_works(lake: OpenLake) -> None:
    async with query_client(lake, timeout_ms=200, timeout_max_ms=300) as client:
        for timeout_ms in (None, 100, 3_600_000):
            began = time.monotonic()
            status, answer = await client.ask(ENDLESS, timeoutMs=timeout_ms)
            assert (status, answer["error"]["type"]) == (504, "query_timeout")
            assert time.monotonic() - began < 5
            assert await client.rows("SELECT 1 AS one") == [(1,)]
        assert not client.left


async def test_a_query_can_be_cancelled_while_it_runs_and_while_it_waits(lake: OpenLake) -> None:
    async with query_client(lake, concurrency_max=1) as client:
        async with asyncio.TaskGroup() as tasks:
            runs = tasks.create_task(client.ask(ENDLESS))
            await client.until_running(1)
            waits = tasks.create_task(client.ask("SELECT 1 AS one"))
            await until(lambda: client.worker.slots.queued == 1)
            first, second = await client.running()
            assert (first["sql"], first["state"], second["state"]) == (ENDLESS, "running", "queued")
            assert first["elapsedMs"] >= 0
            assert first["startedAt"].endswith("Z")
            for each in (second, first):
                async with client.session.delete(f"/query/{each['queryId']}") as answer:
                    assert answer.status == 204
        for each in (runs, waits):
            status, answer = each.result()
            assert (status, answer["error"]["type"]) == (499, "query_cancelled")
        async with client.session.delete("/query/unknown") as answer:
            assert answer.status == 404
        assert await client.rows("SELECT 1 AS one") == [(1,)]


@pytest.mark.parametrize(("sql", "state"), [(ENDLESS, "running"), (LONG.format(100_000_000), "sending")])
async def test_a_query_ends_when_its_client_leaves(lake: OpenLake, sql: str, state: str) -> None:
    async with query_client(lake, rows_max=10**9) as client:

        async def begin_to_read() -> None:
            async with client.session.post("/query", json={"sql": sql}) as answer:
                await answer.content.readexactly(100)
                await asyncio.Event().wait()

        reading = asyncio.ensure_future(begin_to_read())
        await client.until_running(1, state)
        if state == "sending":
            await until_at_rest()  # it waits for its client
        reading.cancel()
        await client.until_running(0)
        assert (client.worker.slots.running, client.left) == (0, [])


async def test_a_slow_client_holds_back_its_own_query_and_no_memory(lake: OpenLake) -> None:
    async with query_client(lake, rows_max=10**9) as client:
        async with client.session.post("/query", json={"sql": LONG.format(30_000_000)}) as answer:
            await answer.content.readexactly(100)
            await client.until_running(1, "sending")
            before = client.worker.watch.resident_bytes()
            await until_at_rest()
            assert client.worker.watch.resident_bytes() - before < 64 << 20
            assert await client.rows("SELECT 1 AS one") == [(1,)]
        await client.until_running(0)


async def test_an_answer_that_ends_in_an_error_never_looks_whole(lake: OpenLake) -> None:
    late = (
        "SELECT CASE WHEN i = 400000 THEN CAST('x' || i AS BIGINT) ELSE i END AS n, repeat('x', 50) AS t "
        "FROM range(500000) t(i)"
    )
    async with query_client(lake) as client:
        async with client.session.post("/query", json={"sql": late}) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        early = late.replace("400000", "400")
        status, answer_json = await client.ask(early)
        assert (status, answer_json["error"]["type"]) == (400, "invalid_sql")


async def test_too_many_queries_are_told_to_come_later(lake: OpenLake) -> None:
    async with query_client(lake, concurrency_max=1, queue_max=1, queue_wait_max_ms=300) as client:
        async with asyncio.TaskGroup() as tasks:
            runs = tasks.create_task(client.ask(ENDLESS, timeoutMs=1_500))
            await client.until_running(1)
            waits = tasks.create_task(client.ask("SELECT 1 AS one"))
            await until(lambda: client.worker.slots.queued == 1)
            status, headers, answer = await client.post("/query", {"sql": "SELECT 1 AS one"})
            assert (status, answer["error"]["type"], headers["Retry-After"]) == (429, "too_many_queries", "1")
        assert waits.result()[0] == 429, "it waited too long"
        assert runs.result()[0] == 504
        assert await client.rows("SELECT 1 AS one") == [(1,)]


async def test_settings_that_change_count_for_the_next_query(lake: OpenLake) -> None:
    async with query_client(lake, rows_max=5) as client:
        assert len(await client.rows("SELECT i FROM range(10) t(i)")) == 5
        client.worker.follow(QuerySettings(rows_max=7, timeout_ms=100, concurrency_max=2))
        assert len(await client.rows("SELECT i FROM range(10) t(i)")) == 7
        assert (await client.ask(ENDLESS))[0] == 504


# --- the end of the process ------------------------------------------------------------------------------------------


class StuckReader:
    """Opens nothing, and does not care who waits."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def tables_seen(self, grant: Grant) -> list[str]:
        return []

    def open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View:
        self.may_go.wait(20)
        raise UnknownTable("never")


async def test_a_query_that_cannot_be_stopped_is_told_so_and_ends_the_process(
    lake: OpenLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dolake.query.watch.STUCK_OUTSIDE_AFTER_S", 0.1)
    stuck = StuckReader()
    async with query_client(lake) as client:
        client.worker.parts = Parts(stuck, lake.parts.engine, Planner())
        status, answer = await client.ask("SELECT * FROM orders", timeoutMs=50)
        assert (status, answer["error"]["type"]) == (504, "query_timeout")
        status, answer = await client.ask("SELECT 1 AS one")
        assert (status, answer["error"]["type"]) == (503, "query_unavailable")
        await until(lambda: client.left == [EXIT_STUCK])
        stuck.may_go.set()


async def test_a_query_that_waits_for_the_store_is_told_when_its_time_is_over_and_gives_its_turn_back(
    lake: OpenLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dolake.query.watch.STUCK_AFTER_S", 0.1)
    monkeypatch.setattr("dolake.query.watch.STUCK_OUTSIDE_AFTER_S", 0.1)
    waiting = StuckReader()
    async with query_client(lake) as client:
        client.worker.watch.store_s = 60.0
        client.worker.parts, whole = Parts(waiting, lake.parts.engine, Planner()), client.worker.parts
        status, answer = await client.ask("SELECT * FROM orders", timeoutMs=50)
        assert (status, answer["error"]["type"]) == (504, "query_timeout")
        await until(lambda: client.worker.slots.running == 0)
        client.worker.parts = whole
        assert await client.rows("SELECT 1 AS one") == [(1,)]
        waiting.may_go.set()
        await until(lambda: not client.worker.jobs)
        assert client.worker.slots.running == 0  # which was given back once
        assert not client.left


async def test_a_duckdb_that_gave_up_ends_the_process(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        lake.parts.engine.is_broken = True
        assert await client.rows("SELECT 1 AS one") == [(1,)]
        await until(lambda: client.left == [EXIT_BROKEN])
        lake.parts.engine.is_broken = False


# --- the way of a question -------------------------------------------------------------------------------------------


@dataclass
class FakeView:
    relations: dict[str, Relation]
    warnings: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def relation(self, reference: Reference) -> Relation:
        if reference.table not in self.relations:
            raise UnknownTable(f"there is no table {reference.table}")
        return self.relations[reference.table]

    def close(self) -> None:
        self.closed.append("once")


@dataclass
class FakeReader:
    view: FakeView
    asked: list[Asked] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def tables_seen(self, grant: Grant) -> list[str]:
        return []

    def open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View:
        self.asked.append(asked)
        self.answers += run("SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2, NULL ORDER BY a")
        return cast("View", self.view)


def test_a_view_is_open_as_long_as_its_question_and_no_longer(lake: OpenLake) -> None:
    relation = Relation("default.t", "SELECT 1 AS a, 2 AS _key", ("a",), ("_key",), warnings=("careful",))
    reader = FakeReader(FakeView({"t": relation}))
    question = Question(sql="SELECT * FROM t", as_of=1.5, min_position=3)
    with opened(Parts(reader, lake.parts.engine, Planner()), question, Stop(2_000), question.sql) as found:
        assert not reader.view.closed
        assert found.warnings == ["careful"]
        assert "SELECT 1 AS a" in found.sql
    assert reader.view.closed == ["once"]
    assert reader.asked == [Asked(1, None, 3, 2.0)]
    assert reader.answers == [(1, "x"), (2, None)], "it can ask questions of its own"


@pytest.mark.parametrize(
    ("sql", "error", "is_opened"), [("SELECT * FROM t", UnknownTable, True), ("SELECT FROM WHERE", InvalidSql, False)]
)
def test_a_view_is_closed_when_something_is_wrong(
    lake: OpenLake, sql: str, error: type[Exception], *, is_opened: bool
) -> None:
    reader = FakeReader(FakeView({}))
    opening = opened(Parts(reader, lake.parts.engine, Planner()), Question(sql=sql), Stop(), sql)
    with pytest.raises(error):
        opening.__enter__()
    assert bool(reader.view.closed) == bool(reader.asked) == is_opened


class BrokenReader:
    """Has a mistake."""

    def tables_seen(self, grant: Grant) -> list[str]:
        return []

    def open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View:
        raise ZeroDivisionError


async def test_a_mistake_of_ours_is_told_as_such_and_costs_one_query(lake: OpenLake) -> None:
    async with query_client(lake) as client:
        client.worker.parts = Parts(BrokenReader(), lake.parts.engine, Planner())
        status, answer = await client.ask("SELECT * FROM orders")
        assert (status, answer["error"]["type"]) == (500, "internal_error")
        client.worker.parts = lake.parts
        assert await client.rows("SELECT COUNT(*) FROM orders") == [(9,)]


async def test_an_answer_that_nobody_reads_is_cut_off_when_its_time_is_over(lake: OpenLake) -> None:
    async with query_client(lake, rows_max=10**9) as client:
        question = {"sql": LONG.format(100_000_000), "timeoutMs": 500}
        async with client.session.post("/query", json=question) as answer:
            await answer.content.readexactly(100)
            await client.until_running(0)
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_a_newcomer_does_not_wait_for_slow_pages_of_the_past(
    lake: OpenLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over, at_work = threading.Event(), threading.Semaphore(0)

    def read_slowly(_self: Changes, _wanted: PagesWanted) -> bytes:
        at_work.release()
        assert is_over.wait(60)
        return b""

    monkeypatch.setattr(Changes, "pages", read_slowly)
    wish = Wish(("orders",))
    slow = encode(PagesWanted([wish], [Entry(0, 0)], 10, 1000))
    async with query_client(lake) as client:
        pages = [asyncio.create_task(client.post("/changes", slow)) for _ in range(4)]
        try:
            await asyncio.to_thread(at_work.acquire)
            status, _, found = await client.post("/changes/check", encode(CheckWanted(wish)))
            assert (status, found["start"]) == (200, found["durable"])
        finally:
            is_over.set()
            await asyncio.gather(*pages)
