"""The two Iceberg tables of a source table: their columns, names and properties.

From the pipeline, which creates and grows them. Pure: Iceberg's schemas are its own JSON here. `ns.orders` is the
state, one row per key; `ns.orders__changes` has one row per change. Promise: `columns_of` gives back what a schema was
made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dolake.tables.names import split_table_name
from dolake.tables.types import Columns, Field, ListType, StructType, Type, decimal_of, parse_type, source_name

Json = dict[str, Any]

KEY, RESCUED, BEFORE, SOURCE = "_key", "_rescued", "_before", "_source"
CHANGES_SUFFIX, QUARANTINE_SUFFIX = "__changes", "__quarantine"
MANAGED, OURS = "dolake.managed", "dolake.table"
"""What only the pipeline writes to; and what the pipeline has made, with the source's name."""
_STATE_OWN: Columns = (Field(KEY, "string"), Field(RESCUED, "string"), Field(SOURCE, "string"))
_CHANGES_OWN: Columns = (
    Field(KEY, "string"),
    Field("_operation", "string"),
    Field("_sequence", "long"),
    Field(SOURCE, "string"),
    Field("_timestamp", "timestamptz"),
    Field("_commit_timestamp", "timestamptz"),
    Field("_position", "long"),
    Field("_transaction", "string"),
    Field("_previous_key", "string"),
    Field(RESCUED, "string"),
)
_NO_COMMENTS: Mapping[str, str] = {}
_REQUIRED = frozenset((KEY, "_operation", "_sequence", SOURCE, "_timestamp", "_commit_timestamp", "_position"))


DDL_OPERATIONS = {
    "create": "CREATE",
    "truncate": "TRUNCATE",
    "drop": "DROP",
    "rename": "RENAME",
    "rename_column": "ALTER",
    "drop_column": "ALTER",
}
"""What a table of changes calls what was done to the table itself. Such a change has no key."""
FORGOTTEN = "FORGOTTEN"
"""What a table of changes calls a change of a key that was forgotten: its place and time stay, key and row are gone."""
GUESSES = "dolake.guesses"
"""A property of a table of changes: its columns whose type was only guessed, each with whether it has a value."""
RESCUED_COLUMNS = "dolake.rescued"
"""A property of a state: the columns of which values did not fit since it was made, or since they got another type."""
CLEARED = "dolake.cleared"
"""A property of a table of changes: the position at which the state was last emptied."""
CLEARING = ("TRUNCATE", "DROP")
"""After these a table has no row."""
NO_KEY = ""


def table_names(table: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The full names of the state table and the changes table."""
    namespace, name = split_table_name(table)
    return (*namespace, name), (*namespace, name + CHANGES_SUFFIX)


def state_schema(columns: Columns, *, has_source: bool, comments: Mapping[str, str] = _NO_COMMENTS) -> Json:
    """One row per key. The source is part of the key where shards reuse row ids, and stands there only then."""
    own = _STATE_OWN if has_source else _STATE_OWN[:-1]
    schema = _schema((*own, *columns), comments)
    keys = (KEY, SOURCE) if has_source else (KEY,)
    return schema | {"identifier-field-ids": [field["id"] for field in schema["fields"] if field["name"] in keys]}


def changes_schema(columns: Columns, comments: Mapping[str, str] = _NO_COMMENTS) -> Json:
    """One row per change: ours, the row before it, and the row after it (before it, for a DELETE)."""
    before = (Field(BEFORE, StructType(columns)),) if columns else ()
    return _schema((*_CHANGES_OWN, *before, *columns), comments)


def columns_of(schema: Json) -> Columns:
    """The source's columns of a state table or a changes table, as Iceberg has them now."""
    return tuple(
        Field(field["name"], type_of(field["type"]))
        for field in schema["fields"]
        if source_name(field["name"]) is not None and is_known(field["type"])
    )


def is_known(type_: Any) -> bool:
    """Whether values can be written as this type. Somebody else may have made the table, with types of their own."""
    if isinstance(type_, str):
        return parse_type(type_) == type_ or decimal_of(type_) is not None
    inside = [type_["element"]] if type_["type"] == "list" else [field["type"] for field in type_.get("fields", ())]
    # Arrow makes a column of uuids from Python's values, but not a list or an object with one in it.
    return type_["type"] in ("list", "struct") and all(each != "uuid" and is_known(each) for each in inside)


def properties(table: str, format_version: int = 2) -> dict[str, str]:
    """What both tables say of themselves."""
    return {
        MANAGED: "true",
        OURS: table,
        "format-version": str(format_version),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.delete.granularity": "file",
        # Each publish adds a manifest or two and looks into all that may hold what it replaces: so keep them few.
        "commit.manifest.min-count-to-merge": "4",
    }


def _schema(fields: Columns, comments: Mapping[str, str]) -> Json:
    """Iceberg's JSON; the ids are provisional, the catalog gives the real ones."""
    ids = iter(range(1, 1_000_000))
    found = [_field(field, ids, _REQUIRED) for field in fields]
    found = [each | {"doc": comments[each["name"]]} if each["name"] in comments else each for each in found]
    return {"type": "struct", "schema-id": 0, "fields": found}


def _field(field: Field, ids: Any, required: frozenset[str] = frozenset()) -> Json:
    id_ = next(ids)
    return {"id": id_, "name": field.name, "required": field.name in required, "type": _type(field.type, ids)}


def _type(type_: Type, ids: Any) -> Any:
    match type_:
        case StructType():
            return {"type": "struct", "fields": [_field(field, ids) for field in type_.fields]}
        case ListType():
            return {
                "type": "list",
                "element-id": next(ids),
                "element-required": False,
                "element": _type(type_.element, ids),
            }
        case _:
            return type_


def type_of(type_: Any) -> Type:
    """An Iceberg type as it is in metadata; for those that is_known."""
    if isinstance(type_, str):
        return type_
    if type_["type"] == "list":
        return ListType(type_of(type_["element"]))
    return StructType(tuple(Field(field["name"], type_of(field["type"])) for field in type_["fields"]))
