"""Two SQLite files are written, followed and published, while writers, source and server are killed at random moments.

At the end the lake has the files' rows, one by one, as DuckDB reads them through the REST catalog.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.server import ServerProcess, status_of, wait_for
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.own_lake

SHARDS = ("east", "west")
COLUMNS = "id, city, amount, paid"
WRITER = """
import random, sqlite3, sys, time
path, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
db = sqlite3.connect(path, isolation_level=None, timeout=60)
while True:
    db.execute("BEGIN IMMEDIATE")
    for _ in range(dice.randint(1, 20)):
        number = first + dice.randrange(400)
        what = dice.random()
        if what < 0.5:
            db.execute("REPLACE INTO orders VALUES (?, ?, ?, ?)", (number, dice.choice("abc"), dice.random(), 1))
        elif what < 0.8:
            db.execute("UPDATE orders SET amount = amount + 1, paid = 1 - paid WHERE id = ?", (number,))
        elif what < 0.9:
            db.execute("UPDATE OR REPLACE orders SET id = ? WHERE id = ?", (first + dice.randrange(400), number))
        else:
            db.execute("DELETE FROM orders WHERE id = ?", (number,))
    db.execute("ROLLBACK" if dice.random() < 0.1 else "COMMIT")
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_three_kills_and_the_lake_is_what_the_files_are(tmp_path: Path) -> None:
    _kill_and_compare(tmp_path, kills=3, seed=3)


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.spark
def test_thirty_kills_and_the_lake_is_what_the_files_are(tmp_path: Path) -> None:
    _kill_and_compare(tmp_path, kills=30, seed=random.SystemRandom().randrange(10**6))


def _kill_and_compare(folder: Path, *, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    files = folder / "shop"
    files.mkdir()
    for number, shard in enumerate(SHARDS):
        _make(files / f"{shard}.db", number * 1_000)
    with ServerProcess(folder / "home", has_pipeline=True, has_queries=False) as server:
        processes = _Processes(files, server)
        try:
            processes.start_all(dice)
            victims = ["writer", "source", "server"]
            dice.shuffle(victims)
            for kill in range(kills):
                time.sleep(dice.uniform(0.1, 1.5))  # when the kill comes, not how we wait for something
                processes.kill_and_restart(victims[kill % 3] if kill < 3 else dice.choice(victims), dice)
            before = status_of(server)["durablePosition"]
            wait_for(lambda: bool(status_of(server)["durablePosition"] > before), "the source sends again")
        finally:
            processes.kill_all()
        processes.bring_the_rest()
        expected = sorted(row for shard in SHARDS for row in _rows(files / f"{shard}.db"))
        assert len(expected) > 100
        server.flush()
        with duck_on(server.url) as duck:
            found = sorted(duck.execute(f"SELECT {COLUMNS} FROM lake.default.orders").fetchall())  # noqa: S608
        assert found == expected, f"seed {seed}"
        assert server.stop() == 0


class _Processes:
    """Who may die: one writer for each file, one source for both, and the server."""

    def __init__(self, files: Path, server: ServerProcess) -> None:
        self._files = files
        self._server = server
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {"writer": [], "source": []}
        self._command = [
            sys.executable,
            "-m",
            "dolake.cli",
            "source",
            "sqlite",
            "--shards",
            str(files),
            "--to",
            server.url,
        ]

    def start_all(self, dice: random.Random) -> None:
        self._start("writer", dice)
        self._start("source", dice)

    def _start(self, who: str, dice: random.Random) -> None:
        if who == "source":
            commands = [self._command]
        else:
            commands = [
                [
                    sys.executable,
                    "-c",
                    WRITER,
                    str(self._files / f"{shard}.db"),
                    str(number * 1_000),
                    str(dice.random())[2:8],
                ]
                for number, shard in enumerate(SHARDS)
            ]
        with (self._files / f"{who}.log").open("ab") as log:
            self._running[who] = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]

    def kill_and_restart(self, who: str, dice: random.Random) -> None:
        if who == "server":
            self._server.kill()
            self._server.start()
            return
        self._kill(who)
        self._start(who, dice)

    def _kill(self, who: str) -> None:
        for process in self._running[who]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._running[who] = []

    def kill_all(self) -> None:
        for who in self._running:
            self._kill(who)

    def bring_the_rest(self) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
        done = subprocess.run(
            [*self._command, "--once"], env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr


def _make(path: Path, first: int) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount REAL, paid BOOLEAN)")
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO orders VALUES (?, 'x', ?, 0)", [(first + number, number * 1.1) for number in range(0, 400, 2)]
    )
    db.execute("COMMIT")
    db.close()


def _rows(path: Path) -> list[tuple[int, str, float, bool]]:
    db = sqlite3.connect(path)
    found = [(id_, city, amount, bool(paid)) for id_, city, amount, paid in db.execute(f"SELECT {COLUMNS} FROM orders")]  # noqa: S608
    db.close()
    return found
