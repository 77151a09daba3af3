"""How soon are changes published when tables are wide, or many?

Driven by `dolake bench breadth`. First one table of 300 columns, then 200 tables with ten changes a second each; this
process sends with our own client and watches the published position. Promise: server and home are gone afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.machine import Run, at_most, progress_bars, temporary_home
from benchmarks.stream import Json, ask, running_server
from dolake.cli.child import COMMAND, ChildServer
from dolake.client import connect

FLOOR_P50_S = 10.0
PACKAGES = ("pyspark", "pyarrow", "duckdb")
_BEAT_S = 0.1
_POLL_S = 0.05
_KEYS = 1_000
_PUBLISH_WAIT_S = 120.0

Row = Callable[[int], tuple[str, dict[str, Any]]]
"""The table and the row of the change with this number."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    seconds: float = 45.0
    warm_up_s: float = 60.0
    """Long enough for hundreds of tables to be made."""
    columns: int = 300
    wide_rate_events_s: int = 500
    tables: int = 200
    rate_per_table_s: int = 10


def run_breadth_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("breadth", folder, PACKAGES)
        figures: Json = {"load": asdict(load)}
        for name, rate, row in (
            ("wide", load.wide_rate_events_s, _wide_row(load.columns)),
            ("many", load.tables * load.rate_per_table_s, _row_of_many(load.tables)),
        ):
            with running_server(folder / name, command=command) as server:
                figures[name] = _measure(name, server, load, rate, row, progress)
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    for name, words in (("wide", "one wide table"), ("many", "many tables")):
        yield at_most(f"{words}: ack to published, p50 s", figures[name]["ack_to_published"]["p50_s"], FLOOR_P50_S)
        yield at_most(f"{words}: changes that are in no table", figures[name]["missing"], 0)


def _wide_row(columns: int) -> Row:
    def row(number: int) -> tuple[str, dict[str, Any]]:
        values = {f"c{at}": number + at if at % 3 else f"text {number % 97}" for at in range(columns)}
        return "wide", values

    return row


def _row_of_many(tables: int) -> Row:
    def row(number: int) -> tuple[str, dict[str, Any]]:
        return f"many.table_{number % tables}", {"id": number, "name": f"n{number % 97}", "price": number / 4}

    return row


def _measure(name: str, server: ChildServer, load: Load, rate: int, row: Row, progress: Progress) -> Json:
    task = progress.add_task(name, total=load.seconds + load.warm_up_s, note="")
    watched = asyncio.run(
        _send_and_watch(server, load, rate, row, lambda s: progress.update(task, completed=s)), debug=False
    )
    status = ask(server, "/status")
    return {
        "ack_to_published": watched.figures(),
        "events": watched.sent,
        "missing": watched.sent - status["committedPosition"],
    }


class _Watch:
    """Positions with the moment of their ack, until they are published."""

    def __init__(self) -> None:
        self.sent = 0
        self._waiting: list[tuple[int, float, bool]] = []
        self._ages_s: list[float] = []

    def acked(self, position: int, *, counts: bool) -> None:
        self._waiting.append((position, time.monotonic(), counts))

    def published(self, position: int) -> bool:
        """Note what is published now; whether that is all."""
        now_s = time.monotonic()
        self._ages_s += [now_s - at_s for end, at_s, counts in self._waiting if end <= position and counts]
        self._waiting = [each for each in self._waiting if each[0] > position]
        return not self._waiting

    def figures(self) -> Json:
        p50, p95, p99 = np.percentile(self._ages_s or [0.0], [50, 95, 99])
        return {
            "samples": len(self._ages_s),
            "p50_s": round(float(p50), 3),
            "p95_s": round(float(p95), 3),
            "p99_s": round(float(p99), 3),
        }


async def _send_and_watch(
    server: ChildServer, load: Load, rate: int, row: Row, show: Callable[[float], None]
) -> _Watch:
    watch, began_s = _Watch(), time.monotonic()
    end_s = began_s + load.warm_up_s + load.seconds

    async def look() -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            status = await asyncio.to_thread(ask, server, "/status")
            if watch.published(status["committedPosition"]) and time.monotonic() > end_s + _POLL_S:
                return

    async with asyncio.timeout(load.warm_up_s + load.seconds + _PUBLISH_WAIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(look())
        async with connect(server.url, source="bench") as lake:
            while (now_s := time.monotonic()) < end_s:
                show(now_s - began_s)
                wanted = round((now_s - began_s) * rate) - watch.sent
                if wanted > 0:
                    receipt = await lake.send([_change(row, watch.sent + at) for at in range(wanted)])
                    watch.sent += wanted
                    watch.acked(receipt.position or 0, counts=now_s > began_s + load.warm_up_s)
                await asyncio.sleep(_BEAT_S)
    return watch


def _change(row: Row, number: int) -> Json:
    table, values = row(number)
    operation = "UPDATE" if number >= _KEYS else "INSERT"
    return {"table": table, "operation": operation, "rowId": str(number % _KEYS), "after": values}
