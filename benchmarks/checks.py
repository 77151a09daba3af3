"""The condition of tables while a stream runs: files, metadata, and read times beside a clean copy, again and again.

From hotkeys.py and soak.py; a thread of its own, as steady.py's observers are. At each check it looks at all tables,
and reads one source's state and changes: as they are, and once more right after the next job of upkeep that ends.
Promise: whatever goes wrong is raised by `check`, and the thread ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from benchmarks.clean import CleanCopies, Duck, Engine, Spark, compare_reads
from benchmarks.engines import spark_on
from benchmarks.jobs import ended_jobs
from benchmarks.stream import Json, ask
from dolake.cli.child import ChildServer
from dolake.storage.local import path_of
from dolake.tables.layout import CHANGES_SUFFIX
from tools.duckdb_client import duck_on

AT_CHECK, AFTER_JOB = "at a check", "after a job"
_POLL_S = 0.05
_WARM_UPS = 5
_START_TIME_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is looked at, and how often."""

    sources: Sequence[str]
    column: str
    """Of each table; what engines add up."""
    every_s: float = 30.0
    has_upkeep: bool = True
    spark_scratch: Path | None = None
    """Where a Spark that reads, too, may write."""


@dataclass(slots=True)
class Checker:
    """See the module."""

    server: ChildServer
    plan: Plan
    looks: list[Json] = field(default_factory=list)
    """The condition of every table at each check."""
    reads: list[Json] = field(default_factory=list)
    _is_ready: threading.Event = field(default_factory=threading.Event)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: Exception | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="checker", daemon=True)
        self._thread.start()
        self._is_ready.wait(_START_TIME_MAX_S)

    def check(self) -> None:
        if self._error:
            raise self._error

    def end(self) -> None:
        self._is_over.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                self._check_until_over(stack)
        except Exception as error:
            self._error = error
        finally:
            self._is_ready.set()

    def _check_until_over(self, stack: ExitStack) -> None:
        duck = stack.enter_context(duck_on(self.server.url))
        # The copy stays as it is between two reads, ours does not: what DuckDB keeps of files must not count.
        duck.execute("SET enable_external_file_cache = false")
        engines: list[Engine] = [Duck(duck)]
        if self.plan.spark_scratch:
            session, _ = stack.enter_context(spark_on(self.server.url, self.plan.spark_scratch))
            engines.append(Spark(session))
            for _ in range(_WARM_UPS):
                for table in _tables(self.plan.sources):
                    engines[-1].read(f"default.{table}", self.plan.column)
        copies, sources = CleanCopies(self.server, duck), cycle(self.plan.sources)
        began_s = due_s = time.monotonic()
        self._is_ready.set()
        while not self._is_over.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self.plan.every_s, time.monotonic())
            at_s = round(time.monotonic() - began_s, 1)
            self.looks += [{"at_s": at_s, **condition(self.server, table)} for table in _tables(self.plan.sources)]
            self._read(next(sources), engines, copies, began_s, due_s)

    def _read(
        self, source: str, engines: Sequence[Engine], copies: CleanCopies, began_s: float, until_s: float
    ) -> None:
        tables = _tables([source])
        for table in tables:
            copies.make(table)
        before = ended_jobs(self.server, source)
        self._compare(AT_CHECK, tables, engines, began_s)
        if self.plan.has_upkeep and self._wait_for_job(source, before, until_s):
            self._compare(AFTER_JOB, tables, engines, began_s)

    def _compare(self, when: str, tables: Sequence[str], engines: Sequence[Engine], began_s: float) -> None:
        for table in tables:
            if self._is_over.is_set():
                return  # nothing more is sent, so what we would see is not what we are after
            at_s = round(time.monotonic() - began_s, 1)
            found = compare_reads(engines, table, self.plan.column)
            self.reads.append({"at_s": at_s, "when": when, "table": table, **found})

    def _wait_for_job(self, source: str, before: set[str], until_s: float) -> bool:
        """Until a job of this source has ended that had not when we asked before; not beyond the next check."""
        while time.monotonic() < until_s and not self._is_over.wait(_POLL_S):
            if ended_jobs(self.server, source) - before:
                return True
        return False


def _tables(sources: Sequence[str]) -> list[str]:
    return [table for source in sources for table in (source, source + CHANGES_SUFFIX)]


def condition(server: ChildServer, table: str) -> Json:
    """Files that the table has now, and what lies in its folder."""
    loaded = ask(server, f"/v1/namespaces/default/tables/{table}")
    metadata = loaded["metadata"]
    current = next(each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
    folder = path_of(metadata["location"])
    data, described = _sizes(folder / "data"), _sizes(folder / "metadata")
    return {
        "table": table,
        "rows": int(current["summary"]["total-records"]) - int(current["summary"]["total-position-deletes"]),
        "data_files": int(current["summary"]["total-data-files"]),
        "delete_files": int(current["summary"]["total-delete-files"]),
        "manifests": len(list(read_manifest_list(PyArrowFileIO().new_input(current["manifest-list"])))),
        "snapshots": len(metadata["snapshots"]),
        "metadata_file_bytes": _size(path_of(loaded["metadata-location"])),
        "metadata_folder_bytes": sum(described),
        "files_on_disk": len(data) + len(described),
        "bytes_on_disk": sum(data) + sum(described),
    }


def _sizes(folder: Path) -> list[int]:
    return [_size(path) for path in folder.glob("*")]


def _size(path: Path) -> int:
    """Nothing, where somebody was faster and removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
