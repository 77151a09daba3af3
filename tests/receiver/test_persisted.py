"""The pipeline's seam: what senders hear when changes are published, and what happens while publishing fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dolake.server.lake import Lake
from tests.support.aio import until
from tests.support.clock import Clock
from tests.support.disk import FailingDisk
from tests.support.http import ask
from tests.support.lake import running_lake, settings_of
from tests.support.speaker import Speaker, batch, events

PATH = "warehouse/default"


@asynccontextmanager
async def one_speaker(home: Path, **flags: Any) -> AsyncIterator[tuple[Lake, Speaker]]:
    async with running_lake(home, settings=settings_of(**flags)) as (lake, url), Speaker(url) as speaker:
        yield lake, speaker


async def send_ten(speaker: Speaker, number: int, *, source: str = "source-1") -> dict[str, Any]:
    """Batch n carries the ten changes that end with 10 * n."""
    return await speaker.ask(batch(number, events(number * 10 - 9, number * 10), source=source))


def break_publishing(lake: Lake) -> None:
    for _ in range(3):
        lake.progress.publish_started()
        lake.progress.publish_failed("no bucket")


# --- persisted -------------------------------------------------------------------------------------------------------


async def test_a_publish_is_told_once_for_all_batches_that_it_covers(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        for number in (1, 2, 3):
            assert (await send_ten(speaker, number))["status"] == "buffered"
        lake.progress.published(30, PATH)
        told = await speaker.hear()
        assert (told["type"], told["status"], told["sequenceNumber"]) == ("ack", "persisted", 3)
        assert told["details"]["persistedPath"] == PATH
        assert told["details"]["position"] == 30
        assert (await send_ten(speaker, 4))["status"] == "buffered", "nothing else was said"


async def test_a_publish_in_the_middle_is_told_up_to_the_last_batch_that_it_covers_whole(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        for number in (1, 2, 3):
            await send_ten(speaker, number)
        lake.progress.published(25, PATH)
        assert (await speaker.hear())["sequenceNumber"] == 2
        lake.progress.published(30, PATH)
        assert (await speaker.hear())["sequenceNumber"] == 3


async def test_a_publish_that_covers_no_whole_batch_is_told_to_nobody(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        await send_ten(speaker, 1)
        lake.progress.published(9, PATH)
        lake.progress.published(9, PATH)
        lake.progress.published(10, PATH)
        assert (await speaker.hear())["status"] == "persisted"
        assert (await send_ten(speaker, 2))["status"] == "buffered"


async def test_each_sender_is_told_of_its_own_batches(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as one, Speaker(url) as two:
        await send_ten(one, 1, source="one")
        await send_ten(two, 7, source="two")
        await send_ten(one, 2, source="one")
        lake.progress.published(20, PATH)
        assert (await one.hear())["sequenceNumber"] == 1
        assert (await two.hear())["sequenceNumber"] == 7
        lake.progress.published(30, PATH)
        assert (await one.hear())["sequenceNumber"] == 2


async def test_persisted_never_names_a_lower_number_because_of_a_retry(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        for number in (1, 2, 3):
            await send_ten(speaker, number)
        assert (await send_ten(speaker, 1))["status"] == "duplicate"
        lake.progress.published(30, PATH)
        told = await speaker.hear()
        assert (told["status"], told["sequenceNumber"]) == ("persisted", 3)


async def test_a_sender_with_thousands_of_batches_waiting_is_told_of_the_last_one(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        for number in range(1, 1501):
            await speaker.say(batch(number, events(number, number)))
        for _ in range(1500):
            assert (await speaker.hear())["status"] == "buffered"
        lake.progress.published(1500, PATH)
        assert (await speaker.hear())["sequenceNumber"] == 1500


async def test_a_flush_request_reaches_the_publisher(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        await send_ten(speaker, 1)
        assert not lake.progress.flush_wanted.is_set()
        await speaker.ask({"type": "flush_request", "sourceDoId": "source-1", "reason": "manual"})
        assert lake.progress.flush_wanted.is_set()


# --- flush over HTTP -------------------------------------------------------------------------------------------------


async def test_flush_answers_when_what_was_durable_is_published(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        await send_ten(speaker, 1)
        lake.progress.attach()
        answer = asyncio.ensure_future(ask(url, "/flush", "POST"))
        await lake.progress.flush_wanted.wait()
        lake.progress.publish_started()
        lake.progress.published(10, PATH)
        status, _, body = await answer
        assert status == 200
        assert body == {"success": True, "durablePosition": 10, "committedPosition": 10, "eventsFlushed": 10}


async def test_a_flush_that_fails_says_so_and_that_nothing_is_lost(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        await send_ten(speaker, 1)
        lake.progress.attach()
        answer = asyncio.ensure_future(ask(url, "/flush", "POST"))
        await lake.progress.flush_wanted.wait()
        await until(lambda: bool(lake.progress._waiters))
        lake.progress.publish_started()
        lake.progress.publish_failed("no bucket")
        status, _, body = await answer
        assert status == 503
        assert body["error"]["type"] == "flush_error"
        assert "no bucket" in body["error"]["message"]
        assert "safe in the journal" in body["error"]["hint"]


async def test_flush_without_anything_to_flush_is_a_success(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url):
        status, _, body = await ask(url, "/flush", "POST")
        assert status == 200
        assert body == {"success": True, "durablePosition": 0, "committedPosition": 0, "eventsFlushed": 0}


# --- while publishing fails ------------------------------------------------------------------------------------------


async def test_while_the_breaker_is_open_batches_are_taken_as_fallback(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        assert (await send_ten(speaker, 1))["status"] == "buffered"
        break_publishing(lake)
        ack = await send_ten(speaker, 2)
        assert ack["status"] == "fallback"
        assert ack["details"]["circuitBreakerState"] == "open"
        assert (await ask(url, "/status")).body["circuitBreakerState"] == "open"
        lake.progress.publish_started()
        assert (await send_ten(speaker, 3))["details"]["circuitBreakerState"] == "half-open"
        lake.progress.published(30, PATH)
        assert (await speaker.hear())["status"] == "persisted"
        assert (await send_ten(speaker, 4))["status"] == "buffered"


async def test_fallback_batches_are_as_durable_as_any(tmp_path: Path) -> None:
    async with one_speaker(tmp_path) as (lake, speaker):
        break_publishing(lake)
        assert (await send_ten(speaker, 1))["status"] == "fallback"
    async with one_speaker(tmp_path) as (_, speaker):
        assert (await speaker.connect())["lastDurableSequence"] == 10


async def test_without_fallback_batches_get_buffer_full_until_publishing_works(tmp_path: Path) -> None:
    async with one_speaker(tmp_path, lake__enable_fallback=False) as (lake, speaker):
        break_publishing(lake)
        nack = await send_ten(speaker, 1)
        assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", "buffer_full", True)
        assert "enable_fallback" in nack["errorMessage"]
        assert nack["retryDelayMs"] > 0
        lake.progress.publish_started()
        lake.progress.published(0, PATH)
        assert (await send_ten(speaker, 1))["status"] == "buffered"


async def test_fallback_ends_at_its_size(tmp_path: Path) -> None:
    async with one_speaker(tmp_path, lake__max_fallback_size=2000) as (lake, speaker):
        for number in (1, 2, 3):
            assert (await send_ten(speaker, number))["status"] == "buffered", "the limit is for the fallback alone"
        break_publishing(lake)
        answers = [await send_ten(speaker, number) for number in (4, 5, 6, 7)]
        kinds = [answer.get("status") or answer["reason"] for answer in answers]
        assert kinds[0] == "fallback"
        assert kinds[-2] == "buffer_full"
        assert kinds[-1] in ("invalid_sequence", "buffer_full"), "what follows a refused batch is not taken"
        assert "max_fallback_size" in answers[-2]["errorMessage"]
        lake.progress.publish_started()
        lake.progress.published(lake.journal.durable, PATH)
        assert (await speaker.hear())["status"] == "persisted"
        first_refused = 4 + kinds.index("buffer_full")
        assert (await send_ten(speaker, first_refused))["status"] == "buffered"


# --- the states of the server are real -------------------------------------------------------------------------------


async def test_the_state_follows_what_the_server_does(tmp_path: Path) -> None:
    clock = Clock()
    async with running_lake(tmp_path, clock_ms=clock) as (lake, url), Speaker(url) as speaker:

        async def states() -> set[str]:
            return {(await speaker.connect())["state"], (await ask(url, "/status")).body["state"], lake.state}

        assert await states() == {"idle"}
        await send_ten(speaker, 1)
        assert await states() == {"receiving"}
        lake.progress.publish_started()
        assert await states() == {"flushing"}
        lake.progress.published(10, PATH)
        assert (await speaker.hear())["status"] == "persisted"
        assert await states() == {"receiving"}
        clock.move(60_000)
        assert await states() == {"idle"}


async def test_a_failed_sync_is_an_internal_error_and_the_server_says_error_until_it_is_restarted(
    tmp_path: Path, disk: FailingDisk
) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        assert (await send_ten(speaker, 1))["status"] == "buffered"
        disk.is_sync_failing = True
        nack = await send_ten(speaker, 2)
        assert (nack["type"], nack["reason"]) == ("nack", "internal_error")
        disk.is_sync_failing = False
        nack = await send_ten(speaker, 2)
        assert (nack["type"], nack["reason"]) == ("nack", "internal_error"), "never called good afterwards"
        status, _, health = await ask(url, "/health")
        assert (status, health["ready"], health["status"]) == (503, False, "error")
        assert "sync" in health["reason"]
        assert (await ask(url, "/health/live")).status == 200
        assert (await ask(url, "/status")).body["state"] == "error"
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        assert (await speaker.connect())["lastDurableSequence"] in (10, 20)
        assert (await send_ten(speaker, 2))["status"] in ("buffered", "duplicate")


async def test_a_full_disk_is_buffer_full_and_the_server_works_again_when_there_is_room(
    tmp_path: Path, disk: FailingDisk
) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        assert (await send_ten(speaker, 1))["status"] == "buffered"
        disk.is_full = True
        for _ in range(3):
            nack = await send_ten(speaker, 2)
            assert (nack["type"], nack["reason"], nack["shouldRetry"]) == ("nack", "buffer_full", True)
        assert (await ask(url, "/health")).status == 200
        disk.is_full = False
        assert (await send_ten(speaker, 2))["status"] == "buffered"
        assert (await send_ten(speaker, 3))["status"] == "buffered"
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        assert (await speaker.connect())["lastDurableSequence"] == 30


async def test_a_mistake_of_ours_ends_one_connection_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with running_lake(tmp_path) as (_, url), Speaker(url) as other:
        await send_ten(other, 1, source="other")
        async with Speaker(url) as speaker:
            with monkeypatch.context() as broken:
                broken.setattr("dolake.receiver.connection.check_events", fail)
                await speaker.say(batch(1, events(1, 10)))
                message = await speaker.socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1011)
        assert (await send_ten(other, 2, source="other"))["status"] == "buffered"
        async with Speaker(url) as again:
            assert (await again.connect())["lastDurableSequence"] == 0
            assert (await send_ten(again, 1))["status"] == "buffered"
    assert "connection failed" in caplog.text
    assert "row-1" not in caplog.text, "row data is never logged"
