"""How many changes a second go the whole way, from a client to published state and changes tables, for minutes?

Driven by `dolake bench pipeline`. A real server with its pipeline in child processes; this process is a shop that sends
as fast as is published: it waits while more than so many changes are on their way, so the rate that it reaches is
sustained and no backlog hides behind it. At the end DuckDB reads the tables, and they must equal the shop's books.
Promise: server and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from rich.progress import Progress

from benchmarks.books import compare_books
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter, memory_of, memory_over_time
from benchmarks.shop import COLUMNS, TABLES, Shop
from benchmarks.stream import BATCH_EVENTS, Json, Sender, ask, key_index_of, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_EVENTS_S = 60_000
FLOOR_MEMORY_RATIO = 1.15
PACKAGES = ("pyspark", "pyarrow", "duckdb")
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """How much, and how hard. The smoke test makes all of it small."""

    seconds: float = 180.0
    warm_up_s: float = 30.0
    lag_max_events: int = 200_000
    batch_events: int = BATCH_EVENTS
    settings: str = ""
    """More lines for the server's dolake.toml."""


def run_pipeline_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("pipeline", folder, PACKAGES)
        with running_server(folder / "home", settings=load.settings, command=command) as server:
            figures = _measure(load, server, progress)
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    yield at_least("published events/s", figures["throughput"]["events_per_s"], FLOOR_EVENTS_S)
    for kind, found in figures["memory_mb"].items():
        if kind == "client":  # its books grow with the tables
            continue
        yield at_most(f"own memory of {kind}, last / first part", found["ratio"], FLOOR_MEMORY_RATIO)
    wrong = sum(not book["right"] for book in figures["books"].values())
    yield at_most("tables that differ from the books", wrong, 0)


def _measure(load: Load, server: ChildServer, progress: Progress) -> Json:
    shop, publishes = Shop("bench", batch_events=load.batch_events), Publishes()
    meter = Meter(server.pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, meter.watching():
        figures = runner.run(_stream(load, server, shop, meter, publishes, progress))
    return {
        "load": {**asdict(load), "columns": COLUMNS, "tables": len(TABLES)},
        "throughput": figures,
        "cpu_s_per_million_events": {
            kind: round(used / figures["events"] * 1e6, 2) for kind, used in figures["cpu_s"].items()
        },
        "memory_mb": memory_of(meter, figures["seconds"]),
        "own_memory_over_time_mb": memory_over_time(meter, figures["seconds"]),
        "publishes": publishes.report(),
        "key_index": key_index_of(server),
        "books": compare_books(server, shop),
    }


async def _stream(
    load: Load, server: ChildServer, shop: Shop, meter: Meter, publishes: Publishes, progress: Progress
) -> Json:
    """Send for so long after a warm-up; what is counted is what was published between the two."""
    bar = progress.add_task("client to tables", total=load.seconds, note="")
    async with Sender(server.url, "bench", lag_max_events=load.lag_max_events) as sender:
        is_over = asyncio.Event()

        async def send() -> None:
            while not is_over.is_set():
                await sender.send(*shop.next())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            try:
                await _until_published(sender, load.warm_up_s)
                meter.restart()
                first, held_s = sender.published, sender.held_s
                while (passed := meter.seconds) < load.seconds:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    publishes.note(await asyncio.to_thread(ask, server, "/status"))
                    rate = (sender.published - first) / max(passed, 0.1)
                    progress.update(bar, completed=passed, note=f"{rate:,.0f} events/s")
                seconds, events, cpu_s = meter.seconds, sender.published - first, meter.cpu_s()
                lag, held_s = sender.sent - sender.published, sender.held_s - held_s
            finally:
                is_over.set()
        await sender.settle(is_published=True)
    return {
        "seconds": round(seconds, 2),
        "events": events,
        "events_per_s": round(events / seconds),
        "cpu_s": cpu_s,
        "cores": round(sum(cpu_s.values()) / seconds, 2),
        "sender_waited_s": round(held_s, 2),
        "lag_events_at_end": lag,
        "events_in_all": sender.sent,
    }


async def _until_published(sender: Sender, warm_up_s: float) -> None:
    """Until the tables exist, Java is warm, and the wait is over."""
    began = time.monotonic()
    while time.monotonic() - began < warm_up_s or not sender.published:  # noqa: ASYNC110 - a count has no event
        await asyncio.sleep(_LOOK_EVERY_S)


@dataclass(slots=True)
class Publishes:
    """What the server's status said of each publish; those that ended between two looks are counted, not described."""

    took_ms: list[int] = field(default_factory=list)
    steps_ms: list[dict[str, int]] = field(default_factory=list)
    _position: int = -1

    def note(self, status: Json) -> None:
        found = status["pipeline"]["lastPublish"]
        if found and found["position"] != self._position:
            self._position = found["position"]
            self.took_ms.append(found["tookMs"])
            self.steps_ms.append(found["stepsMs"])

    def report(self) -> Json:
        """Means, also of the first and the last third: the difference shows what grows with the tables."""
        third = -(-len(self.took_ms) // 3)
        return {
            "seen": len(self.took_ms),
            "mean_ms": round(sum(self.took_ms) / max(1, len(self.took_ms))),
            "mean_steps_ms": _means(self.steps_ms),
            "first_third_steps_ms": _means(self.steps_ms[:third]),
            "last_third_steps_ms": _means(self.steps_ms[-third:]),
        }


def _means(found: list[dict[str, int]]) -> dict[str, int]:
    steps = sorted({step for each in found for step in each})
    return {step: round(sum(each.get(step, 0) for each in found) / len(found)) for step in steps}
