"""What Spark's workers do: turn a slice of the journal into data files, and folded changes into rows of the state.

From publish.py, which sends jobs and collects results through Spark; runs in Python workers beside the Java process.
Promise: a result names files that are written and synced, or the columns that are missing, and then nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.keyindex.datafiles import Block
from dolake.keyindex.hashes import Hashes
from dolake.pipeline.arranging import Arrangement, Piece, arranged
from dolake.pipeline.cut import Slice
from dolake.pipeline.files import WriteOptions, ids_before, new_file, read_columns, shape_of, write_rows
from dolake.pipeline.fold import GONE, Outcomes, fold
from dolake.pipeline.gather import Gathered, gather, in_order
from dolake.pipeline.lifting import fractions_in, names_in
from dolake.pipeline.quarantine import quarantine_of, sort_out
from dolake.pipeline.reading import (
    Contradicted,
    ReadChanges,
    Table,
    Unwritable,
    Wanting,
    declared_by,
    first_look,
    hashes_of_keys,
    metadata_by_change,
    read_changes,
    without_before,
)
from dolake.pipeline.rows import Contradiction
from dolake.pipeline.unchanged import Key, read_old_rows
from dolake.tables.declaration import Notes
from dolake.tables.layout import KEY, QUARANTINE_SUFFIX, RESCUED, SOURCE
from dolake.tables.rules import LakeRules, TableRules
from dolake.tables.types import Columns

Json = dict[str, Any]
_WRITERS, _AHEAD_MAX = 4, 8
_NO_NOTES = Notes()


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
    rebuildable_later: frozenset[str] = frozenset()
    """Columns that may get another type beside the stream, because the table is too large for it."""
    rebuilt: tuple[str, ...] = ()
    """Columns that do; and the state's schema before."""
    state_schema_before: str = ""
    index_folder: str = ""
    snapshot_id: int | None = None
    """Where the key index of the state is, and of which snapshot."""
    arrangement: Arrangement = field(default_factory=Arrangement)
    """Of the state."""
    notes: Notes = _NO_NOTES
    """What sources have declared of the columns."""
    retypes_at_once: bool = False
    """Whether a column of a guessed type can get another one before this publish."""


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
    called: dict[str, str] = field(default_factory=dict)
    """Tables that have another name now than in the journal."""
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
    rescued_count: int = 0
    """Changes of which a value did not fit its column."""
    wished: frozenset[str] = frozenset()
    """Columns that should become fractions beside the stream, because a value of these changes is one."""
    contradicted: Mapping[str, Contradiction] = field(default_factory=dict)
    """Columns of guessed types that some values do not fit, in a table that is too large to change at once."""
    rescued_columns: frozenset[str] = frozenset()
    """Columns of which a value did not fit."""

    @property
    def state_file(self) -> Json | None:
        """Of a table without partitions."""
        return self.state_files[0].entry if self.state_files else None


@dataclass(frozen=True, slots=True)
class Refused:
    """A change cannot be written, and its table wants no quarantine."""

    reason: str


@dataclass(frozen=True, slots=True)
class StateJob:
    """Write these rows of a changes file as rows of the state."""

    plan: TablePlan
    changes_file: str
    rows: NDArray[np.int64]
    options: WriteOptions
    token: str


def write_slice(job: SliceJob) -> dict[str, Staged | Wanting | Contradicted | Refused]:
    """Each table's changes of this slice as one data file; what cannot be written, as rows of the quarantine."""
    wanted = None
    if job.only is not None:
        wanted = job.only | {name.removesuffix(QUARANTINE_SUFFIX) for name in job.only} | set(job.called)
    gathered = gather(Path(job.journal), job.part, wanted, job.rules)
    waiting = {job.called.get(table, table): changes for table, changes in gathered.items()}
    done: dict[str, Wanting | Contradicted | Refused] = {}
    written: dict[str, Future[Staged]] = {}
    with ThreadPoolExecutor(_WRITERS) as threads:  # where tables are many, most of it is waiting for the disk
        # A quarantine comes after its table: it gets rows from there, and has changes by which they leave it.
        while waiting:
            table = min(waiting, key=lambda name: (name.endswith(QUARANTINE_SUFFIX), name))
            changes = waiting.pop(table)
            read = _read_table(job, table, changes)
            if isinstance(read, Unwritable) and job.rules.of(table).is_fail_stop:
                done[table] = Refused(next(iter(read.problems.values())))
            elif isinstance(read, Unwritable):
                good, bad = sort_out(changes, read.problems, table)
                waiting |= {table: good} if good.events else {}
                waiting[quarantine_of(table)] = in_order(waiting.get(quarantine_of(table), Gathered()), bad)
            elif job.only is not None and table not in job.only:
                pass  # written at the first try
            elif isinstance(read, Wanting | Contradicted):
                done[table] = read
            else:
                if len(written) >= _AHEAD_MAX:
                    list(written.values())[-_AHEAD_MAX].result()  # the rows of no more tables wait in memory
                written[table] = threads.submit(_write_table, job, job.plans[table], read)
    return done | {table: each.result() for table, each in written.items()}


def write_state(job: StateJob) -> tuple[StateFile, ...]:
    """The state's rows, taken from the changes file that an earlier job wrote."""
    shape = shape_of(job.plan.state_schema)
    names = shape.arrow.names
    changes = read_columns(job.changes_file, names)
    return _write_state(changes, job.rows, job.plan, job.options.of(job.plan.rules.layout), job.token)


def _read_table(job: SliceJob, table: str, changes: Gathered) -> ReadChanges | Wanting | Contradicted | Unwritable:
    plan = job.plans.get(table)
    if plan is None:
        return Wanting(first_look(changes), declared_by(metadata_by_change(changes.events)))

    def old_rows(keys: Sequence[Key]) -> tuple[pa.Table, NDArray[np.bool_]]:
        state, before = shape_of(plan.state_schema), {}
        if plan.rebuilt:
            before = ids_before(shape_of(plan.state_schema_before), state, plan.rebuilt)
        sources = [source for _, source in keys] if job.has_source_in_key else None
        hashes = hashes_of_keys([row_id for row_id, _ in keys], sources)
        return read_old_rows(Path(plan.index_folder), plan.snapshot_id, hashes, state, before)

    shape, rules = shape_of(plan.changes_schema), plan.rules.reading
    known = Table(
        plan.columns,
        shape,
        job.has_source_in_key,
        rules,
        plan.rebuildable,
        old_rows,
        plan.notes,
        plan.retypes_at_once,
    )
    return read_changes(changes, known)


def _write_table(job: SliceJob, plan: TablePlan, read: ReadChanges) -> Staged:
    folded = fold(read.outcomes)
    shape, options = shape_of(plan.changes_schema), job.options.of(plan.rules.layout)
    changes_file = write_rows(read.rows, new_file(plan.changes_location, job.token), shape, options)
    kept = folded.rows[folded.rows != GONE]
    state_files = _write_state(read.rows, kept, plan, options, job.token) if job.is_whole and len(kept) else ()
    rescued = read.rows.column(RESCUED)
    wished = fractions_in(rescued, plan.rebuildable_later)
    count = len(rescued) - rescued.null_count
    return Staged(folded, changes_file, state_files, count, wished, read.contradicted, names_in(rescued))


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
    return hashes_of_keys(
        state.column(KEY).to_pylist(), state.column(SOURCE).to_pylist() if has_source_in_key else None
    )


@dataclass(frozen=True, slots=True)
class KeysJob:
    """Read the keys of a data file of the state, but for these rows."""

    path: str
    deleted: NDArray[np.uint32]
    has_source_in_key: bool


def read_keys(job: KeysJob) -> Block:
    """The live rows of a data file, for an index that is made anew."""
    names = [KEY, SOURCE] if job.has_source_in_key else [KEY]
    columns = read_columns(job.path, names)
    kept = np.ones(columns.num_rows, np.bool_)
    kept[job.deleted] = False
    hashes = hashes_of(columns.filter(pa.array(kept)), has_source_in_key=job.has_source_in_key)
    return Block(job.path, hashes, np.flatnonzero(kept))
