"""Changes at a steady pace, and how long after its acknowledgement DuckDB sees each batch.

From freshness.py, hotkeys.py and soak.py. A feed hands out batches with, for each table, a number that rises; in a
thread of its own DuckDB asks the state tables through the catalog, one after the other, for their highest number, so
that an answer says which batches are visible. Promise: whatever goes wrong, the thread ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import uvloop
from rich.progress import Progress

from benchmarks.load import LoadError
from benchmarks.meter import Meter
from benchmarks.stream import Json, Keys, Sender, Template
from dolake.cli.child import ChildServer
from tools.duckdb_client import duck_on

_POLL_EVERY_S = 0.1
_VISIBLE_TIME_MAX_S = 120.0
_LAG_MAX_S = 60
"""What may wait to be published, in seconds of the pace: a pipeline that cannot follow slows the sender down."""


class Feed(Protocol):
    """What is sent."""

    tables: Sequence[str]
    mark_column: str
    """The column of each table in which the rising number stands."""

    def next(self) -> tuple[Template, Keys]: ...

    def marks(self, template: Template, keys: Keys) -> dict[str, int]:
        """The highest number of each table in this batch: once it is seen, all of the batch is, since a publish is
        seen as a whole."""


class Observer(Protocol):
    """Who looks on while it counts, in a thread of its own."""

    def start(self) -> None:
        """Returns when everything that it needs has started."""

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast and how long."""

    rate_events_s: int
    batch_events: int
    seconds: float
    warm_up_s: float


def run_steadily(
    server: ChildServer,
    feed: Feed,
    pace: Pace,
    meter: Meter,
    progress: Progress,
    observers: Sequence[Observer] = (),
    *,
    prepare_duck: str = "",
) -> Json:
    """Send at this pace, first to have tables, then to warm up, then for so long; wait for the last to be seen.

    `prepare_duck` is what the reader must be told before it can read, such as the keys of a store.
    """
    steady = _Steady(server, feed, pace, progress, prepare_duck)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, meter.watching():
        return runner.run(steady.run(meter, observers))


class _Steady:
    def __init__(self, server: ChildServer, feed: Feed, pace: Pace, progress: Progress, prepare_duck: str) -> None:
        self._server, self._feed, self._pace, self._progress = server, feed, pace, progress
        self._marks = {table: Marks() for table in feed.tables}
        self._reader = Reader(server.url, self._marks, feed.mark_column, prepare_duck)
        self._batch_marks: dict[int, dict[str, int]] = {}

    async def run(self, meter: Meter, observers: Sequence[Observer]) -> Json:
        lag_max = self._pace.rate_events_s * _LAG_MAX_S
        async with Sender(self._server.url, "bench", lag_max_events=lag_max) as sender:
            sender.on_ack = self._acked
            await self._send_for(sender, 1.0, "tables")
            await sender.settle(is_published=True)
            watchers = [self._reader, *observers]
            self._reader.start()
            try:
                await self._send_for(sender, self._pace.warm_up_s, "warm-up", [self._reader])
                figures = await self._count(sender, meter, watchers)
            finally:
                for watcher in watchers:
                    await asyncio.to_thread(watcher.end)
            await sender.settle(is_published=True)
        for watcher in watchers:
            watcher.check()
        return {**self._freshness(), "reader": self._reader.report(), **figures, "events_in_all": sender.sent}

    async def _count(self, sender: Sender, meter: Meter, watchers: Sequence[Observer]) -> Json:
        for watcher in watchers[1:]:
            await asyncio.to_thread(watcher.start)
        meter.restart()
        reader, sent, published, held_s = self._reader, sender.sent, sender.published, sender.held_s
        reader_cpu_s = reader.cpu_s
        reader.times_s.clear()
        for each in self._marks.values():
            each.is_counting = True
        await self._send_for(sender, self._pace.seconds, f"{self._pace.rate_events_s:,} events/s", watchers)
        seconds, cpu_s = meter.seconds, meter.cpu_s()
        cpu_s["reader"] = round(reader.cpu_s - reader_cpu_s, 2)
        cpu_s["client"] = round(cpu_s["client"] - cpu_s["reader"], 2)
        figures = {
            "seconds": round(seconds, 2),
            "events": sender.sent - sent,
            "events_per_s": round((sender.sent - sent) / seconds),
            "published_events_per_s": round((sender.published - published) / seconds),
            "sender_waited_s": round(sender.held_s - held_s, 2),
            "lag_events_at_end": sender.sent - sender.published,
            "cpu_s": cpu_s,
            "cores": round(sum(cpu_s.values()) / seconds, 2),
        }
        await self._until_seen()
        return figures

    async def _send_for(self, sender: Sender, seconds: float, what: str, watchers: Sequence[Observer] = ()) -> None:
        bar = self._progress.add_task(what, total=seconds, note="")
        pace_s = self._pace.batch_events / self._pace.rate_events_s
        began = due = time.perf_counter()
        while time.perf_counter() < began + seconds:
            await asyncio.sleep(due - time.perf_counter())
            due += pace_s
            template, keys = self._feed.next()
            self._batch_marks[sender.next_number] = self._feed.marks(template, keys)
            await sender.send(template, keys)
            for watcher in watchers:
                watcher.check()
            self._progress.update(bar, completed=time.perf_counter() - began)

    def _acked(self, number: int, at_s: float) -> None:
        for table, mark in self._batch_marks.pop(number).items():
            self._marks[table].waiting.append((mark, at_s))

    async def _until_seen(self) -> None:
        async with asyncio.timeout(_VISIBLE_TIME_MAX_S):
            while any(each.waiting for each in self._marks.values()):
                self._reader.check()
                await asyncio.sleep(_POLL_EVERY_S)

    def _freshness(self) -> Json:
        waits = np.array([wait for each in self._marks.values() for wait in each.waits_s])
        if not len(waits):
            raise LoadError("nothing became visible while it was measured; run for longer")
        percentiles = {f"p{percent}_s": round(float(np.percentile(waits, percent)), 3) for percent in (50, 95, 99)}
        return {"ack_to_visible": {"samples": len(waits), **percentiles, "max_s": round(float(waits.max()), 3)}}


@dataclass(slots=True)
class Marks:
    """The batches of one table that were acknowledged and not yet seen: the number that shows each, and when it was."""

    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    waits_s: list[float] = field(default_factory=list)
    is_counting: bool = False
    seen: int = 0
    """The highest number that DuckDB saw."""

    def see(self, number: int, now_s: float) -> None:
        self.seen = max(self.seen, number)
        while self.waiting and self.waiting[0][0] <= self.seen:
            _, acked_s = self.waiting.popleft()
            if self.is_counting:
                self.waits_s.append(now_s - acked_s)


class Reader:
    """DuckDB, asking each table in turn until it is told to end."""

    def __init__(self, url: str, marks: dict[str, Marks], column: str, prepare: str = "") -> None:
        self._url, self._marks, self._column, self._prepare = url, marks, column, prepare
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
                if self._prepare:
                    duck.execute(self._prepare)
                while not self._is_over.is_set():
                    began = time.perf_counter()
                    for table, marks in self._marks.items():
                        self._look(duck, table, marks)
                    self.cpu_s = time.thread_time()
                    self._is_over.wait(max(0.0, began + _POLL_EVERY_S - time.perf_counter()))
        except Exception as error:
            self._error = error

    def _look(self, duck: Any, table: str, marks: Marks) -> None:
        """The bound lets DuckDB leave out every file that it has no news in."""
        bound = f"{self._column} > {marks.seen}"
        query = f"SELECT max({self._column}) FROM lake.default.{table} WHERE {bound}"  # noqa: S608 - our own names
        asked = time.perf_counter()
        (number,) = duck.execute(query).fetchone() or (None,)
        now = time.perf_counter()
        self.times_s.append(now - asked)
        if number is not None:
            marks.see(int(number), now)
