"""Rows of the outbox become changes: read by the shape that their table had, with key, images and types.

From source.py, which reads the rows; to pieces.py as Told. Notes about tables change the state on their way, at their
place among the changes. One question goes to the file: whether a row that a REPLACE may have deleted is still there.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from dolake.changes import Change
from dolake.sources.sqlite.forms import Form, Observed, choose, row_converter, schema_column
from dolake.sources.sqlite.naming import table_name
from dolake.sources.sqlite.state import ALL, COPYING, FileState, OpenTransaction, TableState
from dolake.sources.sqlite.store import Store
from dolake.sources.sqlite.tables import Column, Shape, key_names, quoted
from dolake.sources.sqlite.triggers import (
    CONTROL,
    COPY,
    DELETE,
    GONE,
    INSERT,
    OUTBOX_HEAD,
    SUSPECT,
    UPDATE,
    UPDATE_FULL,
    WAS_NULL,
    names_in_trigger,
    trigger_name,
)
from dolake.sources.sqlite.values import Value, key_text, mark_for, reading_any_text, size_of
from dolake.tables.rules import ValueMask, value_mask

logger = logging.getLogger("dolake.sources.sqlite")
_MASKED = Form("string")
_HEAD = len(OUTBOX_HEAD)
_SAMPLE_ROWS = 2_500
Row = Sequence[Any]


@dataclass(slots=True)
class Told:
    """What one row of the outbox says; a row may say several things, or none. `size` is about its bytes."""

    row: Row
    change: Change | None
    size: int = 0
    transaction: str = ""
    is_last: bool = True
    """Whether this is the last thing that the row says."""


class Reader:
    """How rows of one shape are read."""

    def __init__(self, shape: Shape, table: str, forms: Sequence[Form], masks: Mapping[str, ValueMask]) -> None:
        self.table = table
        self._masks = masks
        self.shape = shape
        self.width = len(shape.columns)
        self.forms = list(forms)
        self._single = shape.key[0] if len(shape.key) == 1 else None
        self._is_text = len(shape.key) == 1 and shape.columns[shape.key[0]].is_text
        self._fit()

    def _fit(self) -> None:
        plain = row_converter(self.shape.names, self.forms)
        self.image = _masked(plain, self._masks) if self._masks else plain
        self.hints = [index for index, form in enumerate(self.forms) if form.is_hint]
        self.schema = [
            schema_column(
                column.name,
                _MASKED if column.name in self._masks else form,
                nullable=column.nullable,
                key=index in self.shape.key,
            )
            for index, (column, form) in enumerate(zip(self.shape.columns, self.forms, strict=True))
        ]

    def observe(self, rows: Sequence[Sequence[Value]]) -> bool:
        """Choose forms for columns that had no value so far; whether one was chosen."""
        chosen = False
        for index in self.hints:
            observed = Observed()
            declared = self.shape.columns[index].declared_type
            observed.add(declared, [row[index] for row in rows])
            if not observed.is_empty:
                self.forms[index] = choose(declared, observed)
                chosen = True
        if chosen:
            self._fit()
        return chosen

    def key(self, values: Sequence[Value], rowid: int | None) -> str:
        """The key of a row of which these are all values."""
        if self._single is not None and type(value := values[self._single]) is int:
            return str(value)  # by far the commonest kind
        return self.key_of([values[index] for index in self.shape.key], rowid)

    def key_of(self, parts: Sequence[Value], rowid: int | None) -> str:
        return key_text(parts, rowid, is_text=self._is_text)


class Translator:
    """Makes changes of outbox rows and of copied rows, for one stream."""

    def __init__(self, store: Store, namespace: str, *, is_shared: bool = False) -> None:
        self._store = store
        self._is_shared = is_shared
        self._namespace = namespace
        self._readers: dict[int, Reader] = {}
        self._announced: set[int] = set()
        self.state = FileState()
        self.epoch = 0
        self.sequence = 0
        self.masks: Mapping[str, str] = {}
        """By table.column, what is kept of its values: `hash`, `redact`, `truncate(3)`."""
        self.mask_secret = ""

    def begin(self, state: FileState, epoch: int, sequence: int) -> None:
        """Go on behind this sequence of the stream. The lake may be another one: tell the types again."""
        self.state, self.epoch, self.sequence = state, epoch, sequence
        self._announced.clear()
        self._readers.clear()

    def table_name(self, name: str) -> str:
        return table_name(self._namespace, name)

    # --- the outbox -------------------------------------------------------------------------------------------------

    def tell(self, rows: Sequence[Row], open_transaction: OpenTransaction | None) -> Iterator[Told]:
        """The changes of one group. Those between two notes about tables are one transaction; its last one ends it."""
        transaction = open_transaction.id if open_transaction else ""
        for is_control, run in groupby(rows, lambda row: row[3] == CONTROL):
            if is_control:
                transaction = ""
                for row in run:
                    yield from self._control(row)
                continue
            part = list(run)
            self._observe(part)
            newest: dict[str, Any] | None = None
            for row in part:
                made = self._change(row)
                if made is None:
                    yield Told(row, None, transaction=transaction)
                    continue
                change, newest, size = made
                transaction = transaction or f"{self.epoch}.{change.sequence}"
                newest["transactionId"] = transaction
                yield Told(row, change, size, transaction)
            if newest is not None:
                newest["transactionEnd"] = True

    def _observe(self, rows: Sequence[Row]) -> None:
        """Columns that had no value so far get their forms from the first values that come."""
        by_shape: dict[int, list[Row]] = {}
        for row in rows:
            if row[3] in (INSERT, UPDATE, UPDATE_FULL):
                by_shape.setdefault(row[2], []).append(row[_HEAD:])
        for shape_id, values in by_shape.items():
            if (reader := self.reader(shape_id)) and reader.hints:
                self.observe(shape_id, reader, values)

    def observe(self, shape_id: int, reader: Reader, values: Sequence[Sequence[Value]]) -> None:
        """Show values to the columns that had none, and keep what was chosen."""
        if reader.observe(values):
            self._keep_forms(reader)
            self._announced.discard(shape_id)

    def _keep_forms(self, reader: Reader) -> None:
        table = self.state.tables.get(reader.shape.name)
        if table is not None:
            chosen = list(zip(reader.shape.columns, reader.forms, strict=True))
            table.hints = tuple([column.name for column, form in chosen if form.is_hint])
            table.forms = {
                column.name: msgspec.to_builtins(form)
                for column, form in chosen
                if not form.is_hint and form != _declared_form(column)
            }

    def reader(self, shape_id: int) -> Reader | None:
        """How rows of this shape are read; None where it is not known, as after a repair: then its table is copied."""
        if shape_id not in self._readers:
            shape = self._store.shape(shape_id)
            if shape is None:
                return None
            table = self.state.tables.get(shape.name)
            forms = [_form_of(column, table) for column in shape.columns]
            masks = masks_of(self.masks, self.mask_secret, shape)
            self._readers[shape_id] = Reader(shape, table.lake if table else self.table_name(shape.name), forms, masks)
        return self._readers[shape_id]

    def _change(self, row: Row) -> tuple[Change, dict[str, Any], int] | None:
        _, at, shape_id, operation, k, j = row[:_HEAD]
        reader = self.reader(shape_id)
        if reader is None or reader.shape.name not in self.state.tables:
            return None
        width = reader.width
        values = row[_HEAD : _HEAD + width]
        metadata: dict[str, Any] = {}
        before: dict[str, Any] | None = None
        after: dict[str, Any] | None = None
        if operation in (INSERT, COPY):
            word, key, after = "INSERT", reader.key(values, k), reader.image(values)
        elif operation in (UPDATE, UPDATE_FULL):
            old = row[_HEAD + width : _HEAD + 2 * width]
            if operation == UPDATE:
                old = _with_unchanged(old, values)
            word, key, after, before = "UPDATE", reader.key(values, k), reader.image(values), reader.image(old)
            if (previous := reader.key(old, j)) != key:
                metadata["previousRowId"] = previous
        elif operation == DELETE:
            word, key, before = "DELETE", reader.key(values, k), reader.image(values)
        elif operation == SUSPECT:
            word, key = "DELETE", reader.key(values, k)
            if self._is_there(shape_id, reader, values, k, key):
                return None
        elif operation == GONE:
            word, key = "DELETE", str(values[0])
        else:
            return None
        self._announce(shape_id, reader, metadata)
        self.sequence += 1
        change = Change(reader.table, word, key, after, before, metadata, self.sequence, at)  # type: ignore[arg-type]
        return change, metadata, size_of(row)

    def _announce(self, shape_id: int, reader: Reader, metadata: dict[str, Any]) -> None:
        if shape_id not in self._announced:
            metadata["schema"] = reader.schema
            self._announced.add(shape_id)

    def _is_there(self, shape_id: int, reader: Reader, values: Sequence[Value], rowid: int | None, key: str) -> bool:
        """Whether the table still has the row with this key. If it has not, the lake must not have it either.

        Where it was deleted and made anew meanwhile, its INSERT follows.
        """
        shape = reader.shape
        table, names = self._called_now(shape_id, shape)
        named = [(quoted(names[index]), values[index]) for index in shape.key]
        if not named or any(value is None for _, value in named):
            named = [(str(shape.rowid), rowid)]
        columns = ", ".join([*(quoted(names[index]) for index in shape.key), shape.rowid or "NULL"])
        condition = " AND ".join(f"{name} = {mark_for(value)}" for name, value in named)
        try:
            with reading_any_text(self._store.db):
                rows = self._store.db.execute(
                    f"SELECT {columns} FROM {quoted(table)} WHERE {condition}",
                    [value for _, value in named],
                ).fetchall()
        except sqlite3.OperationalError:
            return False  # the table has changed or gone since, and is copied again or dropped behind this
        return any(reader.key_of(row[:-1], row[-1]) == key for row in rows)

    def _called_now(self, shape_id: int, shape: Shape) -> tuple[str, Sequence[str]]:
        """The table and its columns by the names that they have in the file, as long as a rename is not followed yet.

        A rename that is followed copies the table, where a row would be looked for by a name that it no longer has.
        """
        statement = "SELECT tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?"
        found = self._store.db.execute(statement, (trigger_name(shape_id, "insert"),)).fetchone()
        return (found[0], names_in_trigger(found[1])) if found else (shape.name, shape.names)

    # --- notes about tables -----------------------------------------------------------------------------------------

    def _control(self, row: Row) -> Iterator[Told]:
        words = msgspec.json.decode(row[_HEAD])
        ddl = [(words["table"], each) for each in words.get("ddl", ())] if "do" in words else []
        match words.get("do"):
            case "follow":
                self._follow(words, ddl)
            case "unfollow":
                if words["isGone"]:
                    ddl.append((words["table"], {"action": "drop"}))
            case "rename":
                ddl.append((words["table"], {"action": "rename", "to": self.table_name(words["to"])}))
            case None:  # of format 1
                shape = self._store.shape(row[2])
                ddl = [(shape.name, words["ddl"] | _renamed(words, self.table_name))] if shape else []
        told = [Told(row, change, 200, is_last=False) for name, each in ddl if (change := self._ddl(row, name, each))]
        self._apply(words)
        yield from told
        yield Told(row, None)

    def _ddl(self, row: Row, name: str, ddl: dict[str, Any]) -> Change | None:
        if self._is_shared and ddl["action"] in ("truncate", "drop", "rename"):
            return None  # the lake's table has rows of other shards
        table = self.state.tables.get(name)
        self.sequence += 1
        where = table.lake if table else self.table_name(name)
        return Change(where, "DELETE", "-", metadata={"ddl": ddl}, sequence=self.sequence, timestamp_ms=row[1])

    def _follow(self, words: dict[str, Any], ddl: list[tuple[str, dict[str, Any]]]) -> None:
        """A table that is made anew may lack columns that the lake has: they go, as with ALTER TABLE."""
        if words["table"] not in self.state.tables:
            ddl.clear()

    def _apply(self, words: dict[str, Any]) -> None:
        """What a note changes of the state."""
        tables, name = self.state.tables, words.get("table", "")
        self._readers.clear()
        match words.get("do"):
            case "follow":
                tables[name] = TableState(words["shape"], self.table_name(name), empties=words["empties"])
                self._sample(name)
            case "unfollow":
                tables.pop(name, None)
            case "rename":
                tables.pop(name, None)
                tables[words["to"]] = TableState(words["shape"], self.table_name(words["to"]))
                self._sample(words["to"])
            case "columns":
                self._apply_columns(words)
                self._sample(name)
            case "renumbered" if name in tables:
                tables[name].shape = words["shape"]
                if tables[name].phase == COPYING:
                    tables[name].copy_again()
            case "triggers" if name in tables:  # of format 1, replaced by today's
                tables[name].shape = words["shape"]
                self._sample(name)
            case "copy" if name in tables:
                self.copy_again(name)
            case "repaired":
                for each in tables:
                    self.copy_again(each)

    def _apply_columns(self, words: dict[str, Any]) -> None:
        table = self.state.tables.get(words["table"])
        if table is None:
            self.state.tables[words["table"]] = TableState(
                words["shape"], self.table_name(words["table"]), empties=True
            )
            return
        table.shape = words["shape"]
        self._apply_names(table, words)
        if words.get("again") or table.phase == COPYING:
            table.copy_again(empties=words.get("empties", False))
        elif "filling" in words:
            table.copy_again()
            table.filling = words["filling"]

    def _apply_names(self, table: TableState, words: dict[str, Any]) -> None:
        """Forms go with their columns; a column that is new has none yet."""
        was, now = self._store.shape(words["was"]), self._store.shape(words["shape"])
        if was is None or now is None or table.hints == ALL:
            table.forget_forms()
            return
        known = set(was.names) - set(table.hints)
        for ddl in words["ddl"]:
            form = table.forms.pop(ddl["column"], None)
            if ddl["action"] == "rename_column":
                if form is not None:
                    table.forms[ddl["to"]] = form
                if ddl["column"] in known:
                    known.add(ddl["to"])
            known.discard(ddl["column"])
        table.hints = tuple([name for name in now.names if name not in known])

    def copy_again(self, name: str) -> None:
        """All of a table: the lake's is emptied first, and its columns get their forms from what is there now."""
        table = self.state.tables[name]
        table.copy_again(empties=True)
        table.forget_forms()
        self._sample(name)

    def _sample(self, name: str) -> None:
        """Choose the forms of columns that have none yet from the first rows and the last."""
        table = self.state.tables[name]
        self._readers.pop(table.shape, None)
        reader = self.reader(table.shape)
        if reader is None or not reader.hints:
            return
        key = ", ".join(key_names(reader.shape))
        back = ", ".join(f"{each} DESC" for each in key_names(reader.shape))
        columns = ", ".join(map(quoted, reader.shape.names))
        try:
            with reading_any_text(self._store.db):
                rows = [
                    row
                    for order in (key, back)
                    for row in self._store.db.execute(
                        f"SELECT {columns} FROM {quoted(name)} ORDER BY {order} LIMIT {_SAMPLE_ROWS}"
                    )
                ]
        except sqlite3.OperationalError:
            return  # the table has changed since, and a later note says so
        self.observe(table.shape, reader, rows)

    # --- copied rows ------------------------------------------------------------------------------------------------

    def copied(self, shape_id: int, rows: Sequence[tuple[int | None, Sequence[Value]]], at_ms: int) -> list[Change]:
        """Rows that a copy has read, as one transaction."""
        reader = self.reader(shape_id)
        assert reader is not None, "a table that is copied has a shape"
        changes = []
        metadata: dict[str, Any] = {}
        transaction = f"{self.epoch}.{self.sequence + 1}"
        for rowid, values in rows:
            metadata = {"transactionId": transaction}
            self._announce(shape_id, reader, metadata)
            self.sequence += 1
            changes.append(
                Change(
                    reader.table, "INSERT", reader.key(values, rowid), reader.image(values), None, metadata,
                    self.sequence, at_ms,
                )
            )  # fmt: skip
        metadata["transactionEnd"] = True
        return changes

    def gone(self, shape_id: int, keys: Sequence[str], at_ms: int) -> list[Change]:
        """Rows that the lake has and the file has not."""
        reader = self.reader(shape_id)
        assert reader is not None, "a table that is copied has a shape"
        changes = []
        for key in keys:
            self.sequence += 1
            changes.append(Change(reader.table, "DELETE", key, None, None, None, self.sequence, at_ms))
        return changes

    def dropped(self, tables: Sequence[str], at_ms: int) -> list[Change]:
        """Tables of the lake that the file, as it was restored, has not."""
        changes: list[Change] = []
        for table in () if self._is_shared else tables:
            self.sequence += 1
            metadata = {"ddl": {"action": "drop"}}
            changes.append(Change(table, "DELETE", "-", metadata=metadata, sequence=self.sequence, timestamp_ms=at_ms))
        return changes

    def created(self, shape_id: int, at_ms: int) -> Change:
        """A table without a row: the lake has it, too."""
        reader = self.reader(shape_id)
        assert reader is not None, "a table that is copied has a shape"
        self.sequence += 1
        metadata = {"ddl": {"action": "create"}, "schema": reader.schema}
        return Change(reader.table, "DELETE", "-", metadata=metadata, sequence=self.sequence, timestamp_ms=at_ms)

    def emptied(self, shape_id: int, at_ms: int) -> Change:
        reader = self.reader(shape_id)
        assert reader is not None, "a table that is copied has a shape"
        self.sequence += 1
        metadata = {"ddl": {"action": "truncate"}}
        return Change(reader.table, "DELETE", "-", metadata=metadata, sequence=self.sequence, timestamp_ms=at_ms)


def _declared_form(column: Column) -> Form:
    return msgspec.structs.replace(choose(column.declared_type, Observed()), is_hint=False)


def _form_of(column: Column, table: TableState | None) -> Form:
    if table is None or table.hints == ALL or column.name in table.hints:
        return choose(column.declared_type, Observed())
    kept = table.forms.get(column.name)
    return msgspec.convert(kept, Form) if kept is not None else _declared_form(column)


def masks_of(masks: Mapping[str, str], secret: str, shape: Shape) -> dict[str, ValueMask]:
    """The masks of this table's columns."""
    wanted = {name.casefold(): mask for name, mask in masks.items()}
    found = {}
    for name in shape.names:
        if mask := wanted.get(f"{shape.name}.{name}".casefold()):
            found[name] = value_mask(mask, secret)
    return found


def _masked(image: Any, masks: Mapping[str, ValueMask]) -> Any:
    def masked(values: Sequence[Value]) -> dict[str, Any]:
        made: dict[str, Any] = image(values)
        for name, mask in masks.items():
            made[name] = mask(made[name])
        return made

    return masked


def _renamed(words: dict[str, Any], table_name: Any) -> dict[str, Any]:
    return {"to": table_name(words["to"])} if "to" in words else {}


def _with_unchanged(old: Row, new: Row) -> list[Value]:
    return [new[index] if was is None else None if was == WAS_NULL else was for index, was in enumerate(old)]
