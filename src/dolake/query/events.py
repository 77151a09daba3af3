"""Rows of a changes table as events, each encoded once: whoever else wants it gets the same bytes.

From changes.py, with rows of the tail or of the table, which have the same types; to subscribers.
docs/reference/subscriptions.md has the fields. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.query.values import json_values
from dolake.tables.layout import BEFORE, KEY, NO_KEY, RESCUED, SOURCE
from dolake.tables.types import OUR_NAMES, source_name

_encode = msgspec.json.Encoder().encode
_OWN = frozenset(OUR_NAMES)
_APART = (BEFORE, "_timestamp", "_commit_timestamp")
ROW_OPERATIONS = ("INSERT", "UPDATE", "DELETE")


def encoded(rows: pa.Table, table: str, columns: Sequence[str]) -> list[bytes]:
    """Each row as an event of this table; with these columns, or with all."""
    own = {name: _values(rows, name) for name in OUR_NAMES if name in rows.column_names and name not in _APART}
    timestamps, commits = (_milliseconds(rows, name) for name in ("_timestamp", "_commit_timestamp"))
    images, befores = _images(rows, columns), _befores(rows, columns)
    found = []
    for at, (operation, key) in enumerate(zip(own["_operation"], own[KEY], strict=True)):
        event: dict[str, Any] = {"operation": operation, "table": table, "position": own["_position"][at]}
        if key != NO_KEY or operation in ROW_OPERATIONS:
            event["rowId"] = key
        if operation in ROW_OPERATIONS:
            if befores[at] is not None:
                event["before"] = befores[at]
            if operation != "DELETE":
                event["after"] = images[at]
        event["timestamp"], event["commitTimestamp"] = timestamps[at], commits[at]
        event["source"], event["sequence"] = own[SOURCE][at], own["_sequence"][at]
        _add_rare(event, own, at)
        found.append(_encode(event))
    return found


def _add_rare(event: dict[str, Any], own: dict[str, list[Any]], at: int) -> None:
    if (transaction := own["_transaction"][at]) is not None:
        event["transactionId"] = transaction
    if "_previous_key" in own and (previous := own["_previous_key"][at]) is not None:
        event["previousRowId"] = previous
    if RESCUED in own and (rescued := own[RESCUED][at]) is not None:
        event["rescued"] = msgspec.Raw(rescued.encode())


def _images(rows: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
    wanted = {each: shown for each in rows.column_names if each not in _OWN and (shown := _shown(each, columns))}
    values = [_values(rows, each) for each in wanted]
    names = list(wanted.values())
    if not values:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _befores(rows: pa.Table, columns: Sequence[str]) -> list[dict[str, Any] | None]:
    if BEFORE not in rows.column_names or rows.column(BEFORE).null_count == rows.num_rows:
        return [None] * rows.num_rows
    kind = rows.schema.field(BEFORE).type
    names = {field.name: shown for field in kind if (shown := _shown(field.name, columns))}
    return [
        None if row is None else {shown: row[name] for name, shown in names.items()} for row in _values(rows, BEFORE)
    ]


def _shown(column: str, columns: Sequence[str]) -> str | None:
    """A column as its source calls it, where it is wanted."""
    name = source_name(column) or column
    return name if not columns or name in columns else None


def _values(rows: pa.Table, name: str) -> list[Any]:
    column = rows.column(name)
    if column.num_chunks == 1:
        return json_values(column.chunk(0))
    return [value for chunk in column.chunks for value in json_values(chunk)]


def _milliseconds(rows: pa.Table, name: str) -> list[int]:
    return list((positions_of(rows, name) // 1000).tolist())


def positions_of(rows: pa.Table, name: str = "_position") -> NDArray[np.int64]:
    """A column of numbers or moments as numbers."""
    found: NDArray[np.int64] = rows.column(name).cast(pa.int64()).to_numpy()
    return found
