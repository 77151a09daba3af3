"""What we keep in a user's SQLite file: one table, opened with care, read often and written rarely.

From source.py, watching.py, installation.py and trimming.py. Promise: the file is written only inside `writing()`; a
reading transaction never turns into one that writes.
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
from dolake.sources.sqlite.triggers import CONTROL, NOW_MS, OUTBOX, OUTBOX_HEAD, outbox_table
from dolake.sources.sqlite.values import RawText

FORMAT = 2
SQLITE_MIN = (3, 35, 0)
BUSY_WAIT_S = 30.0


class Former(msgspec.Struct, frozen=True, rename="camel"):
    """Where a file of format 1 was when it was converted: format 1 kept its place in the file."""

    epoch: int
    acked: int
    sent: int
    groups: tuple[int, ...] = ()
    tables: dict[str, dict[str, Any]] = {}


class Head(msgspec.Struct, rename="camel", omit_defaults=True):
    """The head note of a file: what was chosen, and which tables have triggers. Changed by enable, repair and trim."""

    format: int
    identity: str
    """Made once, for this database and for ever."""
    instance: str
    """Made anew with each enable of a file that was not followed."""
    stream: str = ""
    """The stream's name, once it is agreed with a lake."""
    patterns: list[str] = msgspec.field(default_factory=lambda: ["*"])
    excluded: list[str] = []
    masks: dict[str, str] = {}
    mask_secret: str = ""
    """What goes into every hash of a masked value. It never leaves the file: the identity is seen in the lake."""
    tables: dict[str, int] = {}
    """The tables that are followed, each with the number of its shape."""
    schema_version: int = -1
    acked: int = 0
    """Up to here the outbox was trimmed: a lake has had it."""
    former: Former | None = None


class Store:
    """One file, opened."""

    def __init__(self, path: Path | str, *, busy_wait_s: float | None = None) -> None:
        self.path = Path(path)
        self.file_id = file_id_of(self.path)
        if not self.path.is_file():
            raise NotFound(f"{self.path} is no file", hint="name the SQLite file of your application")
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            raise InvalidInput(
                f"SQLite {sqlite3.sqlite_version} is too old to read files with",
                hint="Python's sqlite3 needs SQLite 3.35 or newer; programs that write to it may have an older one",
            )
        # Waits for locks, as every program should that shares a file with others.
        wait_s = BUSY_WAIT_S if busy_wait_s is None else busy_wait_s
        self.db = sqlite3.connect(self.path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        try:
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute("PRAGMA recursive_triggers = OFF")
            self.db.execute("PRAGMA query_only = ON")
            self.db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.DatabaseError as error:
            self.db.close()
            if is_passing(error):
                raise as_dolake_error(self.path, error) from None
            raise InvalidInput(f"{self.path} is no SQLite file: {error}") from None
        self._shapes: dict[int, Shape] = {}

    def close(self) -> None:
        self.db.close()

    @contextlib.contextmanager
    def writing(self, *, begin: str = "IMMEDIATE", busy_wait_ms: int | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction that writes; all of it or nothing. `busy_wait_ms`: how long to wait for the lock."""
        before = self.db.execute("PRAGMA busy_timeout").fetchone()[0]
        if busy_wait_ms is not None:
            self.db.execute(f"PRAGMA busy_timeout = {busy_wait_ms}")
        self.db.execute("PRAGMA query_only = OFF")
        try:
            self.db.execute(f"BEGIN {begin}")
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:  # SQLite has rolled back itself where the disk failed
                self.db.execute("ROLLBACK")
            raise
        finally:
            self.db.execute("PRAGMA query_only = ON")
            if busy_wait_ms is not None:
                self.db.execute(f"PRAGMA busy_timeout = {before}")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One point in time of the file."""
        self.db.execute("BEGIN")
        try:
            yield self.db
        finally:
            if self.db.in_transaction:
                self.db.execute("COMMIT")

    # --- the head note ----------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the file has our table."""
        return self.has_table(OUTBOX)

    def has_table(self, name: str) -> bool:
        found = self.db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).fetchone()
        return bool(found)

    def head_text(self) -> str | None:
        """The head note as it is kept; None where there is none."""
        try:
            row = self.db.execute(f"SELECT v0 FROM {OUTBOX} WHERE seq = 0").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error) or "no such column" in str(error):
                return None
            raise
        return row[0] if row else None

    def head(self) -> Head | None:
        return self.head_of(self.head_text())

    def head_of(self, text: str | None) -> Head | None:
        if text is None:
            return None
        try:
            head = msgspec.json.decode(text, type=Head)
        except (msgspec.DecodeError, TypeError):
            return None
        if head.format > FORMAT:
            raise InvalidInput(
                f"{self.path} was enabled by a newer version of DoLake (format {head.format}, ours is {FORMAT})",
                hint="use that version, or `dolake source disable` with it and enable the file again",
            )
        return head

    def save_head(self, head: Head) -> None:
        text = msgspec.json.encode(head).decode()
        self.db.execute(f"REPLACE INTO {OUTBOX} (seq, at, op, v0) VALUES (0, {NOW_MS}, 0, ?)", (text,))

    def schema_version(self) -> int:
        return int(self.db.execute("PRAGMA schema_version").fetchone()[0])

    # --- the outbox -------------------------------------------------------------------------------------------------

    def create(self) -> None:
        self.db.execute(outbox_table(1))

    def last_sequence(self) -> int:
        return max(0, int(self.db.execute(f"SELECT coalesce(max(seq), 0) FROM {OUTBOX}").fetchone()[0]))

    def widen(self, width: int) -> None:
        """Room for events with so many values."""
        have = len(self.db.execute(f"PRAGMA table_info({OUTBOX})").fetchall()) - len(OUTBOX_HEAD)
        if have < width and not self.db.execute(f"SELECT 1 FROM {OUTBOX} LIMIT 1").fetchone():
            # As long as it is empty, all at once: each ALTER reads all triggers.
            self.db.execute(f"DROP TABLE {OUTBOX}")
            self.db.execute(outbox_table(width))
            return
        for index in range(have, width):
            self.db.execute(f"ALTER TABLE {OUTBOX} ADD COLUMN v{index}")

    def say(self, words: dict[str, Any]) -> int:
        """Put a note about a table at its place among the changes; returns its number."""
        found = self.db.execute(
            f"INSERT INTO {OUTBOX} (seq, at, op, v0) VALUES ("
            f"(SELECT max(0, coalesce(max(seq), 0)) + 1 FROM {OUTBOX}), {NOW_MS}, {CONTROL}, ?)",
            (msgspec.json.encode(words).decode(),),
        )
        return int(found.lastrowid or 0)

    # --- shapes -----------------------------------------------------------------------------------------------------

    def add_shape(self, shape: Shape) -> int:
        """Keep a table's shape under a new number, which no event has named before."""
        lowest = int(self.db.execute(f"SELECT coalesce(min(seq), 0) FROM {OUTBOX}").fetchone()[0])
        shape_id = max(0, -lowest) + 1
        text = msgspec.json.encode(shape).decode()
        self.db.execute(f"INSERT INTO {OUTBOX} (seq, at, op, v0) VALUES (?, {NOW_MS}, 0, ?)", (-shape_id, text))
        return shape_id

    def shape(self, shape_id: int) -> Shape | None:
        """The shape of this number; None where a repair has lost it."""
        if shape_id not in self._shapes:
            row = self.db.execute(f"SELECT v0 FROM {OUTBOX} WHERE seq = ?", (-shape_id,)).fetchone()
            if row is None:
                return None
            self._shapes[shape_id] = msgspec.json.decode(row[0], type=Shape)
        return self._shapes[shape_id]

    def forget_shapes(self) -> None:
        """The file has become another, or was rolled back: what we remember of it may be wrong."""
        self._shapes.clear()

    def names_ever(self) -> frozenset[str]:
        """Every table that was followed at some time: the lake may have it still."""
        rows = self.db.execute(f"SELECT v0 FROM {OUTBOX} WHERE seq < 0").fetchall()
        return frozenset(msgspec.json.decode(row[0], type=Shape).name for row in rows)


def our_objects(db: sqlite3.Connection, kind: str) -> list[str]:
    """All triggers, tables, indexes or views that carry our prefix."""
    rows = db.execute(
        "SELECT name FROM sqlite_schema WHERE type = ? AND substr(name, 1, ?) = ?", (kind, len(PREFIX), PREFIX)
    ).fetchall()
    return [name for (name,) in rows]


# --- when SQLite says no ---------------------------------------------------------------------------------------------

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


def file_id_of(path: Path) -> tuple[int, int] | None:
    """Which file this is, whatever its name; None where there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def is_passing(error: sqlite3.Error) -> bool:
    """Whether it may go better later. The low byte of SQLite's codes says what kind it is."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def as_dolake_error(path: Path, error: sqlite3.Error) -> DoLakeError:
    """SQLite's error as one of ours, which is this file's problem alone."""
    if is_passing(error):
        return Unavailable(
            f"{path} cannot be used now: {error}",
            hint="another program holds a transaction open for long, or the disk is full; it is tried again",
        )
    return DoLakeError(f"{path} cannot be followed: SQLite says {error}", hint="`PRAGMA integrity_check` says more")


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    """SQLite's errors leave as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_dolake_error(path, error) from error
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise DoLakeError(
            f"{path} cannot be followed: a note in {OUTBOX} is damaged: {error}",
            hint="`dolake source disable FILE`, then follow it again: all its tables are copied anew",
        ) from error


def packed(cursor: list[Any] | None) -> list[Any] | None:
    """A key as JSON, with the kind of each value."""
    if cursor is None:
        return None
    return [[type(value).__name__, value.hex() if isinstance(value, bytes | float) else value] for value in cursor]


def unpacked(cursor: list[Any] | None) -> list[Any] | None:
    if cursor is None:
        return None
    read = {"bytes": bytes.fromhex, "float": float.fromhex, "RawText": RawText.fromhex}
    return [read[kind](value) if kind in read else value for kind, value in cursor]
