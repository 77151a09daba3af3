"""The copy of what a table already has: read in chunks, in the reading transaction that has also read the outbox.

So a copied row is what the row was behind the newest change that is sent, and in front of all later ones; nothing is
written. The cursor is kept in the lake with the rows, so that a crash costs nothing. From source.py.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dolake.sources.sqlite.state import TableState
from dolake.sources.sqlite.store import unpacked
from dolake.sources.sqlite.tables import Shape, copy_statement, key_names, quoted
from dolake.sources.sqlite.values import Value, mark_for, reading_any_text, size_of

CHUNK_TIME_MAX_S = 0.05
"""How long one reading transaction may copy: without WAL, a writer cannot commit meanwhile."""
CHUNK_ROWS_MAX = 2_000
CHUNK_SIZE_MAX = 400_000
_FETCH_ROWS = 100
_STEPS_BETWEEN_LOOKS = 10_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a table, each with its rowid; `last` is the key of the last row that was read, None at the end."""

    rows: Sequence[tuple[int | None, Sequence[Value]]]
    last: list[Any] | None
    scanned: int


def read_chunk(db: sqlite3.Connection, shape: Shape, table: TableState, until_s: float) -> Chunk:
    """Read on behind the cursor, until the clock says `until_s` or the chunk is full."""
    cursor = unpacked(table.cursor)
    keys = key_names(shape)
    after = f"({', '.join(keys)}) > ({', '.join(map(mark_for, cursor))})" if cursor is not None else ""
    width = len(keys)
    rows: list[tuple[int | None, Sequence[Value]]] = []
    size = scanned = 0
    with reading_any_text(db):
        found = db.execute(copy_statement(shape, after=after, filling=table.filling), [*(cursor or ()), CHUNK_ROWS_MAX])
        while fetched := found.fetchmany(_FETCH_ROWS):
            for row in fetched:
                if row[width + 1]:
                    values = row[width + 2 :]
                    rows.append((row[width], values))
                    size += size_of(values)
            scanned += len(fetched)
            last = list(fetched[-1][:width])
            if size >= CHUNK_SIZE_MAX or time.monotonic() >= until_s:
                found.close()
                return Chunk(rows, last, scanned)
    if scanned < CHUNK_ROWS_MAX:
        return Chunk(rows, None, scanned)
    return Chunk(rows, last, scanned)


def rows_of(db: sqlite3.Connection, shape: Shape) -> int:
    """How many rows the table has, for a progress bar; by its rowids where counting takes long, or fails.

    SQLite counts by an index, which may need a collation that only the application has.
    """
    until_s = time.monotonic() + CHUNK_TIME_MAX_S / 2
    db.set_progress_handler(lambda: int(time.monotonic() > until_s), _STEPS_BETWEEN_LOOKS)
    try:
        return int(db.execute(f"SELECT count(*) FROM {quoted(shape.name)}").fetchone()[0])
    except sqlite3.OperationalError:
        pass
    finally:
        db.set_progress_handler(None, 0)
    if shape.rowid is None:
        return 0
    low, high = db.execute(f"SELECT min({shape.rowid}), max({shape.rowid}) FROM {quoted(shape.name)}").fetchone()
    return int(high - low + 1) if low is not None else 0
