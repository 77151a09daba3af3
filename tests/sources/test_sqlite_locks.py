"""A source does not come between what a transaction of the application reads and what it writes."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from dolake.sources.base import Standing
from dolake.sources.sqlite import SqliteSource, enable_cdc, status


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
    was_locked = False
    while looking.is_alive():
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            was_locked = True
    assert not was_locked, "the source held a lock, with which the application could not write"
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
