"""How soon after its acknowledgement does our own SQL show a change, and what do tiny batches cost until it does?

Driven by `dolake bench live`. A real server with its pipeline, as it is by default. First a shop sends 20,000 changes a
second, which are published all the time; among them, on a connection of its own, a probe sends a row, and asks
`POST /v1/query` for it from the moment of the acknowledgement. Then ducklake.py compares tiny batches and changes of a
large table with DuckLake. Promise: server and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.progress import Progress

from benchmarks.asking import Asker
from benchmarks.ducklake import TINY_ROWS, DuckLake, Lake, Ours, compare_changes, compare_tiny_batches
from benchmarks.load import LoadError
from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter
from benchmarks.pipeline import Publishes
from benchmarks.shop import COLUMNS, TABLES, Shop
from benchmarks.stream import KEY, Json, Sender, Template, ask, running_server
from benchmarks.workload import DELETES, UPDATES
from dolake.cli.child import COMMAND, ChildServer
from dolake.client import connect

FLOOR_P50_MS = 50.0
FLOOR_P99_MS = 250.0
FLOOR_TINY_S = 3.0
FLOOR_TINY_COMMITS = 20
FLOOR_AGGREGATES_S = 0.10
FLOOR_CHANGES_P95_MS = 50.0
PACKAGES = ("pyspark", "pyarrow", "duckdb", "duckdb-extension-ducklake", "sqlglot")
PROBE_FIRST = 9_000_000_000
"""Keys of the probe's rows; those of the shop are lower."""
_LAG_MAX_S = 60
_LOOK_EVERY_S = 0.1
_SEEN_TIME_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small; 0 rows or tiny batches leave a part out."""

    seconds: float = 30.0
    warm_up_s: float = 5.0
    rate_events_s: int = 20_000
    batch_events: int = 200
    probe_every_s: float = 0.05
    tiny_batches: int = 1_000
    rounds: int = 3
    rows: int = 1_000_000
    batches: int = 100


def run_live_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("live", folder, PACKAGES)
        with (
            running_server(folder / "home", command=command) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            meter = Meter(server.pid)
            with meter.watching():
                figures = {
                    "load": {**asdict(load), "columns": COLUMNS, "tables": len(TABLES)},
                    "stream": _Stream(load, server, meter, progress).run(runner),
                    **_beside_ducklake(load, server, runner, folder, meter, progress),
                }
        return run.report(figures, _floors(load, figures), out)


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    stream = figures["stream"]
    rate = f"{load.rate_events_s:,} events/s"
    yield at_most(f"{rate}: ack to visible in our SQL, p50 ms", stream["ack_to_visible_ms"]["p50"], FLOOR_P50_MS)
    yield at_most(f"{rate}: ack to visible in our SQL, p99 ms", stream["ack_to_visible_ms"]["p99"], FLOOR_P99_MS)
    wrong = sum(not book["right"] for book in stream["books"].values())
    yield at_most("tables that differ from what was sent", wrong, 0)
    if tiny := figures["tiny"]:
        ours, name = tiny["dolake"], f"{load.tiny_batches:,} batches of {TINY_ROWS} rows"
        yield at_most(f"{name} acked and queryable: s", ours["wall_s"], FLOOR_TINY_S)
        yield at_most(f"{name}: Iceberg commits", ours["commits"], FLOOR_TINY_COMMITS)
        yield at_most("nine aggregates right after: s", ours["aggregates_s"], FLOOR_AGGREGATES_S)
        yield at_most(f"{name}: wrong counts", ours["wrong"], 0)
    if changes := figures["changes"]:
        ours, name = changes["dolake"], f"{load.batches} batches of {UPDATES + DELETES:,} changes"
        yield at_most(f"{name}: ack to visible, p95 ms", ours["visible_after_ack_ms"]["p95"], FLOOR_CHANGES_P95_MS)
        yield at_most(f"{name}: wrong totals", ours["wrong"], 0)


def _beside_ducklake(
    load: Load, server: ChildServer, runner: asyncio.Runner, folder: Path, meter: Meter, progress: Progress
) -> dict[str, Json | None]:
    with ExitStack() as stack:
        client = connect(server.url, source="bench-live")
        runner.run(client.__aenter__())
        stack.callback(lambda: runner.run(client.__aexit__(None, None, None)))
        asker = stack.enter_context(Asker(server))
        theirs = DuckLake(folder / "ducklake")
        stack.callback(theirs.close)
        lakes: list[Lake] = [Ours(server, runner, client, asker), theirs]
        tiny, changes = None, None
        if load.tiny_batches:
            tiny = compare_tiny_batches(lakes, load.tiny_batches, load.rounds, meter, progress)
        if load.rows:
            changes = compare_changes(lakes, folder / "data", load.rows, load.batches, meter, progress)
    return {"tiny": tiny, "changes": changes}


# --- a stream, and a probe in it --------------------------------------------------------------------------------------


class _Stream:
    def __init__(self, load: Load, server: ChildServer, meter: Meter, progress: Progress) -> None:
        self._load, self._server, self._meter, self._progress = load, server, meter, progress
        self._shop = Shop("bench", batch_events=load.batch_events)
        self._publishes = Publishes()
        self._is_over = asyncio.Event()

    def run(self, runner: asyncio.Runner) -> Json:
        with Asker(self._server) as asker:
            figures = runner.run(self._measure(asker))
            return {**figures, "publishes": self._publishes.report(), "books": self._compare(asker)}

    async def _measure(self, asker: Asker) -> Json:
        load = self._load
        lag_max = load.rate_events_s * _LAG_MAX_S
        async with (
            Sender(self._server.url, "bench", lag_max_events=lag_max) as sender,
            Sender(self._server.url, "probe") as other,
        ):
            probe = Probe(other, asker, load.probe_every_s)
            await self._send_for(sender, 1.0, "tables")
            await sender.settle(is_published=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                tasks.create_task(probe.run(self._is_over))
                try:
                    await self._send_for(sender, load.warm_up_s, "warm-up")
                    self._meter.restart()
                    probe.forget()
                    sent, published, held_s = sender.sent, sender.published, sender.held_s
                    await self._send_for(sender, load.seconds, f"{load.rate_events_s:,} events/s", probe)
                    seconds, cpu_s = self._meter.seconds, self._meter.cpu_s()
                finally:
                    self._is_over.set()
            await sender.settle()
        return {
            **probe.report(),
            "seconds": round(seconds, 2),
            "events_per_s": round((sender.sent - sent) / seconds),
            "published_events_per_s": round((sender.published - published) / seconds),
            "sender_waited_s": round(sender.held_s - held_s, 2),
            "cpu_s": cpu_s,
            "cores": round(sum(cpu_s.values()) / seconds, 2),
            "memory_mb": self._meter.memory_mb(0, seconds),
        }

    async def _send_for(self, sender: Sender, seconds: float, what: str, probe: Probe | None = None) -> None:
        bar = self._progress.add_task(what, total=seconds, note="")
        pace_s = self._load.batch_events / self._load.rate_events_s
        began = due = time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            await asyncio.sleep(max(0.0, due - now))
            due += pace_s
            await sender.send(*self._shop.next())
            note = f"{probe.waits_s[-1] * 1000:,.0f} ms" if probe and probe.waits_s else ""
            self._progress.update(bar, completed=time.perf_counter() - began, note=note)

    async def _watch(self) -> None:
        while not self._is_over.is_set():
            self._publishes.note(await asyncio.to_thread(ask, self._server, "/status"))
            await asyncio.sleep(_LOOK_EVERY_S)

    def _compare(self, asker: Asker) -> dict[str, Json]:
        """Count and sum of keys of each table in our SQL, published or not, beside the shop's books."""
        books: dict[str, Json] = {}
        for table, living in self._shop.living.items():
            sql = f"SELECT count(*) AS n, sum(id) AS keys FROM {table} WHERE id < {PROBE_FIRST}"  # noqa: S608
            count, keys = asker.row(sql)
            found, wanted = [int(count), int(keys)], [living.count, living.key_sum]
            books[table] = {"found": found, "wanted": wanted, "right": found == wanted}
        return books


@dataclass(slots=True)
class Probe:
    """Sends a row, and when it is durable asks for it until it is there; again and again."""

    sender: Sender
    asker: Asker
    every_s: float
    waits_s: list[float] = field(default_factory=list)
    """From the acknowledgement to the answer that has the row."""
    asked_s: list[float] = field(default_factory=list)
    """How long each answer took."""
    tail_rows: list[int] = field(default_factory=list)

    async def run(self, is_over: asyncio.Event) -> None:
        template = Template("probe", [_change()])
        acked_s = 0.0

        def note(_number: int, at_s: float) -> None:
            nonlocal acked_s
            acked_s = at_s

        self.sender.on_ack = note
        tick = PROBE_FIRST
        while not is_over.is_set():
            tick += 1
            await self.sender.send(template, np.array([tick]))
            await self.sender.settle()
            await asyncio.to_thread(self._look, tick, acked_s)
            await asyncio.sleep(self.every_s)

    def _look(self, tick: int, acked_s: float) -> None:
        """The bound lets DuckDB leave out every file that has no news."""
        give_up_at = acked_s + _SEEN_TIME_MAX_S
        while (asked := time.perf_counter()) < give_up_at:
            answer = self.asker.json(f"SELECT max(id) AS tick FROM {TABLES[0]} WHERE id >= ?", [tick])  # noqa: S608
            now = time.perf_counter()
            self.asked_s.append(now - asked)
            self.tail_rows.append(answer["freshness"]["tailRows"])
            if answer["rows"][0]["tick"] == tick:
                self.waits_s.append(now - acked_s)
                return
        raise LoadError(f"a row was not visible within {_SEEN_TIME_MAX_S:.0f} s")

    def forget(self) -> None:
        """What was before does not count."""
        self.waits_s, self.asked_s, self.tail_rows = [], [], []

    def report(self) -> Json:
        if not self.waits_s:
            raise LoadError("nothing became visible while it was measured; run for longer")
        waits_ms, asked_ms = np.array(self.waits_s) * 1000, np.array(self.asked_s) * 1000
        percentiles = {f"p{percent}": round(float(np.percentile(waits_ms, percent)), 1) for percent in (50, 95, 99)}
        return {
            "ack_to_visible_ms": {**percentiles, "max": round(float(waits_ms.max()), 1), "samples": len(waits_ms)},
            "query_ms": {
                "p50": round(float(np.percentile(asked_ms, 50)), 1),
                "p99": round(float(np.percentile(asked_ms, 99)), 1),
                "count": len(asked_ms),
            },
            "tail_rows_mean": round(sum(self.tail_rows) / len(self.tail_rows)),
        }


def _change() -> Json:
    """An order as the shop has them."""
    row = {
        "id": KEY,
        "customer_id": 1,
        "status": "new",
        "amount": 9.75,
        "quantity": 1,
        "note": f"parcel {KEY}",
        "country": "CH",
        "created_at": "2026-01-15T10:15:30.123Z",
        "is_gift": False,
    }
    return {"operation": "INSERT", "table": TABLES[0], "rowId": str(KEY), "after": row}
