"""Small journals for tests: batches as the receiver hands them over, what a crash leaves, and a disk that waits."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dolake.changes import Batch, StreamId
from dolake.journal import segment
from dolake.journal.base import Appended, Journal
from dolake.journal.disk import Disk
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Record
from dolake.positions import START
from dolake.settings import JournalSettings
from dolake.wire.binary import decode_raw_batch
from tests.support import speaker
from tests.support.clock import Clock
from tests.support.disk import FailingDisk

SMALL = JournalSettings(size_max_bytes=1 << 20, segment_size_bytes=65536, group_size_max_bytes=65536)
WINDOW_MS = 60_000
SOURCE = StreamId("source-1")

Seen = tuple[str, int, int, str]
"""A change as a test compares it: stream, epoch, sequence, value."""


def batch_of(
    first: int,
    last: int,
    *,
    stream: StreamId = SOURCE,
    epoch: int = 0,
    number: int = 1,
    table: str = "users",
    value: str = "",
    pad: int = 0,
) -> Batch:
    """The changes `first` to `last` of a stream, `pad` bytes larger than they must be."""
    return batch_with(
        range(first, last + 1), stream=stream, epoch=epoch, number=number, table=table, value=value, pad=pad
    )


def batch_with(
    sequences: Sequence[int],
    *,
    stream: StreamId = SOURCE,
    epoch: int = 0,
    number: int = 1,
    table: str = "users",
    value: str = "",
    pad: int = 0,
) -> Batch:
    """The same for sequences that have holes between them."""
    share = pad // len(sequences)
    events = [
        speaker.event(at, table=table, after={"id": at, "value": value or f"value-{at}", "pad": "x" * share})
        for at in sequences
    ]
    message = speaker.batch(number, events, source=stream.source, sourceShardName=stream.shard)
    return Batch(
        stream=stream,
        epoch=epoch,
        number=number,
        sequence_first=sequences[0],
        sequence_last=sequences[-1],
        change_count=len(sequences),
        tables=(table,),
        payload=json.dumps(message).encode(),
    )


def state_of(number: int, patch: dict[str, object], *, stream: StreamId = SOURCE, epoch: int = 0) -> Batch:
    """A batch without changes, with a merge patch onto the source's state."""
    return Batch(stream, epoch, number, 0, 0, 0, (), b"", json.dumps(patch).encode())


def seen_in(records: Iterable[Record]) -> list[Seen]:
    """Every change of these records, in order; checks that each record says the truth about its payload."""
    seen = []
    for record in records:
        events = decode_raw_batch(record.payload).events
        assert len(events) == record.change_count
        assert (events[0].sequence, events[-1].sequence) == (record.sequence_first, record.sequence_last)
        assert {event.table for event in events} == set(record.tables)
        for event in events:
            assert isinstance(event.after, bytes | bytearray | memoryview) or event.after
            seen.append((str(record.stream), record.epoch, event.sequence, json.loads(bytes(event.after))["value"]))
    return seen


def sequences_in(records: Iterable[Record]) -> list[int]:
    """The sequences of all changes, where a test has one stream."""
    return [sequence for _, _, sequence, _ in seen_in(records)]


async def keep(journal: Journal, *batches: Batch) -> list[Appended]:
    """Append one after the other, each of them durable before the next."""
    return [await (await journal.append(batch)).wait() for batch in batches]


async def fill(journal: EmbeddedJournal, segment_count: int, first: int = 1) -> int:
    """Append batches of one change until the journal has this many segments more; the last sequence."""
    wanted = journal.segment_count + segment_count
    while journal.segment_count < wanted:
        await keep(journal, batch_of(first, first, number=first, pad=20_000))
        first += 1
    return first - 1


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    settings: JournalSettings = SMALL,
    window_ms: int = WINDOW_MS,
    clock: Callable[[], int] | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[EmbeddedJournal]:
    """A journal in this directory, closed at the end."""
    journal = open_journal(directory, settings, window_ms=window_ms, clock_ms=clock or Clock(), disk=disk)
    try:
        yield journal
    finally:
        await journal.close()


async def write_journal(directory: Path, segment_count: int = 1) -> list[int]:
    """A closed journal with this many segments, one change a batch; the sequences in it."""
    async with opened(directory) as journal:
        last = await fill(journal, segment_count - 1)
        await keep(journal, *[batch_of(at, at, number=at) for at in range(last + 1, last + 4)])
        return sequences_in(journal.read(START))


async def read_again(directory: Path) -> list[int]:
    """The sequences that a journal has when it is opened once more."""
    async with opened(directory) as journal:
        return sequences_in(journal.read(START))


def copy_files(directory: Path, to: Path) -> Path:
    """The files as kill -9 would leave them at this moment, in another directory.

    The mark comes first: a writer that goes on while we copy may then be ahead of its mark, as after a power failure,
    but never behind it.
    """
    to.mkdir()
    shutil.copyfile(directory / MARK_FILE, to / MARK_FILE)
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix != ".tmp" and path.name != MARK_FILE:
            shutil.copyfile(path, to / path.name)
    return to


def mark_of(directory: Path) -> Mark:
    """The durable mark as any process sees it."""
    file = MarkFile(directory, writable=False)
    try:
        mark = file.read()
    finally:
        file.close()
    assert mark is not None
    return mark


def segments_of(directory: Path) -> list[Path]:
    return [segment.path_of(directory, base) for base in segment.list_bases(directory)]


def flip(path: Path, at: int) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


class GatedDisk(FailingDisk):
    """A disk on which a test decides when a sync goes on; `arrived_count` of them have begun while it was held."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived_count = 0
        self._is_held = False
        self._permits = 0
        self._gate = threading.Condition()

    def hold(self) -> None:
        """Every sync waits from now on."""
        with self._gate:
            self._is_held, self._permits, self.arrived_count = True, 0, 0

    def let_one_go(self) -> None:
        with self._gate:
            self._permits += 1
            self._gate.notify_all()

    def let_go(self) -> None:
        with self._gate:
            self._is_held = False
            self._gate.notify_all()

    def sync(self, descriptor: int) -> None:
        with self._gate:
            if self._is_held:
                self.arrived_count += 1
                is_free = self._gate.wait_for(lambda: not self._is_held or self._permits > 0, timeout=20)
                assert is_free, "a test held a sync and forgot it"
                self._permits -= self._is_held
        super().sync(descriptor)
