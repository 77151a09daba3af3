"""How many row changes a second come from a SQLite commit to a durable ack, and what does capture cost the writer?

Driven by `dolake bench sqlite-source`. The writer is this process, the source is the real `dolake source sqlite` and
the server the real `dolake serve`, each a process of its own. Three parts: single-row transactions on a plain file and
on one that is followed; a backlog that is brought as fast as it goes; a steady load and its lag. Promise: all processes
and files are gone afterwards, also after Ctrl-C.
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
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.machine import Run, at_least, at_most, temporary_home, terminate_as_exit
from dolake.cli.child import COMMAND, ChildServer
from dolake.sources.configured import view_of
from dolake.sources.sqlite import enable_cdc, is_attached, status

FLOOR_CHANGES_S = 20_000
FLOOR_OVERHEAD = 2.5
SOURCE = (sys.executable, "-m", "dolake.cli", "source", "sqlite")
TABLE = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, city TEXT, amount REAL, count INTEGER, paid BOOLEAN, "
    "created DATETIME, note TEXT)"
)
_WAIT_MAX_S = 170.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    transactions: int = 20_000
    """Single-row transactions of each kind, without a sync at each commit; a tenth with one."""
    rounds: int = 3
    backlog: int = 400_000
    rows_per_transaction: int = 20
    seconds: float = 20
    rate_changes_s: int = 20_000
    has_pipeline: bool = False


def run_sqlite_source_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit():
        run = Run("sqlite-source", folder)
        overhead = {word: _overhead(folder, load, word) for word in ("NORMAL", "FULL")}
        with ChildServer(folder / "home", command=command, has_pipeline=load.has_pipeline) as server:
            figures = {
                "load": asdict(load),
                "sqlite": sqlite3.sqlite_version,
                "overhead": overhead,
                **_streaming(folder, load, server),
            }
            server.stop()
        return run.report(figures, _floors(figures), out)


def _floors(figures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield at_least("backlog: durable changes a second", figures["backlog"]["changes_per_s"], FLOOR_CHANGES_S)
    yield at_least("steady: durable changes a second", figures["steady"]["changes_per_s"], FLOOR_CHANGES_S * 0.98)
    for word, kinds in figures["overhead"].items():
        for kind, found in kinds.items():
            yield at_most(f"{kind}, synchronous = {word}: times plain SQLite", found["times"], FLOOR_OVERHEAD)


# --- what it costs the writer ----------------------------------------------------------------------------------------


def _overhead(folder: Path, load: Load, synchronous: str) -> dict[str, Any]:
    """Plain and followed in turns, so that a busy moment of the machine meets both."""
    count = load.transactions if synchronous == "NORMAL" else max(1, load.transactions // 10)
    found: dict[str, dict[str, list[float]]] = {
        kind: {"plain": [], "followed": []} for kind in ("insert", "update", "delete")
    }
    for number in range(load.rounds):
        for what in ("plain", "followed"):
            path = folder / f"{what}-{synchronous}-{number}.db"
            db = _application(path, synchronous)
            if what == "followed":
                enable_cdc(path)
            for kind, one in _kinds(db).items():
                began = time.perf_counter()
                for index in range(count):
                    one(index * 7919 % count if kind != "insert" else index)
                found[kind][what].append((time.perf_counter() - began) / count * 1e6)
            db.close()
            _remove(path)
    return {kind: _compared(times) for kind, times in found.items()}


def _compared(times: dict[str, list[float]]) -> dict[str, Any]:
    plain, followed = median(times["plain"]), median(times["followed"])
    return {"plain_us": round(plain, 1), "followed_us": round(followed, 1), "times": round(followed / plain, 2)}


def _kinds(db: sqlite3.Connection) -> dict[str, Callable[[int], Any]]:
    return {
        "insert": lambda index: db.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _row(index)),
        "update": lambda index: db.execute("UPDATE orders SET amount = ?, paid = 1 WHERE id = ?", (index * 0.5, index)),
        "delete": lambda index: db.execute("DELETE FROM orders WHERE id = ?", (index,)),
    }


def _row(index: int) -> tuple[Any, ...]:
    return (index, f"customer {index % 1000}", "Oslo", index * 1.25, index % 9, 0, "2026-01-31 10:00:00", "by the door")


def _application(path: Path, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(TABLE)
    return db


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


# --- from commit to durable ack --------------------------------------------------------------------------------------


def _streaming(folder: Path, load: Load, server: ChildServer) -> dict[str, Any]:
    path = folder / "shop.db"
    db = _application(path, "NORMAL")
    enable_cdc(path)
    with _source(path, server) as process:  # the copy of an empty table, and the start of two processes, do not count
        _wait(lambda: is_attached(path) and not status(path, asyncio.run(view_of(server.url, None))).is_copying)
        _end(process)
    writer = _Writer(db, load, _durable(server))
    while writer.count < load.backlog:
        writer.write()
    with _source(path, server) as process:
        backlog = _bring_backlog(server, load, process)
        steady = _follow(server, writer, load, process)
    db.close()
    return {"backlog": backlog, "steady": steady}


class _Writer:
    """An application: transactions of some rows, of which most are inserts and some update what is there."""

    def __init__(self, db: sqlite3.Connection, load: Load, position: int) -> None:
        self._db = db
        self._rows = load.rows_per_transaction
        self.count = position
        """At which position of the lake the last change will be durable."""
        self._next = 0

    def write(self) -> None:
        inserts = self._rows - self._rows // 4
        self._db.execute("BEGIN IMMEDIATE")
        rows = [_row(self._next + index) for index in range(inserts)]
        self._db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._next += inserts
        updates = [
            (index * 0.5, (self._next * 7919 + index * 104_729) % self._next) for index in range(self._rows // 4)
        ]
        self._db.executemany("UPDATE orders SET amount = ? WHERE id = ?", updates)
        self._db.execute("COMMIT")
        self.count += self._rows


def _bring_backlog(server: ChildServer, load: Load, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    began = before = _durable(server)
    while (before := _durable(server)) == began:  # the source is starting
        time.sleep(0.05)
    began_s, own = time.perf_counter(), _cpu_s(process)
    _wait(lambda: _durable(server) >= load.backlog)
    seconds = time.perf_counter() - began_s
    changes = load.backlog - before
    return {
        "changes": changes,
        "seconds": round(seconds, 2),
        "changes_per_s": round(changes / seconds),
        "source_cpu_us_per_change": round((_cpu_s(process) - own) / max(changes, 1) * 1e6, 2),
    }


def _follow(server: ChildServer, writer: _Writer, load: Load, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Write at a rate, and look how far the lake is behind."""
    began_s, first, own = time.perf_counter(), writer.count, _cpu_s(process)
    written: list[tuple[float, int]] = [(began_s, first)]
    looks: list[tuple[float, int]] = []
    looked_s = began_s
    while (now := time.perf_counter()) - began_s < load.seconds:
        if writer.count - first <= (now - began_s) * load.rate_changes_s:
            writer.write()
            written.append((time.perf_counter(), writer.count))
        else:
            time.sleep(0.001)
        if now - looked_s > 0.1:
            looked_s = now
            looks.append((time.perf_counter(), _durable(server)))
    wrote_s = time.perf_counter() - began_s
    _wait(lambda: _durable(server) >= writer.count)
    seconds = time.perf_counter() - began_s
    changes = writer.count - first
    counts, times = [count for _, count in written], [at for at, _ in written]
    lags_ms = [
        max(0.0, (at - times[int(np.searchsorted(counts, count))]) * 1000) for at, count in looks if count < counts[-1]
    ]
    return {
        "changes": changes,
        "written_per_s": round(changes / wrote_s),
        "changes_per_s": round(changes / seconds),
        "lag_p50_ms": round(float(np.percentile(lags_ms, 50)), 1) if lags_ms else None,
        "lag_p99_ms": round(float(np.percentile(lags_ms, 99)), 1) if lags_ms else None,
        "source_cpu_us_per_change": round((_cpu_s(process) - own) / max(changes, 1) * 1e6, 2),
    }


def _durable(server: ChildServer) -> int:
    """How many changes the server has made durable: what `connect` would be told as the position."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:  # noqa: S310 - our own server
        text = answer.read().decode()
    line = next(line for line in text.splitlines() if line.startswith("dolake_journal_durable_position "))
    return int(float(line.rpartition(" ")[2]))


@contextlib.contextmanager
def _source(path: Path, server: ChildServer) -> Iterator[subprocess.Popen[bytes]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    with Path(f"{path}.log").open("ab") as log:
        process = subprocess.Popen([*SOURCE, str(path), "--to", server.url], env=environ, stdout=log, stderr=log)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _wait(is_true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _WAIT_MAX_S
    while not is_true():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"nothing came within {_WAIT_MAX_S:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_sqlite_source_bench(), indent=2) + "\n")
