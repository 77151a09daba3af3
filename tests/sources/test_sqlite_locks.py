"""A source does not come between what a transaction of the application reads and what it writes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from dolake.changes import StreamId
from dolake.sources.base import Standing
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, copying, enable_cdc, status
from tests.support.aio import until
from tests.support.journals import GatedDisk
from tests.support.lake import running_lake
from tests.support.mirror import Mirror


def drain(source: SqliteSource) -> None:
    while source.has_work():
        source.look()


def connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is followed, in SQLite's default journal mode."""
    db = connected(tmp_path / "app.db")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    db.close()
    enable_cdc(tmp_path / "app.db")
    return tmp_path / "app.db"


def test_a_transaction_that_has_read_can_write_while_the_source_follows_a_new_table(path: Path) -> None:
    source, app, other = SqliteSource(path), connected(path), connected(path)
    source.resume(Standing(0, 0))
    drain(source)
    other.execute("CREATE TABLE u (id INTEGER PRIMARY KEY)")
    other.execute("PRAGMA busy_timeout = 0")
    app.execute("BEGIN")
    app.execute("SELECT count(*) FROM t").fetchall()
    looking = threading.Thread(target=source.look)
    looking.start()
    tries = refused = 0
    while looking.is_alive():
        tries += 1
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            refused += 1
    # To find out whether the file is quiet, a lock is tried, which another thread may see for that moment.
    assert refused <= tries / 2, "the source held a lock, with which the application could not write"
    app.execute("INSERT INTO t VALUES (1, 1)")
    app.execute("COMMIT")
    drain(source)
    source.close()
    assert {each.table for each in status(path).tables} == {"t", "u"}
    app.close()
    other.close()


def test_a_new_table_is_followed_although_the_file_is_never_quiet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolake.sources.sqlite.source._QUIET_WAIT_MAX_S", 0.0)
    source, app = SqliteSource(path), connected(path)
    source.resume(Standing(0, 0))
    drain(source)
    app.execute("CREATE TABLE u (id INTEGER PRIMARY KEY)")
    app.execute("BEGIN")
    app.execute("SELECT count(*) FROM t").fetchall()
    looking = threading.Thread(target=source.look)
    looking.start()
    looking.join()
    app.execute("COMMIT")
    drain(source)
    source.close()
    app.close()
    assert {each.table for each in status(path).tables} == {"t", "u"}


def test_the_version_table_of_alembic_is_followed_only_by_its_name(path: Path) -> None:
    app = connected(path)
    app.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    found = enable_cdc(path)
    assert [each.table for each in found.tables] == ["t"]
    assert [reason.partition(":")[0] for reason in found.left_out] == ["alembic_version"]
    found = enable_cdc(path, ["*", "alembic_version"])
    assert [each.table for each in found.tables] == ["alembic_version", "t"]
    app.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_no_read_of_the_copy_is_open_while_the_lake_does_not_answer(
    mode: str, path: Path, tmp_path: Path, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNK_ROWS_MAX", 10)
    app = connected(path)
    app.execute(f"PRAGMA journal_mode = {mode}")
    app.execute("WITH n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000) INSERT INTO t SELECT x, x FROM n")
    home = tmp_path / "home"
    home.mkdir()
    async with running_lake(home) as (_, url):
        disk.hold()
        runner = Runner(url, is_once=True)
        running = asyncio.create_task(runner.run([Shard(StreamId("app"), lambda: SqliteSource(path))]))
        await until(lambda: disk.arrived_count > 0)
        # The lake has acknowledged nothing. Only a chunk that is being read just now may make these wait.
        app.execute("PRAGMA busy_timeout = 5000")
        for number in range(50):
            await asyncio.to_thread(app.execute, "INSERT INTO t VALUES (?, 'written meanwhile')", (10_000 + number,))
        if mode == "wal":
            ((is_busy, _, _),) = await asyncio.to_thread(
                lambda: app.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            )
            assert not is_busy
        assert not running.done()
        disk.let_go()
        assert not await running
    assert len(Mirror.of(home).tables["t"]) == 2_050
    app.close()
