"""Partition specs and sort orders: check one against a schema, compare two, number the fields of a spec.

From commit.py and create.py, with the columns of the schema that the spec or order is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dolake.catalog.schemas import Columns
from dolake.catalog.types import can_transform, canonical_transform, is_primitive, kind_of
from dolake.catalog.values import Json, as_object, is_int, read_int, read_objects, read_text, refuse

FIELD_ID_START = 1000
UNSORTED_ID = 0

_DIRECTIONS = ("asc", "desc")
_NULL_ORDERS = ("nulls-first", "nulls-last")


# --- partition specs -------------------------------------------------------------------------------------------------


def unpartitioned() -> Json:
    return {"spec-id": 0, "fields": []}


def checked_spec(spec: object) -> Json:
    """A spec in canonical spelling. Its field ids are all there or all missing; numbered_spec() gives them then."""
    node = as_object(spec, "spec")
    fields = [_checked_partition_field(field) for field in read_objects(node, "fields")]
    with_ids = [field["field-id"] for field in fields if "field-id" in field]
    if with_ids and len(with_ids) != len(fields):
        missing = len(fields) - len(with_ids)
        refuse(f"Cannot parse spec with missing field IDs: {missing} missing of {len(fields)} fields.")
    if len(set(with_ids)) != len(with_ids):
        refuse(f"Cannot use a partition field id more than once: {with_ids}")
    # The id that a client proposes is only a proposal, and the REST specification lets it leave the id out.
    return {**node, "spec-id": read_int(node, "spec-id") if "spec-id" in node else 0, "fields": fields}


def numbered_spec(spec: Json, specs: Iterable[Json], last_partition_id: int, format_version: int) -> Json:
    """Give ids to fields that came without: from v2 on, the same source and transform keeps its id in every spec."""
    if all("field-id" in field for field in spec["fields"]):
        return spec
    known: dict[tuple[int, str], int] = {}
    if format_version > 1:
        known = {_source(field): field["field-id"] for old in specs for field in old["fields"]}
    next_id = max(last_partition_id + 1, FIELD_ID_START) if format_version > 1 else FIELD_ID_START
    fields = []
    for field in spec["fields"]:
        id_ = known.get(_source(field))
        if id_ is None:
            id_, next_id = next_id, next_id + 1
        if not is_int(id_):
            refuse(f"Cannot add spec, the id of its field {field['name']} would be beyond 32 bits: {id_}")
        fields.append({**field, "field-id": id_})
    return {**spec, "fields": fields}


def check_spec_names(spec: Mapping[str, Any], columns: Columns) -> None:
    """Partition names are unique, and none hides a column unless it is that column's own identity."""
    seen: set[str] = set()
    for field in spec["fields"]:
        name, column = field["name"], columns.find(field["name"])
        if column is not None and field["source-id"] in columns.by_id and column.id != field["source-id"]:
            refuse(f"Cannot create identity partition sourced from different field in schema: {name}")
        if not name or name in seen:
            refuse(f"Cannot use {'partition name more than once' if name else 'empty partition name'}: {name}")
        seen.add(name)


def check_spec(spec: Mapping[str, Any], columns: Columns) -> None:
    """Every field has a primitive source column that its transform fits, in structs only. `void` fits everything."""
    for field in spec["fields"]:
        transform = canonical_transform(field["transform"])
        if transform == "void":
            continue
        column = columns.by_id.get(field["source-id"])
        if column is None:
            refuse(f"Cannot find source column for partition field: {_described(field)}")
        if not is_primitive(column.type):
            refuse(f"Cannot partition by non-primitive source field: {column.name}")
        if not can_transform(transform, column.type):
            refuse(f"Invalid source type {column.type} for transform: {transform}")
        for parent in columns.ancestors(column):
            if kind_of(parent.type) != "struct":
                refuse(f"Invalid partition field parent: {parent.name}")


def has_sequential_ids(spec: Mapping[str, Any]) -> bool:
    """v1 knows no field ids in manifests: a field is known by its place, so ids count from 1000 without a gap."""
    return all(field["field-id"] == FIELD_ID_START + place for place, field in enumerate(spec["fields"]))


def highest_field_id(spec: Mapping[str, Any]) -> int:
    return max((field["field-id"] for field in spec["fields"]), default=FIELD_ID_START - 1)


def same_spec(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """The same partitions, whatever the ids."""
    return [(_source(f), f["name"]) for f in one["fields"]] == [(_source(f), f["name"]) for f in other["fields"]]


def _checked_partition_field(field: Json) -> Json:
    read_text(field, "name")
    read_int(field, "source-id")
    if "field-id" in field:
        read_int(field, "field-id")
    return {**field, "transform": canonical_transform(read_text(field, "transform"))}


def _source(field: Mapping[str, Any]) -> tuple[int, str]:
    return field["source-id"], canonical_transform(field["transform"])


def _described(field: Mapping[str, Any]) -> str:
    return f"{field['name']}: {field['transform']}({field['source-id']})"


# --- sort orders -----------------------------------------------------------------------------------------------------


def unsorted() -> Json:
    return {"order-id": UNSORTED_ID, "fields": []}


def checked_order(order: object) -> Json:
    """A sort order in canonical spelling. Id 0 is the unsorted order and nothing else."""
    node = as_object(order, "sort order")
    id_, fields = read_int(node, "order-id"), [_checked_sort_field(field) for field in read_objects(node, "fields")]
    if not fields and id_ != UNSORTED_ID:
        refuse("Unsorted order ID must be 0")
    if fields and id_ == UNSORTED_ID:
        refuse("Sort order ID 0 is reserved for unsorted order")
    return {**node, "fields": fields}


def check_order(order: Mapping[str, Any], columns: Columns) -> None:
    for field in order["fields"]:
        transform = canonical_transform(field["transform"])
        column = columns.by_id.get(field["source-id"])
        if column is None:
            refuse(f"Cannot find source column for sort field: {transform}({field['source-id']})")
        if not is_primitive(column.type):
            refuse(f"Cannot sort by non-primitive source field: {column.name}")
        if not can_transform(transform, column.type):
            refuse(f"Invalid source type {column.type} for transform: {transform}")


def same_order(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _sort_keys(one["fields"]) == _sort_keys(other["fields"])


def _checked_sort_field(field: Json) -> Json:
    read_int(field, "source-id")
    return {
        **field,
        "transform": canonical_transform(read_text(field, "transform")),
        "direction": _one_of(field, "direction", _DIRECTIONS),
        "null-order": _one_of(field, "null-order", _NULL_ORDERS),
    }


def _one_of(field: Json, key: str, allowed: Sequence[str]) -> str:
    value = read_text(field, key).lower()
    if value not in allowed:
        refuse(f"Unexpected {key}: {field[key]}", hint=f"one of {', '.join(allowed)}")
    return value


def _sort_keys(fields: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(*_source(field), field["direction"].lower(), field["null-order"].lower()) for field in fields]
