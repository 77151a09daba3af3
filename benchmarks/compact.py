"""What does it cost to make few large files of 1,000 small ones, a fifth of their rows deleted, while updates go on?

Driven by `dolake bench compact`. Ours is a job of a real server (`POST /v1/compaction/run`); beside it Spark's own
`rewrite_data_files` works on a copy of the same rows in the same catalog, in as many files with as many deletes, while
MERGE statements update that copy (rewriting.py), and once without those, to know what it costs. One after the other, so
that neither slows the other. Promise: servers, Java and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from pyspark.sql import SparkSession
from rich.progress import Progress

from benchmarks.checks import condition
from benchmarks.engines import spark_on
from benchmarks.jobs import run_job
from benchmarks.load import LoadError
from benchmarks.machine import Run, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.meter import Meter
from benchmarks.rewriting import Rewriter
from benchmarks.stream import KEY_FIRST, Json, Sender, Template, ask, running_server
from benchmarks.upsert import changes_of
from dolake.cli.child import COMMAND, ChildServer
from tools.duckdb_client import duck_on

FLOOR_WAIT_MS = 1_000
PACKAGES = ("pyspark", "pyarrow", "duckdb")
TABLE = "orders"
DELETED_EVERY = 5
"""Each fifth row of every file is deleted."""
HEAP_GIB = 2
_FILES_A_PUBLISH = 8
_SEND_EVENTS = 1_000
_UPDATE_EVENTS = 200
_TEMPLATES = 8
# Nothing is published but when the benchmark asks for it, and nothing compacted.
QUIET = """\
flush_threshold_events = 1_000_000_000
flush_threshold_bytes = 1_000_000_000_000
flush_threshold_ms = 3_600_000
flush_interval_ms = 3_600_000
freshness_target_ms = 3_600_000
[compaction]
auto_compact = false
[pipeline]
spark_master = "local[8]"
batch_events_max = 1_000_000
batch_bytes_max = 1_000_000_000
"""
SETTINGS = "[compaction]\nauto_compact = false\n"
# While the files are made, publishes do not merge them, and write as many at once as there are slices.
_WITHOUT_MERGES = """\
from dolake.pipeline import cut
from dolake.tables.maintenance import files_to_merge
cut._SLICE_EVENTS_MIN = {rows}
files_to_merge.__kwdefaults__["files_min"] = 1_000_000_000
"""


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    files: int = 1_000
    rows_per_file: int = 2_000
    rate_events_s: int = 2_000
    baseline_s: float = 20.0
    """Updates alone, to know what they cost."""
    tries: int = 3
    """How often Spark may try while updates go on."""

    @property
    def rows(self) -> int:
        return self.files * self.rows_per_file


def run_compact_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("compact", folder, PACKAGES)
        _make_files(load, folder, progress, command)
        with running_server(folder / "home", settings=SETTINGS, command=command) as server:
            figures = _measure(load, server, folder, progress)
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    ours, theirs = figures["ours"], figures["spark"]["undisturbed"]
    yield at_most("pieces of ours that did not land", ours["pieces"] - ours["landed"], 0)
    yield at_most("longest wait of a publish, ms", ours["publish_waited_max_ms"], FLOOR_WAIT_MS)
    yield at_most("CPU s per MB, beside Spark's", ours["cpu_s_per_mb"], theirs["cpu_s_per_mb"])
    yield at_most("live files after ours, beside before", ours["after"]["data_files"], ours["before"]["data_files"] / 2)
    yield at_most("lakes with a wrong row", 2 - sum(figures["right"].values()), 0)


def _measure(load: Load, server: ChildServer, folder: Path, progress: Progress) -> Json:
    with spark_on(server.url, folder / "spark") as (spark, java):
        rewriter = Rewriter(spark, Meter(java, root="java"), folder, load.rows, load.rate_events_s)
        figures = {"load": {**asdict(load), "rows": load.rows}, "heap_gib": HEAP_GIB}
        bar = progress.add_task("ours, updates going on", total=1, note="")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures["ours"] = runner.run(_compact(load, server))
        progress.advance(bar)
        right = {"ours": _is_right(server, spark, load)}
        bar = progress.add_task("Spark's", total=load.tries + 1, note="")
        tries = []
        for number in range(load.tries + 1):
            rewriter.copy(server.home / "all.parquet", load.files, DELETED_EVERY)
            is_last = number == load.tries
            tries.append(rewriter.rewrite() if is_last else rewriter.rewrite_beside_updates())
            progress.advance(bar)
        *beside, undisturbed = tries
        figures["spark"] = {
            "tries": beside,
            "landed": sum(each["error"] is None for each in beside),
            "conflicts": sum(each["error"] is not None for each in beside),
            "merges_failed": sum(each["merges_failed"] for each in beside),
            "undisturbed": undisturbed,
        }
        right["spark"] = rewriter.row_count() == load.rows - load.rows // DELETED_EVERY
    return {**figures, "right": right}


# --- ours ------------------------------------------------------------------------------------------------------------


def _make_files(load: Load, folder: Path, progress: Progress, command: Sequence[str]) -> None:
    """A home whose table has so many files and deletes, written by the pipeline itself."""
    patch = folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(_WITHOUT_MERGES.format(rows=load.rows_per_file))
    patched = ("env", f"PYTHONPATH={patch}", *command)
    with (
        running_server(folder / "home", settings=QUIET, command=patched) as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_insert(load, server, progress))
        with duck_on(server.url) as duck:
            # Spark's copy is made of these rows later, when ours have lost a fifth of them.
            rows = f"SELECT * EXCLUDE (_key, _rescued) FROM lake.default.{TABLE}"  # noqa: S608 - our own name
            duck.execute(f"COPY ({rows}) TO '{server.home / 'all.parquet'}'")
        runner.run(_delete(load, server, progress))
    (folder / "home" / "dolake.toml").unlink()


async def _insert(load: Load, server: ChildServer, progress: Progress) -> None:
    bar = progress.add_task("small files", total=load.rows, note="")
    size = min(_SEND_EVENTS, load.rows_per_file)
    templates = [Template("load", changes_of("INSERT", TABLE, size, seed)) for seed in range(_TEMPLATES)]
    async with Sender(server.url, "load") as sender:
        for first in range(0, load.rows, load.rows_per_file * _FILES_A_PUBLISH):
            end = min(load.rows, first + load.rows_per_file * _FILES_A_PUBLISH)
            for start in range(first, end, size):
                keys = KEY_FIRST + np.arange(start, min(start + size, end))
                await sender.send(templates[start // size % _TEMPLATES], keys)
            await _flush(sender, server)
            progress.update(bar, completed=end)


async def _delete(load: Load, server: ChildServer, progress: Progress) -> None:
    bar = progress.add_task("deletes", total=1, note="")
    keys = KEY_FIRST + np.arange(0, load.rows, DELETED_EVERY)
    template = Template("deletes", [{**change, "operation": "DELETE"} for change in _heads(_UPDATE_EVENTS)])
    async with Sender(server.url, "deletes") as sender:
        for start in range(0, len(keys), _UPDATE_EVENTS):
            await sender.send(template, keys[start : start + _UPDATE_EVENTS])
        await _flush(sender, server)
    progress.advance(bar)


def _heads(count: int) -> list[Json]:
    return [{key: change[key] for key in ("table", "rowId")} for change in changes_of("INSERT", TABLE, count)]


async def _flush(sender: Sender, server: ChildServer) -> None:
    await sender.settle()
    await asyncio.to_thread(ask, server, "/flush", "POST", timeout_s=600)
    await sender.settle(is_published=True)


async def _compact(load: Load, server: ChildServer) -> Json:
    """Updates alone for a while, then with the job."""
    is_over = asyncio.Event()
    meter = Meter(server.pid)
    before = await asyncio.to_thread(condition, server, TABLE)
    async with Sender(server.url, "updates") as sender, asyncio.TaskGroup() as tasks:
        tasks.create_task(_update(load, sender, is_over))
        try:
            with meter.watching():
                await asyncio.sleep(load.baseline_s / 4)  # Java gets warm
                meter.restart()
                await asyncio.sleep(load.baseline_s)
                baseline = _of_server(meter) / meter.seconds
                meter.restart()
                sent = sender.sent
                job = await asyncio.to_thread(run_job, server, table=TABLE)
                seconds, cpu_s, updates = meter.seconds, _of_server(meter), sender.sent - sent
        finally:
            is_over.set()
    if not job["bytesBefore"]:
        raise LoadError(f"the job has compacted nothing: {job}")
    mb = job["bytesBefore"] / 1e6
    net_s = max(0.0, cpu_s - baseline * seconds)
    return {
        "job": job,
        "pieces": max(job["piecesTotal"], job["piecesDone"]),
        "landed": job["piecesDone"],
        "wall_s": round(seconds, 2),
        "input_mb": round(mb, 1),
        "cpu_s": round(cpu_s, 2),
        "cpu_s_of_updates_alone": round(baseline * seconds, 2),
        "cpu_s_per_mb": round(net_s / mb, 4),
        "updates_per_s": round(updates / seconds),
        "publish_waited_max_ms": job["waitedMs"],
        "before": before,
        "after": await asyncio.to_thread(condition, server, TABLE),
    }


def _of_server(meter: Meter) -> float:
    return sum(used for kind, used in meter.cpu_s().items() if kind != "client")


async def _update(load: Load, sender: Sender, is_over: asyncio.Event) -> None:
    """Updates at random among the rows that are left, until it is over; then until they are published."""
    chance = np.random.default_rng(1)
    living = KEY_FIRST + np.flatnonzero(np.arange(load.rows) % DELETED_EVERY)
    templates = [Template("updates", changes_of("UPDATE", TABLE, _UPDATE_EVENTS, seed)) for seed in range(_TEMPLATES)]
    due, number = time.perf_counter(), 0
    while not is_over.is_set():
        await asyncio.sleep(due - time.perf_counter())
        due += _UPDATE_EVENTS / load.rate_events_s
        number += 1
        await sender.send(templates[number % _TEMPLATES], chance.choice(living, _UPDATE_EVENTS, replace=False))
    await sender.settle(is_published=True)


def _is_right(server: ChildServer, spark: SparkSession, load: Load) -> bool:
    """Whether every row that should be left is there once, for DuckDB and for Spark."""
    living = KEY_FIRST + np.flatnonzero(np.arange(load.rows) % DELETED_EVERY)
    wanted = len(living), int(living.sum())
    query = f"SELECT count(*), sum(id) FROM lake.default.{TABLE}"  # noqa: S608 - our own name
    with duck_on(server.url) as duck:
        found = duck.execute(query).fetchone()
    return found == wanted and tuple(spark.sql(query).first() or ()) == wanted
