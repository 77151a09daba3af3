"""How long after its acknowledgement does another engine see a change, while changes come at a steady pace?

Driven by `dolake bench freshness`. A real server with its pipeline in child processes; this process is a shop that
sends a batch every few milliseconds (steady.py), while DuckDB asks for the newest rows. Promise: server and home are
gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter
from benchmarks.shop import COLUMNS, TABLES, Shop
from benchmarks.steady import Pace, run_steadily
from benchmarks.stream import Json, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_P50_S = 2.5
FLOOR_P99_S = 6.0
PACKAGES = ("pyspark", "pyarrow", "duckdb")


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    seconds: float = 60.0
    warm_up_s: float = 10.0
    rate_events_s: int = 5_000
    batch_events: int = 100


def run_freshness_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("freshness", folder, PACKAGES)
        with running_server(folder / "home", command=command) as server:
            figures = _measure(load, server, progress)
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    yield at_most("ack to visible: p50 s", figures["ack_to_visible"]["p50_s"], FLOOR_P50_S)
    yield at_most("ack to visible: p99 s", figures["ack_to_visible"]["p99_s"], FLOOR_P99_S)


def _measure(load: Load, server: ChildServer, progress: Progress) -> Json:
    shop, meter = Shop("bench", batch_events=load.batch_events), Meter(server.pid)
    pace = Pace(load.rate_events_s, load.batch_events, load.seconds, load.warm_up_s)
    figures = run_steadily(server, shop, pace, meter, progress)
    return {
        "load": {**asdict(load), "columns": COLUMNS, "tables": len(TABLES)},
        **figures,
        "memory_mb": meter.memory_mb(),
    }
