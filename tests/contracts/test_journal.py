"""What journal/base.py promises, asked of every backend. A new one joins BACKENDS and has to pass all of this."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from dolake.changes import Batch, StreamId
from dolake.errors import InvalidSequence, NotFound, Unavailable
from dolake.journal.base import Appended, Journal
from dolake.journal.embedded import open_journal
from dolake.journal.record import StreamPoint
from dolake.positions import START
from tests.support.aio import until
from tests.support.clock import Clock
from tests.support.journals import (
    SMALL,
    SOURCE,
    WINDOW_MS,
    GatedDisk,
    batch_of,
    batch_with,
    copy_files,
    keep,
    seen_in,
    sequences_in,
)

OTHER = StreamId("source-2")


class Backend(Protocol):
    """One journal and the world around it. `open` finds what the last one left."""

    clock: Clock
    unit_bytes: int
    """How much must be written before the oldest changes can be let go."""

    async def open(self) -> Journal: ...

    async def crash(self) -> None:
        """As kill -9 would: whatever is open is gone, and so is everything that was not durable."""

    async def hold(self, send: Callable[[], Awaitable[object]]) -> None:
        """Run `send` and return when its batches wait for the disk; nothing becomes durable until `let_go`."""

    def let_go(self) -> None: ...

    async def leave(self) -> None:
        """Close whatever is open."""


class EmbeddedBackend:
    unit_bytes = SMALL.segment_size_bytes

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self._disk = GatedDisk()
        self._directory = directory
        self._lives = 0
        self._open: list[Journal] = []

    async def open(self) -> Journal:
        directory = self._directory / str(self._lives)
        journal = open_journal(directory, SMALL, window_ms=WINDOW_MS, clock_ms=self.clock, disk=self._disk)
        self._open.append(journal)
        return journal

    async def crash(self) -> None:
        copy_files(self._directory / str(self._lives), self._directory / str(self._lives + 1))
        self._lives += 1
        await self.leave()

    async def hold(self, send: Callable[[], Awaitable[object]]) -> None:
        self._disk.hold()
        await send()
        await until(lambda: self._disk.arrived_count == 1)

    def let_go(self) -> None:
        self._disk.let_go()

    async def leave(self) -> None:
        self.let_go()
        for journal in self._open:
            await journal.close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {"embedded": EmbeddedBackend}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    name: str = request.param
    return BACKENDS[name](tmp_path)


@pytest.fixture
async def journal(backend: Backend) -> AsyncIterator[Journal]:
    """A new journal."""
    try:
        yield await backend.open()
    finally:
        await backend.leave()


async def reopen(backend: Backend, journal: Journal) -> Journal:
    await journal.close()
    return await backend.open()


async def crash(backend: Backend, _: Journal) -> Journal:
    await backend.crash()
    return await backend.open()


Restart = Callable[[Backend, Journal], Awaitable[Journal]]
across_restarts = pytest.mark.parametrize("restart", [reopen, crash])


async def write_units(backend: Backend, journal: Journal, count: int, first: int) -> int:
    """Fill several units of retention; the last sequence."""
    batches = 4 * count
    for sequence in range(first, first + batches):
        await keep(journal, batch_of(sequence, sequence, number=sequence, pad=backend.unit_bytes // 3))
    return first + batches - 1


async def forget_everything(backend: Backend, journal: Journal, first: int) -> int:
    """Write much, let one consumer pass it all, and see that the beginning is gone; the last sequence."""
    journal.register("pipeline", START)
    last = await write_units(backend, journal, 3, first)
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", last_position(journal, last))
    with pytest.raises(NotFound):
        list(journal.read(START))
    return last


def last_position(journal: Journal, last: int) -> int:
    """Where a journal ends that holds the changes 1 to `last` of one stream and nothing else."""
    assert journal.point(SOURCE).sequence == last
    return last


# --- append, point, read -------------------------------------------------------------------------------------------


async def test_a_batch_whose_ticket_returned_survives_a_crash(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 3))
    journal = await crash(backend, journal)
    assert sequences_in(journal.read(START)) == [1, 2, 3]


async def test_positions_count_changes_and_a_ticket_names_the_end_of_its_batch(journal: Journal) -> None:
    answers = await keep(journal, batch_of(1, 3), batch_of(1, 2, stream=OTHER), batch_of(4, 4))
    assert answers == [Appended(3, 3), Appended(5, 2), Appended(6, 1)]
    assert [(record.position, record.end) for record in journal.read(START)] == [(0, 3), (3, 5), (5, 6)]


async def test_a_batch_comes_back_with_everything_it_was_given(backend: Backend, journal: Journal) -> None:
    sent = batch_of(7, 9, stream=StreamId("shop", "eu-1"), epoch=2, number=41, table="orders")
    await keep(journal, sent)
    (kept,) = journal.read(START)
    assert (kept.stream, kept.epoch, kept.number) == (sent.stream, 2, 41)
    assert (kept.sequence_first, kept.sequence_last, kept.tables) == (7, 9, ("orders",))
    assert kept.payload == sent.payload
    assert kept.commit_timestamp_ms == backend.clock.now_ms


async def test_batches_of_a_stream_keep_the_order_in_which_they_were_appended(journal: Journal) -> None:
    tickets = [
        await journal.append(batch_of(at, at, stream=stream, number=at))
        for at in range(1, 101)
        for stream in (SOURCE, OTHER)
    ]
    ends = [(await ticket.wait()).end for ticket in tickets]
    assert ends == list(range(1, 201))
    seen = seen_in(journal.read(START))
    for stream in (SOURCE, OTHER):
        assert [sequence for name, _, sequence, _ in seen if name == str(stream)] == list(range(1, 101))


async def test_reading_from_inside_a_batch_begins_with_that_batch(journal: Journal) -> None:
    await keep(journal, batch_of(1, 3), batch_of(4, 6), batch_of(7, 9))
    assert [record.position for record in journal.read(4)] == [3, 6]
    assert [record.position for record in journal.read(3)] == [3, 6]
    assert [record.position for record in journal.read(2, 4)] == [0, 3]
    assert [record.position for record in journal.read(0, 3)] == [0]
    assert list(journal.read(9)) == []
    assert list(journal.read(3, 3)) == []


@across_restarts
async def test_the_order_of_the_journal_never_changes(backend: Backend, journal: Journal, restart: Restart) -> None:
    await write_units(backend, journal, 2, 1)
    before = list(journal.read(START))
    journal = await restart(backend, journal)
    assert list(journal.read(START)) == before
    last = before[-1].end
    await keep(journal, batch_of(last + 1, last + 1))
    assert list(journal.read(START))[:-1] == before


async def test_nothing_is_read_and_no_point_moves_before_it_is_durable(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 2, number=1))
    await backend.hold(lambda: journal.append(batch_of(3, 4, number=2)))
    assert sequences_in(journal.read(START)) == [1, 2]
    assert journal.point(SOURCE) == StreamPoint(0, 2, 1)
    backend.let_go()
    await until(lambda: journal.point(SOURCE).number == 2)
    assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_a_crash_before_the_sync_leaves_the_batch_whole_or_not_at_all(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 2))
    await backend.hold(lambda: journal.append(batch_of(3, 4)))
    journal = await crash(backend, journal)
    assert sequences_in(journal.read(START)) in ([1, 2], [1, 2, 3, 4])
    answer = (await keep(journal, batch_of(3, 4)))[0]
    assert answer.change_count + answer.duplicate_count == 2
    assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_a_stream_that_was_never_heard_of_begins_at_nothing(journal: Journal) -> None:
    await keep(journal, batch_of(1, 2))
    assert journal.point(OTHER) == StreamPoint(0, 0, 0)
    assert journal.point(StreamId(SOURCE.source, "shard")) == StreamPoint(0, 0, 0)


@across_restarts
async def test_a_point_says_epoch_sequence_and_batch_number(
    backend: Backend, journal: Journal, restart: Restart
) -> None:
    await keep(journal, batch_of(1, 5, epoch=1, number=17), batch_of(6, 8, epoch=1, number=18))
    assert journal.point(SOURCE) == StreamPoint(epoch=1, sequence=8, number=18)
    journal = await restart(backend, journal)
    assert journal.point(SOURCE) == StreamPoint(epoch=1, sequence=8, number=18)


# --- close -----------------------------------------------------------------------------------------------------------


async def test_closing_makes_durable_what_was_taken(backend: Backend, journal: Journal) -> None:
    tickets = [await journal.append(batch_of(at, at)) for at in range(1, 51)]
    await journal.close()
    assert [(await ticket.wait()).end for ticket in tickets] == list(range(1, 51))
    journal = await backend.open()
    assert sequences_in(journal.read(START)) == list(range(1, 51))


async def test_a_closed_journal_takes_nothing_and_asks_to_send_again(backend: Backend, journal: Journal) -> None:
    await journal.close()
    with pytest.raises(Unavailable):
        await journal.append(batch_of(1, 1))
    await journal.close()
    journal = await backend.open()
    assert list(journal.read(START)) == []


# --- dedup -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [None, reopen, crash])
async def test_a_batch_sent_twice_is_read_once(backend: Backend, journal: Journal, restart: Restart | None) -> None:
    await keep(journal, batch_of(1, 3))
    journal = await restart(backend, journal) if restart else journal
    assert await keep(journal, batch_of(1, 3)) == [Appended(3, 0, duplicate_count=3)]
    assert sequences_in(journal.read(START)) == [1, 2, 3]


@pytest.mark.parametrize("restart", [None, reopen, crash])
@pytest.mark.parametrize(
    "borders",
    [[(1, 1), (2, 2), (3, 9)], [(1, 9)], [(2, 4), (4, 9)], [(6, 6), (3, 7), (5, 9)]],
    ids=["split", "merged", "shifted", "back and forth"],
)
async def test_retries_with_other_batch_borders_add_only_what_is_new(
    backend: Backend, journal: Journal, borders: list[tuple[int, int]], restart: Restart | None
) -> None:
    await keep(journal, batch_of(1, 3, number=1), batch_of(4, 6, number=2))
    journal = await restart(backend, journal) if restart else journal
    answers = await keep(journal, *[batch_of(first, last) for first, last in borders])
    for answer, (first, last) in zip(answers, borders, strict=True):
        assert answer.change_count + answer.duplicate_count == last - first + 1
    assert sum(answer.change_count for answer in answers) == 3
    assert sequences_in(journal.read(START)) == list(range(1, 10))


async def test_a_trimmed_batch_keeps_the_rest_of_its_message(journal: Journal) -> None:
    await keep(journal, batch_of(1, 2, table="users"))
    await keep(journal, replace(batch_of(2, 4, number=9), tables=("users",)))
    kept = list(journal.read(START))[-1]
    assert (kept.sequence_first, kept.sequence_last, kept.change_count, kept.number) == (3, 4, 2, 9)
    sent = json.loads(batch_of(2, 4, number=9).payload)
    assert json.loads(kept.payload)["events"] == sent["events"][1:]
    assert json.loads(kept.payload)["sourceDoId"] == sent["sourceDoId"]


async def test_a_retry_that_was_encoded_anew_is_still_a_duplicate(journal: Journal) -> None:
    sent = batch_of(1, 2)
    await keep(journal, sent)
    message = json.loads(sent.payload)
    message["events"] = [dict(reversed(event.items())) for event in message["events"]]
    for event in message["events"]:
        event["after"] = dict(reversed(event["after"].items()))
    again = replace(sent, payload=json.dumps(message, indent=2).encode())
    assert again.payload != sent.payload
    assert await keep(journal, again) == [Appended(2, 0, duplicate_count=2)]


@pytest.mark.parametrize("number", ["1e999", "123456789012345678901234567890", "0.1000000000000000055511151231257827"])
async def test_a_retry_with_numbers_that_no_float_can_hold_is_a_duplicate(journal: Journal, number: str) -> None:
    sent = batch_of(1, 1, value="NUMBER")
    sent = replace(sent, payload=sent.payload.replace(b'"NUMBER"', number.encode()))
    await keep(journal, sent)
    assert await keep(journal, sent) == [Appended(1, 0, duplicate_count=1)]


@pytest.mark.parametrize("restart", [None, reopen, crash])
@pytest.mark.parametrize(("first", "last"), [(1, 3), (2, 2), (3, 5)], ids=["all", "inside", "and new ones"])
async def test_other_content_under_a_durable_sequence_is_refused_whole(
    backend: Backend, journal: Journal, restart: Restart | None, first: int, last: int
) -> None:
    await keep(journal, batch_of(1, 3))
    journal = await restart(backend, journal) if restart else journal
    with pytest.raises(InvalidSequence):
        await journal.append(batch_of(first, last, value="changed"))
    assert sequences_in(journal.read(START)) == [1, 2, 3]
    assert journal.point(SOURCE).sequence == 3
    await keep(journal, batch_of(4, 5))
    assert sequences_in(journal.read(START)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "field", [("operation", "UPDATE"), ("table", "orders"), ("rowId", "other"), ("before", {"id": 1}), ("after", None)]
)
async def test_any_difference_in_a_change_is_other_content(journal: Journal, field: tuple[str, object]) -> None:
    sent = batch_of(1, 2)
    await keep(journal, sent)
    message = json.loads(sent.payload)
    message["events"][1][field[0]] = field[1]
    with pytest.raises(InvalidSequence):
        await journal.append(replace(sent, payload=json.dumps(message).encode()))


@pytest.mark.parametrize("restart", [None, reopen, crash])
async def test_a_change_in_a_hole_of_the_stream_is_refused_and_never_dropped_silently(
    backend: Backend, journal: Journal, restart: Restart | None
) -> None:
    await keep(journal, batch_with([3, 4, 7]), batch_with([11, 14]))
    journal = await restart(backend, journal) if restart else journal
    for late in ([1], [2, 3], [5], [6, 7], [9], [12, 13], [4, 5, 7], [10, 11]):
        with pytest.raises(InvalidSequence):
            await journal.append(batch_with(late))
    assert sequences_in(journal.read(START)) == [3, 4, 7, 11, 14]
    assert (await keep(journal, batch_with([4, 7, 11, 14, 20])))[0].change_count == 1


async def test_streams_do_not_know_each_others_sequences(journal: Journal) -> None:
    shard = StreamId(SOURCE.source, "shard-1")
    for stream in (SOURCE, OTHER, shard):
        assert (await keep(journal, batch_of(1, 2, stream=stream)))[0].change_count == 2
    assert await keep(journal, batch_of(1, 2, stream=shard)) == [Appended(6, 0, duplicate_count=2)]
    assert [stream for stream, *_ in seen_in(journal.read(START))] == [
        name for stream in (SOURCE, OTHER, shard) for name in [str(stream)] * 2
    ]


async def test_a_connection_that_takes_over_goes_on_with_batch_numbers_of_its_own(journal: Journal) -> None:
    await keep(journal, batch_of(1, 2, number=40), batch_of(3, 4, number=41))
    answers = await keep(journal, batch_of(3, 6, number=1), batch_of(7, 7, number=2))
    assert [answer.change_count for answer in answers] == [2, 1]
    assert sequences_in(journal.read(START)) == list(range(1, 8))
    assert journal.point(SOURCE) == StreamPoint(0, 7, 2)


@across_restarts
async def test_a_new_epoch_begins_from_nothing_and_the_old_one_is_over(
    backend: Backend, journal: Journal, restart: Restart
) -> None:
    await keep(journal, batch_of(1, 5))
    await keep(journal, batch_of(1, 2, epoch=3, value="restored"))
    assert journal.point(SOURCE) == StreamPoint(3, 2, 1)
    for again in range(2):
        for old in (batch_of(6, 7), batch_of(1, 5), batch_of(6, 6, epoch=2)):
            with pytest.raises(InvalidSequence):
                await journal.append(old)
        assert (await keep(journal, batch_of(1, 2, epoch=3, value="restored")))[0].change_count == 0
        if not again:
            journal = await restart(backend, journal)
            assert journal.point(SOURCE) == StreamPoint(3, 2, 1)
    assert [(epoch, sequence) for _, epoch, sequence, _ in seen_in(journal.read(START))] == [
        *((0, sequence) for sequence in range(1, 6)),
        (3, 1),
        (3, 2),
    ]
    assert await keep(journal, batch_of(3, 4, epoch=3)) == [Appended(9, 2)]


async def test_an_old_epoch_is_refused_as_soon_as_the_new_one_is_on_its_way(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 2))
    await backend.hold(lambda: journal.append(batch_of(1, 1, epoch=1)))
    with pytest.raises(InvalidSequence):
        await journal.append(batch_of(3, 3))
    backend.let_go()
    await until(lambda: journal.point(SOURCE).epoch == 1)
    assert [epoch for _, epoch, _, _ in seen_in(journal.read(START))] == [0, 0, 1]


@pytest.mark.parametrize("again", [batch_of(1, 2), batch_of(2, 2), batch_of(2, 3)], ids=["same", "part", "overlap"])
async def test_what_is_still_on_its_way_is_called_a_duplicate_only_once_durable(
    backend: Backend, journal: Journal, again: Batch
) -> None:
    await backend.hold(lambda: journal.append(batch_of(1, 2)))
    async with asyncio.TaskGroup() as tasks:
        retry = tasks.create_task(keep(journal, again))
        for _ in range(20):
            await asyncio.sleep(0)
            assert not retry.done()
        assert list(journal.read(START)) == []
        backend.let_go()
    (answer,) = retry.result()
    assert answer.change_count + answer.duplicate_count == again.change_count
    assert sequences_in(journal.read(START)) == list(range(1, again.sequence_last + 1))


async def test_a_sender_that_stops_waiting_changes_nothing_for_the_journal(backend: Backend, journal: Journal) -> None:
    await backend.hold(lambda: journal.append(batch_of(1, 2)))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task((await journal.append(batch_of(3, 4))).wait())
        await asyncio.sleep(0)
        waiting.cancel()
        retry = tasks.create_task(keep(journal, batch_of(3, 4)))
        for _ in range(20):
            await asyncio.sleep(0)
            assert not retry.done()
        backend.let_go()
    assert retry.result() == [Appended(4, 0, duplicate_count=2)]
    assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_the_highest_sequence_outlives_the_changes_themselves(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 4, stream=OTHER, epoch=2, number=6))
    journal.register("pipeline", START)
    last = await write_units(backend, journal, 3, 1)
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", last + 4)
    for _ in range(2):
        with pytest.raises(NotFound):
            list(journal.read(START))
        assert journal.point(OTHER) == StreamPoint(2, 4, 6)
        assert (await keep(journal, batch_of(1, 4, stream=OTHER, epoch=2)))[0].change_count == 0
        with pytest.raises(InvalidSequence):
            await journal.append(batch_of(5, 5, stream=OTHER, epoch=1))
        journal = await crash(backend, journal)
    (answer,) = await keep(journal, batch_of(3, 6, stream=OTHER, epoch=2))
    assert (answer.change_count, answer.duplicate_count) == (2, 2)


@pytest.mark.parametrize("restart", [None, reopen, crash])
async def test_a_retry_of_changes_that_are_partly_gone_and_partly_kept_is_a_duplicate(
    backend: Backend, journal: Journal, restart: Restart | None
) -> None:
    journal.register("pipeline", START)
    last = await write_units(backend, journal, 3, 1)
    backend.clock.move(WINDOW_MS + 1)
    last = await write_units(backend, journal, 1, last + 1)
    journal.release("pipeline", last)
    with pytest.raises(NotFound):
        list(journal.read(START))
    journal = await restart(backend, journal) if restart else journal
    again = batch_of(1, last, pad=last * (backend.unit_bytes // 3))
    assert (await keep(journal, again))[0].duplicate_count == last
    with pytest.raises(InvalidSequence):
        await journal.append(batch_of(1, last, value="changed"))


async def test_after_the_window_the_sequence_alone_makes_a_duplicate(backend: Backend, journal: Journal) -> None:
    await keep(journal, batch_of(1, 3))
    backend.clock.move(WINDOW_MS + 1)
    assert await keep(journal, batch_of(1, 3, value="nobody remembers")) == [Appended(3, 0, duplicate_count=3)]
    assert sequences_in(journal.read(START)) == [1, 2, 3]


async def test_content_is_remembered_for_the_whole_window(backend: Backend, journal: Journal) -> None:
    for at in range(1, 61):
        await keep(journal, batch_of(at, at, number=at))
        backend.clock.move(WINDOW_MS // 60)
    for at in (2, 3, 30, 60):
        with pytest.raises(InvalidSequence):
            await journal.append(batch_of(at, at, value="changed"))
    assert (await keep(journal, batch_of(1, 60)))[0].duplicate_count == 60


# --- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [None, reopen, crash])
async def test_commit_timestamps_never_fall_when_the_clock_jumps_back(
    backend: Backend, journal: Journal, restart: Restart | None
) -> None:
    for at, move in enumerate([0, 5000, -3600_000, 1, -1, 7200_000, -7200_000], start=1):
        backend.clock.move(move)
        await keep(journal, batch_of(at, at))
        journal = await restart(backend, journal) if restart else journal
    times = [record.commit_timestamp_ms for record in journal.read(START)]
    assert times == sorted(times)
    assert times[-1] > backend.clock.now_ms


async def test_commit_timestamps_follow_the_clock_when_it_goes_forward(backend: Backend, journal: Journal) -> None:
    expected = []
    for at in range(1, 4):
        backend.clock.move(1234)
        expected.append(backend.clock.now_ms)
        await keep(journal, batch_of(at, at))
    assert [record.commit_timestamp_ms for record in journal.read(START)] == expected


async def test_commit_timestamps_do_not_fall_when_the_changes_before_are_gone(
    backend: Backend, journal: Journal
) -> None:
    last = await forget_everything(backend, journal, 1)
    newest = max(record.commit_timestamp_ms for record in journal.read(last - 1))
    backend.clock.move(-24 * 3600_000)
    journal = await crash(backend, journal)
    await keep(journal, batch_of(last + 1, last + 1))
    (record,) = journal.read(last)
    assert record.commit_timestamp_ms >= newest


# --- register, release -----------------------------------------------------------------------------------------------


async def test_nothing_is_removed_while_nobody_is_registered(backend: Backend, journal: Journal) -> None:
    last = await write_units(backend, journal, 3, 1)
    backend.clock.move(10 * WINDOW_MS)
    journal = await reopen(backend, journal)
    await keep(journal, batch_of(last + 1, last + 1))
    assert sequences_in(journal.read(START)) == list(range(1, last + 2))


async def test_the_slowest_of_two_consumers_decides_what_is_kept(backend: Backend, journal: Journal) -> None:
    journal.register("pipeline", START)
    journal.register("query", START)
    last = await write_units(backend, journal, 4, 1)
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", last)
    assert sequences_in(journal.read(START)) == list(range(1, last + 1))
    journal.release("query", last // 2)
    assert sequences_in(journal.read(last // 2)) == list(range(last // 2 + 1, last + 1))
    with pytest.raises(NotFound):
        list(journal.read(START))
    journal.release("query", last)
    with pytest.raises(NotFound):
        list(journal.read(last // 4))


@across_restarts
async def test_consumers_keep_their_places_across_restarts(
    backend: Backend, journal: Journal, restart: Restart
) -> None:
    await keep(journal, batch_of(1, 9))
    assert journal.register("pipeline", 2) == 2
    assert journal.register("query", START) == START
    journal.release("pipeline", 7)
    journal = await restart(backend, journal)
    assert journal.register("pipeline", START) == 7
    assert journal.register("query", 5) == START
    await write_units(backend, journal, 3, 10)
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", 20)
    assert sequences_in(journal.read(START))[:9] == list(range(1, 10))


async def test_a_consumer_never_moves_back(journal: Journal) -> None:
    await keep(journal, batch_of(1, 9))
    journal.register("pipeline", START)
    journal.release("pipeline", 6)
    journal.release("pipeline", 3)
    assert journal.register("pipeline", START) == 6


async def test_only_a_registered_consumer_can_release(journal: Journal) -> None:
    with pytest.raises(NotFound, match="nobody"):
        journal.release("nobody", 1)


async def test_a_reader_that_asks_for_what_is_gone_is_told_where_to_go_on(backend: Backend, journal: Journal) -> None:
    last = await forget_everything(backend, journal, 1)
    with pytest.raises(NotFound, match=r"oldest kept is (\d+)") as refusal:
        list(journal.read(START))
    oldest = int(str(refusal.value).split("oldest kept is ")[1].split()[0])
    assert 0 < oldest <= last
    assert sequences_in(journal.read(oldest)) == list(range(oldest + 1, last + 1))


async def test_a_batch_larger_than_a_unit_of_retention_is_kept_like_any_other(
    backend: Backend, journal: Journal
) -> None:
    journal.register("pipeline", START)
    large = batch_of(1, 3, pad=2 * backend.unit_bytes)
    await keep(journal, large)
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", START)
    assert sequences_in(journal.read(START)) == [1, 2, 3]
    await keep(journal, batch_of(4, 4))
    journal = await crash(backend, journal)
    assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_retries_do_not_hold_up_streams_that_send_what_is_new(journal: Journal) -> None:
    await keep(journal, batch_of(1, 50))
    async with asyncio.TaskGroup() as tasks:
        retries = [tasks.create_task(keep(journal, batch_of(1, 50))) for _ in range(10)]
        fresh = tasks.create_task(keep(journal, *[batch_of(at, at, stream=OTHER) for at in range(1, 21)]))
    assert all(retry.result()[0].duplicate_count == 50 for retry in retries)
    assert [answer.change_count for answer in fresh.result()] == [1] * 20
