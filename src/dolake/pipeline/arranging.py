"""Rows of the state, divided by partition and sorted: what goes into which data file, and in which order.

From tasks.py, in Spark's workers, with what sourcetables.py knows of the table; to files.py, file by file. Values are
those of Iceberg's own transforms. Promise: each row is in one piece, and a piece says which row stands where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import to_json
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, TruncateTransform, parse_transform
from pyiceberg.types import DateType, IntegerType, PrimitiveType, StringType, UUIDType

from dolake.tables.ordering import SortKey
from dolake.tables.rules import LayoutRules
from dolake.tables.transforms import partition_name, shown_text, shown_value

Json = dict[str, Any]
Rows = NDArray[np.int64]
_GROUP = "\0group"
_FOLDER_NAME_MAX = 120
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


@dataclass(frozen=True, slots=True)
class Divider:
    """A field of a partition spec: the column, given by its path, and what is done to it."""

    name: str
    transform: str
    path: tuple[str, ...]
    type: PrimitiveType


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a table's data files are arranged; by default all rows of a slice are one file, as they come."""

    spec_id: int = 0
    dividers: tuple[Divider, ...] = ()
    folder: str = ""
    """What the folders of all partitions are in."""
    sort: tuple[SortKey, ...] = ()
    sort_order_id: int = 0

    @property
    def is_plain(self) -> bool:
        return not (self.spec_id or self.dividers or self.sort)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one data file: what they are, where they were, and what a commit says of the file."""

    rows: pa.Table
    order: Rows
    mark: Json
    folder: str


def arrangement(
    schema: str, spec: Json, namespace: Sequence[str], rules: LayoutRules, sort: tuple[SortKey, ...], sort_order_id: int
) -> Arrangement:
    """Of a table with this schema and spec, both as Iceberg has them now."""
    dividers = _dividers(schema, spec["fields"]) if spec["fields"] else ()
    folder = f"ns={_quoted('.'.join(namespace))}" if dividers and rules.is_by_date else ""
    return Arrangement(spec["spec-id"], dividers, folder, sort, sort_order_id)


def _dividers(schema: str, fields: Sequence[Json]) -> tuple[Divider, ...]:
    """A column that is gone leaves its field without values, as Iceberg's `void` does."""
    table = Schema.model_validate_json(schema)
    found = []
    for field in fields:
        name = table.find_column_name(field["source-id"])
        type_ = table.find_type(field["source-id"]) if name else IntegerType()
        transform = field["transform"] if name else "void"
        found.append(Divider(field["name"], transform, tuple((name or "").split(".")), cast("PrimitiveType", type_)))
    return tuple(found)


def arranged(rows: pa.Table, how: Arrangement) -> Iterator[Piece]:
    """The rows of each partition, sorted if the table is; rows that are equal in that stay in their order."""
    if not rows.num_rows:
        return
    groups, values = _groups(rows, how.dividers)
    order = _order(rows, groups, how.sort)
    taken = rows.take(pa.array(order))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        inside = order[start:end]
        parts = [each[groups_of[inside[0]]] for groups_of, each in values]
        mark = {
            "spec-id": how.spec_id,
            "partition": [value for value, _ in parts],
            "sort-order-id": how.sort_order_id,
        }
        names = [f"{_quoted(each.name)}={shown}" for each, (_, shown) in zip(how.dividers, parts, strict=True)]
        folder = "/".join((how.folder, *names) if how.folder else names)
        yield Piece(taken.slice(start, end - start), inside, mark, folder)


def sorted_rows(rows: pa.Table, sort: Sequence[SortKey]) -> Rows:
    """The order in which these rows should stand."""
    return _order(rows, np.zeros(rows.num_rows, np.int64), sort)


def _order(rows: pa.Table, groups: Rows, sort: Sequence[SortKey]) -> Rows:
    if not sort:
        return np.argsort(groups, kind="stable")
    columns = {_GROUP: pa.array(groups)} | {key.column: _sortable(rows.column(key.column)) for key in sort}
    keys = [(_GROUP, "ascending"), *((key.column, f"{key.direction}ending") for key in sort)]
    return cast("Rows", pc.sort_indices(pa.table(columns), keys).to_numpy().astype(np.int64))  # nulls last


def _sortable(column: pa.ChunkedArray) -> Any:
    one = _one(column)
    return one.storage.cast(pa.binary()) if isinstance(one, pa.ExtensionArray) else one


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


# --- partitions ------------------------------------------------------------------------------------------------------

Shown = tuple[Any, str]
"""A value as Iceberg's JSON has it, and as people read it."""


def _groups(rows: pa.Table, dividers: Sequence[Divider]) -> tuple[Rows, list[tuple[Rows, list[Shown]]]]:
    """For each row the number of its partition; and for each field the number of each row's value, and the values."""
    groups = np.zeros(rows.num_rows, np.int64)
    fields: list[tuple[Rows, list[Shown]]] = []
    for each in dividers:
        codes, values = _coded(_transformed(_column(rows, each.path), each))
        fields.append((codes, [_shown(value, each) for value in values]))
        # Numbered anew each time, so that the product of many fields cannot overflow.
        groups = np.unique(groups * len(values) + codes, return_inverse=True)[1].astype(np.int64)
    return groups, fields


def _column(rows: pa.Table, path: tuple[str, ...]) -> pa.Array:
    if path[0] not in rows.column_names:
        return pa.nulls(rows.num_rows)
    column = _one(rows.column(path[0]))
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _coded(array: pa.Array) -> tuple[Rows, list[Any]]:
    """Each row's value as a number; null is the last one."""
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [*values, None]


def _transformed(array: pa.Array, divider: Divider) -> pa.Array:
    """What Iceberg's transform makes of it; times and days as whole numbers."""
    kind, _, width = divider.transform.partition("[")
    plain = _plain(array)
    if kind == "void" or pa.types.is_null(plain.type):
        return pa.nulls(len(array), pa.int32())
    is_whole = pa.types.is_integer(plain.type)
    match kind:
        case "identity":
            return plain
        case "year" | "month" | "day" | "hour":
            unit = "D" if isinstance(divider.type, DateType) else "us"
            return _whole(plain, lambda each: each.astype(f"datetime64[{unit}]").astype(f"datetime64[{_UNITS[kind]}]"))
        case "bucket" if is_whole:
            return _whole(plain, lambda each: (_murmur3(each) & 0x7FFFFFFF) % int(width[:-1]))
        case "bucket":
            return _by_value(plain, BucketTransform(int(width[:-1])).transform(divider.type))
        case "truncate" if is_whole:
            size = np.int32 if isinstance(divider.type, IntegerType) else np.int64  # both wrap around, as Java does
            return _whole(plain, lambda each: (each - np.mod(each, int(width[:-1]))).astype(size))
        case "truncate" if isinstance(divider.type, StringType):
            return pc.utf8_slice_codeunits(plain, 0, int(width[:-1]))
        case "truncate":
            return _by_value(plain, TruncateTransform(int(width[:-1])).transform(divider.type))
    raise ValueError(f"nobody knows the transform {divider.transform}")


def _plain(array: pa.Array) -> pa.Array:
    """Days and moments as the numbers that Iceberg stores."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_date(array.type):
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    return array.cast(pa.int64()) if pa.types.is_integer(array.type) else array


def _whole(array: pa.Array, change: Any) -> pa.Array:
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    changed = change(array.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    return pa.array(changed, mask=is_null)


def _by_value(array: pa.Array, change: Any) -> pa.Array:
    """Value by value, each one once."""
    encoded = array.dictionary_encode()
    changed = pa.array([change(value) for value in encoded.dictionary.to_pylist()])
    return changed.take(encoded.indices)


def _murmur3(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Murmur3 of each number as eight bytes, as Iceberg hashes whole numbers, days and moments."""
    halves = np.ascontiguousarray(values.astype("<i8")).view("<u4").reshape(-1, 2)
    found = np.zeros(len(values), np.uint32)
    for half in (halves[:, 0], halves[:, 1]):
        mixed = _turned(half * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found = _turned(found ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(8)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ (found >> np.uint32(shift))) * np.uint32(factor)
    return (found ^ (found >> np.uint32(16))).astype(np.int64)


def _turned(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _shown(value: Any, divider: Divider) -> Shown:
    if value is None:
        return None, "null"
    if isinstance(divider.type, UUIDType) and isinstance(value, bytes):
        value = UUID(bytes=value)
    result = parse_transform(divider.transform).result_type(divider.type)
    stored = to_json(cast("PrimitiveType", result), value)
    return stored, _quoted(shown_text(shown_value(divider.transform, stored)))


def _quoted(text: str) -> str:
    """As part of a path that every engine reads alike."""
    return quote(text, safe="")[:_FOLDER_NAME_MAX]


# --- files of one partition ------------------------------------------------------------------------------------------


def partition_of(entry: Mapping[str, Any]) -> str:
    """Files with the same one may become one file; it is empty for a table that never had partitions."""
    return f"{entry['spec-id']}:{entry['partition']}" if entry["partition"] or entry["spec-id"] else ""


def name_of(entry: Mapping[str, Any], specs: Mapping[int, Json]) -> str:
    """Of a file's partition, such as `dt=2024-01-15/bucket=3`."""
    fields = specs[entry["spec-id"]]["fields"] if entry["partition"] else ()
    values = zip(fields, entry["partition"], strict=bool(fields))
    return partition_name((field["name"], shown_value(field["transform"], value)) for field, value in values)


def mark_of(entry: Mapping[str, Any]) -> Json:
    """What a commit says of a file that is beside this one."""
    return {"spec-id": entry["spec-id"], "partition": entry["partition"]}


def folder_of(locations: Iterable[str], path: str) -> str:
    """The folder of a data file inside the table's data, in whichever of its places; none where it is elsewhere."""
    data = next((data for location in locations if path.startswith(data := f"{location}/data/")), None)
    return path.removeprefix(data).rpartition("/")[0] if data else ""
