"""Schemas: check one that a stranger sent, find its columns, compare two, number the columns of a new table.

From commit.py, view_updates.py and create.py; specs.py asks Columns where a partition or sort field comes from.
Promise: checked_schema() returns what Iceberg's own parsers accept, in canonical spelling, unknown fields included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dolake.catalog.types import canonical_type, check_default, format_version_min, is_primitive, kind_of
from dolake.catalog.values import (
    Json,
    as_object,
    read_bool,
    read_int,
    read_ints,
    read_objects,
    read_text,
    read_text_or_none,
    refuse,
)
from dolake.errors import InvalidInput

Type = str | Json

DEFAULTS_FORMAT_MIN = 3
_DEPTH_MAX = 100
_DEFAULTS = ("initial-default", "write-default")


@dataclass(frozen=True, slots=True)
class Column:
    """One field at any depth: of a struct, or the element, key or value of a list or map. `name` is the full path."""

    id: int
    name: str
    type: Type
    is_required: bool
    parent_id: int | None
    initial_default: Any = None


class Columns:
    """The columns of one schema, by id and by name."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.by_id: dict[int, Column] = {}
        self._ids: dict[str, int] = {}
        self._short_ids: dict[str, int] = {}
        self._add_children(schema, "", "", None)

    @property
    def highest_id(self) -> int:
        return max(self.by_id, default=0)

    def find(self, name: str) -> Column | None:
        """By full path; also by the shorter one that leaves out `element` and `value` around structs."""
        found = self._ids.get(name, self._short_ids.get(name))
        return None if found is None else self.by_id[found]

    def ancestors(self, column: Column) -> Iterable[Column]:
        while column.parent_id is not None:
            column = self.by_id[column.parent_id]
            yield column

    def _add_children(self, type_: Any, path: str, short: str, parent_id: int | None) -> None:
        for id_, name, child, is_required, default in _children(type_):
            full_name, short_name = f"{path}{name}", f"{short}{name}"
            if full_name in self._ids:
                refuse(f"Invalid schema: multiple fields for name {full_name}: {self._ids[full_name]} and {id_}")
            if id_ in self.by_id:
                refuse(f"Invalid schema: multiple fields for id {id_}: {self.by_id[id_].name} and {full_name}")
            self._ids[full_name] = id_
            self._short_ids.setdefault(short_name, id_)
            self.by_id[id_] = Column(id_, full_name, child, is_required, parent_id, default)
            is_left_out = type_["type"] != "struct" and name != "key" and kind_of(child) == "struct"
            self._add_children(child, f"{full_name}.", short if is_left_out else f"{short_name}.", id_)


def _children(type_: Any) -> Iterable[tuple[int, str, Type, bool, Any]]:
    """What is directly in a type: id, name, type, whether it is required, initial default."""
    if isinstance(type_, str):
        return
    match type_["type"]:
        case "struct":
            for field in type_["fields"]:
                yield field["id"], field["name"], field["type"], field["required"], field.get("initial-default")
        case "list":
            yield type_["element-id"], "element", type_["element"], type_["element-required"], None
        case "map":
            yield type_["key-id"], "key", type_["key"], True, None
            yield type_["value-id"], "value", type_["value"], type_["value-required"], None


# --- checks ----------------------------------------------------------------------------------------------------------


def checked_schema(schema: object) -> tuple[Json, Columns]:
    """This schema in canonical spelling, and its columns; refused if Iceberg's library would refuse to read it."""
    top = as_object(schema, "schema")
    if top.get("type", "struct") != "struct":
        refuse(f"Cannot create schema, not a struct type: {top['type']!r}")
    checked = _checked_struct(top, 0)
    checked["schema-id"] = 0 if top.get("schema-id") is None else read_int(top, "schema-id")
    columns = Columns(checked)
    if checked.get("identifier-field-ids") is None:
        checked.pop("identifier-field-ids", None)
    else:
        for id_ in read_ints(checked, "identifier-field-ids"):
            _check_identifier(id_, columns)
    return checked, columns


def check_format(columns: Columns, format_version: int) -> None:
    """Types and defaults that this format does not have yet."""
    problems = []
    for column in columns.by_id.values():
        least = format_version_min(column.type)
        if format_version < least:
            problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v{least}")
        elif column.initial_default is not None and format_version < DEFAULTS_FORMAT_MIN:
            problems.append(
                f"Invalid initial default for {column.name}: non-null default ({column.initial_default!r}) "
                f"is not supported until v{DEFAULTS_FORMAT_MIN}"
            )
    if problems:
        refuse("\n- ".join([f"Invalid schema for v{format_version}:", *problems]))


def _checked_type(type_: object, depth: int) -> Type:
    if isinstance(type_, str):
        return canonical_type(type_)
    if depth > _DEPTH_MAX:
        refuse(f"Cannot parse type: nested deeper than {_DEPTH_MAX} levels")
    if isinstance(type_, dict):
        match type_.get("type"):
            case "struct":
                return _checked_struct(type_, depth)
            case "list":
                read_int(type_, "element-id")
                read_bool(type_, "element-required")
                return {**type_, "element": _checked_type(type_.get("element"), depth + 1)}
            case "map":
                read_int(type_, "key-id")
                read_int(type_, "value-id")
                read_bool(type_, "value-required")
                key, value = _checked_type(type_.get("key"), depth + 1), _checked_type(type_.get("value"), depth + 1)
                return {**type_, "key": key, "value": value}
    raise InvalidInput(f"Cannot parse type from json: {type_!r}")


def _checked_struct(struct: Json, depth: int) -> Json:
    fields = [_checked_field(field, depth) for field in read_objects(struct, "fields")]
    return {**struct, "type": "struct", "fields": fields}


def _checked_field(field: Json, depth: int) -> Json:
    read_int(field, "id")
    name, is_required = read_text(field, "name"), read_bool(field, "required")
    read_text_or_none(field, "doc")
    type_ = _checked_type(field.get("type"), depth + 1)
    if is_required and type_ == "unknown":
        refuse(f"Cannot create required field with unknown type: {name}")
    for default in _DEFAULTS:
        if default in field:
            check_default(type_, field[default])
    return {**field, "type": type_}


def _check_identifier(id_: int, columns: Columns) -> None:
    column = columns.by_id.get(id_)
    if column is None:
        refuse(f"Cannot add fieldId {id_} as an identifier field: field does not exist")
    reason = None
    if not is_primitive(column.type):
        reason = "not a primitive type field"
    elif not column.is_required:
        reason = "not a required field"
    elif column.type in ("float", "double"):
        reason = "must not be float or double field"
    for parent in columns.ancestors(column):
        if kind_of(parent.type) != "struct":
            reason = reason or f"must not be nested in {parent.name}"
        elif not parent.is_required:
            reason = reason or f"must not be nested in an optional field {parent.name}"
    if reason:
        refuse(f"Cannot add field {column.name} as an identifier field: {reason}")


# --- comparison ------------------------------------------------------------------------------------------------------


def same_schema(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Equal in all that Iceberg knows of a schema, except its id."""
    return _identifiers(one) == _identifiers(other) and _comparable(one) == _comparable(other)


def _identifiers(schema: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(schema.get("identifier-field-ids") or ())


def _comparable(type_: Any) -> Any:
    if isinstance(type_, str):
        return canonical_type(type_).upper()  # Java compares the names of coordinate systems without case
    match type_["type"]:
        case "list":
            return ("list", type_["element-id"], type_["element-required"], _comparable(type_["element"]))
        case "map":
            ids = (type_["key-id"], type_["value-id"], type_["value-required"])
            return ("map", *ids, _comparable(type_["key"]), _comparable(type_["value"]))
    return [
        (f["id"], f["name"], f["required"], f.get("doc"), *map(f.get, _DEFAULTS), _comparable(f["type"]))
        for f in type_["fields"]
    ]


# --- numbering -------------------------------------------------------------------------------------------------------


def fresh_schema(schema: Json) -> tuple[Json, dict[int, int]]:
    """A checked schema numbered from 1, and which old id became which new one.

    The order is Java's, because tests and people compare the two: all fields of a struct first, then what is in them.
    """
    new_ids: dict[int, int] = {}

    def next_id(old: int) -> int:
        new_ids[old] = len(new_ids) + 1
        return new_ids[old]

    fresh = {**_fresh_struct(schema, next_id), "schema-id": 0}
    if identifiers := schema.get("identifier-field-ids"):
        fresh["identifier-field-ids"] = sorted({new_ids[id_] for id_ in identifiers})
    return fresh, new_ids


def _fresh_type(type_: Type, next_id: Callable[[int], int]) -> Type:
    if isinstance(type_, str):
        return type_
    match type_["type"]:
        case "list":
            id_ = next_id(type_["element-id"])
            return {**type_, "element-id": id_, "element": _fresh_type(type_["element"], next_id)}
        case "map":
            ids = {"key-id": next_id(type_["key-id"]), "value-id": next_id(type_["value-id"])}
            key = _fresh_type(type_["key"], next_id)
            return {**type_, **ids, "key": key, "value": _fresh_type(type_["value"], next_id)}
    return _fresh_struct(type_, next_id)


def _fresh_struct(struct: Json, next_id: Callable[[int], int]) -> Json:
    ids = [next_id(field["id"]) for field in struct["fields"]]
    fields = [
        {**field, "id": id_, "type": _fresh_type(field["type"], next_id)}
        for field, id_ in zip(struct["fields"], ids, strict=True)
    ]
    return {**struct, "fields": fields}
