"""Fifty partitions move to the cold tier while 2,000 changes a second come and processes die: no row is lost."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from dolake.client.sync import connect
from tests.journeys.asking_support import wait_for_answers
from tests.support.changes import insert, update
from tests.support.server import ServerProcess, children_of, post, query, wait_for
from tests.support.tables import verified
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.own_lake]
_DAYS = [f"2024-{number // 25 + 1:02d}-{number % 25 + 1:02d}" for number in range(50)]
_ROWS_A_DAY = 400
_COUNT = len(_DAYS) * _ROWS_A_DAY
_CHANGES_A_SECOND, _BATCH = 2_000, 200
_SETTINGS = """\
freshness_target_ms = 1_000
partition_by = "date"
[compaction]
compaction_interval_ms = 2_000
"""


def _row(key: str, n: int) -> dict[str, Any]:
    return {"created_at": f"{key[:10]}T10:00:00Z", "n": n}


class _Sender(threading.Thread):
    """Changes random rows, so that their number is always the same; `said` is what each of them should be."""

    def __init__(self, url: str, said: dict[str, int]) -> None:
        super().__init__(name="sender")
        self._url, self.said = url, said
        self.stopping = threading.Event()
        self.count = 0
        self.seconds = 0.0

    def run(self) -> None:
        keys, rng = list(self.said), random.Random(7)
        with connect(self._url, source="ledger") as lake:
            began_s = time.monotonic()
            while not self.stopping.is_set():
                chosen = rng.sample(keys, _BATCH)
                news = {key: rng.randrange(1_000_000) for key in chosen}
                lake.send([update("ledger", key, None, _row(key, n)) for key, n in news.items()])
                self.said |= news
                self.count += _BATCH
                time.sleep(max(0.0, began_s + self.count / _CHANGES_A_SECOND - time.monotonic()))
            self.seconds = time.monotonic() - began_s


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, settings=_SETTINGS, has_pipeline=True) as running:
        wait_for_answers(running)
        yield running


def test_fifty_partitions_move_under_fire(server: ServerProcess) -> None:
    said = {f"{day}/{n}": n for day in _DAYS for n in range(_ROWS_A_DAY)}
    with connect(server.url, source="ledger") as lake:
        lake.send([insert("ledger", key, **_row(key, n)) for key, n in said.items()])
    server.flush()
    assert _tiers(server) == {key: {"warm"} for key in _DAYS}
    sender = _Sender(server.url, said)
    sender.start()
    try:
        kills = _move_through_kills(server)
    finally:
        sender.stopping.set()
        sender.join()
    server.flush()
    for _ in _DAYS:  # on a busy machine all of them take longer than anybody waits at once, but one does not
        wait_for(partial(_is_colder, server, _warm(server)), "one more is cold")
    assert _warm(server) == 0
    catalog = RestCatalog("lake", uri=server.url)
    with contextlib.closing(catalog):
        rows = catalog.load_table("default.ledger").scan().to_arrow().to_pylist()
    assert {row["_key"]: row["n"] for row in rows} == sender.said
    assert len(rows) == _COUNT
    assert server.stop() == 0
    report = verified(server.home, timeout_s=1_800)
    print(f"{kills} kills, {sender.count:,} changes at {sender.count / sender.seconds:,.0f} a second; {report}")


def _move_through_kills(server: ServerProcess) -> dict[str, int]:
    """Until every partition has cold files: somebody dies after every few of them, and every look counts all rows."""
    rng, moved, kills, looks = random.Random(11), set[str](), {"pipeline": 0, "server": 0}, 0
    status, answer = server.get("/v1/config", method="PATCH", body={"archiveAfterDays": 30})
    assert status == 200, answer
    while len(moved) < len(_DAYS):
        next_kill = len(moved) + rng.randrange(4, 9)
        while len(moved) < min(next_kill, len(_DAYS)):
            _assert_all_are_there(server)
            moved |= {day for day, tiers in _tiers(server).items() if "cold" in tiers}
            looks += 1
        if sum(kills.values()) % 3 == 2:
            server.kill()
            server.start()
            wait_for_answers(server)
            kills["server"] += 1
        elif found := children_of(server, "dolake.pipeline"):
            found[0].kill()
            kills["pipeline"] += 1
        print(f"moved {len(moved)} of {len(_DAYS)}, {looks} looks, {kills}", flush=True)
    return kills


def _assert_all_are_there(server: ServerProcess) -> None:
    """In our own SQL, which has what is not published yet, and in DuckDB, which reads the tables."""
    assert query(server, "SELECT count(*) AS n FROM ledger") == [{"n": _COUNT}]
    with duck_on(server.url) as duck:
        found = duck.execute("SELECT count(*), count(DISTINCT _key) FROM lake.default.ledger").fetchone()
    assert found == (_COUNT, _COUNT)


def _tiers(server: ServerProcess) -> dict[str, set[str]]:
    """By partition, as a plan names them."""
    answer = post(server, "/v1/query/plan", sql="SELECT * FROM ledger")
    found: dict[str, set[str]] = {}
    for file in answer["tables"][0]["reads"]:
        found.setdefault(file["partition"].removeprefix("date="), set()).add(file["tier"])
    return found


def _is_colder(server: ServerProcess, warm_before: int) -> bool:
    return _warm(server) < max(warm_before, 1)


def _warm(server: ServerProcess) -> int:
    """How many partitions are not all cold."""
    return sum(tiers != {"cold"} for tiers in _tiers(server).values())
