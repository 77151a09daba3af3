"""Read a slice of the journal and sort its changes by table: what the rest works on, table by table.

From tasks.py, in Spark's workers. Promise: each change of the slice once, in journal order within its table.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.pipeline.cut import Slice
from dolake.positions import Position
from dolake.tables.names import plain_table_name
from dolake.wire.messages import RawEvent, decode_raw_batch


@dataclass(slots=True)
class Gathered:
    """The changes of one table: its events, and for each run of events the record that brought them."""

    events: list[RawEvent] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def record_of(self) -> NDArray[np.int64]:
        """Which of `records` each event came in."""
        return np.repeat(np.arange(len(self.records)), self.counts)


def gather(journal: Path, part: Slice, tables: Container[str] | None = None) -> dict[str, Gathered]:
    """All changes of this slice by table, or only those of these tables."""
    found: dict[str, Gathered] = {}
    with JournalReader(journal) as reader:
        for _, record in reader.walk(part.start, part.end, part.place):
            if tables is None or any(plain_table_name(table) in tables for table in record.tables):
                _add(found, record, part, tables)
    return found


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
