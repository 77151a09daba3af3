"""Read a slice of the journal and sort its changes by table: what the rest works on, table by table.

From tasks.py, in Spark's workers. Promise: each change of the slice once, in journal order within its table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from dolake.changes import StreamId
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.pipeline.cut import Slice
from dolake.positions import Position
from dolake.tables.names import plain_table_name
from dolake.tables.rules import LakeRules, ReadingRules, without_secrets
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import RawEvent

_USUAL = LakeRules()


@dataclass(slots=True)
class Gathered:
    """The changes of one table: its events, and for each run of events the record that brought them."""

    events: list[RawEvent] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, event: RawEvent, position: Position, record: Record) -> None:
        """One event more, behind all others."""
        self.events.append(event)
        self.positions.append(position)
        if self.records and self.records[-1] is record:
            self.counts[-1] += 1
        else:
            self.records.append(record)
            self.counts.append(1)

    def since(self, position: Position) -> Gathered:
        """Those that stand here or behind."""
        gone = bisect_left(self.positions, position)
        if not gone:
            return self
        first, left = 0, gone
        while first < len(self.counts) and self.counts[first] <= left:
            left -= self.counts[first]
            first += 1
        counts = self.counts[first:]
        if left:
            counts[0] -= left
        return Gathered(self.events[gone:], self.positions[gone:], self.records[first:], counts)

    @property
    def record_of(self) -> NDArray[np.int64]:
        """Which of `records` each event came in."""
        return np.repeat(np.arange(len(self.records)), self.counts)


def gather(
    journal: Path, part: Slice, tables: Container[str] | None = None, rules: LakeRules = _USUAL
) -> dict[str, Gathered]:
    """All changes of this slice by table, or only those of these tables; of each what the lake may keep."""
    found: dict[str, Gathered] = {}
    with JournalReader(journal) as reader:
        for _, record in reader.walk(part.start, part.end, part.place):
            if tables is None or any(plain_table_name(table) in tables for table in record.tables):
                _add(found, record, part, tables)
    if not rules.takes_all:
        found = {table: changes for table, changes in found.items() if rules.takes(table)}
    for table, changes in found.items():
        _leave_out(changes, rules.of(table).reading)
    return found


def in_order(first: Gathered, second: Gathered) -> Gathered:
    """The changes of both, as the journal has them."""
    whole = Gathered()
    both = [
        (event, position, part.records[record])
        for part in (first, second)
        for event, position, record in zip(part.events, part.positions, part.record_of.tolist(), strict=True)
    ]
    for event, position, record in sorted(both, key=itemgetter(1)):
        whole.add(event, position, record)
    return whole


def as_the_lake_may_keep(events: list[RawEvent], rules: ReadingRules, stream: StreamId) -> list[RawEvent]:
    """The events of a stream without what their table leaves out or masks."""
    if not rules.changes_values:
        return events

    def kept(image: Raw | UnsetType) -> Raw | UnsetType:
        return image if image is UNSET else Raw(without_secrets(bytes(image), rules, is_own=stream.is_own))

    return [replace(event, before=kept(event.before), after=kept(event.after)) for event in events]


def _leave_out(changes: Gathered, rules: ReadingRules) -> None:
    if rules.changes_values:
        events = iter(changes.events)
        runs = zip(changes.records, changes.counts, strict=True)
        kept = [as_the_lake_may_keep(list(islice(events, count)), rules, record.stream) for record, count in runs]
        changes.events = list(chain.from_iterable(kept))


def _add(found: dict[str, Gathered], record: Record, part: Slice, tables: Container[str] | None) -> None:
    first = max(part.start - record.position, 0)
    last = min(part.end - record.position, record.change_count)
    events = decode_raw_batch(record.payload).events
    if len(record.tables) == 1:
        positions = range(record.position + first, record.position + last)
        _extend(found, plain_table_name(record.tables[0]), events[first:last], positions, record)
        return
    by_table: dict[str, list[int]] = {}
    for index in range(first, last):
        by_table.setdefault(plain_table_name(events[index].table), []).append(index)
    for table, indexes in by_table.items():
        if tables is None or table in tables:
            chosen = [events[index] for index in indexes]
            _extend(found, table, chosen, [record.position + index for index in indexes], record)


def _extend(
    found: dict[str, Gathered], table: str, events: list[RawEvent], positions: range | list[int], record: Record
) -> None:
    own = found.setdefault(table, Gathered())
    own.events += events
    own.positions += positions
    own.records.append(record)
    own.counts.append(len(events))
