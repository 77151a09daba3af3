"""Questions through the client: what is sent, what comes back, and what happens when somebody leaves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from aiohttp import web

from dolake import errors
from dolake.client import connect, create_lake_client
from tests.support.aio import until
from tests.support.answering_lake import (
    THREE,
    AnsweringLake,
    answering_lake,
    arrow_answer,
    arrow_bytes,
    json_answer,
    numbers,
    plain_answer,
    refusal,
)
from tests.support.changes import order


async def body_sent(*args: Any, **options: Any) -> dict[str, Any]:
    """The body that this query sends, without what every question has."""

    async with answering_lake({"POST /v1/query": THREE}) as lake:
        await connect(lake.url).query(*args, **options)
        (body,) = lake.bodies()
    assert body.pop("format") == "arrow"
    return dict(body)


# --- questions -------------------------------------------------------------------------------------------------------


async def test_a_question_needs_no_open_client_and_no_socket() -> None:
    async with answering_lake({"POST /v1/query": THREE}) as lake:
        client = create_lake_client(lake.url.replace("http", "ws") + "/ws", token="secret")
        result = await client.query("SELECT COUNT(*) FROM orders")
        assert result.rows[0].count == 3
        assert not lake.sockets
        assert lake.asked[0].headers["Authorization"] == "Bearer secret"
        assert lake.asked[0].headers["X-DoLake-Query-Id"]


async def test_one_client_serves_several_loops_until_it_is_closed() -> None:
    async def ask(client: Any) -> Any:
        return (await client.query("SELECT COUNT(*) FROM orders")).scalar()

    async with answering_lake({"POST /v1/query": THREE}) as lake:
        client = connect(lake.url)
        for _ in range(2):
            assert await asyncio.to_thread(lambda: asyncio.run(ask(client))) == 3
        async with client:
            assert await ask(client) == 3
        with pytest.raises(errors.InvalidInput, match="not open"):
            await ask(client)


@pytest.mark.parametrize(
    ("as_of", "sent"),
    [
        (datetime(2025, 1, 14), "2025-01-14T00:00:00.000000Z"),  # noqa: DTZ001 - that is the question
        (datetime(2025, 1, 14, 1, tzinfo=timezone(timedelta(hours=1))), "2025-01-14T00:00:00.000000Z"),
        (date(2025, 1, 14), "2025-01-14T00:00:00.000000Z"),
        ("2025-01-14T00:00:00Z", "2025-01-14T00:00:00Z"),
        (1736812800000, 1736812800000),
    ],
)
async def test_a_moment_can_be_told_in_many_ways(as_of: Any, sent: Any) -> None:
    assert await body_sent("SELECT 1", as_of=as_of) == {"sql": "SELECT 1", "asOf": sent}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"snapshot_id": 7345987345987345987}, {"snapshotId": "7345987345987345987"}),
        ({"snapshot_id": "snap-42"}, {"snapshotId": "snap-42"}),
        ({"limit": 10, "namespace": "shop"}, {"limit": 10, "namespace": "shop"}),
        ({"min_position": 7}, {"minPosition": 7}),
        (
            {"partition": {"date_start": date(2024, 1, 1), "date_end": "2024-01-31"}},
            {"partition": {"dateStart": "2024-01-01", "dateEnd": "2024-01-31"}},
        ),
        ({"partition": {"region": "eu", "bucket": 3}}, {"partition": {"region": "eu", "bucket": 3}}),
    ],
)
async def test_options_are_sent_under_the_names_of_the_server(options: dict[str, Any], sent: dict[str, Any]) -> None:
    assert await body_sent("SELECT 1", **options) == {"sql": "SELECT 1"} | sent


async def test_a_timeout_is_sent_in_milliseconds() -> None:
    assert 1400 < (await body_sent("SELECT 1", timeout=1.5))["timeoutMs"] <= 1500


@pytest.mark.parametrize(
    ("entity_type", "sql"),
    [
        ("Customer", 'SELECT * FROM "Customer"'),
        ("shop.orders", 'SELECT * FROM "shop"."orders"'),
        ("shop.eu.orders", 'SELECT * FROM "shop.eu"."orders"'),
        ('x"; DROP', 'SELECT * FROM "x""; DROP"'),
    ],
)
async def test_an_entity_type_asks_for_all_of_its_rows(entity_type: str, sql: str) -> None:
    assert await body_sent(entity_type=entity_type) == {"sql": sql}


async def test_parameters_keep_their_meaning_on_the_way() -> None:
    given = [
        *(None, True, 3, 2**62, 2**70, 1.5, float("nan"), float("-inf"), "text"),
        *(Decimal("1.50"), datetime(2025, 1, 14, tzinfo=UTC), date(2025, 1, 14), b"\x00\xff"),
        *(UUID(int=1), timedelta(seconds=1.5), [1, Decimal(2)], pa.scalar(1).as_py()),
    ]
    assert (await body_sent("SELECT ?", given))["params"] == [
        *(None, True, 3, 2**62, str(2**70), 1.5, "NaN", "-Infinity", "text"),
        *("1.50", "2025-01-14T00:00:00.000000Z", "2025-01-14", "AP8="),
        *("00000000-0000-0000-0000-000000000001", "1500000 microseconds", [1, "2"], 1),
    ]
    assert (await body_sent("SELECT :day", {"day": date(2025, 1, 14)}))["params"] == {"day": "2025-01-14"}


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((), {}, "either SQL or an entity_type"),
        (("SELECT 1",), {"entity_type": "a"}, "either SQL or an entity_type"),
        (("SELECT 1", "text"), {}, "params is str"),
        (("SELECT 1", [object()]), {}, r"params\[0\] is object"),
        (("SELECT 1", {"a": [1, object()]}), {}, r"params\['a'\]\[1\] is object"),
        (("SELECT 1",), {"as_of": True}, "not a moment"),
        (("SELECT 1",), {"as_of": 1.5}, "not a moment"),
        (("SELECT 1",), {"as_of": "x", "snapshot_id": 1}, "not both"),
        (("SELECT 1",), {"timeout": 0}, "timeout"),
        (("SELECT 1",), {"query_id": "a b"}, "query_id"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_before_it_is_sent(
    args: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        await connect("http://127.0.0.1:1").query(*args, **options)


async def test_an_answer_says_how_fresh_it_is() -> None:
    answer = json_answer([], notes={"warnings": ["careful"], "truncated": True}, n="BIGINT")
    async with answering_lake({"POST /v1/query": answer}) as lake:
        result = await connect(lake.url).query("SELECT n FROM t")
    assert (len(result), result.first(), result.scalar(), list(result)) == (0, None, None, [])
    assert (result.warnings, result.truncated, result.query_id) == (["careful"], True, "q-1")
    fresh = result.freshness
    assert (fresh.position, fresh.age_ms, fresh.engine, fresh.tail_rows, fresh.as_of) == (
        1200,
        12,
        "duckdb",
        14,
        None,
    )
    assert fresh.sources["shop-1"].sequence == 88
    assert fresh.snapshots == {"default.orders": "7345", "default.new": None}
    assert (fresh.files.read, fresh.files.pruned) == (3, 9)


# --- answers in batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, None])
async def test_an_arrow_answer_may_arrive_in_any_pieces(chunk_bytes: int | None) -> None:
    data = arrow_bytes(numbers(1, 2), numbers(3), numbers(), notes={"warnings": ["w"]})
    async with answering_lake({"POST /v1/query": arrow_answer(data, chunk_bytes=chunk_bytes)}) as lake:
        result = await connect(lake.url).query("SELECT n FROM t")
    assert [row.n for row in result] == [1, 2, 3]
    assert (len(result), result.warnings, result.freshness.position) == (3, ["w"], 1200)
    assert [(column.name, column.type) for column in result.columns] == [("n", "BIGINT")]


async def test_batches_are_given_out_as_they_arrive() -> None:
    data = arrow_bytes(numbers(1, 2), numbers(3))
    may_go_on = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/vnd.apache.arrow.stream"})
        await response.prepare(request)
        await response.write(data[:-100])
        await may_go_on.wait()
        await response.write(data[-100:])
        return response

    async with answering_lake({"POST /v1/query": answer}) as lake:
        batches = connect(lake.url).query_batches("SELECT n FROM t")
        first = await anext(batches)
        assert [row.n for row in first] == [1, 2]
        assert first.freshness.position == 1200
        may_go_on.set()
        assert [[row.n for row in batch] async for batch in batches] == [[3]]


async def test_an_answer_without_rows_still_has_its_columns() -> None:
    async with answering_lake({"POST /v1/query": arrow_answer(arrow_bytes(numbers()))}) as lake:
        client = connect(lake.url)
        (batch,) = [batch async for batch in client.query_batches("SELECT n FROM t")]
        assert ([column.name for column in batch.columns], batch.rows) == (["n"], [])
        assert (await client.query("SELECT n FROM t")).to_arrow().num_rows == 0


async def test_what_is_known_only_at_the_end_comes_with_the_last_batch() -> None:
    data = arrow_bytes(numbers(1), last={"truncated": True, "elapsedMs": 5})
    async with answering_lake({"POST /v1/query": arrow_answer(data)}) as lake:
        result = await connect(lake.url).query("SELECT n FROM t")
    assert (result.truncated, result.elapsed_ms, [row.n for row in result]) == (True, 5, [1])


# --- when it goes wrong ----------------------------------------------------------------------------------------------


async def test_an_arrow_answer_without_its_end_was_cut_off() -> None:
    data = arrow_bytes(numbers(1, 2), numbers(3))
    for size in (0, 5, 100, len(data) // 2, len(data) - 9, len(data) - 1):
        async with answering_lake({"POST /v1/query": arrow_answer(data[:size])}) as lake:
            with pytest.raises(errors.QueryUnavailable, match="cut off") as refused:
                await connect(lake.url).query("SELECT n FROM t")
            assert refused.value.retryable


@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.apache.arrow.stream"])
async def test_a_connection_that_breaks_in_the_middle_of_an_answer_is_an_answer_cut_off(content_type: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(arrow_bytes(numbers(1))[:-8] if "arrow" in content_type else b'{"queryId": "q", "rows": [')
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering_lake({"POST /v1/query": answer}) as lake:
        with pytest.raises(errors.QueryUnavailable, match="cut off"):
            await connect(lake.url).query("SELECT n FROM t")


@pytest.mark.parametrize("body", [b"no json", b'{"columns": 3}', b'{"freshness": {"position": "far"}}'])
async def test_an_answer_that_is_not_what_was_agreed_is_said_to_be_so(body: bytes) -> None:
    answer = {"POST /v1/query": lambda _: web.Response(body=body, content_type="application/json")}
    async with answering_lake(answer) as lake:
        with pytest.raises(errors.QueryUnavailable, match="not what was agreed"):
            await connect(lake.url).query("SELECT n FROM t")


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_sql", errors.InvalidSql),
        (403, "forbidden_sql", errors.ForbiddenSql),
        (404, "unknown_table", errors.UnknownTable),
        (404, "no_such_moment", errors.NoSuchMoment),
        (404, "no_such_snapshot", errors.NoSuchSnapshot),
        (504, "query_timeout", errors.QueryTimeout),
        (507, "query_out_of_memory", errors.QueryOutOfMemory),
        (499, "query_cancelled", errors.QueryCancelled),
        (429, "too_many_queries", errors.TooManyQueries),
        (503, "query_unavailable", errors.QueryUnavailable),
        (409, "conflict", errors.Conflict),
        (400, "something_new", errors.InvalidInput),
        (404, "NoSuchTableException", errors.NotFound),
        (500, "internal_error", errors.Unavailable),
    ],
)
async def test_an_error_of_the_server_is_raised_as_its_own_class(
    status: int, kind: str, expected: type[errors.DoLakeError]
) -> None:
    async with answering_lake({"POST /v1/query": refusal(status, kind, "the message", "the hint")}) as lake:
        with pytest.raises(expected) as refused:
            await connect(lake.url).query("SELECT 1")
    assert type(refused.value) is expected
    assert (refused.value.message, refused.value.hint) == ("the message", "the hint")


async def test_a_server_that_asks_for_patience_says_for_how_long() -> None:
    answer = refusal(429, "too_many_queries", "the queue is full", **{"Retry-After": "2"})
    async with answering_lake({"POST /v1/query": answer}) as lake:
        with pytest.raises(errors.TooManyQueries, match="try again in 2 s"):
            await connect(lake.url).query("SELECT 1")


async def test_an_answer_that_is_not_of_a_lake_names_the_address() -> None:
    answers = {"POST /v1/query": lambda _: web.Response(status=502, text="<html>proxy</html>")}
    async with answering_lake(answers) as lake:
        with pytest.raises(errors.Unavailable, match="/v1/query answered HTTP 502"):
            await connect(lake.url).query("SELECT 1")
        lake.answers["POST /v1/query"] = lambda _: web.Response(status=401)
        with pytest.raises(errors.Unauthorized, match="token"):
            await connect(lake.url).query("SELECT 1")


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with pytest.raises(errors.ConnectionError, match="cannot be reached") as refused:
        await connect("http://127.0.0.1:1").query("SELECT 1")
    assert "dolake serve" in refused.value.hint


async def test_a_server_that_falls_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolake.client.reading.GRACE_S", 0.0)

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with answering_lake({"POST /v1/query": hang}) as lake:
        with pytest.raises(errors.ConnectionError, match=r"said nothing for 0\.1 s"):
            await connect(lake.url).query("SELECT 1", timeout=0.1)


async def test_a_connection_that_was_closed_while_it_lay_idle_is_replaced() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.json_response({"rows": [{"n": 1}], "columns": [{"name": "n", "type": "BIGINT"}]})
        transports.append(request.transport)
        return response

    transports: list[Any] = []
    async with answering_lake({"POST /v1/query": answer}) as lake, connect(lake.url) as client:
        for _ in range(3):
            assert (await client.query("SELECT 1")).scalar() == 1
            transports[-1].abort()


# --- leaving ---------------------------------------------------------------------------------------------------------


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def begin_and_hang(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/vnd.apache.arrow.stream"})
    await response.prepare(request)
    await response.write(arrow_bytes(numbers(1, 2), numbers(3))[:-100])
    return await never(request)


async def cancel_in_the_middle(lake: AnsweringLake, client: Any) -> None:
    task = asyncio.ensure_future(client.query("SELECT 1"))
    await until(lambda: len(lake.asked) == 1)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: lake.left == ["/v1/query"])


@pytest.mark.parametrize("answer", [never, begin_and_hang])
@pytest.mark.parametrize("is_open", [True, False])
async def test_cancelling_the_task_tells_the_server(answer: Any, is_open: bool) -> None:
    async with answering_lake({"POST /v1/query": answer}) as lake:
        if is_open:
            async with connect(lake.url) as client:
                await cancel_in_the_middle(lake, client)
        else:
            await cancel_in_the_middle(lake, connect(lake.url))


async def test_leaving_a_loop_over_batches_tells_the_server() -> None:
    async with answering_lake({"POST /v1/query": begin_and_hang}) as lake:
        async for batch in connect(lake.url).query_batches("SELECT 1"):
            assert len(batch) == 2
            break
        await until(lambda: lake.left == ["/v1/query"])


async def test_a_query_can_be_cancelled_by_its_id() -> None:
    answers = {"DELETE /v1/query/nightly-1": plain_answer(None, 204), "POST /v1/query": THREE}
    async with answering_lake(answers) as lake:
        client = connect(lake.url)
        await client.query("SELECT 1", query_id="nightly-1")
        assert lake.asked[0].headers["X-DoLake-Query-Id"] == "nightly-1"
        assert await client.cancel("nightly-1") is True
        assert await client.cancel("nightly-2") is False


# --- read your writes ------------------------------------------------------------------------------------------------


async def test_a_question_includes_what_this_client_has_sent() -> None:
    async with answering_lake({"POST /v1/query": THREE}) as lake, connect(lake.url) as client:
        await client.query("SELECT 1")
        await client.send([order(1), order(2)])
        await client.query("SELECT 1")
        await client.query("SELECT 1", min_position=1)
        await client.query("SELECT 1", min_position=9)
        await client.query("SELECT 1", as_of=0)
        await client.query("SELECT 1", snapshot_id=3)
    assert [body.get("minPosition") for body in lake.bodies()] == [None, 2, 2, 9, None, None]


async def test_a_question_waits_for_what_is_not_acknowledged_yet() -> None:
    async with answering_lake({"POST /v1/query": THREE}) as lake, connect(lake.url) as client:
        lake.acknowledges.clear()
        await client.put(order(1))
        sending = asyncio.ensure_future(client.send(order(2)))
        await asyncio.sleep(0.02)
        asking = asyncio.ensure_future(client.query("SELECT 1"))
        await asyncio.sleep(0.05)
        assert not lake.bodies()
        lake.acknowledges.set()
        await asking
        await sending
        assert lake.bodies()[0]["minPosition"] == 2


async def test_what_is_put_while_a_question_waits_does_not_hold_it() -> None:
    async with (
        answering_lake({"POST /v1/query": THREE}) as lake,
        connect(lake.url, window=1, batch_events_max=1) as client,
    ):
        lake.acknowledges.clear()
        await client.put(order(1))
        asking = asyncio.ensure_future(client.query("SELECT 1"))
        await asyncio.sleep(0.02)
        for number in range(2, 100):
            await client.put(order(number))
        lake.acknowledges.set()
        await asking
        assert client.pending_count > 0


async def test_a_question_does_not_wait_longer_than_its_timeout_for_acknowledgements() -> None:
    async with answering_lake({"POST /v1/query": THREE}) as lake:
        async with connect(lake.url, close_wait_ms=5_000) as client:
            lake.acknowledges.clear()
            await client.put(order(1))
            with pytest.raises(errors.QueryTimeout, match=r"not acknowledged within 0\.1 s"):
                await client.query("SELECT 1", timeout=0.1)
            lake.acknowledges.set()
        assert not lake.bodies()


async def test_a_client_may_ask_without_waiting_for_its_own_writes() -> None:
    async with (
        answering_lake({"POST /v1/query": THREE}) as lake,
        connect(lake.url, read_your_writes=False) as client,
    ):
        await client.send(order(1))
        lake.acknowledges.clear()
        await client.put(order(2))
        await client.query("SELECT 1")
        assert "minPosition" not in lake.bodies()[0]
        lake.acknowledges.set()


async def test_changes_that_were_refused_hold_no_question() -> None:
    async with answering_lake({"POST /v1/query": THREE}) as lake, connect(lake.url) as client:
        with pytest.raises(errors.MessageValidationError):
            await client.send({"table": ""})
        await client.query("SELECT 1", timeout=5)
        assert "minPosition" not in lake.bodies()[0]


# --- what is loaded --------------------------------------------------------------------------------------------------


def test_the_client_loads_arrow_only_for_a_question() -> None:
    script = (
        "import sys; from dolake.client import connect; connect('http://lake'); import dolake.client.sync;"
        "print([name for name in ('pyarrow', 'numpy', 'pandas', 'polars') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert answer.stdout.strip() == "[]"
