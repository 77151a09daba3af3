"""Cut the journal into micro-batches: where a publish ends, so that it is bounded and splits no transaction.

From publish.py, which asks for the next cut; to the slices that Spark's tasks read. Promise: a cut has at most the
changes and bytes of its limits and one record more, unless one transaction alone is larger; a transaction is inside one
cut, unless it waited or grew beyond its limits, which is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from dolake.changes import StreamId
from dolake.journal.reader import JournalReader, Place
from dolake.journal.record import Flag, Record
from dolake.positions import Position
from dolake.tables.names import plain_table_name
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import Ddl, EventMetadata, RawEvent

logger = logging.getLogger(__name__)

_SLICE_EVENTS_MIN = 20_000
_decode_metadata = msgspec.json.Decoder(EventMetadata).decode


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one publish takes, and how long it waits for the end of a transaction."""

    events_max: int
    bytes_max: int
    transaction_wait_max_ms: int
    transaction_bytes_max: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the journal that one task reads."""

    start: Position
    end: Position
    place: Place


@dataclass(frozen=True, slots=True)
class Cut:
    """What the next publish covers. Empty when all that is there waits for the end of a transaction."""

    start: Position
    end: Position
    slices: tuple[Slice, ...]
    tables: frozenset[str]
    next_place: Place | None
    waiting_since_ms: int | None = None
    ddl: Ddl | None = None
    """What a source has done to its table: then that is all of the cut."""
    called: tuple[str, str] | None = None
    """A table that has another name now than in the journal: its old one and its new one."""


@dataclass(slots=True)
class _Transaction:
    """A transaction as far as it was seen, from its first change to its last."""

    id: str
    start: Position
    last: Position
    since_ms: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record that was walked over, without its payload."""

    start: Position
    end: Position
    place: Place


@dataclass(slots=True)
class _Walk:
    """What was seen on the way through the journal."""

    records: list[_Seen] = field(default_factory=list)
    event_count: int = 0
    byte_count: int = 0
    tables: set[str] = field(default_factory=set)
    transactions: list[_Transaction] = field(default_factory=list)
    open: dict[StreamId, _Transaction] = field(default_factory=dict)
    """The last transaction of each stream, while its end was not seen."""
    has_unchanged: bool = False
    """A change may need what an earlier one has left: one task reads them all."""
    barrier: tuple[Position, str, Ddl] | None = None
    """Where a table itself was changed: what comes before is published first."""

    def add(self, place: Place, record: Record, start: Position) -> None:
        self.records.append(_Seen(record.position, record.end, place))
        self.event_count += record.change_count
        self.byte_count += len(record.payload)
        self.tables.update(map(plain_table_name, record.tables))
        self.has_unchanged |= Flag.UNCHANGED in record.flags
        self._look_for_ddl(record, start)
        self._follow_transactions(record)

    def _look_for_ddl(self, record: Record, start: Position) -> None:
        if Flag.DDL not in record.flags:
            return
        for at, event in enumerate(decode_raw_batch(record.payload).events, record.position):
            metadata = metadata_of(event) if at >= start else None
            if metadata is not None and metadata.ddl is not None:
                self.barrier = at, plain_table_name(event.table), metadata.ddl
                return

    def _follow_transactions(self, record: Record) -> None:
        """Its stream's next change with another transaction, or without one, ends the last one."""
        if Flag.TRANSACTION not in record.flags:
            self.open.pop(record.stream, None)
            return
        for at, event in enumerate(decode_raw_batch(record.payload).events, record.position):
            if self.barrier and at >= self.barrier[0]:
                break
            metadata = metadata_of(event)
            if metadata is None or metadata.transaction_id is None:
                self.open.pop(record.stream, None)
                continue
            found, id_ = self.open.get(record.stream), str(metadata.transaction_id)
            if found is None or found.id != id_:
                found = self.open[record.stream] = _Transaction(id_, at, at, record.commit_timestamp_ms)
                self.transactions.append(found)
            found.last = at
            if metadata.transaction_end:
                del self.open[record.stream]

    def end_before(self, position: Position) -> Position:
        """The last place up to here that is inside no transaction: not an open one, and not one of another stream."""
        end = min((each.start for each in self.open.values()), default=position)
        end = min(end, position)
        while split := [each.start for each in self.transactions if each.start < end <= each.last]:
            end = min(split)
        return end


def next_cut(
    reader: JournalReader,
    start: Position,
    to: Position,
    limits: Limits,
    *,
    place: Place | None = None,
    parallel: int = 1,
    now_ms: int = 0,
) -> Cut:
    """The stretch from `start` that the next publish covers, at most up to `to`."""
    walk = _Walk()
    for at, record in reader.walk(start, to, place):
        walk.add(at, record, start)
        if walk.barrier:
            walk.open.clear()  # whatever was open: the table is another one now
            break
        is_full = walk.event_count >= limits.events_max or walk.byte_count >= limits.bytes_max
        if is_full and (walk.end_before(record.end) > start or walk.byte_count >= limits.transaction_bytes_max):
            break
    if not walk.records:
        return Cut(start, to, (), frozenset(), None)  # a gap that a repair left
    if walk.barrier and walk.barrier[0] == start < to:
        _, table, ddl = walk.barrier
        only = Slice(start, start + 1, walk.records[-1].place)
        return Cut(start, start + 1, (only,), frozenset([table]), walk.records[-1].place, ddl=ddl)
    seen = min(walk.records[-1].end, to, walk.barrier[0] if walk.barrier else to)
    end = walk.end_before(seen)
    if walk.open:
        since_ms = min(each.since_ms for each in walk.open.values())
        is_overdue = now_ms - since_ms >= limits.transaction_wait_max_ms and seen == to
        if is_overdue or (end <= start and walk.byte_count >= limits.transaction_bytes_max):
            logger.warning("open transaction published", extra={"position": end, "waited_ms": now_ms - since_ms})
            end = seen
        elif end <= start:
            return Cut(start, start, (), frozenset(), place, since_ms)
    slices = tuple(_slices(walk.records, start, end, 1 if walk.has_unchanged else parallel))
    return Cut(start, end, slices, frozenset(walk.tables), _place_of(walk.records, end))


def may_say(mark: bytes, payload: bytes) -> bool:
    """Whether this name may stand in the JSON: as it is, or with a letter of it written as an escape."""
    return mark in payload or b"\\u00" in payload


def metadata_of(event: RawEvent) -> EventMetadata | None:
    """What an event's metadata says to DoLake."""
    metadata = event.metadata
    if metadata is msgspec.UNSET:
        return None
    if bytes(metadata) == b"null":
        return None
    try:
        found: EventMetadata = _decode_metadata(metadata)
    except msgspec.ValidationError:  # an earlier release took names for the source's own that mean something now
        return EventMetadata()
    return found


def _slices(records: list[_Seen], start: Position, end: Position, parallel: int) -> Iterator[Slice]:
    """As many slices as can be worked on at the same time, if there is enough for each; cut between records."""
    count = max(1, min(parallel, (end - start) // _SLICE_EVENTS_MIN))
    size = -(-(end - start) // count)
    first, place = start, records[0].place
    for record in records[1:]:
        if record.start - first >= size and record.start < end:
            yield Slice(first, record.start, place)
            first, place = record.start, record.place
    yield Slice(first, end, place)


def _place_of(records: list[_Seen], position: Position) -> Place | None:
    """Where a walk from this position may begin: the record that holds it, or the last one."""
    return next((record.place for record in reversed(records) if record.start <= position), None)
