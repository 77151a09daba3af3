"""The tail of one table: its changes as typed rows, and folded to what they do to the table's state.

From tail.py, which hands over the changes as the journal has them; to live.py and history.py. Changes are read in
chunks, as questions come; a chunk is folded into what was folded before, so that a question costs what is new and not
what waits. Promise: the rows are those that the pipeline will write.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from msgspec.structs import replace as replace_struct
from numpy.typing import NDArray

from dolake.changes import StreamId
from dolake.errors import Unavailable
from dolake.journal.record import Record
from dolake.keyindex.hashes import Hashes
from dolake.pipeline import fold
from dolake.pipeline.files import Shape, no_rows, shape_of
from dolake.pipeline.gather import Gathered, in_order
from dolake.pipeline.quarantine import sort_out
from dolake.pipeline.reading import (
    Contradicted,
    Table,
    Unwritable,
    Wanting,
    first_look,
    has_unchanged,
    read_changes,
    without_before,
)
from dolake.pipeline.unchanged import OldRows
from dolake.positions import Position
from dolake.query.folding import Folding
from dolake.query.guessed_types import GuessedTypes
from dolake.tables.declaration import ANY_TEXT, Declaration, Notes, type_for_both
from dolake.tables.layout import KEY, RESCUED, SOURCE, changes_schema
from dolake.tables.rules import ReadingRules
from dolake.tables.schema import Seen, grow, grown
from dolake.tables.types import Columns, Field, column_name
from dolake.wire.messages import RawEvent

_GROWS_MAX = 8
_NOTHING, _NOTHING_GUESSED = Declaration(), GuessedTypes()
_USUAL = ReadingRules()
_CHUNKS_MAX = 24
_LOOKED_AT_AGAIN_MAX = 4_000
_PREPARED_MIN = 200
_OFTEN_S = 10.0
_COPIED_MAX = 5_000

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
    is_cleared: bool = False
    """The table was emptied: only these rows are left."""


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
    rules: ReadingRules = _USUAL
    name: str = ""
    set_aside: Callable[[Gathered], None] = lambda _: None
    """Takes the changes that cannot be rows."""
    old_rows: OldRows | None = None
    """The table's own rows, for changes that do not send all columns; whoever asks sets it."""
    can_rebuild: Callable[[str], bool] = lambda _column: True
    """Whether a column of the table will get another type for a value that wants one; whoever asks sets it."""
    guessed: GuessedTypes = _NOTHING_GUESSED
    """What the table has noted of types that its source guesses; whoever asks sets it."""
    _retypes: dict[str, str] = field(default_factory=dict)
    """Columns that get these types with the next publish."""
    _kept_types: set[str] = field(default_factory=set)
    """Columns of the table that keep their type."""
    _clears: list[Position] = field(default_factory=list)
    """Where the table was emptied."""
    _pending: Gathered = field(default_factory=Gathered)
    _chunks: list[_Chunk] = field(default_factory=list)
    _base: Columns = ()
    _seen: Seen = field(default_factory=Seen)
    _declared: Declaration = _NOTHING
    _folded: tuple[object, TailState] | None = None
    _folding: Folding | None = None
    _folding_of: object = None
    _asked_s: float = 0.0

    def add(self, events: list[RawEvent], positions: range | list[int], record: Record) -> None:
        self._pending.events += events
        self._pending.positions += positions
        self._pending.records.append(record)
        self._pending.counts.append(len(events))

    def put_between(self, changes: Gathered) -> None:
        """Changes that are found late: others behind them may be here already."""
        if any(chunk.positions[-1] > changes.positions[0] for chunk in self._chunks):
            self._unread()
        self._pending = in_order(self._pending, changes)

    def forget(self, position: Position) -> bool:
        """Let go of what is in the tables; says whether anything is left, or somebody will soon ask again."""
        self._clears = [each for each in self._clears if each >= position]
        kept = [chunk for chunk in self._chunks if chunk.positions[-1] >= position]
        if len(kept) < len(self._chunks):
            self._chunks, self._folding = kept, None
        self._pending = self._pending.since(position)
        return bool(self._chunks or self._pending.events) or self.is_asked_often

    @property
    def change_count(self) -> int:
        """How many changes are in memory."""
        return self._count() + len(self._pending.events)

    @property
    def is_asked_often(self) -> bool:
        return time.monotonic() - self._asked_s < _OFTEN_S

    def prepare(self) -> None:
        """Read what is pending before somebody asks."""
        is_worth_it = len(self._pending.events) >= _PREPARED_MIN and self.is_asked_often
        if is_worth_it and not has_unchanged(self._pending.events):  # these need rows that only a question can find
            with contextlib.suppress(Unavailable):
                self._read(self._base)

    def columns(self, base: Columns) -> Columns:
        """Those of the table, and those that the tail brings."""
        return self._read(base)

    def changes(self, base: Columns, cut: Cut) -> tuple[pa.Table, Columns]:
        """Every change in this part, as rows of the changes table, and the table's columns with those that are new."""
        self._asked_s = time.monotonic()
        columns = self._read(base)
        near = [chunk for chunk in self._chunks if chunk.positions[-1] >= cut.start and chunk.positions[0] < cut.end]
        parts = [chunk.rows.filter(pa.array(_is_shown(chunk, cut))) for chunk in near]
        empty = no_rows(_shape(columns).arrow)
        return pa.concat_tables([empty, *parts]), columns

    def builds_on_rows(self, before: Position) -> bool:
        """Whether a change ahead of this position leaves out columns: its row can only be told at its own time."""
        held = [*(chunk.raw for chunk in self._chunks if chunk.positions[0] < before), self._pending]
        return any(has_unchanged(each.events) for each in held)

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
        asked = (columns, cut, self._count())
        if self._folded is None or self._folded[0] != asked:
            clears = [each for each in self._clears if cut.start <= each < cut.end]
            shown = replace(cut, start=clears[-1] + 1) if clears else cut
            self._folded = asked, replace(self._fold(columns, shown), is_cleared=bool(clears))
        return self._folded[1]

    def _fold(self, columns: Columns, cut: Cut) -> TailState:
        """Go on from what was folded before, where that was a part of this: the usual case between two publishes."""
        asked = (columns, cut.start, cut.held)
        is_whole = all(chunk.positions[-1] < cut.end for chunk in self._chunks)
        can_go_on = self._folding is not None and self._folding_of == asked and is_whole
        folding = self._folding if self._folding is not None and can_go_on else Folding()
        for chunk in self._chunks[folding.chunk_count :]:
            shown = _is_shown(chunk, cut)[chunk.change_of]
            hashes = Hashes(chunk.outcomes.hashes.hi[shown], chunk.outcomes.hashes.lo[shown])
            folding.add(fold.Outcomes(hashes, chunk.outcomes.rows[shown]), chunk.rows.num_rows)
        # What ends in the middle of a chunk cannot be gone on from: the chunk's rest would be missing.
        self._folding, self._folding_of = folding if is_whole else None, asked
        wanted = [*(each.name for each in columns), KEY, RESCUED, SOURCE]
        rows = [
            _chosen(chunk.rows.select(wanted), kept) for chunk, kept in zip(self._chunks, folding.kept, strict=True)
        ]
        empty = no_rows(_shape(columns).arrow).select(wanted)
        whole = pa.concat_tables([empty, *rows])
        if whole.num_rows < _COPIED_MAX:  # DuckDB takes longer for many small pieces than the copy does
            whole = whole.combine_chunks()
        return TailState(folding.touched, whole, columns)

    def _count(self) -> int:
        return sum(len(chunk.positions) for chunk in self._chunks)

    def _read(self, base: Columns) -> Columns:
        """Turn what is pending into rows. A column that the table lacks makes all of the tail be read again."""
        if base != self._base:
            self._base, self._seen, self._declared = base, Seen(), _NOTHING
            self._kept_types.clear()
            self._retypes.clear()
            self._unread()
        has_looked_again = False
        for _ in range(_GROWS_MAX):
            columns = self._columns(base)
            if not self._pending.events:
                return columns
            if self._chunks and has_unchanged(self._pending.events):
                self._unread()  # what is not sent may be in an earlier change
            read = read_changes(
                self._pending,
                Table(
                    columns,
                    _shape(columns),
                    self.has_source_in_key,
                    self.rules,
                    _names(columns) - self._kept_types,
                    self.old_rows,
                    self._notes(columns),
                    self.guessed.at_once,
                ),
            )
            if isinstance(read, Contradicted):
                self._unread()
                for name, type_ in read.types.items():
                    self._retypes[name] = type_for_both(self._retypes.get(name, type_), type_)
                continue
            if isinstance(read, Unwritable):
                self._pending, aside = sort_out(self._pending, read.problems, self.name)
                self.set_aside(aside)
                continue
            if isinstance(read, Wanting):
                self._unread()
                self._seen.merge(read.seen)
                self._declared = self._declared.then(read.declared)
                if not base:  # all values in view, so that a new table gets the types that the pipeline will give it
                    self._seen.merge(first_look(self._pending))
                continue
            if columns != base and not has_looked_again and self._is_worth_another_look(read.rows):
                has_looked_again = True
                self._unread()
                self._seen.merge(first_look(self._pending, base))
                continue
            positions = np.array(self._pending.positions, np.int64)
            self._clears = sorted({*self._clears, *positions[read.clears].tolist()})
            self._chunks.append(_Chunk(self._pending, read.rows, read.outcomes, read.change_of, positions))
            self._pending = Gathered()
            self._tidy()
            return columns
        raise Unavailable(
            "the columns of the newest changes cannot be told yet", hint="ask again after the next publish"
        )

    def _columns(self, base: Columns) -> Columns:
        """As the pipeline will make them."""
        wanted = {column_name(name) for name, part in self._seen.fields.items() if "double" in part.kinds}
        self._kept_types |= {name for name in wanted & _names(base) if not self.can_rebuild(name)}
        growth = grow(
            base,
            self._seen,
            leaves_max=self.rules.leaves_max,
            inference=self.rules.inference,
            declared=(*self._declared.columns, *self.rules.declared),
            rebuildable=_names(base) - self._kept_types,
        )
        return tuple(Field(each.name, self._retypes.get(each.name, each.type)) for each in grown(base, growth))

    def _notes(self, columns: Columns) -> Notes:
        """As the pipeline will have them; a column that has become text stays so."""
        declared = self._declared.without_guesses(each.name for each in self.rules.declared)
        notes = self.guessed.notes.noted(columns, declared, self._base)
        texts = {name for name, type_ in self._retypes.items() if type_ == ANY_TEXT}
        return replace_struct(notes, undecided=notes.undecided - texts)

    def _is_worth_another_look(self, rows: pa.Table) -> bool:
        """A value did not fit a column that the tail alone has: with all values in view it may have another type."""
        count = self._count() + rows.num_rows
        rescued = rows.column(RESCUED)
        return bool(rescued.null_count < len(rescued)) and count <= _LOOKED_AT_AGAIN_MAX

    def _unread(self) -> None:
        for chunk in reversed(self._chunks):
            self._pending = _joined(chunk.raw, self._pending)
        self._chunks.clear()
        self._folded = self._folding = None

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
            self._chunks, self._folding = [whole], None


def _chosen(rows: pa.Table, kept: NDArray[np.bool_]) -> pa.Table:
    """Some rows as a state has them. Mostly these are all of them, and nothing is copied."""
    chosen = rows if kept.all() else rows.filter(pa.array(kept))
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


def _names(columns: Columns) -> frozenset[str]:
    return frozenset(each.name for each in columns if isinstance(each.type, str))


def no_changes(columns: Columns) -> pa.Table:
    """No row of a changes table with these columns."""
    return no_rows(_shape(columns).arrow)


@lru_cache(maxsize=256)
def _shape(columns: Columns) -> Shape:
    return shape_of(json.dumps(changes_schema(columns)))
