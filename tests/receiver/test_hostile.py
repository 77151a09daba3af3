"""What a careless or hostile sender tries, and what must hold all the same."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dolake.server.home import Home
from dolake.telemetry import ConsoleLines
from tests.support.kept import sequences_of
from tests.support.lake import running_lake, settings_of
from tests.support.speaker import Speaker, batch, event, events


async def test_nothing_overtakes_a_refused_retry_that_held_something_new(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        assert (await speaker.ask(batch(1, events(1, 3))))["status"] == "buffered"
        refused = await speaker.ask(batch(1, [event(3), event(4, table="a/b")]))
        assert refused["reason"] == "invalid_format"
        overtaking = await speaker.ask(batch(2, [event(5)]))
        assert (overtaking["reason"], overtaking["expectedSequenceNumber"]) == ("invalid_sequence", 1)
        assert (await speaker.ask(batch(1, events(3, 4))))["status"] == "buffered"
        assert (await speaker.ask(batch(2, [event(5)])))["status"] == "buffered"
    assert sequences_of(tmp_path) == [1, 2, 3, 4, 5]


async def test_a_used_batch_number_takes_no_new_changes(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        for number in (1, 2, 3):
            assert (await speaker.ask(batch(number, [event(number)])))["status"] == "buffered"
        answer = await speaker.ask(batch(2, [event(4)]))
        assert (answer["reason"], answer["expectedSequenceNumber"]) == ("invalid_sequence", 4)
        assert (await speaker.ask(batch(2, [event(2)])))["status"] == "duplicate"
    assert sequences_of(tmp_path) == [1, 2, 3]


async def test_an_answer_does_not_grow_with_what_was_sent(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        await speaker.say('{"type":"' + "X" * 1_000_000 + '"}')
        message = await speaker.socket.receive()
        assert len(message.data) < 2_000


async def test_a_connection_without_connect_follows_an_epoch_that_is_still_on_its_way(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as first, Speaker(url) as second:
        await first.connect(sourceEpoch=5)
        await first.say(batch(1, [event(1)]))
        answer = await second.ask(batch(1, [event(2)]))
        assert answer["type"] == "ack", answer


async def test_a_refused_batch_makes_the_senders_wait_grow_once_and_not_once_for_each_behind_it(tmp_path: Path) -> None:
    settings = settings_of(lake__enable_fallback=False)
    async with running_lake(tmp_path, settings=settings) as (lake, url), Speaker(url) as speaker:
        lake.progress.publish_started()
        for _ in range(3):
            lake.progress.publish_failed("no storage")
        for number in range(1, 5):
            await speaker.say(batch(number, [event(number)]))
        answers = [await speaker.hear() for _ in range(4)]
        assert answers[0]["reason"] == "buffer_full"
        assert answers[0]["retryDelayMs"] == 100
        assert (await speaker.ask(batch(1, [event(1)])))["retryDelayMs"] == 200


def test_a_second_server_is_refused_also_when_the_lock_file_was_removed(tmp_path: Path) -> None:
    with Home(tmp_path):
        (tmp_path / "server.lock").unlink()
        with pytest.raises(Exception, match="another server"), Home(tmp_path):
            pass


def test_what_strangers_sent_cannot_forge_a_line_of_the_log() -> None:
    record = logging.makeLogRecord({"msg": "stream taken over", "levelname": "INFO", "stream": "a\nERROR x\x1b[31m"})
    line = ConsoleLines().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    assert r"a\nERROR x\x1b[31m" in line
