"""Upkeep as the server sees it: jobs that were asked for or came by themselves, what they did, and what is due.

From spark_process.py, which passes orders to the pipeline and its reports back; to compaction.py's routes under
/v1/compaction. Everything here runs on the event loop; what reads manifests runs in the catalog's threads.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from dolake.catalog.base import Name
from dolake.catalog.catalog import Catalog
from dolake.catalog.facts import table_facts
from dolake.errors import InvalidInput, NotFound
from dolake.identity.grants import EVERYTHING, Grant
from dolake.pipeline.link import Cancel, Forget, JobKind, JobReport, Maintain, Sections
from dolake.positions import Position
from dolake.settings import Settings
from dolake.settings.names import camel
from dolake.settings.tables import archive_after_days, lake_rules
from dolake.storage.restored import Restored
from dolake.tables.layout import CHANGES_SUFFIX, table_names
from dolake.tables.maintenance import Candidate, TableFacts, candidates, moves_due
from dolake.tables.names import NAMESPACE_DEFAULT, plain_table_name, split_table_name
from dolake.tables.tiers import Tier

JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)
_JOBS_KEPT = 200
_OVER = ("done", "failed", "cancelled")
_OF_COMPACTIONS = ("files_before", "files_after", "bytes_before", "bytes_after", "rows_dropped")
_OF_OTHERS = ("snapshots_expired", "files_removed", "bytes_removed", "files_moved", "bytes_moved")
_FORGET_TRIES_MAX = 3
_NOTHING: Mapping[str, str] = {}


class JobBoard:
    """All jobs, the newest last; those that have ended go when there are many."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._jobs: dict[str, JobReport] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        """What jobs that were asked for are about; the others name one table."""
        self._numbers = itertools.count(1)
        self.orders: deque[Maintain | Forget | Cancel] = deque()
        """What the pipeline is to be told as soon as there is one."""
        self._forgets: dict[str, tuple[Forget, int]] = {}
        """Keys to be forgotten, and how many pipelines have died over each: the next one is told again."""
        self.forgotten_count = 0
        self.ended_counts = dict.fromkeys(_OVER, 0)
        self.totals = dict.fromkeys((*_OF_COMPACTIONS, *_OF_OTHERS), 0)
        self.waited_max_ms = 0
        self.looked_ms = clock_ms()

    def ask(
        self,
        settings: Settings,
        tables: Sequence[str],
        kinds: Iterable[JobKind] = (),
        partitions: Iterable[str] = (),
        to: Tier | None = None,
        retype: Mapping[str, str] = _NOTHING,
    ) -> JobReport:
        """Queue a job; it begins when the pipeline is free for it."""
        job_id = f"job-{self._clock_ms()}-{next(self._numbers)}"
        shown = tables[0] if len(tables) == 1 else f"{len(tables)} tables"
        report = JobReport(job_id, "maintain", shown, "queued", "asked for", started_ms=self._clock_ms())
        self._jobs[job_id] = report
        self._tables[job_id] = tuple(tables)
        order = Maintain(
            job_id, Sections.of(settings), tuple(tables), tuple(kinds), tuple(partitions), to, dict(retype)
        )
        self.orders.append(order)
        return report

    def ask_forget(
        self, settings: Settings, table: str, key: str, to: Position, *, source: str | None, is_patient: bool
    ) -> JobReport:
        """Queue a job that forgets a key. It is here in memory alone: nothing that is written may hold the key."""
        job_id = f"job-{self._clock_ms()}-{next(self._numbers)}"
        report = JobReport(job_id, "forget", table, "queued", "asked for", started_ms=self._clock_ms())
        order = Forget(job_id, Sections.of(settings), table, key, to, source, is_patient)
        self._jobs[job_id] = report
        self._tables[job_id] = (table,)
        self._forgets[job_id] = order, 1
        self.orders.append(order)
        return report

    def key_of(self, job_id: str) -> str | None:
        """The key that a job is to forget, as long as it has not ended."""
        found = self._forgets.get(job_id)
        return found[0].key if found else None

    def cancel(self, job_id: str) -> JobReport:
        """Before it begins, or before its next piece."""
        report = self.find(job_id)
        waiting = next((each for each in self.orders if not isinstance(each, Cancel) and each.job_id == job_id), None)
        if waiting:
            self.orders.remove(waiting)
            self.note(msgspec.structs.replace(report, state="cancelled", reason="cancelled before it began"))
        elif report.state not in _OVER:
            self.orders.append(Cancel(job_id))
        return self.find(job_id)

    def note(self, report: JobReport) -> None:
        before = self._jobs.get(report.job_id)
        if before and before.state in _OVER:
            return
        self._jobs[report.job_id] = report
        self.waited_max_ms = max(self.waited_max_ms, report.waited_ms)
        if report.state in _OVER:
            self._forgets.pop(report.job_id, None)
            self.forgotten_count += report.kind == "forget" and report.state == "done"
            self.ended_counts[report.state] += 1
            for name in self.totals:
                self.totals[name] += getattr(report, name)
            self._forget_old()

    def child_ended(self) -> None:
        """Whoever was at work is gone, and with it the jobs that it was told of; the others wait for the next.

        A key that was to be forgotten is so still, a few times over: each does what the one before has left.
        """
        unwanted = {order.job_id for order in self.orders if isinstance(order, Cancel)}
        self.orders = deque(order for order in self.orders if not isinstance(order, Cancel))
        waiting = {order.job_id for order in self.orders}
        for job_id, (order, tries) in self._forgets.items():
            if job_id not in waiting | unwanted and tries < _FORGET_TRIES_MAX:
                self._forgets[job_id] = order, tries + 1
                self._jobs[job_id] = msgspec.structs.replace(self._jobs[job_id], state="queued")
                self.orders.append(order)
                waiting.add(job_id)
        for report in [each for each in self._jobs.values() if each.state not in _OVER and each.job_id not in waiting]:
            self.note(msgspec.structs.replace(report, state="failed", reason="the pipeline process ended"))

    def find(self, job_id: str, grant: Grant = EVERYTHING) -> JobReport:
        """A job that this grant sees."""
        if job_id not in self._jobs or not self._is_seen(self._jobs[job_id], grant):
            raise NotFound(f"there is no job {job_id[:80]!r}", hint="GET /v1/compaction/jobs lists them")
        return self._jobs[job_id]

    @property
    def jobs(self) -> list[JobReport]:
        return list(self._jobs.values())

    def seen_by(self, grant: Grant) -> list[JobReport]:
        """The jobs that are about tables of this grant, and about no other."""
        return [each for each in self.jobs if self._is_seen(each, grant)]

    def _is_seen(self, report: JobReport, grant: Grant) -> bool:
        if grant.is_lake_wide:
            return True
        if report.job_id in self._tables:
            return all(map(grant.sees_table, self._tables[report.job_id]))
        return report.kind != "maintain" and grant.sees_table(report.table)

    @property
    def is_busy(self) -> bool:
        return bool(self.orders) or any(report.state not in _OVER for report in self._jobs.values())

    def _forget_old(self) -> None:
        over = [job_id for job_id, report in self._jobs.items() if report.state in _OVER]
        for job_id in over[: max(0, len(over) - _JOBS_KEPT)]:
            del self._jobs[job_id]
            self._tables.pop(job_id, None)


def job_json(report: JobReport) -> dict[str, Any]:
    """As the routes show it: names in the seeds' spelling."""
    return {camel(name): getattr(report, name) for name in report.__struct_fields__}


def totals_json(board: JobBoard) -> dict[str, Any]:
    ended = {f"jobs_{state}": count for state, count in board.ended_counts.items()}
    ended["keys_forgotten"] = board.forgotten_count
    figures = ended | board.totals | {"publish_waited_max_ms": board.waited_max_ms}
    return {camel(name): value for name, value in figures.items()}


def source_tables(catalog: Catalog) -> list[str]:
    """The source tables that the lake manages, by their plain names."""
    pointers, _ = catalog.store.snapshot(None)
    names = [pointer.name for pointer in pointers if pointer.is_managed]
    return sorted(_source_of(name) for name in names if not name.name.endswith(CHANGES_SUFFIX))


def _source_of(name: Name) -> str:
    return plain_table_name(".".join((*name.namespace, name.name)))


def checked_kinds(kinds: object) -> tuple[JobKind, ...]:
    if not isinstance(kinds, list) or not all(kind in JOB_KINDS for kind in kinds):
        raise InvalidInput(f"kinds must be a list of {', '.join(JOB_KINDS)}", hint="leave it out for all of them")
    return cast("tuple[JobKind, ...]", tuple(kinds))


def checked_partitions(partitions: object) -> tuple[str, ...]:
    if partitions is None:
        return ()
    if not isinstance(partitions, list) or not all(isinstance(each, str) and "=" in each for each in partitions):
        raise InvalidInput("partitions must be a list of names", hint='such as ["dt=2024-01-15"]')
    return tuple(partitions)


def checked_tables(catalog: Catalog, namespace: object, table: object, grant: Grant = EVERYTHING) -> list[str]:
    """The source tables that a request means: one, those of a namespace, or all; of those that the asker sees."""
    known = list(filter(grant.sees_table, source_tables(catalog)))
    for what, value in (("namespace", namespace), ("table", table)):
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidInput(f"{what} must be a name", hint='such as {"namespace": "default", "table": "users"}')
    if table is not None:
        wanted = plain_table_name(f"{namespace or NAMESPACE_DEFAULT}.{table}")
        if wanted not in known:
            raise NotFound(
                f"Table does not exist: {namespace or NAMESPACE_DEFAULT}.{table}",
                hint="only tables of sources have upkeep",
            )
        return [wanted]
    if namespace is not None:
        return [name for name in known if ".".join(split_table_name(name)[0]) == namespace]
    return known


def due(catalog: Catalog, settings: Settings, sources: Iterable[str], now_ms: int, home: Path) -> list[Candidate]:
    """What is due now in both tables of these sources, the most useful first."""
    found: list[Candidate] = []
    usual, lake = Sections.of(settings).rules, lake_rules(settings.lake)
    for source in sources:
        rules = usual.with_target(lake.of(source).layout.target_file_size_bytes)
        for full_name in table_names(source):
            try:
                document = catalog.tables.load(Name(full_name[:-1], full_name[-1]))
            except NotFound:  # one that was adopted has no changes, or it was dropped just now
                continue
            facts = table_facts(".".join(full_name), document, catalog.storage)
            found += candidates(facts, rules, now_ms, is_urgent=False)
            restored = Restored(home, document.metadata["table-uuid"])
            young = _without_restored(facts, restored, settings.maintenance.restored_days, now_ms)
            found += moves_due(young, rules, archive_after_days(settings.lake, source), now_ms)
    return sorted(found, key=lambda each: -each.score)


def _without_restored(facts: TableFacts, restored: Restored, days: int, now_ms: int) -> TableFacts:
    """Partitions that were moved back stay for a while."""
    return replace(facts, files=[each for each in facts.files if not restored.stays(each.partition, days, now_ms)])


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    namespace, _, table = candidate.table.rpartition(".")
    return {
        "namespace": namespace,
        "table": table,
        "kind": candidate.kind,
        "partition": candidate.partition,
        "fileCount": len(candidate.paths),
        "sizeBytes": candidate.size_bytes,
        "memoryBytes": candidate.memory_bytes,
        "score": round(candidate.score, 2),
        "reason": candidate.reason,
    }
