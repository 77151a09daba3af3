"""Pages of changes for subscribers: from any position on, all of the tail or all of the changes tables.

From worker.py, for subscriptions/feeds.py; pages.py makes pages of what is found here. A page of the past is read from
the changes tables, up to where these are published; what comes behind is in the tail, and both have the same rows with
the same types, so that the past joins the present at a position and nothing is missing or told twice. Promise: whole
transactions only, as every question sees them; a condition that fails stops its own wish and no other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dolake.catalog.base import Name
from dolake.errors import DoLakeError, NotFound, QueryStopped, QueryUnavailable
from dolake.positions import Position
from dolake.query.announcing import Checked, CheckWanted, Entry, Page, PagesHead, PagesWanted, Wish, to_bytes
from dolake.query.engine import Engine
from dolake.query.guard import parse_condition
from dolake.query.pages import Found, Key, Matches, Slice, condition_sql, page_of
from dolake.query.past_pages import PastPages, first_position_sql
from dolake.query.reader import Asked, LakeReader, View
from dolake.query.sqltext import literal
from dolake.query.table_tail import Cut, no_changes
from dolake.query.watch import Stop
from dolake.tables.layout import CHANGES_SUFFIX
from dolake.tables.names import split_table_name

_WAIT_S = 5.0
_ROUND_MAX_MS = 30_000
_LOOKED_AT = 4
_ROUND_ROWS, _ROUND_SPAN = 2_000, 100_000
"""What a round takes of one table at most, and how far from the end somebody may be to be part of it."""
_KEPT_S = 10.0
"""How long the tail waits for who reads on from where it was."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A table as reader.py wants it named."""

    namespace: str
    table: str
    hidden: frozenset[str] = frozenset()
    as_of: str | int | None = None
    snapshot_id: int | None = None


class Changes:
    """Reads pages. Any thread may ask."""

    def __init__(self, reader: LakeReader, engine: Engine, now_s: Callable[[], float] = time.monotonic) -> None:
        self._reader, self._engine, self._now_s = reader, engine, now_s
        self._lock = threading.Lock()
        self._kept: Position | None = None
        self._kept_until_s = 0.0

    def check(self, wanted: CheckWanted) -> Checked:
        """Where a wish begins that can be read; raises what is wrong with one that cannot."""
        where = parse_condition(wanted.wish.where) if wanted.wish.where else ""
        stop = Stop(_ROUND_MAX_MS)
        with self._engine.watch.over(stop), self._opened(wanted.wish.tables, stop) as view:
            if where:
                for table in wanted.wish.tables:
                    self._try(view, table, where, stop)
            start = view.position
            if wanted.time_ms is not None:
                start = self._position_at(view, wanted.wish.tables, wanted.time_ms, stop)
            return Checked(start, view.position)

    def pages(self, wanted: PagesWanted) -> bytes:
        """All pages that are asked for, at one moment."""
        tables = dict.fromkeys(table for wish in wanted.wishes for table in wish.tables)
        stop = Stop(_ROUND_MAX_MS)
        with self._engine.watch.over(stop), self._opened(tables, stop) as view:
            slices, ends = self._of_tail(view, wanted)
            if wanted.keeps:
                self._keep(min((end for entry, end in ends.items()), default=view.position))
            matches = Matches(self._engine, slices, _conditions(wanted, ends, slices), stop)
            past = PastPages(self._engine, view, stop)
            answers = [
                self._page(view, wanted, entry, Found(slices, matches), ends.get(entry), past)
                for entry in wanted.entries
            ]
            pages, bodies = [page for page, _ in answers], [body for _, body in answers]
            return to_bytes(PagesHead(view.position, view.moment.position, pages), bodies)

    def let_go(self, *, is_forced: bool = False) -> None:
        """Keep no more for those who have not come back."""
        with self._lock:
            if self._kept is not None and (is_forced or self._now_s() > self._kept_until_s):
                self._reader.tail.unpin(self._kept)
                self._kept = None

    def _keep(self, position: Position) -> None:
        with self._lock:
            former, self._kept = self._kept, position if self._reader.tail.pin(position) else None
            self._kept_until_s = self._now_s() + _KEPT_S
            if former is not None:
                self._reader.tail.unpin(former)

    @contextlib.contextmanager
    def _opened(self, tables: Iterable[str], stop: Stop) -> Iterator[View]:
        with contextlib.closing(
            self._reader.open([_named(table) for table in tables], Asked(timeout_s=_WAIT_S), self._runner(stop))
        ) as view:
            yield view

    def _runner(self, stop: Stop) -> Callable[[str], list[tuple[object, ...]]]:
        def run(sql: str) -> list[tuple[object, ...]]:
            with self._engine.start(sql, stop=stop) as running:
                return [
                    row
                    for batch in running.batches()
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
                ]

        return run

    # --- the tail -----------------------------------------------------------------------------------------------------

    def _of_tail(self, view: View, wanted: PagesWanted) -> tuple[dict[Key, Slice], dict[Entry, Position]]:
        """The rows that the entries need of the tail, and where each of these entries ends."""
        tail, slices, ends = self._reader.tail, dict[Key, Slice](), dict[Entry, Position]()
        with tail.lock:
            for entry in wanted.entries:
                wish = wanted.wishes[entry.wish]
                if entry in ends or not self._is_in_tail(view, wish.tables, entry.start):
                    continue
                end = edge = self._edge(view, entry.start)
                if wanted.keeps and edge - entry.start > _ROUND_SPAN:
                    continue  # so far behind it would keep the others waiting
                for table in wish.tables:
                    key = Key(table, entry.start, wish.transactions)
                    # All of it, wherever this page ends: others who began here may read on.
                    if key not in slices and (rows := _rows(view, table, entry.start, edge)):
                        looked_at = rows if wish.transactions else rows.slice(0, 1 + wanted.rows_max * _LOOKED_AT)
                        slices[key] = Slice(looked_at, table)
                    if key in slices and not wish.transactions:
                        end = min(end, slices[key].bounded(_rows_max(wish, wanted)))
                ends[entry] = end
        return slices, ends

    def _is_in_tail(self, view: View, tables: Iterable[str], start: Position) -> bool:
        """Whether all from here on is in memory, and can be told from there as the tables will."""
        published = view.moment.position
        if start >= published:
            return True
        if start < self._reader.tail.start:
            return False
        tails = [found for table in tables if (found := view.tail_of(_name(table)))]
        return not any(each.builds_on_rows(published) for each in tails)

    def _edge(self, view: View, start: Position) -> Position:
        """How far one can read from here: up to the first transaction that is under way. Its end may never come, so
        after the time that publishing waits for it nobody waits here either."""
        tail, floor = self._reader.tail, max(start, view.moment.position)
        wait_ms, now_ms = self._reader.transaction_wait_max_ms, time.time_ns() // 1_000_000
        held = [begin for _, begin in tail.cut(floor, view.position).held if begin >= floor]
        waited = [begin for begin in held if now_ms - (tail.time_of(begin + 1) or 0) <= wait_ms]
        return max(start, min((view.position, *waited)))

    # --- one page -----------------------------------------------------------------------------------------------------

    def _page(
        self,
        view: View,
        wanted: PagesWanted,
        entry: Entry,
        found: Found,
        end: Position | None,
        past: PastPages,
    ) -> tuple[Page, bytes]:
        wish = wanted.wishes[entry.wish]
        try:
            if end is not None:
                return page_of(found.events(wish, entry.start, end), end, wish, wanted, is_live=True)
            if not wanted.may_read_tables:
                return Page(entry.start), b""
            return past.page(wish, entry.start, wanted)
        except (QueryUnavailable, QueryStopped, NotFound):
            raise  # the whole lot is asked for again
        except DoLakeError as error:
            return Page(entry.start, problem=(error.code, error.message, error.hint)), b""

    # --- before the first page ----------------------------------------------------------------------------------------

    def _try(self, view: View, table: str, where: str, stop: Stop) -> None:
        """Read the condition with the columns that the table has so far; one that is not there yet takes any."""
        with self._reader.tail.lock:
            rows = _rows(view, table, view.position, view.position, is_empty_fine=True)
        if rows is not None:
            sql = condition_sql("rows", table, [where])
            with self._engine.start(sql, None, {"rows": rows}, stop=stop):
                pass

    def _position_at(self, view: View, tables: Iterable[str], time_ms: int, stop: Stop) -> Position:
        """Of the first change at this time or later."""
        found = []
        run = self._runner(stop)
        for table in tables:
            _, changes = view.moment.state_and_changes(_name(table))
            snapshot = changes.snapshot if changes else None
            if changes is None or snapshot is None:
                continue
            with self._reader.tail.lock:
                overlay = self._reader.live.plain(changes, snapshot)
            view.hold(overlay)
            ((position,),) = run(first_position_sql(literal(overlay.path), time_ms))
            found += [int(str(position))] if position is not None else []
        if found:
            return min(found)
        return max(self._reader.tail.position_at(time_ms - 1) or 0, view.moment.position)


def _rows(view: View, table: str, start: Position, end: Position, *, is_empty_fine: bool = False) -> pa.Table | None:
    """Changes of the tail, as rows of the changes table; None where there are none."""
    name = _name(table)
    tail = view.tail_of(name)
    _, changes = view.moment.state_and_changes(name)
    base = changes.columns if changes else ()
    if tail is None:
        return no_changes(base) if is_empty_fine and changes else None
    rows, _ = tail.changes(base, Cut(start, end))
    return rows if rows.num_rows or is_empty_fine else None


def _rows_max(wish: Wish, wanted: PagesWanted) -> int:
    """How many rows are looked at for a page: with a condition many of them may not be in it. In a round the same for
    all, so that those who began at the same place end at the same, and go on sharing what is read."""
    if wanted.keeps:
        return min(wanted.rows_max, _ROUND_ROWS)
    return wanted.rows_max * (_LOOKED_AT if wish.where else 1)


def _conditions(
    wanted: PagesWanted, ends: dict[Entry, Position], slices: dict[Key, Slice]
) -> dict[Key, dict[str, None]]:
    """The conditions that are to be tried on each slice, each once."""
    found: dict[Key, dict[str, None]] = {}
    for entry in ends:
        wish = wanted.wishes[entry.wish]
        for table in wish.tables if wish.where else ():
            key = Key(table, entry.start, wish.transactions)
            if key in slices:
                found.setdefault(key, {})[wish.where] = None
    return found


def _named(table: str) -> _Named:
    name = _name(table)
    return _Named(".".join(name.namespace), name.name)


def _name(table: str) -> Name:
    return Name(*split_table_name(table.removesuffix(CHANGES_SUFFIX)))
