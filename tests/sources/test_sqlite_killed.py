"""The process of a source is killed again and again while three programs write: every change is told once."""

from __future__ import annotations

import asyncio
import functools
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from dolake.server.lake import Lake
from tests.support.aio import until
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in

pytestmark = pytest.mark.slow
KILLS = 5
_NULL = asyncio.subprocess.DEVNULL
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


def _durable(lake: Lake) -> int:
    return max((point.sequence for point in lake.journal.points().values()), default=0)


def _has_moved(lake: Lake, before: int) -> bool:
    return _durable(lake) > before


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
async def test_a_source_that_is_killed_at_any_time_tells_every_change_once(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {mode}")
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, mark TEXT)")
    db.executemany("INSERT INTO orders VALUES (?, 'first')", [(number,) for number in range(3_000)])
    stop, failures = threading.Event(), list[Exception]()
    writers = [threading.Thread(target=_write, args=(path, seed, stop, failures)) for seed in range(3)]
    (tmp_path / "home").mkdir()
    async with running_lake(tmp_path / "home") as (lake, url):
        command = (*_SOURCE, str(path), "--to", url)
        for writer in writers:
            writer.start()
        try:
            for kill in range(KILLS):
                before = _durable(lake)
                source = await asyncio.create_subprocess_exec(*command, stdout=_NULL, stderr=_NULL)
                try:
                    await until(functools.partial(_has_moved, lake, before))
                    await asyncio.sleep(random.Random(kill).uniform(0, 0.3))  # when the kill comes, not how we wait
                finally:
                    source.kill()
                    await source.wait()
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        once = await asyncio.create_subprocess_exec(*command, "--once", stdout=_NULL)
        async with asyncio.timeout(120):
            assert await once.wait() == 0
    assert not failures
    rows = [{"id": key, "mark": mark} for key, mark in db.execute("SELECT id, mark FROM orders")]
    db.close()
    assert Mirror.of(tmp_path / "home").rows("orders") == sorted(rows, key=repr)
    events = list(events_in(tmp_path / "home"))
    updates = Counter(event["after"]["mark"] for event in events if event["operation"] == "UPDATE")
    assert updates
    assert max(updates.values()) == 1
    assert len({event["sequence"] for event in events}) == len(events)
