"""Every version of a table's rows: its changes table, and the changes that are still in the tail.

From reader.py, for references that name a column of a change. Pure but for the overlay. Promise: each change up to the
moment once, whole transactions only.
"""

from __future__ import annotations

import itertools

import pyarrow as pa

from dolake.query.lake import LakeTable
from dolake.query.live import LiveTables, Scan
from dolake.query.overlay import Overlay
from dolake.query.sqltext import literal, names, quoted, selected
from dolake.query.table_tail import Cut, TableTail
from dolake.tables.layout import BEFORE, changes_schema
from dolake.tables.types import OUR_NAMES, Columns, Field, StructType

_numbers = itertools.count(1)


def scan_history(
    live: LiveTables, changes: LakeTable | None, tail: TableTail | None, cut: Cut, *, where: str = ""
) -> Scan:
    """All changes up to the cut's end, or those before the tail that meet a condition."""
    base = changes.columns if changes else ()
    snapshot = changes.snapshot if changes else None
    rows, columns = tail.changes(base, cut) if tail and not where else (None, base)
    own = own_columns_of(changes, columns)
    parts, arrow, overlays = list[str](), dict[str, pa.Table](), list[Overlay]()
    if changes is not None and snapshot is not None:
        overlays.append(live.plain(changes, snapshot))
        have = (*base, *own_columns_of(changes, base))
        parts.append(
            f"SELECT {selected(have, (*columns, *own))} FROM iceberg_scan({literal(overlays[0].path)})"  # noqa: S608
            + (f" WHERE {where}" if where else "")
        )
    if rows is not None:
        name = f"changes_{next(_numbers)}"
        arrow[name] = rows
        parts.append(f"SELECT {names(each.name for each in (*columns, *own))} FROM {quoted(name)}")  # noqa: S608
    if not parts:
        parts.append(f"SELECT {selected((), (*columns, *own))} WHERE false")
    tail_rows = rows.num_rows if rows is not None else 0
    own_names = tuple(each.name for each in own)
    reads = ((changes, snapshot),) if changes is not None and snapshot is not None else ()
    return Scan(" UNION ALL ".join(parts), columns, arrow, tuple(overlays), tail_rows, own_names, reads)


def own_columns_of(changes: LakeTable | None, columns: Columns) -> Columns:
    """DoLake's own columns of a changes table; one that an older release has made may lack some."""
    known = {field["name"] for field in (changes.schema if changes else changes_schema(columns))["fields"]}
    fields = changes_schema(columns)["fields"]
    own = [Field(field["name"], field["type"]) for field in fields if field["name"] in OUR_NAMES]
    before = [Field(BEFORE, StructType(columns))] if columns and BEFORE in known else []
    return (*(each for each in own if each.name in known and each.name != BEFORE), *before)
