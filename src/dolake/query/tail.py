"""The un-flushed tail: changes that are durable and not yet in the tables, ready to be joined with them.

From the journal, which the query process follows by position; to live.py and history.py. Promise: at a position the
tail shows each change of a table once, in journal order, whole transactions only; a change is here as soon as the
journal's mark says that it is durable. Danger: all of it is in memory, so its size is bounded by a setting.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.changes import StreamId
from dolake.errors import Unavailable
from dolake.journal.reader import JournalReader, Place
from dolake.journal.record import Record
from dolake.keyindex.hashes import Hashes, no_hashes
from dolake.pipeline import fold
from dolake.pipeline.files import Shape, shape_of
from dolake.pipeline.gather import Gathered
from dolake.pipeline.tasks import Wanting, first_look, read_changes, without_before
from dolake.positions import START, Position
from dolake.query.transactions import Transactions
from dolake.tables.layout import KEY, RESCUED, SOURCE, changes_schema
from dolake.tables.names import plain_table_name
from dolake.tables.schema import Columns, Seen, grow, with_additions
from dolake.wire.messages import RawEvent, decode_raw_batch

_GROWS_MAX = 5
_CHUNKS_MAX = 24
_LOOKED_AT_AGAIN_MAX = 4_000
_PREPARED_MIN = 200
_OFTEN_S = 10.0

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of the tail an answer shows: from where the tables end up to a position, but for what is held."""

    start: Position
    end: Position
    held: tuple[tuple[StreamId, Position], ...] = ()


@dataclass(frozen=True, slots=True)
class TailState:
    """What the tail does to a table's state: the keys that it touches, and the rows that they have now."""

    touched: Hashes
    rows: pa.Table
    columns: Columns


@dataclass(slots=True)
class _Chunk:
    """Some changes of a table, read."""

    raw: Gathered
    rows: pa.Table
    outcomes: fold.Outcomes
    change_of: Ints
    positions: Ints


@dataclass(slots=True)
class TableTail:
    """The tail of one table. The lock of the tail guards it."""

    has_source_in_key: bool
    _pending: Gathered = field(default_factory=Gathered)
    _chunks: list[_Chunk] = field(default_factory=list)
    _base: Columns = ()
    _seen: Seen = field(default_factory=Seen)
    _folded: tuple[object, TailState] | None = None
    _asked_s: float = 0.0

    def add(self, events: list[RawEvent], positions: range | list[int], record: Record) -> None:
        self._pending.events += events
        self._pending.positions += positions
        self._pending.records.append(record)
        self._pending.counts.append(len(events))

    def forget(self, position: Position) -> bool:
        """Let go of what is in the tables; says whether anything is left, or somebody will soon ask again."""
        self._chunks = [chunk for chunk in self._chunks if chunk.positions[-1] >= position]
        if self._pending.positions and self._pending.positions[-1] < position:
            self._pending = Gathered()
        return bool(self._chunks or self._pending.events) or self.is_asked_often

    @property
    def is_asked_often(self) -> bool:
        return time.monotonic() - self._asked_s < _OFTEN_S

    def prepare(self) -> None:
        """Read what is pending before somebody asks."""
        if len(self._pending.events) >= _PREPARED_MIN and self.is_asked_often:
            with contextlib.suppress(Unavailable):
                self._read(self._base)

    def changes(self, base: Columns, cut: Cut) -> tuple[pa.Table, Columns]:
        """Every change in this part, as rows of the changes table, and the table's columns with those that are new."""
        self._asked_s = time.monotonic()
        columns = self._read(base)
        parts = [chunk.rows.filter(pa.array(_is_shown(chunk, cut))) for chunk in self._chunks]
        empty = _shape(columns).arrow.empty_table()
        return pa.concat_tables([empty, *parts]), columns

    def first_ms(self) -> int | None:
        """When the first of its changes became durable."""
        first = self._chunks[0].raw if self._chunks else self._pending
        return first.records[0].commit_timestamp_ms if first.records else None

    def keys(self, base: Columns, cut: Cut) -> pa.Table:
        """The keys that this part touches, each once, with their sources."""
        rows, _ = self.changes(base, cut)
        keys = [*rows.column(KEY).to_pylist(), *rows.column("_previous_key").to_pylist()]
        sources = 2 * rows.column(SOURCE).to_pylist()
        if not self.has_source_in_key:
            sources = [""] * len(keys)
        found = list({pair: None for pair in zip(keys, sources, strict=True) if pair[0] is not None})
        return pa.table({"key": [key for key, _ in found], "source": [source for _, source in found]})

    def state(self, base: Columns, cut: Cut) -> TailState:
        """What this part does to the state, folded to the last change per key."""
        self._asked_s = time.monotonic()
        columns = self._read(base)
        asked = (columns, cut, sum(len(chunk.positions) for chunk in self._chunks))
        if self._folded is None or self._folded[0] != asked:
            self._folded = asked, self._fold(columns, cut)
        return self._folded[1]

    def _fold(self, columns: Columns, cut: Cut) -> TailState:
        wanted = [*(each.name for each in columns), KEY, RESCUED, SOURCE]
        empty = _shape(columns).arrow.empty_table().select(wanted)
        if not self._chunks:
            return TailState(no_hashes(), empty, columns)
        parts = []
        for chunk in self._chunks:
            shown = _is_shown(chunk, cut)[chunk.change_of]
            hashes = Hashes(chunk.outcomes.hashes.hi[shown], chunk.outcomes.hashes.lo[shown])
            parts.append(fold.Outcomes(hashes, chunk.outcomes.rows[shown]))
        folded = fold.fold(fold.join(parts))
        rows = [
            _taken(chunk.rows.select(wanted), fold.rows_of_part(folded, number).rows)
            for number, chunk in enumerate(self._chunks)
        ]
        return TailState(folded.hashes, pa.concat_tables([empty, *rows]), columns)

    def _read(self, base: Columns) -> Columns:
        """Turn what is pending into rows. A column that the table lacks makes all of the tail be read again."""
        if base != self._base:
            self._base, self._seen = base, Seen()
            self._unread()
        for _ in range(_GROWS_MAX):
            columns = with_additions(base, grow(base, self._seen))
            if not self._pending.events:
                return columns
            if not base and not columns:
                self._seen.merge(first_look(self._pending))
                columns = with_additions(base, grow(base, self._seen))
            read = read_changes(self._pending, columns, _shape(columns), has_source_in_key=self.has_source_in_key)
            if isinstance(read, Wanting):
                self._seen.merge(read.seen)
                self._unread()
                continue
            if columns != base and self._is_worth_another_look(read.rows):
                self._unread()
                self._seen = first_look(self._pending, base)
                columns = with_additions(base, grow(base, self._seen))
                again = read_changes(self._pending, columns, _shape(columns), has_source_in_key=self.has_source_in_key)
                if isinstance(again, Wanting):
                    continue
                read = again
            positions = np.array(self._pending.positions, np.int64)
            self._chunks.append(_Chunk(self._pending, read.rows, read.outcomes, read.change_of, positions))
            self._pending = Gathered()
            self._tidy()
            return columns
        raise Unavailable(
            "the columns of the newest changes cannot be told yet", hint="ask again after the next publish"
        )

    def _is_worth_another_look(self, rows: pa.Table) -> bool:
        """A value did not fit a column that the tail alone has: with all values in view it may have another type."""
        count = sum(len(chunk.positions) for chunk in self._chunks) + rows.num_rows
        rescued = rows.column(RESCUED)
        return bool(rescued.null_count < len(rescued)) and count <= _LOOKED_AT_AGAIN_MAX

    def _unread(self) -> None:
        for chunk in reversed(self._chunks):
            self._pending = _joined(chunk.raw, self._pending)
        self._chunks.clear()
        self._folded = None

    def _tidy(self) -> None:
        """Many small chunks cost time at each answer, so they become one."""
        if len(self._chunks) > _CHUNKS_MAX:
            firsts = np.cumsum([0, *(len(chunk.positions) for chunk in self._chunks[:-1])])
            pairs = list(zip(self._chunks, firsts, strict=True))
            rows = [
                np.where(chunk.outcomes.rows == fold.GONE, fold.GONE, chunk.outcomes.rows + first)
                for chunk, first in pairs
            ]
            hashes = Hashes(
                np.concatenate([chunk.outcomes.hashes.hi for chunk in self._chunks]),
                np.concatenate([chunk.outcomes.hashes.lo for chunk in self._chunks]),
            )
            raw = Gathered()
            for chunk in self._chunks:
                raw = _joined(raw, chunk.raw)
            whole = _Chunk(
                raw,
                pa.concat_tables([chunk.rows for chunk in self._chunks]).combine_chunks(),
                fold.Outcomes(hashes, np.concatenate(rows)),
                np.concatenate([chunk.change_of + first for chunk, first in pairs]),
                np.concatenate([chunk.positions for chunk in self._chunks]),
            )
            self._chunks = [whole]


def _taken(rows: pa.Table, numbers: Ints) -> pa.Table:
    """Some rows as a state has them. Mostly these are all of them, and nothing is copied."""
    chosen = rows if len(numbers) == rows.num_rows else rows.take(pa.array(numbers))
    rescued = chosen.column(RESCUED)
    if rescued.null_count < len(rescued):
        chosen = chosen.set_column(chosen.schema.get_field_index(RESCUED), RESCUED, without_before(rescued))
    return chosen


def _joined(first: Gathered, second: Gathered) -> Gathered:
    return Gathered(
        first.events + second.events,
        first.positions + second.positions,
        first.records + second.records,
        first.counts + second.counts,
    )


def _is_shown(chunk: _Chunk, cut: Cut) -> NDArray[np.bool_]:
    shown: NDArray[np.bool_] = (chunk.positions >= cut.start) & (chunk.positions < cut.end)
    if cut.held:
        held = dict(cut.held)
        nowhere = np.iinfo(np.int64).max
        until = np.array([held.get(record.stream, nowhere) for record in chunk.raw.records], np.int64)
        shown &= chunk.positions < until[chunk.raw.record_of]
    return shown


@lru_cache(maxsize=256)
def _shape(columns: Columns) -> Shape:
    return shape_of(json.dumps(changes_schema(columns)))


class Tail:
    """The tail of the lake, as far as this process has read it. Any thread may ask."""

    def __init__(self, journal: Path, *, has_source_in_key: bool, bytes_max: int) -> None:
        self._reader = JournalReader(journal)
        self._has_source_in_key, self.bytes_max = has_source_in_key, bytes_max
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

    def close(self) -> None:
        self._reader.close()

    @property
    def lock(self) -> threading.RLock:
        """Held by who asks several things that belong together."""
        return self._lock

    def durable(self) -> Position:
        return self._reader.durable()

    def follow(self, committed: Position, to: Position) -> None:
        """Read on up to `to`, and let go of what is in the tables."""
        with self._lock:
            if self._end is None or self._end < committed:
                self._begin_at(committed)
            self._forget(committed)
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
            return {source: each for source, each in self._sequences.items() if not source.startswith("dolake.")}

    def prepare(self) -> None:
        """Do beforehand what the next question would have to."""
        with self._lock:
            for table in self._tables.values():
                table.prepare()

    def table(self, name: str) -> TableTail | None:
        """By its plain name."""
        return self._tables.get(name)

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
            own = self._tables.setdefault(table, TableTail(self._has_source_in_key))
            own.add([events[index] for index in indexes], [record.position + index for index in indexes], record)
        self._ends.append(record.end)
        self._times_ms.append(record.commit_timestamp_ms)
        self._sizes.append(len(record.payload))
        self.byte_count += len(record.payload)
        self._sequences[str(record.stream)] = events[-1].sequence
        self._end = record.end

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
