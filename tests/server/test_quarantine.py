"""Changes that could not be written: seen at once, sent again in order and only once, or let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dolake.changes import StreamId
from dolake.client import connect
from dolake.errors import Conflict, MessageValidationError, UnknownTable
from dolake.journal.record import StreamPoint
from dolake.server.appending import batch_of
from dolake.server.lake import Lake
from dolake.server.quarantine import Entry, quarantines_of
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import RawEvent, encode
from tests.support.aio import until
from tests.support.http import ask
from tests.support.kept import records_of
from tests.support.lake import running_lake, settings_of
from tests.support.speaker import Speaker, batch, event

Json = dict[str, Any]
ORDERS = "/v1/quarantine/default/orders"


@asynccontextmanager
async def answering_queries(home: Path, **flags: Any) -> AsyncIterator[tuple[Lake, str]]:
    """With a query process and without a pipeline: what is in quarantine is told from the tail."""
    async with running_lake(home, settings=settings_of(**flags)) as (lake, url):
        supervising = asyncio.create_task(lake.start_query().supervise())
        try:
            await until(lambda: lake.query_process().stats.state == "ready")  # a busy machine needs long to start one
            yield lake, url
        finally:
            await lake.query_process().stop()
            await supervising


async def body_of(url: str, path: str, body: Any = None, *, status: int = 200) -> Json:
    answer = await ask(url, path, "GET" if body is None else "POST", data=None if body is None else json.dumps(body))
    assert answer.status == status, answer.body
    found: Json = answer.body
    return found


class Source:
    """Sends changes of `orders`, each in a batch of its own."""

    def __init__(self, url: str) -> None:
        self._url, self._number = url, 0

    async def send(self, *changes: Json) -> None:
        async with Speaker(self._url) as speaker:
            await speaker.connect()
            for change in changes:
                self._number += 1
                numbered = event(self._number) | {"table": "orders"} | change
                answer = await speaker.ask(batch(self._number, [numbered]))
                assert answer["type"] == "ack", answer


def row(key: str, **values: Any) -> Json:
    return {"rowId": key, "after": values}


def partial(key: str, **values: Any) -> Json:
    """An UPDATE that does not say what `text` is: without the row it cannot be written."""
    metadata = {"unchanged": ["text"], "transactionId": "t1", "transactionEnd": True, "own": 1}
    return row(key, **values) | {"operation": "UPDATE", "metadata": metadata}


async def positions_in(url: str, path: str = ORDERS) -> list[int]:
    return [each["position"] for each in (await body_of(url, path))["entries"]]


async def test_a_replay_sends_changes_again_in_their_order_and_only_once(tmp_path: Path) -> None:
    async with answering_queries(tmp_path) as (lake, url):
        source = Source(url)
        await source.send(row("1", id=1, text="a"), partial("2", id=2), partial("2", id=3), partial("none", id=4))
        assert await body_of(url, "/v1/quarantine") == {
            "tables": [{"namespace": "default", "name": "orders", "entries": 3}]
        }
        (first, *_) = (await body_of(url, ORDERS + "?limit=1"))["entries"]
        assert (first["position"], first["operation"], first["key"]) == (1, "UPDATE", "2")
        assert (first["table"], first["source"], first["sequence"]) == ("default.orders", "source-1", 2)
        assert "not sent" in first["reason"]
        assert json.loads(first["event"])["after"] == {"id": 2}

        await source.send(row("2", id=0, text="kept"))
        done = await body_of(url, ORDERS + "/replay", {"positions": [2, 1, 77]})
        assert done["replayed"] == 2
        assert done["refused"] == [{"position": 77, "reason": "is not in the quarantine"}]
        assert done["position"] == lake.journal.durable == 9
        lake_ = connect(url)
        found = await lake_.query("SELECT _key, id, text FROM orders ORDER BY _key")
        assert [tuple(each) for each in found.rows] == [("1", 1, "a"), ("2", 3, "kept")]
        assert await positions_in(url) == [3]

        again = await body_of(url, ORDERS + "/replay", {"positions": [1, 2]})
        assert (again["replayed"], again["position"]) == (0, 9)
        assert [each["position"] for each in again["refused"]] == [1, 2]

        back = await body_of(url, ORDERS + "/replay", {})
        assert (back["replayed"], back["refused"]) == (1, [])
        assert await positions_in(url) == [9], "it still cannot be written, so it is there under its new position"
        history = await lake_.query("SELECT _key, _operation FROM orders__quarantine__changes ORDER BY _position")
        assert [tuple(each) for each in history.rows] == [
            ("1", "INSERT"),
            ("2", "INSERT"),
            ("3", "INSERT"),
            ("1", "DELETE"),
            ("2", "DELETE"),
            ("9", "INSERT"),
            ("3", "DELETE"),
        ]
        assert quarantines_of(lake).replayed == {"orders": 3}
    records = records_of(tmp_path, "dolake.quarantine")
    assert [each.change_count for each in records] == [4, 2]
    told = [json.loads(encode(each.metadata)) for each in decode_raw_batch(records[0].payload).events]
    assert [each.get("transactionEnd", False) for each in told] == [False, True, False, True]
    assert told[0]["transactionId"] == told[1]["transactionId"] != told[2]["transactionId"]
    assert (told[0]["unchanged"], told[0]["own"]) == (["text"], 1)


async def test_what_was_done_survives_a_restart(tmp_path: Path) -> None:
    async with answering_queries(tmp_path) as (_, url):
        await Source(url).send(row("1", id=1, text="a"), partial("2", id=2), partial("3", id=3))
        assert (await body_of(url, ORDERS + "/drop", {"positions": [1]}))["dropped"] == 1
    async with answering_queries(tmp_path) as (_, url):
        assert await positions_in(url) == [2]
        assert (await body_of(url, "/v1/quarantine"))["tables"][0]["entries"] == 1


async def test_dropped_entries_are_gone_and_counted(tmp_path: Path) -> None:
    async with answering_queries(tmp_path) as (_, url):
        await Source(url).send(row("1", id=1, text="a"), *(partial(f"n{n}", id=n) for n in range(5)))
        lake = connect(url)
        entries = await lake.list_quarantine(limit=2)
        assert [each.position for each in entries] == [1, 2]
        assert [each.position for each in await lake.list_quarantine("orders", after=2)] == [3, 4, 5]
        done = await lake.drop_quarantine("orders", [2])
        assert (done.dropped, done.refused) == (1, [])
        assert (await lake.drop_quarantine("orders", None)).dropped == 4
        assert not await lake.list_quarantine()
        assert not await lake.list_quarantines()
        families = text_string_to_metric_families((await ask(url, "/metrics")).body)
        counts = {each.name: each.value for family in families for each in family.samples}
        assert counts["dolake_quarantine_dropped_total"] == 5


async def test_a_second_replay_of_a_table_waits_for_the_first(tmp_path: Path) -> None:
    async with answering_queries(tmp_path) as (_, url):
        await Source(url).send(row("1", id=1, text="a"), *(partial(f"n{n}", id=n) for n in range(20)))
        asked = [connect(url).replay_quarantine("orders") for _ in range(3)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(type(each).__name__ for each in done) == ["Conflict", "Conflict", "Replay"]
        assert all(isinstance(each, Conflict) for each in done if isinstance(each, Exception))
        assert await positions_in(url) == [21 + 2 * n for n in range(20)]


async def test_pages_are_followed_to_the_end_whatever_an_answer_may_hold(tmp_path: Path) -> None:
    async with answering_queries(tmp_path, query__rows_max=2) as (_, url):
        await Source(url).send(row("1", id=1, text="a"), *(partial(f"n{n}", id=n) for n in range(5)))
        page = await body_of(url, ORDERS + "?limit=3&after=1")
        assert ([each["position"] for each in page["entries"]], page["nextAfter"]) == ([2, 3, 4], 4)
        assert (await body_of(url, ORDERS + "?after=4"))["nextAfter"] is None
        assert (await body_of(url, ORDERS + "/drop", {}))["dropped"] == 5


async def test_requests_that_cannot_be_done_are_refused(tmp_path: Path) -> None:
    async with answering_queries(tmp_path, lake__exclude_tables=["hidden"]) as (_, url):
        await Source(url).send(row("1", id=1, text="a"))
        assert await body_of(url, ORDERS) == {"entries": [], "nextAfter": None}
        assert (await body_of(url, ORDERS + "/replay", {}))["replayed"] == 0
        assert (await body_of(url, "/v1/quarantine")) == {"tables": []}
        bodies: list[Any] = [[], {"positions": 1}, {"positions": [-1]}, {"positions": ["x"]}]
        for body in bodies:
            assert (await body_of(url, ORDERS + "/drop", body, status=400))["error"]["type"] == "invalid_input"
        await body_of(url, ORDERS + "?limit=0", status=400)
        await body_of(url, "/v1/quarantine/default/nothing", status=404)
        await body_of(url, "/v1/quarantine/default/nothing/replay", {}, status=404)
        with pytest.raises(UnknownTable):
            await connect(url).drop_quarantine("nothing", None)
        await body_of(url, "/v1/quarantine/default/hidden/replay", {}, status=409)
        async with Speaker(url) as speaker:  # the door of sources stays shut
            answer = await speaker.ask(batch(1, [event(1, table="orders__quarantine")], source="other"))
            assert answer["type"] == "nack"


async def test_where_each_source_owns_its_rows_nothing_is_sent_for_it(tmp_path: Path) -> None:
    async with answering_queries(tmp_path, lake__key_scope="source") as (_, url):
        await Source(url).send(row("1", id=1, text="a"), partial("2", id=2))
        assert await positions_in(url) == [1]
        await body_of(url, ORDERS + "/replay", {}, status=400)


async def test_an_event_that_is_no_json_any_more_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ['{"operation":"INSERT"', '{"operation":"INSERT","after":{"a":"\\xff"}}', "[]", "{}"]
    async with answering_queries(tmp_path) as (lake, url):
        await Source(url).send(row("1", id=1, text="a"), *(partial(f"n{n}", id=n) for n in range(5)))
        quarantines, entries = quarantines_of(lake), quarantines_of(lake)._entries

        async def damaged(*args: Any) -> list[Entry]:
            found = await entries(*args)
            return [replace(each, event=text) for each, text in zip(found, texts, strict=False)] + found[4:]

        with monkeypatch.context() as patch:
            patch.setattr(quarantines, "_entries", damaged)
            done = await body_of(url, ORDERS + "/replay", {})
        assert done["replayed"] == 1
        assert [each["position"] for each in done["refused"]] == [1, 2, 3, 4]
        assert all("its event" in each["reason"] for each in done["refused"])
        assert (await positions_in(url)) == [1, 2, 3, 4, 6]
        assert (await body_of(url, ORDERS + "/drop", {"positions": [1]}))["dropped"] == 1


def test_only_changes_of_our_own_may_name_a_quarantine() -> None:
    leaving = RawEvent(sequence=1, timestamp=0, operation="DELETE", table="orders__quarantine", row_id="1")
    with pytest.raises(MessageValidationError):
        batch_of(StreamId("dolake.rollback"), StreamPoint(), [leaving], 0)
