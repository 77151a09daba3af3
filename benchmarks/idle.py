"""What does a lake cost while nothing happens: each idle connection, and the server with its query process?

Driven by `dolake bench idle`. First a server alone with thousands of connections, each with a heartbeat now and then;
then a whole lake whose Spark is asleep. Promise: servers, connections and homes are gone afterwards.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.machine import Run, at_most, temporary_home, terminate_as_exit
from dolake.cli.child import ChildServer
from dolake.errors import Unavailable
from dolake.wire.messages import ConnectMessage, HeartbeatMessage, encode
from tools.raw_websocket import RawWebSocket, encode_frame, open_raw_websocket

OPEN_AT_A_TIME = 100
SETTLE_S = 3.0
SLEEP_WAIT_S = 120.0
SPARE_FILES = 200
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """How much nothing there is."""

    connections: int = 10_000
    heartbeat_s: float = 30.0
    seconds: float = 30.0
    has_spark: bool = True


def run_idle_bench(load: Load, *, out: Path | None = None, home: Path | None = None) -> dict[str, Any]:
    """Measure, and return the report with what was promised."""
    allow_files(load.connections)
    with temporary_home(home) as folder, terminate_as_exit():
        run = Run("idle", folder)
        connections = _measure_connections(load, folder)
        lake = _measure_lake(load, folder)
        floors = [
            at_most("KB per idle connection", connections["kb_per_connection"], 20),
            at_most("% of a core, with heartbeats", connections["cpu_percent"], 1),
            at_most("MB of an idle lake", lake["mb"], 250),
            at_most("% of a core of an idle lake", lake["cpu_percent"], 1),
        ]
        figures = {
            "load": {"connections": load.connections, "heartbeat_s": load.heartbeat_s, "seconds": load.seconds},
            "connections": connections,
            "lake": lake,
        }
        return run.report(figures, floors, out)


def allow_files(connections: int) -> None:
    """Each connection needs a file here and in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise Unavailable(
                f"{wanted} open files are needed, {hard} allowed", hint="fewer --connections, or ulimit -n"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- connections -----------------------------------------------------------------------------------------------------


def _measure_connections(load: Load, folder: Path) -> dict[str, Any]:
    with (
        ChildServer(folder / "connections") as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_hold_connections(load, server))


async def _hold_connections(load: Load, server: ChildServer) -> dict[str, Any]:
    process = psutil.Process(server.pid)
    crowd = Crowd(server.url)
    try:
        await crowd.open(OPEN_AT_A_TIME)  # what the first ones bring to life is not theirs alone
        before = process.memory_info().rss
        await crowd.open(load.connections)
        await asyncio.sleep(SETTLE_S)
        after = process.memory_info().rss
        answers, began, cpu = crowd.answer_count, time.monotonic(), cpu_s(process)
        await crowd.beat(load.seconds, load.heartbeat_s)
        took, used = time.monotonic() - began, cpu_s(process) - cpu
        return {
            "server_mb_before": round(before / MB, 1),
            "server_mb_after": round(process.memory_info().rss / MB, 1),
            "kb_per_connection": round((after - before) / load.connections / 1000, 2),
            "heartbeats_answered": crowd.answer_count - answers,
            "cpu_percent": round(100 * used / took, 3),
            "cpu_us_per_heartbeat": round(1e6 * used / max(1, crowd.answer_count - answers), 1),
            "lost": crowd.lost_count,
        }
    finally:
        crowd.close()


class Crowd:
    """Many connections, each for a stream of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._sockets: list[RawWebSocket] = []
        self.answer_count = 0
        self.lost_count = 0

    async def open(self, count: int) -> None:
        """So many more, some at a time, each introduced and answered."""
        wanted = self.answer_count + count
        for first in range(0, count, OPEN_AT_A_TIME):
            await asyncio.gather(*(self._open_one() for _ in range(min(OPEN_AT_A_TIME, count - first))))
        async with asyncio.timeout(60):
            while self.answer_count < wanted:  # noqa: ASYNC110 - a benchmark may look
                await asyncio.sleep(0.01)

    async def _open_one(self) -> None:
        socket = await open_raw_websocket(f"{self._url}/ws", {}, self._count, self._lose)
        self._sockets.append(socket)
        hello = ConnectMessage(source_do_id=f"idle-{len(self._sockets)}", timestamp=1)
        socket.send(encode_frame(encode(hello)))

    async def beat(self, seconds: float, every_s: float) -> None:
        """Heartbeats, evenly spread over all connections."""
        gap_s, began = every_s / len(self._sockets), time.monotonic()
        sent = 0
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed / gap_s:
                index = sent % len(self._sockets)
                beat = HeartbeatMessage(source_do_id=f"idle-{index + 1}", timestamp=1)
                self._sockets[index].send(encode_frame(encode(beat)))
                sent += 1
            await asyncio.sleep(0.02)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _count(self, _data: bytes) -> None:
        self.answer_count += 1

    def _lose(self, _error: Exception) -> None:
        self.lost_count += 1


# --- the whole lake --------------------------------------------------------------------------------------------------


def _measure_lake(load: Load, folder: Path) -> dict[str, Any]:
    settings = "pipeline_idle_ms = 1000\n"
    with ChildServer(folder / "lake", settings=settings, has_pipeline=load.has_spark, has_queries=True) as server:
        _wait_until_idle(server.url, has_spark=load.has_spark)
        time.sleep(SETTLE_S)
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        began, cpu = time.monotonic(), sum(map(cpu_s, processes))
        time.sleep(load.seconds)
        took, used = time.monotonic() - began, sum(map(cpu_s, processes)) - cpu
        parts = {_name_of(process): round(process.memory_full_info().pss / MB, 1) for process in processes}
        return {"mb": round(sum(parts.values()), 1), "parts_mb": parts, "cpu_percent": round(100 * used / took, 3)}


def _wait_until_idle(url: str, *, has_spark: bool) -> None:
    wanted = {"query": "ready"} | ({"pipeline": "sleeping"} if has_spark else {})
    give_up_at = time.monotonic() + SLEEP_WAIT_S
    while time.monotonic() < give_up_at:
        with urllib.request.urlopen(f"{url}/status", timeout=30) as answer:  # noqa: S310 - our own server
            status = json.load(answer)
        if all((status.get(part) or {}).get("state") == state for part, state in wanted.items()):
            return
        time.sleep(0.5)
    raise Unavailable(f"the lake was not idle within {SLEEP_WAIT_S:.0f} s", hint="does Spark start on this machine?")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _name_of(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    return "query" if "dolake.query" in line else "server" if "serve" in line else f"{process.name()} {process.pid}"
