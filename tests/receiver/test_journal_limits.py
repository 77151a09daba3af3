"""A journal at its size limit: senders are slowed down, then refused in order, and nothing is lost or harmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.journal.reader import JournalReader
from dolake.wire.messages import decode_raw_batch
from tests.support.aio import run
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event, events

SETTINGS = """
[journal]
size_max_bytes = 262144
segment_size_bytes = 65536
group_size_max_bytes = 65536
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "home", settings=SETTINGS) as process:
        yield process


def batch_of_8_kib(number: int) -> dict[str, Any]:
    return batch(number, [event(number, after={"pad": "x" * 8000})])


async def fill(speaker: Speaker) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Send until the journal refuses: all acks, and the refusal."""
    acks = []
    while (answer := await speaker.ask(batch_of_8_kib(len(acks) + 1)))["type"] == "ack":
        acks.append(answer)
        assert len(acks) < 100, "the limit of 256 KiB was never met"
    return acks, answer


def kept(home: Path) -> list[int]:
    with JournalReader(home / "journal") as reader:
        return [change.sequence for record in reader.read() for change in decode_raw_batch(record.payload).events]


def test_senders_are_slowed_down_from_the_threshold_on_and_then_refused(server: ServerProcess) -> None:
    async def story() -> None:
        async with Speaker(server.url) as speaker:
            acks, nack = await fill(speaker)
            details = [ack["details"] for ack in acks]
            utilizations = [detail["bufferUtilization"] for detail in details]
            assert utilizations == sorted(utilizations)
            assert utilizations[-1] >= 0.8
            for detail in details:
                assert ("suggestedDelayMs" in detail) == (detail["bufferUtilization"] >= 0.8)
            delays = [detail["suggestedDelayMs"] for detail in details if "suggestedDelayMs" in detail]
            assert delays[0] >= 100
            assert delays == sorted(set(delays)), "the fuller, the longer"
            assert (nack["reason"], nack["shouldRetry"]) == ("buffer_full", True)
            assert nack["sequenceNumber"] == len(acks) + 1
            assert nack["retryDelayMs"] >= 100
            assert "size_max_bytes" in nack["errorMessage"]

    run(story())


def test_retry_delays_grow_and_later_batches_of_the_stream_wait_for_the_refused_one(server: ServerProcess) -> None:
    async def story() -> None:
        async with Speaker(server.url) as speaker:
            acks, first = await fill(speaker)
            refused = first["sequenceNumber"]
            delays = [first["retryDelayMs"]]
            for _ in range(4):
                again = await speaker.ask(batch_of_8_kib(refused))
                assert (again["type"], again["reason"]) == ("nack", "buffer_full")
                delays.append(again["retryDelayMs"])
            assert delays == sorted(set(delays))
            for number in (refused + 1, refused + 2):
                later = await speaker.ask(batch(number, events(number, number)))
                assert (later["type"], later["reason"]) == ("nack", "invalid_sequence"), "small enough, but too early"
                assert later["expectedSequenceNumber"] == refused
            assert kept(server.home) == list(range(1, len(acks) + 1))

    run(story())
    status, health = server.get("/health")
    assert (status, health["ready"]) == (200, True)
    assert server.get("/v1/scaling/status")[1]["backpressure"] is True
    assert server.get("/v1/write-stats")[1]["journal"]["refusedBatches"] >= 1


def test_pipelined_batches_behind_a_refused_one_are_all_refused(server: ServerProcess) -> None:
    async def story() -> None:
        async with Speaker(server.url) as speaker:
            for number in range(1, 61):
                await speaker.say(batch_of_8_kib(number))
            answers = [await speaker.hear() for _ in range(60)]
            acked = [answer["sequenceNumber"] for answer in answers if answer["type"] == "ack"]
            nacked = [answer["sequenceNumber"] for answer in answers if answer["type"] == "nack"]
            assert acked == list(range(1, len(acked) + 1))
            assert sorted(nacked) == list(range(len(acked) + 1, 61))
            assert {answer["reason"] for answer in answers if answer["type"] == "nack"} <= {
                "buffer_full",
                "invalid_sequence",
            }
            assert kept(server.home) == acked

    run(story())


def test_when_there_is_room_again_the_same_batch_is_taken_and_nothing_is_missing(server: ServerProcess) -> None:
    async def story() -> None:
        async with Speaker(server.url) as speaker:
            acks, nack = await fill(speaker)
            refused = nack["sequenceNumber"]
            status, _ = server.get("/v1/config", method="PATCH", body={"journalSizeMaxBytes": 1_048_576})
            assert status == 200
            for number in range(refused, refused + 20):
                ack = await speaker.ask(batch_of_8_kib(number))
                assert (ack["type"], ack["status"]) == ("ack", "buffered")
                assert "suggestedDelayMs" not in ack["details"]
            assert kept(server.home) == list(range(1, len(acks) + 21))

    run(story())


def test_a_full_journal_is_still_full_and_still_whole_after_a_restart(server: ServerProcess) -> None:
    async def filling() -> int:
        async with Speaker(server.url) as speaker:
            acks, _ = await fill(speaker)
            return len(acks)

    count = run(filling())
    assert server.stop() == 0
    server.start()

    async def story() -> None:
        async with Speaker(server.url) as speaker:
            assert (await speaker.connect())["lastDurableSequence"] == count
            assert (await speaker.ask(batch_of_8_kib(count + 1)))["reason"] == "buffer_full"
            assert (await speaker.ask(batch_of_8_kib(count)))["status"] == "duplicate", "a retry needs no room"

    run(story())
    assert kept(server.home) == list(range(1, count + 1))
