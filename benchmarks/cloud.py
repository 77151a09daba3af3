"""What does a lake lose when its tables are in a store that is far away? The same load on a folder and on S3.

Driven by `dolake bench cloud`. Each half is a real server with its pipeline and DuckDB as the reader; the store is
moto's server in a process of its own, with a delay before each request, also before those of the reader. In each half:
changes at a steady pace, for freshness and for how many requests a flush takes; then as many as fit, for throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.far_store import FarStore, Logged, far_store
from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter
from benchmarks.shop import TABLES, Shop
from benchmarks.steady import Pace, run_steadily
from benchmarks.stream import KEY_FIRST, Json, Sender, ask, running_server
from dolake.cli.child import COMMAND, ChildServer

REQUESTS_MAX = 12
"""For each Iceberg table and flush."""
LOCAL_TIMES_MAX, MORE_MAX_S = 2.0, 0.5
"""Freshness in the store: at most so many times the local one, and so much more."""
PACKAGES = ("pyspark", "pyarrow", "duckdb", "botocore", "moto")
_BURST_BATCH_EVENTS = 1_000
_BURST_KEY_FIRST = 2 * KEY_FIRST
_ICEBERG_TABLES = 2
"""Of each source table: its state and its changes."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    seconds: float = 60.0
    warm_up_s: float = 15.0
    rate_events_s: int = 2_000
    batch_events: int = 100
    burst_events: int = 200_000
    delay_ms: int = 20


def run_cloud_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure both, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("cloud", folder, PACKAGES)
        figures: Json = {"load": asdict(load)}
        figures["local"] = _measure(load, folder / "local", None, progress, command)
        with far_store(load.delay_ms) as store:
            figures["store"] = _measure(load, folder / "store", store, progress, command)
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    local, far = figures["local"], figures["store"]
    yield at_most("requests per table and flush", far["requests"]["per_table_and_flush"], REQUESTS_MAX)
    bound_s = LOCAL_TIMES_MAX * local["ack_to_visible"]["p50_s"] + MORE_MAX_S
    yield at_most("ack to visible in the store: p50 s", far["ack_to_visible"]["p50_s"], round(bound_s, 3))


def _measure(load: Load, home: Path, store: FarStore | None, progress: Progress, command: Sequence[str]) -> Json:
    environ, prepare = (store.environ, store.secret_sql) if store else ({}, "")
    with running_server(home, command=command, environ=environ) as server:
        shop, meter = Shop("bench", batch_events=load.batch_events), Meter(server.pid)
        pace = Pace(load.rate_events_s, load.batch_events, load.seconds, load.warm_up_s)
        counting = _Requests(server, store)
        figures = run_steadily(server, shop, pace, meter, progress, [counting], prepare_duck=prepare)
        figures |= {"flushes": counting.flushes}
        if store:
            figures["requests"] = _requests(counting.log, counting.flushes)
        return figures | {"burst": asyncio.run(_burst(load, server)), "memory_mb": meter.memory_mb()}


class _Requests:
    """Counts what the store is asked while it counts; an observer of steady.py."""

    def __init__(self, server: ChildServer, store: FarStore | None) -> None:
        self._server, self._store = server, store
        self.log: list[Logged] = []
        self.flushes = 0

    def start(self) -> None:
        if self._store:
            self._store.take_log()
        self.flushes = -_flush_count(self._server)

    def check(self) -> None:
        pass

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.flushes += _flush_count(self._server)
            self.log = self._store.take_log() if self._store else []


def _flush_count(server: ChildServer) -> int:
    return int(ask(server, "/v1/write-stats")["publish"]["count"])


def _requests(log: list[Logged], flushes: int) -> Json:
    """By method and by what is asked for; upkeep's are among them."""
    methods = Counter(method for method, _, _ in log)
    kinds = Counter(path.partition("?")[0].rpartition(".")[2][:12] for _, path, _ in log)
    per_table = len(log) / max(1, flushes * len(TABLES) * _ICEBERG_TABLES)
    return {
        "all": len(log),
        "per_table_and_flush": round(per_table, 2),
        "by_method": dict(methods),
        "by_kind": dict(kinds.most_common(6)),
    }


async def _burst(load: Load, server: ChildServer) -> Json:
    """As fast as the server takes them, until all of it is in the tables; from another source, with keys of its own."""
    shop = Shop("burst", batch_events=_BURST_BATCH_EVENTS)
    shop.begin_behind(_BURST_KEY_FIRST, dict.fromkeys(TABLES, 0))
    async with Sender(server.url, "burst") as sender:
        began, sent = time.perf_counter(), 0
        while sent < load.burst_events:
            template, keys = shop.next()
            await sender.send(template, keys)
            sent += len(template)
        await sender.settle()
        acked_s = time.perf_counter() - began
        await sender.settle(is_published=True)
        seconds = time.perf_counter() - began
    return {
        "events": sent,
        "acked_events_per_s": round(sent / acked_s),
        "published_events_per_s": round(sent / seconds),
    }
