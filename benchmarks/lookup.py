"""How long does a row by its key take, quiet and beside 20,000 changes a second, and how long the same by SQL?

Driven by `dolake bench lookup`. A real server with its pipeline, as it is by default. One table is filled; then
a process of its own (probe.py) asks over one connection for random rows, by `GET .../rows/{key}` and then by
`SELECT * ... WHERE _key = ?`: first while nothing happens, then while a shop sends changes that are published all the
time. Promise: every answer is checked; server and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from rich.progress import Progress

from benchmarks.asking import Asker
from benchmarks.load import LoadError
from benchmarks.machine import Run, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.meter import Meter
from benchmarks.shop import COLUMNS, Shop
from benchmarks.stream import KEY_FIRST, Json, Sender, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_P50_MS = 5.0
FLOOR_P99_MS = 25.0
TABLE = "orders"
PACKAGES = ("pyspark", "pyarrow", "duckdb")
_LAG_MAX_S = 60
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    rows: int = 5_000_000
    seconds: float = 30.0
    quiet_s: float = 10.0
    warm_up_s: float = 5.0
    rate_events_s: int = 20_000
    batch_events: int = 200
    load_batch_events: int = 2_000
    pause_ms: float = 5.0
    """Between two look-ups."""
    sql_s: float = 10.0
    """How long the same is asked by SQL, in each phase."""


def run_lookup_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("lookup", folder, PACKAGES)
        with (
            running_server(folder / "home", command=command) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            meter = Meter(server.pid)
            with meter.watching():
                figures = runner.run(_Lookups(load, server, meter, progress).run())
        return run.report({"load": {**asdict(load), "columns": COLUMNS}, **figures}, _floors(load, figures), out)


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    for name, what in (("quiet", "quiet"), ("stream", f"{load.rate_events_s:,} changes/s")):
        found = figures[name]["lookup"]["ms"]
        yield at_most(f"{load.rows:,} rows, {what}: look-up, p50 ms", found["p50"], FLOOR_P50_MS)
        yield at_most(f"{load.rows:,} rows, {what}: look-up, p99 ms", found["p99"], FLOOR_P99_MS)
    wrong = sum(figures[name][how]["wrong"] for name in ("quiet", "stream") for how in ("lookup", "select"))
    yield at_most("wrong answers", wrong, 0)


class _Lookups:
    def __init__(self, load: Load, server: ChildServer, meter: Meter, progress: Progress) -> None:
        self._load, self._server, self._meter, self._progress = load, server, meter, progress

    async def run(self) -> Json:
        load = self._load
        lag_max = max(load.rate_events_s * _LAG_MAX_S, 400_000)
        async with Sender(self._server.url, "bench", lag_max_events=lag_max) as sender:
            loaded_s = await self._fill(sender)
            with await asyncio.to_thread(lambda: Asker(self._server).__enter__()):
                pass  # the query process answers
            quiet = {"lookup": await self._probe(load.quiet_s), "select": await self._probe(load.sql_s, is_sql=True)}
            shop = Shop("bench", batch_events=load.batch_events, seed=2, tables=(TABLE,))
            shop.begin_behind(KEY_FIRST + load.rows, {TABLE: load.rows})
            await self._send_for(sender, shop, load.warm_up_s)
            self._meter.restart()
            sent, published = sender.sent, sender.published
            probing = asyncio.create_task(self._probe(load.seconds))
            await self._send_for(sender, shop, load.seconds)
            looked = await probing
            seconds, cpu_s = self._meter.seconds, self._meter.cpu_s()
            stream: Json = {
                "lookup": looked,
                "events_per_s": round((sender.sent - sent) / seconds),
                "published_events_per_s": round((sender.published - published) / seconds),
                "cpu_s": cpu_s,
                "cores": round(sum(cpu_s.values()) / seconds, 2),
            }
            probing = asyncio.create_task(self._probe(load.sql_s, is_sql=True))
            await self._send_for(sender, shop, load.sql_s)
            stream["select"] = await probing
            await sender.settle()
        return {"loaded_s": round(loaded_s, 1), "quiet": quiet, "stream": stream}

    async def _fill(self, sender: Sender) -> float:
        shop = Shop("bench", batch_events=self._load.load_batch_events, tables=(TABLE,))
        bar = self._progress.add_task("rows", total=self._load.rows, note="")
        began, sent = time.perf_counter(), 0
        while sent < self._load.rows:
            await sender.send(*shop.next_inserts())
            sent += self._load.load_batch_events
            self._progress.update(bar, completed=sent)
        await sender.settle(is_published=True)
        return time.perf_counter() - began

    async def _send_for(self, sender: Sender, shop: Shop, seconds: float) -> None:
        bar = self._progress.add_task(f"{self._load.rate_events_s:,} changes/s", total=seconds, note="")
        pace_s = self._load.batch_events / self._load.rate_events_s
        began = due = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            await asyncio.sleep(max(0.0, due - now))
            due += pace_s
            await sender.send(*shop.next())
            self._progress.update(bar, completed=time.perf_counter() - began)

    async def _probe(self, seconds: float, *, is_sql: bool = False) -> Json:
        """In a process of its own: who sends 20,000 changes a second has no time to look at the clock."""
        load = self._load
        asked = {
            "url": self._server.url,
            "table": TABLE,
            "first": KEY_FIRST,
            "rows": load.rows,
            "seconds": seconds,
            "pause_ms": load.pause_ms,
            "is_sql": is_sql,
        }
        command = [sys.executable, "-m", "benchmarks.probe"]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT
        )
        found, said = await process.communicate(json.dumps(asked).encode())
        if process.returncode:
            raise LoadError(f"the probe failed: {said.decode(errors='replace')[-2000:]}")
        report: Json = json.loads(found)
        return report
