"""Pages of the past: read from the changes tables, a window of positions at a time.

From changes.py, for entries that are older than the tail. Rows are looked for in windows that grow while little is
found, so that a page costs what it holds and not what the history holds. Promise: in the order of the journal, each
change once; with whole transactions where the wish says so.
"""

from __future__ import annotations

import time
from operator import itemgetter

import pyarrow as pa

from dolake.catalog.base import Name
from dolake.positions import Position
from dolake.query.announcing import Page, PagesWanted, Wish
from dolake.query.engine import Engine
from dolake.query.events import ROW_OPERATIONS
from dolake.query.guard import parse_condition
from dolake.query.history import own_columns_of
from dolake.query.pages import Event, Transaction, clean_cut, events_of, fitting
from dolake.query.reader import View
from dolake.query.sqltext import literal, moment, names, quoted
from dolake.query.watch import Stop
from dolake.tables.layout import BEFORE, FORGOTTEN
from dolake.tables.names import split_table_name

_WINDOW, _GROWS = 50_000, 4
_LOOK_MAX_S = 0.5
"""A page that has found nothing for so long says how far it came."""
_TRANSACTION_ROWS_MAX = 1_000_000


class PastPages:
    """Reads them for one round."""

    def __init__(self, engine: Engine, view: View, stop: Stop) -> None:
        self._engine, self._view, self._stop = engine, view, stop
        self._paths: dict[str, tuple[str, list[str]] | None] = {}

    def page(self, wish: Wish, start: Position, wanted: PagesWanted) -> tuple[Page, bytes]:
        rows_max = wanted.rows_max
        while True:
            events, end = self._events(wish, start, rows_max)
            kept = fitting(events, rows_max, wanted.bytes_max)
            if not wish.transactions or (end >= self._view.moment.position and kept == len(events)):
                break
            kept = clean_cut(events, kept, self._lasts(wish, events, end))
            if kept or not events or rows_max > _TRANSACTION_ROWS_MAX:
                kept = kept or len(events)
                break
            rows_max *= 4
        if kept < len(events):
            end = events[kept].position
        body = b",".join([event.body for event in events[:kept]])
        return Page(end, kept, len(body)), body

    def _events(self, wish: Wish, start: Position, rows_max: int) -> tuple[list[Event], Position]:
        """Some changes, and up to where these are all: a few more than wanted where there are more."""
        until, window, give_up_s = self._view.moment.position, _WINDOW, time.monotonic() + _LOOK_MAX_S
        found: list[Event] = []
        low = start
        while low < until and len(found) <= rows_max:
            high = min(until, low + window)
            parts = [self._between(wish, table, low, high, rows_max + 1 - len(found)) for table in wish.tables]
            rows = sorted((event for part in parts for event in part), key=itemgetter(0))
            if len(found) + len(rows) > rows_max:  # a table may have more of them than were asked for
                rows = rows[: rows_max + 1 - len(found)]
                return [*found, *rows], rows[-1].position + 1
            found += rows
            low, window = high, window * _GROWS
            if time.monotonic() > give_up_s:
                break
        return found, max(low, start)

    def _between(self, wish: Wish, table: str, low: Position, high: Position, limit: int) -> list[Event]:
        found = self._source_of(table)
        if found is None:
            return []
        path, columns = found
        _, alias = split_table_name(table)
        conditions = [f"_position >= {low}", f"_position < {high}", f"_operation <> {literal(FORGOTTEN)}"]
        if wish.operations:
            conditions.append(f"_operation IN ({', '.join(map(literal, wish.operations))})")
        if wish.where:
            rows = ", ".join(map(literal, ROW_OPERATIONS))
            conditions.append(f"({parse_condition(wish.where)} OR _operation NOT IN ({rows}))")
        sql = (
            f"SELECT {names(columns)} FROM iceberg_scan({path}) AS {quoted(alias)} "  # noqa: S608
            f"WHERE {' AND '.join(conditions)} ORDER BY _position LIMIT {limit}"
        )
        with self._engine.start(sql, stop=self._stop) as running:
            rows_found = pa.Table.from_batches(running.batches(), running.schema)
        return events_of(rows_found, table, wish.columns) if rows_found.num_rows else []

    def _source_of(self, table: str) -> tuple[str, list[str]] | None:
        """The file that DuckDB reads for a table of changes, and its columns."""
        if table not in self._paths:
            view = self._view
            _, changes = view.moment.state_and_changes(Name(*split_table_name(table)))
            snapshot = changes.snapshot if changes and changes.is_ours else None
            self._paths[table] = None
            if changes is not None and snapshot is not None:
                with view.reader.tail.lock:
                    overlay = view.reader.live.plain(changes, snapshot)
                view.hold(overlay)
                own = [each.name for each in own_columns_of(changes, changes.columns)]
                mine = [each.name for each in changes.columns]
                before = [BEFORE] if BEFORE in own else []
                columns = [*(each for each in own if each != BEFORE), *before, *mine]
                self._paths[table] = literal(overlay.path), columns
        return self._paths[table]

    def _lasts(self, wish: Wish, events: list[Event], end: Position) -> dict[Transaction, Position]:
        """Where the transactions of these events end that go on behind them. None is longer than publishing waits."""
        ids = {event.transaction for event in events if event.transaction is not None}
        if not ids:
            return {}
        keys = pa.table({"source": [source for source, _ in ids], "id": [id_ for _, id_ in ids]})
        until = self._view.moment.position
        found: dict[Transaction, Position] = {}
        for table in wish.tables:
            if (source := self._source_of(table)) is None:
                continue
            sql = (
                f"SELECT _source, _transaction, max(_position) FROM iceberg_scan({source[0]}) "  # noqa: S608
                f"JOIN keys ON _source = source AND _transaction = id "
                f"WHERE _position >= {end} AND _position < {until} GROUP BY ALL"
            )
            with self._engine.start(sql, None, {"keys": keys}, stop=self._stop) as running:
                for batch in running.batches():
                    for stream, id_, last in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        found[stream, id_] = max(last, found.get((stream, id_), 0))
        return found


def first_position_sql(path: str, time_ms: int) -> str:
    """The first change at this time or later."""
    return f"SELECT min(_position) FROM iceberg_scan({path}) WHERE _commit_timestamp >= {moment(time_ms)}"  # noqa: S608
