"""One publish, from a cut of the journal to a snapshot in every table that it touches.

From __main__.py, order by order. Promise: the position moves with the data, or neither does; after a publish that is
not known to have succeeded, the published row is read before anything else happens, and the rest is done on the new
head.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from dolake.catalog.base import GENERATION, PUBLISHED_FROM, PUBLISHED_TO
from dolake.crashpoints import reach
from dolake.errors import Conflict, OutcomeUnknown, Unavailable
from dolake.journal.reader import JournalReader, Place
from dolake.keyindex.format import ROW_SIZE
from dolake.pipeline.catalog_http import CatalogHttp
from dolake.pipeline.cut import Cut, Limits, next_cut
from dolake.pipeline.files import WriteOptions
from dolake.pipeline.guesses import guesses_text, rescued_property, with_values
from dolake.pipeline.iceberg import Iceberg, StagedCommit, TableChange, warm_up
from dolake.pipeline.iceberg_options import rest_options, store_options
from dolake.pipeline.link import Published, Sections, Start, TableReport
from dolake.pipeline.sourcetables import SourceTables, brief
from dolake.pipeline.staging import Inexact, StagedTable, Staging, Steps, WrongGuess, run_jobs
from dolake.pipeline.store import is_local, store, tiers_of
from dolake.pipeline.turns import InFlight, Turns
from dolake.positions import Position
from dolake.settings.tables import lake_rules
from dolake.storage.local import path_of
from dolake.tables.declaration import read_guesses
from dolake.tables.layout import CLEARED, GUESSES, state_schema
from dolake.tables.names import plain_table_name
from dolake.tables.types import Field

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_TRIES_MAX = 3
_RETYPES_MAX = 4
"""So often a publish may begin anew because columns get other types first."""
_STAGERS = 4
_STAGERS_IN_STORE = 16
"""There a table's manifests are mostly waiting, three requests one after the other."""
_MERGE_ROWS_MAX = 500_000
"""Of the key index within a publish; what is larger is merged beside the stream."""


class Replaced(Conflict):
    """Another pipeline has taken over; this one must end."""

    code = "pipeline_replaced"


class Publisher:
    """Publishes the journal, cut by cut."""

    def __init__(self, spark: SparkSession, start: Start) -> None:
        context, lake = spark.sparkContext, start.settings.lake
        self._start = start
        self.spark = context
        self.http = CatalogHttp(start.catalog_uri, start.secret)
        self.turns = Turns()
        """Held by whoever changes the tables."""
        self.iceberg = Iceberg(spark, rest_options(start.catalog_uri, start.secret) | store_options())
        self.tables = SourceTables(
            self.iceberg,
            Path(start.home, "keyindex"),
            lambda do, jobs: run_jobs(context, do, jobs),
            lake_rules(lake),
            has_source_in_key=lake.key_scope == "source",
            http=self.http,
            tiers=tiers_of(start.home, lake),
        )
        self._staging = Staging(context, self.tables, start.journal)
        self.follow(start.settings)
        self._parallel = context.defaultParallelism
        self._stagers = ThreadPoolExecutor(_STAGERS if is_local() else _STAGERS_IN_STORE, thread_name_prefix="iceberg")
        self._reader = JournalReader(Path(start.journal))
        self._place: Place | None = None
        self._is_uncertain = False
        self.in_flight = InFlight()
        self.retype_at_once: Callable[[str, Mapping[str, str]], None] = _no_retype
        """Gives columns of a small table other types, in the caller's turn; retyping.py sets it."""
        self.position = start.published
        # Everything starts now, and not with the first change.
        list(run_jobs(context, abs, [0] * self._parallel))
        warm_up(spark, state_schema((Field("id", "long"),), has_source=False))

    def follow(self, settings: Sections) -> None:
        """From the next publish on these settings hold."""
        pipeline, lake = settings.pipeline, settings.lake
        self.options = WriteOptions(lake.parquet_compression, lake.parquet_row_group_size)
        self._staging.options = self.options
        self.tables.follow(lake_rules(lake))
        self._limits = Limits(
            pipeline.batch_events_max,
            pipeline.batch_bytes_max,
            lake.transaction_wait_max_ms,
            lake.transaction_bytes_max,
        )

    def publish_next(self, to: Position) -> Published | Cut:
        """Publish the next cut before `to`; the cut itself when there is nothing in it that may be published yet."""
        with self.turns:
            return self._publish_next(to)

    def _publish_next(self, to: Position) -> Published | Cut:
        for _ in range(_TRIES_MAX + _RETYPES_MAX):
            started, steps = time.monotonic(), Steps()
            self.look_if_uncertain()
            self._is_uncertain = True
            with steps.timed("cut"):
                cut = self._next_cut(to)
            if not cut.slices:
                self._is_uncertain = False
                self.position = cut.end
                return cut
            staged: list[StagedTable] | None = None
            try:
                with self.in_flight.one():
                    cut = self._after_ddl(cut)
                    staged = self._staging.stage(cut, steps)
                    self._commit(cut, staged, steps)
            except WrongGuess as error:
                self._is_uncertain = False  # nothing was committed
                self._retype(error)
                continue
            except Inexact as error:
                logger.info("columns keep their types", extra={"position": cut.start, "reason": str(error)})
                continue
            except (OutcomeUnknown, Conflict) as error:
                if staged is None:
                    raise
                logger.warning("publish not confirmed", extra={"position": cut.start, "reason": error.message})
                continue
            self._is_uncertain = False
            self.position, self._place = cut.end, cut.next_place
            took_ms = round((time.monotonic() - started) * 1000)
            return Published(cut.end, [_report(part) for part in staged], took_ms, steps.times_ms, _memory_bytes())
        raise Unavailable(f"position {self.position} could not be published", hint="it is tried again")

    def _retype(self, error: WrongGuess) -> None:
        """Values contradict guessed types: these columns get other types, and the publish begins anew."""
        for name, types in error.types.items():
            logger.info("guessed types given up", extra={"table": name, "columns": types})
            self.retype_at_once(name, types)

    def _after_ddl(self, cut: Cut) -> Cut:
        """Do to the table what its source has done to its own; the cut that is left to publish."""
        (name, *_) = cut.tables
        if cut.ddl is None or not self.tables.rules.takes(name):
            return cut
        ddl, source = cut.ddl, self.tables.find(name)
        logger.info("table changed by its source", extra={"table": name, "action": ddl.action})
        match ddl.action:
            case "rename" if ddl.to is not None:
                now = self.tables.rename(name, plain_table_name(ddl.to))
                return replace(cut, tables=frozenset([now]), called=(name, now))
            case "rename_column" if source and ddl.column and ddl.to:
                self.tables.rename_column(source, ddl.column, ddl.to)
            case "drop_column" if source and ddl.column:
                self.tables.drop_column(source, ddl.column)
        return cut

    def look_if_uncertain(self) -> None:
        """Before anything is built on what we know; in the caller's turn."""
        if self._is_uncertain:
            self._look()

    def doubt(self) -> None:
        """Nobody can say what became of a commit: look before anything is built on it."""
        self._is_uncertain = True

    def _next_cut(self, to: Position) -> Cut:
        return next_cut(
            self._reader,
            self.position,
            to,
            self._limits,
            place=self._place,
            parallel=self._parallel,
            now_ms=time.time_ns() // 1_000_000,
        )

    def _look(self) -> None:
        """After anything but a plain success: the published row says how far we are, and the tables are loaded again.

        Files of a publish that did not happen stay for the upkeep: it may still happen, as long as it is under way.
        """
        row = self.http.published()
        if row["generation"] != self._start.generation:
            raise Replaced(f"generation {self._start.generation} was replaced by {row['generation']}")
        self.position, self._place = row["position"], None
        self.tables.forget()
        self._is_uncertain = False

    def _commit(self, cut: Cut, staged: list[StagedTable], steps: Steps) -> None:
        summary = {
            PUBLISHED_FROM: str(cut.start),
            PUBLISHED_TO: str(cut.end),
            GENERATION: str(self._start.generation),
        }
        if not staged:
            self.http.publish_nothing(cut.start, cut.end, self._start.generation)
            return
        with steps.timed("manifests"):
            changes = [change for part in staged for change in _changes(part)]
            commits = list(self._stagers.map(lambda change: self.iceberg.stage(change, summary), changes))
            sync_manifests(commits)
        with steps.timed("index"):
            self._stage_indexes(staged, commits)
        reach("before_publish")
        with steps.timed("commit"):
            self.iceberg.commit(commits)
        reach("published")
        with steps.timed("index"):
            for part in staged:
                if part.cleared_at is not None:
                    part.source.index.forsake()
                elif part.has_state:
                    with part.source.trusting_index() as key_index:
                        key_index.promote()
                        key_index.merge(rows_max=_MERGE_ROWS_MAX)
        with steps.timed("refresh"):
            list(self._stagers.map(self._refresh, staged))
        for part in staged:
            if part.cleared_at is not None:
                self.tables.forget(part.source.name)

    def _refresh(self, part: StagedTable) -> None:
        _apply(part)
        part.source.changes = self.iceberg.refresh(part.source.changes)
        if part.has_state:
            self.tables.refresh_state(part.source)

    def _stage_indexes(self, staged: list[StagedTable], commits: list[StagedCommit]) -> None:
        snapshots = {commit.name: commit.snapshot_id for commit in commits}
        for part in staged:
            if part.has_state and part.cleared_at is None:
                with part.source.trusting_index() as key_index:
                    key_index.stage(part.index_changes, snapshots[part.source.state.name])


def _no_retype(name: str, types: Mapping[str, str]) -> None:
    raise Unavailable(f"the columns {sorted(types)} of {name} cannot get other types yet", hint="it is tried again")


def _apply(part: StagedTable) -> None:
    """The publish is visible: remember the table's files as they are now."""
    part.source.deletes.apply(part.deletes)
    for file in part.merged_files:
        del part.source.files[file["file-path"]]
    part.source.files |= {file["file-path"]: brief(file) for file in part.state_files}
    if part.replaced_changes:
        part.source.changes_files.clear()
    part.source.changes_files |= {file["file-path"]: brief(file) for file in part.changes_files}
    part.source.rebuild = None


def _changes(part: StagedTable) -> list[TableChange]:
    """The commits of a source table: its changes always, its state where that changes."""
    properties = {} if part.cleared_at is None else {CLEARED: str(part.cleared_at)}
    properties |= _decided(part)
    changes = [
        TableChange(
            part.source.changes,
            add_rows=part.changes_files,
            remove_rows=part.replaced_changes,
            properties=properties,
        )
    ]
    if part.has_state:
        deletes = part.deletes
        changes.append(
            TableChange(
                part.source.state,
                add_rows=part.state_files,
                remove_rows=part.merged_files,
                add_deletes=list(deletes.add.values()),
                remove_deletes=deletes.remove,
                touched=list(deletes.add),
                properties=rescued_property(part.source.state.rescued, more=part.rescued_columns),
            )
        )
    return changes


def _decided(part: StagedTable) -> dict[str, str]:
    """Where columns of guessed types have their first values: the table of changes says so from now on."""
    guesses, schema = read_guesses(part.source.changes.guesses), part.source.changes.schema
    undecided = [name for name, has_values in guesses.items() if not has_values]
    found = with_values(schema, part.changes_files, undecided)
    return {GUESSES: guesses_text(guesses | dict.fromkeys(found, True))} if found else {}


def sync_manifests(commits: Iterable[StagedCommit]) -> None:
    """Iceberg's library does not sync what it writes, and the journal may forget these changes after the publish."""
    if not is_local():
        return  # what a store has said yes to is durable
    files: list[str] = []
    for commit in commits:
        path = path_of(commit.manifest_list)
        mark = path.stem.rpartition("-1-")[2]  # the library gives all files of a commit one uuid
        files += map(str, (*path.parent.glob(f"*{mark}*.avro"), path.parent))
        files += (f"{commit.location}/data", *commit.folders)
    store().sync(files)


def _report(part: StagedTable) -> TableReport:
    index = part.source.index
    return TableReport(
        table=part.source.name,
        changes=sum(file["record-count"] for file in part.changes_files),
        rows_written=sum(file["record-count"] for file in part.state_files),
        rows_deleted=len(part.index_changes.deletes.hi),
        files_written=len(part.files),
        bytes_written=sum(file["file-size-in-bytes"] for file in part.files),
        index_rows=index.row_count,
        index_bytes=sum(run.rows for run in index.view.manifest.runs) * ROW_SIZE,
        rescued=part.rescued_count,
    )


def _memory_bytes() -> int:
    """Of this process and all below it: Java and the Python workers."""
    process = psutil.Process()
    total = process.memory_info().rss
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total
