"""The columns of state and changes side by side, as DuckDB reads them from Parquet files.

From loading.py and rows.py. Pure: Iceberg's schemas in, pieces of SQL out. Columns are found by their field ids, so a
file of any age fits, and get names of ours (`c7`), so that no column of a source can be taken for one of DuckDB's.
Promise: a column has one type on both sides, also while one table has a field that the other does not have yet; two
rows with equal checksums are equal but for the sign of zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dolake.tables.layout import BEFORE
from dolake.tables.types import decimal_of, source_name

Json = dict[str, Any]
_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "uuid": "UUID",
    "binary": "BLOB",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the source as both tables can hold it."""

    name: str
    type: Any


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two tables: how its files are read, and where its columns are in what was read."""

    parquet_schema: str
    expressions: dict[str, str]

    def of(self, name: str, type_: Any = "string") -> str:
        """A column as SQL; null where this table does not have it."""
        return self.expressions.get(name) or f"CAST(NULL AS {type_name(type_)})"

    def values(self, columns: Iterable[Column]) -> list[str]:
        return [self.of(column.name, column.type) for column in columns]


def shared_columns(state: Json, changes: Json) -> tuple[list[Column], list[str]]:
    """The source's columns of both tables, and those that are of different types there, which cannot be compared."""
    found: dict[str, Any] = {}
    conflicts = []
    for field in (*state["fields"], *changes["fields"]):
        name = field["name"]
        if source_name(name) is None or name in conflicts:
            continue
        try:
            found[name] = _merged(found[name], field["type"]) if name in found else field["type"]
        except TypeError:
            conflicts.append(name)
            del found[name]
    return [Column(name, type_) for name, type_ in found.items()], conflicts


def side_of(schema: Json, columns: Iterable[Column], earlier: Iterable[Json] = ()) -> Side:
    """How the files of this table are read, with types that hold what the other table has too.

    `earlier` are the schemas that it had: DuckDB finds the parts of a struct by name, and refuses a file that has none
    of them, such as one from before all columns got other names.
    """
    types = {column.name: column.type for column in columns}
    entries, expressions = [], {}
    for field in schema["fields"]:
        own, name = f"c{field['id']}", field["name"]
        type_ = types.get(name, field["type"])
        if name == BEFORE:
            type_ = _before_type(field["type"], types, earlier)
        text = type_name(type_).replace("'", "''")
        entries.append(f"{field['id']}: {{name: '{own}', type: '{text}', default_value: NULL}}")
        expressions[name] = own
    return Side(f"MAP {{{', '.join(entries)}}}", expressions)


def checksum(values: Iterable[tuple[str, Any]]) -> str:
    """One number for all of these values, given as SQL and type.

    DuckDB's hash takes an empty list and an empty struct for a null, so these are hashed as their JSON text.
    """
    parts = [text if isinstance(type_, str) else f"to_json({text})" for text, type_ in values]
    return f"hash({', '.join(parts)})" if parts else "CAST(0 AS UBIGINT)"


def type_name(type_: Any) -> str:
    """DuckDB's word for an Iceberg type."""
    if isinstance(type_, str):
        return type_.upper() if decimal_of(type_) else _TYPES.get(type_, "VARCHAR")
    if type_["type"] == "list":
        return f"{type_name(type_['element'])}[]"
    fields = ", ".join(f"{quoted(field['name'])} {type_name(field['type'])}" for field in type_["fields"])
    return f"STRUCT({fields})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _before_type(type_: Json, types: dict[str, Any], earlier: Iterable[Json]) -> Json:
    """The row before a change has the columns of the table, so they are widened like these; and those it once had."""
    before = [field["type"] for schema in earlier for field in schema["fields"] if field["name"] == BEFORE]
    # DuckDB takes names that differ only in case for the same.
    once = {field["name"].casefold(): field for each in before for field in each["fields"]}
    now = {field["name"].casefold(): field for field in type_["fields"]}
    fields = [field | {"type": types.get(field["name"], field["type"])} for field in (once | now).values()]
    return type_ | {"fields": fields}


def _merged(one: Any, other: Any) -> Any:
    """A type that holds both; TypeError where there is none."""
    if isinstance(one, str) or isinstance(other, str):
        if one != other:
            raise TypeError(f"{one} is not {other}")
        return one
    if one["type"] != other["type"]:
        raise TypeError(f"{one['type']} is not {other['type']}")
    if one["type"] == "list":
        return one | {"element": _merged(one["element"], other["element"])}
    fields = {field["name"]: field for field in one["fields"]}
    for field in other["fields"]:
        known = fields.get(field["name"])
        fields[field["name"]] = known | {"type": _merged(known["type"], field["type"])} if known else field
    return one | {"fields": list(fields.values())}
