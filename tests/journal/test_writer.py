"""The writer on a disk that fails: what is refused, what is promised, and when the journal takes batches again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.errors import BufferOverflowError, DoLakeError, OutcomeUnknown, Unavailable
from dolake.journal.base import Appended, Ticket
from dolake.journal.disk import Disk
from dolake.journal.embedded import EmbeddedJournal
from dolake.journal.writer import DurableGroup
from dolake.positions import START
from dolake.settings import JournalSettings
from tests.support.aio import until
from tests.support.disk import FailingDisk
from tests.support.journals import (
    SMALL,
    SOURCE,
    GatedDisk,
    batch_of,
    copy_files,
    fill,
    keep,
    mark_of,
    opened,
    read_again,
    segments_of,
    sequences_in,
)

OTHER = StreamId("source-2")
SEGMENT = SMALL.segment_size_bytes
ROOM_FOR_THREE = JournalSettings(size_max_bytes=3 * SEGMENT, segment_size_bytes=SEGMENT, group_size_max_bytes=SEGMENT)


async def refusal_of(work: Awaitable[Ticket]) -> DoLakeError | None:
    """Why this append was refused, at once or later; None when it was not."""
    try:
        await (await work).wait()
    except DoLakeError as error:
        return error
    return None


# --- group commit ----------------------------------------------------------------------------------------------------


async def test_everything_that_waits_shares_one_sync(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        first = await journal.append(batch_of(1, 1))
        await until(lambda: disk.arrived_count == 1)
        rest = [await journal.append(batch_of(at, at)) for at in range(2, 31)]
        before = disk.sync_count
        disk.let_go()
        await asyncio.gather(first.wait(), *(ticket.wait() for ticket in rest))
        assert disk.sync_count - before == 2
        assert (journal.stats.sync_count, journal.stats.batch_count) == (2, 30)


async def test_a_group_is_not_larger_than_its_limit(tmp_path: Path) -> None:
    disk = GatedDisk()
    tiny = JournalSettings(size_max_bytes=1 << 20, segment_size_bytes=SEGMENT, group_size_max_bytes=4096)
    groups: list[DurableGroup] = []
    async with opened(tmp_path, disk=disk, settings=tiny) as journal:
        journal.on_durable(groups.append)
        disk.hold()
        tickets = [await journal.append(batch_of(at, at, pad=1500)) for at in range(1, 21)]
        disk.let_go()
        await tickets[-1].wait()
    assert len(groups) >= 7
    assert max(group.byte_count for group in groups) < 4096 + 2500
    assert sum(group.change_count for group in groups) == 20
    assert [group.end for group in groups] == sorted({group.end for group in groups})


async def test_the_mark_has_moved_when_a_ticket_returns(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for at in range(1, 20):
            (answer,) = await keep(journal, batch_of(at, at, pad=8_000))
            mark = mark_of(tmp_path)
            assert mark.position == answer.end == journal.durable
            assert mark.segment == int(segments_of(tmp_path)[-1].stem)


async def test_the_mark_has_moved_before_the_writer_tells_of_a_group(tmp_path: Path) -> None:
    """A ticket that returns proves less: between telling and returning the writer has time to move the mark."""
    loop, marks = asyncio.get_running_loop(), list[int]()
    tell = loop.call_soon_threadsafe

    def look_and_tell(call: Callable[..., object], *values: Any, context: Context | None = None) -> asyncio.Handle:
        if threading.current_thread().name == "journal-writer":
            marks.append(mark_of(tmp_path).position)
        return tell(call, *values, context=context)

    async with opened(tmp_path) as journal:
        loop.call_soon_threadsafe = look_and_tell  # type: ignore[assignment, method-assign]
        try:
            answers = await keep(journal, batch_of(1, 2), batch_of(3, 3))
        finally:
            loop.call_soon_threadsafe = tell  # type: ignore[method-assign]
    assert marks == [answer.end for answer in answers] == [2, 3]


async def test_batches_go_on_in_the_next_segment_when_one_is_full(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        tickets = [await journal.append(batch_of(at, at, pad=9_000)) for at in range(1, 61)]
        assert [(await ticket.wait()).end for ticket in tickets] == list(range(1, 61))
        assert journal.segment_count == len(segments_of(tmp_path)) > 7
        assert sequences_in(journal.read(START)) == list(range(1, 61))
    for path in segments_of(tmp_path):
        assert path.stat().st_size <= SEGMENT
    assert await read_again(tmp_path) == list(range(1, 61))


async def test_listeners_hear_of_a_group_after_its_senders_could(tmp_path: Path) -> None:
    heard: list[tuple[int, bool]] = []
    async with opened(tmp_path) as journal:
        ticket = await journal.append(batch_of(1, 3))
        journal.on_durable(lambda group: heard.append((group.end, ticket.done.done())))
        await ticket.wait()
        assert heard == [(3, True)]


# --- a full disk -----------------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_and_is_forgotten_once_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 2))
        disk.is_full = True
        for _ in range(3):
            with pytest.raises(BufferOverflowError, match=r"full|no new segment") as refusal:
                await (await journal.append(batch_of(3, 4))).wait()
            assert refusal.value.retryable
            assert journal.point(SOURCE).sequence == 2
            assert sequences_in(journal.read(START)) == [1, 2]
        disk.is_full = False
        assert await keep(journal, batch_of(3, 4)) == [Appended(4, 2)]
        assert journal.failure is None
        assert journal.in_flight_bytes == 0
        assert journal.stats.refused_count == 3
    assert await read_again(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("written_before", [0, 1], ids=["first batch", "later batch"])
async def test_what_a_full_disk_took_half_of_is_gone_after_a_crash(tmp_path: Path, written_before: int) -> None:
    disk = FailingDisk()
    async with opened(tmp_path / "live", disk=disk) as journal:
        if written_before:
            await keep(journal, batch_of(1, 1))
        disk.is_full = True
        first = written_before + 1
        tickets = [await journal.append(batch_of(at, at, pad=100)) for at in range(first, first + 8)]
        for ticket in tickets:
            with pytest.raises(BufferOverflowError):
                await ticket.wait()
        copy_files(tmp_path / "live", tmp_path / "image")
    assert await read_again(tmp_path / "image") == list(range(1, written_before + 1))


async def test_a_disk_full_from_the_first_batch_on_loses_nothing_later(tmp_path: Path) -> None:
    """The segment that nothing went into is replaced by a fresh one of the same name."""
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        journal.register("pipeline", START)
        disk.is_full = True
        assert isinstance(await refusal_of(journal.append(batch_of(1, 2))), BufferOverflowError)
        disk.is_full = False
        await keep(journal, batch_of(1, 2))
        journal.release("pipeline", 2)
        journal.trim(is_pressed=True)
        assert journal.segment_count == len(segments_of(tmp_path)) == 1
        assert sequences_in(journal.read(START)) == [1, 2]
    assert await read_again(tmp_path) == [1, 2]


async def test_a_batch_behind_a_refused_one_of_its_stream_is_refused_too(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        await journal.append(batch_of(1, 1))
        await until(lambda: disk.arrived_count == 1)
        disk.is_full = True
        second = await journal.append(batch_of(2, 3))
        third = await journal.append(batch_of(4, 5))
        disk.let_go()
        for ticket in (second, third):
            with pytest.raises(BufferOverflowError):
                await ticket.wait()
        disk.is_full = False
        await keep(journal, batch_of(2, 3), batch_of(4, 5))
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4, 5]


async def test_a_retry_that_waited_for_a_refused_batch_is_refused_with_it(tmp_path: Path) -> None:
    """It overlaps the last of two refused batches; written now, it would lie before the first of them."""
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        await journal.append(batch_of(1, 1, stream=OTHER))
        await until(lambda: disk.arrived_count == 1)
        first = await journal.append(batch_of(1, 2))
        await journal.append(batch_of(3, 4))
        async with asyncio.TaskGroup() as tasks:
            retry = tasks.create_task(refusal_of(journal.append(batch_of(3, 6))))
            await asyncio.sleep(0)
            disk.is_full = True
            first.done.add_done_callback(lambda _: setattr(disk, "is_full", False))  # room again at once
            disk.let_go()
        assert isinstance(retry.result(), Unavailable)
        await keep(journal, batch_of(1, 2), batch_of(3, 6))
        assert sequences_in(journal.read(1)) == [1, 2, 3, 4, 5, 6]


async def test_a_batch_that_comes_before_its_sender_can_have_heard_of_a_refusal_is_refused_too(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.is_full = True
        first = await journal.append(batch_of(1, 2))
        heard: list[object] = []
        first.done.add_done_callback(heard.append)
        while not first.done.done():  # noqa: ASYNC110 - the very moment between the refusal and its callbacks matters
            await asyncio.sleep(0)
        assert not heard
        disk.is_full = False
        assert isinstance(await refusal_of(journal.append(batch_of(3, 4))), Unavailable)
        await until(lambda: bool(heard))
        await keep(journal, batch_of(1, 2), batch_of(3, 4))
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_a_sender_may_repeat_a_refused_batch_in_the_moment_it_hears_of_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.is_full = True
        ticket = await journal.append(batch_of(1, 2))
        with pytest.raises(BufferOverflowError):
            await ticket.wait()
        disk.is_full = False
        assert await keep(journal, batch_of(1, 2)) == [Appended(2, 2)]


async def test_a_later_batch_is_refused_while_an_earlier_one_of_its_stream_waits_to_be(tmp_path: Path) -> None:
    """The loop hears of a failure of another stream first; the doomed batch is still in the queue."""
    disk, loop = GatedDisk(), asyncio.get_running_loop()
    steps, tell = threading.Semaphore(0), loop.call_soon_threadsafe

    def tell_slowly(call: Callable[..., object], *values: Any, context: Context | None = None) -> asyncio.Handle:
        handle = tell(call, *values, context=context)
        if threading.current_thread().name == "journal-writer":
            assert steps.acquire(timeout=20)
        return handle

    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        durable = await journal.append(batch_of(1, 1, stream=OTHER))
        await until(lambda: disk.arrived_count == 1)
        refused = await journal.append(batch_of(2, 2, stream=OTHER, pad=SEGMENT))  # a group of its own
        doomed = await journal.append(batch_of(1, 2))
        disk.is_full = True
        loop.call_soon_threadsafe = tell_slowly  # type: ignore[assignment, method-assign]
        try:
            disk.let_one_go()
            await durable.wait()
            steps.release()
            disk.let_go()
            with pytest.raises(BufferOverflowError):
                await refused.wait()
            await asyncio.sleep(0)
            disk.is_full = False
            overtaking = None if doomed.done.done() else await refusal_of(journal.append(batch_of(3, 4)))
        finally:
            steps.release(100)
            loop.call_soon_threadsafe = tell  # type: ignore[method-assign]
        with pytest.raises(BufferOverflowError):
            await doomed.wait()
        assert isinstance(overtaking, Unavailable)
        await keep(journal, batch_of(1, 2), batch_of(3, 4))
        assert sequences_in(journal.read(1)) == [1, 2, 3, 4]


async def test_what_fits_of_a_group_is_kept_and_only_the_rest_is_refused(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk, settings=ROOM_FOR_THREE) as journal:
        disk.hold()
        tickets = [await journal.append(batch_of(at, at, pad=20_000)) for at in range(1, 16)]
        disk.let_go()
        answers = await asyncio.gather(*(ticket.wait() for ticket in tickets), return_exceptions=True)
        kept = [answer.end for answer in answers if isinstance(answer, Appended)]
        assert kept == list(range(1, len(kept) + 1))
        assert 6 <= len(kept) < 15
        assert all(isinstance(answer, BufferOverflowError) for answer in answers[len(kept) :])
        assert sequences_in(journal.read(START)) == kept
        assert journal.in_flight_bytes == 0


# --- the size limit --------------------------------------------------------------------------------------------------


async def until_full(journal: EmbeddedJournal, first: int = 1) -> int:
    """Append until the journal refuses; the last sequence that it took."""
    for at in range(first, first + 1000):
        error = await refusal_of(journal.append(batch_of(at, at, pad=9_000)))
        if error:
            assert isinstance(error, BufferOverflowError)
            return at - 1
    raise AssertionError("the limit was never reached")


async def test_the_journal_never_takes_more_than_its_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=ROOM_FOR_THREE) as journal:
        last = await until_full(journal)
        assert last >= 18
        assert journal.used_bytes <= ROOM_FOR_THREE.size_max_bytes
        assert sum(path.stat().st_size for path in segments_of(tmp_path)) <= ROOM_FOR_THREE.size_max_bytes
        assert journal.utilization > 0.8
        assert sequences_in(journal.read(START)) == list(range(1, last + 1))
        assert journal.failure is None


async def test_a_journal_at_its_limit_takes_batches_again_when_consumers_have_passed(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=ROOM_FOR_THREE) as journal:
        journal.register("pipeline", START)
        last = await until_full(journal)
        assert isinstance(await refusal_of(journal.append(batch_of(last + 1, last + 1, pad=9_000))), Unavailable)
        for _ in range(3):
            journal.release("pipeline", last)
            further = await until_full(journal, last + 1)
            assert further > last
            last = further
        kept = sequences_in(journal.read(journal.oldest))
        assert kept == list(range(journal.oldest + 1, last + 1))


async def test_a_raised_limit_counts_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=ROOM_FOR_THREE) as journal:
        last = await until_full(journal)
        journal.follow_settings(SMALL, is_deduplicating=True, window_ms=1000)
        await keep(journal, batch_of(last + 1, last + 1, pad=9_000))
        assert journal.size_max_bytes == SMALL.size_max_bytes


async def test_the_limit_holds_across_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=ROOM_FOR_THREE) as journal:
        last = await until_full(journal)
    async with opened(tmp_path, settings=ROOM_FOR_THREE) as journal:
        further = await until_full(journal, last + 1)
        assert further - last < 7, "at most the rest of a segment"
        assert journal.used_bytes <= ROOM_FOR_THREE.size_max_bytes


# --- a failing sync --------------------------------------------------------------------------------------------------


async def test_after_a_failed_sync_nothing_is_acknowledged_and_nothing_synced_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 2))
        disk.is_sync_failing = True
        ticket = await journal.append(batch_of(3, 4))
        with pytest.raises(OutcomeUnknown, match="sync"):
            await ticket.wait()
        count = disk.sync_count
        disk.is_sync_failing = False  # a second sync would succeed, over pages that the kernel has dropped
        for batch in (batch_of(3, 4), batch_of(5, 6), batch_of(1, 1, stream=OTHER), batch_of(1, 2)):
            assert await refusal_of(journal.append(batch)) is not None
        assert disk.sync_count == count
        assert journal.failure is not None
        assert journal.point(SOURCE).sequence == 2
        assert mark_of(tmp_path).position == 2
        assert sequences_in(journal.read(START)) == [1, 2]
    assert disk.sync_count == count, "closing does not sync either"


async def test_nothing_is_acknowledged_before_the_operating_system_has_synced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real disk: only a call that fails shows that there is one, because a killed process loses nothing anyway."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(tmp_path, disk=Disk()) as journal:
        await keep(journal, batch_of(1, 1))
        monkeypatch.setattr(os, "fdatasync", fail)
        assert isinstance(await refusal_of(journal.append(batch_of(2, 2))), OutcomeUnknown)
        assert mark_of(tmp_path).position == 1


async def test_everything_that_waits_behind_a_failed_sync_is_refused(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        tickets = [await journal.append(batch_of(1, 1))]
        await until(lambda: disk.arrived_count == 1)
        tickets += [await journal.append(batch_of(at, at, pad=30_000)) for at in range(2, 8)]
        disk.is_sync_failing = True
        count = disk.sync_count
        disk.let_go()
        answers = await asyncio.gather(*(ticket.wait() for ticket in tickets), return_exceptions=True)
        assert all(isinstance(answer, DoLakeError) for answer in answers)
        assert disk.sync_count == count + 1
        assert journal.in_flight_bytes == 0


async def test_a_reopened_journal_takes_batches_again_after_a_failed_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 2))
        disk.is_sync_failing = True
        assert await refusal_of(journal.append(batch_of(3, 4))) is not None
    disk.is_sync_failing = False
    async with opened(tmp_path, disk=disk) as journal:
        assert journal.failure is None
        (answer,) = await keep(journal, batch_of(3, 4))
        assert answer.change_count + answer.duplicate_count == 2
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


async def test_a_failed_write_stops_the_journal_like_a_failed_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 2))
        disk.is_write_failing = True
        with pytest.raises(OutcomeUnknown):
            await (await journal.append(batch_of(3, 4))).wait()
        disk.is_write_failing = False
        assert await refusal_of(journal.append(batch_of(3, 4))) is not None
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(3, 4))
        assert sequences_in(journal.read(START)) == [1, 2, 3, 4]


class ClumsyDisk(GatedDisk):
    """Fails where a new segment is begun."""

    fail_at = ""

    def _fail(self, where: str) -> None:
        if self.fail_at == where:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        if offset == 0:
            self._fail("head")
        super().write(descriptor, buffers, offset)
        if offset == 0 and self.fail_at == "sync of head":
            self.is_sync_failing = True

    def sync_directory(self, path: Path, descriptor: int | None = None) -> None:
        self._fail("directory")
        super().sync_directory(path, descriptor)


@pytest.mark.parametrize("fail_at", ["head", "sync of head", "directory"])
async def test_a_new_segment_that_cannot_be_made_durable_stops_the_journal_and_loses_nothing(
    tmp_path: Path, fail_at: str
) -> None:
    """The group reaches over the end of a segment: its first batches are durable, told once, and stay so."""
    disk = ClumsyDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        tickets = [await journal.append(batch_of(1, 1))]
        await until(lambda: disk.arrived_count == 1)
        tickets += [await journal.append(batch_of(at, at, pad=15_000)) for at in range(2, 9)]
        disk.fail_at = fail_at
        disk.let_go()
        answers = await asyncio.gather(*(ticket.wait() for ticket in tickets), return_exceptions=True)
        kept = [answer.end for answer in answers if isinstance(answer, Appended)]
        assert kept == list(range(1, len(kept) + 1))
        assert 2 <= len(kept) < 8
        assert all(isinstance(answer, OutcomeUnknown) for answer in answers[len(kept) :]), answers
        assert journal.in_flight_bytes == 0
        count = disk.sync_count
        disk.fail_at, disk.is_sync_failing = "", False
        assert await refusal_of(journal.append(batch_of(9, 9))) is not None
        assert disk.sync_count == count
        assert journal.failure is not None
    async with opened(tmp_path, disk=disk) as journal:
        assert sequences_in(journal.read(START)) == kept
        last = await fill(journal, 2, first=len(kept) + 1)
        assert sequences_in(journal.read(START)) == list(range(1, last + 1))


async def test_a_bug_in_the_writer_leaves_nobody_waiting(tmp_path: Path) -> None:
    class BrokenDisk(Disk):
        is_broken = False

        def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
            if self.is_broken:
                raise ZeroDivisionError
            super().write(descriptor, buffers, offset)

    disk = BrokenDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 1))
        disk.is_broken = True
        answers = await asyncio.gather(*(refusal_of(journal.append(batch_of(at, at))) for at in range(2, 6)))
        assert all(isinstance(answer, OutcomeUnknown) for answer in answers)
        disk.is_broken = False
        assert await refusal_of(journal.append(batch_of(2, 2))) is not None
    assert await read_again(tmp_path) == [1]


# --- back-pressure, closing ------------------------------------------------------------------------------------------


async def test_who_waits_for_room_goes_on_when_the_disk_does(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        await journal.append(batch_of(1, 1, pad=5_000))
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(journal.room(5_000)) for _ in range(3)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            await journal.room(50_000)
            disk.let_go()
        assert journal.in_flight_bytes == 0


async def test_a_stream_is_settled_when_nothing_of_it_is_on_its_way(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        await journal.append(batch_of(1, 3, number=8))
        assert (await journal.settled(OTHER)).sequence == 0
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(journal.settled(SOURCE))
            await asyncio.sleep(0)
            assert not waiting.done()
            disk.let_go()
        assert (waiting.result().sequence, waiting.result().number) == (3, 8)


async def test_closing_gives_back_reserved_space_and_leaves_no_thread(tmp_path: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    async with opened(tmp_path) as journal:
        await fill(journal, 1)
    assert not list(tmp_path.glob("*.tmp"))
    assert segments_of(tmp_path)[-1].stat().st_size == mark_of(tmp_path).offset
    left = {thread.name for thread in threading.enumerate() if thread.ident not in before}
    assert not {name for name in left if name.startswith("journal")}
