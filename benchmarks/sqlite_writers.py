"""How many transactions of an application fail because its SQLite file is followed, and what does a bulk change cost?

Driven by `dolake bench sqlite-writers`. The source is the real `dolake source sqlite` and the server the real `dolake
serve`. Writers run in turns on a plain file, on one that has triggers and no source, and on one that is followed.
Promise: all processes and files are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import Run, at_most, temporary_home, terminate_as_exit
from dolake.cli.child import ChildServer
from dolake.sources.configured import view_of
from dolake.sources.sqlite import enable_cdc, status
from tools.sqlite_writers import JOURNAL_MODES, Outcome, Writers, make_file, run_writers

PLAIN, ENABLED, FOLLOWED = "plain", "enabled", "followed"
DEFERRED = "four writers, deferred"
SOURCE = (sys.executable, "-m", "dolake.cli", "source", "sqlite")
BULK_CPU_TIMES_MAX = 6.0
BULK_SIZE_TIMES_MAX = 2.5
_WAIT_MAX_S = 300.0
_NOTE = "by the door, " * 8
"""Of each row of the table that is updated as a whole: rows have some 120 bytes."""
_KINDS = {
    "one writer": Writers(1, "DEFERRED", 0),
    "four writers, BEGIN IMMEDIATE": Writers(4, "IMMEDIATE", 0),
    DEFERRED: Writers(4, "DEFERRED", 0),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything."""

    transactions: int = 10_000
    """Of each kind of writers, on each kind of file, in each journal mode."""
    rounds: int = 5
    """In how many turns."""
    pauses: int = 10
    pause_s: float = 5.0
    """Between what a transaction reads and what it writes."""
    bulk_rows: int = 200_000
    bulk_rounds: int = 3


def run_sqlite_writers_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit():
        run = Run("sqlite-writers", folder)
        with ChildServer(folder / "home") as server:
            figures = {
                "load": asdict(load),
                "sqlite": sqlite3.sqlite_version,
                "writers": {mode: _writers(folder, load, server, mode) for mode in JOURNAL_MODES},
                "bulk_update": {mode: _bulk_updates(folder, load, server, mode) for mode in JOURNAL_MODES},
            }
            server.stop()
        return run.report(figures, _floors(figures), out)


def _floors(figures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for mode, kinds in figures["writers"].items():
        for kind, found in kinds.items():
            if kind != DEFERRED:
                yield at_most(f"{mode}: {kind}: failed while followed", found[FOLLOWED]["failed"], 0)
                continue
            # By chance the counts differ by a fifth from one run to the next.
            without = found[ENABLED]["failed"]
            yield at_most(
                f"{mode}: {kind}: failed while followed", found[FOLLOWED]["failed"], round(1.25 * without) + 10
            )
    for mode, found in figures["bulk_update"].items():
        yield at_most(f"{mode}: bulk update: times the CPU of a plain file", found["cpu_times"], BULK_CPU_TIMES_MAX)
        yield at_most(f"{mode}: bulk update: times the size of a plain file", found["size_times"], BULK_SIZE_TIMES_MAX)


# --- writers ---------------------------------------------------------------------------------------------------------


def _writers(folder: Path, load: Load, server: ChildServer, mode: str) -> dict[str, Any]:
    found = {}
    for name, kind in _KINDS.items():
        turn = replace(kind, transactions=load.transactions // load.rounds // kind.count)
        whats = (PLAIN, ENABLED, FOLLOWED) if name == DEFERRED else (PLAIN, FOLLOWED)
        found[name] = _in_turns(folder, load.rounds, server, mode, turn, whats)
    pausing = Writers(1, "DEFERRED", load.pauses, load.pause_s)
    found[f"a transaction that pauses {load.pause_s:g} s"] = _in_turns(folder, 1, server, mode, pausing, (FOLLOWED,))
    return found


def _in_turns(
    folder: Path,
    rounds: int,
    server: ChildServer,
    mode: str,
    turn: Writers,
    whats: tuple[str, ...],
) -> dict[str, Any]:
    outcomes: dict[str, list[Outcome]] = {what: [] for what in whats}
    for _ in range(rounds):
        for what in whats:
            with _file(folder, server, mode, what) as path:
                outcomes[what] += run_writers(path, turn)
    return {
        what: {
            "transactions": sum(each.transactions for each in turns),
            "failed": sum(each.failed for each in turns),
            "seconds": round(sum(each.seconds for each in turns), 2),
        }
        for what, turns in outcomes.items()
    }


@contextlib.contextmanager
def _file(folder: Path, server: ChildServer, mode: str, what: str, **table: Any) -> Iterator[Path]:
    """A file with some rows, which is followed or not while the block takes; gone afterwards."""
    name = f"{what}-{time.monotonic_ns()}"
    path = folder / f"{name}.db"
    make_file(path, mode, **table)
    try:
        if what == ENABLED:
            enable_cdc(path)
        with _followed(path, server, name) if what == FOLLOWED else contextlib.nullcontext():
            yield path
    finally:
        for ending in ("", "-wal", "-shm", "-journal", ".log"):
            Path(f"{path}{ending}").unlink(missing_ok=True)


@contextlib.contextmanager
def _followed(path: Path, server: ChildServer, name: str) -> Iterator[None]:
    """The source has copied the file, and goes on."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    command = [*SOURCE, str(path), "--to", server.url, "--namespace", name.replace("-", "_")]
    with Path(f"{path}.log").open("ab") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        _wait_until_told(path, server, process)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)


def _wait_until_told(path: Path, server: ChildServer, process: subprocess.Popen[bytes]) -> None:
    give_up_s = time.monotonic() + _WAIT_MAX_S
    while not _is_told(path, server):
        if process.poll() is not None or time.monotonic() > give_up_s:
            raise RuntimeError(f"the source does not follow {path}: {Path(f'{path}.log').read_text()[-2_000:]}")
        time.sleep(0.05)


def _is_told(path: Path, server: ChildServer) -> bool:
    view = asyncio.run(view_of(server.url, None))
    if not any(each.state and each.state.path == str(path.resolve()) for each in view.streams.values()):
        return False
    found = status(path, view)
    return not found.pending and not found.is_copying


# --- a bulk update ---------------------------------------------------------------------------------------------------


def _bulk_updates(folder: Path, load: Load, server: ChildServer, mode: str) -> dict[str, Any]:
    """One statement that changes every row: time, CPU of the writer, and the size of the file behind it."""
    turns: dict[str, list[dict[str, float]]] = {PLAIN: [], ENABLED: [], FOLLOWED: []}
    for _ in range(load.bulk_rounds):
        for what, found in turns.items():
            with _file(folder, server, mode, what, rows=load.bulk_rows, note=_NOTE) as path:
                found.append(_bulk_update(path))
    figures: dict[str, Any] = {
        what: {name: round(median(turn[name] for turn in found), 3) for name in found[0]}
        for what, found in turns.items()
    }
    for name, word in (("seconds", "times"), ("cpu_s", "cpu_times"), ("file_mb", "size_times")):
        figures[word] = round(figures[FOLLOWED][name] / max(figures[PLAIN][name], 0.001), 2)
    return figures


def _bulk_update(path: Path) -> dict[str, float]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as db:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        db.execute("UPDATE orders SET amount = amount + 1")
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"seconds": seconds, "cpu_s": cpu_s, "file_mb": path.stat().st_size / 1e6}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_sqlite_writers_bench(), indent=2) + "\n")
