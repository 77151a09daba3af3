"""A journal at its size limit: senders are slowed down, then refused in order, and nothing is lost or harmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dolake.settings import SettingsStore
from tests.support.aio import until
from tests.support.http import ask
from tests.support.journals import GatedDisk
from tests.support.kept import sequences_of
from tests.support.lake import running_lake, settings_of
from tests.support.speaker import Speaker, batch, event, events


@pytest.fixture
def tiny(tmp_path: Path) -> SettingsStore:
    """A journal of four small files."""
    (tmp_path / "dolake.toml").write_text(
        "[journal]\nsize_max_bytes = 262144\nsegment_size_bytes = 65536\ngroup_size_max_bytes = 65536\n"
    )
    return settings_of(tmp_path)


def batch_of_8_kib(number: int) -> dict[str, Any]:
    return batch(number, [event(number, after={"pad": "x" * 8000})])


async def fill(speaker: Speaker) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Send until the journal refuses: all acks, and the refusal."""
    acks: list[dict[str, Any]] = []
    while (answer := await speaker.ask(batch_of_8_kib(len(acks) + 1)))["type"] == "ack":
        acks.append(answer)
        assert len(acks) < 100, "the limit of 256 KiB was never met"
    return acks, answer


async def test_senders_are_slowed_down_from_the_threshold_on_and_then_refused(
    tmp_path: Path, tiny: SettingsStore
) -> None:
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
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


async def test_retry_delays_grow_and_later_batches_of_the_stream_wait_for_the_refused_one(
    tmp_path: Path, tiny: SettingsStore
) -> None:
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
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
        assert sequences_of(tmp_path) == list(range(1, len(acks) + 1))
        status, _, health = await ask(url, "/health")
        assert (status, health["ready"]) == (200, True), "full is no illness"
        assert (await ask(url, "/v1/scaling/status")).body["backpressure"] is True
        assert (await ask(url, "/v1/write-stats")).body["journal"]["refusedBatches"] >= 1


async def test_pipelined_batches_behind_a_refused_one_are_all_refused(tmp_path: Path, tiny: SettingsStore) -> None:
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
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
        assert sequences_of(tmp_path) == acked


async def test_when_there_is_room_again_the_same_batch_is_taken_and_nothing_is_missing(
    tmp_path: Path, tiny: SettingsStore
) -> None:
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
        acks, nack = await fill(speaker)
        refused = nack["sequenceNumber"]
        assert (await ask(url, "/v1/config", "PATCH", json={"journalSizeMaxBytes": 1_048_576})).status == 200
        for number in range(refused, refused + 20):
            ack = await speaker.ask(batch_of_8_kib(number))
            assert (ack["type"], ack["status"]) == ("ack", "buffered")
            assert "suggestedDelayMs" not in ack["details"]
        assert sequences_of(tmp_path) == list(range(1, len(acks) + 21))


async def test_a_full_journal_is_still_full_and_still_whole_after_a_restart(
    tmp_path: Path, tiny: SettingsStore
) -> None:
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
        acks, _ = await fill(speaker)
        count = len(acks)
    async with running_lake(tmp_path, settings=tiny) as (_, url), Speaker(url) as speaker:
        assert (await speaker.connect())["lastDurableSequence"] == count
        assert (await speaker.ask(batch_of_8_kib(count + 1)))["reason"] == "buffer_full"
        assert (await speaker.ask(batch_of_8_kib(count)))["status"] == "duplicate", "a retry needs no room"
    assert sequences_of(tmp_path) == list(range(1, count + 1))


async def test_who_sends_faster_than_the_disk_is_not_read_from_so_that_memory_stays_bounded(
    tmp_path: Path, disk: GatedDisk
) -> None:
    settings = settings_of(lake__max_buffer_size=65_536)

    async def send_all(speaker: Speaker) -> None:
        for number in range(1, 201):
            await speaker.say(batch_of_8_kib(number))

    async with running_lake(tmp_path, settings=settings) as (lake, url), Speaker(url) as speaker:
        disk.hold()
        sending = asyncio.ensure_future(send_all(speaker))
        await until(lambda: lake.journal.in_flight_bytes >= 65_536)
        assert (await ask(url, "/health")).status == 200, "the loop only waits"
        assert lake.journal.in_flight_bytes < 65_536 + 10_000
        assert lake.receiver.stats.message_count < 20
        disk.let_go()
        for number in range(1, 201):
            answer = await speaker.hear()
            assert (answer["sequenceNumber"], answer["status"]) == (number, "buffered")
        await sending
    assert sequences_of(tmp_path) == list(range(1, 201))
