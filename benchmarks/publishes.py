"""Does a table's metadata stay small, and loading it fast, after as many publishes as two hours have?

Driven by `dolake bench publishes`. One table gets tiny batches as fast as they are published, each a publish of its
own, with upkeep as it is by default. Promise: server and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop
from rich.progress import Progress

from benchmarks.checks import condition
from benchmarks.hotkeys import TABLE, HotKeys
from benchmarks.jobs import jobs_of
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.stream import Json, Sender, ask, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_METADATA_BYTES = 2_000_000
FLOOR_LOAD_MS = 50.0
PACKAGES = ("pyspark", "pyarrow", "duckdb")
LOADS = 21
# A change is published at once, and while that is going on the next one waits: so each batch is a publish of its own.
SETTINGS = "freshness_target_ms = 1\n"


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    count: int = 3_600
    keys: int = 10
    look_every: int = 200
    """Publishes between two looks."""


def run_publishes_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("publishes", folder, PACKAGES)
        with (
            running_server(folder / "home", settings=SETTINGS, command=command) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            figures = runner.run(_measure(load, server, progress))
        return run.report(figures, _floors(load, figures), out)


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    yield at_least("publishes", figures["publishes"], load.count)
    for table, found in figures["at_end"].items():
        yield at_most(f"{table}: bytes of the metadata file", found["metadata_file_bytes"], FLOOR_METADATA_BYTES)
        yield at_most(f"{table}: load in ms", found["load_ms"], FLOOR_LOAD_MS)
    yield at_most("jobs that failed", figures["jobs"]["totals"]["jobsFailed"], 0)


async def _measure(load: Load, server: ChildServer, progress: Progress) -> Json:
    """Batch after batch, each sent when the one before is published."""
    hot, looks, times_s = HotKeys("bench", load.keys), list[Json](), list[float]()
    bar = progress.add_task("publishes", total=load.count, note="")
    async with Sender(server.url, "bench") as sender:
        for number in range(load.count):
            began = time.perf_counter()
            await sender.send(*hot.next())
            await sender.settle(is_published=True)
            times_s.append(time.perf_counter() - began)
            if number % load.look_every == 0:
                looks.append({"publishes": number + 1, **await asyncio.to_thread(_look, server)})
            progress.update(bar, completed=number + 1, note=f"{times_s[-1] * 1000:,.0f} ms")
    third = -(-len(times_s) // 3)
    return {
        "load": asdict(load),
        "publishes": len(times_s),
        "publish_p50_ms": {
            "first_third": round(float(np.median(times_s[:third])) * 1000, 1),
            "last_third": round(float(np.median(times_s[-third:])) * 1000, 1),
        },
        "looks": looks,
        "at_end": await asyncio.to_thread(_look, server),
        "jobs": await asyncio.to_thread(jobs_of, server),
    }


def _look(server: ChildServer) -> Json:
    return {
        table: {**condition(server, table), "load_ms": _load_ms(server, table)}
        for table in (TABLE, f"{TABLE}__changes")
    }


def _load_ms(server: ChildServer, table: str) -> float:
    """The median of some loads, with the time to read the answer as JSON."""
    times_ms = []
    for _ in range(LOADS):
        began = time.perf_counter()
        ask(server, f"/v1/namespaces/default/tables/{table}")
        times_ms.append((time.perf_counter() - began) * 1000)
    return round(median(times_ms), 2)
