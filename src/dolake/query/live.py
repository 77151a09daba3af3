"""A table as it is now: its last snapshot without the rows that the tail replaces, and the tail's rows.

From reader.py; to DuckDB. The tail joins the table by row position: the key index says where the rows of the tail's
keys are, and these become position deletes of an overlay, which DuckDB leaves out as it reads. Where there is no index
of this snapshot (it is being made anew), the tail's keys are left out by a join, which is as right and slower.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.errors import Unavailable
from dolake.keyindex import KeyIndexView, Places, StaleIndex
from dolake.keyindex.hashes import Hashes
from dolake.pipeline.files import shape_of
from dolake.pipeline.reading import hashes_of_keys
from dolake.pipeline.unchanged import Key, read_old_rows
from dolake.query.lake import Json, LakeTable
from dolake.query.overlay import Overlay, Overlays
from dolake.query.sqltext import literal, names, quoted, selected
from dolake.query.table_tail import Cut, TableTail, TailState
from dolake.tables.layout import KEY, RESCUED, SOURCE
from dolake.tables.types import Columns, Field

_TABLES_MAX = 256
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Scan:
    """What DuckDB reads: SQL, what is to be registered first, and the overlays that must stay for so long."""

    sql: str
    columns: Columns
    arrow: dict[str, pa.Table]
    overlays: tuple[Overlay, ...]
    tail_rows: int = 0
    own: tuple[str, ...] = ()
    """DoLake's own columns beside `columns`, where they are not those of a state."""
    reads: tuple[tuple[LakeTable, Json], ...] = ()
    """The snapshots whose files it reads."""


class LiveTables:
    """Makes scans of tables; keeps what the next question about the same snapshot can use. Under the tail's lock."""

    def __init__(self, indexes: Path, overlays: Overlays, *, has_source_in_key: bool) -> None:
        self._indexes, self.overlays = indexes, overlays
        self._own = (KEY, RESCUED, SOURCE) if has_source_in_key else (KEY, RESCUED)
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @property
    def hidden(self) -> tuple[str, ...]:
        """Columns of a state that are DoLake's own."""
        return self._own

    def scan(self, table: LakeTable | None, tail: TableTail | None, cut: Cut) -> Scan:
        """The rows of a table that DoLake manages, or that so far is in the tail alone."""
        base = table.columns if table else ()
        snapshot = table.snapshot if table else None
        state = tail.state(base, cut) if tail else None
        if table is None or snapshot is None or (state and state.is_cleared):
            return self._tail_alone(state, base)
        known = self._of(table, snapshot)
        if state is None or not len(state.touched.hi):
            overlay = known.plain(self.overlays)
            return Scan(self._select(overlay, base, base), base, {}, (overlay,), reads=((table, snapshot),))
        try:
            overlay = known.without(self.overlays, self._indexes, state)
        except StaleIndex:
            found = self._joined_by_key(known.plain(self.overlays), base, state, tail, cut)
            return replace(found, reads=((table, snapshot),))
        registered, tail_sql = self._rows_of(state)
        sql = f"{self._select(overlay, base, state.columns)} UNION ALL {tail_sql}"
        return Scan(sql, state.columns, registered, (overlay,), state.rows.num_rows, reads=((table, snapshot),))

    def empty(self, columns: Columns) -> Scan:
        """No row, with these columns."""
        return self._tail_alone(None, columns)

    def give_rows(self, tail: TableTail | None, table: LakeTable | None) -> None:
        """Let a tail find rows of the table that its changes build on."""
        if tail is None:
            return
        snapshot = table.snapshot if table else None
        if table is None or snapshot is None:
            tail.old_rows = None
            return
        folder, schema, id_ = self._indexes / table.uuid, table.schema, snapshot["snapshot-id"]

        def old_rows(keys: Sequence[Key]) -> tuple[pa.Table, NDArray[np.bool_]]:
            sources = [source for _, source in keys] if SOURCE in self._own else None
            hashes = hashes_of_keys([row_id for row_id, _ in keys], sources)
            try:
                return read_old_rows(folder, id_, hashes, shape_of(json.dumps(schema)), {})
            except StaleIndex as error:
                hint = "ask again in a moment"
                raise Unavailable("rows that changes build on cannot be found yet", hint=hint) from error

        tail.old_rows = old_rows

    def at_snapshot(self, table: LakeTable, snapshot: Json) -> Scan:
        """As it was in one of its snapshots, with the columns that it had then."""
        schemas = {each["schema-id"]: each for each in table.metadata["schemas"]}
        id_ = snapshot.get("schema-id", table.metadata["current-schema-id"])
        then = LakeTable(table.name, table.metadata | {"current-schema-id": id_}, table.is_managed)
        assert id_ in schemas, "a snapshot's schema is one of the table's"
        overlay = self.overlays.plain(then.metadata, snapshot)
        sql = self._select(overlay, then.columns, then.columns)
        return Scan(sql, then.columns, {}, (overlay,), reads=((then, snapshot),))

    def plain(self, table: LakeTable, snapshot: Json) -> Overlay:
        """A snapshot for others to read; the one of now is kept."""
        return self._of(table, snapshot).plain(self.overlays)

    def _select(self, overlay: Overlay, have: Columns, want: Columns) -> str:
        columns = selected(_with_own(have, self._own), _with_own(want, self._own))
        return f"SELECT {columns} FROM iceberg_scan({literal(overlay.path)})"  # noqa: S608

    def _tail_alone(self, state: TailState | None, base: Columns) -> Scan:
        if state is None:
            nothing = selected((), _with_own(base, self._own))
            return Scan(f"SELECT {nothing} WHERE false", base, {}, ())
        registered, sql = self._rows_of(state)
        return Scan(sql, state.columns, registered, (), state.rows.num_rows)

    def _rows_of(self, state: TailState) -> tuple[dict[str, pa.Table], str]:
        name = f"tail_{next(_numbers)}"
        wanted = [each.name for each in _with_own(state.columns, self._own)]
        return {name: state.rows.select(wanted)}, f"SELECT {names(wanted)} FROM {quoted(name)}"  # noqa: S608

    def _joined_by_key(
        self, overlay: Overlay, base: Columns, state: TailState, tail: TableTail | None, cut: Cut
    ) -> Scan:
        assert tail is not None
        keys, name = tail.keys(base, cut), f"keys_{next(_numbers)}"
        on = f"state.{quoted(KEY)} = gone.key"
        if SOURCE in self._own:
            on += f" AND state.{quoted(SOURCE)} = gone.source"
        columns = selected(_with_own(base, self._own), _with_own(state.columns, self._own))
        kept = (
            f"SELECT {columns} FROM iceberg_scan({literal(overlay.path)}) AS state "  # noqa: S608
            f"ANTI JOIN {quoted(name)} AS gone ON {on}"
        )
        registered, sql = self._rows_of(state)
        return Scan(
            f"{kept} UNION ALL {sql}", state.columns, registered | {name: keys}, (overlay,), state.rows.num_rows
        )

    def _of(self, table: LakeTable, snapshot: Json) -> _Known:
        key = table.uuid
        found = self._known.get(key)
        if found is None or found.is_of_another(table, snapshot):
            found = self._known[key] = _Known(table, snapshot)
        self._known.move_to_end(key)
        while len(self._known) > _TABLES_MAX:
            self._known.popitem(last=False)
        return found


class _Known:
    """What was made for one snapshot of a table."""

    def __init__(self, table: LakeTable, snapshot: Json) -> None:
        self._table, self._snapshot = table, snapshot
        self._plain: Overlay | None = None
        self._index: KeyIndexView | None = None
        self._hi = self._lo = np.empty(0, np.uint64)
        self._file: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._position: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._last: tuple[TailState, Overlay] | None = None

    def is_of_another(self, table: LakeTable, snapshot: Json) -> bool:
        same = self._snapshot["snapshot-id"] == snapshot["snapshot-id"]
        return not same or self._table.metadata["current-schema-id"] != table.metadata["current-schema-id"]

    def plain(self, overlays: Overlays) -> Overlay:
        if self._plain is None:
            self._plain = overlays.plain(self._table.metadata, self._snapshot)
        return self._plain

    def without(self, overlays: Overlays, indexes: Path, state: TailState) -> Overlay:
        """The snapshot without the rows of the keys that this touches."""
        if self._last is None or self._last[0] is not state:
            if self._index is None:
                self._index = KeyIndexView.open(indexes / self._table.uuid, self._snapshot["snapshot-id"])
            places = self._places(self._index, state.touched)
            positions = self._index.positions_by_path(places)
            overlay = overlays.without(self._table.metadata, self._snapshot, positions) if positions else None
            self._last = state, overlay or self.plain(overlays)
        return self._last[1]

    def _places(self, index: KeyIndexView, touched: Hashes) -> Places:
        """Look up only those keys that were not looked up before: between two publishes the answer stays."""
        hi, lo = touched  # ascending
        at, is_known = self._find(hi, lo)
        if not is_known.all():
            new = Hashes(hi[~is_known], lo[~is_known])
            places = index.look_up(new)
            his, los = np.concatenate([self._hi, new.hi]), np.concatenate([self._lo, new.lo])
            sorting = np.lexsort((los, his))
            self._hi, self._lo = his[sorting], los[sorting]
            self._file = np.concatenate([self._file, places.file])[sorting]
            self._position = np.concatenate([self._position, places.position])[sorting]
            at, is_known = self._find(hi, lo)
        if not is_known.all():  # two keys share half of their hash: ask for all of them
            return index.look_up(touched)
        return Places(self._file[at], self._position[at])

    def _find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        if not len(self._hi):
            return np.zeros(len(hi), np.intp), np.zeros(len(hi), np.bool_)
        at = np.searchsorted(self._hi, hi).clip(max=len(self._hi) - 1)
        return at, (self._hi[at] == hi) & (self._lo[at] == lo)


def _with_own(columns: Columns, own: tuple[str, ...]) -> Columns:
    return (*columns, *(Field(name, "string") for name in own))
