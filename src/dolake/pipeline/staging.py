"""Write all files of a publish: changes, rows of the state, position deletes. Nothing of it is visible yet.

From publish.py, with a cut of the journal; to Spark's workers (tasks.py), in one job where the cut is small and two
where it has slices. Promise: what `stage` returns is complete and synced, and says what the key index becomes.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark import SparkContext

from dolake.crashpoints import reach
from dolake.errors import Damaged, DoLakeError
from dolake.keyindex import Block, Changes, Hashes
from dolake.pipeline import fold
from dolake.pipeline.cut import Cut
from dolake.pipeline.deletes import DeletePlan, Positions, union
from dolake.pipeline.files import WriteOptions, ids_before, remove_file, remove_files, shape_of
from dolake.pipeline.quarantine import quarantine_of
from dolake.pipeline.reading import Contradicted, Wanting
from dolake.pipeline.rewriting import RewriteJob, Rewritten, rewrite
from dolake.pipeline.sourcetables import Rebuild, SourceTable, SourceTables
from dolake.pipeline.store import in_store
from dolake.pipeline.tasks import Refused, SliceJob, Staged, StateFile, StateJob, write_slice, write_state
from dolake.positions import Position
from dolake.tables.declaration import Declaration, type_for_both
from dolake.tables.layout import CLEARING, DDL_OPERATIONS
from dolake.tables.schema import Seen

Json = dict[str, Any]
Answer = dict[str, Staged | Wanting | Contradicted | Refused]
_GROWS_MAX = 5
_ROUNDS = 4
_STAGERS = 4
NO_TARGET = 1 << 60
_NONE: Positions = np.empty(0, np.uint32)


class Inexact(Exception):
    """A column cannot get another type, because a value of it would be lost: stage again, and it keeps its own."""


class WrongGuess(Exception):
    """Columns of guessed types must get other types first: do that, and stage again."""

    def __init__(self, types: dict[str, dict[str, str]]) -> None:
        super().__init__(f"columns need other types: {types}")
        self.types = types
        """By table and column."""


@dataclass(slots=True)
class Steps:
    """How long the steps of a publish took, added up over tables, of which some are worked on at the same time."""

    times_ms: dict[str, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.times_ms[step] = self.times_ms.get(step, 0) + round((time.monotonic() - started) * 1000)


@dataclass(frozen=True, slots=True)
class StagedTable:
    """What a publish does to one source table: its files, and what becomes of the key index."""

    source: SourceTable
    changes_files: list[Json]
    state_files: list[Json]
    merged_files: list[Json]
    """Data files of the state that leave it: their rows are in one of `state_files` now."""
    deletes: DeletePlan
    index_changes: Changes
    cleared_at: Position | None = None
    """Where the table was emptied, if it was."""
    replaced_changes: list[Json] = field(default_factory=list)
    """Data files of the changes that leave them, because columns got another type."""
    rescued_count: int = 0
    rescued_columns: frozenset[str] = frozenset()

    @property
    def files(self) -> list[Json]:
        return [*self.changes_files, *self.state_files, *self.deletes.add.values()]

    @property
    def has_state(self) -> bool:
        """Whether the state changes at all: deleting a key that is not there leaves it as it is.

        A column that was renamed or dropped is a change, too: a state that kept it would fall behind its changes.
        """
        is_altered = self.source.state.pending is not None
        return is_altered or bool(self.state_files or self.deletes.add or self.merged_files)


class Staging:
    """Writes the files of one cut after the other."""

    def __init__(self, spark: SparkContext, tables: SourceTables, journal: str) -> None:
        self._spark, self._tables, self._journal = spark, tables, journal
        self.options = WriteOptions("snappy", 100_000)
        self._token = ""
        self._stagers = ThreadPoolExecutor(_STAGERS, thread_name_prefix="staging")

    def stage(self, cut: Cut, steps: Steps) -> list[StagedTable]:
        """Write everything; where that fails, remove what was written, for the disk may be full."""
        reach("before_staging")
        self._token = f"{cut.start}-{uuid.uuid4().hex[:12]}"
        try:
            answers = self._write_slices(cut, steps)
            names = sorted({name for answer in answers for name in answer})
            slices = {name: [answer.get(name) for answer in answers] for name in names}
            staged = [self._clear(cut, slices)] if _is_clearing(cut) and slices else self._stage_tables(slices, steps)
        except BaseException:
            self._remove(cut)
            raise
        reach("staged")
        return staged

    def _clear(self, cut: Cut, slices: dict[str, list[Staged | None]]) -> StagedTable:
        """The table loses all its rows, by files; the change that says so is the only one of the cut."""
        ((name, (part,)),) = slices.items()
        source = self._tables.find(name)
        assert source is not None, "the workers had a plan for it"
        assert part is not None, "and there is one slice"
        deletes = source.deletes.plan({}, self._token, list(source.files))
        files = list(source.files.values())
        return StagedTable(source, [part.changes_file], [], files, deletes, Changes(), cut.start)

    def _stage_tables(self, slices: dict[str, list[Staged | None]], steps: Steps) -> list[StagedTable]:
        """Some tables at the same time: their index, deletes and rows have nothing to do with each other."""
        running = [self._stagers.submit(self._stage_table, name, parts, steps) for name, parts in slices.items()]
        wait(running)  # also when one fails: nothing may be written any more when what was written is removed
        return [each.result() for each in running]

    def _remove(self, cut: Cut) -> None:
        for name in filter(self._tables.rules.takes, cut.tables):
            with contextlib.suppress(DoLakeError, OSError):
                if found := self._tables.find(name):
                    remove_files((found.state.location, found.changes.location), self._token)

    def _write_slices(self, cut: Cut, steps: Steps) -> list[dict[str, Staged]]:
        """Ask the workers, give the tables the columns that they lack, and ask again for those tables.

        Again in all slices: so all files of a table have the same columns.
        """
        done: list[dict[str, Staged]] = [{} for _ in cut.slices]
        lacking: frozenset[str] | None = None
        for _ in range(_GROWS_MAX):
            with steps.timed("write"):
                answers = self._ask(cut, lacking)
            _stop_if_refused(answers)
            _stop_if_contradicted(answers)
            lacking = frozenset(name for answer in answers for name in _lacking(answer))
            lacking |= frozenset(map(quarantine_of, lacking))  # what a table cannot take shows when it is read again
            for found, answer in zip(done, answers, strict=True):
                for name, part in answer.items():
                    if isinstance(part, Staged) and name in lacking:
                        for entry in (part.changes_file, *(file.entry for file in part.state_files)):
                            remove_file(entry["file-path"])
                    elif isinstance(part, Staged):
                        found[name] = part
            if not lacking:
                return done
            with steps.timed("grow"):
                self._grow(answers)
        raise Damaged("the tables do not take the columns that the changes have", hint="look at the table's schema")

    def _ask(self, cut: Cut, only: frozenset[str] | None) -> list[Answer]:
        known = {each.name for each in self._tables.known}
        taken = set(filter(self._tables.rules.takes, cut.tables))
        names = {*taken, *(known & set(map(quarantine_of, taken)))}
        plans = {name: found.plan for name in names if (found := self._tables.find_for_publish(name))}
        called = {cut.called[0]: cut.called[1]} if cut.called else {}
        jobs = [
            SliceJob(
                journal=self._journal,
                part=part,
                plans=plans,
                options=self.options,
                has_source_in_key=self._tables.has_source_in_key,
                is_whole=len(cut.slices) == 1,
                rules=self._tables.rules,
                called=called,
                token=self._token,
                only=only,
            )
            for part in cut.slices
        ]
        return list(run_jobs(self._spark, write_slice, jobs))

    def _grow(self, answers: Iterable[Answer]) -> None:
        seen: dict[str, Seen] = {}
        declared: dict[str, Declaration] = {}
        for answer in answers:
            for name, part in _lacking(answer).items():
                seen.setdefault(name, Seen()).merge(part.seen)
                declared[name] = declared.get(name, Declaration()).then(part.declared)
        # Some at the same time: a lake that begins with hundreds of tables waits for each of them on the disk.
        list(self._stagers.map(lambda name: self._tables.grow(name, seen[name], declared[name]), seen))

    def _stage_table(self, name: str, slices: list[Staged | None], steps: Steps) -> StagedTable:
        source = self._tables.find(name)
        assert source is not None, "the workers had a plan for it"
        found = [part for part in slices if part is not None]
        if wished := frozenset().union(*(part.wished for part in found)):
            self._tables.retypes_wanted.add(name, dict.fromkeys(wished, "double"))
        self._tables.retypes_wanted.note(name, source.index.row_count, [part.contradicted for part in found])
        # A slice is folded already; only several of them can have a key twice.
        joined = found[0].outcomes if len(found) == 1 else fold.fold(fold.join([part.outcomes for part in found]))
        rows = [fold.rows_of_part(joined, number) for number in range(len(found))]
        with steps.timed("state"):
            state_files = self._state_files(source, found, rows, is_whole=len(slices) == 1)
        with steps.timed("index"), source.trusting_index() as index:
            old = index.positions_by_path(index.look_up(joined.hashes))
        live = {path: rows - len(old.get(path, ())) for path, rows in source.live_rows().items()}
        live = {path: rows for path, rows in live.items() if path not in source.busy}
        groups = source.to_merge(live)
        merged_paths = [path for group in groups for path in group]
        with steps.timed("merge"):
            gone = {path: old.pop(path, _NONE) for path in merged_paths}
            merged = self._merge(source, [{path: gone[path] for path in group if live[path]} for group in groups])
            replaced = self._rebuild_changes(source)
        with steps.timed("deletes"):
            deletes = source.deletes.plan(old, self._token, merged_paths, source.files)
        blocks = [_block(file, part) for files, part in zip(state_files, rows, strict=True) for file in files]
        for file, hashes in zip(merged.files, merged.hashes, strict=True):
            blocks.append(Block(file["file-path"], hashes, np.arange(len(hashes.hi))))
        return StagedTable(
            source,
            [*replaced.files, *(part.changes_file for part in found)],
            [*(file.entry for files in state_files for file in files), *merged.files],
            [source.files[path] for path in merged_paths],
            deletes,
            Changes(blocks, fold.gone(joined)),
            None,
            list(source.changes_files.values()) if source.rebuild else [],
            sum(part.rescued_count for part in found),
            frozenset().union(*(part.rescued_columns for part in found)),
        )

    def _merge(self, source: SourceTable, groups: list[dict[str, Positions]]) -> Rewritten:
        """The live rows of each group of data files, without those that this publish replaces, as one file."""
        jobs = [self._merge_job(source, files) for files in groups if files]
        return self._rewrite(source, jobs)

    def _merge_job(self, source: SourceTable, files: dict[str, Positions]) -> RewriteJob:
        return RewriteJob(
            schema=source.state.schema,
            location=source.state.location,
            files={path: union(source.deletes.of(path), gone) for path, gone in files.items()},
            options=self.options.of(source.rules.layout),
            target_bytes=NO_TARGET,
            token=self._token,
            has_keys=True,
            has_source_in_key=self._tables.has_source_in_key,
            ids_before=_ids_before(source.rebuild, source.state.schema, is_state=True),
            lifted=dict.fromkeys(source.rebuild.columns, "double") if source.rebuild else {},
            origins=self._tables.origins(source, files),
            **source.place_of(next(iter(files))),
        )

    def _rebuild_changes(self, source: SourceTable) -> Rewritten:
        """Where columns get another type: all changes so far, with that type."""
        rebuild = source.rebuild
        if rebuild is None or not source.changes_files:
            return Rewritten()
        job = RewriteJob(
            schema=source.changes.schema,
            location=source.changes.location,
            files=dict.fromkeys(source.changes_files, _NONE),
            options=self.options.of(source.rules.layout),
            target_bytes=NO_TARGET,
            token=self._token,
            has_keys=False,
            ids_before=_ids_before(rebuild, source.changes.schema, is_state=False),
            lifted=dict.fromkeys(rebuild.columns, "double"),
        )
        return self._rewrite(source, [job])

    def _rewrite(self, source: SourceTable, jobs: list[RewriteJob]) -> Rewritten:
        done = Rewritten()
        for part in run_jobs(self._spark, rewrite, jobs):
            if part.is_inexact and source.rebuild:
                self._tables.keep_exact(source, source.rebuild.columns)
                raise Inexact(f"{source.name} has integers that would not survive another type")
            done.files += part.files
            done.hashes += part.hashes
        return done

    def _state_files(
        self, source: SourceTable, slices: list[Staged], rows: list[fold.Outcomes], *, is_whole: bool
    ) -> list[tuple[StateFile, ...]]:
        """Each slice's rows of the state as files of its own; none for a slice of which no row is left."""
        if is_whole:
            return [slices[0].state_files]
        numbers = [number for number, part in enumerate(rows) if len(part)]
        jobs = [
            StateJob(
                source.plan, slices[number].changes_file["file-path"], rows[number].rows, self.options, self._token
            )
            for number in numbers
        ]
        files: list[tuple[StateFile, ...]] = [()] * len(rows)
        for number, found in zip(numbers, run_jobs(self._spark, write_state, jobs), strict=True):
            files[number] = found
        return files


def _is_clearing(cut: Cut) -> bool:
    return cut.ddl is not None and DDL_OPERATIONS[cut.ddl.action] in CLEARING


def _stop_if_refused(answers: Iterable[Answer]) -> None:
    for answer in answers:
        for name, part in answer.items():
            if isinstance(part, Refused):
                raise Damaged(
                    f"a change of {name} cannot be written: {part.reason}",
                    hint=f"with fail_stop of {name} off it goes to the quarantine, and the lake goes on",
                )


def _stop_if_contradicted(answers: Iterable[Answer]) -> None:
    types: dict[str, dict[str, str]] = {}
    for answer in answers:
        for name, part in answer.items():
            for column, type_ in part.types.items() if isinstance(part, Contradicted) else ():
                found = types.setdefault(name, {})
                found[column] = type_for_both(found.get(column, type_), type_)
    if types:
        raise WrongGuess(types)


def _block(file: StateFile, part: fold.Outcomes) -> Block:
    """The keys of a data file's rows, in the order in which they stand there."""
    hashes = part.hashes if file.order is None else Hashes(part.hashes.hi[file.order], part.hashes.lo[file.order])
    return Block(file.entry["file-path"], hashes, np.arange(len(hashes.hi)))


def _ids_before(rebuild: Rebuild | None, schema: str, *, is_state: bool) -> dict[bytes, bytes]:
    if rebuild is None:
        return {}
    old = rebuild.state_schema if is_state else rebuild.changes_schema
    return ids_before(shape_of(old), shape_of(schema), rebuild.columns)


def _lacking(answer: Answer) -> dict[str, Wanting]:
    """The tables that lack columns, and what was seen of them."""
    return {name: part for name, part in answer.items() if isinstance(part, Wanting)}


def run_jobs(spark: SparkContext, do: Callable[[Any], Any], jobs: list[Any]) -> Iterator[Any]:
    """Do each job in one of Spark's workers; yields the results in order, and never has more than a few in memory."""
    size, there = _ROUNDS * spark.defaultParallelism, in_store(do)
    for first in range(0, len(jobs), size):
        part = jobs[first : first + size]
        yield from spark.parallelize(part, len(part)).map(there).collect()
