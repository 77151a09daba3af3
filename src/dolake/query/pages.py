"""A page of what was found in the tail: events in the order of the journal, cut where a page is full.

From changes.py; past_pages.py cuts with the same rules. Conditions that are not plain (plain_conditions.py) are tried
in one statement on the rows of a table, and where that fails each alone, so that only the one that is wrong is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.errors import DoLakeError, InvalidSql, QueryOutOfMemory, QueryTimeout, QueryUnavailable
from dolake.positions import Position
from dolake.query.announcing import Page, PagesWanted, Wish
from dolake.query.engine import Engine
from dolake.query.events import ROW_OPERATIONS, encoded, positions_of
from dolake.query.guard import parse_condition
from dolake.query.plain_conditions import finder, plain_answer
from dolake.query.sqltext import quoted
from dolake.query.watch import Stop
from dolake.tables.layout import SOURCE
from dolake.tables.names import split_table_name

_CONDITION_MAX_MS, _CONDITIONS_MAX_MS = 1_000, 5_000
"""How long one condition may take for the rows of a round, and how long all of them together."""
Mask = NDArray[np.bool_]
Transaction = tuple[str, str] | None


class Key(NamedTuple):
    """Some changes of the tail: of this table, from here on."""

    table: str
    start: Position
    is_whole: bool = False
    """Whether all of them are needed, however many there are."""


class Event(NamedTuple):
    """One change, ready to be sent."""

    position: Position
    body: bytes
    transaction: Transaction


@dataclass
class Slice:
    """The changes of one table from a position on."""

    rows: pa.Table
    table: str
    _events: dict[tuple[str, ...], list[Event]] = field(default_factory=dict)

    def bounded(self, rows_max: int) -> Position:
        """The position ahead of which there are at most so many rows."""
        positions = self.positions
        return int(positions[rows_max]) if len(positions) > rows_max else 2**62

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        return positions_of(self.rows)

    @cached_property
    def operations(self) -> NDArray[np.object_]:
        return np.array(self.rows.column("_operation").to_pylist(), object)

    @cached_property
    def is_of_row(self) -> Mask:
        """Not what was done to the table itself."""
        return np.isin(self.operations, ROW_OPERATIONS)

    def events(self, columns: tuple[str, ...], end: Position) -> list[Event]:
        """Those ahead of this position."""
        known = self._events.get(columns, [])
        count = int(np.searchsorted(self.positions, end))
        if count > len(known):
            known = self._events[columns] = events_of(self.rows.slice(0, count), self.table, columns)
        return known if count == len(known) else known[:count]


def events_of(rows: pa.Table, table: str, columns: Sequence[str]) -> list[Event]:
    """Rows of a changes table, in their order."""
    sources, ids = rows.column(SOURCE).to_pylist(), rows.column("_transaction").to_pylist()
    transactions = (None if id_ is None else (source, id_) for source, id_ in zip(sources, ids, strict=True))
    return list(map(Event, positions_of(rows).tolist(), encoded(rows, table, columns), transactions))


class Matches:
    """Which rows meet which conditions."""

    def __init__(
        self,
        engine: Engine,
        slices: Mapping[Key, Slice],
        conditions: Mapping[Key, Iterable[str]],
        stop: Stop,
    ) -> None:
        self._engine, self._stop = engine, stop
        """The round's end. Conditions have times of their own, so that one that is slow costs nobody else's."""
        self._masks: dict[tuple[Key, str], Mask | DoLakeError] = {}
        for key, wanted in conditions.items():
            others = self._try_plain(key, slices[key], wanted)
            if others:
                self._try(key, slices[key], others)

    def mask(self, key: Key, condition: str) -> Mask:
        found = self._masks[key, condition]
        if isinstance(found, DoLakeError):
            raise found
        return found

    def _try_plain(self, key: Key, slice_: Slice, conditions: Iterable[str]) -> list[str]:
        """Those that are left."""
        find, left = finder(slice_.rows), []
        for condition in conditions:
            self._stop.check()
            met = plain_answer(condition, find)
            if met is None:
                left.append(condition)
            else:
                self._masks[key, condition] = met | ~slice_.is_of_row
        return left

    def _try(self, key: Key, slice_: Slice, conditions: list[str]) -> None:
        self._stop.check()
        try:
            for condition, mask in zip(conditions, self._masks_of(slice_, conditions), strict=True):
                self._masks[key, condition] = mask
        except QueryOutOfMemory as error:
            raise QueryUnavailable("queries have taken all memory", hint="it is tried again") from error
        except DoLakeError as error:
            if len(conditions) == 1:
                self._masks[key, conditions[0]] = _too_slow() if isinstance(error, QueryTimeout) else error
                return
            for each in conditions:
                self._try(key, slice_, [each])

    def _masks_of(self, slice_: Slice, conditions: list[str]) -> list[Mask]:
        sql = condition_sql("rows", slice_.table, [parse_condition(each) for each in conditions])
        rows = slice_.rows.select(_named_in(conditions, slice_.rows.column_names))
        timeout_ms = _CONDITION_MAX_MS if len(conditions) == 1 else _CONDITIONS_MAX_MS
        with self._engine.start(sql, None, {"rows": rows}, timeout_ms) as running:
            found = pa.Table.from_batches(running.batches(), running.schema)
        order = np.argsort(positions_of(found), kind="stable")
        columns = [found.column(1 + at).to_numpy()[order] for at in range(len(conditions))]
        return [each.astype(np.bool_) | ~slice_.is_of_row for each in columns]


def _too_slow() -> InvalidSql:
    return InvalidSql(f"the condition takes longer than {_CONDITION_MAX_MS} ms", hint="write a simpler one")


def _named_in(conditions: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns that conditions can name, and maybe some more: DuckDB takes its time for each that it is given."""
    text = "\n".join(conditions).casefold()
    return [each for each in columns if each == "_position" or each.casefold() in text or '"' in each]


def condition_sql(relation: str, table: str, conditions: Sequence[str]) -> str:
    """For each change whether it meets each condition. A change of the table itself meets all of them."""
    _, alias = split_table_name(table)
    met = ", ".join(f"coalesce({each}, false)::BOOLEAN" for each in conditions)
    return f"SELECT _position, {met} FROM {quoted(relation)} AS {quoted(alias)}"  # noqa: S608


@dataclass
class Found:
    """What the tail has for a round of pages."""

    slices: Mapping[Key, Slice]
    matches: Matches

    def events(self, wish: Wish, start: Position, end: Position) -> list[Event]:
        """All that this wish gets between these positions."""
        keys = [Key(table, start, wish.transactions) for table in wish.tables]
        parts = [self._of(self.slices[key], wish, key, end) for key in keys if key in self.slices]
        if len(parts) == 1:
            return parts[0]
        return sorted((event for part in parts for event in part), key=itemgetter(0))

    def _of(self, slice_: Slice, wish: Wish, key: Key, end: Position) -> list[Event]:
        mask: Mask | None = None
        if wish.where:
            mask = self.matches.mask(key, wish.where)
        if wish.operations:
            allowed = np.isin(slice_.operations, wish.operations)
            mask = allowed if mask is None else mask & allowed
        events = slice_.events(wish.columns, end)
        return events if mask is None else list(compress(events, mask.tolist()))


def page_of(
    events: Sequence[Event], end: Position, wish: Wish, wanted: PagesWanted, *, is_live: bool
) -> tuple[Page, bytes]:
    """As many of these events as a page takes."""
    kept = fitting(events, wanted.rows_max, wanted.bytes_max)
    if kept < len(events) and wish.transactions:
        kept = clean_cut(events, kept)
    if kept < len(events):
        end = events[kept].position
    body = b",".join([event.body for event in events[:kept]])
    return Page(end, kept, len(body), is_live=is_live), body


def fitting(events: Sequence[Event], rows_max: int, bytes_max: int) -> int:
    """How many fit into a page: one at least."""
    count = min(len(events), rows_max)
    sizes = accumulate(len(event.body) + 1 for event in events[:count])
    return max(min(1, len(events)), sum(1 for size in sizes if size <= bytes_max))


def clean_cut(events: Sequence[Event], count: int, lasts: Mapping[Transaction, Position] | None = None) -> int:
    """How many events to take so that no transaction is parted: at most `count`, or as few more as it takes.

    `lasts` says where transactions end that go on behind these events. 0 where all of them are too few.
    """
    ends = {event.transaction: event.position for event in events if event.transaction is not None} | dict(lasts or {})
    open_until, best = -1, 0
    for taken, event in enumerate(events, 1):
        if event.transaction is not None:
            open_until = max(open_until, ends[event.transaction])
        if open_until <= event.position:
            if taken > count and best:
                return best
            best = taken
            if taken >= count:
                return best
    return best
