"""Columns that a source did not send, because they did not change: each gets the value that the row had before.

From reading.py, where an UPDATE names such columns in `metadata.unchanged`. The value comes from the row before (the
event's `before`), from an earlier change of the same key, or from the table itself (`OldRows`). Promise: a column is
filled with the value it had, what was rescued of it included, or the change is reported as one that cannot be written;
never with null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from dolake.keyindex import KeyIndexView
from dolake.keyindex.hashes import Hashes
from dolake.keyindex.runs import NOT_FOUND
from dolake.pipeline.files import Shape, fitted, no_rows
from dolake.storage.local import path_of
from dolake.tables.layout import RESCUED
from dolake.tables.types import column_name
from dolake.wire.messages import EventMetadata, RawEvent

Key = tuple[str, str]
"""A row's id, and its source where that is part of the key."""
OldRows = Callable[[Sequence[Key]], tuple[pa.Table, NDArray[np.bool_]]]
"""The rows that these keys have in the table, with `_rescued`, in the order of the question; and which have one."""
_split_row = msgspec.json.Decoder(dict[str, Raw]).decode
_GONE = -1


@dataclass(slots=True)
class Filling:
    """From which row each column is taken that a change did not send. Rows behind the images are the table's own."""

    sources: dict[str, dict[int, int]] = field(default_factory=dict)
    """By column: the row of a change, and the row that has its value."""
    asked: dict[Key, int] = field(default_factory=dict)
    """Keys to look up in the table, each with the number of its row there."""
    problems: dict[int, str] = field(default_factory=dict)
    """Changes whose columns nobody knows, with the reason."""

    def of(self, column: str, row: int) -> int:
        """Where the value of this row's column is."""
        return self.sources.get(column, {}).get(row, row)


def plan_filling(
    events: Sequence[RawEvent],
    metadata: Mapping[int, EventMetadata],
    sources: Sequence[str] | None,
    olds: Sequence[int],
    columns: Iterable[str],
) -> Filling:
    """Go through the changes in order. `olds` are those whose `before` was read, behind all others, in this order."""
    filling = Filling()
    known, image_of_old = frozenset(columns), {change: len(events) + at for at, change in enumerate(olds)}
    lasts: dict[Key, int] = {}
    for at, event in enumerate(events):
        of, source = metadata.get(at), "" if sources is None else sources[at]
        if of is not None and of.ddl is not None:
            lasts.clear()
            continue
        key = event.row_id, source
        before = (of.previous_row_id, source) if of is not None and of.previous_row_id else key
        if of is not None and of.unchanged and event.operation == "UPDATE":
            missing = _not_sent(event, of.unchanged, known)
            _fill(filling, at, missing, image_of_old.get(at), event, lasts.get(before), before, len(events) + len(olds))
        if before != key:
            lasts[before] = _GONE
        lasts[key] = _GONE if event.operation == "DELETE" else at
    return filling


def _not_sent(event: RawEvent, unchanged: Iterable[str], known: frozenset[str]) -> list[str]:
    """The columns that are left out of the row, by the names of the source."""
    sent = _names_in(event.after)
    return [name for name in unchanged if name not in sent and column_name(name) in known]


def _fill(
    filling: Filling,
    at: int,
    missing: list[str],
    old_image: int | None,
    event: RawEvent,
    last: int | None,
    key: Key,
    table_from: int,
) -> None:
    told = _names_in(event.before) if old_image is not None else frozenset()
    for name in missing:
        column = column_name(name)
        if old_image is not None and name in told:
            found = old_image
        elif last == _GONE:
            filling.problems[at] = f"column {name} was not sent, and the row before is deleted"
            return
        elif last is not None:
            found = filling.of(column, last)
        else:
            found = table_from + filling.asked.setdefault(key, len(filling.asked))
        filling.sources.setdefault(column, {})[at] = found


def _names_in(image: Raw | msgspec.UnsetType) -> frozenset[str]:
    if image is UNSET or bytes(image) in (b"", b"null"):
        return frozenset()
    try:
        return frozenset(_split_row(image))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()


def filled(
    filling: Filling, columns: pa.RecordBatch, rescued: pa.Array, old_rows: OldRows | None
) -> tuple[pa.RecordBatch, pa.Array]:
    """The columns and what is rescued beside them, with each value where it belongs; problems are noted."""
    table, is_found = _ask(filling, old_rows)
    first_old = columns.num_rows
    missing = {first_old + at for at in np.flatnonzero(~is_found).tolist()}
    for column, rows in filling.sources.items():
        for at, row in rows.items():
            if row in missing:
                filling.problems.setdefault(at, f"column {column} was not sent, and the table has no such row")
    arrays = [_taken(filling, each, columns, table) for each in columns.schema]
    texts = _rescued(filling, rescued, table)
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema), texts


def _ask(filling: Filling, old_rows: OldRows | None) -> tuple[pa.Table | None, NDArray[np.bool_]]:
    keys = list(filling.asked)
    if not keys or old_rows is None:
        return None, np.zeros(len(keys), np.bool_)
    return old_rows(keys)


def _taken(filling: Filling, column: pa.Field, columns: pa.RecordBatch, table: pa.Table | None) -> pa.Array:
    array = columns.column(column.name)
    if column.name not in filling.sources:
        return array
    index = np.arange(len(array))
    rows = filling.sources[column.name]
    index[list(rows)] = list(rows.values())
    more = pa.nulls(len(filling.asked), column.type)
    if table is not None and column.name in table.schema.names:
        more = table.column(column.name).combine_chunks().cast(column.type)
        more = more.chunk(0) if isinstance(more, pa.ChunkedArray) else more
    return pa.concat_arrays([array, more]).take(pa.array(index))


def _rescued(filling: Filling, rescued: pa.Array, table: pa.Table | None) -> pa.Array:
    """What did not fit its column when it was sent did not fit it then either: it comes along."""
    old = [None] * len(filling.asked) if table is None else table.column(RESCUED).to_pylist()
    if rescued.null_count == len(rescued) and not any(old):
        return rescued
    texts = [*rescued.to_pylist(), *old]
    for column, rows in filling.sources.items():
        for at, row in rows.items():
            kept = _split_row(texts[row]).get(column) if texts[row] else None
            if kept is not None:
                own = _split_row(texts[at]) if texts[at] else {}
                texts[at] = msgspec.json.encode(own | {column: kept}).decode()
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
    with pq.ParquetFile(path_of(location)) as file:
        counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = np.cumsum(counts)
        groups = np.searchsorted(ends, positions, side="right")
        wanted = np.unique(groups)
        firsts = np.concatenate(([0], np.cumsum([counts[number] for number in wanted.tolist()])))[:-1]
        inside = positions - (ends[groups] - np.array(counts)[groups]) + firsts[np.searchsorted(wanted, groups)]
        found = file.read_row_groups(wanted.tolist()).take(pa.array(inside)).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in found.columns]
    return pa.table(fitted(columns, list(found.schema), list(shape.arrow), found.num_rows, ids_before), shape.arrow)
