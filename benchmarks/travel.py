"""How long does a question about a moment take when every snapshot of that time has expired?

From query.py. A table gets an insert for each key, then updates at random; half-way we note the time. Then all
snapshots but the last go, and we ask for the noted moment, which only the changes still know. Promise: the answer is
compared with what was sent until then.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from benchmarks.asking import Answerer, Asker
from benchmarks.checks import condition
from benchmarks.jobs import run_job
from benchmarks.load import LoadError
from benchmarks.stream import BATCH_EVENTS, KEY_FIRST, Json, Keys, ask
from benchmarks.upsert import LOAD_TEMPLATES, changes_of, send_changes
from dolake.cli.child import ChildServer
from dolake.tables.layout import CHANGES_SUFFIX

FLOOR_TRAVEL_S = 10.0
TABLE = "past_orders"
TIMES = 3
_APART_S = 0.05
"""Between the noted time and the changes before and after it, so that no clock can mix them up."""
_SUMS = f"SELECT count(*) AS n, sum(amount) AS amount, sum(qty) AS qty FROM {TABLE}"  # noqa: S608 - our own name


@dataclass(frozen=True, slots=True)
class Journey:
    """So many rows, and so many changes in all."""

    keys: int
    changes: int


def travel(journey: Journey, server: ChildServer, runner: asyncio.Runner, progress: Progress) -> Json:
    """Send, let every snapshot expire, and ask."""
    book, moment_ms = runner.run(_send(journey, server, progress))
    ask(server, "/v1/config", "PATCH", {"maintenance.snapshots_max": 1})
    job = run_job(server, table=TABLE, kinds=["snapshots"])
    left = {table: condition(server, table) for table in (TABLE, TABLE + CHANGES_SUFFIX)}
    if left[TABLE]["snapshots"] != 1:
        raise LoadError(f"snapshots of {TABLE} did not expire: {job}")
    seconds, found = [], []
    with Asker(server) as asker:
        answerer = Answerer.of(server)
        before_mb, used_s = answerer.peak_mb(), answerer.cpu_s()
        answerer.forget_peak()
        for _ in range(TIMES):
            began = time.perf_counter()
            answer = asker.row(_SUMS, asOf=moment_ms, timeoutMs=600_000)
            seconds.append(round(time.perf_counter() - began, 2))
            found.append((int(answer[0]), float(answer[1]), int(answer[2])))
    return {
        "keys": journey.keys,
        "changes": journey.changes,
        "seconds": seconds,
        "cpu_s": round((answerer.cpu_s() - used_s) / TIMES, 2),
        "peak_memory_mb": answerer.peak_mb(),
        "peak_memory_before_mb": before_mb,
        "found": list(found[0]),
        "wanted": list(book),
        "right": set(found) == {book},
        "tables": left,
    }


async def _send(journey: Journey, server: ChildServer, progress: Progress) -> tuple[tuple[int, float, int], int]:
    """What the table adds up to half-way, and when that was."""
    chance = np.random.default_rng(2)
    new = KEY_FIRST + np.arange(journey.keys)
    half = journey.changes // 2
    early, late = half - journey.keys, journey.changes - half
    updates = [KEY_FIRST + chance.integers(0, journey.keys, count) for count in (early, late)]
    await send_changes(server, "INSERT", TABLE, new, "past-inserts", progress)
    await send_changes(server, "UPDATE", TABLE, updates[0], "past-early", progress)
    await asyncio.sleep(_APART_S)
    moment_ms = time.time_ns() // 1_000_000
    await asyncio.sleep(_APART_S)
    await send_changes(server, "UPDATE", TABLE, updates[1], "past-late", progress)
    amounts, counts = _last("amount", new, updates[0]), _last("qty", new, updates[0])
    return (journey.keys, float(amounts.sum()), int(counts.sum())), moment_ms


def _last(column: str, inserted: Keys, updated: Keys) -> npt.NDArray[np.float64]:
    """The value of each row after these, as `send_changes` has filled them in."""
    values = np.empty(len(inserted))
    for operation, keys in (("INSERT", inserted), ("UPDATE", updated)):
        size = min(BATCH_EVENTS, len(keys))
        sent = [
            change["after"][column]
            for seed in range(LOAD_TEMPLATES)
            for change in changes_of(operation, TABLE, size, seed)
        ]
        values[keys - KEY_FIRST] = np.resize(np.array(sent, float), len(keys))  # of a key that comes twice, the last
    return values
