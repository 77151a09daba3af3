"""Any history of a followed file: rows, schema, VACUUM, backups, crashes of the source and older states of the lake."""

from __future__ import annotations

import contextlib
import copy
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolake.errors import NotFound, Unavailable
from dolake.sources.base import Piece, Standing
from dolake.sources.sqlite import SqliteSource, copying, disable_cdc, enable_cdc, pieces, resync
from dolake.sources.sqlite import source as source_module
from dolake.sources.sqlite.trimming import TrimRules
from tests.support.followed import event_of, merged
from tests.support.mirror import Mirror
from tests.support.property import examples

KINDS = {
    "a": "CREATE TABLE {} (id INTEGER PRIMARY KEY, n INTEGER, s TEXT)",
    "b": "CREATE TABLE {} (id TEXT PRIMARY KEY, n INTEGER, s TEXT, UNIQUE (n))",
    "c": "CREATE TABLE {} (id INTEGER, n INTEGER, s TEXT)",
    "d": "CREATE TABLE {} (id INTEGER PRIMARY KEY, n INTEGER UNIQUE, s TEXT) WITHOUT ROWID",
}
STEPS_MAX = 500


class Lake:
    """What a lake has of the stream: tables, state, and what it was told."""

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.standing = Standing(0, 0)
        self.events: list[dict[str, Any]] = []

    def take(self, piece: Piece) -> None:
        for change in piece.changes:
            assert change.sequence is not None
            assert change.sequence > self.standing.durable_sequence, "sequences rise"
            self.standing = Standing(0, change.sequence, self.standing.state)
            self.mirror.apply(event_of(change))
            self.events.append(event_of(change))
        self.standing = Standing(0, self.standing.durable_sequence, merged(self.standing.state, piece.state))


class History:
    """A file, a source that may be away, and a lake."""

    def __init__(self, folder: Path, *, is_wal: bool) -> None:
        self.path = folder / "app.db"
        self.backup = folder / "backup.db"
        self.db = self._connect()
        self.db.execute(f"PRAGMA journal_mode = {'WAL' if is_wal else 'DELETE'}")
        self.lake = Lake()
        self.older_lake = copy.deepcopy(self.lake)
        self.source: SqliteSource | None = None
        self.number = 0
        for name, statement in KINDS.items():
            self.db.execute(statement.format(name))
            for number in range(6):
                self.insert(name, number)
        enable_cdc(self.path)
        self.back_up()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None)

    def close(self) -> None:
        self.kill()
        self.db.close()

    def do(self, statement: str, *values: Any) -> None:
        """What SQLite refuses is no change."""
        try:
            self.db.execute(statement, values)
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")

    def tables(self) -> list[str]:
        rows = self.db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 1) <> '_'")
        return sorted(name for (name,) in rows.fetchall())

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.db.execute(f"PRAGMA table_info({table})").fetchall()]

    # --- rows -------------------------------------------------------------------------------------------------------

    def insert(self, table: str, key: int) -> None:
        self.number += 1
        self.do(f"INSERT OR IGNORE INTO {table} (id, n) VALUES (?, ?)", key, self.number)  # noqa: S608

    def replace(self, table: str, key: int, other: int) -> None:
        self.do(f"REPLACE INTO {table} (id, n) VALUES (?, (SELECT n FROM {table} WHERE id = ?))", key, other)  # noqa: S608

    def update(self, table: str, key: int) -> None:
        self.number += 1
        value = f"u{self.number}"
        self.do(f"UPDATE {table} SET s = ? WHERE rowid = (SELECT min(rowid) FROM {table} WHERE id = ?)", value, key)  # noqa: S608
        if table.startswith("d"):
            self.do(f"UPDATE {table} SET s = ? WHERE id = ?", value, key)  # noqa: S608

    def move(self, table: str, key: int, to: int) -> None:
        self.do(f"UPDATE OR REPLACE {table} SET id = ? WHERE id = ?", to, key)  # noqa: S608

    def delete(self, table: str, key: int) -> None:
        self.do(f"DELETE FROM {table} WHERE id = ?", key)  # noqa: S608

    # --- the schema -------------------------------------------------------------------------------------------------

    def add_column(self, table: str, name: str) -> None:
        self.do(f"ALTER TABLE {table} ADD COLUMN {name} TEXT DEFAULT 'x'")

    def drop_column(self, table: str, name: str) -> None:
        self.do(f"ALTER TABLE {table} DROP COLUMN {name}")

    def rename_column(self, table: str, name: str, to: str) -> None:
        self.do(f"ALTER TABLE {table} RENAME COLUMN {name} TO {to}")

    def rename_table(self, table: str, to: str) -> None:
        self.do(f"ALTER TABLE {table} RENAME TO {to}")

    def drop_table(self, table: str) -> None:
        self.do(f"DROP TABLE {table}")

    def create_table(self, table: str) -> None:
        self.do(KINDS[table[0]].format(table))

    def rebuild(self, table: str) -> None:
        """As Django and sqlite-utils do it."""
        self.db.execute("BEGIN")
        try:
            kept = [name for name in self.columns(table) if name in ("id", "n", "s")]
            self.db.execute(KINDS[table[0]].format("new_" + table))
            self.db.execute(f"INSERT INTO new_{table} ({', '.join(kept)}) SELECT {', '.join(kept)} FROM {table}")  # noqa: S608
            self.db.execute(f"DROP TABLE {table}")
            self.db.execute(f"ALTER TABLE new_{table} RENAME TO {table}")
            self.db.execute("COMMIT")
        except sqlite3.Error:
            self.db.execute("ROLLBACK")

    def vacuum(self) -> None:
        self.do("VACUUM")

    # --- what others do to us ---------------------------------------------------------------------------------------

    def drop_trigger(self, index: int) -> None:
        rows = self.db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' ORDER BY name").fetchall()
        if rows:
            self.do(f"DROP TRIGGER {rows[index % len(rows)][0]}")

    def drop_outbox(self) -> None:
        self.do("DROP TABLE _dolake_outbox")
        self.db.close()
        self.db = self._connect()
        if self.source is None:
            enable_cdc(self.path)
        self.look(1)

    def enable_anew(self) -> None:
        disable_cdc(self.path)
        enable_cdc(self.path)

    def back_up(self) -> None:
        self.backup.unlink(missing_ok=True)
        target = sqlite3.connect(self.backup)
        self.db.backup(target)
        target.close()

    def restore(self) -> None:
        """The file is replaced by its backup."""
        mode = self.db.execute("PRAGMA journal_mode").fetchone()[0]
        self.db.close()
        self.kill()
        for part in self.path.parent.glob("app.db*"):
            part.unlink()
        shutil.copy(self.backup, self.path)
        self.db = self._connect()
        self.db.execute(f"PRAGMA journal_mode = {mode}")

    def restore_in_place(self) -> None:
        """The file gets the content of its backup, under a running source."""
        backup = sqlite3.connect(self.backup)
        backup.backup(self.db)
        backup.close()

    def keep_lake(self) -> None:
        self.older_lake = copy.deepcopy(self.lake)

    def restore_lake(self) -> None:
        self.kill()
        self.lake = copy.deepcopy(self.older_lake)

    def resync(self, table: str) -> None:
        with contextlib.suppress(NotFound):  # a table that is not followed yet
            resync(self.path, table)

    # --- the source -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        if self.source is not None:
            self.source._store.close()
            self.source = None

    def look(self, pieces: int) -> None:
        """Some pieces arrive. What a source has read and not sent is lost when it dies."""
        for _ in range(pieces):
            self.step()

    def step(self) -> bool:
        """Whether there may be more."""
        try:
            if self.source is None:
                self.source = SqliteSource(self.path, trim_rules=TrimRules(idle_s=1e9))
                self.source.resume(self.lake.standing)
            if not self.source.has_work():
                return False
            if piece := self.source.look():
                self.lake.take(piece)
                self.source.acknowledge(piece)
        except Unavailable:
            self.kill()
        return True

    def lose(self) -> None:
        """A piece is read, and never sent."""
        if self.source is not None:
            with contextlib.suppress(Unavailable):
                self.source.look()
            self.kill()

    def trim(self) -> None:
        if self.source is not None:
            self.source._trimmer._rules = TrimRules(idle_s=0)
            self.look(1)
            if self.source is not None:
                self.source._trimmer._rules = TrimRules(idle_s=1e9)

    # --- what must be true ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("the source never comes to an end")

    def rows(self, table: str) -> list[dict[str, Any]]:
        names = self.columns(table)
        rows = self.db.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        found = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]
        return sorted(found, key=repr)

    def check(self) -> None:
        self.settle()
        for table in self.tables():
            has = self.lake.mirror.rows(table) if table in self.lake.mirror.tables else []
            assert has == self.rows(table), table
        for table, rows in self.lake.mirror.tables.items():
            assert table in self.tables() or not rows, f"{table} is gone"
        updates = Counter(
            (event["table"], event["rowId"], event["after"]["s"])
            for event in self.lake.events
            if event["operation"] == "UPDATE"
            and event["after"].get("s")
            and (event["before"] or {}).get("s") != event["after"]["s"]
        )
        assert not [each for each, times in updates.items() if times > 1], "told twice"


TABLES = st.sampled_from(["a", "b", "c", "d", "a2", "c2"])
KEYS = st.integers(0, 8)
NAMES = st.sampled_from(["n", "s", "x", "y"])
ROWS = st.one_of(
    st.tuples(st.just("insert"), TABLES, KEYS),
    st.tuples(st.just("replace"), TABLES, KEYS, KEYS),
    st.tuples(st.just("update"), TABLES, KEYS),
    st.tuples(st.just("move"), TABLES, KEYS, KEYS),
    st.tuples(st.just("delete"), TABLES, KEYS),
)
SCHEMA = st.one_of(
    st.tuples(st.just("add_column"), TABLES, NAMES),
    st.tuples(st.just("drop_column"), TABLES, NAMES),
    st.tuples(st.just("rename_column"), TABLES, NAMES, NAMES),
    st.tuples(st.just("rename_table"), TABLES, TABLES),
    st.tuples(st.just("drop_table"), TABLES),
    st.tuples(st.just("create_table"), TABLES),
    st.tuples(st.just("rebuild"), TABLES),
    st.tuples(st.just("vacuum")),
    st.tuples(st.just("drop_trigger"), st.integers(0, 30)),
)
OURS = st.one_of(
    st.tuples(st.just("look"), st.integers(1, 12)),
    st.tuples(st.just("kill")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("trim")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("resync"), TABLES),
)
RARE = st.one_of(
    st.tuples(st.just("drop_outbox")),
    st.tuples(st.just("enable_anew")),
    st.tuples(st.just("back_up")),
    st.tuples(st.just("restore")),
    st.tuples(st.just("restore_in_place")),
    st.tuples(st.just("keep_lake")),
    st.tuples(st.just("restore_lake")),
)
STEPS = st.lists(st.one_of(ROWS, ROWS, ROWS, SCHEMA, OURS, OURS, RARE), max_size=40)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHANGES_MAX", 3)
    monkeypatch.setattr(copying, "CHUNK_ROWS_MAX", 4)
    monkeypatch.setattr(source_module, "CHUNK_TIME_MAX_S", 0)
    monkeypatch.setattr(source_module, "GROUP_CHANGES_MAX", 15)


def run(steps: list[tuple[Any, ...]], *, is_wal: bool) -> History:
    folder = Path(tempfile.mkdtemp(prefix="dolake-history-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    history = History(folder, is_wal=is_wal)
    try:
        for word, *values in steps:
            getattr(history, word)(*values)
        history.check()
        history.insert("a", 100)
        history.check()
    finally:
        history.close()
        shutil.rmtree(folder)
    return history


@settings(
    max_examples=examples(1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps=STEPS, is_wal=st.booleans())
def test_whatever_happens_the_lake_has_what_the_file_has_and_every_change_once(
    steps: list[tuple[Any, ...]], is_wal: bool
) -> None:
    run(steps, is_wal=is_wal)
