"""What Spark's workers do: turn a slice of the journal into data files, and folded changes into rows of the state.

From publish.py, which sends jobs and collects results through Spark; runs in Python workers beside the Java process.
Promise: a result names files that are written and synced, or the columns that are missing, and then nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET, Raw
from msgspec.json import Decoder, encode
from numpy.typing import NDArray

from dolake.keyindex.datafiles import Block
from dolake.keyindex.hashes import Hashes, hash_keys, no_hashes
from dolake.pipeline.arranging import Arrangement, Piece, arranged
from dolake.pipeline.cut import Slice, metadata_of
from dolake.pipeline.files import Shape, WriteOptions, new_file, shape_of, write_rows
from dolake.pipeline.fold import GONE, Outcomes, fold, outcomes
from dolake.pipeline.gather import Gathered, gather
from dolake.pipeline.rows import Rows, read_rows
from dolake.storage.local import path_of
from dolake.tables.layout import BEFORE, KEY, RESCUED, SOURCE
from dolake.tables.rules import LakeRules, ReadingRules, TableRules
from dolake.tables.schema import Seen, grow
from dolake.tables.types import Columns, Field, column_name, parse_type, problem_with_column_name
from dolake.wire.messages import EventMetadata, RawEvent

Json = dict[str, Any]
_NO_IMAGE = b"null"
_FIRST_LOOK_ROWS = 4_000
_WRITERS = 4
_USUAL = ReadingRules()
_split_row = Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a task must know of a source table: its columns, and where its two Iceberg tables are."""

    columns: Columns
    state_schema: str
    state_location: str
    changes_schema: str
    changes_location: str
    rules: TableRules = field(default_factory=TableRules)
    rebuildable: frozenset[str] = frozenset()
    """Columns that may get another type within this publish."""
    arrangement: Arrangement = field(default_factory=Arrangement)
    """Of the state."""


@dataclass(frozen=True, slots=True)
class SliceJob:
    """Write the changes of a slice; where the slice is the whole publish, the state's rows too."""

    journal: str
    part: Slice
    plans: dict[str, TablePlan]
    options: WriteOptions
    has_source_in_key: bool
    is_whole: bool
    token: str
    """What the names of all files of one try begin with, so that they can be found when it fails."""
    rules: LakeRules = field(default_factory=LakeRules)
    only: frozenset[str] | None = None
    """Where a first try asked for columns: the tables that did."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A data file of the state, and which of the rows that were to be written it has; None means all, in order."""

    entry: Json
    order: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """What a slice became for one table; `outcomes` are folded, with rows of the changes file."""

    outcomes: Outcomes
    changes_file: Json
    state_files: tuple[StateFile, ...] = ()

    @property
    def state_file(self) -> Json | None:
        """Of a table without partitions."""
        return self.state_files[0].entry if self.state_files else None


@dataclass(frozen=True, slots=True)
class Wanting:
    """The table lacks columns that this slice brings, or has them with types that are too narrow."""

    seen: Seen
    declared: Columns = ()


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Changes as rows of the changes table, in journal order; what they do to keys, not folded; and which does what."""

    rows: pa.Table
    outcomes: Outcomes
    change_of: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StateJob:
    """Write these rows of a changes file as rows of the state."""

    plan: TablePlan
    changes_file: str
    rows: NDArray[np.int64]
    options: WriteOptions
    token: str


def write_slice(job: SliceJob) -> dict[str, Staged | Wanting]:
    """Each table's changes of this slice as one data file."""
    gathered = gather(Path(job.journal), job.part, job.only, job.rules)
    return {table: _write_table(job, table, changes) for table, changes in gathered.items()}


def write_state(job: StateJob) -> tuple[StateFile, ...]:
    """The state's rows, taken from the changes file that an earlier job wrote."""
    shape = shape_of(job.plan.state_schema)
    names = shape.arrow.names
    changes = pq.read_table(path_of(job.changes_file), columns=names, partitioning=None)
    return _write_state(changes, job.rows, job.plan, job.options.of(job.plan.rules.layout), job.token)


def _write_table(job: SliceJob, table: str, changes: Gathered) -> Staged | Wanting:
    plan = job.plans.get(table)
    if plan is None:
        return Wanting(first_look(changes), declared_by(_metadata_of(changes.events)))
    shape = shape_of(plan.changes_schema)
    read = read_changes(
        changes,
        plan.columns,
        shape,
        plan.rules.reading,
        has_source_in_key=job.has_source_in_key,
        rebuildable=plan.rebuildable,
    )
    if isinstance(read, Wanting):
        return read
    folded = fold(read.outcomes)
    options = job.options.of(plan.rules.layout)
    changes_file = write_rows(read.rows, new_file(plan.changes_location, job.token), shape, options)
    kept = folded.rows[folded.rows != GONE]
    state_files = _write_state(read.rows, kept, plan, options, job.token) if job.is_whole and len(kept) else ()
    return Staged(folded, changes_file, state_files)


def read_changes(
    changes: Gathered,
    columns: Columns,
    shape: Shape,
    rules: ReadingRules = _USUAL,
    *,
    has_source_in_key: bool,
    rebuildable: frozenset[str] = frozenset(),
) -> ReadChanges | Wanting:
    """Changes of one table as rows of its changes table, or what columns it lacks."""
    metadata = _metadata_of(changes.events)
    declared = declared_by(metadata)
    if declared and grow(columns, Seen(), declared=declared, leaves_max=rules.leaves_max, rebuildable=rebuildable):
        return Wanting(Seen(), declared)
    images = [_image_of(event) for event in changes.events]
    olds = [index for index, event in enumerate(changes.events) if event.operation == "UPDATE" and _has_before(event)]
    befores = [bytes(cast("Raw", changes.events[index].before)) for index in olds]
    rows = read_rows([*images, *befores], columns, rules.leaves_max, rebuildable)
    if rows.columns is None:
        return Wanting(rows.unknown, declared)
    own, change_of = _outcomes(changes, metadata, has_source_in_key=has_source_in_key)
    written = _changes_table(changes, metadata, rows.columns, _rescued(rows, images, olds), olds, shape)
    return ReadChanges(written, own, change_of)


def _metadata_of(events: list[RawEvent]) -> dict[int, EventMetadata]:
    """Of those events that have any."""
    found = ((index, metadata_of(event)) for index, event in enumerate(events) if event.metadata is not UNSET)
    return {index: metadata for index, metadata in found if metadata is not None}


def declared_by(metadata: Mapping[int, EventMetadata]) -> Columns:
    """The columns that these events declare, the last word on each; types that nobody knows are inferred."""
    found: dict[str, Field] = {}
    for each in metadata.values():
        for column in each.schema or ():
            name, type_ = column_name(column.name), parse_type(column.type)
            if type_ is not None and problem_with_column_name(name) is None:
                found[name] = Field(name, type_)
    return tuple(found.values())


def first_look(changes: Gathered, columns: Columns = ()) -> Seen:
    """What columns a table needs beside these. Unknown columns are read slowly, so a large batch is only sampled."""
    step = -(-len(changes.events) // _FIRST_LOOK_ROWS)
    looked_at = changes.events[::step]
    befores = [bytes(cast("Raw", event.before)) for event in looked_at if _has_before(event)]
    return read_rows([*(_image_of(event) for event in looked_at), *befores], columns).unknown


def _image_of(event: RawEvent) -> bytes:
    """The row that the change shows: as it is now, or for a DELETE as it was."""
    image = event.before if event.operation == "DELETE" else event.after
    return _NO_IMAGE if image is UNSET else bytes(image)


def _rescued(rows: Rows, images: list[bytes], olds: list[int]) -> pa.Array:
    """What did not fit, for each change: values of the row itself, and of the row before it under `_before`."""
    count = len(images)
    own, before = rows.rescued.slice(0, count), rows.rescued.slice(count)
    if rows.rescued.null_count == len(rows.rescued) and not rows.unreadable:
        return own
    texts = own.to_pylist()
    for row in rows.unreadable:
        if row < count:
            texts[row] = images[row].decode(errors="replace")
    for row, text in zip(olds, before.to_pylist(), strict=True):
        if text is not None:
            texts[row] = f'{texts[row][:-1]},"{BEFORE}":{text}}}' if texts[row] else f'{{"{BEFORE}":{text}}}'
    return pa.array(texts, pa.string())


def without_before(rescued: pa.ChunkedArray) -> pa.Array:
    """For the state, which has no row before."""
    texts = rescued.to_pylist()
    for row, text in enumerate(texts):
        if text is not None and f'"{BEFORE}"' in text:
            own = _split_row(text)
            own.pop(BEFORE, None)
            texts[row] = encode(own).decode() if own else None
    return pa.array(texts, pa.string())


def _has_before(event: RawEvent) -> bool:
    return event.before is not UNSET and bytes(event.before) != _NO_IMAGE


def _outcomes(
    changes: Gathered, metadata: dict[int, EventMetadata], *, has_source_in_key: bool
) -> tuple[Outcomes, NDArray[np.int64]]:
    """What the changes do to keys, and which change does each of it."""
    sources = _sources(changes) if has_source_in_key else None
    keys = _hashes([event.row_id for event in changes.events], sources)
    is_delete = np.array([event.operation == "DELETE" for event in changes.events], np.bool_)
    moved = _previous_of(changes.events, metadata)
    previous = _hashes(list(moved.values()), sources and [sources[index] for index in moved])
    previous_of = np.array(list(moved), np.int64)
    change_of = np.insert(np.arange(len(is_delete)), previous_of, previous_of)
    return outcomes(keys, is_delete, previous, previous_of), change_of


def _sources(changes: Gathered) -> list[str]:
    return [str(changes.records[index].stream) for index in changes.record_of]


def _hashes(row_ids: list[str], sources: list[str] | None) -> Hashes:
    if not row_ids:
        return no_hashes()
    if sources is None:
        return hash_keys([row_id.encode() for row_id in row_ids])
    return hash_keys([f"{source}\0{row_id}".encode() for source, row_id in zip(sources, row_ids, strict=True)])


def _changes_table(
    changes: Gathered,
    metadata: dict[int, EventMetadata],
    columns: pa.RecordBatch,
    rescued: pa.Array,
    olds: list[int],
    shape: Shape,
) -> pa.Table:
    """The rows of the changes table, in the order of its schema."""
    events, count = changes.events, len(changes.events)
    record_of = changes.record_of
    commit_ms = np.array([record.commit_timestamp_ms for record in changes.records], np.int64)[record_of]
    sources = pa.DictionaryArray.from_arrays(
        pa.array(record_of.astype(np.int32)), pa.array([str(record.stream) for record in changes.records])
    )
    own: dict[str, Any] = {
        KEY: [event.row_id for event in events],
        "_operation": [event.operation for event in events],
        "_sequence": [event.sequence for event in events],
        SOURCE: sources.cast(pa.string()),
        "_timestamp": _moments(np.array([event.timestamp for event in events], np.int64)),
        "_commit_timestamp": _moments(commit_ms),
        "_position": changes.positions,
        "_transaction": _texts({at: each.transaction_id for at, each in metadata.items()}, count),
        "_previous_key": _texts(_previous_of(events, metadata), count),
        RESCUED: rescued,
    }
    arrays = []
    for column in shape.arrow:
        if column.name == BEFORE:
            arrays.append(_before(columns, events, olds, column.type))
        elif column.name in own:
            arrays.append(
                pa.array(own[column.name], column.type) if isinstance(own[column.name], list) else own[column.name]
            )
        else:
            arrays.append(columns.column(column.name).slice(0, count))
    return pa.table(arrays, schema=shape.arrow)


def _moments(time_ms: NDArray[np.int64]) -> pa.Array:
    return pa.array(time_ms * 1000, pa.timestamp("us", tz="UTC"))


def _texts(by_change: Mapping[int, str | int | None], count: int) -> pa.Array:
    """For each change its text, or none."""
    found = {index: str(each) for index, each in by_change.items() if each is not None}
    return pa.array(map(found.get, range(count)), pa.string()) if found else pa.nulls(count, pa.string())


def _previous_of(events: list[RawEvent], metadata: dict[int, EventMetadata]) -> dict[int, str]:
    """The keys that changes have moved rows away from."""
    return {
        index: each.previous_row_id
        for index, each in metadata.items()
        if each.previous_row_id is not None and events[index].operation == "UPDATE"
    }


def _before(columns: pa.RecordBatch, events: list[RawEvent], olds: list[int], type_: pa.StructType) -> pa.Array:
    """The row before each change: read behind all others for an UPDATE, the row itself for a DELETE, else none."""
    count = len(events)
    index = np.full(count, -1, np.int64)
    index[olds] = np.arange(count, count + len(olds))
    for at, event in enumerate(events):
        if event.operation == "DELETE" and _has_before(event):
            index[at] = at
    names = [field.name for field in type_]
    whole = pa.StructArray.from_arrays([columns.column(name) for name in names], fields=list(type_))
    return whole.take(pa.array(index, mask=index < 0))


def _write_state(
    changes: pa.Table, rows: NDArray[np.int64], plan: TablePlan, options: WriteOptions, token: str
) -> tuple[StateFile, ...]:
    shape = shape_of(plan.state_schema)
    chosen = changes.select(shape.arrow.names)
    if len(rows) < changes.num_rows:
        chosen = chosen.take(pa.array(rows))
    if (rescued := chosen.column(RESCUED)).null_count < len(rescued):
        chosen = chosen.set_column(chosen.schema.names.index(RESCUED), RESCUED, without_before(rescued))
    state = pa.table(chosen.columns, schema=shape.arrow)
    location = plan.state_location
    if plan.arrangement.is_plain:
        return (StateFile(write_rows(state, new_file(location, token), shape, options)),)

    def write(piece: Piece) -> StateFile:
        entry = write_rows(piece.rows, new_file(location, token, piece.folder), shape, options)
        return StateFile(entry | piece.mark, piece.order)

    with ThreadPoolExecutor(_WRITERS) as threads:  # for most of it is waiting for the disk
        return tuple(threads.map(write, arranged(state, plan.arrangement)))


def hashes_of(state: pa.Table, *, has_source_in_key: bool) -> Hashes:
    """The keys of rows of the state."""
    return _hashes(state.column(KEY).to_pylist(), state.column(SOURCE).to_pylist() if has_source_in_key else None)


@dataclass(frozen=True, slots=True)
class KeysJob:
    """Read the keys of a data file of the state, but for these rows."""

    path: str
    deleted: NDArray[np.uint32]
    has_source_in_key: bool


def read_keys(job: KeysJob) -> Block:
    """The live rows of a data file, for an index that is made anew."""
    names = [KEY, SOURCE] if job.has_source_in_key else [KEY]
    columns = pq.read_table(path_of(job.path), columns=names, partitioning=None)
    kept = np.ones(columns.num_rows, np.bool_)
    kept[job.deleted] = False
    hashes = hashes_of(columns.filter(pa.array(kept)), has_source_in_key=job.has_source_in_key)
    return Block(job.path, hashes, np.flatnonzero(kept))
