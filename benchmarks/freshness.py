"""How long after its acknowledgement does another engine see a change, while changes come at a steady pace?

Driven by `dolake bench freshness`. A real server with its pipeline in child processes; this process is a shop that
sends a batch every few milliseconds, and in a thread of its own DuckDB asks the state tables through the catalog, one
after the other, for their highest key. The keys rise, so an answer says which batches are visible. Promise: server and
home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.progress import Progress

from benchmarks.engines import duck_on
from benchmarks.load import LoadError
from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.shop import COLUMNS, TABLES, Shop
from benchmarks.stream import Json, Keys, Meter, Sender, Template, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_P50_S = 2.5
FLOOR_P99_S = 6.0
PACKAGES = ("pyspark", "pyarrow", "duckdb")
_POLL_EVERY_S = 0.1
_VISIBLE_TIME_MAX_S = 60.0


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
    marks = {table: Marks() for table in TABLES}
    meter, reader = Meter(server.pid), Reader(server.url, marks)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, meter.watching():
        sent = runner.run(_stream(load, server, marks, meter, reader, progress))
    waits = np.array([wait for each in marks.values() for wait in each.waits_s])
    if not len(waits):
        raise LoadError("nothing became visible while it was measured; run for longer")
    return {
        "load": {**asdict(load), "columns": COLUMNS, "tables": len(TABLES)},
        "ack_to_visible": {
            "samples": len(waits),
            **{f"p{percent}_s": round(float(np.percentile(waits, percent)), 3) for percent in (50, 95, 99)},
            "max_s": round(float(waits.max()), 3),
        },
        "reader": reader.report(),
        **sent,
    }


@dataclass(slots=True)
class Marks:
    """The batches of one table that were acknowledged and not yet seen: the key that shows each, and when it was."""

    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    waits_s: list[float] = field(default_factory=list)
    is_counting: bool = False
    seen: int = 0
    """The highest key that DuckDB saw."""

    def see(self, key: int, now_s: float) -> None:
        self.seen = max(self.seen, key)
        while self.waiting and self.waiting[0][0] <= self.seen:
            _, acked_s = self.waiting.popleft()
            if self.is_counting:
                self.waits_s.append(now_s - acked_s)


class Reader:
    """DuckDB, asking each table in turn until it is told to end."""

    def __init__(self, url: str, marks: dict[str, Marks]) -> None:
        self._url, self._marks = url, marks
        self._is_over = threading.Event()
        self.times_s: list[float] = []
        self.cpu_s = 0.0
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error:
            raise self._error

    def report(self) -> Json:
        return {
            "queries": len(self.times_s),
            "query_p50_s": round(float(np.percentile(self.times_s, 50)), 4),
            "query_p99_s": round(float(np.percentile(self.times_s, 99)), 4),
        }

    def _read(self) -> None:
        try:
            # One thread, so that this thread's CPU seconds are DuckDB's.
            with duck_on(self._url, threads=1) as duck:
                while not self._is_over.is_set():
                    began = time.perf_counter()
                    for table, marks in self._marks.items():
                        # The bound lets DuckDB leave out every file that it has no news in.
                        query = f"SELECT max(id) FROM lake.default.{table} WHERE id > {marks.seen}"  # noqa: S608
                        asked = time.perf_counter()
                        (key,) = duck.execute(query).fetchone() or (None,)
                        now = time.perf_counter()
                        self.times_s.append(now - asked)
                        if key is not None:
                            marks.see(int(key), now)
                    self.cpu_s = time.thread_time()
                    self._is_over.wait(max(0.0, began + _POLL_EVERY_S - time.perf_counter()))
        except Exception as error:
            self._error = error


async def _stream(
    load: Load, server: ChildServer, marks: dict[str, Marks], meter: Meter, reader: Reader, progress: Progress
) -> Json:
    """Send at this pace, first to have tables, then to warm up, then for so long; wait for the last to be seen."""
    shop = Shop("bench", batch_events=load.batch_events)
    last_keys: dict[int, dict[str, int]] = {}

    def mark(number: int, at_s: float) -> None:
        for table, key in last_keys.pop(number).items():
            marks[table].waiting.append((key, at_s))

    async with Sender(server.url, "bench") as sender:
        sender.on_ack = mark
        pace_s = load.batch_events / load.rate_events_s

        async def send_for(seconds: float, what: str) -> None:
            bar = progress.add_task(what, total=seconds, note="")
            began = due = time.perf_counter()
            while time.perf_counter() < began + seconds:
                await asyncio.sleep(due - time.perf_counter())
                due += pace_s
                template, keys = shop.next()
                last_keys[sender.next_number] = _last_inserts(template, keys)
                await sender.send(template, keys)
                reader.check()
                progress.update(bar, completed=time.perf_counter() - began)

        await send_for(1.0, "tables")
        await sender.settle(is_published=True)
        reader.start()
        try:
            await send_for(load.warm_up_s, "warm-up")
            meter.restart()
            reader_cpu_s, first = reader.cpu_s, sender.sent
            reader.times_s.clear()
            for each in marks.values():
                each.is_counting = True
            await send_for(load.seconds, f"{load.rate_events_s:,} events/s")
            seconds, cpu_s = meter.seconds, meter.cpu_s()
            cpu_s["reader"] = round(reader.cpu_s - reader_cpu_s, 2)
            cpu_s["client"] = round(cpu_s["client"] - cpu_s["reader"], 2)
            events = sender.sent - first
            await _until_seen(marks, reader)
        finally:
            await asyncio.to_thread(reader.end)
    return {
        "events": events,
        "events_per_s": round(events / seconds),
        "cpu_s": cpu_s,
        "cores": round(sum(cpu_s.values()) / seconds, 2),
        "memory_mb": meter.memory_mb(),
    }


def _last_inserts(template: Template, keys: Keys) -> dict[str, int]:
    """The highest new key of each table: once it is there, all of the batch is, since a publish is seen as a whole."""
    found: dict[str, int] = {}
    for change, key in zip(template.changes, keys.tolist(), strict=True):
        if change["operation"] == "INSERT":
            found[change["table"]] = key
    return found


async def _until_seen(marks: dict[str, Marks], reader: Reader) -> None:
    async with asyncio.timeout(_VISIBLE_TIME_MAX_S):
        while any(each.waiting for each in marks.values()):
            reader.check()
            await asyncio.sleep(_POLL_EVERY_S)
