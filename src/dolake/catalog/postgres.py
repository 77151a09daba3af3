"""The catalog's pointers in a PostgreSQL schema: base.py's promise where several servers share one catalog.

From catalog/tables.py, in threads of the catalog, which borrow connections from postgres_links.py. Every writing
transaction first locks the one row of `lake`, so writers of all servers take turns, as they do on SQLite; readers never
wait. Promise: a connection that is lost costs a retry. Where a COMMIT was not answered, the transaction is asked about
by its name: it counts if it happened, and is repeated only if it cannot happen any more. Where nobody can be asked, it
is OutcomeUnknown. docs/decisions/0029-postgres-writers-take-turns.md says why so.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from dolake.catalog.errors import StaleGeneration
from dolake.catalog.postgres_links import Link, Links, Lost
from dolake.catalog.sql_store import Result, Run, SqlStore, migrations, statements
from dolake.errors import Conflict, Damaged, DoLakeError, InvalidInput, OutcomeUnknown, Unavailable
from dolake.positions import Position

logger = logging.getLogger(__name__)

_FOLDER = "sql/postgres"
_RETRY_DELAYS_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT moved_ms FROM lake FOR UPDATE"
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COMMIT = "INSERT INTO transactions (name, is_abandoned) VALUES ('{name}', false); COMMIT"
_UNANSWERED_MAX = 3
_FORGET_EVERY = 1_000
_BUSY = (pg.LockNotAvailable, pg.QueryCanceled)
_AGAIN = (pg.SerializationFailure, pg.DeadlockDetected, pg.ReadOnlySqlTransaction)
_GONE = (psycopg.InterfaceError, pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow)


def _placeholders(sql: str) -> str:
    return re.sub(r":([a-z_]+)\b", r"%(\1)s", sql)


_SQL = {name: _placeholders(sql) for name, sql in (statements() | statements(f"{_FOLDER}/statements.sql")).items()}


class _Unanswered(Exception):
    """The connection went away after COMMIT had been sent."""

    def __init__(self, name: str, result: Any, reason: psycopg.Error) -> None:
        super().__init__(str(reason).strip())
        self.name, self.result = name, result


class PostgresStore(SqlStore):
    """See the module."""

    def __init__(self, url: str, schema: str = "dolake") -> None:
        self._links = Links(url, schema)
        self._id = uuid.uuid4().hex
        """This server, among those that share the schema."""
        self._claimed = False
        self._turns = itertools.count()
        try:
            self._retry(self._migrate)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._links.close()

    def __str__(self) -> str:
        return str(self._links)

    # --- what only a store that is shared has to say -----------------------------------------------------------------

    def claim(self, journal: str, durable: Position, *, has_pipeline: bool) -> str:
        def claim(run: Run) -> str:
            owner, server = run("owner").fetchone()
            position, generation, _ = run("published").fetchone()
            is_free = not owner or (has_pipeline and not server and generation == 0)
            if is_free and position <= durable:
                owner = journal
            if owner == journal:
                run("claim", {"journal": journal, "server": self._id if has_pipeline else ""})
            return str(owner)

        owner = self.write(claim)
        self._claimed = owner == journal
        return owner

    def _check_owner(self, run: Run) -> None:
        _, server = run("owner").fetchone()
        if server != self._id and (server or self._claimed):
            raise StaleGeneration(
                "another server has taken this lake over", hint="two run on copies of one journal: stop one of them"
            )

    def take_in(self, journal: str, do: Callable[[Run], Result]) -> Result:
        """Let a catalog be copied into this schema, which has none, or one that has left it."""

        def take(run: Run) -> Result:
            run("take_time")
            if run("has_left").fetchone()[0]:
                run("empty")
                run("set_published", {"position": 0, "generation": 0, "at_ms": 0})
                run("set_moved", {"moved_ms": 0})
            result = do(run)
            run("claim", {"journal": journal, "server": ""})
            return result

        return self._change(take, is_moving=True)

    def let_go(self, journal: str, do: Callable[[Run], Result]) -> Result:
        """Let the catalog be copied elsewhere, and take no more changes, on any server; all of that or nothing.

        Can be done again: what has left is still here, and as it was then.
        """

        def leave(run: Run) -> Result:
            run("take_time")
            owner, _ = run("owner").fetchone()
            if owner not in ("", journal):
                raise Conflict(f"{self} belongs to the journal of another home", hint="name that one with --home")
            result = do(run)
            run("set_moved", {"moved_ms": time.time_ns() // 1_000_000})
            return result

        return self._change(leave, is_moving=True)

    # --- transactions ------------------------------------------------------------------------------------------------

    def read(self, do: Callable[[Run], Result]) -> Result:
        return self._retry(lambda link: do(_runner(link)))

    def read_moment(self, do: Callable[[Run], Result]) -> Result:
        def read(link: Link) -> Result:
            link.execute(_BEGIN_READING)
            try:
                return do(_runner(link))
            finally:
                _roll_back(link)

        return self._retry(read)

    def write(self, do: Callable[[Run], Result]) -> Result:
        return self._change(do)

    def _change(self, do: Callable[[Run], Result], *, is_moving: bool = False) -> Result:
        for _ in range(_UNANSWERED_MAX):
            try:
                return self._retry(lambda link: self._transact(link, do, is_moving=is_moving))
            except _Unanswered as lost:
                logger.warning("catalog commit was not answered", extra={"reason": str(lost)})
                if not self._is_abandoned(lost):
                    result: Result = lost.result
                    return result
        raise Unavailable(f"{self} lost one commit after the other", hint="nothing was changed; try again")

    def _transact(self, link: Link, do: Callable[[Run], Result], *, is_moving: bool) -> Result:
        name = uuid.uuid4().hex
        try:
            begun = link.execute(_BEGIN, prepare=False)
            begun.nextset()
            if begun.fetchone() != (0,) and not is_moving:
                raise Conflict(
                    f"the catalog has left {self}", hint='it went into the file of a home: set catalog.store = "sqlite"'
                )
            if next(self._turns) % _FORGET_EVERY == 0:
                link.execute(_SQL["forget_transactions"])
            result = do(_runner(link))
        except BaseException:
            _roll_back(link)
            raise
        try:
            link.execute(_COMMIT.format(name=name), prepare=False)
        except psycopg.Error as error:
            if _is_lost(link, error):
                raise _Unanswered(name, result, error) from error
            _roll_back(link)
            raise  # refused, and so not done
        return result

    def _is_abandoned(self, lost: _Unanswered) -> bool:
        """Whether this transaction did not happen, and never will."""

        def ask(link: Link) -> bool:
            link.execute(_SQL["abandon"], {"name": lost.name})  # waits for one that is still under way
            (is_abandoned,) = link.execute(_SQL["is_abandoned"], {"name": lost.name}).fetchone() or (True,)
            return bool(is_abandoned)

        try:
            return self._retry(ask)
        except DoLakeError as error:
            raise OutcomeUnknown(
                f"Postgres did not answer a commit, and cannot be asked about it: {error.message}",
                hint="load the table, then decide",
            ) from lost

    def _retry(self, do: Callable[[Link], Result]) -> Result:
        """Once more on a fresh connection, for some seconds, for as long as nothing has happened."""
        for delay_s in self._delays():
            time.sleep(delay_s)
            try:
                with self._links.borrow() as link:
                    try:
                        result = do(link)
                    except psycopg.Error as error:
                        raise self._told(link, error) from error
                    self._links.is_down = False
                    return result
            except Lost as error:
                reason = error
                self._links.drop_idle()
        self._links.is_down = True
        raise Unavailable(
            f"{self} is not reached: {str(reason).strip()}",
            hint="nothing was changed; try again when it is back, and see that catalog.store is right",
        ) from reason

    def _delays(self) -> Sequence[float]:
        """Where the last one found nobody, the next one does not wait: else all threads of the catalog would."""
        return _RETRY_DELAYS_S[:2] if self._links.is_down else _RETRY_DELAYS_S

    def _told(self, link: Link, error: psycopg.Error) -> Exception:
        """What to raise for it, outside COMMIT: nothing has happened."""
        what = str(error).strip()
        if isinstance(error, _BUSY):
            return Unavailable(f"the catalog is busy: {what}", hint="try again")
        if isinstance(error, _AGAIN) or _is_lost(link, error):
            return Lost(what)
        if isinstance(error, psycopg.DataError):
            return InvalidInput(f"Postgres cannot keep this: {what}")
        return Unavailable(f"{self} refused: {what}", hint="nothing was changed; its own log says more")

    # --- the schema --------------------------------------------------------------------------------------------------

    def _migrate(self, link: Link) -> None:
        """Bring the schema to this release's shape, one numbered step after the other; one server does it."""
        steps, schema = migrations(_FOLDER), self._links.schema
        (encoding,) = link.execute("SHOW server_encoding").fetchone() or ("",)
        if encoding != "UTF8":
            raise InvalidInput(f"{self} keeps text as {encoding}", hint="make a database with ENCODING 'UTF8'")
        link.execute("BEGIN")
        try:
            link.execute("SELECT pg_advisory_xact_lock(hashtext('dolake'), hashtext(%s))", (schema,))
            if not link.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone():
                link.execute(f'CREATE SCHEMA "{schema}"')  # the settings let only plain names through
            if link.execute("SELECT to_regclass('version')").fetchone() == (None,):
                link.execute("CREATE TABLE version (version INTEGER NOT NULL)")
            (version,) = link.execute("SELECT coalesce(max(version), 0) FROM version").fetchone() or (0,)
            if version > len(steps):
                raise Damaged(
                    f"{self} has catalog version {version}; this release knows {len(steps)}",
                    hint="use the DoLake release that wrote it, or a newer one",
                )
            for number, step in enumerate(steps[version:], start=version + 1):
                link.execute(step, prepare=False)
                link.execute("INSERT INTO version VALUES (%s)", (number,))
            link.execute("COMMIT")
        except BaseException:
            _roll_back(link)
            raise


def _runner(link: Link) -> Run:
    def run(name: str, row: dict[str, Any] | list[dict[str, Any]] | None = None) -> psycopg.Cursor[Any]:
        cursor = link.cursor()
        if isinstance(row, list):
            cursor.executemany(_SQL[name], row)
            return cursor
        return cursor.execute(_SQL[name], row)

    return run


def _is_lost(link: Link, error: psycopg.Error) -> bool:
    return link.closed or isinstance(error, _GONE)


def _roll_back(link: Link) -> None:
    if not link.closed and link.info.transaction_status is not TransactionStatus.IDLE:
        with contextlib.suppress(psycopg.Error):
            link.execute("ROLLBACK")
