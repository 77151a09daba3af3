"""A real server, spoken to by plain WebSocket clients: what is promised on the socket, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.receiver.conftest import EVENT_MAX, FRAME_MAX, PAYLOAD_MAX
from tests.support.aio import run, until
from tests.support.journals import GatedDisk
from tests.support.kept import records_of, sequences_of
from tests.support.lake import running_lake
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event, events


def is_ack(message: dict[str, Any], status: str, number: int) -> bool:
    return (message["type"], message.get("status"), message["sequenceNumber"]) == ("ack", status, number)


# --- connect ---------------------------------------------------------------------------------------------------------


async def test_connect_is_answered_by_a_status_that_says_where_a_new_stream_begins(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, correlationId="hello")
        assert status["type"] == "status"
        assert status["correlationId"] == "hello"
        assert status["state"] in ("idle", "receiving")
        assert status["timestamp"] > 1_700_000_000_000
        assert status["connectedSources"] >= 1
        assert {"batchCount", "eventCount", "totalSizeBytes", "utilization"} <= status["buffer"].keys()
        assert 0.0 <= status["buffer"]["utilization"] <= 1.0
        assert status["lastDurableSequence"] == 0
        assert status["lastBatchNumber"] == 0
        assert status["maxPayloadSize"] == PAYLOAD_MAX
        assert status["maxEventSize"] == EVENT_MAX


async def test_connect_says_where_a_known_stream_goes_on(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source)
        await speaker.ask(batch(4, events(10, 15), source=source))
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, lastAckSequence=0)
        assert status["lastDurableSequence"] == 15
        assert status["lastBatchNumber"] == 4
        assert status["buffer"]["eventCount"] >= 6
        assert status["buffer"]["newestBatchTime"] >= status["buffer"]["oldestBatchTime"] > 0


async def test_connect_waits_for_batches_on_their_way_so_that_its_answer_is_exact(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as older, Speaker(server.url) as newer:
        for number in range(1, 21):
            await older.say(batch(number, events(number * 10, number * 10 + 9), source=source))
        assert is_ack(await older.hear(), "buffered", 1)
        status = await newer.connect(source)
        assert status["lastDurableSequence"] == max(sequences_of(server.home, source))
        assert status["lastBatchNumber"] == records_of(server.home, source)[-1].number


async def test_a_source_that_remembers_more_than_the_journal_is_told_the_truth(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, lastAckSequence=1000)
        assert status["lastDurableSequence"] == 0


async def test_a_newer_protocol_version_is_refused_with_the_one_that_is_spoken(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        nack = await speaker.connect(source, protocolVersion=2, correlationId="v2")
        assert (nack["type"], nack["reason"], nack["correlationId"]) == ("nack", "invalid_format", "v2")
        assert nack["details"][0]["path"] == "$.protocolVersion"
        assert "version 1" in nack["errorMessage"]
        assert (await speaker.connect(source))["type"] == "status", "and may try again"


@pytest.mark.parametrize("path", ["/ws", "/", "", "/lakehouse", "/lakehouse/", "/lakehouse/ws"])
async def test_the_socket_is_at_ws_and_at_the_bare_path_with_and_without_the_base(
    server: ServerProcess, source: str, path: str
) -> None:
    async with Speaker(server.url, path=path) as speaker:
        assert (await speaker.connect(source))["type"] == "status"


# --- batches ---------------------------------------------------------------------------------------------------------


async def test_a_batch_is_acknowledged_as_buffered_and_is_in_the_journal(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source)
        ack = await speaker.ask(batch(1, events(1, 3), source=source, correlationId="b-1"))
        assert is_ack(ack, "buffered", 1)
        assert sequences_of(server.home, source) == [1, 2, 3], "durable when it is acknowledged, not some time later"
        assert ack["correlationId"] == "b-1"
        assert ack["timestamp"] > 1_700_000_000_000
        assert ack["batchId"]
        details = ack["details"]
        assert details["eventsProcessed"] == 3
        assert 0.0 <= details["bufferUtilization"] < 0.8
        assert "suggestedDelayMs" not in details
        assert details["circuitBreakerState"] == "closed"
        assert details["position"] == records_of(server.home, source)[-1].end


async def test_a_batch_without_connect_and_without_optional_fields_is_accepted(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        assert is_ack(await speaker.ask(batch(0, events(1, 1), source=source)), "buffered", 0)
        assert is_ack(await speaker.ask(batch(1, events(2, 2), source=source)), "buffered", 1)


async def test_the_journal_keeps_the_message_byte_for_byte(server: ServerProcess, source: str) -> None:
    text = json.dumps(batch(1, [event(1, after={"name": "Zoë", "n": 2**70}, mine=[1])], source=source)) + " "
    async with Speaker(server.url) as speaker:
        await speaker.ask(text)
    (record,) = records_of(server.home, source)
    assert record.payload == text.encode()


async def test_a_batch_without_events_is_ok_and_counts_as_a_number(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        assert is_ack(await speaker.ask(batch(1, [], source=source, correlationId="e")), "ok", 1)
        assert is_ack(await speaker.ask(batch(2, events(1, 1), source=source)), "buffered", 2)
    assert sequences_of(server.home, source) == [1]


async def test_every_message_is_answered_with_its_correlation_id(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        spoken: list[dict[str, Any]] = [
            {"type": "connect", "sourceDoId": source},
            batch(1, events(1, 1), source=source),
            batch(9, events(2, 2), source=source),
            batch(2, [event(2, rowId="")], source=source),
            batch(2, [], source=source),
            {"type": "heartbeat", "sourceDoId": source},
            {"type": "flush_request", "sourceDoId": source},
            {"type": "shout", "sourceDoId": source},
        ]
        for index, message in enumerate(spoken):
            answer = await speaker.ask(message | {"correlationId": f"id-{index}"})
            assert answer["correlationId"] == f"id-{index}", answer


async def test_a_heartbeat_is_answered_by_an_ok_ack(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(3, events(1, 2), source=source))
        beat = {
            "type": "heartbeat",
            "timestamp": 1,
            "sourceDoId": source,
            "lastAckSequence": 2,
            "pendingEvents": 0,
        }
        ack = await speaker.ask(beat)
        assert is_ack(ack, "ok", 3)
        assert ack["details"]["eventsProcessed"] == 0


@pytest.mark.parametrize("reason", ["manual", "shutdown", "buffer_full", "time_threshold"])
async def test_a_flush_request_is_answered_by_an_ok_ack(server: ServerProcess, source: str, reason: str) -> None:
    async with Speaker(server.url) as speaker:
        asking = {"type": "flush_request", "timestamp": 1, "sourceDoId": source, "reason": reason}
        answer = await speaker.ask(asking)
        assert (answer["type"], answer["status"]) == ("ack", "ok")


async def test_pipelined_batches_are_acknowledged_in_order(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        for number in range(1, 101):
            await speaker.say(batch(number, events(number * 5, number * 5 + 4), source=source))
        answers = [await speaker.hear() for _ in range(100)]
        assert [answer["sequenceNumber"] for answer in answers] == list(range(1, 101))
        assert {answer["status"] for answer in answers} == {"buffered"}
        positions = [answer["details"]["position"] for answer in answers]
        assert positions == sorted(set(positions))
    assert sequences_of(server.home, source) == list(range(5, 505))


# --- batch numbers ---------------------------------------------------------------------------------------------------


async def test_a_gap_in_batch_numbers_is_told_the_expected_one_and_never_acknowledged(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 1), source=source))
        for number in (3, 4, 100):
            nack = await speaker.ask(batch(number, events(number, number), source=source))
            assert (nack["type"], nack["reason"]) == ("nack", "invalid_sequence")
            assert nack["sequenceNumber"] == number
            assert nack["expectedSequenceNumber"] == 2
            assert nack["shouldRetry"] is True
        assert sequences_of(server.home, source) == [1]
        assert is_ack(await speaker.ask(batch(2, events(2, 2), source=source)), "buffered", 2)
        assert is_ack(await speaker.ask(batch(3, events(3, 3), source=source)), "buffered", 3)
    assert sequences_of(server.home, source) == [1, 2, 3]


async def test_a_connection_may_begin_at_any_batch_number(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 1), source=source))
    async with Speaker(server.url) as speaker:
        assert is_ack(await speaker.ask(batch(50, events(2, 2), source=source)), "buffered", 50)


BAD_FIRST_BATCHES: dict[str, dict[str, Any]] = {
    "an event without rowId": {"events": [event(1, rowId="")]},
    "sequences that fall": {"events": [event(2), event(1)]},
    "a bad table name": {"events": [event(1, table="a/b")]},
    "an event that is too large": {"events": [event(1, after={"pad": "x" * EVENT_MAX})]},
    "too large as a whole": {"events": events(1, 500)},
}


@pytest.mark.parametrize("bad", BAD_FIRST_BATCHES.values(), ids=BAD_FIRST_BATCHES)
async def test_a_refused_first_batch_is_not_overtaken_by_the_next_one(
    server: ServerProcess, source: str, bad: dict[str, Any]
) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.say(batch(7, [], source=source) | bad)
        await speaker.say(batch(8, events(501, 510), source=source))
        refused, overtaking = await speaker.hear(), await speaker.hear()
        assert (refused["type"], refused["sequenceNumber"]) == ("nack", 7)
        assert overtaking["type"] == "nack", "batch 8 would make the changes of batch 7 impossible to send"
        assert overtaking["reason"] == "invalid_sequence"
        assert overtaking["expectedSequenceNumber"] == 7
        assert is_ack(await speaker.ask(batch(7, events(1, 2), source=source)), "buffered", 7)
        assert is_ack(await speaker.ask(batch(8, events(501, 510), source=source)), "buffered", 8)
    assert sequences_of(server.home, source) == [1, 2, *range(501, 511)]


async def test_a_batch_that_is_refused_later_is_not_overtaken_either(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 1), source=source))
        await speaker.say(batch(2, [event(2, operation="UPSERT")], source=source))
        await speaker.say(batch(3, events(3, 3), source=source))
        assert (await speaker.hear())["reason"] == "invalid_format"
        overtaking = await speaker.hear()
        assert (overtaking["reason"], overtaking["expectedSequenceNumber"]) == ("invalid_sequence", 2)
    assert sequences_of(server.home, source) == [1]


# --- sent again ------------------------------------------------------------------------------------------------------


async def test_a_batch_sent_again_is_a_duplicate_and_is_kept_once(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        first = batch(1, events(1, 3), source=source)
        await speaker.ask(first)
        again = await speaker.ask(first | {"isRetry": True, "retryCount": 1})
        assert is_ack(again, "duplicate", 1)
        assert again["details"]["eventsProcessed"] == 3
        assert is_ack(await speaker.ask(batch(2, events(4, 4), source=source)), "buffered", 2)
        assert is_ack(await speaker.ask(first), "duplicate", 1)
    async with Speaker(server.url) as speaker:
        assert is_ack(await speaker.ask(first), "duplicate", 1)
    assert sequences_of(server.home, source) == [1, 2, 3, 4]


async def test_a_batch_sent_again_while_the_first_is_on_its_way_is_kept_once(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        same = batch(1, events(1, 50), source=source)
        for _ in range(10):
            await speaker.say(same)
        statuses = [(await speaker.hear())["status"] for _ in range(10)]
        assert statuses == ["buffered"] + ["duplicate"] * 9
    assert sequences_of(server.home, source) == list(range(1, 51))


async def test_equal_rows_spelt_differently_are_the_same_change(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, [event(1, after={"a": 1, "b": "Zoë"})], source=source))
        spelt = json.dumps(batch(1, [event(1, after={"b": "Zoë", "a": 1}, timestamp=99)], source=source), indent=1)
        assert is_ack(await speaker.ask(spelt), "duplicate", 1)


@pytest.mark.parametrize("number", ["1e999", "-1e400", "9" * 5000])
async def test_a_number_that_no_float_and_no_int_holds_can_be_sent_again(
    server: ServerProcess, source: str, number: str
) -> None:
    async with Speaker(server.url) as speaker:
        text = json.dumps(batch(1, [event(1, after={"n": "huge"})], source=source)).replace('"huge"', number)
        assert is_ack(await speaker.ask(text), "buffered", 1)
        assert is_ack(await speaker.ask(text), "duplicate", 1)


@pytest.mark.parametrize(("first", "last"), [(3, 8), (5, 6), (1, 9)])
async def test_an_overlap_is_trimmed_to_what_is_new(server: ServerProcess, source: str, first: int, last: int) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 3), source=source))
        await speaker.ask(batch(2, events(4, 5), source=source))
        ack = await speaker.ask(
            batch(3, events(first, last), source=source, firstEventSequence=first, lastEventSequence=last)
        )
        assert is_ack(ack, "buffered", 3)
        assert ack["details"]["eventsProcessed"] == last - first + 1
    assert sequences_of(server.home, source) == list(range(1, last + 1))


async def test_retries_with_other_batch_borders_are_duplicates(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        for number in range(1, 7):
            await speaker.ask(batch(number, events(number, number), source=source))
    async with Speaker(server.url) as speaker:
        assert is_ack(await speaker.ask(batch(1, events(1, 4), source=source)), "duplicate", 1)
        assert is_ack(await speaker.ask(batch(2, events(5, 7), source=source)), "buffered", 2)
    assert sequences_of(server.home, source) == list(range(1, 8))


@pytest.mark.parametrize(
    "other",
    [
        {"after": {"id": "row-2", "value": "changed"}},
        {"rowId": "another"},
        {"operation": "UPDATE"},
        {"before": {"id": "row-2"}},
    ],
    ids=["another image", "another row", "another operation", "a before image"],
)
async def test_other_content_under_an_old_sequence_is_refused_and_never_dropped_in_silence(
    server: ServerProcess, source: str, other: dict[str, Any]
) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 3), source=source))
        changed = events(1, 4)
        changed[1] |= other
        nack = await speaker.ask(batch(2, changed, source=source))
        assert (nack["type"], nack["reason"], nack["sequenceNumber"]) == ("nack", "invalid_sequence", 2)
        assert "sequence 2" in nack["errorMessage"]
        assert "sourceEpoch" in nack["errorMessage"]
        assert nack["shouldRetry"] is False
        assert sequences_of(server.home, source) == [1, 2, 3], "nothing of the batch was kept"
        assert is_ack(await speaker.ask(batch(2, events(4, 4), source=source)), "buffered", 2)


async def test_a_sequence_below_the_durable_one_that_was_never_sent_is_refused(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, [event(1), event(5)], source=source))
        nack = await speaker.ask(batch(2, [event(3)], source=source))
        assert (nack["type"], nack["reason"]) == ("nack", "invalid_sequence")


# --- take-over -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["connect", "batch"])
async def test_a_newer_connection_takes_the_stream_over_and_the_older_one_is_told(
    server: ServerProcess, source: str, by: str
) -> None:
    async with Speaker(server.url) as older, Speaker(server.url) as newer:
        await older.connect(source)
        await older.ask(batch(1, events(1, 1), source=source))
        if by == "connect":
            assert (await newer.connect(source))["lastDurableSequence"] == 1
        else:
            assert is_ack(await newer.ask(batch(2, events(2, 2), source=source)), "buffered", 2)
        told = await older.hear()
        assert (told["type"], told["reason"], told["shouldRetry"]) == ("nack", "invalid_sequence", False)
        assert "newer connection" in told["errorMessage"]
        refused = await older.ask(batch(2, events(2, 2), source=source))
        assert (refused["type"], refused["reason"], refused["shouldRetry"]) == ("nack", "invalid_sequence", False)
        assert is_ack(await newer.ask(batch(3, events(3, 3), source=source)), "buffered", 3)
    assert sequences_of(server.home, source) == ([1, 3] if by == "connect" else [1, 2, 3])


async def test_who_lost_the_stream_is_not_told_by_a_second_connect_that_all_is_well(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as older, Speaker(server.url) as newer:
        await older.connect(source)
        await newer.connect(source)
        assert (await older.hear())["reason"] == "invalid_sequence"
        assert (await older.connect(source))["type"] == "nack"


async def test_take_overs_back_and_forth_keep_every_change_once_and_in_order(
    server: ServerProcess, source: str
) -> None:
    sequence = 0
    for _ in range(10):
        async with Speaker(server.url) as speaker, Speaker(server.url) as successor:
            status = await speaker.connect(source)
            assert status["lastDurableSequence"] == sequence
            for number in range(5):
                sequence += 2
                await speaker.say(batch(number, events(sequence - 1, sequence), source=source))
            assert is_ack(await speaker.hear(), "buffered", 0)
            sequence = (await successor.connect(source))["lastDurableSequence"]
    found = sequences_of(server.home, source)
    assert found == list(range(1, len(found) + 1))


async def test_nothing_of_the_older_connection_is_written_after_the_newer_one_was_told_where_the_stream_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = GatedDisk()
    monkeypatch.setattr("dolake.journal.embedded.Disk", lambda: disk)
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as older, Speaker(url) as newer:
        disk.hold()
        await older.say(batch(1, events(1, 3)))
        await older.say(batch(2, events(2, 6)))  # waits for batch 1, to be compared with it
        await until(lambda: disk.arrived_count > 0)
        await newer.say({"type": "connect", "sourceDoId": "source-1"})
        assert (await older.hear())["reason"] == "invalid_sequence"
        disk.let_go()
        last = (await newer.hear())["lastDurableSequence"]
        own = await newer.ask(batch(1, [event(last + 1, after={"from": "newer"})]))
        assert is_ack(own, "buffered", 1)
        assert lake.journal.durable == last + 1


async def test_a_stream_is_free_again_when_its_connection_closes(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source)
    async with Speaker(server.url) as speaker:
        await speaker.connect(source)
        assert is_ack(await speaker.ask(batch(1, events(1, 1), source=source)), "buffered", 1)


# --- epochs ----------------------------------------------------------------------------------------------------------


async def test_a_restored_database_starts_a_new_epoch_and_its_sequences_from_the_beginning(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source)
        await speaker.ask(batch(1, events(1, 5), source=source))
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, sourceEpoch=1)
        assert status["sourceEpoch"] == 1
        assert status["lastDurableSequence"] == 0
        restored = [event(sequence, after={"restored": True}) for sequence in (1, 2)]
        assert is_ack(await speaker.ask(batch(1, restored, source=source)), "buffered", 1)
        assert is_ack(await speaker.ask(batch(1, restored, source=source)), "duplicate", 1)
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, sourceEpoch=1)
        assert status["lastDurableSequence"] == 2
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source)
        assert (status["sourceEpoch"], status["lastDurableSequence"]) == (1, 2)
    assert sequences_of(server.home, source) == [1, 2, 3, 4, 5, 1, 2]
    assert [record.epoch for record in records_of(server.home, source)] == [0, 1]


async def test_an_epoch_that_is_over_is_refused(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source, sourceEpoch=3)
        await speaker.ask(batch(1, events(1, 5), source=source))
    async with Speaker(server.url) as speaker:
        nack = await speaker.connect(source, sourceEpoch=2, correlationId="old")
        assert (nack["type"], nack["reason"], nack["correlationId"]) == ("nack", "invalid_sequence", "old")
        assert "epoch 3" in nack["errorMessage"]


async def test_a_connection_of_an_epoch_that_ended_meanwhile_cannot_write(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as before, Speaker(server.url) as after:
        await before.connect(source)
        await before.ask(batch(1, events(1, 5), source=source))
        await after.connect(source, sourceEpoch=1)
        await after.ask(batch(1, events(1, 1), source=source))
        assert (await before.hear())["reason"] == "invalid_sequence"
        assert (await before.ask(batch(2, events(6, 6), source=source)))["reason"] == "invalid_sequence"
    assert sequences_of(server.home, source) == [1, 2, 3, 4, 5, 1]


# --- refused as a whole ----------------------------------------------------------------------------------------------

BAD_EVENTS = [
    ("rowId", ""),
    ("rowId", None),
    ("sequence", 2),
    ("sequence", 0),
    ("operation", "upsert"),
    ("table", "../etc/passwd"),
    ("table", "orders__changes"),
    ("table", "a\u0000b"),
    ("table", ""),
    ("after", [1]),
    ("after", None),
    ("before", "text"),
    ("timestamp", -5),
    ("metadata", 5),
]


@pytest.mark.parametrize(("field", "value"), BAD_EVENTS)
async def test_one_bad_event_rejects_the_batch_and_nothing_of_it_is_kept(
    server: ServerProcess, source: str, field: str, value: Any
) -> None:
    async with Speaker(server.url) as speaker:
        bad = events(1, 5)
        bad[2][field] = value
        nack = await speaker.ask(batch(1, bad, source=source, correlationId="x"))
        assert (nack["type"], nack["reason"], nack["sequenceNumber"]) == ("nack", "invalid_format", 1)
        assert nack["shouldRetry"] is False
        assert nack["correlationId"] == "x"
        assert nack["details"][0]["path"] == f"$.events[2].{field}"
        assert f"events[2].{field}" in nack["errorMessage"]
        assert sequences_of(server.home, source) == []
        assert is_ack(await speaker.ask(batch(1, events(1, 5), source=source)), "buffered", 1)
    assert sequences_of(server.home, source) == [1, 2, 3, 4, 5]


async def test_invalid_utf_8_rejects_the_batch(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        data = json.dumps(batch(1, events(1, 2), source=source, correlationId="u")).encode()
        nack = await speaker.ask(data.replace(b'"id": "row-2"', b'"id": "row-\xff"'))
        assert (nack["reason"], nack["sequenceNumber"], nack["correlationId"]) == ("invalid_format", 1, "u")
        assert "UTF-8" in nack["errorMessage"]
    assert sequences_of(server.home, source) == []


@pytest.mark.parametrize("text", ["", "{", "hello", "[]", "null", '{"type":"cdc_batch"}', "[" * 50_000])
async def test_what_is_no_message_is_told_so_and_the_connection_lives_on(
    server: ServerProcess, source: str, text: str
) -> None:
    async with Speaker(server.url) as speaker:
        nack = await speaker.ask(text)
        assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", "invalid_format", False)
        assert is_ack(await speaker.ask(batch(1, events(1, 1), source=source)), "buffered", 1)


async def test_a_message_above_the_payload_limit_is_refused_with_the_limit(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        large = json.dumps(batch(1, events(1, 2), source=source, correlationId="big"))
        nack = await speaker.ask(large + " " * (PAYLOAD_MAX + 1 - len(large)))
        assert (nack["type"], nack["reason"], nack["sequenceNumber"]) == ("nack", "payload_too_large", 1)
        assert (nack["maxSize"], nack["shouldRetry"], nack["correlationId"]) == (PAYLOAD_MAX, False, "big")
        assert sequences_of(server.home, source) == []
        assert is_ack(await speaker.ask(large + " " * (PAYLOAD_MAX - len(large))), "buffered", 1)


async def test_an_event_above_its_limit_is_refused_with_index_and_limit(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        large = [event(1), event(2, after={"pad": "x" * EVENT_MAX})]
        nack = await speaker.ask(batch(1, large, source=source))
        assert (nack["type"], nack["reason"], nack["sequenceNumber"]) == ("nack", "event_too_large", 1)
        assert (nack["maxSize"], nack["shouldRetry"]) == (EVENT_MAX, False)
        assert "events[1]" in nack["errorMessage"]
        assert sequences_of(server.home, source) == []
        fits = [event(1), event(2, after={"pad": "x" * (EVENT_MAX - 200)})]
        assert is_ack(await speaker.ask(batch(1, fits, source=source)), "buffered", 1)


async def test_a_message_above_the_hard_limit_ends_its_connection_and_no_other(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url) as other, Speaker(server.url) as speaker:
        await other.connect(source + "-other")
        await speaker.say("x" * (FRAME_MAX + 1))
        answer = await speaker.socket.receive()
        assert answer.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert (await other.ask(batch(1, events(1, 1), source=source + "-other")))["status"] == "buffered"


async def test_json_in_a_binary_frame_is_no_message(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        nack = await speaker.ask_packed(json.dumps(batch(1, events(1, 1), source=source)).encode())
        assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", "invalid_format", False)
        assert sequences_of(server.home, source) == []
        assert is_ack(await speaker.ask(batch(1, events(1, 1), source=source)), "buffered", 1)


# --- table names -----------------------------------------------------------------------------------------------------


async def test_a_table_that_differs_only_in_case_is_refused_whoever_sends_it(
    server: ServerProcess, source: str, table: str
) -> None:
    async with Speaker(server.url) as first, Speaker(server.url) as second:
        await first.ask(batch(1, [event(1, table=table)], source=source))
        nack = await second.ask(batch(1, [event(1), event(2, table=table.upper())], source=f"{source}-2"))
        assert (nack["type"], nack["reason"]) == ("nack", "invalid_format")
        assert nack["details"][0]["path"] == "$.events[1].table"
        assert table in nack["errorMessage"]
        again = await second.ask(batch(1, [event(1), event(2, table=f"default.{table}")], source=f"{source}-2"))
        assert is_ack(again, "buffered", 1)
    assert sequences_of(server.home, f"{source}-2") == [1, 2]


async def test_two_spellings_of_a_table_in_one_batch_leave_no_trace(
    server: ServerProcess, source: str, table: str
) -> None:
    async with Speaker(server.url) as speaker:
        both = [event(1, table=table.upper()), event(2, table=table)]
        assert (await speaker.ask(batch(1, both, source=source)))["reason"] == "invalid_format"
        one = await speaker.ask(batch(1, [event(1, table=table)], source=source))
        assert is_ack(one, "buffered", 1), "no batch with the other spelling was ever kept"


# --- streams ---------------------------------------------------------------------------------------------------------


async def test_the_shard_header_makes_another_stream(server: ServerProcess, source: str) -> None:
    one = {"X-Client-ID": source, "X-Shard-Name": "one"}
    two = {"X-Client-ID": source, "X-Shard-Name": "two"}
    async with Speaker(server.url, headers=one) as first, Speaker(server.url, headers=two) as second:
        assert is_ack(await first.ask(batch(1, events(1, 3), source=source)), "buffered", 1)
        assert is_ack(await second.ask(batch(1, events(1, 2), source=source)), "buffered", 1)
        assert is_ack(await first.ask(batch(2, events(4, 4), source=source)), "buffered", 2), "not taken over"
    assert sequences_of(server.home, source, "one") == [1, 2, 3, 4]
    assert sequences_of(server.home, source, "two") == [1, 2]
    assert sequences_of(server.home, source) == []


async def test_a_shard_named_in_the_message_counts_before_the_header(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url, headers={"X-Shard-Name": "header"}) as speaker:
        message = batch(1, events(1, 1), source=source, sourceShardName="message")
        assert is_ack(await speaker.ask(message), "buffered", 1)
    assert sequences_of(server.home, source, "message") == [1]


async def test_the_shard_named_at_connect_holds_for_batches_that_name_none(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.connect(source, sourceShardName="users-shard-1")
        assert is_ack(await speaker.ask(batch(1, events(1, 1), source=source)), "buffered", 1)
    assert sequences_of(server.home, source, "users-shard-1") == [1]


async def test_a_connection_speaks_for_one_stream_only(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 1), source=source))
        nack = await speaker.ask(batch(2, events(1, 1), source=f"{source}-2"))
        assert (nack["type"], nack["reason"]) == ("nack", "invalid_format")
        assert nack["details"][0]["path"] == "$.sourceDoId"
        assert is_ack(await speaker.ask(batch(2, events(2, 2), source=source)), "buffered", 2)
    assert sequences_of(server.home, f"{source}-2") == []


async def upgrade_with(server: ServerProcess, header: bytes) -> bytes:
    """The status line that a handshake with this raw header gets."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + header + b"\r\n\r\n"
    )
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x" * 257], ids=["invalid UTF-8", "too long"])
async def test_a_shard_header_that_cannot_name_a_stream_is_refused(server: ServerProcess, name: bytes) -> None:
    assert b" 400 " in await upgrade_with(server, b"X-Shard-Name: " + name)
    assert b" 101 " in await upgrade_with(server, b"X-Shard-Name: " + "größe".encode())


# --- clients that behave badly ---------------------------------------------------------------------------------------


async def test_what_a_client_that_vanished_had_in_flight_is_kept_once(server: ServerProcess, source: str) -> None:
    batches = [batch(number, events(number * 10, number * 10 + 9), source=source) for number in range(1, 31)]
    async with Speaker(server.url) as speaker:
        for message in batches:
            await speaker.say(message)
        speaker.socket.get_extra_info("socket").shutdown(sockets.SHUT_RDWR)
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source)
        survived = sequences_of(server.home, source)
        assert status["lastDurableSequence"] == max(survived, default=0)
        assert survived == list(range(10, 10 + len(survived))), "in order and without a hole"
        for message in batches:
            answer = await speaker.ask(message | {"isRetry": True})
            assert answer["status"] in ("duplicate", "buffered")
    assert sequences_of(server.home, source) == list(range(10, 310))


class RawSocket:
    """A WebSocket client without any buffers of its own: it can stop reading, and see when it is not read from."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = sockets.socket()
        for option in (sockets.SO_RCVBUF, sockets.SO_SNDBUF):
            self._socket.setsockopt(sockets.SOL_SOCKET, option, 65_536)
        self._socket.connect((host, int(port)))
        self._socket.sendall(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        self._incoming = self._socket.makefile("rb")
        while self._incoming.readline() != b"\r\n":
            pass

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._incoming.close()
        self._socket.close()

    def say_until_nobody_reads(self, frames: Iterator[bytes]) -> int:
        """How many frames went out whole before the other side stopped reading."""
        for count, frame in enumerate(frames):
            self._socket.settimeout(1.0)
            try:
                self._socket.sendall(frame)
            except TimeoutError:
                return count
        raise AssertionError("the server took everything")

    def hear(self) -> Any:
        self._socket.settimeout(20.0)
        length = self._incoming.read(2)[1]
        if length == 126:
            length = int.from_bytes(self._incoming.read(2))
        return json.loads(self._incoming.read(length))


def frame_of(message: dict[str, Any]) -> bytes:
    """A masked text frame; with a mask of zeros the payload stays as it is."""
    data = json.dumps(message).encode()
    assert 126 <= len(data) < 65_536
    return b"\x81\xfe" + len(data).to_bytes(2) + bytes(4) + data


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answers_is_not_read_from_and_holds_up_nobody(
    server: ServerProcess, source: str
) -> None:
    async def is_served() -> bool:
        async with Speaker(server.url) as other:
            return is_ack(await other.ask(batch(1, events(1, 1), source=source)), "buffered", 1)

    beats = (
        frame_of({"type": "heartbeat", "sourceDoId": source, "correlationId": f"{number:0250d}"})
        for number in range(1_000_000)
    )
    before = server.get("/v1/memory-stats")[1]["residentBytes"]
    with RawSocket(server.url) as deaf:
        said = deaf.say_until_nobody_reads(beats)
        assert run(is_served())
        assert server.get("/v1/memory-stats")[1]["residentBytes"] - before < 32 * 1024 * 1024
        for number in range(said):
            assert int(deaf.hear()["correlationId"]) == number, "an answer is missing"


@pytest.mark.slow
async def test_five_hundred_idle_connections_cost_little_and_are_all_still_there(
    server: ServerProcess, source: str
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = server.get("/v1/memory-stats")[1]
        idle = [await session.ws_connect(f"{server.url}/ws") for _ in range(500)]
        for index, socket in enumerate(idle):
            await socket.send_json({"type": "connect", "sourceDoId": f"{source}-{index}"})
        for socket in idle:
            assert (await socket.receive_json())["type"] == "status"
        status = server.get("/status")[1]
        assert status["connections"] >= 500
        assert status["connectedSources"] >= 500
        grown = server.get("/v1/memory-stats")[1]["residentBytes"] - before["residentBytes"]
        assert grown < 500 * 64 * 1024
        async with Speaker(server.url) as busy:
            assert is_ack(await busy.ask(batch(1, events(1, 1), source=source)), "buffered", 1)
        for socket in idle:
            await socket.send_json({"type": "heartbeat", "sourceDoId": "idle"})
        for socket in idle:
            assert (await socket.receive_json())["status"] == "ok"
        for socket in idle:
            await socket.close()
    async with Speaker(server.url) as last:
        await last.connect(source)


# --- states ----------------------------------------------------------------------------------------------------------


async def test_the_server_is_receiving_just_after_a_batch(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        await speaker.ask(batch(1, events(1, 1), source=source))
        assert (await speaker.connect(source))["state"] == "receiving"
