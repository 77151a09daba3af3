"""Values that waited in `_rescued` move to their column, when that has become wide enough for them.

From tasks.py, which looks whether a column should, and rewriting.py, which writes old rows anew. Promise: a value is in
its column or in `_rescued`, never in both and never in none; rows without such a value stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dolake.tables.fitting import Misfit, decode_written, fitter
from dolake.tables.layout import BEFORE, RESCUED
from dolake.tables.schema import Seen

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_Values = dict[int, float]


def fractions_in(rescued: pa.ChunkedArray, columns: Set[str]) -> frozenset[str]:
    """Those of these columns that would hold a value that waits here, if they were of type double."""
    found: set[str] = set()
    for text in _texts(rescued) if columns else ():
        own = _split(text)
        for part in (own, _split(own[BEFORE]) if BEFORE in own else {}):
            found.update(name for name in columns - found if name in part and _is_fraction(part[name]))
        if len(found) == len(columns):
            break
    return frozenset(found)


def lifted(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows with all values in these columns, now of type double, that waited for it."""
    rescued = rows.column(RESCUED)
    if rescued.null_count == len(rescued):
        return rows
    fit = fitter("double", is_full=False)
    texts = rescued.to_pylist()
    own: dict[str, _Values] = {name: {} for name in columns}
    before: dict[str, _Values] = {name: {} for name in columns}
    for row, text in enumerate(texts):
        if text is None:
            continue
        left = _split(text)
        left_before = _split(left.pop(BEFORE)) if BEFORE in left else {}
        is_moved = False
        for part, values in ((left, own), (left_before, before)):
            for name in columns:
                value = _fitted(part.get(name), fit)
                if value is not None:
                    values[name][row] = value
                    del part[name]
                    is_moved = True
        if is_moved:
            left |= {BEFORE: msgspec.Raw(msgspec.json.encode(left_before))} if left_before else {}
            texts[row] = msgspec.json.encode(left).decode() if left else None
    for row in _deletes(rows):  # the row before is the row itself, so its value waited once for both
        for name in columns:
            if row in own[name]:
                before[name][row] = own[name][row]
    rows = _put(rows, RESCUED, pa.array(texts, pa.string()))
    for name, found in own.items():
        if found:
            rows = _put(rows, name, _filled(rows.column(name), found))
    return _with_before(rows, {name: found for name, found in before.items() if found})


def _texts(rescued: pa.ChunkedArray) -> Iterator[str]:
    if rescued.null_count < len(rescued):
        yield from rescued.drop_null().to_pylist()


def _is_fraction(text: msgspec.Raw) -> bool:
    try:
        return "double" in Seen().add(decode_written(bytes(text))).kinds
    except (RecursionError, ValueError):
        return False


def _fitted(text: msgspec.Raw | None, fit: Any) -> float | None:
    if text is None:
        return None
    try:
        value: float = fit(decode_written(bytes(text)))
    except (Misfit, RecursionError, ValueError):
        return None
    return value


def _deletes(rows: pa.Table) -> list[int]:
    """Of changes, those that show the row before as theirs, too."""
    if BEFORE not in rows.column_names:
        return []
    is_delete = pc.and_(pc.equal(rows.column("_operation"), "DELETE"), pc.is_valid(rows.column(BEFORE)))
    found: list[int] = pc.indices_nonzero(is_delete).to_pylist()
    return found


def _filled(column: pa.Array | pa.ChunkedArray, values: _Values) -> pa.Array:
    found = column.to_pylist()
    for row, value in values.items():
        found[row] = value
    return pa.array(found, column.type)


def _put(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), column)


def _with_before(rows: pa.Table, values: dict[str, _Values]) -> pa.Table:
    if not values:
        return rows
    before = rows.column(BEFORE).combine_chunks()
    before = before.chunk(0) if isinstance(before, pa.ChunkedArray) else before
    parts = [
        _filled(before.field(index), values[field.name]) if field.name in values else before.field(index)
        for index, field in enumerate(before.type)
    ]
    return _put(rows, BEFORE, pa.StructArray.from_arrays(parts, fields=list(before.type), mask=before.is_null()))
