"""Values that a query does not see because they did not fit their columns: counted, and said in a warning.

From answering.py, for each table of a query once it is opened. Promise: a query that names a column, or shows all of
them, says how many of the table's rows have a value of it in `_rescued`, where the column itself is null.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dolake.positions import Position
from dolake.query.lake import Json, LakeTable
from dolake.query.plan import Manifests, may_have_values
from dolake.query.relation import Relation
from dolake.query.sqltext import quoted
from dolake.query.statement import Statement
from dolake.tables.layout import BEFORE, RESCUED

Run = Callable[[str, Mapping[str, pa.Table]], Sequence[tuple[Any, ...]]]
"""Runs a statement of ours beside these tables and gives its rows."""
_KEPT_MAX, _SNAPSHOTS_MAX = 256, 4_096
_TAIL = re.compile(r"tail_\d+")
_ALL_COLUMNS = re.compile(
    r"(?:\bselect|\bdistinct|\ball|,|\.)\s*\*|\)\s*\*\s*(?:,|$|from\b|exclude\b|replace\b)|\bcolumns\s*\(|(?:^|\()\s*from\b",
    re.IGNORECASE,
)
"""What shows columns without naming them. It may find more than that: then a warning is about too many columns."""


class RescuedCounts:
    """Counts for each table at each point in time, kept for the next query. Any thread may ask."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._may_have: OrderedDict[int, bool] = OrderedDict()
        """By snapshot, whether one of its files has a rescued value."""
        self._known: OrderedDict[object, dict[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of(
        self, relation: Relation, reads: Sequence[tuple[LakeTable, Json]], position: Position, run: Run
    ) -> dict[str, int]:
        """How many rows have a rescued value, by column; the relation reads these snapshots, and the tail behind."""
        if not (any(self._in_files(*read) for read in reads) or _is_in_tail(relation)):
            return {}
        ids = tuple(snapshot["snapshot-id"] for _, snapshot in reads)
        key = (relation.table, ids, position if relation.tail_rows else None, _TAIL.sub("tail", relation.sql))
        with self._lock:
            if key in self._known:
                return self._known[key]
        found = _counted(relation, run)
        with self._lock:
            self._known[key] = found
            while len(self._known) > _KEPT_MAX:
                self._known.popitem(last=False)
        return found

    def _in_files(self, table: LakeTable, snapshot: Json) -> bool:
        id_ = snapshot["snapshot-id"]
        with self._lock:
            if id_ in self._may_have:
                return self._may_have[id_]
        found = may_have_values(self._manifests, table, snapshot, RESCUED)
        with self._lock:
            self._may_have[id_] = found
            while len(self._may_have) > _SNAPSHOTS_MAX:
                self._may_have.popitem(last=False)
        return found


def _counted(relation: Relation, run: Run) -> dict[str, int]:
    rescued = quoted(RESCUED)
    # A source may have a column of this name, whose values are anything.
    of_row = f"CASE WHEN json_valid(CAST({rescued} AS VARCHAR)) THEN json_keys(CAST({rescued} AS VARCHAR)) END"
    keys = f"SELECT unnest({of_row}) AS name FROM ({relation.sql}) WHERE {rescued} IS NOT NULL"  # noqa: S608
    rows = run(f"SELECT name, count(*) FROM ({keys}) GROUP BY name ORDER BY name", relation.arrow)  # noqa: S608
    return {str(name): int(count) for name, count in rows if name != BEFORE}


def _is_in_tail(relation: Relation) -> bool:
    found = (table.column(RESCUED) for table in relation.arrow.values() if RESCUED in table.column_names)
    return any(column.null_count < len(column) for column in found)


def has_rescued(relation: Relation) -> bool:
    """Whether its rows say what did not fit: those of tables that DoLake manages do."""
    return RESCUED in (*relation.columns, *relation.hidden)


def rescued_warnings(statement: Statement, relation: Relation, counts: Mapping[str, int]) -> list[str]:
    """One sentence for each column of this table that the statement selects or filters by."""
    text = " ".join(piece for piece in statement.pieces if isinstance(piece, str)).casefold()
    shows_all = bool(_ALL_COLUMNS.search(text))
    return [
        _sentence(relation, name, count)
        for name, count in counts.items()
        if shows_all or re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", text)
    ]


def _sentence(relation: Relation, name: str, count: int) -> str:
    rows = "1 row has a value" if count == 1 else f"{count} rows have values"
    if name not in relation.columns:
        return f"{relation.table}: {rows} of {name}, which cannot be a column; look in {RESCUED}"
    return f"{relation.table}: {rows} of {name} that did not fit; {name} is NULL there, look in {RESCUED}"
