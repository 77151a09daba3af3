"""The un-flushed tail: changes that are durable and not yet in the tables, ready to be joined with them.

From the journal, which the query process follows by position; to live.py and history.py, table by table
(table_tail.py). Promise: at a position the tail shows each change of a table once, in journal order, whole transactions
only; a change is here as soon as the journal's mark says that it is durable. Danger: all of it is in memory, so its
size is bounded by a setting.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dolake.changes import OWN_SOURCES, StreamId
from dolake.errors import Unavailable
from dolake.journal.reader import JournalReader, Place
from dolake.journal.record import Record
from dolake.pipeline.gather import Gathered, as_the_lake_may_keep
from dolake.pipeline.quarantine import quarantine_of
from dolake.positions import START, Position
from dolake.query.table_tail import Cut, TableTail
from dolake.query.transactions import Transactions
from dolake.tables.names import plain_table_name
from dolake.tables.rules import LakeRules
from dolake.wire.binary import decode_raw_batch

_USUAL = LakeRules()


class Tail:
    """The tail of the lake, as far as this process has read it. Any thread may ask."""

    def __init__(self, journal: Path, *, has_source_in_key: bool, bytes_max: int, rules: LakeRules = _USUAL) -> None:
        self._reader = JournalReader(journal)
        self._has_source_in_key, self.bytes_max = has_source_in_key, bytes_max
        self._rules = rules
        self._lock = threading.RLock()
        self._start: Position = START
        self._end: Position | None = None
        self._place: Place | None = None
        self._tables: dict[str, TableTail] = {}
        self._transactions = Transactions()
        self._ends: list[Position] = []
        self._times_ms: list[int] = []
        """Of each record, in order: where it ends, and when it became durable."""
        self._sizes: list[int] = []
        self.byte_count = 0
        self._sequences: dict[str, int] = {}
        self._pins: Counter[Position] = Counter()
        """Where views begin that are still being made: what is behind it must stay."""

    def close(self) -> None:
        self._reader.close()

    @property
    def lock(self) -> threading.RLock:
        """Held by who asks several things that belong together."""
        return self._lock

    def use(self, rules: LakeRules) -> None:
        """From now on changes are read by these rules; those that are here are read again."""
        with self._lock:
            if rules != self._rules:
                self._rules = rules
                if self._end is not None:
                    self._begin_at(self._start)

    def rebuild_rows_max(self, table: str) -> int:
        return self._rules.of(table).rebuild_rows_max

    @property
    def start(self) -> Position:
        """From here on every change is in memory."""
        return self._start

    def durable(self) -> Position:
        return self._reader.durable()

    def pin(self, position: Position) -> bool:
        """Keep all from here on until `unpin`; False where it is too late for that."""
        with self._lock:
            if self._end is not None and not self._start <= position:
                return False
            self._pins[position] += 1
            return True

    def unpin(self, position: Position) -> None:
        with self._lock:
            self._pins[position] -= 1
            if not self._pins[position]:
                del self._pins[position]

    def follow(self, committed: Position, to: Position) -> None:
        """Read on up to `to`, and let go of what is in the tables."""
        with self._lock:
            if self._end is None or (self._end < committed and not self._pins):
                self._begin_at(committed)
            self._forget(min((committed, *self._pins)))
            assert self._end is not None
            if to <= self._end:
                return
            for place, record in self._reader.walk(self._end, to, self._place):
                self._place = place
                self._add(record)
                if self.byte_count > self.bytes_max:
                    raise Unavailable(
                        f"more than {self.bytes_max} bytes of changes wait to be published",
                        hint="look at the pipeline in /status, or raise query.tail_max_bytes",
                    )
            self._end = max(self._end, to)

    def reached(self) -> dict[str, int]:
        """The highest sequence of each source, as far as this process has seen it."""
        with self._lock:
            return {source: each for source, each in self._sequences.items() if not source.startswith(OWN_SOURCES)}

    def prepare(self) -> None:
        """Do beforehand what the next question would have to."""
        with self._lock:
            for table in self._tables.values():
                table.prepare()

    def table(self, name: str) -> TableTail | None:
        """By its plain name."""
        return self._tables.get(name)

    def names(self) -> list[str]:
        """Of the tables that have changes here, plainly."""
        with self._lock:
            return list(self._tables)

    def cut(self, start: Position, end: Position) -> Cut:
        """The part from where the tables end, up to here."""
        with self._lock:
            held: Mapping[StreamId, Position] = self._transactions.held(end)
            return Cut(start, end, tuple(sorted(held.items(), key=str)))

    def position_at(self, time_ms: int) -> Position | None:
        """How far the journal was at this time; None where it is older than all of the tail."""
        with self._lock:
            at = bisect_right(self._times_ms, time_ms)
            return self._ends[at - 1] if at else None

    def time_of(self, position: Position) -> int | None:
        """When the last change before this position became durable, as far as the tail knows."""
        with self._lock:
            at = bisect_right(self._ends, position - 1)
            return self._times_ms[min(at, len(self._times_ms) - 1)] if self._times_ms else None

    def _begin_at(self, position: Position) -> None:
        self._start = self._end = position
        self._place = None
        self._tables.clear()
        self._transactions = Transactions()
        self._ends.clear()
        self._times_ms.clear()
        self._sizes.clear()
        self.byte_count = 0

    def _add(self, record: Record) -> None:
        assert self._end is not None
        events = decode_raw_batch(record.payload).events
        self._transactions.follow(record, events)
        first = max(self._end - record.position, 0)
        by_table: dict[str, list[int]] = {}
        for index in range(first, record.change_count):
            by_table.setdefault(plain_table_name(events[index].table), []).append(index)
        for table, indexes in by_table.items():
            if not self._rules.takes(table):
                continue
            rules = self._rules.of(table).reading
            kept = as_the_lake_may_keep([events[index] for index in indexes], rules, record.stream)
            self._of(table).add(kept, [record.position + index for index in indexes], record)
        self._ends.append(record.end)
        self._times_ms.append(record.commit_timestamp_ms)
        self._sizes.append(len(record.payload))
        self.byte_count += len(record.payload)
        self._sequences[str(record.stream)] = events[-1].sequence
        self._end = record.end

    def _of(self, table: str) -> TableTail:
        if table not in self._tables:
            rules = self._rules.of(table).reading
            self._tables[table] = TableTail(self._has_source_in_key, rules, table, partial(self._set_aside, table))
        return self._tables[table]

    def _set_aside(self, table: str, changes: Gathered) -> None:
        """Changes that cannot be rows of a table are rows of its quarantine."""
        self._of(quarantine_of(table)).put_between(changes)

    def _forget(self, committed: Position) -> None:
        if committed <= self._start:
            return
        self._start = committed
        self._tables = {name: each for name, each in self._tables.items() if each.forget(committed)}
        self._transactions.forget(committed)
        gone = bisect_right(self._ends, committed)
        # The last record that is in the tables stays: it says how old they are.
        gone = max(0, gone - 1)
        self.byte_count -= sum(self._sizes[:gone])
        del self._ends[:gone], self._times_ms[:gone], self._sizes[:gone]
