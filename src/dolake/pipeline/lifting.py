"""Values that waited in `_rescued` move to their column, when that has become wide enough for them.

From tasks.py, which looks whether a column should, and rewriting.py, which writes old rows anew. Promise: a value is in
its column or in `_rescued`, never in both and never in none; rows without such a value stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolake.tables.fitting import Fitter, Misfit, decode_written, fitter
from dolake.tables.layout import BEFORE, RESCUED
from dolake.tables.schema import Seen

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_Values = dict[int, Any]


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


def lifted(rows: pa.Table, types: Mapping[str, str]) -> pa.Table:
    """The rows with all values in these columns, now of these types, that waited for it."""
    rescued = rows.column(RESCUED)
    if rescued.null_count == len(rescued):
        return rows
    fits = {name: fitter(type_, is_full=False) for name, type_ in types.items()}
    texts = rescued.to_pylist()
    own: dict[str, _Values] = {name: {} for name in types}
    before: dict[str, _Values] = {name: {} for name in types}
    for row, text in enumerate(texts):
        if text is None:
            continue
        left = _split(text)
        left_before = _split(left.pop(BEFORE)) if BEFORE in left else {}
        is_moved = False
        for part, values in ((left, own), (left_before, before)):
            for name, fit in fits.items():
                value = _fitted(part.get(name), fit)
                if value is not None:
                    values[name][row] = value
                    del part[name]
                    is_moved = True
        if is_moved:
            left |= {BEFORE: msgspec.Raw(msgspec.json.encode(left_before))} if left_before else {}
            texts[row] = msgspec.json.encode(left).decode() if left else None
    for row in _deletes(rows):  # the row before is the row itself, so its value waited once for both
        for name in types:
            if row in own[name]:
                before[name][row] = own[name][row]
    rows = _put(rows, RESCUED, pa.array(texts, pa.string()))
    for name, found in own.items():
        if found:
            rows = _put(rows, name, _filled(rows.column(name), found))
    return _with_before(rows, {name: found for name, found in before.items() if found})


def names_in(rescued: pa.ChunkedArray) -> frozenset[str]:
    """The columns of which a value of the row itself waits here."""
    return frozenset(name for text in _texts(rescued) for name in _split(text) if name != BEFORE)


def is_absent(value: Any) -> bool:
    """Whether this stands in `_rescued` for a value that the source could not send: what it was is not here."""
    return isinstance(value, dict) and value.keys() == {"size", "sha256", "reason"}


def _texts(rescued: pa.ChunkedArray) -> Iterator[str]:
    if rescued.null_count < len(rescued):
        yield from rescued.drop_null().to_pylist()


def _is_fraction(text: msgspec.Raw) -> bool:
    try:
        return "double" in Seen().add(decode_written(bytes(text))).kinds
    except (RecursionError, ValueError):
        return False


def _fitted(text: msgspec.Raw | None, fit: Fitter) -> Any:
    """The value for its column; None where it must wait on."""
    if text is None:
        return None
    try:
        value = decode_written(bytes(text))
        return None if is_absent(value) else fit(value)
    except (Misfit, RecursionError, ValueError):
        return None


def _deletes(rows: pa.Table) -> list[int]:
    """Of changes, those that show the row before as theirs, too."""
    if BEFORE not in rows.column_names:
        return []
    is_delete = pc.and_(pc.equal(rows.column("_operation"), "DELETE"), pc.is_valid(rows.column(BEFORE)))
    found: list[int] = pc.indices_nonzero(is_delete).to_pylist()
    return found


def _filled(column: pa.Array | pa.ChunkedArray, values: _Values) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    mask = np.zeros(len(whole), np.bool_)
    mask[list(values)] = True
    given = pa.array([values[row] for row in sorted(values)], whole.type)
    return pc.replace_with_mask(whole, pa.array(mask), given)


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
