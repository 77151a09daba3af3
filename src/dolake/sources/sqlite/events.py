"""Rows of the outbox become changes: read by the shape that their table had, with key, images and types.

From source.py, which reads the rows; to the runner as Change. Pure, but for one question to the file: whether a row
that a REPLACE may have deleted is still there.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dolake.changes import Change
from dolake.sources.sqlite.naming import lake_name
from dolake.sources.sqlite.store import Store
from dolake.sources.sqlite.tables import Shape, quoted
from dolake.sources.sqlite.triggers import (
    CONTROL,
    COPY,
    DELETE,
    GONE,
    INSERT,
    OUTBOX_HEAD,
    SUSPECT,
    UPDATE,
    names_in_trigger,
    trigger_name,
)
from dolake.sources.sqlite.values import Value, image_maker, key_text, mark_for, reading_any_text

logger = logging.getLogger("dolake.sources.sqlite")
_HEAD = len(OUTBOX_HEAD)
Row = Sequence[Any]


class Reader:
    """How rows of one shape are read."""

    def __init__(self, shape_id: int, shape: Shape, table: str) -> None:
        self.shape_id = shape_id
        self.table = table
        self.shape = shape
        self.width = len(shape.columns)
        self.image = image_maker(shape.names, [column.type for column in shape.columns])
        self._single = shape.key[0] if len(shape.key) == 1 else None
        self._is_text = len(shape.key) == 1 and shape.columns[shape.key[0]].is_text
        self.schema = [
            {"name": column.name, "type": column.type, "nullable": column.nullable, "key": index in shape.key}
            for index, column in enumerate(shape.columns)
        ]

    def key(self, values: Sequence[Value], rowid: int | None) -> str:
        """The key of a row of which these are all values."""
        if self._single is not None and type(value := values[self._single]) is int:
            return str(value)  # by far the commonest kind
        return self.key_of([values[index] for index in self.shape.key], rowid)

    def key_of(self, parts: Sequence[Value], rowid: int | None) -> str:
        return key_text(parts, rowid, is_text=self._is_text)


class Translator:
    """Makes changes of outbox rows, for one stream."""

    def __init__(self, store: Store, namespace: str, *, is_shared: bool = False) -> None:
        self._store = store
        self._is_shared = is_shared
        self._namespace = namespace
        self._readers: dict[int, Reader] = {}
        self._announced: set[int] = set()

    def begin_anew(self) -> None:
        """Whoever listens may be another: tell the types again."""
        self._announced.clear()

    def table_name(self, name: str) -> str:
        return f"{self._namespace}.{lake_name(name)}" if self._namespace else lake_name(name)

    def changes(self, rows: Iterable[Row], epoch: int, last: int) -> list[Change]:
        """The changes of one group that ends at `last`; those between two words about tables are one transaction."""
        found: list[Change] = []
        part: list[tuple[Change, dict[str, Any]]] = []
        for row in rows:
            if row[3] == CONTROL:
                _close(part, found, f"{epoch}.{row[0]}")
                found += self._control(row)
            elif made := self._change(row):
                part.append(made)
        _close(part, found, f"{epoch}.{last}")
        return found

    def reader(self, shape_id: int) -> Reader:
        if shape_id not in self._readers:
            shape = self._store.shape(shape_id)
            self._readers[shape_id] = Reader(shape_id, shape, self.table_name(shape.name))
        return self._readers[shape_id]

    def _change(self, row: Row) -> tuple[Change, dict[str, Any]] | None:
        sequence, at, shape_id, operation, k, j = row[:_HEAD]
        reader = self.reader(shape_id)
        width = reader.width
        values = row[_HEAD : _HEAD + width]
        metadata: dict[str, Any] = {}
        before: dict[str, Any] | None = None
        after: dict[str, Any] | None = None
        if operation in (INSERT, COPY):
            word, key, after = "INSERT", reader.key(values, k), reader.image(values)
        elif operation == UPDATE:
            old = row[_HEAD + width : _HEAD + 2 * width]
            word, key, after, before = "UPDATE", reader.key(values, k), reader.image(values), reader.image(old)
            if (previous := reader.key(old, j)) != key:
                metadata["previousRowId"] = previous
        elif operation == DELETE:
            word, key, before = "DELETE", reader.key(values, k), reader.image(values)
        elif operation == SUSPECT:
            word, key = "DELETE", reader.key(values, k)
            if self._is_there(reader, values, k, key):
                return None
        else:
            assert operation == GONE, "nobody else writes here"
            word, key = "DELETE", str(values[0])
        if shape_id not in self._announced:
            metadata["schema"] = reader.schema
            self._announced.add(shape_id)
        return Change(reader.table, word, key, after, before, metadata, sequence, at), metadata  # type: ignore[arg-type]

    def _is_there(self, reader: Reader, values: Sequence[Value], rowid: int | None, key: str) -> bool:
        """Whether the table still has the row with this key. If it has not, the lake must not have it either.

        Where it was deleted and made anew meanwhile, its INSERT follows.
        """
        shape = reader.shape
        table, names = self._called_now(reader)
        named = [(quoted(names[index]), values[index]) for index in shape.key]
        if not named or any(value is None for _, value in named):
            named = [(str(shape.rowid), rowid)]
        columns = ", ".join([*(quoted(names[index]) for index in shape.key), shape.rowid or "NULL"])
        condition = " AND ".join(f"{name} = {mark_for(value)}" for name, value in named)
        try:
            with reading_any_text(self._store.db):
                rows = self._store.db.execute(
                    f"SELECT {columns} FROM {quoted(table)} WHERE {condition}",
                    [value for _, value in named],
                ).fetchall()
        except sqlite3.OperationalError:
            return False  # the table has changed or gone since, and is copied again or dropped behind this
        return any(reader.key_of(row[:-1], row[-1]) == key for row in rows)

    def _called_now(self, reader: Reader) -> tuple[str, Sequence[str]]:
        """The table and its columns by the names that they have in the file, as long as nobody has followed a rename.

        Whoever follows one copies the table, where somebody would ask here by a name that it no longer has.
        """
        name = trigger_name(reader.shape_id, "insert")
        statement = "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?"
        found = self._store.db.execute(statement, (name,)).fetchone()
        return (found[0], names_in_trigger(found[1])) if found else (reader.shape.name, reader.shape.names)

    def _control(self, row: Row) -> list[Change]:
        words = msgspec.json.decode(row[_HEAD])
        ddl = dict(words["ddl"])
        if self._is_shared and ddl["action"] in ("truncate", "drop", "rename"):
            return []  # the lake's table has rows of other shards
        if "to" in words:
            ddl["to"] = self.table_name(words["to"])
        reader = self.reader(row[2])
        return [Change(reader.table, "DELETE", "-", metadata={"ddl": ddl}, sequence=row[0], timestamp_ms=row[1])]


def _close(part: list[tuple[Change, dict[str, Any]]], found: list[Change], transaction: str) -> None:
    """These are one transaction, and the last of them ends it."""
    for _, metadata in part:
        metadata["transactionId"] = transaction
    if part:
        part[-1][1]["transactionEnd"] = True
    found += [change for change, _ in part]
    part.clear()
