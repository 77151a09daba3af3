"""Which tables are being copied, by the states that sources keep in the lake.

From the journal's streams; to the query process with each query (query/copying.py). A state with `tables`, each with
`lake`, `phase`, `copied` and `total`, is read, whatever kind of source it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dolake.changes import StreamId
from dolake.journal.record import StreamPoint
from dolake.query.copying import to_header
from dolake.tables.names import plain_table_name
from dolake.wire.source_state import decode_state

Rows = tuple[int, int]


class CopyingTables:
    """Reads a stream's state once for each change of it."""

    def __init__(self, points: Callable[[], Mapping[StreamId, StreamPoint]]) -> None:
        self._points = points
        self._known: dict[StreamId, tuple[bytes, dict[str, Rows]]] = {}

    def now(self) -> dict[str, Rows]:
        """By table: rows that are copied, and rows that there are."""
        found: dict[str, Rows] = {}
        for stream, point in self._points().items():
            state, tables = self._known.get(stream, (b"", {}))
            if state is not point.state:
                tables = _copying_in(point.state)
                self._known[stream] = point.state, tables
            found |= tables
        return found

    def header(self) -> str:
        """For the query process; empty where nothing is copied."""
        found = self.now()
        return to_header(found) if found else ""


def _copying_in(state: bytes) -> dict[str, Rows]:
    if b'"copied"' not in state and b'"lake"' not in state:
        return {}
    tables = decode_state(state).get("tables")
    found: dict[str, Rows] = {}
    for table in tables.values() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and isinstance(name := table.get("lake"), str) and _is_copying(table):
            found[plain_table_name(name)] = _count(table, "copied"), _count(table, "total")
    return found


def _is_copying(table: Mapping[str, Any]) -> bool:
    return bool(table.get("phase", "copying") != "live")


def _count(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name, 0)
    return value if isinstance(value, int) else 0
