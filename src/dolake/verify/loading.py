"""Every change and every live row of a table into the workshop, with a checksum each.

From run.py, table by table; to all checks. Files are read in groups, so that neither a table of many files nor a broken
one is a problem. Promise: what cannot be read is named, and everything else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dolake.tables.layout import BEFORE, KEY, RESCUED, SOURCE
from dolake.verify.base import Advance, Check
from dolake.verify.files import DataFile, StoredRows
from dolake.verify.shapes import Column, Side, checksum, shared_columns, side_of

if TYPE_CHECKING:
    import duckdb

_FILES_AT_ONCE = 500
_ROWS_AT_ONCE = 500_000
"""So that looking for deleted rows stays within memory: ten million rows at once took four times as long."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """How the two tables are read so that their rows can be compared."""

    columns: list[Column]
    conflicts: list[str]
    state: Side
    changes: Side
    has_scope: bool
    """Whether the source is part of the key."""


@dataclass(slots=True)
class Loaded:
    """How many rows are in the workshop now, and from which files: those that could be read."""

    rows: int
    files: list[DataFile]


def shapes_of(
    state_schema: dict[str, Any], changes_schema: dict[str, Any], earlier: Sequence[dict[str, Any]] = ()
) -> Shapes:
    """`earlier` are the schemas that the changes once had."""
    columns, conflicts = shared_columns(state_schema, changes_schema)
    state, changes = side_of(state_schema, columns), side_of(changes_schema, columns, earlier)
    return Shapes(columns, conflicts, state, changes, SOURCE in state.expressions)


def load_changes(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    shapes: Shapes,
    files: Sequence[DataFile],
    check: Check,
    advance: Advance,
) -> Loaded:
    """One row per change."""
    side = shapes.changes
    values = [
        "$number",
        side.of("_position", "long"),
        side.of(SOURCE),
        side.of("_sequence", "long"),
        f"epoch_us({side.of('_commit_timestamp', 'timestamptz')})",
        side.of(SOURCE) if shapes.has_scope else "''",
        side.of(KEY),
        side.of("_operation"),
        _row_checksum(side, rescued_of(side), shapes.columns),
        f"{side.of(BEFORE)} IS NOT NULL",
        side.of("_previous_key"),
    ]
    insert = f"""
        INSERT INTO changes SELECT {", ".join(values)}
        FROM read_parquet($files, schema = {side.parquet_schema})
    """  # noqa: S608 - the names are ours, types and nested names are quoted

    def load(group: Sequence[DataFile]) -> int:
        return _run(connection, insert, {"number": number, "files": _patterns(group)})

    return _load_groups(files, load, check, advance)


def load_state(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    shapes: Shapes,
    files: Sequence[DataFile],
    check: Check,
    advance: Advance,
) -> Loaded:
    """One row per live row of the state, with its place: the file's number in `files`, and the row in it."""
    side = shapes.state
    values = [
        "$number",
        side.of(SOURCE) if shapes.has_scope else "''",
        side.of(KEY),
        _row_checksum(side, side.of(RESCUED), shapes.columns),
        "$base + file_index",
        "file_row_number",
    ]
    insert = f"""
        INSERT INTO state SELECT {", ".join(values)}
        FROM read_parquet($files, schema = {side.parquet_schema})
        WHERE NOT EXISTS (FROM deletes WHERE file = $base + file_index AND row = file_row_number)
    """  # noqa: S608 - the names are ours, types and nested names are quoted
    numbers = {file.data.location: at for at, file in enumerate(files)}

    def load(group: Sequence[DataFile]) -> int:
        deleted = _load_deletes(connection, group, numbers)
        base = numbers[group[0].data.location]  # groups follow each other, so the numbers inside one do too
        return deleted + _run(connection, insert, {"number": number, "base": base, "files": _patterns(group)})

    loaded = _load_groups(files, load, check, advance)
    found = connection.execute("SELECT count(*) FROM state WHERE number = $number", {"number": number}).fetchone()
    return Loaded(int(found[0]) if found else 0, loaded.files)


def rescued_of(changes: Side) -> str:
    """What a change rescued of its own row, as SQL: what the row before it rescued is not in the state."""
    kept = changes.of(RESCUED)
    return f"CASE WHEN contains({kept}, '\"{BEFORE}\"') THEN without_before({kept}) ELSE {kept} END"


def _row_checksum(side: Side, rescued: str, columns: Iterable[Column]) -> str:
    return checksum([(rescued, "string"), *((side.of(each.name, each.type), each.type) for each in columns)])


def _load_deletes(connection: duckdb.DuckDBPyConnection, group: Sequence[DataFile], numbers: dict[str, int]) -> int:
    """The rows of these files that are deleted; returns how many they are."""
    connection.execute("DELETE FROM deletes")
    found = sum(
        _load_vector(connection, numbers[each.data.location], each.vector) for each in group if len(each.vector)
    )
    paths = [pattern_of(path) for path in {file: None for each in group for file in each.deletes}]
    if not paths:
        return found
    names = [each.data.location for each in group]
    insert = """
        INSERT INTO deletes SELECT DISTINCT named.number, pos
        FROM read_parquet($paths)
        JOIN (SELECT unnest($names) AS name, unnest($numbers) AS number) AS named ON named.name = file_path
    """
    numbered = [numbers[name] for name in names]
    return found + _run(connection, insert, {"paths": paths, "names": names, "numbers": numbered})


def _load_vector(connection: duckdb.DuckDBPyConnection, number: int, rows: NDArray[np.uint32]) -> int:
    """Where the deleted rows of a data file are a vector."""
    return _run(connection, "INSERT INTO deletes SELECT $number, unnest($rows)", {"number": number, "rows": rows})


def _load_groups(
    files: Sequence[DataFile], load: Callable[[Sequence[DataFile]], int], check: Check, advance: Advance
) -> Loaded:
    """Group by group; one that cannot be read, in halves, until the broken file is alone and can be named."""
    import duckdb

    waiting = list(_groups(files))
    loaded = Loaded(0, [])
    while waiting:
        group = waiting.pop(0)
        expected = sum(file.data.rows for file in group)
        try:
            found = load(group)
        except (duckdb.OutOfMemoryException, duckdb.InterruptException):
            raise
        except duckdb.Error as error:
            if len(group) > 1:
                half = len(group) // 2
                waiting[:0] = [group[:half], group[half:]]
                continue
            check.differ(f"{group[0].data.location} cannot be read: {str(error).partition(chr(10))[0]}")
        else:
            loaded.rows += found
            loaded.files += group
            if found != expected:
                check.differ(_row_counts(group, found, expected))
        advance(expected)
    return loaded


def _groups(files: Sequence[DataFile]) -> Iterator[Sequence[DataFile]]:
    """One after the other: so many files, or so many rows, but one file at least."""
    start = rows = 0
    for at, file in enumerate(files):
        if at > start and (at - start == _FILES_AT_ONCE or rows + file.data.rows > _ROWS_AT_ONCE):
            yield files[start:at]
            start, rows = at, 0
        rows += file.data.rows
    if files:
        yield files[start:]


def _row_counts(group: Sequence[DataFile], found: int, expected: int) -> str:
    where = group[0].data.location
    if len(group) > 1:
        where = f"{len(group)} files beginning with {where}"
    return f"{where}: {found} rows are there; the table says {expected}"


def _run(connection: duckdb.DuckDBPyConnection, insert: str, values: dict[str, Any]) -> int:
    answer = connection.execute(insert, values).fetchone()
    return int(answer[0]) if answer else 0


def _patterns(group: Sequence[DataFile]) -> list[str]:
    return [pattern_of(file.data) for file in group]


def pattern_of(file: StoredRows) -> str:
    """DuckDB takes a path for a pattern: what would be one stands in brackets."""
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in str(file.path))
