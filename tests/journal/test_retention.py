"""What may go: the rule alone, who is remembered, and a journal that lets go of segments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dolake.errors import BufferOverflowError, Damaged, NotFound, Unavailable
from dolake.journal.disk import Disk
from dolake.journal.retention import FILE_NAME, Consumers, SealedSegment, removable
from dolake.positions import START
from dolake.settings import JournalSettings
from tests.support.clock import Clock
from tests.support.disk import FailingDisk
from tests.support.journals import (
    SMALL,
    WINDOW_MS,
    batch_of,
    copy_files,
    fill,
    keep,
    opened,
    segments_of,
    sequences_in,
)

TIGHT = JournalSettings(size_max_bytes=4 * 65536, segment_size_bytes=65536, group_size_max_bytes=65536)
SEALED = [SealedSegment(base, base + 10, 1000, base * 100) for base in (0, 10, 20, 30)]


def bases(going: list[SealedSegment]) -> list[int]:
    return [sealed.base for sealed in going]


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("released", "expected"),
    [(0, []), (9, []), (10, [0]), (11, [0]), (29, [0, 10]), (30, [0, 10, 20]), (1000, [0, 10, 20, 30])],
)
def test_a_segment_goes_when_everybody_has_passed_its_end(released: int, expected: list[int]) -> None:
    assert bases(removable(SEALED, released, keep_since_ms=10**6, is_pressed=False)) == expected


def test_without_a_consumer_nothing_goes_even_when_room_runs_out() -> None:
    assert removable(SEALED, None, keep_since_ms=10**6, is_pressed=True) == []


def test_segments_inside_the_dedup_window_stay_unless_room_runs_out() -> None:
    assert bases(removable(SEALED, 40, keep_since_ms=1001, is_pressed=False)) == [0, 10]
    assert bases(removable(SEALED, 40, keep_since_ms=0, is_pressed=False)) == []
    assert bases(removable(SEALED, 40, keep_since_ms=0, is_pressed=True)) == [0, 10, 20, 30]
    assert bases(removable(SEALED, 25, keep_since_ms=0, is_pressed=True)) == [0, 10]


def test_no_hole_is_left_between_segments() -> None:
    """An old segment behind a recent one waits for it: a clock that jumped must not tear the journal apart."""
    jumped = [SealedSegment(0, 10, 1, 100), SealedSegment(10, 20, 1, 9000), SealedSegment(20, 30, 1, 200)]
    assert bases(removable(jumped, 30, keep_since_ms=500, is_pressed=False)) == [0]


# --- who is remembered -----------------------------------------------------------------------------------------------


def test_consumers_are_remembered_in_a_file_that_people_can_read(tmp_path: Path) -> None:
    consumers = Consumers(tmp_path, Disk())
    assert consumers.released() is None
    consumers.register("pipeline", 5)
    consumers.register("query", 7)
    consumers.release("pipeline", 12)
    consumers.store()
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"pipeline": 12, "query": 7}
    again = Consumers(tmp_path, Disk())
    assert again.all() == {"pipeline": 12, "query": 7}
    assert again.released() == 7
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pipeline": "x"}', b'{"pipeline": 1.5}', b"\xff"])
def test_a_file_that_cannot_be_read_is_damage_and_nobody_is_forgotten(tmp_path: Path, content: bytes) -> None:
    """Else everything that they have not released would be removed."""
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(Damaged, match=FILE_NAME):
        Consumers(tmp_path, Disk())


async def test_a_journal_whose_consumers_cannot_be_read_does_not_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.register("pipeline", START)
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(Damaged, match=FILE_NAME):
        async with opened(tmp_path):
            pass
    (tmp_path / FILE_NAME).write_text('{"pipeline": 0}')
    async with opened(tmp_path) as journal:
        assert journal.consumers.all() == {"pipeline": 0}


def test_a_consumer_that_could_not_be_written_down_is_not_registered(tmp_path: Path) -> None:
    disk = FailingDisk()
    consumers = Consumers(tmp_path, disk)
    disk.is_full = True
    with pytest.raises(Unavailable, match="pipeline"):
        consumers.register("pipeline", 5)
    assert consumers.all() == {}
    disk.is_full = False
    assert consumers.register("pipeline", 6) == 6


def test_a_release_that_cannot_be_written_down_counts_until_the_next_start(tmp_path: Path) -> None:
    disk = FailingDisk()
    consumers = Consumers(tmp_path, disk)
    consumers.register("pipeline", 5)
    disk.is_full = True
    consumers.release("pipeline", 9)
    consumers.store()
    assert consumers.released() == 9
    assert Consumers(tmp_path, Disk()).released() == 5
    disk.is_full = False
    consumers.store()
    assert Consumers(tmp_path, Disk()).released() == 9


# --- a journal -------------------------------------------------------------------------------------------------------


async def test_released_segments_go_and_their_bytes_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 4)
        before = journal.used_bytes
        clock.move(WINDOW_MS + 1)
        journal.release("pipeline", last)
        assert journal.segment_count == len(segments_of(tmp_path)) == 1
        assert journal.used_bytes < before - 3 * 50_000
        assert journal.oldest == int(segments_of(tmp_path)[0].stem)
        assert sequences_in(journal.read(journal.oldest)) == list(range(journal.oldest + 1, last + 1))


async def test_the_newest_segment_never_goes(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as journal:
        await keep(journal, batch_of(1, 5))
        journal.register("pipeline", START)
        clock.move(WINDOW_MS + 1)
        journal.release("pipeline", 5)
        assert journal.trim(is_pressed=True) == 0
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4, 5]


async def test_what_is_released_stays_for_the_dedup_window_while_there_is_room(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        journal.release("pipeline", last)
        assert journal.utilization < 0.5
        assert journal.oldest == START
        clock.move(WINDOW_MS + 1)
        journal.release("pipeline", last)
        assert journal.oldest > START


async def test_a_batch_too_large_for_a_segment_does_not_take_its_neighbours_with_it(tmp_path: Path) -> None:

    def newest(journal: object) -> int:
        return journal._writer.offset  # type: ignore[attr-defined, no-any-return]

    async with opened(tmp_path) as journal:
        journal.register("pipeline", START)
        sizes = [70_000, 100, 150_000, 66_000, 100]
        await keep(journal, *[batch_of(at, at, pad=size) for at, size in enumerate(sizes, start=1)])
        for released in range(6):
            journal.release("pipeline", released)
            journal.trim(is_pressed=True)
            assert len(segments_of(tmp_path)) == journal.segment_count
            assert sequences_in(journal.read(released)) == list(range(released + 1, 6))
        assert journal.used_bytes == sum(p.stat().st_size for p in segments_of(tmp_path)[:-1]) + newest(journal)


async def test_a_full_disk_is_emptied_by_a_release(tmp_path: Path) -> None:
    """Removing comes before writing down who released: on a full disk the other way round would never end."""
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk, settings=TIGHT) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        disk.is_full = True
        journal.release("pipeline", last)
        assert journal.oldest > START
        disk.is_full = False  # as the removed files leave room
        await keep(journal, batch_of(last + 1, last + 1))
        assert journal.failure is None


async def test_a_crash_between_removing_and_writing_it_down_leaves_a_consumer_at_what_is_kept(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path / "live", disk=disk, settings=TIGHT) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        disk.is_full = True
        journal.release("pipeline", last)
        oldest = journal.oldest
        image = copy_files(tmp_path / "live", tmp_path / "image")
        disk.is_full = False
    async with opened(image, settings=TIGHT) as journal:
        assert journal.register("pipeline", START) == journal.oldest == oldest > START
        assert sequences_in(journal.read(oldest)) == list(range(oldest + 1, last + 1))


async def test_a_new_consumer_that_asks_for_what_is_gone_is_told_where_it_stands(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=TIGHT) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        journal.release("pipeline", last)
        place = journal.register("late", START)
        assert place == journal.oldest > START
        assert sequences_in(journal.read(place)) == list(range(place + 1, last + 1))


async def test_the_writer_makes_room_by_itself_when_the_limit_is_reached(tmp_path: Path) -> None:
    """Released long ago, kept for the window only: new changes count more than comparing retries."""
    async with opened(tmp_path, settings=SMALL) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        journal.release("pipeline", last)
        assert journal.oldest == START
        journal.follow_settings(TIGHT, is_deduplicating=True, window_ms=WINDOW_MS)
        await keep(journal, *[batch_of(at, at, pad=20_000) for at in range(last + 1, last + 6)])
        last += 5
        assert journal.oldest > START
        assert sequences_in(journal.read(journal.oldest))[-1] == last


async def test_one_slow_consumer_fills_the_journal_and_is_never_cut_off(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=TIGHT) as journal:
        journal.register("fast", START)
        journal.register("slow", START)

        async def send_until_full() -> int:
            for at in range(1, 100):
                try:
                    await keep(journal, batch_of(at, at, pad=20_000))
                except BufferOverflowError:
                    return at
                journal.release("fast", at)
            raise AssertionError("the slow one was cut off")

        at = await send_until_full()
        assert sequences_in(journal.read(START)) == list(range(1, at))
        journal.release("slow", at - 1)
        await keep(journal, batch_of(at, at, pad=20_000))


async def test_segments_are_removed_while_batches_are_written_and_read(tmp_path: Path) -> None:
    """Consumers release from threads of their own."""
    async with opened(tmp_path, settings=TIGHT) as journal:
        journal.register("pipeline", START)

        def consume() -> list[int]:
            place, seen = START, list[int]()
            while len(seen) < 60:
                for record in journal.read(place):
                    seen += range(record.sequence_first, record.sequence_last + 1)
                    place = record.end
                journal.release("pipeline", place)
            return seen

        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(asyncio.to_thread(consume))
            at = 1
            while at <= 60:
                try:
                    await keep(journal, batch_of(at, at, pad=12_000))
                except BufferOverflowError:
                    await asyncio.sleep(0)
                else:
                    at += 1
        assert consuming.result() == list(range(1, 61))
        assert journal.oldest > START
        with pytest.raises(NotFound):
            list(journal.read(START))


async def test_removed_segments_stay_removed_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=TIGHT) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 3)
        journal.release("pipeline", last)
        oldest, used = journal.oldest, journal.used_bytes
    async with opened(tmp_path, settings=TIGHT) as journal:
        assert (journal.oldest, journal.used_bytes) == (oldest, used)
        assert journal.consumers.all() == {"pipeline": last}
        assert journal.durable == last


# --- for a key that is forgotten -------------------------------------------------------------------------------------


async def test_all_that_is_durable_goes_as_soon_as_it_is_published_whatever_the_window(tmp_path: Path) -> None:

    async def publish_nothing(_position: int) -> None:
        raise Unavailable("publishing failed")

    async with opened(tmp_path) as journal:
        journal.register("pipeline", START)
        await keep(journal, batch_of(1, 5))

        async def publish(position: int) -> None:
            await keep(journal, batch_of(6, 8))  # others do not wait
            journal.release("pipeline", position)

        oldest, freed = await journal.let_go(publish, 10)
        assert (oldest, journal.oldest, freed > 0) == (5, 5, True)
        assert sequences_in(journal.read(5)) == [6, 7, 8]
        assert len(segments_of(tmp_path)) == journal.segment_count == 1
        (resent,) = await keep(journal, batch_of(1, 5))
        assert resent.duplicate_count == 5, "its sequence alone says that it is durable"
    async with opened(tmp_path) as journal:
        assert sequences_in(journal.read(5)) == [6, 7, 8]
        assert await journal.let_go(publish_nothing, 10) == (5, 0), "what is not published stays"


async def test_a_journal_that_is_empty_or_stopped_seals_nothing(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:

        async def publish(_position: int) -> None:
            """At once."""

        assert await journal.let_go(publish, 10) == (START, 0)
        assert len(segments_of(tmp_path)) == 1
        await keep(journal, batch_of(1, 2))
        disk.is_full = True
        with pytest.raises(BufferOverflowError):
            await journal.let_go(publish, 10)
        disk.is_full = False
        await keep(journal, batch_of(3, 4))
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_who_gives_up_waiting_for_a_seal_stops_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for first in (1, 3):
            wish = journal._writer.seal()
            wish.cancel()
            await keep(journal, batch_of(first, first + 1))
        assert journal.failure is None
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4]
