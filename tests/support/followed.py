"""A SQLite file that is followed, and what a lake would make of its changes; without a lake."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from dolake.changes import Change
from dolake.sources.base import Piece, Standing
from dolake.sources.sqlite import SqliteSource
from dolake.wire.source_state import merge
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


def merged(state: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The state as the lake keeps it behind this patch."""
    made: dict[str, Any] = msgspec.json.decode(merge(msgspec.json.encode(state), msgspec.json.encode(patch)))
    return made


class Followed:
    """A file, and a lake that listens to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.mirror = Mirror()
        self.events: list[dict[str, Any]] = []
        self.standing = Standing(0, 0)

    def do(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def take(self, piece: Piece) -> list[dict[str, Any]]:
        """What the lake does with a piece: its changes and its state become durable together."""
        fresh = [event_of(change) for change in piece.changes]
        for event in fresh:
            self.mirror.apply(event)
        durable = max([self.standing.durable_sequence, *(change.sequence for change in piece.changes)])
        self.standing = Standing(self.standing.epoch, durable, merged(self.standing.state, piece.state))
        self.events += fresh
        return fresh

    def listen(self) -> list[dict[str, Any]]:
        """Everything that is new."""
        source = SqliteSource(self.path)
        source.resume(self.standing)
        fresh = []
        while source.has_work():
            if (piece := source.look()) is not None:
                fresh += self.take(piece)
                source.acknowledge(piece)
        source.close()
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
