"""The un-flushed tail by key: which changes of a row are durable and not yet in its table.

From the journal, which it follows by itself; to lookup.py. It is apart from tail.py, because a statement makes typed
rows of all changes that wait, under a lock, while a look-up wants those of one key, and must wait for nobody. Only
tables that somebody looks rows up in are followed, and only for as long as somebody does. Of a record the row ids that
it touches are kept, beside its bytes; the changes themselves are read when a look-up meets one. An object for each
change would cost more than all look-ups: Python's collector of garbage walks each of them again and again, and whoever
asks waits meanwhile. Promise: for a key all of its changes in a part of the journal, newest first, whole transactions
only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dolake.changes import StreamId
from dolake.errors import Unavailable
from dolake.journal.reader import JournalReader, Place
from dolake.journal.record import Flag, Record
from dolake.pipeline.cut import metadata_of
from dolake.positions import Position
from dolake.query.transactions import Transactions
from dolake.tables.layout import CLEARING, DDL_OPERATIONS
from dolake.tables.names import plain_table_name
from dolake.wire.binary import decode_raw_batch
from dolake.wire.heads import decode_heads
from dolake.wire.messages import RawEvent

Key = tuple[str, str]
"""A row's id, and its source where that is a part of the key."""
_BLOCK_CHANGES = 2_000
_ASKED_S = 60.0
_MET_MAX_BYTES = 4 * 1024 * 1024
_ODD = Flag.TRANSACTION | Flag.PREVIOUS_KEY | Flag.DDL


class KeyChange(NamedTuple):
    """A change that touches a key."""

    position: Position
    event: RawEvent
    record: Record


@dataclass(frozen=True, slots=True)
class _Touched:
    """A record, and the row ids that it touches in each table that is followed, from its `first` change on."""

    record: Record
    first: int
    ids: dict[str, set[str]]

    def changes(self, table: str, row_id: str, events: Sequence[RawEvent]) -> list[KeyChange]:
        """Of this row, in order; `events` are the record's."""
        record = self.record
        names = {name for name in record.tables if plain_table_name(name) == table}
        return [
            KeyChange(record.position + at, event, record)
            for at, event in enumerate(events)
            if at >= self.first and event.table in names and row_id in _ids_of(event)
        ]


@dataclass(slots=True)
class _Block:
    """Some neighbouring records. All of it is let go at once."""

    start: Position
    end: Position
    change_count: int = 0
    byte_count: int = 0
    ids: dict[str, set[str]] = field(default_factory=dict)
    """What all its records touch: a look-up passes by a block that has not its row."""
    records: list[_Touched] = field(default_factory=list)
    clears: dict[str, list[KeyChange]] = field(default_factory=dict)
    """Where tables were emptied."""


class _Met:
    """The events of the records that one look-up has met last: who asks for many keys meets some records often."""

    def __init__(self) -> None:
        self._events: dict[Position, Sequence[RawEvent]] = {}
        self._byte_count = 0

    def events(self, record: Record) -> Sequence[RawEvent]:
        found = self._events.get(record.position)
        if found is None:
            self._byte_count += len(record.payload)
            if self._byte_count > _MET_MAX_BYTES:
                self._events.clear()
                self._byte_count = len(record.payload)
            found = self._events[record.position] = decode_raw_batch(record.payload).events
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """The tail of one table from where its snapshot ends: what `changes` looks at."""

    blocks: tuple[_Block, ...]
    table: str
    start: Position
    end: Position
    held: dict[StreamId, Position]
    _met: _Met = field(default_factory=_Met, repr=False, compare=False)

    def cleared_at(self) -> Position | None:
        """Where the table was last emptied."""
        found = [each for block in self.blocks for each in block.clears.get(self.table, ()) if self._is_shown(each)]
        return found[-1].position if found else None

    def changes(self, key: Key) -> Iterator[KeyChange]:
        """Of this key, newest first; records are read as far as somebody wants to know."""
        row_id, source = key
        for block in reversed(self.blocks):
            if row_id not in block.ids.get(self.table, ()):
                continue
            # Another thread may be adding to the last block: what it adds is behind our end.
            for touched in reversed(tuple(block.records)):
                if row_id in touched.ids.get(self.table, ()) and source in ("", str(touched.record.stream)):
                    found = touched.changes(self.table, row_id, self._met.events(touched.record))
                    yield from filter(self._is_shown, reversed(found))

    def _is_shown(self, change: KeyChange) -> bool:
        if not self.start <= change.position < self.end:
            return False
        return not self.held or change.position < self.held.get(change.record.stream, self.end)


class KeyTail:
    """Follows the journal. Any thread may ask; nobody holds the lock for longer than reading on takes."""

    def __init__(self, journal: Path, *, has_source_in_key: bool, bytes_max: int) -> None:
        self._reader = JournalReader(journal)
        self._has_source_in_key, self.bytes_max = has_source_in_key, bytes_max
        self._lock = threading.Lock()
        self._asked_s: dict[str, float] = {}
        self._blocks: deque[_Block] = deque()
        self._transactions = Transactions()
        self._start: Position = 0
        self._end: Position | None = None
        self._place: Place | None = None

    def close(self) -> None:
        self._reader.close()

    def durable(self) -> Position:
        return self._reader.durable()

    def part(self, table: str, start: Position, end: Position) -> Part | None:
        """The tail of a table between these; None where its beginning is let go already: then look anew."""
        with self._lock:
            if table not in self._asked_s:
                self._begin_at(start)  # what was read so far was read without it
            self._asked_s[table] = time.monotonic()
            if self._end is None:
                self._begin_at(start)
            if start < self._start:
                return None
            self._read(start, end)
            return Part(tuple(self._blocks), table, start, end, dict(self._transactions.held(end)))

    def follow(self, committed: Position, to: Position) -> None:
        """Read on while somebody asks, so that a look-up finds most of it read; else let all of it go."""
        with self._lock:
            now = time.monotonic()
            self._asked_s = {table: at for table, at in self._asked_s.items() if now - at < _ASKED_S}
            if not self._asked_s:
                self._blocks.clear()
                self._end = None
            elif self._end is not None:
                self._read(committed, to)

    @property
    def byte_count(self) -> int:
        return sum(block.byte_count for block in self._blocks)

    def _begin_at(self, position: Position) -> None:
        self._blocks.clear()
        self._transactions = Transactions()
        self._start = self._end = position
        self._place = None

    def _read(self, committed: Position, to: Position) -> None:
        assert self._end is not None
        if self._end < committed:
            self._begin_at(committed)
        self._start = max(self._start, committed)
        while self._blocks and self._blocks[0].end <= self._start:
            self._blocks.popleft()
        self._transactions.forget(self._start)
        if to <= self._end:
            return
        for place, record in self._reader.walk(self._end, to, self._place):
            self._place = place
            self._add(record)
        self._end = max(self._end, to)
        if self.byte_count > self.bytes_max:
            raise Unavailable(
                f"more than {self.bytes_max} bytes of changes wait to be published",
                hint="look at the pipeline in /status, or raise query.tail_max_bytes",
            )

    def _add(self, record: Record) -> None:
        assert self._end is not None
        wanted = {name: plain for name in record.tables if (plain := plain_table_name(name)) in self._asked_s}
        heads = decode_heads(record.payload)
        events = decode_raw_batch(record.payload).events if heads.has_metadata and record.flags & _ODD else None
        self._transactions.follow(record, events or [])
        first = max(self._end - record.position, 0)
        self._end = record.end
        if not wanted:
            return
        if not self._blocks or self._blocks[-1].change_count >= _BLOCK_CHANGES:
            self._blocks.append(_Block(record.position, record.end))
        # Parts that were handed out hold older blocks and this one: what is added is behind their end.
        block = self._blocks[-1]
        ids: dict[str, set[str]] = {}
        for name, plain in wanted.items():
            ids.setdefault(plain, set()).update(heads.row_ids(name, first))
        if events is not None:
            _note_odd(
                block,
                ids,
                wanted,
                [KeyChange(record.position + at, events[at], record) for at in range(first, len(events))],
            )
        block.records.append(_Touched(record, first, ids))
        for plain, touched in ids.items():
            block.ids.setdefault(plain, set()).update(touched)
        block.end = record.end
        block.change_count += record.change_count
        block.byte_count += len(record.payload)


def _note_odd(block: _Block, ids: dict[str, set[str]], wanted: dict[str, str], changes: list[KeyChange]) -> None:
    """A change that moves a row is one of both keys; one that empties the table is one of all."""
    for change in changes:
        table = wanted.get(change.event.table)
        if table is None:
            continue
        ids[table].update(_ids_of(change.event))
        metadata = metadata_of(change.event)
        if metadata is not None and metadata.ddl is not None and DDL_OPERATIONS[metadata.ddl.action] in CLEARING:
            block.clears.setdefault(table, []).append(change)


def _ids_of(event: RawEvent) -> tuple[str, ...]:
    """The rows that a change touches; one of the table itself touches none."""
    metadata = metadata_of(event)
    if metadata is None:
        return (event.row_id,)
    if metadata.ddl is not None:
        return ()
    previous = metadata.previous_row_id
    if previous is None or event.operation != "UPDATE":
        return (event.row_id,)
    return event.row_id, previous
