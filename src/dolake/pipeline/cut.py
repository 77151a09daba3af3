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
from dolake.journal.record import Record
from dolake.positions import Position
from dolake.wire.messages import EventMetadata, RawEvent, decode_raw_batch

logger = logging.getLogger(__name__)

_MARK = b'"transactionId"'
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


@dataclass(slots=True)
class _Open:
    """A transaction whose end was not seen yet."""

    id: str
    start: Position
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
    open: dict[StreamId, _Open] = field(default_factory=dict)

    def add(self, place: Place, record: Record) -> None:
        self.records.append(_Seen(record.position, record.end, place))
        self.event_count += record.change_count
        self.byte_count += len(record.payload)
        self.tables.update(record.tables)
        follow_transactions(self.open, record)

    def held_from(self) -> Position | None:
        return min((each.start for each in self.open.values()), default=None)


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
        walk.add(at, record)
        held = walk.held_from()
        is_full = walk.event_count >= limits.events_max or walk.byte_count >= limits.bytes_max
        if is_full and (held is None or held > start or walk.byte_count >= limits.transaction_bytes_max):
            break
    if not walk.records:
        return Cut(start, to, (), frozenset(), None)  # a gap that a repair left
    end = min(walk.records[-1].end, to)
    is_all = end == to
    held = walk.held_from()
    if held is not None:
        since_ms = min(each.since_ms for each in walk.open.values())
        is_overdue = now_ms - since_ms >= limits.transaction_wait_max_ms and is_all
        if is_overdue or (held <= start and walk.byte_count >= limits.transaction_bytes_max):
            logger.warning("open transaction published", extra={"position": held, "waited_ms": now_ms - since_ms})
        elif held <= start:
            return Cut(start, start, (), frozenset(), place, since_ms)
        else:
            end = min(end, held)
    slices = tuple(_slices(walk.records, start, end, parallel))
    return Cut(start, end, slices, frozenset(walk.tables), _place_of(walk.records, end))


def follow_transactions(open_: dict[StreamId, _Open], record: Record) -> None:
    """Note which transaction of this stream is open after this record."""
    if _MARK not in record.payload:
        open_.pop(record.stream, None)  # its next change without a transaction ends the last one
        return
    for index, event in enumerate(decode_raw_batch(record.payload).events):
        metadata = metadata_of(event)
        id_ = None if metadata is None or metadata.transaction_id is None else str(metadata.transaction_id)
        found = open_.get(record.stream)
        if id_ is None or (metadata and metadata.transaction_end):
            open_.pop(record.stream, None)
        elif found is None or found.id != id_:
            open_[record.stream] = _Open(id_, record.position + index, record.commit_timestamp_ms)


def metadata_of(event: RawEvent) -> EventMetadata | None:
    """What an event's metadata says to DoLake."""
    metadata = event.metadata
    if metadata is msgspec.UNSET:
        return None
    found: EventMetadata | None = None if bytes(metadata) == b"null" else _decode_metadata(metadata)
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
