"""What do a million inserts cost, and a hundred batches of changes, each visible before the next? Beside our peers.

Driven by `dolake bench peers`. Each system has the same rows (workload.py), works in a process of its own
(contenders.py, driven by systems.py), and starts before the clock does; starts are reported apart. CPU seconds are
those of all its processes, in our case also of the client that sends. Promise: no process and no file stays behind,
also after Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.machine import Run, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.systems import SYSTEMS, System
from benchmarks.workload import COLUMNS, DELETES, UPDATES, Workload, write_workload
from dolake.cli.child import COMMAND
from dolake.errors import InvalidInput

PACKAGES = ("pyspark", "pyiceberg", "pyarrow", "duckdb", "duckdb-extension-ducklake")
FLOOR_INSERT_CPU_S_PER_MILLION = 20.0
FLOOR_BATCH_CPU_S = 0.5
FLOOR_FILES = 100
FLOOR_COUNT_S = 0.06


def run_peers_bench(
    *,
    events: int = 1_000_000,
    batches: int = 100,
    only: Sequence[str] = (),
    peer_seconds: float = 120,
    out: Path | None = None,
    home: Path | None = None,
    server_command: Sequence[str] = COMMAND,
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON.

    `only` names the systems, and all are meant without it. PyIceberg, which needs longer for each batch, is stopped
    after `peer_seconds` of them; the rest is estimated. `home` is a folder on the disk to measure.
    """
    _check(events, batches, only)
    systems: dict[str, Any] = {}
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("peers", folder, PACKAGES)
        workload = write_workload(folder / "data", events=events, batches=batches)
        for name in only or SYSTEMS:
            bench = _Bench(name, workload, peer_seconds, progress)
            with SYSTEMS[name](name, workload.folder, folder / name, server_command) as system:
                systems[name] = bench.run(system)
        load = {"events": events, "columns": COLUMNS, "batches": batches, "updates": UPDATES, "deletes": DELETES}
        return run.report({"load": load, "systems": systems}, _floors(systems.get("dolake"), batches), out)


def _check(events: int, batches: int, only: Sequence[str]) -> None:
    if unknown := [name for name in only if name not in SYSTEMS]:
        raise InvalidInput(f"{unknown[0]!r} is none of the systems", hint=f"there are {', '.join(SYSTEMS)}")
    rows_min = UPDATES + (batches + 1) * DELETES
    if batches < 1 or events < rows_min:
        raise InvalidInput(
            f"{batches} batches of changes do not fit {events} rows",
            hint=f"take at least one batch, and for {batches} at least {rows_min:,} events",
        )


def _floors(ours: dict[str, Any] | None, batches: int) -> Iterator[dict[str, Any]]:
    """Each promise with what was measured, and whether it was kept."""
    if ours is None:
        return
    inserts, changes = ours["inserts"], ours["changes"]
    yield at_most("inserts: CPU s per million", inserts["cpu_s_per_million"], FLOOR_INSERT_CPU_S_PER_MILLION)
    yield at_most(f"{batches} batches of changes: CPU s", changes["cpu_s"], FLOOR_BATCH_CPU_S * batches)
    yield at_most("wrong after the inserts or after a batch", len(changes["wrong_after"]) + (not inserts["right"]), 0)
    upkeep = ours["upkeep"]
    yield at_most("after upkeep: files on disk", upkeep["files"], FLOOR_FILES)
    yield at_most("after upkeep: DuckDB's count in s", upkeep["count_s"], FLOOR_COUNT_S)
    yield at_most("after upkeep: wrong totals", int(not upkeep["right"]), 0)


# --- the two jobs -----------------------------------------------------------------------------------------------------


class _Bench:
    def __init__(self, name: str, workload: Workload, peer_seconds: float, progress: Progress) -> None:
        self._name, self._workload, self._peer_seconds, self._progress = name, workload, peer_seconds, progress

    def run(self, system: System) -> dict[str, Any]:
        return {
            "start": system.start,
            "inserts": self._inserts(system),
            "changes": self._changes(system),
            "memory_peak_mb": system.memory_peak_mb(),
        } | self._upkeep(system)

    def _inserts(self, system: System) -> dict[str, Any]:
        bar = self._progress.add_task(f"{self._name}: inserts", total=1, note="")
        used, began_s = system.cpu_s(), time.perf_counter()
        system.insert()
        wall_s, cpu = time.perf_counter() - began_s, _since(used, system.cpu_s())
        self._progress.advance(bar)
        cpu_s = sum(cpu.values())
        return {
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "cpu_by_kind_s": cpu,
            "events_per_s": round(self._workload.events / wall_s),
            "cpu_s_per_million": round(cpu_s / self._workload.events * 1e6, 2),
            "right": system.totals() == self._workload.expected[0],
            **system.left(),
        }

    def _changes(self, system: System) -> dict[str, Any]:
        """Batch after batch. Between two of them we may look; the clock stands still, the CPU meter does not."""
        used, times_s, wrong_after = system.cpu_s(), list[float](), list[int]()
        bar = self._progress.add_task(f"{self._name}: batches", total=self._workload.batches, note="")
        for number in range(self._workload.batches):
            began_s = time.perf_counter()
            system.apply(number)
            times_s.append(time.perf_counter() - began_s)
            self._progress.advance(bar)
            is_last = number + 1 == self._workload.batches or (
                system.is_stopped_early and sum(times_s) > self._peer_seconds
            )
            cpu = _since(used, system.cpu_s()) if is_last else {}
            if (system.is_checked_each or is_last) and system.totals() != self._workload.expected[number + 1]:
                wrong_after.append(number + 1)
            if is_last:
                break
        wall_s = _extrapolated_s(times_s, self._workload.batches)
        share = wall_s / sum(times_s)
        return {
            "wall_s": round(wall_s, 2),
            "cpu_s": round(sum(cpu.values()) * share, 2),
            "cpu_by_kind_s": cpu,
            "batches": len(times_s),
            "is_estimate": len(times_s) < self._workload.batches,
            "visible_p50_s": round(float(np.percentile(times_s, 50)), 3),
            "visible_p95_s": round(float(np.percentile(times_s, 95)), 3),
            "visible_first_s": round(times_s[0], 3),
            "visible_last_s": round(times_s[-1], 3),
            "checked_batches": len(times_s) if system.is_checked_each else 1,
            "wrong_after": wrong_after,
            "right": not wrong_after,
            **system.left(),
        }

    def _upkeep(self, system: System) -> dict[str, Any]:
        bar = self._progress.add_task(f"{self._name}: upkeep", total=1, note="")
        found = system.after_upkeep()
        self._progress.advance(bar)
        if found is None:
            return {}
        return {"upkeep": {**found, "right": found["totals"] == asdict(self._workload.expected[-1])}}


def _since(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    return {kind: round(used - before.get(kind, 0.0), 2) for kind, used in now.items()}


def _extrapolated_s(times_s: Sequence[float], batches: int) -> float:
    """The sum over all batches; those that were not run are on a straight line through those that were."""
    missing = np.arange(len(times_s), batches)
    if not len(missing):
        return sum(times_s)
    slope, at_zero = np.polyfit(np.arange(len(times_s)), times_s, 1) if len(times_s) > 2 else (0.0, np.mean(times_s))
    return sum(times_s) + float(np.maximum(at_zero + slope * missing, min(times_s)).sum())
