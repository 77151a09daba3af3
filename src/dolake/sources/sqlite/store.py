"""What we keep in somebody's SQLite file: opened with care, read and written in short transactions.

From source.py, watching.py and copying.py. Promise: each method runs within the caller's transaction; nothing here
holds a lock for longer than the caller does.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dolake.errors import DoLakeError, InvalidInput, NotFound, Unavailable
from dolake.sources.sqlite.tables import PREFIX, Shape
from dolake.sources.sqlite.triggers import CONTROL, NOW_MS, OUTBOX, OUTBOX_HEAD, STORE, outbox_table
from dolake.sources.sqlite.values import RawText

FORMAT = 1
SQLITE_MIN = (3, 35, 0)
_BUSY_WAIT_S = 30.0


class TableState(msgspec.Struct):
    """How far we are with a table."""

    name: str
    shape_id: int
    phase: str
    cursor: list[Any] | None
    filling: str | None
    """Where set, only rows that match this are copied: those with a value in a column that was added."""
    empties: bool
    """Whether the lake's table must first be emptied."""
    copied: int
    total: int


class Store:
    """One file, opened. Use begin() for what must happen together."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.identity = identity_of(self.path)
        if not self.path.is_file():
            raise NotFound(f"{self.path} is no file", hint="name the SQLite file of your application")
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            raise InvalidInput(
                f"SQLite {sqlite3.sqlite_version} is too old to read files with",
                hint="Python's sqlite3 needs SQLite 3.35 or newer; whoever writes to the file may have an older one",
            )
        # Waits for locks, as every program should that shares a file with others.
        self.db = sqlite3.connect(self.path, timeout=_BUSY_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute("PRAGMA recursive_triggers = OFF")
            self.db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.DatabaseError as error:
            self.db.close()
            if is_passing(error):
                raise told(self.path, error) from None
            raise InvalidInput(f"{self.path} is no SQLite file: {error}") from None
        self._shapes: dict[int, Shape] = {}

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def begin(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes; all of it or nothing."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:  # SQLite has rolled back itself where the disk failed
                self.db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment of the file."""
        self.db.execute("BEGIN")
        try:
            yield self.db
        finally:
            if self.db.in_transaction:
                self.db.execute("COMMIT")

    # --- the store itself -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return bool(self.db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (f"{PREFIX}state",)).fetchone())

    def create(self) -> None:
        for statement in STORE.split(";"):
            if statement.strip():
                self.db.execute(statement)
        self.db.execute(outbox_table(1))
        self.set("format", FORMAT)

    def check_format(self) -> None:
        found = self.get("format")
        if found != FORMAT:
            raise InvalidInput(
                f"{self.path} was enabled by another version of DoLake (format {found}, ours is {FORMAT})",
                hint="`dolake source disable` with that version, then enable it again",
            )

    def widen(self, width: int) -> None:
        """Room for events with so many values."""
        have = len(self.db.execute(f"PRAGMA table_info({OUTBOX})").fetchall()) - len(OUTBOX_HEAD)
        if (
            have < width and not self.last_sequence()
        ):  # as long as it is empty, all at once: each ALTER reads all triggers
            self.db.execute(f"DROP TABLE {OUTBOX}")
            self.db.execute(outbox_table(width))
            return
        for index in range(have, width):
            self.db.execute(f"ALTER TABLE {OUTBOX} ADD COLUMN v{index}")

    # --- single facts -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        row = self.db.execute(f"SELECT value FROM {PREFIX}state WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set(self, name: str, value: Any) -> None:
        self.db.execute(f"REPLACE INTO {PREFIX}state (name, value) VALUES (?, ?)", (name, value))

    def schema_version(self) -> int:
        return int(self.db.execute("PRAGMA schema_version").fetchone()[0])

    def last_sequence(self) -> int:
        return int(self.db.execute(f"SELECT coalesce(max(seq), 0) FROM {OUTBOX}").fetchone()[0])

    # --- shapes and tables ------------------------------------------------------------------------------------------

    def add_shape(self, shape: Shape) -> int:
        text = msgspec.json.encode(shape).decode()
        return int(self.db.execute(f"INSERT INTO {PREFIX}shapes (shape) VALUES (?)", (text,)).lastrowid or 0)

    def shape(self, shape_id: int) -> Shape:
        if shape_id not in self._shapes:
            row = self.db.execute(f"SELECT shape FROM {PREFIX}shapes WHERE id = ?", (shape_id,)).fetchone()
            self._shapes[shape_id] = msgspec.json.decode(row[0], type=Shape)
        return self._shapes[shape_id]

    def names_ever(self) -> frozenset[str]:
        """Every table that we have followed at some time: the lake may have it still."""
        rows = self.db.execute(f"SELECT shape FROM {PREFIX}shapes").fetchall()
        return frozenset(msgspec.json.decode(row[0], type=Shape).name for row in rows)

    def tables(self) -> list[TableState]:
        rows = self.db.execute(
            f"SELECT name, shape, phase, cursor, filling, empties, copied, total FROM {PREFIX}tables ORDER BY name"
        ).fetchall()
        return [
            TableState(name, shape, phase, _unpacked(cursor), filling, bool(empties), copied, total)
            for name, shape, phase, cursor, filling, empties, copied, total in rows
        ]

    def save(self, table: TableState) -> None:
        self.db.execute(
            f"REPLACE INTO {PREFIX}tables (name, shape, phase, cursor, filling, empties, copied, total) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                table.name,
                table.shape_id,
                table.phase,
                _packed(table.cursor),
                table.filling,
                table.empties,
                table.copied,
                table.total,
            ),
        )

    def forget(self, name: str) -> None:
        self.db.execute(f"DELETE FROM {PREFIX}tables WHERE name = ?", (name,))

    def say(self, shape_id: int, words: dict[str, Any]) -> None:
        """An event about a table, in its place among the changes."""
        self.db.execute(
            f"INSERT INTO {OUTBOX} (at, shape, op, v0) VALUES ({NOW_MS}, ?, ?, ?)",
            (shape_id, CONTROL, msgspec.json.encode(words).decode()),
        )


# --- when SQLite says no ---------------------------------------------------------------------------------------------

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


def identity_of(path: Path) -> tuple[int, int] | None:
    """Which file this is, whatever its name; None where there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def is_passing(error: sqlite3.Error) -> bool:
    """Whether it may go better later. The low byte of SQLite's codes says what kind it is."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING


def told(path: Path, error: sqlite3.Error) -> DoLakeError:
    """SQLite's error as one of ours, which is this file's problem alone."""
    if is_passing(error):
        return Unavailable(
            f"{path} cannot be used now: {error}",
            hint="somebody holds a transaction open for long, or the disk is full; it is tried again",
        )
    return DoLakeError(f"{path} cannot be followed: SQLite says {error}", hint="`PRAGMA integrity_check` says more")


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    """SQLite's errors leave as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise told(path, error) from error


def _packed(cursor: list[Any] | None) -> str | None:
    """A key as text, with the kind of each value."""
    if cursor is None:
        return None
    parts = [[type(value).__name__, value.hex() if isinstance(value, bytes | float) else value] for value in cursor]
    return msgspec.json.encode(parts).decode()


def _unpacked(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    read = {"bytes": bytes.fromhex, "float": float.fromhex, "RawText": RawText.fromhex}
    return [read[kind](value) if kind in read else value for kind, value in msgspec.json.decode(text)]
