"""One SQLite file as a source: its outbox read in order, its tables copied, its schema watched.

Fills sources/base.py; called by runner.py in one thread. A look is at most one short writing transaction (forget what
is acknowledged, follow the schema, copy a chunk, write down where the group ends) and then a read of the group.

A group's end is written down before the group is sent. So after a crash the rest of a group goes out under the same
transaction, and a file that was restored from a backup is known: the lake then has more than the file ever sent.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from dolake.changes import Change
from dolake.errors import NotFound, Unavailable
from dolake.sources.base import Group, Resumption, SourceStatus, Standing, TableCopy
from dolake.sources.sqlite.columns import COPYING, LIVE
from dolake.sources.sqlite.copying import Copier
from dolake.sources.sqlite.events import Row, Translator
from dolake.sources.sqlite.store import Store, TableState, identity_of, in_words
from dolake.sources.sqlite.tables import PREFIX, list_tables, quoted, shape_of
from dolake.sources.sqlite.triggers import GONE, NOW_MS, OUTBOX
from dolake.sources.sqlite.values import reading_any_text
from dolake.sources.sqlite.watching import follow_schema

logger = logging.getLogger("dolake.sources.sqlite")
GROUP_CHANGES_MAX = 20_000
COPY_AHEAD_MAX = 20_000
"""Copied rows may wait for the lake up to here; then the copy waits, and the file does not grow."""
_FORGET_ROWS_MAX = 20_000
_FORGET_EVERY_S = 0.5


class SqliteSource:
    """One file that was enabled. Keeps the promise of base.Source."""

    def __init__(self, path: Path | str, *, namespace: str = "", is_shared: bool = False) -> None:
        """`is_shared`: other files write to the same tables of the lake, so that these are never emptied as a whole."""
        self._store = Store(path)
        self._is_shared = is_shared
        if not self._store.exists:
            self._store.close()
            raise not_enabled(path)
        with in_words(self._store.path):
            self._store.check_format()
            self._acked = int(self._store.get("acked") or 0)
        self._translator = Translator(self._store, namespace, is_shared=is_shared)
        self._copier = Copier()
        self._epoch = 0
        self._read_last = 0
        self._acked_saved = self._acked
        self._group_last = 0
        self._saved_at_s = 0.0
        self._waiting: list[int] = []
        self._version_seen = -1
        self._may_have_more = True

    # --- where we are -----------------------------------------------------------------------------------------------

    def resume(self, standing: Standing) -> Resumption:
        with in_words(self._store.path):
            return self._resume(standing)

    def _resume(self, standing: Standing) -> Resumption:
        with self._store.begin():
            self._acked = self._acked_saved = int(self._store.get("acked") or 0)
            resumed = _decide(self._store.get("epoch"), self._last_group(), self._acked, standing)
            if resumed.reason:
                logger.warning(
                    "all tables are copied again", extra={"reason": resumed.reason, "file": str(self._store.path)}
                )
                self._copy_everything()
            self._store.set("epoch", resumed.epoch)
            self._group_last = self._last_group()
        self._epoch = resumed.epoch
        self._acked = self._read_last = max(self._acked, resumed.after)
        rows = self._store.db.execute(
            f"SELECT last FROM {PREFIX}groups WHERE last > ? ORDER BY last",
            (self._read_last,),
        )
        self._waiting = [row[0] for row in rows.fetchall()]
        self._translator.begin_anew()
        self._may_have_more = True
        return resumed

    def _last_group(self) -> int:
        return int(self._store.db.execute(f"SELECT coalesce(max(last), 0) FROM {PREFIX}groups").fetchone()[0])

    def _copy_everything(self) -> None:
        for table in self._store.tables():
            table.phase, table.cursor, table.filling, table.copied, table.total = COPYING, None, None, 0, 0
            table.empties = True
            self._store.save(table)

    # --- looking ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        with in_words(self._store.path):
            version = self._store.db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version_seen:
            self._version_seen = version
            self._may_have_more = True
        is_replaced = identity_of(self._store.path) != self._store.identity
        return is_replaced or self._may_have_more or bool(self._waiting) or self._is_forgetting_due()

    def look(self) -> Group | None:
        with in_words(self._store.path):
            return self._look()

    def _look(self) -> Group | None:
        self._refuse_another_file()
        if self._waiting:
            last = self._waiting.pop(0)
        else:
            with self._store.begin():
                copying = self._step()
                last = self._end_group()
            self._may_have_more = copying or last > self._read_last
        if last <= self._read_last:
            return None
        group = Group(last, self._read(last))
        self._read_last = last
        return group

    def _step(self) -> bool:
        """What is due, within one transaction; whether a copy is under way and may go on."""
        self._refuse_another_past()
        self._forget_acknowledged()
        if self._store.schema_version() != self._store.get("schema_version"):
            follow_schema(self._store, json.loads(self._store.get("patterns")))
        copying = [each for each in self._store.tables() if each.phase == COPYING and not self._must_compare(each)]
        has_room = self._store.last_sequence() - self._acked < COPY_AHEAD_MAX
        if copying and has_room:
            self._copier.step(self._store, copying[0])
        return bool(copying) and has_room

    # --- a file that became another under us ------------------------------------------------------------------------

    def _refuse_another_file(self) -> None:
        """Somebody may have put another file in our file's place: then whoever writes does not write to ours."""
        if identity_of(self._store.path) != self._store.identity:
            raise self._became_another("another file has its name now")

    def _refuse_another_past(self) -> None:
        """Within a transaction: what only we write there must be what we wrote last.

        Else the file was restored from a backup under us, or disabled and enabled again; its numbers then name other
        changes than ours. Whoever opens it anew compares it with the lake, and copies what must be.
        """
        try:
            last, acked, epoch = self._last_group(), self._store.get("acked") or 0, self._store.get("epoch")
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            raise self._became_another("it is followed no longer") from None
        if (last, acked, epoch) != (self._group_last, self._acked_saved, self._epoch):
            raise self._became_another("it has another past: it was restored, or enabled anew")

    def _became_another(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._store.path} was changed under its source: {why}", hint="it is opened again, and compared"
        )

    # --- tables that others write to, too ---------------------------------------------------------------------------

    def _must_compare(self, table: TableState) -> bool:
        return self._is_shared and table.empties and table.phase == COPYING

    def table_to_compare(self) -> str | None:
        with in_words(self._store.path):
            tables = [table.name for table in self._store.tables() if self._must_compare(table)]
        return self._translator.table_name(tables[0]) if tables else None

    def compare(self, table: str, keys: Sequence[str] | None) -> None:
        with in_words(self._store.path):
            self._compare(table, keys)

    def _compare(self, table: str, keys: Sequence[str] | None) -> None:
        """Rows that the lake has of us and the file has not are deleted; then the copy tells all that the file has.

        The order makes it right: a row that comes back meanwhile is copied behind its deletion.
        """
        state = next(each for each in self._store.tables() if self._translator.table_name(each.name) == table)
        there = self._keys_in_file(state) if keys else set()
        with self._store.begin() as db:
            self._refuse_another_past()
            for key in keys or ():
                if key not in there:
                    statement = f"INSERT INTO {OUTBOX} (at, shape, op, v0) VALUES ({NOW_MS}, ?, ?, ?)"
                    db.execute(statement, (state.shape_id, GONE, key))
            state.empties = False
            self._store.save(state)
        self._may_have_more = True

    def _keys_in_file(self, state: TableState) -> set[str]:
        shape, reader = self._store.shape(state.shape_id), self._translator.reader(state.shape_id)
        columns = ", ".join([*(quoted(shape.names[index]) for index in shape.key), shape.rowid or "NULL"])
        with self._store.reading() as db, reading_any_text(db):
            rows = db.execute(f"SELECT {columns} FROM {quoted(shape.name)}")
            return {reader.key_of(row[:-1], row[-1]) for row in rows}

    def _end_group(self) -> int:
        """Everything that is committed now is a group, unless it is too much for one."""
        first, last = self._read_last, self._store.last_sequence()
        if last - first > GROUP_CHANGES_MAX:
            last = self._cut(first)
        if last > first:
            self._store.db.execute(f"INSERT OR IGNORE INTO {PREFIX}groups (last) VALUES (?)", (last,))
            self._group_last = max(self._group_last, last)
        return last

    def _cut(self, first: int) -> int:
        """Where the clock makes its largest step: most likely between two transactions. Nobody can know it."""
        rows = self._store.db.execute(
            f"SELECT seq, at FROM {OUTBOX} WHERE seq > ? ORDER BY seq LIMIT ?",
            (first, GROUP_CHANGES_MAX),
        ).fetchall()
        half = rows[len(rows) // 2 :]
        steps = [(later[1] - earlier[1], earlier[0]) for earlier, later in pairwise(half)]
        return max(steps)[1] if steps else int(rows[-1][0])

    def _read(self, last: int) -> list[Change]:
        statement = f"SELECT * FROM {OUTBOX} WHERE seq > ? AND seq <= ? ORDER BY seq"
        with self._store.reading() as db:
            self._refuse_another_past()
            try:
                rows: list[Row] = db.execute(statement, (self._read_last, last)).fetchall()
            except sqlite3.OperationalError as error:
                if "decode" not in str(error):
                    raise
                with reading_any_text(db):
                    rows = db.execute(statement, (self._read_last, last)).fetchall()
            return self._translator.changes(rows, self._epoch, last)

    # --- forgetting -------------------------------------------------------------------------------------------------

    def acknowledge(self, sequence: int) -> None:
        self._acked = max(self._acked, sequence)

    def _is_forgetting_due(self) -> bool:
        return self._acked > self._acked_saved and time.monotonic() - self._saved_at_s > _FORGET_EVERY_S

    def _forget_acknowledged(self) -> None:
        """Delete what is durable in the lake; but never the newest row, from which SQLite makes the next number."""
        self._saved_at_s = time.monotonic()
        if self._acked <= self._acked_saved:
            return
        upto = min(self._acked, self._acked_saved + _FORGET_ROWS_MAX)
        db = self._store.db
        db.execute(f"DELETE FROM {OUTBOX} WHERE seq <= ? AND seq < (SELECT max(seq) FROM {OUTBOX})", (upto,))
        db.execute(f"DELETE FROM {PREFIX}groups WHERE last < ?", (upto,))
        self._store.set("acked", upto)
        self._acked_saved = upto

    # --- for people -------------------------------------------------------------------------------------------------

    def status(self) -> SourceStatus:
        with in_words(self._store.path):
            return status_of(self._store, acked=self._acked)

    def close(self) -> None:
        """What cannot be written down now costs nothing: the lake knows what it has."""
        try:
            self._refuse_another_file()
            if self._acked > self._acked_saved:
                with self._store.begin():
                    self._refuse_another_past()
                    while self._acked > self._acked_saved:
                        self._forget_acknowledged()
        except (sqlite3.Error, Unavailable) as error:
            logger.warning(
                "the place is not written down", extra={"problem": str(error), "file": str(self._store.path)}
            )
        finally:
            self._store.close()


def _decide(epoch: int | None, sent: int, acked: int, standing: Standing) -> Resumption:
    """Compare the file's place with the lake's. Pure."""
    lake, durable = standing.epoch, standing.durable_sequence
    if epoch is None and durable == 0:
        return Resumption(lake, 0)
    if epoch is None:
        return Resumption(lake + 1, 0, "the lake knows this stream already, and the file is new")
    if epoch < lake:
        return Resumption(lake + 1, 0, "the file is older than the stream: it was restored from a backup")
    if epoch > lake:
        return Resumption(epoch, 0, "the lake has lost this stream" if acked else "")
    if durable > sent:
        return Resumption(lake + 1, 0, "the lake has changes that the file has not: it was restored from a backup")
    if durable < acked:
        return Resumption(epoch, durable, "the lake has lost acknowledged changes")
    return Resumption(epoch, durable)


def status_of(store: Store, *, acked: int | None = None) -> SourceStatus:
    """What the file itself can tell, with or without a runner at work."""
    with store.reading() as db:
        patterns = json.loads(store.get("patterns"))
        acked = int(store.get("acked") or 0) if acked is None else acked
        last = store.last_sequence()
        pending = db.execute(f"SELECT count(*), min(at) FROM {OUTBOX} WHERE seq > ?", (acked,)).fetchone()
        names, left_out = list_tables(db, patterns)
        left_out += [problem for name in names if isinstance(problem := shape_of(db, name), str)]
        tables = [_copy_of(table) for table in store.tables()]
        epoch = store.get("epoch")
    lag_ms = max(0, time.time_ns() // 1_000_000 - pending[1]) if pending[0] else 0
    return SourceStatus(epoch, acked, last, pending[0], lag_ms, tables, left_out)


def _copy_of(table: TableState) -> TableCopy:
    return TableCopy(table.name, LIVE if table.phase == LIVE else COPYING, table.copied, max(table.total, table.copied))


def not_enabled(path: Path | str) -> NotFound:
    return NotFound(f"{path} is not followed", hint="`dolake source enable FILE`, or enable_cdc(path)")
