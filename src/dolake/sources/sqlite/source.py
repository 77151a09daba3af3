"""One SQLite file as a source: its outbox read in order, its tables copied, its schema watched.

Fills sources/base.py; called by runner.py in one thread. A look is one reading transaction: the new events, and where
there are no more of them a part of a copy, read at the same point in time. The file is written only where its schema
has changed (watching.py), where our table was dropped (installation.py) and to trim the outbox (trimming.py).
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dolake.errors import NotFound, Unavailable
from dolake.sources.base import Piece, Resumption, SourceStatus, Standing, TableCopy
from dolake.sources.sqlite.copying import CHUNK_TIME_MAX_S, read_chunk, rows_of
from dolake.sources.sqlite.events import Row, Translator
from dolake.sources.sqlite.installation import repair
from dolake.sources.sqlite.pieces import PieceMaker
from dolake.sources.sqlite.resumption import decide, is_at
from dolake.sources.sqlite.state import COPYING, LIVE, FileState, TableState, address_of
from dolake.sources.sqlite.store import Head, Store, file_id_of, in_words, is_busy, our_objects, packed
from dolake.sources.sqlite.tables import list_tables, quoted, shape_of
from dolake.sources.sqlite.triggers import OUTBOX
from dolake.sources.sqlite.trimming import Trimmer, TrimRules
from dolake.sources.sqlite.values import reading_any_text
from dolake.sources.sqlite.watching import follow_schema

logger = logging.getLogger("dolake.sources.sqlite")
GROUP_CHANGES_MAX = 20_000
_WRITE_WAIT_MS = 200
"""How long a change of the schema is waited for with a lock that other readers may notice."""
_QUIET_WAIT_MAX_S = 10.0
"""How long a change of the schema waits for a file that nobody else uses, before it takes such a lock."""


class SqliteSource:
    """One file that was enabled. Keeps the promise of base.Source."""

    def __init__(
        self,
        path: Path | str,
        *,
        namespace: str = "",
        is_shared: bool = False,
        trim_rules: TrimRules | None = None,
    ) -> None:
        """`is_shared`: other files write to the same tables of the lake, so that these are never emptied as a whole."""
        self._store = Store(path)
        self._is_shared = is_shared
        with in_words(self._store.path):
            text = self._store.head_text()
            head = self._store.head_of(text)
        if head is None:
            self._store.close()
            raise not_enabled(path)
        self._head: Head = head
        self._head_text = text
        self._translator = Translator(self._store, namespace, is_shared=is_shared)
        self._trimmer = Trimmer(trim_rules or TrimRules())
        self._maker = PieceMaker({})
        self._pieces: deque[Piece] = deque()
        self._acked = 0
        self._version_seen = -1
        self._may_have_more = True
        self._schema_changed_s: float | None = None

    # --- where we are -----------------------------------------------------------------------------------------------

    @property
    def _state(self) -> FileState:
        return self._translator.state

    def resume(self, standing: Standing) -> Resumption:
        with in_words(self._store.path), self._store.reading():
            return self._resume(standing)

    def _resume(self, standing: Standing) -> Resumption:
        self._refuse_another_past(is_resuming=True)
        resumed = decide(self._store, self._head, standing)
        state = resumed.state
        self._translator.masks, self._translator.mask_secret = self._head.masks, self._head.mask_secret
        self._translator.begin(state, standing.epoch, standing.durable_sequence)
        lost: list[str] = []
        if resumed.reason:
            logger.warning(
                "all tables are copied again", extra={"reason": resumed.reason, "file": str(self._store.path)}
            )
            before = resumed.before.tables if resumed.before else {}
            for name, shape_id in self._head.tables.items():
                lake = before[name].lake if name in before else self._translator.table_name(name)
                state.tables[name] = TableState(shape_id, lake)
                self._translator.copy_again(name)
            lost = [each.lake for name, each in before.items() if not self._store.has_table(name)]
        for name, table in state.tables.items():
            table.lake = table.lake or self._translator.table_name(name)
        state.identity, state.instance = self._head.identity, self._head.instance
        state.host, state.path = address_of(self._store.path)
        self._maker = PieceMaker(dict(standing.state))
        self._pieces.clear()
        dropped = self._translator.dropped(lost, _now_ms())
        if dropped or self._maker.is_changed(state):
            self._pieces.append(self._maker.cut(dropped, state))
        self._acked = state.place.outbox
        self._may_have_more = True
        return Resumption(resumed.reason)

    # --- looking ----------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        with in_words(self._store.path):
            version = self._store.db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version_seen:
            self._version_seen = version
            self._may_have_more = True
            self._trimmer.note_change()
        is_replaced = file_id_of(self._store.path) != self._store.file_id
        is_trimming_due = self._trimmer.is_due(self._acked, self._head.acked)
        return is_replaced or self._may_have_more or bool(self._pieces) or is_trimming_due

    def look(self) -> Piece | None:
        with in_words(self._store.path):
            if not self._pieces:
                self._look()
        return self._pieces.popleft() if self._pieces else None

    def _look(self) -> None:
        self._refuse_another_file()
        self._mend_missing_table()
        with self._store.reading():
            self._refuse_another_past()
            is_done = self._read_group()
            has_new_schema = self._store.schema_version() != self._head.schema_version
            may_copy = is_done and not has_new_schema
            is_copying = may_copy and self._copy()
        self._may_have_more = is_copying or not is_done
        if is_done and has_new_schema:
            self._follow_schema()
        if self._trimmer.is_due(self._acked, self._head.acked) and self._trimmer.trim(self._store, self._acked):
            self._read_head()

    def _read_group(self) -> bool:
        """The events behind our place; whether these were all."""
        first, last = self._state.place.outbox, self._store.last_sequence()
        open_transaction = self._state.place.transaction
        upto = last
        if open_transaction:
            upto = min(last, open_transaction.last)
        elif last - first > GROUP_CHANGES_MAX:
            upto = self._cut(first)
        if upto > first:
            rows = self._events(first, upto)
            told = self._translator.tell(rows, open_transaction)
            self._pieces += self._maker.of_group(told, self._state, upto)
            self._trimmer.note_size(self._maker.event_size)
        return upto == last

    def _events(self, first: int, last: int) -> list[Row]:
        statement = f"SELECT * FROM {OUTBOX} WHERE seq > ? AND seq <= ? ORDER BY seq"
        db = self._store.db
        try:
            return db.execute(statement, (first, last)).fetchall()
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
            with reading_any_text(db):
                return db.execute(statement, (first, last)).fetchall()

    def _cut(self, first: int) -> int:
        """Where the clock makes its largest step: most likely between two transactions. The outbox does not say it."""
        rows = self._store.db.execute(
            f"SELECT seq, at FROM {OUTBOX} WHERE seq > ? ORDER BY seq LIMIT ?",
            (first, GROUP_CHANGES_MAX),
        ).fetchall()
        half = rows[len(rows) // 2 :]
        steps = [(later[1] - earlier[1], earlier[0]) for earlier, later in pairwise(half)]
        return max(steps)[1] if steps else int(rows[-1][0])

    # --- copying ----------------------------------------------------------------------------------------------------

    def _copy(self) -> bool:
        """Read on with the copy for a moment; whether there is more to copy."""
        until_s = time.monotonic() + CHUNK_TIME_MAX_S
        while name := self._table_to_copy():
            self._copy_chunk(name, self._state.tables[name], until_s)
            if time.monotonic() >= until_s:
                break
        return self._table_to_copy() is not None

    def _table_to_copy(self) -> str | None:
        for name, table in self._state.tables.items():
            if table.phase == COPYING and not self._must_compare(table):
                return name
        return None

    def _copy_chunk(self, name: str, table: TableState, until_s: float) -> None:
        shape = self._store.shape(table.shape)
        if shape is None:
            raise self._became_another("a table's shape is missing in it")
        at_ms = _now_ms()
        if table.empties:
            table.empties = False
            self._pieces.append(self._maker.cut([self._translator.emptied(table.shape, at_ms)], self._state))
        if not table.total:
            table.total = rows_of(self._store.db, shape)
        chunk = read_chunk(self._store.db, shape, table, until_s)
        if chunk.rows and (reader := self._translator.reader(table.shape)) and reader.hints:
            self._translator.observe(table.shape, reader, [values for _, values in chunk.rows])
        changes = self._translator.copied(table.shape, chunk.rows, at_ms)
        table.copied += chunk.scanned
        if chunk.last is None and not table.copied:
            changes = [self._translator.created(table.shape, at_ms)]
        if chunk.last is None:
            table.phase, table.cursor, table.filling = LIVE, None, None
        else:
            table.cursor = packed(chunk.last)
        self._pieces.append(self._maker.cut(changes, self._state))

    # --- a schema that changed, a table that is missing -------------------------------------------------------------

    def _follow_schema(self) -> None:
        """Put triggers on new tables and mend those of changed ones. A busy file is tried again with the next look."""
        self._may_have_more = True
        try:
            with self._store.writing(**self._schema_lock()):
                head = self._store.head()
                if head is not None and head.schema_version != self._store.schema_version():
                    follow_schema(self._store, head)
            self._schema_changed_s = None
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        self._read_head()

    def _schema_lock(self) -> dict[str, Any]:
        """How to write after a change of the schema: without WAL at first only where no other connection is at work.

        A transaction of the application that has read cannot write while we hold a lock, and fails at once.
        """
        if self._schema_changed_s is None:
            self._schema_changed_s = time.monotonic()
        is_patient = time.monotonic() - self._schema_changed_s < _QUIET_WAIT_MAX_S
        if is_patient and self._store.db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            return {"begin": "EXCLUSIVE", "busy_wait_ms": 0}
        return {"busy_wait_ms": _WRITE_WAIT_MS}

    def _mend_missing_table(self) -> None:
        """Another program dropped our table: as long as our triggers are there, it cannot write."""
        text = self._store.head_text()
        if text == self._head_text or self._store.head_of(text) is not None:
            return
        if our_objects(self._store.db, "trigger"):
            repair(self._store, self._head)
            raise self._became_another("its outbox was dropped, and is made anew")

    def _read_head(self) -> None:
        self._head_text = self._store.head_text()
        self._head = self._store.head_of(self._head_text) or self._head
        self._translator.masks = self._head.masks

    # --- a file that became another under us ------------------------------------------------------------------------

    def _refuse_another_file(self) -> None:
        """Another file may have taken our file's place: then programs write to that one."""
        if file_id_of(self._store.path) != self._store.file_id:
            raise self._became_another("another file has its name now")

    def _refuse_another_past(self, *, is_resuming: bool = False) -> None:
        """Within a transaction: the event at our place must be the one that we read there.

        Else the file was restored from a backup under us, or disabled and enabled again.
        """
        text = self._store.head_text()
        if text != self._head_text:
            head = self._store.head_of(text)
            if head is None:
                raise self._became_another("it is followed no longer")
            if not is_resuming and head.masks != self._head.masks:
                raise self._became_another("other columns are masked")
            if not is_resuming and (head.identity, head.instance) != (self._head.identity, self._head.instance):
                raise self._became_another("it was enabled anew")
            self._head, self._head_text = head, text
            self._store.forget_shapes()
        if not is_resuming and not is_at(self._store, self._state.place):
            raise self._became_another("it has another past: it was restored from a backup")

    def _became_another(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._store.path} was changed under its source: {why}", hint="it is opened again, and compared"
        )

    # --- tables that others write to, too ---------------------------------------------------------------------------

    def _must_compare(self, table: TableState) -> bool:
        return self._is_shared and table.empties and table.phase == COPYING

    def table_to_compare(self) -> str | None:
        return next((table.lake for table in self._state.tables.values() if self._must_compare(table)), None)

    def compare(self, table: str, keys: Sequence[str] | None) -> None:
        """Rows that the lake has of us and the file has not are deleted; then the copy tells all that the file has.

        The order makes it right: a row that comes back meanwhile is copied behind its deletion.
        """
        with in_words(self._store.path), self._store.reading():
            self._refuse_another_past()
            while not self._read_group():
                pass
            state = next((each for each in self._state.tables.values() if each.lake == table), None)
            if state is None:
                return
            there = self._keys_in_file(state) if keys else set()
            gone = [key for key in keys or () if key not in there]
            state.empties = False
            changes = self._translator.gone(state.shape, gone, _now_ms())
            self._pieces += self._maker.of_changes(changes, self._state)
        self._may_have_more = True

    def _keys_in_file(self, state: TableState) -> set[str]:
        reader = self._translator.reader(state.shape)
        if reader is None:
            raise self._became_another("a table's shape is missing in it")
        shape = reader.shape
        columns = ", ".join([*(quoted(shape.names[index]) for index in shape.key), shape.rowid or "NULL"])
        with reading_any_text(self._store.db):
            rows = self._store.db.execute(f"SELECT {columns} FROM {quoted(shape.name)}")
            return {reader.key_of(row[:-1], row[-1]) for row in rows}

    # --- for people -------------------------------------------------------------------------------------------------

    def acknowledge(self, piece: Piece) -> None:
        self._acked = max(self._acked, piece.place)

    def status(self) -> SourceStatus:
        with in_words(self._store.path):
            return status_of(self._store, state=self._state, acked=self._acked)

    def close(self) -> None:
        """Nothing is written down: the lake knows what it has."""
        self._store.close()


def status_of(store: Store, *, state: FileState | None = None, acked: int | None = None) -> SourceStatus:
    """What the file can tell; with the lake's state also how far the copies are."""
    with store.reading() as db:
        head = store.head()
        if head is None:
            raise not_enabled(store.path)
        acked = head.acked if acked is None else acked
        last = store.last_sequence()
        pending = db.execute(f"SELECT count(*), min(at) FROM {OUTBOX} WHERE seq > ?", (acked,)).fetchone()
        names, left_out = list_tables(db, head.patterns, head.excluded)
        left_out += [problem for name in names if isinstance(problem := shape_of(db, name), str)]
    tables = [_copy_of(name, state.tables.get(name) if state else None) for name in sorted(head.tables)]
    if state:  # a table that a note in the outbox will add is not known here yet
        tables = [each if each.phase else TableCopy(each.table, COPYING, 0, 0) for each in tables]
    lag_ms = max(0, time.time_ns() // 1_000_000 - pending[1]) if pending[0] else 0
    return SourceStatus(pending[0], lag_ms, last, tables, left_out, is_known=state is not None)


def _copy_of(name: str, table: TableState | None) -> TableCopy:
    if table is None:
        return TableCopy(name, "", 0, 0)
    return TableCopy(name, table.phase, table.copied, max(table.total, table.copied))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def not_enabled(path: Path | str) -> NotFound:
    return NotFound(f"{path} is not followed", hint="`dolake source enable FILE`, or enable_cdc(path)")
