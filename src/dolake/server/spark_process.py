"""The pipeline as the server sees it: a child process with Spark, started, told when to publish, watched, restarted.

From lifecycle.py, which runs `supervise`; to receiver/progress.py, which learns what was published. Promise: the
server takes changes whatever the child does; a child that dies is replaced after a wait that grows; each child has a
generation of its own, so that an old one cannot publish beside it; one that is idle for long is stopped until there is
work again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from dolake.catalog.base import Publish as PublishedRow
from dolake.catalog.catalog import Catalog
from dolake.errors import DoLakeError
from dolake.pipeline.link import (
    Failed,
    JobKind,
    JobReport,
    Publish,
    Published,
    Reached,
    Ready,
    Report,
    Sections,
    Start,
    TableReport,
    decode_report,
    to_line,
)
from dolake.positions import Position
from dolake.receiver.progress import Progress
from dolake.server.flushing import Pace, publish_due_ms
from dolake.server.home import Home
from dolake.server.upkeep import JobBoard, source_tables
from dolake.settings import SettingsStore
from dolake.tables.layout import QUARANTINE_SUFFIX
from dolake.tables.tiers import Tier

logger = logging.getLogger(__name__)

PipelineState = Literal["off", "starting", "ready", "publishing", "sleeping", "waiting"]
PIPELINE_STATES: tuple[PipelineState, ...] = get_args(PipelineState)
_NOTHING: Mapping[str, str] = {}
_LINE_MAX_BYTES = 64 * 1024 * 1024
_END_WAIT_S = 10.0
_LOOK_AT_LEAST_S = 5.0


class PipelineStats:
    """Figures for /status and /metrics."""

    def __init__(self) -> None:
        self.state: PipelineState = "off"
        self.generation = 0
        self.start_count = 0
        self.spark_version = ""
        self.spark_start_ms = 0
        self.memory_bytes = 0
        self.last: Published | None = None
        self.publish_seconds = 0.0
        self.rows_written = 0
        self.files_written = 0
        self.bytes_written = 0
        self.tables: dict[str, TableReport] = {}
        self.quarantined_counts: Counter[str] = Counter()
        self.rescued_counts: Counter[str] = Counter()
        """By table: changes that could not be written, and those of which a value did not fit its column."""

    def as_json(self) -> dict[str, Any]:
        """The pipeline's part of /status."""
        last = self.last
        return {
            "state": self.state,
            "generation": self.generation,
            "starts": self.start_count,
            "sparkVersion": self.spark_version,
            "sparkStartMs": self.spark_start_ms,
            "memoryBytes": self.memory_bytes,
            "rowsWritten": self.rows_written,
            "filesWritten": self.files_written,
            "bytesWritten": self.bytes_written,
            "lastPublish": last and {"position": last.position, "tookMs": last.took_ms, "stepsMs": last.steps_ms},
        }

    def note(self, publish: Published) -> None:
        self.last, self.memory_bytes = publish, publish.memory_bytes
        self.publish_seconds += publish.took_ms / 1000
        for table in publish.tables:
            self.rows_written += table.rows_written
            self.files_written += table.files_written
            self.bytes_written += table.bytes_written
            self.tables[table.table] = table
            if table.table.endswith(QUARANTINE_SUFFIX):  # what is no DELETE of a row has come in
                count = table.changes - table.rows_deleted
                self.quarantined_counts[table.table.removesuffix(QUARANTINE_SUFFIX)] += count
            elif table.rescued:
                self.rescued_counts[table.table] += table.rescued


class SparkProcess:
    """See the module."""

    def __init__(
        self,
        home: Home,
        settings: SettingsStore,
        progress: Progress,
        catalog: Catalog,
        url: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._home, self._settings, self._progress, self._catalog = home, settings, progress, catalog
        self._uri = url + settings.current.server.base_path
        self._clock_ms = clock_ms
        self.stats = PipelineStats()
        self.jobs = JobBoard(clock_ms)
        self.on_forgotten: Callable[[JobReport], None] | None = None
        """Called when the pipeline has forgotten a key: whoever takes it ends the job, when the journal has let go."""
        self.problem = ""
        """Why nothing can be published at present; empty while a child starts for the first time or works."""
        self._ended_in_row = 0
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._reports: deque[Report] = deque()
        self._is_stopping = False
        self._reset()
        progress.on_change(self._wake.set)

    def _reset(self) -> None:
        """What is true of no child yet."""
        self._is_ready = self._is_busy = False
        self._started_ms = self._clock_ms()
        self._reports.clear()
        self._retry_ms = 0
        self._retry_delay_ms = self._settings.current.pipeline.retry_delay_ms
        self._held: Reached | None = None
        self._held_at: Position = 0
        self._why_not_started = ""

    async def supervise(self) -> None:
        """Keep a child at work until `stop`."""
        delay_ms = self._settings.current.pipeline.retry_delay_ms
        while not self._is_stopping:
            published_before = self._progress.flush_count
            try:
                await self._run_child()
            except (DoLakeError, OSError, sqlite3.Error) as error:
                logger.warning("pipeline not started", extra={"reason": str(error)})
                self._note_end(f"it cannot be started: {error}")
            if self._is_stopping or self.stats.state == "sleeping":
                await self._until(self._has_work)
                while await self._pass_states():
                    await self._until(self._has_work)
                continue
            if self._progress.flush_count > published_before:
                delay_ms = self._settings.current.pipeline.retry_delay_ms
            self.stats.state = "waiting"
            logger.warning("pipeline restarting", extra={"after_ms": delay_ms})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_ms / 1000):
                    await self._until(lambda: False)
            delay_ms = min(2 * delay_ms, self._settings.current.pipeline.retry_delay_max_ms)
        self.stats.state = "off"

    async def stop(self, wait_ms: int) -> None:
        """Publish what is durable if that is possible soon, then let the child go."""
        if self._is_ready and self._progress.tail.change_count:
            self._progress.request_flush()
            with contextlib.suppress(TimeoutError, Exception):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._progress.wait_committed(self._progress.tail.durable)
        self._is_stopping = True
        self._wake.set()

    async def _pass_states(self) -> bool:
        """Move the position past states of sources, if nothing else is to be done: that needs no Spark."""
        tail = self._progress.tail
        if self._is_stopping or tail.change_count or self.jobs.orders:
            return False
        self._progress.publish_started()
        await self._pass_gap(Reached(tail.durable))
        self._progress.publish_ended()
        return not tail.is_behind

    def _has_work(self) -> bool:
        """Whether a sleeping child is to be woken. States of sources alone can wait until a publish is asked for."""
        tail, is_wanted = self._progress.tail, self._progress.flush_wanted.is_set()
        is_long = tail.byte_count >= self._settings.current.lake.flush_threshold_bytes
        return tail.change_count > 0 or bool(self.jobs.orders) or (tail.is_behind and (is_wanted or is_long))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for this, or for the end."""
        while not self._is_stopping and not is_so():
            self._wake.clear()
            await self._wake.wait()

    # --- one child ---------------------------------------------------------------------------------------------------

    async def _run_child(self) -> None:
        self._reset()
        child = await self._start_child()
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(self._listen(child))
                await self._drive(child, listening)
                assert child.stdin is not None
                child.stdin.close()  # it ends by itself when we are gone, and so it does now
                try:
                    async with asyncio.timeout(_END_WAIT_S):
                        await child.wait()
                except TimeoutError:
                    child.kill()
        finally:
            if child.returncode is None:
                child.kill()
            code = await child.wait()
            if not self._is_stopping and self.stats.state != "sleeping":
                logger.warning("pipeline ended", extra={"exit_code": code})
                self._note_end(self._why_not_started or f"exit code {code}")
                if self._is_busy:
                    self._progress.publish_failed(f"the pipeline process ended with code {code}")
            self._progress.detach()
            self.jobs.child_ended()

    def _note_end(self, reason: str) -> None:
        """Once can be an accident, and the next child works on; twice without a publish needs a person."""
        self._ended_in_row += 1
        times = f"ended {self._ended_in_row} times without a publish" if self._ended_in_row > 1 else "ended"
        self.problem = f"the pipeline process {times}: {reason}"
        if self._ended_in_row > 1:
            logger.error(
                "pipeline cannot run: changes are durable and SQL sees them, but no table is published",
                extra={
                    "reason": self.problem,
                    "hint": "the lines above say why; `dolake doctor` checks Java and Spark",
                },
            )

    def _note_work(self) -> None:
        """This child can do what it is for."""
        self._ended_in_row, self.problem = 0, ""

    async def _start_child(self) -> Process:
        settings = self._settings.current
        row = await self._catalog.run(self._catalog.store.begin_generation)
        self.stats.state, self.stats.generation = "starting", row.generation
        self.stats.start_count += 1
        logger.info("pipeline started", extra={"generation": row.generation, "position": row.position})
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dolake.pipeline",
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_MAX_BYTES,
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which stops in order
        )
        start = Start(
            home=str(self._home.path),
            journal=str(self._home.journal_path),
            catalog_uri=self._uri,
            secret=self._catalog.pipeline_secret,
            generation=row.generation,
            published=row.position,
            settings=Sections.of(settings),
            log_level=settings.server.log_level,
            log_format=settings.server.log_format,
        )
        await self._say(child, to_line(start))
        return child

    async def _say(self, child: Process, line: bytes) -> None:
        assert child.stdin is not None
        with contextlib.suppress(ConnectionError):  # it is gone, which _listen notices
            child.stdin.write(line)
            await child.stdin.drain()

    async def _listen(self, child: Process) -> None:
        assert child.stdout is not None
        async for line in child.stdout:
            self._reports.append(decode_report(line))
            self._wake.set()
        self._wake.set()

    async def _drive(self, child: Process, listening: asyncio.Task[None]) -> None:
        """Read reports and give orders until the child is gone, idle for long, or not wanted any more."""
        while not self._is_stopping:
            while self._reports:
                report = self._reports.popleft()
                self._take(report)
                if isinstance(report, Reached):
                    await self._pass_gap(report)
            if listening.done():
                return
            now_ms = self._clock_ms()
            if self._is_idle(now_ms):
                logger.info("pipeline put to sleep", extra={"idle_ms": self._settings.current.pipeline.idle_ms})
                self.stats.state = "sleeping"
                return
            await self._order_upkeep(child, now_ms)
            due_ms = self._due_ms(now_ms)
            if due_ms is not None and due_ms <= now_ms:
                await self._order(child)
                due_ms = None
            await self._wait(now_ms, due_ms)

    async def _wait(self, now_ms: int, due_ms: int | None) -> None:
        wait_s = _LOOK_AT_LEAST_S if due_ms is None else min(_LOOK_AT_LEAST_S, (due_ms - now_ms) / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        self._wake.clear()

    async def _order(self, child: Process) -> None:
        durable = self._progress.tail.durable
        self._is_busy, self._held, self._held_at = True, None, durable
        self.stats.state = "publishing"
        self._progress.publish_started()
        await self._say(child, to_line(Publish(durable, Sections.of(self._settings.current))))

    async def _order_upkeep(self, child: Process, now_ms: int) -> None:
        """Pass on what was asked for, and now and then look at all tables; one that sleeps is not woken for that."""
        settings = self._settings.current
        is_look_due = now_ms - self.jobs.looked_ms >= settings.compaction.compaction_interval_ms
        if self._is_ready and settings.compaction.auto_compact and is_look_due and not self.jobs.is_busy:
            self.jobs.looked_ms = now_ms
            with contextlib.suppress(DoLakeError, sqlite3.Error):  # the next look comes
                if tables := await self._catalog.run(source_tables, self._catalog):
                    self.jobs.ask(settings, tables)
        while self._is_ready and self.jobs.orders:
            await self._say(child, to_line(self.jobs.orders.popleft()))

    def ask_upkeep(
        self,
        tables: list[str],
        kinds: Iterable[JobKind] = (),
        partitions: Iterable[str] = (),
        to: Tier | None = None,
        retype: Mapping[str, str] = _NOTHING,
    ) -> JobReport:
        """For the routes: a job for these tables, or these partitions of them, soon."""
        report = self.jobs.ask(self._settings.current, tables, kinds, partitions, to, retype)
        self._wake.set()
        return report

    def ask_forget(self, table: str, key: str, to: Position, *, source: str | None, is_patient: bool) -> JobReport:
        """For the route: a job that forgets a key of this table, soon."""
        report = self.jobs.ask_forget(self._settings.current, table, key, to, source=source, is_patient=is_patient)
        self._wake.set()
        return report

    def cancel_upkeep(self, job_id: str) -> JobReport:
        report = self.jobs.cancel(job_id)
        self._wake.set()
        return report

    def _take(self, report: Report) -> None:
        match report:
            case JobReport(kind="forget", state="done") if self.on_forgotten and report.forgotten:
                self.jobs.note(msgspec.structs.replace(report, state="running"))
                self.on_forgotten(report)
            case JobReport():
                self.jobs.note(report)
            case Ready():
                self._is_ready = True
                self.stats.state = "ready"
                self.stats.spark_version, self.stats.spark_start_ms = report.spark_version, report.start_ms
                self._progress.attach()
                if not self._progress.tail.change_count:
                    self._note_work()
                logger.info("spark started", extra={"version": report.spark_version, "took_ms": report.start_ms})
            case Published():
                self.stats.note(report)
                self._pace.note(report.took_ms)
                self._retry_delay_ms = self._settings.current.pipeline.retry_delay_ms
                changes = sum(table.changes for table in report.tables)
                logger.debug("published", extra={"position": report.position, "changes": changes, **report.steps_ms})
            case Reached():
                self._is_busy = False
                self.stats.state = "ready"
                self._note_work()
                self._progress.publish_ended()
                self._held = report if report.waiting_since_ms is not None else None
            case Failed():
                self._is_busy = False
                self.stats.state = "ready"
                self._progress.publish_failed(report.reason)
                if not self._is_ready:
                    self._why_not_started = report.reason
                self._retry_ms = self._clock_ms() + self._retry_delay_ms
                logger.warning("publish failed", extra={"reason": report.reason, "retry_ms": self._retry_delay_ms})
                longest_ms = self._settings.current.pipeline.retry_delay_max_ms
                self._retry_delay_ms = min(2 * self._retry_delay_ms, longest_ms)

    async def _pass_gap(self, report: Reached) -> None:
        """At a gap that a repair left, or a state alone, there is nothing to publish: only the position moves."""
        start = self._progress.tail.committed
        if report.waiting_since_ms is None and report.position > start:
            publish = PublishedRow(start, report.position, self.stats.generation, self._clock_ms())
            with contextlib.suppress(DoLakeError, sqlite3.Error):
                await self._catalog.run(self._catalog.store.commit, [], publish)
                self._catalog.on_published(report.position)

    def _due_ms(self, now_ms: int) -> int | None:
        if not self._is_ready or self._is_busy:
            return None
        lake, tail = self._settings.current.lake, self._progress.tail
        due_ms = publish_due_ms(
            tail,
            lake,
            now_ms=now_ms,
            last_ms=self._progress.last_flush_ms,
            typical_ms=self._pace.typical_ms,
            is_wanted=self._progress.flush_wanted.is_set(),
        )
        if due_ms is None:
            return None
        if self._held and self._held.waiting_since_ms is not None and tail.durable == self._held_at:
            due_ms = max(due_ms, self._held.waiting_since_ms + lake.transaction_wait_max_ms)
        return due_ms if self._progress.flush_wanted.is_set() else max(due_ms, self._retry_ms)

    def _is_idle(self, now_ms: int) -> bool:
        newest_ms = max(self._progress.last_durable_ms or 0, self._progress.last_flush_ms or 0, self._started_ms)
        is_quiet = not self._is_busy and not self._progress.tail.change_count and not self.jobs.is_busy
        return self._is_ready and is_quiet and now_ms - newest_ms >= self._settings.current.pipeline.idle_ms
