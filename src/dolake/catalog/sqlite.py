"""The catalog's pointers in one SQLite file, in WAL mode: base.py's promise on a local disk.

From catalog/tables.py, in threads of the catalog. One connection per thread; writers take turns, readers never wait.
Promise: a commit is durable when it returns (synchronous=FULL), and a file of an older release is migrated when opened.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dolake.catalog.sql_store import Result, Run, SqlStore, migrations, statements
from dolake.errors import Damaged, Unavailable
from dolake.positions import Position

_BUSY_WAIT_S = 30.0
_SQL = statements()


class SqliteStore(SqlStore):
    """See the module."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._migrate()

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def claim(self, journal: str, durable: Position, *, has_pipeline: bool) -> str:
        """A file of one home is of that home's journal, and nobody else's."""
        return journal

    def _check_owner(self, run: Run) -> None:
        pass

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # Opened by the thread that uses it, closed by whoever closes the store, when nobody uses it any more.
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_WAIT_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._local.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection

    def _run(self, name: str, row: dict[str, Any] | list[dict[str, Any]] | None = None) -> sqlite3.Cursor:
        if isinstance(row, list):
            return self._connection().executemany(_SQL[name], row)
        return self._connection().execute(_SQL[name], row or {})

    def read(self, do: Callable[[Run], Result]) -> Result:
        return do(self._run)

    def read_moment(self, do: Callable[[Run], Result]) -> Result:
        connection = self._connection()
        connection.execute("BEGIN")  # a reader's transaction sees one moment
        try:
            return do(self._run)
        finally:
            connection.execute("ROLLBACK")

    def write(self, do: Callable[[Run], Result]) -> Result:
        with self._writing():
            return do(self._run)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the catalog is busy: {error}", hint="try again") from error
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _migrate(self) -> None:
        """Bring the file to this release's shape, one numbered step after the other."""
        steps = migrations()
        connection = self._connection()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(steps):
            raise Damaged(
                f"{self._path.name} has catalog version {version}; this release knows {len(steps)}",
                hint="use the DoLake release that wrote it, or a newer one",
            )
        for number, step in enumerate(steps[version:], start=version + 1):
            connection.executescript(f"BEGIN IMMEDIATE;\n{step}\nPRAGMA user_version = {number};\nCOMMIT;")
