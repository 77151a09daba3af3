"""The copy of what a table already has: a chunk at a time, put into the outbox in one short transaction.

So a copied row has a sequence like any change, and says what the row was at that place: what is changed later comes
later. The cursor moves in the same transaction, so that a crash costs nothing. From source.py with every look, as long
as the lake keeps up.
"""

from __future__ import annotations

import time
from typing import Any

from dolake.sources.sqlite.columns import LIVE
from dolake.sources.sqlite.store import Store, TableState
from dolake.sources.sqlite.tables import Shape, quoted
from dolake.sources.sqlite.triggers import COPY, NOW_MS, OUTBOX, value_columns
from dolake.sources.sqlite.values import mark_for, reading_any_text

CHUNK_ROWS = 500
CHUNK_ROWS_MAX = 5_000
CHUNK_TIME_MS = 15.0
"""How long writers may have to wait for one chunk; it gets larger or smaller to take about this."""


class Copier:
    """Copies tables one after the other."""

    def __init__(self) -> None:
        self.chunk_rows = CHUNK_ROWS

    def step(self, store: Store, table: TableState) -> None:
        """One chunk of this table, within the caller's transaction."""
        shape = store.shape(table.shape_id)
        if table.empties:
            store.say(table.shape_id, {"ddl": {"action": "truncate"}})
            table.empties = False
        if not table.total:
            table.total = int(store.db.execute(f"SELECT count(*) FROM {quoted(shape.name)}").fetchone()[0])
        began = time.perf_counter()
        count, last = self._copy_chunk(store, table, shape)
        self._adapt((time.perf_counter() - began) * 1000)
        table.copied += count
        if last is None:
            table.phase, table.cursor, table.filling = LIVE, None, None
        else:
            table.cursor = last
        store.save(table)

    def _copy_chunk(self, store: Store, table: TableState, shape: Shape) -> tuple[int, list[Any] | None]:
        """How many rows there were, and the key of the last; None when there are no more."""
        keys = [shape.rowid] if shape.rowid else [quoted(shape.names[index]) for index in shape.key]
        key = ", ".join(map(str, keys))
        after, start = ("", []) if table.cursor is None else (f"({key}) > ({_marks(table.cursor)})", table.cursor)
        where = f"WHERE {after}" if after else ""
        with reading_any_text(store.db):
            chunk = store.db.execute(
                f"SELECT {key} FROM {quoted(shape.name)} {where} ORDER BY {key} LIMIT {self.chunk_rows}",
                start,
            ).fetchall()
        if not chunk:
            return 0, None
        last = list(chunk[-1])
        upto = f"({key}) <= ({_marks(last)})"
        conditions = [part for part in (after, upto, table.filling and f"({table.filling})") if part]
        k, k_value = (", k", f", {shape.rowid}") if shape.has_rowid_in_key else ("", "")
        columns = ", ".join(quoted(name) for name in shape.names)
        store.db.execute(
            f"INSERT INTO {OUTBOX} (at, shape, op{k}, {value_columns(0, len(shape.columns))}) "
            f"SELECT {NOW_MS}, {table.shape_id}, {COPY}{k_value}, {columns} FROM {quoted(shape.name)} "
            f"WHERE {' AND '.join(conditions)} ORDER BY {key}",
            [*start, *last],
        )
        return len(chunk), last

    def _adapt(self, took_ms: float) -> None:
        if took_ms > 2 * CHUNK_TIME_MS:
            self.chunk_rows = max(50, self.chunk_rows // 2)
        elif took_ms < CHUNK_TIME_MS:
            self.chunk_rows = min(CHUNK_ROWS_MAX, self.chunk_rows * 5 // 4)


def _marks(values: list[Any]) -> str:
    return ", ".join(map(mark_for, values))
