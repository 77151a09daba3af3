"""Which files hold rows of a key, and tables of changes written anew without them: tasks for Spark's workers.

From forgetting.py. Only the columns that tell are read, and of these only row groups whose bounds allow it. Promise:
what `blank` returns is written and synced, and has each row of the old file at its place: those of the key have kept
where and when they were, so that positions and sequences have no gap, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.manifest import read_manifest_list

from dolake.catalog.pyiceberg_files import StorageIO
from dolake.errors import NotFound
from dolake.pipeline.files import RowsFile, WriteOptions, new_file, parquet_file, shape_of
from dolake.pipeline.rewriting import as_now
from dolake.pipeline.store import store
from dolake.positions import Position
from dolake.tables.forgetting import Life, Move
from dolake.tables.layout import FORGOTTEN, KEY, NO_KEY, SOURCE

Json = dict[str, Any]
Mask = NDArray[np.bool_]
_PREVIOUS, _POSITION, _OPERATION = "_previous_key", "_position", "_operation"
_KEPT = ("_sequence", SOURCE, "_commit_timestamp", _POSITION)
"""What a forgotten change keeps: without it nobody could tell it from one that was lost."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of these lives; `source` is theirs where it is a part of the key."""

    lives: tuple[Life, ...]
    source: str | None = None
    key_column: str = KEY
    position_column: str | None = _POSITION
    """None for rows that do not say when they came: then all of these keys are meant."""
    source_column: str = SOURCE
    event_column: str | None = None
    """In a quarantine: the raw event, which may name the key as the one that its row had before."""

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(life.key for life in self.lives))

    @property
    def columns(self) -> list[str]:
        named = (self.key_column, self.position_column, self.source_column, self.event_column)
        return [name for name in named if name is not None]


def held(rows: pa.Table, wanted: Wanted) -> Mask:
    """Which of these rows are meant."""
    mask = _mask(pc.is_in(rows.column(wanted.key_column), pa.array(wanted.keys, pa.string())))
    if wanted.event_column and wanted.event_column in rows.column_names:
        mask |= _moved_from(rows.column(wanted.event_column), frozenset(wanted.keys))
    if wanted.source is not None and wanted.source_column in rows.column_names:
        mask &= _mask(pc.equal(rows.column(wanted.source_column), wanted.source))
    if wanted.position_column is None or not mask.any():
        return mask
    lives: dict[str, list[Life]] = {}
    for life in wanted.lives:
        lives.setdefault(life.key, []).append(life)
    keys, positions = rows.column(wanted.key_column), rows.column(wanted.position_column)
    for at in np.flatnonzero(mask).tolist():
        position = positions[at].as_py()
        told = lives.get(keys[at].as_py(), wanted.lives)
        mask[at] = position is None or any(life.start <= position < life.end for life in told)
    return mask


def _mask(found: Any) -> Mask:
    mask: Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask.copy()


def _moved_from(events: pa.ChunkedArray, keys: frozenset[str]) -> Mask:
    """Events that name one of these keys as the one before: looked at one by one, for few name any."""
    mask = _mask(pc.match_substring(events, '"previousRowId"'))
    for at in np.flatnonzero(mask).tolist():
        try:
            metadata = msgspec.json.decode(events[at].as_py()).get("metadata") or {}
            mask[at] = metadata.get("previousRowId") in keys
        except (msgspec.DecodeError, AttributeError, TypeError):  # an event that is no JSON names nothing
            mask[at] = False
    return mask


# --- looking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldJob:
    """Look into these data files."""

    paths: tuple[str, ...]
    wanted: Wanted


def find_held(job: HeldJob) -> dict[str, int]:
    """How many of the rows each file has, of those that have any."""
    counts = {path: _count(path, job.wanted) for path in job.paths}
    return {path: count for path, count in counts.items() if count}


def _count(path: str, wanted: Wanted) -> int:
    try:
        with parquet_file(path) as file:
            return sum(int(held(rows, wanted).sum()) for rows in _groups(file, wanted))
    except (NotFound, FileNotFoundError):
        return 0  # removed since the folder was listed


def _groups(file: pq.ParquetFile, wanted: Wanted) -> Iterator[pa.Table]:
    """The columns that tell, of row groups that may have one of the keys; nothing of a file of deletes."""
    names = file.schema_arrow.names
    if wanted.key_column not in names:
        return
    columns = [name for name in wanted.columns if name in names]
    paths = [file.schema.column(at).path for at in range(len(file.schema))]
    place = paths.index(wanted.key_column)
    for number in range(file.num_row_groups):
        bounds = file.metadata.row_group(number).column(place).statistics
        if wanted.event_column is None and bounds is not None and bounds.has_min_max:
            low, high = _text(bounds.min), _text(bounds.max)
            if not any(low <= key <= high for key in wanted.keys):
                continue
        yield file.read_row_group(number, columns=columns)


def _text(bound: str | bytes) -> str:
    return bound if isinstance(bound, str) else bound.decode(errors="replace")


def find_keys(job: HeldJob) -> list[str]:
    """The keys that the rows have in a table whose own keys are others: a quarantine."""
    found: list[str] = []
    for path in job.paths:
        with parquet_file(path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number, columns=[KEY, *job.wanted.columns])
                found += rows.column(KEY).filter(pa.array(held(rows, job.wanted))).to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class MovesJob:
    """Look for rows that got another key in these files of a table of changes."""

    paths: tuple[str, ...]
    source: str | None = None


def find_moves(job: MovesJob) -> dict[str, list[Move]]:
    """By file, of those that have any."""
    found: dict[str, list[Move]] = {}
    for path in job.paths:
        with contextlib.suppress(NotFound, FileNotFoundError):  # removed since the folder was listed
            found[path] = list(_moves(path, job.source))
    return {path: moves for path, moves in found.items() if moves}


def _moves(path: str, source: str | None) -> Iterator[Move]:
    with parquet_file(path) as file:
        if _PREVIOUS not in file.schema_arrow.names:
            return
        paths = [file.schema.column(at).path for at in range(len(file.schema))]
        place = paths.index(_PREVIOUS)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            bounds = group.column(place).statistics
            if bounds is not None and bounds.has_null_count and bounds.null_count == group.num_rows:
                continue
            rows = file.read_row_group(number, columns=[KEY, _PREVIOUS, _POSITION, SOURCE])
            mask = pc.is_valid(rows.column(_PREVIOUS))
            if source is not None:
                mask = pc.and_(mask, pc.equal(rows.column(SOURCE), source))
            for row in rows.filter(mask).to_pylist():
                yield Move(row[_POSITION], row[_PREVIOUS], row[KEY])


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlankJob:
    """Write a data file of a table of changes anew, with these rows blank."""

    path: str
    wanted: Wanted
    schema: str
    location: str
    options: WriteOptions
    token: str


@dataclass(frozen=True, slots=True)
class Blanked:
    """The new file's entry for a commit, and how many rows of it are blank now that were not before."""

    entry: Json
    count: int


def blank(job: BlankJob) -> Blanked:
    """See the module."""
    shape = shape_of(job.schema)
    new = RowsFile(new_file(job.location, job.token), shape, job.options)
    count = 0
    with parquet_file(job.path) as file:
        for number in range(file.num_row_groups):
            rows = as_now(file.read_row_group(number), _NONE, shape)
            mask = held(rows, job.wanted)
            count += int(mask.sum())
            new.write(_blank(rows, mask) if mask.any() else rows)
    return Blanked(new.close(), count)


def _blank(rows: pa.Table, mask: Mask) -> pa.Table:
    gone = pa.array(mask)
    left = pa.array(np.arange(len(mask)), mask=mask)  # to take row null gives null, whatever the type
    given = {
        KEY: pc.if_else(gone, NO_KEY, rows.column(KEY)),
        _OPERATION: pc.if_else(gone, FORGOTTEN, rows.column(_OPERATION)),
        "_timestamp": pc.if_else(gone, rows.column("_commit_timestamp"), rows.column("_timestamp")),
        **{name: rows.column(name) for name in _KEPT},
    }
    columns = [given[name] if name in given else rows.column(name).take(left) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)


# --- snapshots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamingJob:
    """Which snapshots of this metadata name one of these files, also as one that was removed."""

    metadata: Json
    paths: frozenset[str]


def find_naming(job: NamingJob) -> list[int]:
    """Their ids. An entry of a file that was removed still has its bounds, and so values of its rows."""
    storage = store()
    io = StorageIO(storage)
    known: dict[str, bool] = {}
    found: list[int] = []
    for snapshot in job.metadata.get("snapshots", ()):
        for manifest in read_manifest_list(io.new_input(snapshot["manifest-list"])):
            path = manifest.manifest_path
            if path not in known:
                entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
                known[path] = any(storage.resolve(each.data_file.file_path) in job.paths for each in entries)
            if known[path]:
                found.append(snapshot["snapshot-id"])
                break
    return found


def closed(lives: Sequence[Life], position: Position) -> tuple[Life, ...]:
    """The same, but for what came at this position or later."""
    return tuple(Life(life.key, life.start, min(life.end, position)) for life in lives if life.start < position)


def in_quarantine(wanted: Wanted) -> Wanted:
    """The same rows where they stand in a quarantine, whose own keys are positions."""
    return Wanted(wanted.lives, wanted.source, "key", "position", "source", "event")


def in_state(wanted: Wanted) -> Wanted:
    """The same rows in a state, which does not say when they came."""
    return Wanted(wanted.lives, wanted.source, position_column=None)
