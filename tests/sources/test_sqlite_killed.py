"""The process of a source is killed again and again while three programs write: every change is told once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.mirror import Mirror, events_in
from tests.support.server import ServerProcess, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.own_lake]
KILLS = 5
_SOURCE = (sys.executable, "-m", "dolake.cli", "source", "sqlite")


def _write(path: Path, seed: int, stop: threading.Event, failures: list[Exception]) -> None:
    dice = random.Random(seed)
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    number = 0
    try:
        while not stop.is_set():
            db.execute("BEGIN IMMEDIATE")
            for _ in range(dice.randint(1, 10)):
                number += 1
                key = dice.randrange(300)
                mark = f"{seed}.{number}"
                if dice.random() < 0.6:
                    db.execute("UPDATE orders SET mark = ? WHERE id = ?", (mark, key))
                elif dice.random() < 0.5:
                    db.execute("DELETE FROM orders WHERE id = ?", (key,))
                else:
                    db.execute("REPLACE INTO orders VALUES (?, ?)", (key, mark))
            db.execute("ROLLBACK" if dice.random() < 0.1 else "COMMIT")
            time.sleep(0.005)
    except sqlite3.Error as error:
        failures.append(error)
    finally:
        db.close()


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_source_that_is_killed_at_any_time_tells_every_change_once(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {mode}")
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, mark TEXT)")
    db.executemany("INSERT INTO orders VALUES (?, 'first')", [(number,) for number in range(3_000)])
    stop, failures = threading.Event(), list[Exception]()
    writers = [threading.Thread(target=_write, args=(path, seed, stop, failures)) for seed in range(3)]
    with ServerProcess(tmp_path / "home") as server:
        command = (*_SOURCE, str(path), "--to", server.url)

        def durable() -> int:
            streams = server.get("/v1/sources")[1]["streams"]
            return max((each["lastDurableSequence"] for each in streams), default=0)

        for writer in writers:
            writer.start()
        try:
            for kill in range(KILLS):
                before = durable()
                source = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    wait_for(lambda before=before: durable() > before, "changes arrive", wait_s=60)  # type: ignore[misc]
                    time.sleep(random.Random(kill).uniform(0, 0.3))  # when the kill comes, not how we wait
                finally:
                    source.kill()
                    source.wait()
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        done = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert not failures
    rows = [{"id": key, "mark": mark} for key, mark in db.execute("SELECT id, mark FROM orders")]
    db.close()
    assert Mirror.of(tmp_path / "home").rows("orders") == sorted(rows, key=repr)
    events = list(events_in(tmp_path / "home"))
    updates = Counter(event["after"]["mark"] for event in events if event["operation"] == "UPDATE")
    assert updates
    assert max(updates.values()) == 1
    assert len({event["sequence"] for event in events}) == len(events)
