"""The journal as a directory of files: base.py's promise on a local disk.

From receiver/endpoint.py on the event loop; to readers in any process through the files and the durable mark. The loop
gives each batch its place (dedup.py says whether it is new) and queues it; writer.py makes it durable and tells.

When writing fails, everything that is queued fails with it, because a batch must not overtake an earlier one of its
stream. `_era` counts those failures: a batch that was given its place before the loop heard of one is refused too, and
so is one that comes before its stream's sender can have heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dolake.changes import Batch, StreamId
from dolake.errors import DoLakeError, MessageValidationError, NotFound, OutcomeUnknown, Unavailable
from dolake.journal import dedup, record, segment
from dolake.journal.base import Appended, Ticket
from dolake.journal.dedup import Span
from dolake.journal.disk import Disk
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record, StreamPoint
from dolake.journal.recovery import Recovered, new_journal_id, recover
from dolake.journal.retention import Consumers, SealedSegment, missing_beginning, removable
from dolake.journal.writer import DurableGroup, Entry, Writer, begin_segment
from dolake.positions import START, Position
from dolake.settings import JournalSettings
from dolake.wire.source_state import check_size

logger = logging.getLogger(__name__)
_FORGET_EVERY = 10_000
STATES_MAX_BYTES = 64 * 1024 * 1024
"""The states of all streams together: every segment begins with a checkpoint that has them all."""


class EmbeddedJournal:
    """See the module. Open it with `open_journal`, which recovers first."""

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
        consumers: Consumers,
        is_deduplicating: bool,
    ) -> None:
        self.recovered = found
        self.is_deduplicating = is_deduplicating
        self.in_flight_bytes = 0
        self.consumers = consumers
        self._directory, self._disk, self._clock_ms = directory, disk, clock_ms
        self._recent = found.recent
        self._admitted: dict[StreamId, StreamPoint] = {}
        self._pending: dict[StreamId, Entry] = {}
        self._unheard: dict[StreamId, tuple[Entry, Entry]] = {}
        """The first and the last batch refused, of streams whose senders are being told at this moment."""
        self._room: asyncio.Future[None] | None = None
        self._era = 0
        self._is_closed = False
        self._until_forget = _FORGET_EVERY
        self._listeners: list[Callable[[DurableGroup], None]] = []
        self._reader = JournalReader(directory)
        self._comparing = ThreadPoolExecutor(1, thread_name_prefix="journal-compare")
        self._writer = Writer(
            directory,
            found,
            descriptor,
            mark_file,
            settings=settings,
            clock_ms=clock_ms,
            disk=disk,
            settle=self._settle,
            free=lambda: self.trim(is_pressed=True),
        )
        self.stats = self._writer.stats

    # --- how far it is -----------------------------------------------------------------------------------------------

    @property
    def durable(self) -> Position:
        """How many changes are durable."""
        return self._writer.position

    @property
    def oldest(self) -> Position:
        """The first position that is still kept."""
        newest = self._writer.base  # looked at first: a segment sealed in this moment is then in the list
        sealed = self._writer.sealed
        return sealed[0].base if sealed else newest

    @property
    def failure(self) -> DoLakeError | None:
        """Why the journal takes nothing until a restart, if that is so."""
        return self._writer.failure

    @property
    def tables(self) -> frozenset[str]:
        """Every table that ever had a change here."""
        return frozenset(self._writer.tables)

    @property
    def stream_count(self) -> int:
        return len(self._writer.streams)

    def points(self) -> dict[StreamId, StreamPoint]:
        """How far each stream is durable."""
        return dict(self._writer.streams)

    @property
    def segment_count(self) -> int:
        return len(self._writer.sealed) + 1

    @property
    def used_bytes(self) -> int:
        return self._writer.used_bytes

    @property
    def size_max_bytes(self) -> int:
        return self._writer.settings.size_max_bytes

    @property
    def utilization(self) -> float:
        return min(1.0, self._writer.used_bytes / self._writer.settings.size_max_bytes)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def head(self) -> tuple[Position, int]:
        """The first position of the newest segment, and how many bytes of it are durable."""
        return self._writer.base, self._writer.offset

    def sealed(self) -> list[SealedSegment]:
        """Those that do not grow any more, in order."""
        return self._writer.sealed

    def seal(self) -> list[SealedSegment]:
        """Seal what is durable now, and return the same as `sealed`. Blocks until the writer has come to it."""
        self._writer.seal().result()
        return self._writer.sealed

    def on_durable(self, listener: Callable[[DurableGroup], None]) -> None:
        """Call this on the event loop after each sync."""
        self._listeners.append(listener)

    def follow_settings(self, settings: JournalSettings, *, is_deduplicating: bool, window_ms: int) -> None:
        """Take over what was changed at run time."""
        self._writer.settings = settings
        self.is_deduplicating = is_deduplicating
        self._recent.window_ms = window_ms

    # --- the six verbs -----------------------------------------------------------------------------------------------

    def point(self, stream: StreamId) -> StreamPoint:
        return self._writer.streams.get(stream, StreamPoint())

    def admitted(self, stream: StreamId) -> StreamPoint:
        """How far this stream is durable or on its way to the disk."""
        return self._admitted.get(stream) or self.point(stream)

    async def append(self, batch: Batch) -> Ticket:
        loop, era = asyncio.get_running_loop(), self._era
        duplicate_count = 0
        while True:
            self._refuse_if_stopped()
            self._refuse_overtaking(batch, era)
            dedup.reset_for_epoch(self.admitted(batch.stream), batch)
            point = self.admitted(batch.stream)
            if not self.is_deduplicating or dedup.is_new(point, batch):
                after = point.after(batch)
                self._check_states(point, after, batch)
                return self._enqueue(batch, after, duplicate_count, loop)
            if pending := self._pending.get(batch.stream):
                # Part of this batch is on its way to the disk: say «duplicate» only when that has arrived.
                await asyncio.wait([pending.done])
                continue
            point = self.point(batch.stream)
            spans = self._recent.since(batch.stream, batch.epoch, self._clock_ms())
            await loop.run_in_executor(self._comparing, self._check_resent, batch, point, spans)
            left = dedup.without_known(batch, point.sequence)
            duplicate_count += batch.change_count - (left.change_count if left else 0)
            if left is None:
                done: asyncio.Future[Appended] = loop.create_future()
                done.set_result(Appended(self.durable, 0, duplicate_count))
                return Ticket(done)
            batch = left

    def read(self, start: Position = START, end: Position | None = None) -> Iterator[Record]:
        return self._reader.read(start, end)

    def register(self, consumer: str, position: Position) -> Position:
        with self._writer.sealed_lock:
            return max(self.consumers.register(consumer, position), self.oldest)

    def release(self, consumer: str, position: Position) -> None:
        with self._writer.sealed_lock:
            self.consumers.release(consumer, position)
        self.trim()
        with self._writer.sealed_lock:
            self.consumers.store()

    def unregister(self, consumer: str) -> None:
        """It does not read any more, and keeps nothing from being removed."""
        with self._writer.sealed_lock:
            self.consumers.remove(consumer)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(None, self._close)

    async def room(self, in_flight_max_bytes: int) -> None:
        """Wait until less than this is on its way to the disk; who waits does not read its socket."""
        while self.in_flight_bytes >= in_flight_max_bytes:
            self._room = self._room or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def settled(self, stream: StreamId) -> StreamPoint:
        """The stream's point once nothing of it is on its way any more."""
        while pending := self._pending.get(stream):
            await asyncio.wait([pending.done])
        return self.point(stream)

    async def let_go(self, publish: Callable[[Position], Awaitable[None]], wait_max_s: float) -> tuple[Position, int]:
        """Remove all that is durable now, as soon as it is published, also what a retry could be compared with.

        `publish` returns when everything before a position is. Returns the first position that is kept after that, and
        how many bytes went; what could not be published in time goes later, as usual.
        """
        async with asyncio.timeout(wait_max_s):
            sealed_to = await asyncio.wrap_future(self._writer.seal())
        with contextlib.suppress(TimeoutError, DoLakeError):
            async with asyncio.timeout(wait_max_s):
                await publish(sealed_to)
        freed = await asyncio.to_thread(self.trim, is_pressed=True)
        return self.oldest, freed

    # --- how they are kept -------------------------------------------------------------------------------------------

    def trim(self, *, is_pressed: bool = False) -> int:
        """Remove segments that nobody needs; returns how many bytes that freed. Any thread may call it."""
        with self._writer.sealed_lock:
            going = removable(
                self._writer.sealed,
                self.consumers.released(),
                keep_since_ms=self._clock_ms() - self._recent.window_ms,
                is_pressed=is_pressed or self.utilization > 0.5,
            )
            for sealed in going:
                segment.path_of(self._directory, sealed.base).unlink(missing_ok=True)
            if going:
                self._writer.drop(going)
                self._disk.sync_directory(self._directory)
        freed = sum(sealed.size for sealed in going)
        if going:
            logger.info("journal segments removed", extra={"segments": len(going), "bytes": freed})
        return freed

    def _check_resent(self, batch: Batch, point: StreamPoint, spans: list[Span]) -> None:
        kept = [span for span in spans if span.segment >= self.oldest]
        if not batch.change_count:
            self._check_resent_state(batch, point, kept)
            return
        touched = [span for span in kept if span.sequence_last >= batch.sequence_first]
        if not touched:
            return  # older than the window: its sequence alone says that it is durable
        try:
            dedup.check_same(batch, point.sequence, kept[0].before, self._records_of(touched, with_states=False))
        except NotFound:
            pass  # its segment was removed this very moment
        except OSError as error:
            raise _not_compared(error) from error

    def _check_resent_state(self, batch: Batch, point: StreamPoint, spans: list[Span]) -> None:
        try:
            dedup.check_same_state(batch, point, self._records_of(spans, with_states=True))
        except NotFound:
            dedup.check_same_state(batch, point, ())
        except OSError as error:
            raise _not_compared(error) from error

    def _records_of(self, spans: list[Span], *, with_states: bool) -> Iterator[Record]:
        for span in spans:
            yield from self._reader.read_at(span.segment, span.offset, span.end, with_states=with_states)

    def _check_states(self, point: StreamPoint, after: StreamPoint, batch: Batch) -> None:
        """Refuse a patch that makes a state, or all of them together, larger than a checkpoint should carry."""
        if not batch.source_state:
            return
        state = after.state
        check_size(state)
        if len(state) <= len(point.state):
            return
        others = sum(len(each.state) for stream, each in self._writer.streams.copy().items() if stream != batch.stream)
        if others + len(state) > STATES_MAX_BYTES:
            raise MessageValidationError(
                f"the states of all streams together would have {others + len(state)} bytes",
                path="$.sourceState",
                hint=f"one lake keeps at most {STATES_MAX_BYTES} bytes of them; remove keys with null",
            )

    def _enqueue(
        self, batch: Batch, after: StreamPoint, duplicate_count: int, loop: asyncio.AbstractEventLoop
    ) -> Ticket:
        meta = record.meta_of(batch)
        size = record.size_of(meta, batch.payload)
        form, flags = record.form_of(batch.payload), record.flags_of(batch.payload)
        entry = Entry(batch, meta, size, duplicate_count, self._era, loop, loop.create_future(), form, flags)
        self._admitted[batch.stream] = after
        self._pending[batch.stream] = entry
        self.in_flight_bytes += size
        self._writer.submit(entry)
        return Ticket(entry.done)

    def _settle(self, entries: list[Entry], group: DurableGroup | None, error: DoLakeError | None) -> None:
        """On the loop: a group is durable, or was refused."""
        if error and entries[0].era == self._era:
            # The first news of this failure. Entries of an older era come after it and must not undo newer places.
            self._era = self._writer.era
            self._admitted.clear()
        for entry in entries:
            self.in_flight_bytes -= entry.size
            stream = entry.batch.stream
            if self._pending.get(stream) is entry:
                del self._pending[stream]
                if not error:
                    self._admitted.pop(stream, None)
            if error:
                _fail(entry.done, error)
                first, _ = self._unheard.get(stream, (entry, entry))
                self._unheard[stream] = first, entry
                continue
            self._remember(entry)
            if not entry.done.cancelled():
                batch = entry.batch
                has_state = bool(batch.source_state)
                entry.done.set_result(Appended(entry.end, batch.change_count, entry.duplicate_count, has_state))
        if error:  # this runs after the callbacks of all who wait, which were queued just now
            entries[0].loop.call_soon(self._forget_unheard, entries)
        if self._room:
            self._room.set_result(None)
            self._room = None
        if group:
            for listener in self._listeners:
                listener(group)

    def _remember(self, entry: Entry) -> None:
        batch = entry.batch
        self._recent.add(
            batch.stream,
            batch.epoch,
            max(entry.before, batch.sequence_last),
            before=entry.before,
            segment=entry.segment,
            offset=entry.offset,
            end=entry.end,
            now_ms=self._writer.commit_timestamp_ms,
        )
        self._until_forget -= 1
        if not self._until_forget:
            self._until_forget = _FORGET_EVERY
            self._recent.drop_expired(self._writer.commit_timestamp_ms)

    def _close(self) -> None:
        self._writer.close()
        self._comparing.shutdown()
        self._reader.close()

    def _refuse_overtaking(self, batch: Batch, era: int) -> None:
        """A batch must not be written before an earlier one of its stream that was refused and will be sent again."""
        pending, unheard = self._pending.get(batch.stream), self._unheard.get(batch.stream)
        is_behind_refused = (
            era != self._era
            or (pending is not None and pending.era != self._era)
            or (unheard is not None and _is_behind(batch, unheard[0].batch))
        )
        if is_behind_refused:
            raise self._writer.refusal

    def _forget_unheard(self, entries: list[Entry]) -> None:
        for entry in entries:
            if (unheard := self._unheard.get(entry.batch.stream)) and unheard[1] is entry:
                del self._unheard[entry.batch.stream]

    def _refuse_if_stopped(self) -> None:
        if failure := self._writer.failure:
            raise OutcomeUnknown(failure.message, hint=failure.hint)
        if self._is_closed:
            raise Unavailable("the journal is closed", hint="send again when the server is back")


def _is_behind(batch: Batch, refused: Batch) -> bool:
    """Whether this is no repetition of the refused batch, but one that was to follow it."""
    if batch.change_count and refused.change_count:
        return batch.sequence_first > refused.sequence_first
    return batch.number > refused.number


def _not_compared(error: OSError) -> Unavailable:
    what = f"the journal could not be read to compare a resent batch: {error.strerror}"
    return Unavailable(what, hint="send it again")


def _fail(done: asyncio.Future[Appended], error: DoLakeError) -> None:
    if not done.cancelled():
        done.set_exception(error)
        done.exception()  # nobody may wait for it any more, and that is no leak


def open_journal(
    directory: Path,
    settings: JournalSettings,
    *,
    window_ms: int,
    is_deduplicating: bool = True,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    disk: Disk | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> EmbeddedJournal:
    """Recover what is there, or begin a new journal. Blocks; the server calls it in a thread."""
    disk = disk or Disk()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        consumers = Consumers(directory, disk)
        mark_file = MarkFile(directory, writable=True)
        try:
            found = recover(directory, disk, mark_file, window_ms=window_ms, on_progress=on_progress)
            if found is None:
                found = Recovered(new_journal_id(), dedup.RecentChanges(window_ms))
                found.offset = _create_first(directory, disk, found.journal_id, settings.segment_size_bytes, clock_ms())
            descriptor = os.open(segment.path_of(directory, found.base), os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            mark_file.close()
            raise
    except OSError as error:
        hint = "check the disk and its room, then start again"
        raise Unavailable(f"the journal in {directory} cannot be opened: {error}", hint=hint) from error
    with contextlib.suppress(OSError):  # a full disk is met when there is something to write
        disk.allocate(descriptor, max(settings.segment_size_bytes, found.offset))
    if problem := missing_beginning(found.sealed[0].base if found.sealed else found.base, consumers.released()):
        logger.error("journal begins too late", extra={"problem": problem})
    mark_file.write(Mark(found.position, found.base, found.offset, found.commit_timestamp_ms, found.journal_id))
    return EmbeddedJournal(
        directory,
        found,
        descriptor,
        mark_file,
        settings=settings,
        clock_ms=clock_ms,
        disk=disk,
        consumers=consumers,
        is_deduplicating=is_deduplicating,
    )


def _create_first(directory: Path, disk: Disk, journal_id: bytes, size: int, now_ms: int) -> int:
    path = directory / "next.tmp"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.allocate(descriptor, size)
        checkpoint = record.encode_checkpoint({}, set())
        offset = begin_segment(disk, descriptor, START, journal_id, checkpoint, 0, now_ms)
    finally:
        os.close(descriptor)
    path.replace(segment.path_of(directory, START))
    disk.sync_directory(directory)
    return offset
