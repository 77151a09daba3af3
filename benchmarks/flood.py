"""Does a well-behaved client notice when others flood the server, and does SQL go on?

Driven by `dolake bench flood`. One server with queries and without friends (`whitelisted_ips = []`); a sender of small
batches at a steady pace, a question about its rows every quarter of a second, and hostile connections that send as fast
as their sockets take it and heed no refusal. Each kind of flood is measured for itself, after a quiet phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import uvloop

from benchmarks.load import BatchLayout, Frame
from benchmarks.machine import (
    at_most,
    commit_of_repository,
    machine_of,
    temporary_home,
    terminate_as_exit,
    versions_of,
)
from dolake.cli.child import ChildServer
from tools.raw_websocket import PING, RawWebSocket, RawWebSocketError, encode_frame, open_raw_websocket

SETTINGS = """
[rate_limit]
whitelisted_ips = []
connections_per_second = 1000
"""
PACE_S = 0.125  # below refill_rate, as a well-behaved client is
ASK_EVERY_S = 0.25
ACK_P99_MAX_MS = 100
GONE_WAIT_S = 60.0
CONNECTIONS = "dolake_connections "
_LINE_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """How long each phase lasts, and how many enemies there are."""

    seconds: float = 10
    hostile: int = 20
    kinds: tuple[str, ...] = ("batches", "large batches", "tiny messages", "pings", "nothing valid")


def floods() -> Mapping[str, list[bytes]]:
    """What enemies send, again and again."""
    large = BatchLayout("hostile", events=10_000)
    frame = Frame(large)
    frame.become(1)
    return {
        "batches": [_batch(500)],
        "large batches": [bytes(frame.encoded)],
        "tiny messages": [encode_frame(b"{}") * 100],
        "pings": [encode_frame(b"x", PING) * 100],
        "nothing valid": [encode_frame(b'{"type":"cdc_batch","events":[' + b"[" * 5000)],
    }


def _batch(events: int) -> bytes:
    frame = Frame(BatchLayout("hostile", events=events))
    frame.become(1)
    return bytes(frame.encoded)


def run_flood_bench(load: Load, *, out: Path | None = None, home: Path | None = None) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON."""
    with temporary_home(home) as folder, terminate_as_exit():
        with ChildServer(folder / "home", settings=SETTINGS, has_queries=True) as server:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                phases = runner.run(_measure_all(server, load))
            server.stop()
        report = {
            "benchmark": "flood",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit_of_repository(),
            "machine": machine_of(folder),
            "versions": versions_of(),
            "load": {"seconds": load.seconds, "hostile": load.hostile},
            "phases": phases,
            "floors": _floors(phases),
        }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _floors(phases: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    floors = []
    for name, phase in phases.items():
        if name != "quiet":
            floors.append(at_most(f"ack p99 ms under {name}", phase["ack_p99_ms"], ACK_P99_MAX_MS))
            floors.append(at_most(f"questions without an answer under {name}", phase["sql_failed"], 0))
    return floors


@dataclass(slots=True)
class _Seen:
    ack_ms: list[float] = field(default_factory=list)
    sql_ms: list[float] = field(default_factory=list)
    sql_failed: int = 0
    refused: int = 0


async def _measure_all(server: ChildServer, load: Load) -> dict[str, dict[str, Any]]:
    phases = {"quiet": await _measure(server, load, None)}
    for kind in floods():
        if kind in load.kinds:
            phases[kind] = await _measure(server, load, kind)
            phases[kind]["enemies_gone_after_s"] = await _all_gone(server.url)
    return phases


async def _measure(server: ChildServer, load: Load, kind: str | None) -> dict[str, Any]:
    seen, process = _Seen(), psutil.Process(server.pid)
    before, started = process.cpu_times(), time.monotonic()
    over = asyncio.Event()
    with _enemies(server.url, load, kind) as said:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_behave(server.url, seen, over))
            tasks.create_task(_ask(server.url, seen, over))
            await asyncio.sleep(load.seconds)
            over.set()
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return {
        "batches": len(seen.ack_ms),
        "ack_p50_ms": _percentile(seen.ack_ms, 50),
        "ack_p99_ms": _percentile(seen.ack_ms, 99),
        "ack_max_ms": _percentile(seen.ack_ms, 100),
        "refused": seen.refused,
        "sql": len(seen.sql_ms),
        "sql_failed": seen.sql_failed,
        "sql_p50_ms": _percentile(seen.sql_ms, 50),
        "sql_p99_ms": _percentile(seen.sql_ms, 99),
        "server_cpu_cores": round(cpu_s / (time.monotonic() - started), 3),
        "server_rss_mb": round(process.memory_info().rss / 1e6, 1),
        "said_to_enemies": dict(said),
    }


@contextlib.contextmanager
def _enemies(url: str, load: Load, kind: str | None) -> Iterator[Counter[str]]:
    """In a process of their own, so that who behaves waits for the server alone; at the end, what they were told."""
    said: Counter[str] = Counter()
    if kind is None:
        yield said
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_attack, args=(url, load.hostile, kind, theirs))
    process.start()
    try:
        yield said
        ours.send("stop")
        if ours.poll(GONE_WAIT_S):
            said.update(ours.recv())
    finally:
        process.terminate()
        process.join()


def _attack(url: str, count: int, kind: str, pipe: Connection) -> None:
    said: Counter[str] = Counter()

    async def attack() -> None:
        frames = floods()[kind]
        enemies = [asyncio.create_task(_flood(url, f"{index}", frames, said)) for index in range(count)]
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        for enemy in enemies:
            enemy.cancel()
        await asyncio.wait(enemies)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(attack())
    pipe.send(said)


async def _all_gone(url: str) -> float:
    """Until the server knows that its enemies have left: they hold places of this address until then."""
    began = time.monotonic()
    async with aiohttp.ClientSession() as session, asyncio.timeout(GONE_WAIT_S):
        while True:
            async with session.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            if next(float(line.split()[-1]) for line in lines if line.startswith(CONNECTIONS)) == 0:
                return round(time.monotonic() - began, 2)
            await asyncio.sleep(0.2)


async def _behave(url: str, seen: _Seen, over: asyncio.Event) -> None:
    source = f"good-{time.time_ns()}"
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws") as socket:
        number = 0
        while not over.is_set():
            number += 1
            started = time.perf_counter()
            row = {"id": number}
            event = {"sequence": number, "timestamp": 1, "operation": "INSERT", "table": "good", "rowId": str(number)}
            await socket.send_json(
                {
                    "type": "cdc_batch",
                    "sourceDoId": source,
                    "sequenceNumber": number,
                    "events": [event | {"after": row}],
                }
            )
            answer = await socket.receive_json(timeout=30)
            seen.ack_ms.append((time.perf_counter() - started) * 1000)
            seen.refused += answer["type"] == "nack"
            number -= answer["type"] == "nack"
            await asyncio.sleep(max(0.0, PACE_S - (time.perf_counter() - started)))


async def _ask(url: str, seen: _Seen, over: asyncio.Event) -> None:
    async with aiohttp.ClientSession() as session:
        while not over.is_set():
            started = time.perf_counter()
            async with session.post(f"{url}/v1/query", json={"sql": "SELECT count(*) FROM good"}) as answer:
                await answer.read()
                # Before the first batch there is no such table, which is an answer too.
                seen.sql_failed += answer.status not in (200, 404)
            seen.sql_ms.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(ASK_EVERY_S)


async def _flood(url: str, name: str, frames: list[bytes], said: Counter[str]) -> None:
    """Send for ever; who is thrown out comes back at once."""
    while True:
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_text(data: bytes) -> None:
            answer = json.loads(data)
            said[answer.get("reason") or answer.get("status") or answer["type"]] += 1

        def on_lost(_: Exception, lost: asyncio.Future[None] = lost) -> None:
            if not lost.done():
                lost.set_result(None)

        try:
            socket = await open_raw_websocket(f"{url}/ws", {"X-Client-ID": name}, on_text, on_lost)
        except (OSError, RawWebSocketError, TimeoutError):
            said["upgrade refused"] += 1
            await asyncio.sleep(0.05)
            continue
        try:
            await _send_without_end(socket, frames, lost)
            said["closed"] += 1
        finally:
            with contextlib.suppress(Exception):
                socket._transport.abort()


async def _send_without_end(socket: RawWebSocket, frames: list[bytes], lost: asyncio.Future[None]) -> None:
    """As much as the socket takes, and never more than a little in our own memory."""
    transport: Any = socket._transport
    while not lost.done():
        if transport.get_write_buffer_size() < _LINE_MAX_BYTES:
            for frame in frames:
                socket.send(frame)
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(0.002)


def _percentile(times: list[float], share: float) -> float:
    return round(float(np.percentile(times, share)), 2) if times else 0.0
