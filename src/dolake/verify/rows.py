"""How the row of a key differs from its last change, column by column.

From run.py, for the keys that folding.py found. Only these few rows are read again, from the Parquet files themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dolake.positions import Position
from dolake.tables.layout import RESCUED
from dolake.verify.base import Check, short
from dolake.verify.files import DataFile
from dolake.verify.folding import Different
from dolake.verify.loading import Shapes, pattern_of, rescued_of
from dolake.verify.shapes import Side

if TYPE_CHECKING:
    import duckdb

_COLUMNS_MAX = 5


def name_columns(
    connection: duckdb.DuckDBPyConnection,
    shapes: Shapes,
    state_files: Sequence[DataFile],
    changes_files: Sequence[DataFile],
    found: Sequence[Different],
    check: Check,
) -> None:
    """A sentence for each of these keys; they are counted already."""
    side = shapes.changes
    wanted_values = [rescued_of(side), *side.values(shapes.columns)]
    changes = values_at(connection, side, changes_files, {each.position for each in found}, wanted_values)
    names = [RESCUED, *(column.name for column in shapes.columns)]
    for each in found:
        row = _row_at(connection, shapes, state_files[each.file], each.row)
        wanted = changes.get(each.position, ())
        parts = [
            f"{name} is {short(ours)}, and {short(theirs)} in its last change"
            for name, ours, theirs in zip(names, row, wanted, strict=False)
            if ours != theirs
        ]
        how = "; ".join(parts[:_COLUMNS_MAX]) or "its checksum is another"
        check.differences.append(f"{each.key}, changed at position {each.position}: {how}")


def values_at(
    connection: duckdb.DuckDBPyConnection,
    side: Side,
    files: Sequence[DataFile],
    positions: Iterable[Position],
    values: Iterable[str],
) -> dict[Position, tuple[Any, ...]]:
    """These values, given as SQL, of the changes at these positions."""
    position = side.of("_position", "long")
    query = (
        f"SELECT {position}, {', '.join(values)} FROM {_source(side)} WHERE {position} IN (SELECT unnest($positions))"  # noqa: S608 - names are ours
    )
    patterns = [pattern_of(file.data) for file in files]
    found = _fetched(connection, query, {"files": patterns, "positions": list(positions)})
    return {row[0]: row[1:] for row in found}


def _row_at(connection: duckdb.DuckDBPyConnection, shapes: Shapes, file: DataFile, row: int) -> tuple[Any, ...]:
    side = shapes.state
    values = ", ".join([side.of(RESCUED), *side.values(shapes.columns)])
    query = f"SELECT {values} FROM {_source(side)} WHERE file_row_number = $row"  # noqa: S608 - names are ours
    return next(_fetched(connection, query, {"files": [pattern_of(file.data)], "row": row}), ())


def _fetched(connection: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """By way of Arrow: DuckDB itself would want pytz for a moment in time."""
    columns = connection.execute(query, values).to_arrow_table().columns
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _source(side: Side) -> str:
    return f"read_parquet($files, schema = {side.parquet_schema})"
