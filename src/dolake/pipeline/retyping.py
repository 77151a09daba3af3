"""Give columns of a table another type: all files are written anew, and land at once.

From maintenance.py, for a large table, beside the stream; from publish.py, for a small one, at once. To rewriting.py in
one of Spark's workers. Each file is written row for row, deleted rows too, so
that deletes and key index say the same of the new files as of the old ones. Files that publishes add meanwhile are
written in further rounds, the last few while publishes wait. Promise: readers see the old type with all rows or the
new one with all rows; after a crash at any point the table is as it was, or as it should be.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dolake.errors import Conflict, OutcomeUnknown, Unavailable
from dolake.pipeline.arranging import folder_of, mark_of
from dolake.pipeline.compaction import land
from dolake.pipeline.deletes import Positions
from dolake.pipeline.files import ids_before, remove_files, shape_of
from dolake.pipeline.guesses import guesses_text, rescued_property, with_values
from dolake.pipeline.iceberg import IcebergTable, TableChange
from dolake.pipeline.publish import Publisher
from dolake.pipeline.rewriting import RewriteJob, rewrite
from dolake.pipeline.sourcetables import SourceTable
from dolake.pipeline.staging import NO_TARGET, Inexact, run_jobs
from dolake.pipeline.store import store
from dolake.tables.declaration import read_guesses
from dolake.tables.layout import GUESSES
from dolake.tables.tiers import COLD

Json = dict[str, Any]
_NONE: Positions = np.empty(0, np.uint32)
_REST_ROWS_MAX = 50_000
"""So many rows are written while publishes wait."""
_ROUNDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Retyped:
    """What was done, and how long publishes had to wait for it."""

    files: int
    bytes_before: int
    bytes_after: int
    waited_ms: int = 0


@dataclass(slots=True)
class _Work:
    """The tables as they will be, and the files that are written so far, each by the path of the old one."""

    source: SourceTable
    types: dict[str, str]
    state: IcebergTable
    changes: IcebergTable
    token: str = field(default_factory=lambda: f"retyped-{uuid.uuid4().hex[:12]}")
    files: dict[str, Json] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Files that publishes leave alone for us."""

    schemas: tuple[str, str] = field(init=False)
    """Of state and changes when it began: what is written fits these alone."""
    ids: dict[bool, dict[bytes, bytes]] = field(init=False)
    """For state (True) and changes, from the columns' new ids to those that they have in the old files."""

    def __post_init__(self) -> None:
        self.schemas, self.ids = self.source_schemas(), self.new_ids()

    def source_schemas(self) -> tuple[str, str]:
        return self.source.state.schema, self.source.changes.schema

    def new_ids(self) -> dict[bool, dict[bytes, bytes]]:
        pairs = {True: (self.source.state, self.state), False: (self.source.changes, self.changes)}
        return {
            is_state: ids_before(shape_of(now.schema), shape_of(then.schema), self.types)
            for is_state, (now, then) in pairs.items()
        }

    def todo(self, *, is_state: bool) -> list[Json]:
        entries = self.source.files if is_state else self.source.changes_files
        return [entry for path, entry in entries.items() if path not in self.files]


class Retyper:
    """Retypes columns of the tables that a publisher has."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def retype_at_once(self, name: str, types: Mapping[str, str]) -> None:
        """In the caller's turn, while nobody else reads the table's files; as text where a value is no such type."""
        with self._publisher.in_flight.one():
            for wanted in (types, dict.fromkeys(types, "string")):
                work = self._begin(name, wanted)
                if work is None:
                    raise Unavailable(f"the types of {sorted(types)} of {name} cannot change", hint="it is tried again")
                try:
                    self._land(work)
                    return
                except Inexact:
                    self._remove(work)
                except OutcomeUnknown:
                    raise
                except BaseException:
                    self._remove(work)
                    raise

    def retype(self, name: str, types: Mapping[str, str], tell: Callable[[int, int], None]) -> Retyped | None:
        """These columns get these types; None where none of them can. `tell` hears of files done and in all.

        Conflict when the table's columns have changed meanwhile, or more comes than can be written; Inexact when there
        are values that the type does not hold, which is remembered of a single column. In both cases nothing has
        happened.
        """
        with self._publisher.in_flight.one():
            with self._publisher.turns:
                work = self._begin(name, types)
            if work is None:
                return None
            try:
                self._write_most(work, tell)
                with self._publisher.turns:
                    began_s = time.monotonic()
                    done = self._land(work)
                    return replace(done, waited_ms=round((time.monotonic() - began_s) * 1000))
            except OutcomeUnknown:
                raise  # the files may be part of the tables
            except BaseException as error:
                self._remove(work)
                if isinstance(error, Inexact) and len(work.types) == 1:
                    with self._publisher.turns:
                        self._publisher.tables.keep_exact(work.source, work.types)
                        self._publisher.tables.forget(name)
                raise
            finally:
                work.source.busy.difference_update(work.busy)

    def _begin(self, name: str, types: Mapping[str, str]) -> _Work | None:
        self._publisher.look_if_uncertain()
        tables = self._publisher.tables
        source = tables.find(name)
        if source is None:
            return None
        if source.is_altering:
            raise Conflict(f"{name} is changing its columns", hint="the next publish asks again")
        types = source.retypable(types)
        return _Work(source, types, *tables.retyped(source, types)) if types else None

    def _write_most(self, work: _Work, tell: Callable[[int, int], None]) -> None:
        """All files but the last few; those that come meanwhile, too, as long as they are many."""
        for number in itertools.count():
            with self._publisher.turns:
                self._check(work)
                todo = {is_state: work.todo(is_state=is_state) for is_state in (True, False)}
                rows = sum(entry["record-count"] for entries in todo.values() for entry in entries)
                if number and rows <= _REST_ROWS_MAX:
                    return
                if number == _ROUNDS_MAX:
                    raise Conflict(f"{work.source.name} grows faster than it can be written", hint="try it later")
                paths = {entry["file-path"] for entries in todo.values() for entry in entries}
                work.busy |= paths
                work.source.busy |= paths
            total = len(work.files) + sum(map(len, todo.values()))
            for is_state, entries in todo.items():
                for entry in entries:  # one at a time, so that one of Spark's workers is free for publishes
                    self._write(work, [entry], is_state=is_state)
                    tell(len(work.files), total)

    def _write(self, work: _Work, entries: list[Json], *, is_state: bool) -> None:
        jobs = [self._job(work, entry, is_state=is_state) for entry in entries]
        for entry, done in zip(entries, run_jobs(self._publisher.spark, rewrite, jobs), strict=True):
            if done.is_inexact:
                raise Inexact(f"{work.source.name} has integers that would not survive another type")
            (work.files[entry["file-path"]],) = done.files

    def _job(self, work: _Work, entry: Json, *, is_state: bool) -> RewriteJob:
        table = work.state if is_state else work.changes
        path = entry["file-path"]
        return RewriteJob(
            schema=table.schema,
            location=work.source.tiers.folder(table.location, work.source.tiers.of(path)),
            files={path: _NONE},
            options=self._publisher.options.of(work.source.rules.layout),
            target_bytes=NO_TARGET,
            token=work.token,
            has_keys=False,
            ids_before=work.ids[is_state],
            lifted=work.types,
            folder=folder_of(work.source.tiers.folders(table.location), path),
            mark=mark_of(entry),
            origins=self._publisher.tables.origins(work.source, [path]) if is_state else {},
        )

    def _check(self, work: _Work) -> None:
        self._publisher.look_if_uncertain()
        source = work.source
        if self._publisher.tables.find(source.name) is not source or source.is_altering:
            raise Conflict(f"{source.name} was loaded anew meanwhile", hint="the next publish asks again")
        if work.source_schemas() != work.schemas:
            raise Conflict(f"{source.name} has got other columns meanwhile", hint="the next publish asks again")

    def _land(self, work: _Work) -> Retyped:
        self._check(work)
        publisher, source = self._publisher, work.source
        work.state, work.changes = publisher.tables.retyped(source, work.types)
        if work.new_ids() != work.ids:
            raise Conflict(f"{source.name} has had other columns meanwhile", hint="the next publish asks again")
        for is_state in (True, False):
            self._write(work, work.todo(is_state=is_state), is_state=is_state)
        for table in (work.state, work.changes):  # a table without rows has no folder yet
            store().make_folder(f"{table.location}/data")
        renamed = {old: work.files[old]["file-path"] for old in source.files}
        files = {work.files[old]["file-path"]: work.files[old] for old in source.files}
        deleted = {new: gone for old, new in renamed.items() if len(gone := source.deletes.of(old))}
        plan = source.deletes.plan(deleted, work.token, list(source.files), files)
        state = TableChange(
            work.state,
            add_rows=list(files.values()),
            remove_rows=list(source.files.values()),
            add_deletes=list(plan.add.values()),
            remove_deletes=plan.remove,
            is_rewrite=bool(files),
            properties=rescued_property(source.state.rescued, gone=_texts(work)),
            place=source.tiers.folder(work.state.location, COLD),
        )
        changes = TableChange(
            work.changes,
            add_rows=[work.files[old] for old in source.changes_files],
            remove_rows=list(source.changes_files.values()),
            is_rewrite=bool(source.changes_files),
            properties=_guesses_after(work),
            place=source.tiers.folder(work.changes.location, COLD),
        )

        def stage(snapshot_id: int) -> None:
            with source.trusting_index() as index:
                index.stage_rename(renamed, snapshot_id)

        old = [*source.files.values(), *source.changes_files.values()]
        done = Retyped(len(old), _size(old), _size(work.files[entry["file-path"]] for entry in old))
        land(publisher, [state, changes], source.index, stage, lambda: publisher.tables.forget(source.name))
        return done  # from here on nothing may fail: the files are part of the tables

    def _remove(self, work: _Work) -> None:
        for table in (work.state, work.changes):
            with contextlib.suppress(OSError):
                remove_files(work.source.tiers.folders(table.location), work.token)


def _texts(work: _Work) -> list[str]:
    """Columns that take every value from now on."""
    return [name for name, type_ in work.types.items() if type_ == "string"]


def _guesses_after(work: _Work) -> dict[str, str]:
    """What has come out of `_rescued` is a value; and where a guess was given up for text, no later guess counts."""
    guesses = read_guesses(work.source.changes.guesses)
    entries = [work.files[old] for old in work.source.changes_files]
    decided = with_values(work.changes.schema, entries, guesses)
    decided |= guesses.keys() & set(_texts(work))
    now = guesses | dict.fromkeys(decided, True)
    return {GUESSES: guesses_text(now)} if now != guesses else {}


def _size(entries: Iterable[Mapping[str, Any]]) -> int:
    return sum(entry["file-size-in-bytes"] for entry in entries)
