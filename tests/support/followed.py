"""A SQLite file that is followed, and what a lake would make of its changes; without a lake."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from dolake.changes import Change
from dolake.sources.base import Standing
from dolake.sources.sqlite import SqliteSource
from tests.support.mirror import Mirror


def event_of(change: Change) -> dict[str, Any]:
    """As a lake is told of it."""
    return {
        "table": change.table,
        "operation": change.operation,
        "rowId": change.row_id,
        "before": change.before,
        "after": change.after,
        "metadata": change.metadata,
    }


class Followed:
    """A file, and a lake that listens to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.mirror = Mirror()
        self.events: list[dict[str, Any]] = []
        self.durable = 0

    def do(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def listen(self) -> list[dict[str, Any]]:
        """Everything that is new."""
        source = SqliteSource(self.path)
        standing = Standing(source._store.get("epoch") or 0, self.durable)
        source.resume(standing)
        fresh = []
        while source.has_work():
            if (group := source.look()) is None:
                continue
            for change in group.changes:
                fresh.append(event_of(change))
                self.mirror.apply(fresh[-1])
            self.durable = group.last
            source.acknowledge(group.last)
        source.close()
        self.events += fresh
        return fresh

    def lake_rows(self, table: str) -> list[dict[str, Any]]:
        self.listen()
        return sorted(self.mirror.tables.get(table, {}).values(), key=repr)

    def rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self.db.execute(f'SELECT * FROM "{table}"')  # noqa: S608
        names = [column[0] for column in cursor.description]
        return sorted((dict(zip(names, row, strict=True)) for row in cursor.fetchall()), key=repr)

    def assert_same(self, table: str) -> None:
        assert self.lake_rows(table) == self.rows(table)
