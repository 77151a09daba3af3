"""Columns that a source did not send, because they did not change: each gets the value that the row had before.

From reading.py, where an UPDATE names such columns in `metadata.unchanged`. The value comes from the row before (the
event's `before`), from an earlier change of the same key, or from the table itself (`OldRows`). Promise: a column is
filled with the value it had, what was rescued of it included, or the change is reported as one that cannot be written;
never with null. A name that cannot be a column of the table (`id` beside `ID`) has its value in what is rescued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from dolake.keyindex import KeyIndexView
from dolake.keyindex.hashes import Hashes
from dolake.keyindex.runs import NOT_FOUND
from dolake.pipeline.files import Shape, fitted, no_rows, parquet_file
from dolake.tables.layout import CLEARING, DDL_OPERATIONS, RESCUED
from dolake.tables.types import column_name
from dolake.wire.messages import EventMetadata, RawEvent

Key = tuple[str, str]
"""A row's id, and its source where that is part of the key."""
OldRows = Callable[[Sequence[Key]], tuple[pa.Table, NDArray[np.bool_]]]
"""The rows that these keys have in the table, with `_rescued`, in the order of the question; and which have one."""
_split_row = msgspec.json.Decoder(dict[str, Raw]).decode
_NO_ROW = "columns were not sent because they did not change, and there is no row before that has them"


@dataclass(slots=True)
class Filling:
    """From which row each column is taken that a change did not send. Rows from `table_from` on are the table's own."""

    table_from: int
    table: pa.Table | None = None
    """Rows of the table, one for each key that was looked up."""
    places: dict[Key, int] = field(default_factory=dict)
    """Where the row of a key is: in a change, in the table, or nowhere any more."""
    sources: dict[str, dict[int, int]] = field(default_factory=dict)
    """By column, or the name that it would have: the row of a change, and the row that has its value."""
    problems: dict[int, str] = field(default_factory=dict)
    """Changes whose columns nobody knows, with the reason."""

    def look_up(self, keys: Sequence[Key], old_rows: OldRows | None) -> None:
        """Find the rows that the table has of these keys."""
        if old_rows is not None and keys:
            self.table, is_found = old_rows(keys)
            found = zip(keys, is_found.tolist(), strict=True)
            self.places |= {key: self.table_from + at for at, (key, is_there) in enumerate(found) if is_there}

    def take(self, at: int, name: str, row: int) -> None:
        """A column of this change is as in that row; or as in the row from which that one has it."""
        rows = self.sources.setdefault(column_name(name), {})
        rows[at] = rows.get(row, row)


def plan_filling(
    events: Sequence[RawEvent],
    metadata: Mapping[int, EventMetadata],
    sources: Sequence[str] | None,
    olds: Sequence[int],
    old_rows: OldRows | None,
) -> Filling:
    """Go through the changes in order. `olds` are those whose `before` was read, behind all others, in this order.

    A change that has a problem has not happened: what comes after it builds on the row before.
    """
    filling = Filling(len(events) + len(olds))
    image_of_old = {change: len(events) + at for at, change in enumerate(olds)}
    keys = [
        _keys_of(event, metadata.get(at), "" if sources is None else sources[at]) for at, event in enumerate(events)
    ]
    wanted = {keys[at][0]: None for at, each in metadata.items() if each.unchanged}
    filling.look_up(list(wanted), old_rows)
    for at, event in enumerate(events):
        of, (before, key) = metadata.get(at), keys[at]
        if of is not None and of.ddl is not None:
            if DDL_OPERATIONS[of.ddl.action] in CLEARING:
                filling.places.clear()
            continue
        if of is not None and of.unchanged and event.operation == "UPDATE":
            _fill(filling, at, event, of.unchanged, image_of_old.get(at), filling.places.get(before))
            if at in filling.problems:
                continue
        filling.places.pop(before, None)
        if event.operation == "DELETE":
            filling.places.pop(key, None)
        else:
            filling.places[key] = at
    return filling


def _keys_of(event: RawEvent, metadata: EventMetadata | None, source: str) -> tuple[Key, Key]:
    """The key that the row had before, and the one that it has now."""
    key = event.row_id, source
    previous = metadata.previous_row_id if metadata is not None and event.operation == "UPDATE" else None
    return (previous, source) if previous else key, key


def _fill(
    filling: Filling, at: int, event: RawEvent, unchanged: Iterable[str], old_image: int | None, last: int | None
) -> None:
    """From the row before as the event has it, or from where the row is."""
    sent = _names_in(event.after)
    told = _names_in(event.before) if old_image is not None else frozenset()
    for name in (each for each in unchanged if each not in sent):
        if old_image is not None and name in told:
            filling.take(at, name, old_image)
        elif last is not None:
            filling.take(at, name, last)
        else:
            filling.problems[at] = _NO_ROW


def _names_in(image: Raw | msgspec.UnsetType) -> frozenset[str]:
    if image is UNSET or bytes(image) in (b"", b"null"):
        return frozenset()
    try:
        return frozenset(_split_row(image))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()


def filled(filling: Filling, columns: pa.RecordBatch, rescued: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
    """The columns and what is rescued beside them, with each value where it belongs."""
    arrays = [_taken(filling, each, columns) for each in columns.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema), _rescued(filling, rescued)


def _taken(filling: Filling, column: pa.Field, columns: pa.RecordBatch) -> pa.Array:
    array, table = columns.column(column.name), filling.table
    if column.name not in filling.sources:
        return array
    index = np.arange(len(array))
    rows = filling.sources[column.name]
    index[list(rows)] = list(rows.values())
    more = pa.nulls(0 if table is None else table.num_rows, column.type)
    if table is not None and column.name in table.schema.names:
        more = table.column(column.name).combine_chunks().cast(column.type)
        more = more.chunk(0) if isinstance(more, pa.ChunkedArray) else more
    return pa.concat_arrays([array, more]).take(pa.array(index))


def _rescued(filling: Filling, rescued: pa.Array) -> pa.Array:
    """What did not fit its column when it was sent did not fit it then either: it comes along.

    Names stand in their order, as in rows.py, so that a row has the same text whatever it was read together with.
    """
    old = [] if filling.table is None else filling.table.column(RESCUED).to_pylist()
    if rescued.null_count == len(rescued) and not any(old):
        return rescued
    texts = [*rescued.to_pylist(), *old]
    for column, rows in filling.sources.items():
        for at, row in rows.items():
            kept = _split_row(texts[row]).get(column) if texts[row] else None
            if kept is not None:
                own = _split_row(texts[at]) if texts[at] else {}
                texts[at] = msgspec.json.encode(dict(sorted({**own, column: kept}.items()))).decode()
    return pa.array(texts[: len(rescued)], pa.string())


# --- the rows of a table ---------------------------------------------------------------------------------------------


def read_old_rows(
    folder: Path,
    snapshot_id: int | None,
    hashes: Hashes,
    shape: Shape,
    ids_before: Mapping[bytes, bytes],
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """The current rows of these keys, found by the key index; a row of nulls for a key that has none."""
    view = KeyIndexView.open(folder, snapshot_id)
    places = view.look_up(hashes)
    is_found = places.file != NOT_FOUND
    parts, numbers = [no_rows(shape.arrow)], [np.empty(0, np.int64)]
    for id_ in np.unique(places.file[is_found]).tolist():
        asked = np.flatnonzero(places.file == id_)
        parts.append(_rows_at(view.paths[id_], places.position[asked].astype(np.int64), shape, ids_before))
        numbers.append(asked)
    order = np.full(len(is_found), -1, np.int64)
    at = np.concatenate(numbers)
    order[at] = np.arange(len(at))
    rows = pa.concat_tables(parts).combine_chunks()
    return rows.take(pa.array(order, mask=order < 0)), is_found


def _rows_at(location: str, positions: NDArray[np.int64], shape: Shape, ids_before: Mapping[bytes, bytes]) -> pa.Table:
    """These rows of a data file, in this order; only the row groups that have some are read."""
    with parquet_file(location) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = np.cumsum(counts)
        groups = np.searchsorted(ends, positions, side="right")
        wanted = np.unique(groups)
        firsts = np.concatenate(([0], np.cumsum([counts[number] for number in wanted.tolist()])))[:-1]
        inside = positions - (ends[groups] - np.array(counts)[groups]) + firsts[np.searchsorted(wanted, groups)]
        found = file.read_row_groups(wanted.tolist()).take(pa.array(inside)).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in found.columns]
    return pa.table(fitted(columns, list(found.schema), list(shape.arrow), found.num_rows, ids_before), shape.arrow)
