"""How many changes a second does one server make durable, at what cost, and how long does an ack take?

Driven by `dolake bench ingest`. Starts the real server in a child process on a temporary home, sends batches from this
process with load.py, and reports two phases: `latency`, paced far below the limit, then `throughput`, with every
window full. Promise: the server and its home are gone afterwards, also after Ctrl-C; the disk is never filled up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

import aiohttp
import numpy as np
import psutil
import uvloop
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.certificates import make_certificate, trusting_nobody
from benchmarks.load import BatchLayout, Encoding, LoadError, Meter, Stream
from benchmarks.machine import (
    commit_of_repository,
    machine_cpu_s,
    machine_of,
    temporary_home,
    terminate_as_exit,
    versions_of,
)
from dolake.cli.child import COMMAND, ChildServer
from dolake.errors import InvalidInput
from dolake.identity.store import TokenFile
from dolake.identity.tokens import Token, mint

LATENCY_RATE_EVENTS_S = 20_000
WARM_UP_S = 1.0
SAMPLE_EVERY_S = 0.25
JOURNAL_SIZE_MAX_BYTES = 12 * 1024**3
DISK_FREE_MIN_BYTES = 10 * 1024**3
MB = 1_000_000

_LIMITS = """
[rate_limit]
whitelisted_ips = []
messages_per_second = 1_000_000
burst_capacity = 1_000_000
refill_rate = 1_000_000
"""
"""Everything is counted, and nobody refused: what counting costs is to be seen."""


def run_ingest_bench(
    *,
    seconds: float = 20,
    connections: int = 4,
    window: int = 4,
    batch_events: int = 500,
    rate_events_s: float | None = None,
    encoding: str = "json",
    compress: bool = False,
    tls: bool = False,
    out: Path | None = None,
    home: Path | None = None,
    door: bool = False,
    server_command: Sequence[str] = COMMAND,
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON.

    `rate_events_s` paces the latency phase (20,000 unless said otherwise). `home` is a folder on the disk to measure:
    the server's temporary home is made inside it and removed at the end. `encoding` lists forms of messages; the first
    is measured in full, and the others, compressed ones, those over TLS and those through the door in the throughput
    phase beside it. Through the door: nobody is whitelisted, all limits are counted, and each connection shows a token
    for the tables' namespaces and its sources alone, checked for each batch.
    """
    load = Load(seconds, connections, window, batch_events, rate_events_s or LATENCY_RATE_EVENTS_S, _tokens())
    forms = forms_of(encoding, compress=compress, tls=tls, door=door)
    with temporary_home(home) as folder, _progress() as progress:
        phases = _measured(load, forms[0], folder, server_command, progress, ("latency", "throughput"))
        others = {
            form.name: _measured(load, form, folder, server_command, progress, ("throughput",))["throughput"]
            for form in forms[1:]
        }
        report = {
            "benchmark": "ingest",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit_of_repository(),
            "machine": machine_of(folder),
            "versions": versions_of(),
            "load": {
                "seconds": seconds,
                "connections": connections,
                "window": window,
                "batch_events": batch_events,
                "event_bytes_mean": round(len(load.layout("sample", forms[0]).payload) / batch_events, 1),
                "latency_rate_events_s": load.rate_events_s,
                "form": forms[0].name,
            },
            **phases,
        }
    if others:
        report["variants"] = {name: _beside(phases["throughput"], other) for name, other in others.items()}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=2) + "\n")
    return report


@dataclass(frozen=True, slots=True)
class Form:
    """How messages look on their way."""

    encoding: Encoding = "json"
    is_compressed: bool = False
    is_secret: bool = False
    has_door: bool = False

    @property
    def name(self) -> str:
        more = (" compressed", self.is_compressed), (" tls", self.is_secret), (" door", self.has_door)
        return self.encoding + "".join(word for word, is_so in more if is_so)


def forms_of(encodings: str, *, compress: bool, tls: bool, door: bool = False) -> list[Form]:
    """Plain ones first; each encoding again compressed, over TLS and through the door where that is wanted."""
    names = [name.strip() for name in encodings.split(",")]
    for name in names:
        if name not in get_args(Encoding):
            raise InvalidInput(f"{name!r} is no encoding", hint=f"one of {', '.join(get_args(Encoding))}")
    plain = [Form(cast(Encoding, name)) for name in names]
    return [
        *plain,
        *(Form(form.encoding, is_compressed=True) for form in plain if compress),
        *(Form(form.encoding, is_secret=True) for form in plain if tls),
        *(Form(form.encoding, has_door=True) for form in plain if door),
    ]


def _beside(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A variant's figures, and what one CPU second does compared with the first form."""
    return {
        **other,
        "times_events_per_cpu_s": round(other["server_events_per_cpu_s"] / first["server_events_per_cpu_s"], 3),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """How hard to push."""

    seconds: float
    connections: int
    window: int
    batch_events: int
    rate_events_s: float
    tokens: tuple[tuple[Token, str], ...] = ()
    """For what is sent through the door, and for the figures."""

    def layout(self, source: str, form: Form) -> BatchLayout:
        return BatchLayout(source, events=self.batch_events, encoding=form.encoding, is_compressed=form.is_compressed)

    def streams(self, phase: str, form: Form, meter: Meter) -> list[Stream]:
        """One stream per connection; paced ones take turns, so that batches arrive evenly spread."""
        gap_s = self.batch_events / self.rate_events_s if phase == "latency" else 0.0
        return [
            Stream(
                self.layout(f"bench-{phase}-{index}", form),
                meter,
                window=self.window,
                pace_s=gap_s * self.connections,
                delay_s=gap_s * index,
                token=self.tokens[0][1] if form.has_door else None,
            )
            for index in range(self.connections)
        ]


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that is counted, read at one time; a phase is the difference of two."""

    at_s: float
    server_cpu_s: float
    own_cpu_s: float
    machine_cpu_s: float
    batches: int
    events: int
    bytes: int
    journal_batches: float
    journal_syncs: float


class _Bench:
    def __init__(self, load: Load, form: Form, server: ChildServer, folder: Path, progress: Progress) -> None:
        self._load = load
        self._form = form
        self._context = trusting_nobody() if form.is_secret else None
        self._server = server
        self._process = psutil.Process(server.pid)
        self._folder = folder
        self._progress = progress

    async def run(self, phases: Sequence[str]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._load.tokens[1][1]}"} if self._form.has_door else None
        connector = aiohttp.TCPConnector(ssl=self._context or True)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            return {phase: await self._measure(phase, session) for phase in phases}

    async def _measure(self, phase: str, session: aiohttp.ClientSession) -> dict[str, Any]:
        meter = Meter()
        streams = self._load.streams(phase, self._form, meter)
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(stream.run(f"{self._server.url}/ws", self._context))
            await asyncio.sleep(WARM_UP_S)
            first, skipped = await self._moment(session, meter), len(meter.ack_times_s)
            memory, early_end = await self._watch(phase, meter, first)
            last, counted = await self._moment(session, meter), len(meter.ack_times_s)
            for stream in streams:
                stream.stop()
        times_ms = np.array(meter.ack_times_s[skipped:counted]) * 1000
        if not times_ms.size:
            raise LoadError(f"no batch was acknowledged in the {phase} phase")
        return {
            **_difference(first, last),
            "ack_p50_ms": round(float(np.percentile(times_ms, 50)), 3),
            "ack_p99_ms": round(float(np.percentile(times_ms, 99)), 3),
            "ack_max_ms": round(float(times_ms.max()), 3),
            "send_delay_max_ms": round(meter.send_delay_max_s * 1000, 3),
            "server_rss_start_mb": round(memory[0] / MB, 1),
            "server_rss_peak_mb": round(max(memory) / MB, 1),
            "server_rss_end_mb": round(memory[-1] / MB, 1),
            "ended_early": early_end,
        }

    async def _watch(self, phase: str, meter: Meter, first: Moment) -> tuple[list[int], str | None]:
        """Sample the server's memory until the time is over, or until there is a reason to end earlier."""
        bar = self._progress.add_task(f"{phase} {self._form.name}", total=self._load.seconds, rate="")
        memory = [self._process.memory_info().rss]
        while (passed := time.monotonic() - first.at_s) < self._load.seconds:
            await asyncio.sleep(min(SAMPLE_EVERY_S, self._load.seconds - passed))
            memory.append(self._process.memory_info().rss)
            rate = (meter.events_acked - first.events) / (time.monotonic() - first.at_s)
            self._progress.update(bar, completed=passed, rate=f"{rate:,.0f} events/s")
            if meter.bytes_sent > JOURNAL_SIZE_MAX_BYTES:
                return memory, f"the journal reached {JOURNAL_SIZE_MAX_BYTES:,} bytes"
            if shutil.disk_usage(self._folder).free < DISK_FREE_MIN_BYTES:
                return memory, f"less than {DISK_FREE_MIN_BYTES:,} bytes free on the disk"
        self._progress.update(bar, completed=self._load.seconds)
        return memory, None

    async def _moment(self, session: aiohttp.ClientSession, meter: Meter) -> Moment:
        timeout = aiohttp.ClientTimeout(total=10)
        async with session.get(f"{self._server.url}/metrics", timeout=timeout) as response:
            metrics = await response.text()
        cpu = self._process.cpu_times()
        return Moment(
            at_s=time.monotonic(),
            server_cpu_s=cpu.user + cpu.system,
            own_cpu_s=time.process_time(),
            machine_cpu_s=machine_cpu_s(),
            batches=len(meter.ack_times_s),
            events=meter.events_acked,
            bytes=meter.bytes_acked,
            journal_batches=_sample(metrics, "dolake_journal_batches_total"),
            journal_syncs=_sample(metrics, "dolake_journal_syncs_total"),
        )


def _measured(
    load: Load, form: Form, folder: Path, command: Sequence[str], progress: Progress, phases: Sequence[str]
) -> dict[str, Any]:
    """One form, on a server of its own."""
    home = folder / form.name.replace(" ", "-")
    if form.has_door:
        for token, _ in load.tokens:
            TokenFile(home / "home").add(token)
    with _server(home, command, form) as server:
        return _run(_Bench(load, form, server, folder, progress), phases)


def _run(bench: _Bench, phases: Sequence[str]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(bench.run(phases))
        except BaseExceptionGroup as group:  # when one stream fails the others only follow, so the first one says why
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None


def _difference(first: Moment, last: Moment) -> dict[str, Any]:
    seconds = last.at_s - first.at_s
    events = last.events - first.events
    server_cpu_s = last.server_cpu_s - first.server_cpu_s
    own_cpu_s = last.own_cpu_s - first.own_cpu_s
    syncs = last.journal_syncs - first.journal_syncs
    return {
        "seconds": round(seconds, 2),
        "batches": last.batches - first.batches,
        "events": events,
        "events_per_s": round(events / seconds),
        "mb_per_s": round((last.bytes - first.bytes) / seconds / MB, 1),
        "server_cpu_us_per_event": round(server_cpu_s / max(events, 1) * 1e6, 3),
        "server_cpu_cores": round(server_cpu_s / seconds, 3),
        "server_events_per_cpu_s": round(events / server_cpu_s) if server_cpu_s else None,
        "generator_cpu_cores": round(own_cpu_s / seconds, 3),
        # Far above zero, the machine was not quiet, and wall-clock figures say more about the neighbours than about us.
        "others_cpu_cores": round((last.machine_cpu_s - first.machine_cpu_s - server_cpu_s - own_cpu_s) / seconds, 3),
        "batches_per_sync": round((last.journal_batches - first.journal_batches) / syncs, 2) if syncs else None,
    }


def _sample(metrics: str, name: str) -> float:
    """The value of a metric in Prometheus' text format, summed over its labels; 0 where it is missing."""
    lines = (line.rpartition(" ") for line in metrics.splitlines())
    return sum(float(value) for key, _, value in lines if key == name or key.startswith(name + "{"))


# --- the server's life, and its home's -------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(folder: Path, command: Sequence[str], form: Form) -> Iterator[ChildServer]:
    """A server that is stopped in order whatever happens, and whose journal goes with it."""
    settings = f"journal_size_max_bytes = {JOURNAL_SIZE_MAX_BYTES + 2 * 1024**3}\n"
    if form.is_secret:
        settings += make_certificate(folder / "home")
    if form.has_door:
        settings += _LIMITS
    with terminate_as_exit(), ChildServer(folder / "home", settings=settings, command=command) as server:
        yield server
        server.stop()
    shutil.rmtree(folder)


def _tokens() -> tuple[tuple[Token, str], ...]:
    """One for what the benchmark sends, and one for the figures of the whole lake."""
    now_ms = time.time_ns() // 1_000_000
    return (
        mint("bench", ["ingest"], ["default", "shop"], ["bench-*"], now_ms=now_ms, expires_ms=None),
        mint("figures", ["read"], [], [], now_ms=now_ms, expires_ms=None),
    )


# --- what stands around the numbers ----------------------------------------------------------------------------------


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
        disable=not sys.stdout.isatty(),
    )
