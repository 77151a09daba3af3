"""Keys that have moved, as far as the table of changes shows it: it does not say from which key a row has come.

From run.py, for keys that should have a row and have none, and whose fate the journal no longer knows. Such a key
counts as moved if a later UPDATE of another key has its row as the row before it, in every column that the source sent
of that, and has not found the same in the row that its own key had. Promise: one UPDATE excuses one key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolake.positions import Position
from dolake.tables.layout import BEFORE
from dolake.verify.files import DataFile
from dolake.verify.loading import Shapes
from dolake.verify.rows import values_at
from dolake.verify.shapes import quoted

if TYPE_CHECKING:
    import duckdb

LOOKED_AT_MAX = 100_000
"""So many keys and updates are looked at, in memory; a lake that moves more of them needs its journal."""

_MISSING = "SELECT scope, key, position FROM suspects WHERE kind = 'missing' ORDER BY position LIMIT $limit"
_UPDATES = """
WITH own AS (
    SELECT scope, position, operation, has_before,
        lag(position) OVER earlier AS own_position, lag(operation) OVER earlier AS own_operation
    FROM changes WHERE number = $number WINDOW earlier AS (PARTITION BY scope, key ORDER BY position)
)
SELECT scope, position, CASE WHEN own_operation <> 'DELETE' THEN own_position END FROM own
WHERE operation = 'UPDATE' AND has_before AND position < $oldest AND position > $first ORDER BY position LIMIT $limit
"""
Image = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Gone:
    """A key that should have a row."""

    scope: str
    key: str
    position: Position


def excuse_moved(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    shapes: Shapes,
    changes_files: Sequence[DataFile],
    oldest: Position,
) -> None:
    """Mark those of the missing keys in `suspects` that have moved before the journal begins."""
    gone = [_Gone(*row) for row in connection.execute(_MISSING, {"limit": LOOKED_AT_MAX}).fetchall()]
    columns = [column for column in shapes.columns if column.name in shapes.changes.expressions]
    if not gone or not columns:
        return
    asked = {"number": number, "oldest": oldest, "first": gone[0].position, "limit": LOOKED_AT_MAX}
    updates = connection.execute(_UPDATES, asked).fetchall()
    own = [shapes.changes.of(column.name) for column in columns]
    before = [f"{shapes.changes.of(BEFORE)}.{quoted(column.name)}" for column in columns]
    texts = [
        [
            f"to_json({each})" if not isinstance(column.type, str) else each
            for each, column in zip(side, columns, strict=True)
        ]
        for side in (own, before)
    ]
    seen = {each.position for each in gone} | {at for _, _, at in updates if at is not None}
    images = values_at(connection, shapes.changes, changes_files, seen, texts[0])
    befores = values_at(connection, shapes.changes, changes_files, {at for _, at, _ in updates}, texts[1])
    _mark(connection, _moved(gone, updates, images, befores))


def _moved(
    gone: Sequence[_Gone],
    updates: Sequence[tuple[str, Position, Position | None]],
    images: dict[Position, Image],
    befores: dict[Position, Image],
) -> list[_Gone]:
    """Which of these keys an update has taken along; both are in the order of their positions."""
    found: dict[_Gone, None] = {}
    by_columns: dict[tuple[int, ...], dict[tuple[str, Image], list[_Gone]]] = {}
    for scope, position, own_position in updates:
        before = befores[position]
        sent = tuple(at for at, value in enumerate(before) if value is not None)
        wanted = tuple(before[at] for at in sent)
        if not sent or (own_position is not None and _part(images[own_position], sent) == wanted):
            continue
        if sent not in by_columns:
            by_columns[sent] = defaultdict(list)
            for each in gone:
                by_columns[sent][each.scope, _part(images[each.position], sent)].append(each)
        waiting = by_columns[sent][scope, wanted]
        taken = next((each for each in waiting if each.position < position and each not in found), None)
        if taken is not None:
            waiting.remove(taken)
            found[taken] = None
    return list(found)


def _part(image: Image, columns: tuple[int, ...]) -> Image:
    return tuple(image[at] for at in columns)


def _mark(connection: duckdb.DuckDBPyConnection, moved: Sequence[_Gone]) -> None:
    if not moved:
        return
    connection.register(
        "piece", pa.table({"scope": [each.scope for each in moved], "key": [each.key for each in moved]})
    )
    connection.execute("UPDATE suspects SET kind = 'moved' WHERE (scope, key) IN (SELECT (scope, key) FROM piece)")
    connection.unregister("piece")
