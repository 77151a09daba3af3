"""What an application keeps in a SQLite file is seen in live SQL and by other engines, whatever its columns declare."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.client.sync import connect
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, enable_cdc
from tests.support.aio import run
from tests.support.server import ServerProcess
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.slow, pytest.mark.spark]
SETTINGS = ""


class Application:
    """A file, the lake that follows it, and another engine."""

    def __init__(self, path: Path, lake: ServerProcess) -> None:
        self.path = path
        self.lake = lake
        self.db = sqlite3.connect(path, isolation_level=None)

    def follow(self) -> None:
        enable_cdc(self.path)
        shard = Shard(StreamId(self.path.stem), lambda: SqliteSource(self.path, namespace=self.path.stem))
        assert run(Runner(self.lake.url, is_once=True).run([shard]), timeout_s=120) == {}

    def both(self, sql: str) -> tuple[list[Any], list[Any]]:
        """The answer of live SQL, and of DuckDB on the published tables."""
        with connect(self.lake.url) as client:
            live = [tuple(row) for row in client.query(sql)]
        self.lake.flush()
        with duck_on(self.lake.url) as duck:
            return live, duck.sql(sql.replace(f"{self.path.stem}.", f"lake.{self.path.stem}.")).fetchall()


@pytest.fixture
def app(tmp_path: Path, lake: ServerProcess) -> Iterator[Application]:
    made = Application(tmp_path / "seen.db", lake)
    yield made
    made.db.close()


def test_rows_deleted_softly_are_counted_as_in_the_file(app: Application) -> None:
    """The table is empty when it is first followed: the declared type of its columns is only a hint."""
    app.db.execute('CREATE TABLE users (id INTEGER PRIMARY KEY, name, "deletedAt" DATETIME, paid NUMERIC(10,2))')
    app.db.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, seen_at DATETIME)")
    app.follow()
    empty = "SELECT count(*), count(seen_at) FROM seen.bare"
    assert app.both(empty) == ([(0, 0)], [(0, 0)])
    gone = "2026-11-19 10:00:00.123 +00:00"
    rows = [(1, "a", None, 12.345), (2, "b", gone, 1), (3, "c", None, None), (4, "d", gone, 2.5), (5, "e", None, 0)]
    app.db.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", rows)
    app.follow()
    counted = 'SELECT count(*) FROM seen.users WHERE "deletedAt" IS NULL'
    assert app.both(counted) == ([(3,)], [(3,)])
    summed = "SELECT CAST(sum(paid) AS VARCHAR) FROM seen.users"
    live, published = app.both(summed)
    assert float(live[0][0]) == float(published[0][0]) == 15.845
