"""A thousand subscribers on ten tables at 5,000 changes a second: does each get exactly its changes, and how soon?

Driven by `dolake bench subscribe`. A real server; a sender of changes here, and the subscribers in another process
(subscribers.py). Nine of ten want all changes of a table, the others those that meet a condition of their own. In the
second half one more subscriber reads nothing at all. Promise: server, readers and home are gone afterwards.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter
from benchmarks.subscribers import Json, read_all
from dolake.cli.child import COMMAND, ChildServer
from dolake.client import connect

FLOOR_P99_MS = 500.0
PACKAGES = ("aiohttp", "uvloop", "pyarrow", "duckdb")
_FILTERED = 10
"""One subscriber of so many has a condition of its own."""
_SETTLE_MAX_S = 60.0
_READY_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything."""

    subscribers: int = 1_000
    tables: int = 10
    rate_events_s: int = 5_000
    seconds: float = 30.0
    warm_up_s: float = 5.0
    batch_events: int = 100
    has_pipeline: bool = True


def run_subscribe_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> Json:
    """Measure, and return the report; `out` also gets it as JSON."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("subscribe", folder, PACKAGES)
        progress.add_task(f"{load.subscribers:,} subscribers", total=None, note="")
        with ChildServer(folder / "home", command=command, has_pipeline=load.has_pipeline, has_queries=True) as server:
            figures = asyncio.run(_measure(load, server))
        return run.report({"load": asdict(load), **figures}, _floors(load, figures), out)


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    name = f"{load.subscribers:,} subscribers, {load.rate_events_s:,} changes/s"
    yield at_most(f"{name}: subscribers that did not get exactly their changes", figures["wrong"], 0)
    yield at_most(f"{name}: ack to delivery, p99 ms", figures["ack_to_delivery_ms"]["p99"], FLOOR_P99_MS)
    stuck = figures["ack_to_delivery_beside_a_stuck_one_ms"]["p99"]
    yield at_most(f"{name}: the same while one reads nothing, p99 ms", stuck, FLOOR_P99_MS)


async def _measure(load: Load, server: ChildServer) -> Json:
    names = [f"table_{number}" for number in range(load.tables)]
    sent: dict[str, list[int]] = {name: [] for name in names}
    async with connect(server.url, source="bench", window=16) as lake:
        await _when_ready(server)
        sender = _Sender(load, lake, sent)
        await sender.send_for(1.0)  # the tables are there, with their columns, before anybody has a condition on them
        for numbers in sent.values():
            numbers.clear()
        here, there = multiprocessing.get_context("spawn").Pipe()
        wishes = _wishes(load, names)
        readers = multiprocessing.get_context("spawn").Process(target=read_all, args=(there, server.url, wishes))
        readers.start()
        try:
            return await _measure_with(load, server, sender, here, readers.pid or 0)
        finally:
            readers.join(10)
            readers.kill()


async def _measure_with(load: Load, server: ChildServer, sender: _Sender, pipe: Any, pid: int) -> Json:
    assert await asyncio.to_thread(pipe.recv) == "ready"
    meter, reading = Meter(server.pid), Meter(pid, root="subscribers")
    await sender.send_for(load.warm_up_s)
    pipe.send("forget")
    meter.restart()
    reading.restart()
    began_s, began = time.monotonic(), sender.number
    await sender.send_for(load.seconds / 2)
    pipe.send("stick")
    half_ms = time.time() * 1000
    await sender.send_for(load.seconds / 2)
    seconds = time.monotonic() - began_s
    cpu_s = {kind: used for kind, used in meter.cpu_s().items() if kind != "client"}
    cpu_s |= {"sender": meter.cpu_s().get("client", 0.0), "subscribers": reading.cpu_s().get("subscribers", 0.0)}
    wanted = [len(_wanted(wish, sender.sent)) for wish, _ in _wishes(load, list(sender.sent))]
    await _settled(pipe, wanted)
    pipe.send("stop")
    report, delays = await asyncio.to_thread(pipe.recv)
    return {
        "wrong": _wrong(report, sender.sent),
        "events_per_s": round((sender.number - began) / seconds),
        "delivered_events": int(sum(each["count"] for each in report)),
        "delivered_events_per_s": round(float(delays[:, 2].sum()) / seconds),
        "frames": len(delays),
        "errors": Counter(each["error"] for each in report if each["error"]),
        "ack_to_delivery_ms": _percentiles(delays[delays[:, 0] < half_ms]),
        "ack_to_delivery_beside_a_stuck_one_ms": _percentiles(delays[delays[:, 0] >= half_ms]),
        "seconds": round(seconds, 2),
        "cpu_s": cpu_s,
        "server_cores": round((cpu_s.get("server", 0.0) + cpu_s.get("query", 0.0)) / seconds, 2),
        "memory_mb": meter.memory_mb(),
    }


def _wishes(load: Load, names: list[str]) -> list[tuple[Json, bool]]:
    """Of each table some; the first that wants all of it keeps its events, and so does everyone with a condition."""
    found: list[tuple[Json, bool]] = []
    for number in range(load.subscribers):
        table, round_ = names[number % len(names)], number // len(names)
        if round_ % _FILTERED == _FILTERED - 1:
            found.append(({"tables": [table], "where": f"n % 20 = {round_ // _FILTERED}"}, True))
        else:
            found.append(({"tables": [table]}, round_ == 0))
    return found


def _wanted(wish: Json, sent: dict[str, list[int]]) -> list[int]:
    numbers = sent[wish["tables"][0]]
    if "where" not in wish:
        return numbers
    rest = int(wish["where"].rpartition(" ")[2])
    return [number for number in numbers if number % 20 == rest]


def _wrong(report: list[Json], sent: dict[str, list[int]]) -> int:
    """How many did not get exactly their changes, in order: by the events themselves, or by the checksum of those."""
    right: dict[str, tuple[int, int]] = {}
    wrong = 0
    for each in report:
        key = str(each["wish"])
        if each["numbers"] is not None:
            is_right = each["numbers"] == _wanted(each["wish"], sent)
            if is_right:
                right.setdefault(key, (each["count"], each["crc"]))
        else:
            is_right = right.get(key) == (each["count"], each["crc"])
        wrong += not is_right
    return wrong


def _percentiles(delays: Any) -> Json:
    """Of events: each as late as the oldest one of its frame. The clock begins when it is durable, before its ack."""
    if not len(delays):
        return {"p50": float("inf"), "p95": float("inf"), "p99": float("inf"), "max": float("inf")}
    order = np.argsort(delays[:, 1])
    late, weight = delays[order, 1], np.cumsum(delays[order, 2])
    found = {
        f"p{share}": round(float(late[np.searchsorted(weight, weight[-1] * share / 100)]), 1) for share in (50, 95, 99)
    }
    return {**found, "max": round(float(late[-1]), 1)}


async def _settled(pipe: Any, wanted: list[int]) -> None:
    """Until everybody has as many as it should, or nobody believes in it any more."""
    give_up_s = time.monotonic() + _SETTLE_MAX_S
    while time.monotonic() < give_up_s:
        pipe.send("counts")
        counts = await asyncio.to_thread(pipe.recv)
        if all(count >= want for count, want in zip(counts, wanted, strict=True)):
            return
        await asyncio.sleep(0.2)


async def _when_ready(server: ChildServer) -> None:
    give_up_s = time.monotonic() + _READY_MAX_S
    lake = connect(server.url)
    while True:
        try:
            await lake.query("SELECT 1")
            if (await lake.status())["pipeline"]["state"] in ("off", "ready", "running", "idle", "publishing"):
                return
        except Exception:
            if time.monotonic() > give_up_s:
                raise
        if time.monotonic() > give_up_s:
            return
        await asyncio.sleep(0.2)


class _Sender:
    """At a steady rate, over all tables."""

    def __init__(self, load: Load, lake: Any, sent: dict[str, list[int]]) -> None:
        self._load, self._lake, self.sent = load, lake, sent
        self._names = list(sent)
        self.number = 0

    async def send_for(self, seconds: float) -> None:
        pace_s = self._load.batch_events / self._load.rate_events_s
        began = due = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while (now := time.perf_counter()) < began + seconds:
                await asyncio.sleep(max(0.0, due - now))
                due += pace_s
                tasks.create_task(self._lake.send([self._change() for _ in range(self._load.batch_events)]))

    def _change(self) -> Json:
        number = self.number = self.number + 1
        name = self._names[number % len(self._names)]
        self.sent[name].append(number)
        row = {"id": number, "n": number, "city": "Oslo", "amount": number % 1000 / 4, "note": "a change of the bench"}
        return {"table": name, "operation": "INSERT", "rowId": str(number), "after": row}
