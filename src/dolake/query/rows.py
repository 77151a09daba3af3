"""The answer about single rows: as JSON, in the form that SQL's answers have.

From lookup.py and rows_sql.py, which find the rows. Pure. Promise: a row has
the bytes that `POST /v1/query` would have for it, whoever found it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from dolake.errors import DoLakeError, NoSuchRow
from dolake.positions import Position
from dolake.query.rows_question import RowsQuestion
from dolake.query.sqltext import quoted, type_sql
from dolake.query.values import EXACT_MAX, json_values
from dolake.tables.layout import RESCUED
from dolake.tables.types import Columns, ListType, StructType, Type

_SIMPLE = re.compile("[a-z_][a-z0-9_]*")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """Rows as JSON in the order of the keys, and what is told beside them."""

    asked: RowsQuestion
    rows: Sequence[bytes | None]
    described: bytes
    """The columns, as JSON."""
    position: Position
    snapshot_id: int | None
    engine: str = "lookup"
    age_ms: int = 0
    as_of: str | None = None

    def body(self) -> bytes:
        """As it is sent. NoSuchRow where one row was asked for and is not there."""
        found = [row for row in self.rows if row is not None]
        freshness = _encode(
            {
                "position": self.position,
                "ageMs": self.age_ms,
                "asOf": self.as_of,
                "snapshot": None if self.snapshot_id is None else str(self.snapshot_id),
                "engine": self.engine,
            }
        )
        table = _encode(str(self.asked.name))
        head = b'{"table":' + table + b',"columns":' + self.described
        if not self.asked.is_single:
            rows = b",".join(row or b"null" for row in self.rows)
            count = str(len(found)).encode()
            return head + b',"rows":[' + rows + b'],"found":' + count + b',"freshness":' + freshness + b"}"
        if not found:
            hint = f"the answer is of position {self.position}"
            raise NoSuchRow(f"{self.asked.name} has no row {self.asked.keys[0][:200]!r}", hint=hint)
        return (
            head
            + b',"key":'
            + _encode(self.asked.keys[0])
            + b',"row":'
            + found[0]
            + b',"freshness":'
            + freshness
            + b"}"
        )


class RowMaker:
    """Rows of a table with these columns, one at a time."""

    def __init__(self, columns: Sequence[tuple[str, str]]) -> None:
        """By their names and DuckDB's types."""
        self._names = [_encode(name) + b":" for name, _ in columns]
        self._values = [_READERS.get(kind, _of_array) for _, kind in columns]
        self.described = _encode([{"name": name, "type": kind, "nullable": True} for name, kind in columns])

    @classmethod
    def of(cls, columns: Columns) -> RowMaker:
        return cls([(each.name, type_name(each.type)) for each in columns])

    def row(self, arrays: Sequence[pa.Array], rescued: pa.Array) -> bytes:
        """The first value of each; what did not fit its column is shown where there is something."""
        parts = [
            name + (_encode(value(array)) if array.null_count == 0 else b"null")
            for name, array, value in zip(self._names, arrays, self._values, strict=True)
        ]
        if rescued.null_count == 0:
            parts.append(_encode(RESCUED) + b":" + _encode(rescued[0].as_py()))
        return b"{" + b",".join(parts) + b"}"


def _of_array(array: pa.Array) -> Any:
    """As values.py has it, which is made for thousands of them."""
    return json_values(array)[0]


def _plain(array: pa.Array) -> Any:
    return array[0].as_py()


def _integer(array: pa.Array) -> Any:
    value = array[0].as_py()
    return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)


def _double(array: pa.Array) -> Any:
    value = array[0].as_py()
    return value if math.isfinite(value) else _of_array(array)


def _moment(array: pa.Array) -> Any:
    try:
        text = (_EPOCH + timedelta(microseconds=array[0].value)).isoformat(timespec="microseconds")
    except OverflowError:  # a year that Python does not have
        return _of_array(array)
    return text + "Z" if array.type.tz else text


def _uuid(array: pa.Array) -> Any:
    found = array[0].as_py()
    return str(UUID(bytes=found) if isinstance(found, bytes) else found)


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all of it is UTC, or has no zone
_READERS: dict[str, Callable[[pa.Array], Any]] = {
    "VARCHAR": _plain,
    "BOOLEAN": _plain,
    "INTEGER": _plain,
    "BIGINT": _integer,
    "DOUBLE": _double,
    "TIMESTAMP WITH TIME ZONE": _moment,
    "TIMESTAMP": _moment,
    "UUID": _uuid,
}


def type_name(type_: Type) -> str:
    """As DuckDB says it: quotes only where a name needs them."""
    match type_:
        case StructType():
            parts = ", ".join(f"{_part_name(each.name)} {type_name(each.type)}" for each in type_.fields)
            return f"STRUCT({parts})"
        case ListType():
            return f"{type_name(type_.element)}[]"
        case _:
            return type_sql(type_).replace(", ", ",")  # DECIMAL(12,2)


def _part_name(name: str) -> str:
    return name if _SIMPLE.fullmatch(name) else quoted(name)


def error_body(error: DoLakeError, status: int) -> bytes:
    kind = "internal_error" if type(error) is DoLakeError else error.code
    return _encode({"error": {"message": error.message, "type": kind, "code": status, "hint": error.hint}})
