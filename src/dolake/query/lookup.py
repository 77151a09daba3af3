"""Rows by their keys, in a few milliseconds: the tail first, then the one place where the key index says the row is.

From rows_link.py, in threads of its own; through key_tail.py, the key index and row_pages.py. DuckDB has no part in it.
What cannot be told that way (the past; a change that builds on other rows; a column that the table is about to get; an
index that is being made anew) raises Slow, and SQL answers instead (rows_sql.py), as right and slower. Promise: a row
is what a SELECT at the same position has.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dolake.catalog.base import Name
from dolake.errors import NotFound
from dolake.keyindex import KeyIndexView, StaleIndex
from dolake.keyindex.hashes import Hashes
from dolake.keyindex.runs import NOT_FOUND
from dolake.pipeline.files import fitted, shape_of
from dolake.pipeline.fold import GONE
from dolake.pipeline.gather import Gathered, as_the_lake_may_keep
from dolake.pipeline.reading import (
    ReadChanges,
    Table,
    Unwritable,
    has_unchanged,
    hashes_of_keys,
    read_changes,
    without_before,
)
from dolake.positions import Position
from dolake.query.key_tail import Key, KeyChange, KeyTail, Part
from dolake.query.lake import Json, LakeFiles, LakeTable
from dolake.query.row_pages import RowFiles
from dolake.query.rows import RowMaker, RowsAnswer
from dolake.query.rows_question import RowsQuestion, wrong_kind
from dolake.tables.layout import KEY, RESCUED, changes_schema
from dolake.tables.names import plain_table_name
from dolake.tables.rules import LakeRules
from dolake.tables.types import Columns

_TRIES = 5
_TRY_AGAIN_S = 0.005
_TABLES_MAX = 256
_ROWS_MAX = 20_000
_NOT_THERE = object()


class Slow(Exception):
    """Only SQL can tell; says why."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """One table at one moment."""

    known: _Known
    part: Part
    position: Position


class Lookup:
    """Finds rows. Any thread may ask."""

    def __init__(
        self, files: LakeFiles, tail: KeyTail, indexes: Path, rules: LakeRules, *, has_source_in_key: bool
    ) -> None:
        self._files, self.tail, self._indexes, self.rules = files, tail, indexes, rules
        self._has_source_in_key = has_source_in_key
        self._rows = RowFiles(storage=files.storage)
        self._known: OrderedDict[Name, _Known] = OrderedDict()
        self._kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        """Rows as JSON, by data file, position and schema: none of these ever changes."""
        self._lock = threading.Lock()

    def close(self) -> None:
        self.tail.close()
        self._rows.close()

    def let_go(self) -> None:
        """Of rows that were read nothing stays in memory, and no file stays open."""
        with self._lock:
            self._kept.clear()
        self._rows.close()

    def follow(self, published: Position, durable: Position) -> None:
        """Called all the time, whether somebody asks or not."""
        self.tail.follow(published, durable)

    def find(self, asked: RowsQuestion) -> RowsAnswer:
        """The rows of these keys, in their order; None for a key that has none."""
        if asked.as_of is not None or asked.snapshot_id is not None:
            raise Slow("the past")
        source = asked.checked_source(self._has_source_in_key)
        self._wait_for(asked)
        moment = self._open(asked)
        keys = [(key, source) for key in asked.keys]
        rows = self._find_all(moment, keys)
        known = moment.known
        return RowsAnswer(asked, rows, known.layout.maker.described, moment.position, known.snapshot_id)

    # --- one moment ---------------------------------------------------------------------------------------------------

    def _wait_for(self, asked: RowsQuestion) -> None:
        """Until the position that the asker has seen is durable."""
        if asked.min_position is None or self.tail.durable() >= asked.min_position:
            return
        raise Slow("a position that is not durable yet")

    def _open(self, asked: RowsQuestion) -> _Moment:
        name = asked.name
        plain = plain_table_name(str(name))
        for _ in range(_TRIES):
            durable = self.tail.durable()
            moment = self._files.moment([name])
            end = max(durable, moment.position)
            table = moment.tables.get(name)
            if table is not None and not table.is_ours and not table.is_waiting:
                raise wrong_kind(name)
            if table is None or table.snapshot is None:
                raise Slow(
                    "a table that has no snapshot yet"
                )  # SQL knows what columns it will have, or that it has none
            try:
                part = self.tail.part(plain, moment.position, end)
                if part is not None:
                    return _Moment(self._known_of(name, table), part, end)
            except (NotFound, StaleIndex):
                pass  # published and trimmed meanwhile
            time.sleep(_TRY_AGAIN_S)
        raise Slow("the table is published faster than it can be looked at, or its index is made anew")

    def _known_of(self, name: Name, table: LakeTable) -> _Known:
        with self._lock:
            found = self._known.get(name)
            if found is not None and found.is_of(table):
                self._known.move_to_end(name)
                return found
        made = _Known(table, self._indexes / table.uuid, found)
        with self._lock:
            self._known[name] = made
            while len(self._known) > _TABLES_MAX:
                self._known.popitem(last=False)
        return made

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _find_all(self, moment: _Moment, keys: Sequence[Key]) -> list[bytes | None]:
        cleared_at = moment.part.cleared_at()
        rows: list[Any] = [self._in_tail(moment, key, cleared_at) for key in keys]
        left = [at for at, row in enumerate(rows) if row is _NOT_THERE]
        if cleared_at is not None:
            return [None if row is _NOT_THERE else row for row in rows]
        if left:
            for at, row in zip(left, self._in_table(moment.known, [keys[at] for at in left]), strict=True):
                rows[at] = row
        return rows

    def _in_tail(self, moment: _Moment, key: Key, cleared_at: Position | None) -> Any:
        """The row that the newest change of this key leaves; None where it leaves none."""
        for change in moment.part.changes(key):
            if cleared_at is not None and change.position < cleared_at:
                break
            row = self._outcome(moment.known.layout, key, change)
            if row is not _NOT_THERE:
                return row
        return _NOT_THERE

    def _outcome(self, layout: _Layout, key: Key, change: KeyChange) -> Any:
        """What a change does to this key; nothing where it cannot be a row, and so goes to the quarantine."""
        if has_unchanged([change.event]):
            raise Slow("a change that does not have all columns")
        rules = self.rules.of(plain_table_name(change.event.table)).reading
        events = as_the_lake_may_keep([change.event], rules, change.record.stream)
        gathered = Gathered(events, [change.position], [change.record], [1])
        table = Table(layout.columns, layout.changes_shape, self._has_source_in_key, rules, layout.names)
        read = read_changes(gathered, table)
        if isinstance(read, Unwritable):
            return _NOT_THERE
        if not isinstance(read, ReadChanges):
            raise Slow("a column that the table does not have yet")
        hashes = _hashes([key], has_source=self._has_source_in_key)
        same = (read.outcomes.hashes.hi == hashes.hi[0]) & (read.outcomes.hashes.lo == hashes.lo[0])
        if not same.any() or read.outcomes.rows[same][-1] == GONE:
            return None
        chosen = read.rows.select([*(each.name for each in layout.columns), RESCUED])
        arrays = [column.combine_chunks() for column in chosen.columns[:-1]]
        return layout.maker.row(arrays, without_before(chosen.column(RESCUED)))

    def _in_table(self, known: _Known, keys: Sequence[Key]) -> list[bytes | None]:
        hashes = _hashes(keys, has_source=self._has_source_in_key)
        if len(keys) == 1:
            places = [known.index.look_up_one(hashes)]
        else:
            many = known.index.look_up(hashes)
            places = list(zip(many.file.tolist(), many.position.tolist(), strict=True))
        found: list[bytes | None] = []
        for key, (file, position) in zip(keys, places, strict=True):
            found.append(None if file == NOT_FOUND else self._row_at(known, known.index.paths[file], position, key))
        return found

    def _row_at(self, known: _Known, location: str, position: int, key: Key) -> bytes:
        place = (location, position, known.schema_id)
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None:
                self._kept.move_to_end(place)
                return kept
        try:
            arrays, fields = self._rows.row(location, position)
        except FileNotFoundError:
            raise Slow("a data file that compaction has replaced") from None
        row = known.layout.row(arrays, fields, key)
        with self._lock:
            self._kept[place] = row
            while len(self._kept) > _ROWS_MAX:
                self._kept.popitem(last=False)
        return row


class _Layout:
    """What is made once for a schema of a table."""

    def __init__(self, table: LakeTable) -> None:
        self.columns: Columns = table.columns
        self.names = frozenset(each.name for each in self.columns if isinstance(each.type, str))
        self.maker = RowMaker.of(self.columns)
        self.shape = shape_of(json.dumps(table.schema))
        self.changes_shape = shape_of(json.dumps(changes_schema(self.columns)))
        self._fields = list(self.shape.arrow)
        places = {name: at for at, name in enumerate(self.shape.arrow.names)}
        self._key, self._rescued = places[KEY], places[RESCUED]
        self._same: list[pa.Field] = []
        """Of files that have the very columns of now."""
        self._order = [places[each.name] for each in self.columns]

    def row(self, arrays: list[pa.Array], fields: list[pa.Field], key: Key) -> bytes:
        """As the table has it now, whatever its columns were called when it was written."""
        if fields is self._same:
            now = arrays
        else:
            now = fitted(arrays, fields, self._fields, 1)
            if [(each.type, each.metadata) for each in fields] == [(each.type, each.metadata) for each in self._fields]:
                self._same = fields  # files of one schema share the list: their next row needs no look
        if now[self._key][0].as_py() != key[0]:
            raise Slow("the key index does not fit its data files")
        return self.maker.row([now[at] for at in self._order], now[self._rescued])


class _Known:
    """What is made once for a snapshot of a table."""

    def __init__(self, table: LakeTable, folder: Path, before: _Known | None) -> None:
        self.uuid = table.uuid
        self.snapshot_id: int = table.metadata["current-snapshot-id"]
        self.schema_id: int = table.metadata["current-schema-id"]
        self.index = KeyIndexView.open(folder, self.snapshot_id)
        self.layout: _Layout
        if before is not None and (before.uuid, before.schema_id) == (self.uuid, self.schema_id):
            self.layout = before.layout
        else:
            self.layout = _Layout(table)

    def is_of(self, table: LakeTable) -> bool:
        metadata: Json = table.metadata
        return (self.uuid, self.snapshot_id, self.schema_id) == (
            table.uuid,
            metadata.get("current-snapshot-id"),
            metadata["current-schema-id"],
        )


def _hashes(keys: Sequence[Key], *, has_source: bool) -> Hashes:
    return hashes_of_keys([key for key, _ in keys], [source for _, source in keys] if has_source else None)
