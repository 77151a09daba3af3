"""Pieces of DuckDB's SQL: names, texts, types, and a value of one type as another that has more fields.

From live.py, time_travel.py and history.py. Promise: whatever stands in a name or a text, it cannot end either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dolake.tables.types import Columns, Field, ListType, StructType, Type, decimal_of

_TYPES = {
    "long": "BIGINT",
    "int": "INTEGER",
    "double": "DOUBLE",
    "float": "FLOAT",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "uuid": "UUID",
    "binary": "BLOB",
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str | Path) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def moment(time_ms: int) -> str:
    """A time as a constant."""
    return f"make_timestamptz({time_ms * 1000})"


def iso(time_ms: int) -> str:
    """For people."""
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def names(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted, columns))


def type_sql(type_: Type) -> str:
    match type_:
        case StructType():
            return f"STRUCT({', '.join(f'{quoted(each.name)} {type_sql(each.type)}' for each in type_.fields)})"
        case ListType():
            return f"{type_sql(type_.element)}[]"
        case _:
            return type_.upper() if decimal_of(type_) else _TYPES[type_]


def selected(have: Columns, want: Columns) -> str:
    """The wanted columns from a table that has these: null where it has none, with more fields where it has fewer."""
    known = {each.name: each.type for each in have}
    return ", ".join(_column(each, known.get(each.name)) for each in want)


def _column(column: Field, have: Type | None) -> str:
    name = quoted(column.name)
    if have is None:
        return f"CAST(NULL AS {type_sql(column.type)}) AS {name}"
    return name if have == column.type else f"{_widened(name, have, column.type)} AS {name}"


def _widened(expression: str, have: Type, want: Type) -> str:
    if have == want:
        return expression
    match have, want:
        case StructType(), StructType():
            parts = _parts(expression, have.fields, want.fields)
            return f"CASE WHEN {expression} IS NULL THEN NULL ELSE struct_pack({parts}) END"
        case ListType(), ListType():
            return f"list_transform({expression}, lambda each: {_widened('each', have.element, want.element)})"
        case "timestamptz", "string":  # as the pipeline writes it
            return f"(replace(CAST(make_timestamp(epoch_us({expression})) AS VARCHAR), ' ', 'T') || 'Z')"
        case "binary", "string":
            return f"to_base64({expression})"
        case _:
            return f"CAST({expression} AS {type_sql(want)})"


def _parts(expression: str, have: Sequence[Field], want: Sequence[Field]) -> str:
    known = {each.name: each.type for each in have}
    return ", ".join(
        f"{quoted(each.name)} := " + _part(f"{expression}.{quoted(each.name)}", known.get(each.name), each.type)
        for each in want
    )


def _part(expression: str, have: Type | None, want: Type) -> str:
    return f"CAST(NULL AS {type_sql(want)})" if have is None else _widened(expression, have, want)
