"""Writers of one SQLite file, each in a process of its own, which count the transactions that fail.

From the tests and from `dolake bench sqlite-writers`: does it hurt an application that its file is followed?
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_WAIT_MAX_S = 3_000
_BUSY_WAIT_S = 30
_REST_MEAN_S = 0.001
JOURNAL_MODES = ("delete", "wal")


@dataclass(frozen=True, slots=True)
class Writers:
    """What each process does: transactions that read, and then write."""

    count: int
    begin: str
    """IMMEDIATE, or DEFERRED as most libraries do it: such a transaction cannot always become one that writes."""
    transactions: int
    """Of each of them."""
    pause_s: float = 0.0
    """Between what a transaction reads and what it writes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the transactions of all writers."""

    transactions: int
    seconds: float
    failures: Counter[str] = field(default_factory=Counter)
    """How many failed, by SQLite's message."""

    @property
    def failed(self) -> int:
        return self.failures.total()


def make_file(path: Path, mode: str, rows: int = 200, note: str = "by the door") -> None:
    """A table with some rows."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, writer INTEGER, amount REAL, note TEXT)")
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO orders VALUES (?, 0, ?, ?)", [(number + 1, number * 0.5, note) for number in range(rows)]
        )
        db.execute("COMMIT")


def run_writers(path: Path, *writers: Writers) -> list[Outcome]:
    """Run all of them at the same time, to their end; an outcome for each kind."""
    running: list[list[subprocess.Popen[bytes]]] = []
    try:
        for number, kind in enumerate(writers):
            running.append([_start(path, kind, number * 100 + index) for index in range(kind.count)])
        _let_go([each for processes in running for each in processes])
        return [_outcome(kind, processes) for kind, processes in zip(writers, running, strict=True)]
    finally:
        for process in (each for processes in running for each in processes):
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(path: Path, kind: Writers, number: int) -> subprocess.Popen[bytes]:
    words = [str(path), str(number), kind.begin, str(kind.transactions), str(kind.pause_s)]
    return subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _let_go(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All begin at the same time, when the last of them is ready."""
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()


def _outcome(kind: Writers, processes: Sequence[subprocess.Popen[bytes]]) -> Outcome:
    failures: Counter[str] = Counter()
    seconds = 0.0
    for process in processes:
        text, _ = process.communicate(timeout=_WAIT_MAX_S)
        found = json.loads(text)
        failures.update(found["failures"])
        seconds = max(seconds, found["seconds"])
    return Outcome(kind.count * kind.transactions, seconds, failures)


def _write(path: str, number: int, begin: str, transactions: int, pause_s: float) -> None:
    """One writer, as a web application does it: read something, then write something that depends on it."""
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_WAIT_S)
    failures: Counter[str] = Counter()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began_s = time.perf_counter()
    for turn in range(transactions):
        try:
            db.execute(f"BEGIN {begin}")
            (last,) = db.execute("SELECT max(id) FROM orders").fetchone()
            if pause_s:
                time.sleep(pause_s)
            db.execute("INSERT INTO orders VALUES (?, ?, ?, 'new')", (last + 1, number, turn * 0.5))
            db.execute("UPDATE orders SET amount = amount + 1 WHERE id = ?", (turn % 200 + 1,))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            failures[str(error)] += 1
            if db.in_transaction:
                db.execute("ROLLBACK")
        # Without a rest, a transaction that failed would be tried again while the same other one goes on.
        time.sleep(random.uniform(0, 2 * _REST_MEAN_S))  # noqa: S311
    seconds = time.perf_counter() - began_s
    db.close()
    sys.stdout.write(json.dumps({"seconds": seconds, "failures": failures}) + "\n")


if __name__ == "__main__":
    _write(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
