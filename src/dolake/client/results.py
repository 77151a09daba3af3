"""What a question brought back: rows, columns, and how fresh they are.

From reading.py; to the caller. Rows become Python values only when somebody looks at them, so that an answer that goes
on to pandas or Polars is never turned into objects on the way.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from dolake.client.rows import Row, layout_of
from dolake.client.values import reader_of
from dolake.errors import NotFound, QueryUnavailable
from dolake.positions import START, Position

if TYPE_CHECKING:
    import pyarrow as pa


class Column(msgspec.Struct, frozen=True, rename="camel"):
    """One column of an answer; `type` is its SQL type, such as `DECIMAL(10,2)`."""

    name: str
    type: str
    nullable: bool = True


class SourceFreshness(msgspec.Struct, frozen=True, rename="camel"):
    """How much of one source an answer includes."""

    sequence: int = 0


class FilesRead(msgspec.Struct, frozen=True, rename="camel"):
    """How many data files were read, and how many could be left out."""

    read: int = 0
    pruned: int = 0


class CopiedRows(msgspec.Struct, frozen=True, rename="camel"):
    """How far the copy of a table is; `total` is about how many rows there are."""

    copied: int = 0
    total: int = 0


class Freshness(msgspec.Struct, frozen=True, rename="camel"):
    """How fresh an answer is, and what was read for it."""

    position: Position = START
    age_ms: int | float = 0
    sources: dict[str, SourceFreshness] = {}
    snapshots: dict[str, str | None] = {}
    engine: str = ""
    engine_reason: str = ""
    files: FilesRead = FilesRead()
    tail_rows: int = 0
    as_of: datetime | None = None
    copying: dict[str, CopiedRows] = {}
    """Tables whose copy is not complete yet: the answer lacks rows of them."""


class Notes(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Everything that an answer says beside its rows."""

    query_id: str = ""
    columns: list[Column] = []
    warnings: list[str] = []
    freshness: Freshness = Freshness()
    truncated: bool = False
    elapsed_ms: int | float | None = None


class JsonAnswer(Notes, frozen=True, rename="camel", kw_only=True):
    """An answer in JSON. The rows stay bytes until somebody looks at them."""

    rows: msgspec.Raw = msgspec.Raw(b"[]")
    row_count: int = 0


class QueryResult:
    """The answer to one question, or one batch of it.

    result = await lake.query("SELECT city, SUM(total) AS total FROM orders GROUP BY city")
    for row in result:
        print(row.city, row.total)
    """

    def __init__(self, notes: Notes, *, table: pa.Table | None = None, rows: msgspec.Raw | None = None) -> None:
        self.columns: list[Column] = list(notes.columns)
        self.freshness: Freshness = notes.freshness
        self.warnings: list[str] = list(notes.warnings)
        self.query_id: str = notes.query_id
        self.truncated: bool = notes.truncated
        """Whether there was more, and a limit cut it."""
        self.elapsed_ms: float | None = notes.elapsed_ms
        self._notes = notes
        self._table = table
        self._raw = rows

    @classmethod
    def from_json(cls, data: bytes) -> QueryResult:
        """A whole answer in JSON."""
        try:
            answer = msgspec.json.decode(data, type=JsonAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QueryUnavailable(f"the answer is not what was agreed: {error}") from None
        return cls(answer, rows=answer.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, with values as Python has them."""
        layout = layout_of([column.name for column in self.columns])
        return [Row(layout, values) for values in zip(*self._values().values(), strict=True)]

    def first(self) -> Row | None:
        """The first row; None when there is none."""
        return self.rows[0] if self.rows else None

    def scalar(self) -> Any:
        """The first value of the first row; None when there is none."""
        row = self.first()
        return None if row is None else row[0]

    def __len__(self) -> int:
        return len(self.rows) if self._table is None else int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __bool__(self) -> bool:
        """An answer is there, also one without rows."""
        return True

    def __repr__(self) -> str:
        names = ", ".join(column.name for column in self.columns)
        return f"<QueryResult: {len(self)} rows of {names}>"

    def to_arrow(self) -> pa.Table:
        """A pyarrow Table, with nothing copied."""
        if self._table is None:
            raise _missing("to_arrow()", "pyarrow")
        return self._table

    def to_pandas(self, **options: Any) -> Any:
        """A pandas DataFrame; `options` go to pyarrow's `Table.to_pandas`."""
        pandas = _package("to_pandas()", "pandas")
        return pandas.DataFrame(self._values()) if self._table is None else self._table.to_pandas(**options)

    def to_polars(self) -> Any:
        """A Polars DataFrame."""
        polars = _package("to_polars()", "polars")
        if self._table is None:
            return polars.DataFrame(self._values())
        from dolake.client.arrow import with_durations

        return polars.from_arrow(with_durations(self._table))

    def _values(self) -> dict[str, list[Any]]:
        """Each column's values."""
        if self._table is not None:
            from dolake.client.arrow import python_values

            return {name: python_values(self._table[index]) for index, name in enumerate(self._table.column_names)}
        found = msgspec.json.decode(self._raw or b"[]", type=list[dict[str, Any]])
        columns: dict[str, list[Any]] = {}
        for column in self.columns:
            values = [row.get(column.name) for row in found]
            read = reader_of(column.type)
            columns[column.name] = (
                values if read is None else [None if value is None else read(value) for value in values]
            )
        return columns


def joined(parts: Sequence[QueryResult]) -> QueryResult:
    """One answer of its batches. What is known only at the end stands in the last one."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    import pyarrow as pa  # only Arrow comes in batches

    return QueryResult(last._notes, table=pa.concat_tables([part.to_arrow() for part in parts]))


def _package(use: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _missing(use, name) from None


def _missing(use: str, name: str) -> NotFound:
    return NotFound(f"{use} needs {name}, which is not installed", hint=f"pip install {name}")
