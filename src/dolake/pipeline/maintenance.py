"""Upkeep beside the stream: a thread of the pipeline process that does what tables/maintenance.py says is due.

From __main__.py, which passes orders on and tells of each publish; to compaction.py and garbage.py. It works piece by
piece, one at a time, so that one of Spark's workers is always free for publishes. Promise: each job is reported when it
starts, after each piece and when it ends; a failure ends the job and not the thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from dolake.crashpoints import reach
from dolake.errors import Conflict, DoLakeError, InvalidInput, Unavailable
from dolake.pipeline.arranging import partition_of
from dolake.pipeline.compaction import Compactor
from dolake.pipeline.forgetting import Forgetter, forgotten_of
from dolake.pipeline.garbage import GarbageJob, Waiting, find_garbage, remove
from dolake.pipeline.link import Forget, JobKind, JobReport, JobState, Maintain, Sections, Start
from dolake.pipeline.publish import Publisher
from dolake.pipeline.retyping import Retyper
from dolake.pipeline.sourcetables import SourceTable
from dolake.pipeline.staging import Inexact, run_jobs
from dolake.settings.tables import archive_after_days
from dolake.storage.restored import Restored
from dolake.tables.layout import OURS, table_names
from dolake.tables.maintenance import Candidate, FileFacts, TableFacts, candidates, moves_due, moves_to
from dolake.tables.thinning import History, snapshots_to_remove
from dolake.tables.tiers import COLD, WARM, Tier, Tiers

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_COMPACTING: tuple[JobKind, ...] = ("deletes", "files")
_ALL: tuple[JobKind, ...] = ("columns", "tiers", *_COMPACTING, "manifests", "snapshots", "garbage")
_SNAPSHOTS_EVERY_MIN, _SNAPSHOTS_EVERY_MAX = 10, 100
"""Publishes of a table after which its snapshots are counted: between two looks there are not many too many."""
_ROUNDS_MAX = 3
_MERGE_ROWS_IN_MEMORY = 250_000
_PUBLISH_WAIT_S = 60.0
_LOOK_S = 0.1


Asked = Maintain | Forget


class _Cancelled(Exception):
    """Somebody wants this job to end."""


@dataclass(slots=True)
class _Job:
    """One job under way; `report` is what was last told."""

    report: JobReport
    started_s: float
    partitions: tuple[str, ...] = ()
    """What is compacted or moved, where that is not all."""
    to: Tier | None = None
    """Where to, of a move that somebody asked for."""


class Upkeep:
    """See the module."""

    def __init__(
        self,
        publisher: Publisher,
        start: Start,
        orders: queue.SimpleQueue[Asked | list[str]],
        cancelled: set[str],
        tell: Callable[[JobReport], None],
    ) -> None:
        self._publisher, self._tell = publisher, tell
        self._orders, self._cancelled = orders, cancelled
        """A list among the orders names tables that have changed. Whoever cancels adds to the set."""
        self._compactor, self._retyper = Compactor(publisher), Retyper(publisher)
        self._folder = Path(start.home, "upkeep")
        self._forgetter = Forgetter(publisher, self._compactor, self._folder)
        self._generation = start.generation
        self._settings = start.settings
        self._numbers = itertools.count(1)
        self._publishes: dict[str, int] = {}
        self._is_pressed = False
        self._given_up: set[str] = set()
        """Files of pieces that failed, and tables whose columns could not be given another type."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="upkeep", daemon=True).start()

    # --- from other threads ------------------------------------------------------------------------------------------

    def follow(self, settings: Sections) -> None:
        self._settings = settings

    def published(self, tables: list[str], *, is_pressed: bool) -> None:
        """These tables have changed. While publishes are pressed, files may become more before somebody looks."""
        self._is_pressed = is_pressed
        self._orders.put(tables)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: Asked | list[str] | None = None
        while True:
            order = waiting or self._orders.get()
            waiting = None
            try:
                if isinstance(order, Asked):
                    self.follow(order.settings)
                    if isinstance(order, Forget):
                        self._forget(order)
                    else:
                        self._do_ordered(order)
                    continue
                touched, waiting = self._all_touched(order)
                self._look_after_touched(touched)
            except Py4JNetworkError:
                os._exit(1)  # Java is gone: the server starts another pipeline
            except Exception:
                logger.exception("upkeep stopped by a mistake of ours")

    def _all_touched(self, tables: list[str]) -> tuple[set[str], Asked | None]:
        """All tables that have changed until now, and the order that waits behind them, if one does."""
        touched: set[str] = set()
        order: Asked | list[str] = tables
        while not isinstance(order, Asked):
            for table in order:
                touched.add(table)
                self._publishes[table] = self._publishes.get(table, 0) + 1
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return touched, None
        return touched, order

    def _look_after_touched(self, touched: set[str]) -> None:
        """What should not wait for the next look at all tables."""
        self._merge_indexes(touched)
        if not self._settings.compaction.auto_compact:
            return
        for name in sorted(touched):
            with contextlib.suppress(DoLakeError, OSError):  # the next publish looks again
                if self._publisher.tables.retypes_wanted.of(name) and _columns_of(name) not in self._given_up:
                    self._look_after(name, ("columns",), is_urgent=True)
                self._look_after(name, _COMPACTING, is_urgent=True)
                if self._publishes[name] >= self._snapshots_every():
                    self._publishes[name] = 0
                    self._look_after(name, ("snapshots", "manifests"), is_urgent=True)

    def _snapshots_every(self) -> int:
        tenth = self._settings.maintenance.snapshots_max // 10
        return min(max(tenth, _SNAPSHOTS_EVERY_MIN), _SNAPSHOTS_EVERY_MAX)

    def _do_ordered(self, order: Maintain) -> None:
        """One job over all that was asked for."""
        shown = order.tables[0] if len(order.tables) == 1 else f"{len(order.tables)} tables"
        job = self._begin(order.job_id, "maintain", shown, "asked for")
        job.partitions, job.to = order.partitions, order.to
        self._given_up.clear()
        with self._ending(job):
            for name in order.tables if order.retype else ():
                self._want_retype(name, order.retype)
            failures = [
                failure
                for name in order.tables
                for kind in _ALL
                if kind in (order.kinds or _ALL) and (failure := self._failure(job, name, kind))
            ]
            if failures:
                raise Unavailable("; ".join(failures), hint="the rest is done")

    def _failure(self, job: _Job, name: str, kind: JobKind) -> str | None:
        """Do it; what is wrong with one table is said, and keeps nobody from looking after the next."""
        try:
            self._do(job, name, kind, is_urgent=False)
        except (_Cancelled, Py4JNetworkError):
            raise
        except Exception as error:
            _log_mistake(error)
            return f"{name}, {kind}: {error}"
        return None

    def _look_after(self, name: str, kinds: tuple[JobKind, ...], *, is_urgent: bool) -> None:
        """A job of its own for each thing that is due."""
        for kind in kinds:
            if kind in _COMPACTING and not self._due(name, kind, is_urgent=is_urgent):
                continue
            job = self._begin(f"auto-{self._generation}-{next(self._numbers)}", kind, name, "due")
            with self._ending(job):
                self._do(job, name, kind, is_urgent=is_urgent)

    def _do(self, job: _Job, name: str, kind: JobKind, *, is_urgent: bool) -> None:
        match kind:
            case "files" | "deletes":
                self._compact(job, name, kind, is_urgent=is_urgent)
            case "tiers":
                self._move(job, name)
            case "columns":
                self._retype(job, name)
            case "manifests":
                self._regroup(job, name)
            case "snapshots":
                self._expire(job, name)
            case "garbage":
                self._collect(job, name)

    # --- what is due -------------------------------------------------------------------------------------------------

    def _due(
        self, name: str, kind: JobKind, *, is_urgent: bool, partitions: tuple[str, ...] = ()
    ) -> list[tuple[Candidate, bool]]:
        """What to compact, most useful first, and whether it is of the state."""
        with self._publisher.turns:
            self._publisher.look_if_uncertain()
            source = self._publisher.tables.find(name)
            facts = [] if source is None else list(_facts(source, partitions))
        rules = self._settings.rules.with_target(source.rules.layout.target_file_size_bytes if source else None)
        if is_urgent and self._is_pressed:
            rules = rules.relaxed()
        found = [
            (candidate, is_state)
            for table, is_state in facts
            for candidate in candidates(table, rules, _now_ms(), is_urgent=is_urgent)
            if candidate.kind == kind and self._given_up.isdisjoint(candidate.paths)
        ]
        return sorted(found, key=lambda each: -each[0].score)

    # --- doing it ----------------------------------------------------------------------------------------------------

    def _compact(self, job: _Job, name: str, kind: JobKind, *, is_urgent: bool) -> None:
        """What is due now, piece after piece, and no more: on a busy table something always is."""
        for _ in range(_ROUNDS_MAX):
            due = self._due(name, kind, is_urgent=is_urgent, partitions=job.partitions)
            self._update(job, pieces_total=job.report.pieces_total + len(due))
            done = [self._compact_piece(job, name, candidate, is_state=is_state) for candidate, is_state in due]
            if all(done):
                return

    def _compact_piece(self, job: _Job, name: str, candidate: Candidate, *, is_state: bool) -> bool:
        """False when a publish has merged some of these files meanwhile: then something else is due."""
        target_bytes = self._target_bytes(name)
        try:
            done = self._compactor.compact(name, candidate.paths, is_state=is_state, target_bytes=target_bytes)
        except Conflict:
            self._update(job, pieces_total=job.report.pieces_total - 1)
            return False
        except Exception:
            self._given_up.update(candidate.paths)  # until the next look at all tables, lest it fails every second
            raise
        self._update(
            job,
            reason=candidate.reason,
            pieces_done=job.report.pieces_done + 1,
            files_before=job.report.files_before + done.files_before,
            files_after=job.report.files_after + done.files_after,
            bytes_before=job.report.bytes_before + done.bytes_before,
            bytes_after=job.report.bytes_after + done.bytes_after,
            rows_dropped=job.report.rows_dropped + done.rows_dropped,
            waited_ms=max(job.report.waited_ms, done.waited_ms),
        )
        return True

    def _target_bytes(self, name: str) -> int:
        layout = self._publisher.tables.rules.of(name).layout
        return layout.target_file_size_bytes or self._settings.compaction.target_file_size_bytes

    # --- to another tier ---------------------------------------------------------------------------------------------

    def _move(self, job: _Job, name: str) -> None:
        """Partition by partition. One is looked at anew when a publish has merged some of its files meanwhile."""
        by_partition: dict[str, list[Candidate]] = {}
        for piece in self._moves(job, name):
            by_partition.setdefault(piece.partition, []).append(piece)
        self._update(job, pieces_total=job.report.pieces_total + len(by_partition))
        for partition, pieces in by_partition.items():
            for _ in range(_ROUNDS_MAX):
                if all(self._move_piece(job, name, piece) for piece in pieces):
                    break
                pieces = self._moves(job, name, partition)
            self._update(job, pieces_done=job.report.pieces_done + 1)

    def _moves(self, job: _Job, name: str, partition: str | None = None) -> list[Candidate]:
        """What is old enough, or what somebody wants to be elsewhere; of one partition, or of all."""
        with self._publisher.turns:
            self._publisher.look_if_uncertain()
            source = self._publisher.tables.find(name)
            facts = self._tier_facts(source, job.partitions, partition) if source else None
        if facts is None:
            return []
        if job.to == WARM or (job.to and job.partitions):
            return moves_to(facts, self._settings.rules, job.to)
        return moves_due(facts, self._settings.rules, archive_after_days(self._settings.lake, name), _now_ms())

    def _tier_facts(self, source: SourceTable, partitions: tuple[str, ...], only: str | None) -> TableFacts:
        """Of the state, whose partitions alone can be old. What was moved back for a while counts as young."""
        restored, days, now_ms = self._restored(source), self._settings.maintenance.restored_days, _now_ms()
        ((facts, _), *_) = _facts(source, partitions)
        files = [file for file in facts.files if only is None or file.partition == only]
        ended_ms: dict[str, int | None] = {}
        for file in files:
            if file.partition not in ended_ms:
                stays = restored.stays(source.partition_name(file.path), days, now_ms)
                ended_ms[file.partition] = None if stays else source.ended_ms(file.path)
        return replace(facts, files=[replace(file, ended_ms=ended_ms[file.partition]) for file in files])

    def _restored(self, source: SourceTable) -> Restored:
        return Restored(self._folder.parent, source.state.uuid)

    def _move_piece(self, job: _Job, name: str, candidate: Candidate) -> bool:
        """False when a publish has merged some of these files meanwhile."""
        to = job.to or COLD
        if job.to:
            with self._publisher.turns:
                source = self._publisher.tables.find(name)
                if source and candidate.paths[0] in source.files:
                    self._restored(source).note(source.partition_name(candidate.paths[0]), to, _now_ms())
        try:
            done = self._compactor.compact(
                name, candidate.paths, is_state=True, target_bytes=self._target_bytes(name), to=to
            )
        except Conflict:
            return False
        report = job.report
        self._update(
            job,
            reason=candidate.reason,
            files_moved=report.files_moved + done.files_after,
            bytes_moved=report.bytes_moved + done.bytes_after,
            rows_dropped=report.rows_dropped + done.rows_dropped,
            waited_ms=max(report.waited_ms, done.waited_ms),
        )
        return True

    def _retype(self, job: _Job, name: str) -> None:
        """Columns of a large table that should get other types, because of values that have come."""
        types = self._publisher.tables.retypes_wanted.of(name)
        try:
            self._retype_columns(job, name, types)
        except Inexact:
            for column in sorted(types) if len(types) > 1 else ():  # which of them is it?
                with contextlib.suppress(Inexact):
                    self._retype_columns(job, name, {column: types[column]})
            self._update(job, reason="integers that would not survive another type keep theirs")
        except BaseException:
            self._given_up.add(_columns_of(name))  # until the next look at all tables, lest it begins again at once
            raise
        with self._publisher.turns:
            self._publisher.tables.retypes_wanted.remove(name, types)

    def _want_retype(self, name: str, types: Mapping[str, str]) -> None:
        """Somebody asks for other types of these columns, which is refused in words where it cannot be."""
        with self._publisher.turns:
            self._publisher.look_if_uncertain()
            source = self._publisher.tables.find(name)
            possible = source.retypable(types) if source else {}
            if fixed := sorted(types.keys() - possible):
                raise InvalidInput(
                    f"the type of {', '.join(fixed)} in {name} cannot change",
                    hint="a column that divides or sorts the table keeps its type",
                )
            self._publisher.tables.retypes_wanted.add(name, types)

    def _retype_columns(self, job: _Job, name: str, types: Mapping[str, str]) -> None:
        done = self._retyper.retype(name, types, partial(self._tell_pieces, job)) if types else None
        if done is not None:
            report = job.report
            self._update(
                job,
                reason=", ".join(f"{name} is now {type_}" for name, type_ in sorted(types.items())),
                files_before=report.files_before + done.files,
                files_after=report.files_after + done.files,
                bytes_before=report.bytes_before + done.bytes_before,
                bytes_after=report.bytes_after + done.bytes_after,
                waited_ms=max(report.waited_ms, done.waited_ms),
            )

    def _tell_pieces(self, job: _Job, done: int, total: int) -> None:
        self._update(job, pieces_done=done, pieces_total=total)

    def _regroup(self, job: _Job, name: str) -> None:
        """Fewer manifests, where there are too many."""
        for is_state in (True, False):
            if self._compactor.regroup(name, is_state=is_state, manifests_max=self._settings.rules.manifests_max):
                self._piece_done(job)

    def _piece_done(self, job: _Job, **figures: Any) -> None:
        """Of work that is one piece for each table."""
        report = job.report
        self._update(job, pieces_done=report.pieces_done + 1, pieces_total=report.pieces_total + 1, **figures)

    def _expire(self, job: _Job, name: str) -> None:
        for full_name in table_names(name):
            metadata = self._publisher.http.metadata(full_name)
            if metadata is None:
                continue
            gone = snapshots_to_remove(History.of(metadata), self._settings.rules.snapshots, _now_ms())
            if gone:
                self._publisher.http.remove_snapshots(full_name, metadata["table-uuid"], gone)
                reach("expired")
            self._piece_done(job, snapshots_expired=job.report.snapshots_expired + len(gone))

    def _collect(self, job: _Job, name: str) -> None:
        grace_s = self._settings.maintenance.gc_grace_ms / 1000
        for full_name in table_names(name):
            since_s = self._publisher.in_flight.since_s
            metadata = self._publisher.http.metadata(full_name)
            if metadata is None or OURS not in metadata.get("properties", {}):
                continue  # in the folder of a table that somebody else made there may be files of others
            task = GarbageJob(*self._publisher.tables.tiers.folders(metadata["location"]), metadata)
            found = next(run_jobs(self._publisher.spark, find_garbage, [task]))
            waiting = Waiting(self._folder / f"{metadata['table-uuid']}.json")
            due = waiting.look(found, grace_s=grace_s, in_flight_since_s=since_s)
            freed = remove(due)
            if due:
                reach("collected")
            waiting.forget(due)
            self._piece_done(
                job,
                files_removed=job.report.files_removed + len(due),
                bytes_removed=job.report.bytes_removed + freed,
            )

    def _merge_indexes(self, names: set[str]) -> None:
        """Key indexes that are too large to be merged within a publish."""
        for name in names:
            with self._publisher.turns:
                source = self._publisher.tables.find(name)
            if source is None or not source.index.merge_due():
                continue
            with source.trusting_index() as index:
                merged = index.prepare_merge(rows_in_memory=_MERGE_ROWS_IN_MEMORY)
            with self._publisher.turns:
                if merged and self._publisher.tables.find(name) is source:
                    source.index.finish_merge(merged)

    def _forget(self, order: Forget) -> None:
        """A key of one table; of what was durable when somebody asked, as soon as that is published."""
        job = self._begin(order.job_id, "forget", order.table, "asked for")
        with self._ending(job):
            give_up_s = time.monotonic() + _PUBLISH_WAIT_S
            while self._publisher.position < order.to and time.monotonic() < give_up_s:
                self._update(job)
                time.sleep(_LOOK_S)
            done = self._forgetter.forget(order, partial(self._piece_done, job))
            self._update(
                job,
                rows_dropped=done.rows,
                snapshots_expired=sum(each.snapshots_expired for each in done.tables),
                files_removed=sum(each.files_removed for each in done.tables),
                bytes_removed=sum(each.bytes_removed for each in done.tables),
                waited_ms=done.waited_ms,
                forgotten=forgotten_of(done, order, _now_ms()),
            )

    # --- telling -----------------------------------------------------------------------------------------------------

    def _begin(self, job_id: str, kind: str, table: str, reason: str) -> _Job:
        job = _Job(JobReport(job_id, kind, table, "running", reason, started_ms=_now_ms()), time.monotonic())
        logger.info("upkeep started", extra={"job": job_id, "kind": kind, "table": table or "all"})
        self._tell(job.report)
        return job

    def _update(self, job: _Job, **figures: Any) -> None:
        took_ms = round((time.monotonic() - job.started_s) * 1000)
        job.report = msgspec.structs.replace(job.report, took_ms=took_ms, **figures)
        self._tell(job.report)
        if job.report.job_id in self._cancelled and job.report.state == "running":
            raise _Cancelled

    @contextlib.contextmanager
    def _ending(self, job: _Job) -> Iterator[None]:
        """Around the work of a job: says how it ended."""
        state: JobState = "done"
        reason = job.report.reason
        try:
            yield
            reason = job.report.reason
        except _Cancelled:
            state, reason = "cancelled", "cancelled"
        except Conflict as error:
            reason = error.message  # somebody else did it, or it is done next time
        except Py4JNetworkError:
            raise
        except Exception as error:
            state, reason = "failed", str(error)[:500]
            _log_mistake(error)
        self._cancelled.discard(job.report.job_id)
        self._update(job, state=state, reason=reason)
        report = job.report
        files = f"{report.files_before}->{report.files_after}"
        figures = {"job": report.job_id, "state": state, "took_ms": report.took_ms, "files": files, "reason": reason}
        logger.info("upkeep ended", extra=figures)


def _columns_of(name: str) -> str:
    """Among what was given up, where the others are paths."""
    return f"columns of {name}"


def _facts(source: SourceTable, partitions: tuple[str, ...] = ()) -> Iterator[tuple[TableFacts, bool]]:
    """Both tables of a source, without the files that are being compacted, and whether it is the state.

    With names of partitions: what is in these, and so nothing of the changes, which have none.
    """
    live = source.live_rows()
    state = [
        _file_facts(file, live[path], source.tiers) for path, file in source.files.items() if path not in source.busy
    ]
    if partitions:
        state = [file for file in state if source.is_in(file.path, partitions)]
        yield TableFacts(".".join(source.state.name), state), True
        return
    changes = [
        _file_facts(file, file["record-count"], source.tiers)
        for path, file in source.changes_files.items()
        if path not in source.busy
    ]
    yield TableFacts(".".join(source.state.name), state), True
    yield TableFacts(".".join(source.changes.name), changes), False


def _file_facts(file: Json, live: int, tiers: Tiers) -> FileFacts:
    rows, path = file["record-count"], file["file-path"]
    return FileFacts(path, file["file-size-in-bytes"], rows, rows - live, partition_of(file), tiers.of(path))


def _log_mistake(error: Exception) -> None:
    if not isinstance(error, DoLakeError | OSError | Py4JJavaError):
        logger.error("upkeep failed by a mistake of ours", exc_info=error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
