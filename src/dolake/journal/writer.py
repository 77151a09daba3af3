"""The writer thread: takes whatever waits, writes it with one call, syncs once, and only then tells.

From embedded.py, which queues batches in their order; to the files of segment.py. Promise: a group is told as durable
after its fdatasync and after the mark has moved, never before. A failed sync ends the journal until a restart: it is
never repeated and called good. Without room everything that waits is refused and nothing is half-written.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dolake.changes import Batch
from dolake.errors import BufferOverflowError, DoLakeError, OutcomeUnknown, Unavailable
from dolake.journal import record, segment
from dolake.journal.base import Appended
from dolake.journal.disk import CACHED_SEGMENTS, Disk
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Form, Kind, StreamPoint, position_count
from dolake.journal.recovery import Recovered
from dolake.journal.retention import SealedSegment
from dolake.positions import Position
from dolake.settings import JournalSettings

logger = logging.getLogger(__name__)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True)
class JournalStats:
    """Counters since the start; written by the writer thread alone."""

    batch_count: int = 0
    change_count: int = 0
    byte_count: int = 0
    sync_count: int = 0
    sync_seconds: float = 0.0
    refused_count: int = 0


@dataclass(frozen=True, slots=True)
class DurableGroup:
    """What one sync made durable; told to listeners on the event loop."""

    end: Position
    batch_count: int
    change_count: int
    byte_count: int
    commit_timestamp_ms: int


@dataclass(slots=True)
class Entry:
    """A batch that has its place in the order. The writer fills in where it went."""

    batch: Batch
    meta: bytes
    size: int
    duplicate_count: int
    era: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Appended]
    form: Form = Form.UNSAID
    flags: int = 0
    end: Position = 0
    offset: int = 0
    segment: Position = 0
    before: int = 0


Seal = Future[Position]
"""Somebody waits for the newest segment to be sealed."""
Settle = Callable[[list[Entry], DurableGroup | None, DoLakeError | None], None]
"""Called on the entries' event loop: this group is durable, or was refused for this reason."""


class Writer:
    """Owns the newest segment, the mark and the durable state. Everything public may be read from any thread."""

    def __init__(
        self,
        directory: Path,
        found: Recovered,
        descriptor: int,
        mark_file: MarkFile,
        *,
        settings: JournalSettings,
        clock_ms: Callable[[], int],
        disk: Disk,
        settle: Settle,
        free: Callable[[], object],
    ) -> None:
        self.settings = settings
        self.stats = JournalStats()
        self.streams, self.tables = found.streams, found.tables
        self.base, self.offset, self.position = found.base, found.offset, found.position
        self.commit_timestamp_ms = found.commit_timestamp_ms
        self.sealed = found.sealed
        self.sealed_bytes = sum(sealed.size for sealed in found.sealed)
        self.sealed_lock = threading.Lock()
        self.failure: DoLakeError | None = None
        self.era = 0
        self._directory, self._journal_id = directory, found.journal_id
        self._directory_descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptor, self._mark_file = descriptor, mark_file
        self._capacity = os.fstat(descriptor).st_size
        self._disk, self._clock_ms, self._settle, self._free = disk, clock_ms, settle, free
        self._is_without_room = False
        self.refusal: DoLakeError = Unavailable("an earlier batch could not be written", hint="send again, in order")
        self._queue: queue.SimpleQueue[Entry | Seal | None] = queue.SimpleQueue()
        self._seals: list[Seal] = []
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="journal-prepare")
        self._prepared: Future[Path] | None = None
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    @property
    def used_bytes(self) -> int:
        """Bytes that hold records. Space reserved ahead is not counted."""
        return self.sealed_bytes + self.offset

    def submit(self, entry: Entry) -> None:
        self._queue.put(entry)

    def seal(self) -> Seal:
        """Begin a new segment soon, so that all that is durable by then can be removed; says up to where that is."""
        wish: Seal = Future()
        self._queue.put(wish)
        return wish

    def drop(self, going: list[SealedSegment]) -> None:
        """These sealed segments were removed; the caller holds `sealed_lock`."""
        self.sealed = self.sealed[len(going) :]
        self.sealed_bytes -= sum(sealed.size for sealed in going)

    def close(self) -> None:
        """Write what waits, then let go of the files. Blocks."""
        self._queue.put(None)
        self._thread.join()
        self._aside.shutdown()
        if self._prepared and not self._prepared.exception():
            self._prepared.result().unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.offset)  # give back what was reserved
        os.close(self._descriptor)
        os.close(self._directory_descriptor)
        self._mark_file.close()

    def _run(self) -> None:
        self._prepare()
        while (group := self._next_group()) is not None:
            try:
                self._commit(group)
                self._seal_as_wished()
            except Exception as error:  # a bug must not leave senders waiting for ever
                logger.exception("journal writer failed")
                self._fail_for_good(f"the journal writer failed: {error}")
                self._refuse(group)
        self._refuse([])

    def _next_group(self) -> list[Entry] | None:
        """Everything that waits, up to the size of one group; None when the journal closes."""
        first = self._queue.get()
        if first is None:
            return None
        if isinstance(first, Future):
            self._seals.append(first)
            return []
        group, size = [first], first.size
        while size < self.settings.group_size_max_bytes and not self._queue.empty():
            entry = self._queue.get()
            if entry is None:
                self._queue.put(None)
                break
            if isinstance(entry, Future):
                self._seals.append(entry)
                continue
            group.append(entry)
            size += entry.size
        return group

    def _seal_as_wished(self) -> None:
        """Where there is no room for another segment, or none can be made, whoever wished it hears that."""
        wishes, self._seals = self._seals, []
        for wish in wishes:
            if not wish.set_running_or_notify_cancel():
                continue  # nobody waits any more
            try:
                if self.base < self.position and not self.failure:
                    self._roll(0)
                if self.failure:
                    raise self.failure
            except DoLakeError as error:
                wish.set_exception(error)
            except Exception as error:
                wish.set_exception(error)
                raise
            else:
                wish.set_result(self.base)

    def _commit(self, group: list[Entry]) -> None:
        """Make these durable or refuse them. Whoever was told leaves the list, so that nobody is told twice."""
        late = [entry for entry in group if entry.era != self.era]
        if late:
            group[:] = [entry for entry in group if entry.era == self.era]
            self._tell(late, None, self.refusal)
        while group and not self.failure:
            fitting = self._fitting(group)
            try:
                if fitting:
                    self._write(fitting)
                else:
                    self._roll(group[0].size)
            except BufferOverflowError as error:
                self._note_room(is_without_room=True)
                self.era += 1
                self.refusal = error
                self._tell(list(group), None, error)
                group.clear()
                return
            del group[: len(fitting)]
        if group:
            self._refuse(group)

    def _fitting(self, entries: list[Entry]) -> list[Entry]:
        room = self._capacity - self.offset
        for index, entry in enumerate(entries):
            room -= entry.size
            if room < 0:
                return entries[:index]
        return entries.copy()

    def _write(self, entries: list[Entry]) -> None:
        """Write, sync, move the mark, tell. From here on the group is promised."""
        timestamp = max(self._clock_ms(), self.commit_timestamp_ms)
        buffers: list[bytes] = []
        position, offset = self.position, self.offset
        for entry in entries:
            batch = entry.batch
            buffers += record.encode(
                Kind.BATCH,
                entry.meta,
                batch.payload,
                position=position,
                change_count=batch.change_count,
                commit_timestamp_ms=timestamp,
                synced=self.offset,
                form=entry.form,
                flags=entry.flags,
            )
            entry.segment, entry.offset = self.base, offset
            offset += entry.size
            position += position_count(batch.change_count)
            entry.end = position
        if not self._make_durable(buffers):
            self._refuse(entries)
            return
        change_count = sum(entry.batch.change_count for entry in entries)
        group = DurableGroup(position, len(entries), change_count, offset - self.offset, timestamp)
        for entry in entries:
            stream = entry.batch.stream
            point = self.streams.get(stream, StreamPoint())
            entry.before = point.reached(entry.batch.epoch)
            self.streams[stream] = point.after(entry.batch)
            self.tables.update(entry.batch.tables)
        self.position, self.offset, self.commit_timestamp_ms = position, offset, timestamp
        self._move_mark()
        self._count(group)
        self._tell(entries, group, None)

    def _make_durable(self, buffers: list[bytes]) -> bool:
        """Write and sync at the end of the segment. False when that failed for good."""
        try:
            self._disk.write(self._descriptor, buffers, self.offset)
        except OSError as error:
            if error.errno in _NO_ROOM and self._restore_end():
                raise _no_room(f"the disk is full: {error.strerror}") from error
            self._fail_for_good(f"writing to the journal failed: {error}")
            return False
        started = time.perf_counter()
        try:
            self._disk.sync(self._descriptor)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages, and a second sync would succeed over nothing.
            self._fail_for_good(f"syncing the journal failed: {error}")
            return False
        self.stats.sync_seconds += time.perf_counter() - started
        return True

    def _restore_end(self) -> bool:
        """Remove a half-written group, so that its bytes can never be taken for records, also after a power failure."""
        try:
            os.ftruncate(self._descriptor, self.offset)
            self._disk.sync(self._descriptor)
            self._capacity = self.offset  # the next batch goes to a fresh segment, if there is room for one
        except OSError:
            return False
        return True

    def _roll(self, needed: int) -> None:
        """Seal the current segment and begin the next one with a checkpoint of all streams."""
        checkpoint = record.encode_checkpoint(self.streams, self.tables)
        head = segment.HEADER_SIZE + record.size_of(checkpoint, b"")
        size = max(self.settings.segment_size_bytes, head + needed)
        if self.offset + self.sealed_bytes + size > self.settings.size_max_bytes:
            self._free()
            if self.offset + self.sealed_bytes + size > self.settings.size_max_bytes:
                raise _no_room(f"the journal holds {self.used_bytes} of {self.settings.size_max_bytes} bytes")
        try:
            path = self._take_prepared(size)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _no_room(f"no new segment could be made: {error}") from error
        try:
            begin_segment(
                self._disk,
                descriptor,
                self.position,
                self._journal_id,
                checkpoint,
                self.commit_timestamp_ms,
                self._clock_ms(),
            )
            self._give_name(path)
        except OSError as error:
            os.close(descriptor)
            if path.exists() and error.errno in _NO_ROOM:  # nothing happened yet; the next try begins a fresh file
                raise _no_room(f"no new segment could be made: {error}") from error
            self._fail_for_good(f"a new segment could not be made durable: {error}")
            return
        self._seal_current()
        self._descriptor, self.base, self.offset = descriptor, self.position, head
        self._capacity = os.fstat(descriptor).st_size
        self._move_mark()
        self._note_room(is_without_room=False)
        self._prepare()
        self._cool()

    def _give_name(self, path: Path) -> None:
        """Make the next segment part of the journal. From here on there is no way back to the current one."""
        os.ftruncate(self._descriptor, self.offset)
        path.replace(segment.path_of(self._directory, self.position))
        self._disk.sync_directory(self._directory, self._directory_descriptor)

    def _seal_current(self) -> None:
        os.close(self._descriptor)
        if self.base == self.position:
            return  # nothing was in it (a batch was too large for it, or the disk full), and the next one took its name
        sealed = SealedSegment(self.base, self.position, self.offset, self.commit_timestamp_ms)
        with self.sealed_lock:
            self.sealed = [*self.sealed, sealed]
            self.sealed_bytes += sealed.size
        logger.debug("segment sealed", extra={"segment": self.base, "bytes": self.offset})

    def _prepare(self) -> None:
        """Reserve the next segment aside; done inline it would stall every sender."""
        self._prepared = self._aside.submit(self._make_file, self.settings.segment_size_bytes)

    def _cool(self) -> None:
        """Give back the memory of a segment that most readers have passed.

        Without this the page cache grows with the journal, and every new page costs five times the write itself where
        memory is handed out lazily: 0.7 instead of 0.13 us of CPU per event (decision 0003).
        """
        sealed = self.sealed  # another thread may replace the list
        if len(sealed) > CACHED_SEGMENTS:
            path = segment.path_of(self._directory, sealed[-1 - CACHED_SEGMENTS].base)
            self._aside.submit(self._disk.forget_cached, path)

    def _take_prepared(self, size: int) -> Path:
        prepared, self._prepared = self._prepared, None
        if prepared:
            with contextlib.suppress(OSError):  # it failed for lack of room, perhaps long ago: try again now
                path = prepared.result()
                if path.stat().st_size >= size:
                    return path
                path.unlink()
        return self._make_file(size)

    def _make_file(self, size: int) -> Path:
        path = self._directory / "next.tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._disk.allocate(descriptor, size)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return path

    def _move_mark(self) -> None:
        self._mark_file.write(Mark(self.position, self.base, self.offset, self.commit_timestamp_ms, self._journal_id))

    def _count(self, group: DurableGroup) -> None:
        stats = self.stats
        stats.batch_count += group.batch_count
        stats.change_count += group.change_count
        stats.byte_count += group.byte_count
        stats.sync_count += 1

    def _note_room(self, *, is_without_room: bool) -> None:
        if is_without_room and not self._is_without_room:
            logger.warning("journal has no room", extra={"used_bytes": self.used_bytes})
        elif self._is_without_room and not is_without_room:
            logger.info("journal has room again", extra={"used_bytes": self.used_bytes})
        self._is_without_room = is_without_room

    def _fail_for_good(self, what: str) -> None:
        logger.error("journal stopped", extra={"reason": what})
        self.failure = OutcomeUnknown(what, hint="check the disk, then restart the server: recovery finds the true end")
        self.refusal = self.failure
        self.era += 1

    def _refuse(self, entries: list[Entry]) -> None:
        """Fail these and all that waits behind them."""
        rest = list(entries)
        while not self._queue.empty():
            entry = self._queue.get()
            if isinstance(entry, Future):
                self._seals.append(entry)
            elif entry is not None:
                rest.append(entry)
        error = self.failure or Unavailable("the journal is closed", hint="send again when the server is back")
        for wish in self._seals:
            if wish.set_running_or_notify_cancel():
                wish.set_exception(error)
        self._seals = []
        self._tell(rest, None, error)

    def _tell(self, entries: list[Entry], group: DurableGroup | None, error: DoLakeError | None) -> None:
        if not entries:
            return
        if error:
            self.stats.refused_count += len(entries)
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
            entries[0].loop.call_soon_threadsafe(self._settle, entries, group, error)


def begin_segment(
    disk: Disk, descriptor: int, base: Position, journal_id: bytes, checkpoint: bytes, commit_ms: int, now_ms: int
) -> int:
    """Write and sync header and checkpoint; returns the offset where records begin."""
    head = segment.SegmentHeader(base, now_ms, journal_id).encode()
    first = record.encode(
        Kind.CHECKPOINT, checkpoint, b"", position=base, change_count=0, commit_timestamp_ms=commit_ms, synced=0
    )
    disk.write(descriptor, [head, *first], 0)
    disk.sync(descriptor)
    return len(head) + sum(map(len, first))


def _no_room(what: str) -> BufferOverflowError:
    hint = "it empties as changes are published; raise journal.size_max_bytes or free disk space"
    return BufferOverflowError(what, hint=hint)
