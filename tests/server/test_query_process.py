"""Queries through a real server: its query process may die, hang or starve, and nothing but answers is lost."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.aio import run
from tests.support.server import ServerProcess, wait_for
from tests.support.speaker import Speaker, batch, event, events

pytestmark = pytest.mark.own_lake  # its query process has small limits and is killed

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
SETTINGS = """
[query]
threads = 2
memory_max_bytes = 268435456
spill_max_bytes = 1048576
concurrency_max = 2
queue_max = 1
"""
_CRASHES_MAX = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with ten users in its journal; the last tests kill its query process, and then itself."""

    async def fill(url: str) -> None:
        async with Speaker(url) as speaker:
            assert (await speaker.ask(batch(1, events(1, 10))))["status"] == "buffered"

    with ServerProcess(tmp_path_factory.mktemp("query"), settings=SETTINGS, has_queries=True) as process:
        run(fill(process.url))
        yield process


def ask(server: ServerProcess, sql: str, *, path: str = "/v1/query", **body: Any) -> tuple[int, Any]:
    """A child that starts is waited for, as a client would."""
    give_up_at = time.monotonic() + 60
    while True:
        status, answer = server.get(path, method="POST", body={"sql": sql, **body})
        if status != 503 or time.monotonic() > give_up_at:
            return status, answer
        time.sleep(0.1)


def child_of(server: ServerProcess) -> psutil.Process:
    """The query process, once it is ready."""
    assert ask(server, "SELECT 1 AS one")[0] == 200
    (child,) = [each for each in psutil.Process(server.pid).children() if "dolake.query" in each.cmdline()]
    return child


async def queries(session: aiohttp.ClientSession) -> list[Any]:
    async with session.get("/v1/queries") as answer:
        found: list[Any] = (await answer.json())["queries"]
        return found


@asynccontextmanager
async def session_on(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def until_queries(session: aiohttp.ClientSession, count: int) -> None:
    while len(await queries(session)) != count:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["", "/lakehouse"])
def test_a_question_is_answered_from_what_was_acknowledged(server: ServerProcess, base: str) -> None:
    status, answer = ask(server, "SELECT COUNT(*) FROM users", path=base + "/v1/query")
    assert (status, answer["rows"]) == (200, [{"count": 10}])
    assert answer["freshness"]["position"] == 10
    assert answer["freshness"]["sources"] == {"source-1": {"sequence": 10}}


def test_formats_and_headers_come_through(server: ServerProcess) -> None:
    child_of(server)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        headers = {"Accept": "text/csv", "X-DoLake-Query-Id": "mine"}
        connection.request("POST", "/v1/query", b'{"sql": "SELECT COUNT(*) FROM users"}', headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"count\r\n10\r\n")
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert answer.headers["X-DoLake-Query-Id"] == "mine"
        assert json.loads(answer.headers["X-DoLake-Freshness"])["position"] == 10


@pytest.mark.parametrize(
    ("sql", "status", "kind"),
    [
        ("SELEC 1", 400, "invalid_sql"),
        ("DROP TABLE users", 403, "forbidden_sql"),
        ("SELECT * FROM nowhere", 404, "unknown_table"),
    ],
)
def test_errors_come_through_with_their_status(server: ServerProcess, sql: str, status: int, kind: str) -> None:
    found, answer = ask(server, sql)
    assert (found, answer["error"]["type"]) == (status, kind)


def test_plans_and_differences_come_through(server: ServerProcess) -> None:
    status, plan = ask(server, "SELECT * FROM users WHERE id = 1", path="/v1/query/plan")
    assert (status, plan["tables"][0]["tailRows"]) == (200, 10)
    status, answer = server.get("/v1/diff", method="POST", body={"table": "users", "from": "2001-01-01"})
    assert (status, answer["counts"]) == (200, {"added": 10, "removed": 0, "changed": 0})
    assert "did not exist at 2001-01-01" in answer["warnings"][0]


def test_a_body_that_is_too_large_is_refused(server: ServerProcess) -> None:
    status, answer = server.get("/v1/query", method="POST", body=b'{"sql": "' + b" " * 1024**2 + b'"}')
    assert (status, answer["error"]["type"]) == (413, "request_entity_too_large")


def test_status_and_metrics_show_the_process_and_how_questions_ended(server: ServerProcess) -> None:
    child_of(server)
    ask(server, "SELEC 1")
    status = server.get("/status")[1]["query"]
    assert (status["state"], status["queued"]) == ("ready", 0)
    assert status["starts"] >= 1
    text = server.get("/metrics")[1]
    assert 'dolake_query_state{state="ready"} 1.0' in text
    assert 'dolake_queries_total{outcome="ok"}' in text
    assert 'dolake_queries_total{outcome="invalid_sql"}' in text
    assert "dolake_query_seconds_bucket" in text
    assert "dolake_query_process_starts_total" in text
    while server.get("/status")[1]["query"]["memoryBytes"] < 50 << 20:
        time.sleep(0.1)


def test_a_setting_changed_while_the_server_runs_counts_for_questions_soon(server: ServerProcess) -> None:
    child_of(server)
    for rows_max, count in ((3, 3), (None, 10)):
        assert server.get("/v1/config", method="PATCH", body={"queryRowsMax": rows_max})[0] == 200
        while ask(server, "SELECT * FROM users")[1]["rowCount"] != count:
            time.sleep(0.05)


# --- turns and ends --------------------------------------------------------------------------------------------------


def test_an_endless_question_is_ended_and_the_next_one_answered(server: ServerProcess) -> None:
    status, answer = ask(server, ENDLESS, timeoutMs=300)
    assert (status, answer["error"]["type"]) == (504, "query_timeout")
    assert ask(server, "SELECT 1 AS one")[0] == 200


async def test_a_question_ends_when_its_client_leaves_or_somebody_cancels_it(server: ServerProcess) -> None:
    child_of(server)
    async with session_on(server) as session:
        for sql in (ENDLESS, "SELECT i, repeat('x', 100) AS text FROM range(900000) t(i)"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1), session.post("/v1/query", json={"sql": sql}) as answer:
                    await answer.content.readexactly(1_000)
            await until_queries(session, 0)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_status_of(session, ENDLESS))
            await until_queries(session, 1)
            (running,) = await queries(session)
            assert (running["sql"], running["state"]) == (ENDLESS, "running")
            async with session.delete(f"/v1/query/{running['queryId']}") as answer:
                assert answer.status == 204
        assert asking.result() == (499, "query_cancelled")
        async with session.delete("/v1/query/unknown") as answer:
            assert answer.status == 404
    text = server.get("/metrics")[1]
    assert 'outcome="query_cancelled"' in text
    assert "cut_off" not in text


async def _status_of(session: aiohttp.ClientSession, sql: str, **body: Any) -> tuple[int, str]:
    async with session.post("/v1/query", json={"sql": sql, **body}) as answer:
        found = await answer.json()
        return answer.status, found.get("error", {}).get("type", "")


async def test_a_full_queue_says_429(server: ServerProcess) -> None:
    child_of(server)
    async with session_on(server) as session, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(_status_of(session, ENDLESS, timeoutMs=3_000)) for _ in range(3)]
        await until_queries(session, 3)
        async with session.post("/v1/query", json={"sql": "SELECT 1 AS one"}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert {each.result()[0] for each in asking} == {504}


@pytest.mark.slow
async def test_a_long_answer_takes_little_memory_in_either_process(server: ServerProcess) -> None:
    child = child_of(server)
    parent = psutil.Process(server.pid)
    sql = "SELECT i, 'this is the text of row ' || i AS text, i * 0.5 AS half FROM range(1000000) t(i)"

    before = [each.memory_info().rss for each in (parent, child)]
    size, peaks = 0, [0, 0]
    async with session_on(server) as session, session.post("/v1/query", json={"sql": sql}) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_chunked(1 << 20):
            size += len(piece)
            peaks = [max(peak, each.memory_info().rss) for peak, each in zip(peaks, (parent, child), strict=True)]
    assert size > 60_000_000
    assert peaks[0] - before[0] < 32 << 20, "the server"
    assert peaks[1] - before[1] < 128 << 20, "the query process"


async def _ask_for_too_much(
    server: ServerProcess, meanwhile: Callable[[aiohttp.ClientSession], Awaitable[None]]
) -> None:
    """Until a query has been ended because it takes all memory, do something else over and over.

    DuckDB itself crashes once in a while where memory runs out (duckdb issue 24965). That ends the query process and
    nothing else; then the query is sent once more. If the process ends in another way, that is a failure.
    """
    for _ in range(_CRASHES_MAX + 1):
        child, crash_count = child_of(server), _crash_count(server)
        async with session_on(server) as session, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_status_of(session, "SELECT list(i) AS l FROM range(1000000000) t(i)"))
            while not asking.done():
                await meanwhile(session)
        if asking.result() != (503, "query_unavailable"):
            break
        wait_for(partial(_has_crashed_since, server, crash_count), "DuckDB has crashed")
    assert asking.result() == (507, "query_out_of_memory")
    assert child_of(server).pid == child.pid


def _has_crashed_since(server: ServerProcess, crash_count: int) -> bool:
    return _crash_count(server) > crash_count


def _crash_count(server: ServerProcess) -> int:
    return len(re.findall(r"query process ended.*exit_code\D{1,4}-(?:6|11)\b", server.log))


@pytest.mark.slow
async def test_a_memory_bomb_is_ended_while_changes_are_still_taken(server: ServerProcess) -> None:
    number, slowest_s = 0, 0.0
    async with Speaker(server.url) as speaker:

        async def send(_: aiohttp.ClientSession) -> None:
            nonlocal number, slowest_s
            number += 1
            began = time.monotonic()
            answer = await speaker.ask(batch(number, [event(number, table="beside")], source="beside"))
            assert answer["status"] == "buffered"
            slowest_s = max(slowest_s, time.monotonic() - began)

        await _ask_for_too_much(server, send)
    assert number > 10
    assert slowest_s < 5
    status, answer = ask(server, "SELECT COUNT(*) FROM beside")
    assert (status, answer["rows"][0]["count"]) == (200, number)


@pytest.mark.slow
async def test_a_query_that_eats_its_memory_is_ended_and_the_others_go_on(server: ServerProcess) -> None:
    """While it has all of it, another may be told the same, after a second try; then they go on."""
    statuses: Counter[int] = Counter()

    async def count(session: aiohttp.ClientSession) -> None:
        status, _ = await _status_of(session, "SELECT COUNT(*) FROM users")
        statuses[status] += 1

    crash_count = _crash_count(server)
    await _ask_for_too_much(server, count)
    assert statuses.keys() <= {200, 507} | ({503} if _has_crashed_since(server, crash_count) else set())
    status, answer = ask(server, "SELECT COUNT(*) FROM users")
    assert (status, answer["rows"][0]["count"]) == (200, 10)


@pytest.mark.slow
async def test_a_process_that_is_killed_comes_back(server: ServerProcess) -> None:
    child = child_of(server)
    starts = server.get("/status")[1]["query"]["starts"]
    async with session_on(server) as session, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_status_of(session, ENDLESS))
        await until_queries(session, 1)
        child.kill()
        assert await asking == (503, "query_unavailable")
    assert ask(server, "SELECT 1 AS one")[0] == 200
    assert child_of(server).pid != child.pid
    assert server.get("/status")[1]["query"]["starts"] == starts + 1
    assert server.get("/health")[0] == 200


@pytest.mark.slow
async def test_an_answer_that_is_cut_off_never_looks_whole(server: ServerProcess) -> None:
    child = child_of(server)
    sql = "SELECT i, repeat('x', 100) AS text FROM range(1000000) t(i)"
    async with session_on(server) as session, session.post("/v1/query", json={"sql": sql}) as answer:
        assert answer.status == 200
        await answer.content.readexactly(1000)
        child.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert ask(server, "SELECT 1 AS one")[0] == 200


@pytest.mark.slow
def test_the_process_ends_with_its_server(server: ServerProcess) -> None:
    child = child_of(server)
    assert server.stop() == 0
    assert not psutil.pid_exists(child.pid)
    server.start()
    child = child_of(server)
    os.kill(server.pid, signal.SIGKILL)
    server.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(10)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("dolake.query.__main__", {"pyspark", "py4j", "dolake.server"}), ("dolake.server.app", {"duckdb", "pyarrow"})],
)
def test_neither_process_loads_what_only_the_other_needs(module: str, heavy: set[str]) -> None:
    script = f"import {module}, sys; print([name for name in {sorted(heavy)!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout.strip() == "[]"


def test_without_the_process_questions_are_refused(default_server: ServerProcess) -> None:
    status, answer = default_server.get("/v1/query", method="POST", body={"sql": "SELECT 1 AS one"})
    assert (status, answer["error"]["hint"]) == (409, "set query.enabled and start again")
    assert default_server.get("/status")[1]["query"] == {"state": "off"}
    assert not psutil.Process(default_server.pid).children()


@pytest.mark.slow
def test_a_home_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / ("long" * 30) / "home", has_queries=True) as server:
        assert ask(server, "SELECT 1 AS one")[0] == 200
        assert not (server.home / "query.sock").exists()
