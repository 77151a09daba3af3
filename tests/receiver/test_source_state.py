"""The state of a source on the socket: sent with changes or alone, told at the next connect, kept once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.wire.source_state import STATE_MAX_BYTES
from tests.support.journals import GatedDisk
from tests.support.lake import running_lake
from tests.support.speaker import Speaker, batch, events


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with running_lake(tmp_path) as (_, url):
        yield url


def records_of(home: Path) -> list[Record]:
    with JournalReader(home / "journal") as reader:
        return list(reader.read(with_states=True))


def status_of(answer: dict[str, Any]) -> tuple[str, int, int]:
    return answer["status"], answer["details"]["eventsProcessed"], answer["details"].get("position", -1)


async def test_connect_tells_the_state_that_was_sent_with_changes_and_alone(url: str, tmp_path: Path) -> None:
    async with Speaker(url) as speaker:
        assert (await speaker.connect("shop"))["sourceState"] == {}
        answers = [
            await speaker.ask(batch(1, events(1, 3), source="shop", sourceState={"place": 3, "old": 1})),
            await speaker.ask(batch(2, [], source="shop", sourceState={"old": None, "more": {"a": [1, None]}})),
            await speaker.ask(batch(3, events(4, 4), source="shop")),
        ]
        assert [status_of(answer) for answer in answers] == [("buffered", 3, 3), ("buffered", 0, 4), ("buffered", 1, 5)]
    async with Speaker(url) as speaker:
        status = await speaker.connect("shop")
        assert status["sourceState"] == {"place": 3, "more": {"a": [1, None]}}
        assert (status["lastBatchNumber"], status["lastDurableSequence"], status["position"]) == (3, 4, 5)
        assert (await Speaker.connect(speaker, "shop", sourceEpoch=1))["sourceState"] == {}
    assert [(each.position, each.change_count, len(each.source_state)) for each in records_of(tmp_path)] == [
        (0, 3, 19),
        (3, 0, 34),
        (4, 1, 0),
    ]


async def test_a_state_is_acknowledged_when_it_is_durable_and_not_before(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        lake.journal._writer._disk = disk
        await speaker.connect("shop")
        disk.hold()
        await speaker.say(batch(1, [], source="shop", sourceState={"at": 1}))
        await speaker.say({"type": "heartbeat", "sourceDoId": "shop"})
        assert (await speaker.hear())["status"] == "ok"
        disk.let_go()
        assert status_of(await speaker.hear()) == ("buffered", 0, 1)


async def test_a_state_sent_again_is_a_duplicate_also_by_a_new_connection(url: str, tmp_path: Path) -> None:
    first, second = (batch(number, [], source="shop", sourceState={"at": number}) for number in (1, 2))
    for _ in range(2):
        async with Speaker(url) as speaker:
            assert [(await speaker.ask(each))["status"] for each in (first, second)][1] in ("buffered", "duplicate")
            assert [(await speaker.ask(each))["status"] for each in (first, second)] == ["duplicate", "duplicate"]
    assert [each.source_state for each in records_of(tmp_path)] == [b'{"at":1}', b'{"at":2}']


async def test_another_state_under_an_old_number_is_refused_and_the_stream_goes_on_where_the_nack_says(
    url: str,
) -> None:
    async with Speaker(url) as speaker:
        await speaker.ask(batch(1, [], source="shop", sourceState={"at": 1}))
        await speaker.ask(batch(2, events(1, 1), source="shop"))
    async with Speaker(url) as speaker:
        nack = await speaker.ask(batch(1, [], source="shop", sourceState={"at": 9}))
        assert (nack["reason"], nack["shouldRetry"], nack["expectedSequenceNumber"]) == ("invalid_sequence", True, 3)
        assert "was sent before with other content" in nack["errorMessage"]
        assert (await speaker.ask(batch(3, [], source="shop", sourceState={"at": 9})))["status"] == "buffered"
        assert (await speaker.connect("shop"))["sourceState"] == {"at": 9}


async def test_a_batch_without_events_and_state_is_ok_and_not_kept(url: str, tmp_path: Path) -> None:
    async with Speaker(url) as speaker:
        assert (await speaker.ask(batch(1, [], source="shop")))["status"] == "ok"
        assert (await speaker.connect("shop"))["lastBatchNumber"] == 0
    assert records_of(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "sourceState"),
        ([], "sourceState"),
        ("x", "sourceState"),
        ({"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}, "nested deeper than 32 levels"),
        ({"a": 2**70}, "more than 64 bits"),
        ({"a": "x" * STATE_MAX_BYTES}, "is too large"),
    ],
)
async def test_what_is_no_state_is_refused_and_its_changes_with_it(
    state: object, message: str, url: str, tmp_path: Path
) -> None:
    async with Speaker(url) as speaker:
        nack = await speaker.ask(batch(1, events(1, 2), source="shop", sourceState=state))
        assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", "invalid_format", False)
        assert message in nack["errorMessage"] + nack["details"][0]["path"]
        assert (await speaker.ask(batch(1, events(1, 2), source="shop", sourceState={})))["status"] == "buffered"
    assert len(records_of(tmp_path)) == 1


async def test_states_travel_in_messagepack_too(url: str) -> None:
    async with Speaker(url) as speaker:
        packed = batch(1, [], source="shop", sourceState={"at": 2**63, "share": 0.1, "names": ["ä", None]})
        assert (await speaker.ask_packed(packed))["status"] == "buffered"
        rows = events(1, 1)
        assert (await speaker.ask_packed(batch(2, rows, source="shop", sourceState={"with": "maps"})))["status"] == (
            "buffered"
        )
        columns = {
            "sequence": [2],
            "timestamp": [1],
            "operation": "I",
            "tables": ["users"],
            "table": [0],
            "rowId": ["2"],
            "after": b'[{"id":2}]',
        }
        in_columns = batch(3, [], source="shop", sourceState={"with": "columns"}) | {"events": columns}
        assert (await speaker.ask_packed(in_columns))["status"] == "buffered"
        refused = await speaker.ask_packed(batch(4, [], source="shop", sourceState={"a": float("inf")}))
        assert (refused["reason"], refused["details"][0]["path"]) == ("invalid_format", "$.sourceState")
        hello = {"type": "connect", "sourceDoId": "shop", "capabilities": {"binaryProtocol": True}}
        status = await speaker.ask_packed(hello)
        assert speaker.is_binary
        assert status["sourceState"] == {"at": 2**63, "share": 0.1, "names": ["ä", None], "with": "columns"}


async def test_states_outlive_the_server(tmp_path: Path) -> None:
    for turn in range(3):
        async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
            status = await speaker.connect("shop")
            assert status["sourceState"] == ({"turn": turn - 1} if turn else {})
            answer = await speaker.ask(
                batch(status["lastBatchNumber"] + 1, [], source="shop", sourceState={"turn": turn})
            )
            assert answer["status"] == "buffered"
            assert lake.journal.durable == turn + 1


async def test_states_alone_are_no_changes_that_wait_to_be_published(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        await speaker.ask(batch(1, [], source="shop", sourceState={"at": 1}))
        await speaker.ask(batch(2, events(1, 2), source="shop", sourceState={"at": 2}))
        await speaker.ask(batch(3, [], source="shop", sourceState={"at": 3}))
        tail = lake.progress.tail
        assert (tail.durable, tail.change_count, tail.is_behind) == (4, 2, True)
        lake.progress.published(3, "")
        assert tail.is_behind
        lake.progress.published(4, "")
        assert (tail.change_count, tail.is_behind) == (0, False)
