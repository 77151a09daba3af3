"""Amounts move between two tables in transactions, and whoever adds them up finds the same total, whenever and however.

Live in our SQL, as of any moment, and in DuckDB on the catalog, at a time or in a pinned warehouse; while the server
and its query process are killed in between.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.journeys.moving_money import BY_OWNER, TOTAL, Bank
from tests.support.aio import run
from tests.support.server import ServerProcess
from tests.support.tables import verified
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_SETTINGS = """\
[lake]
freshness_target_ms = 300
transaction_wait_max_ms = 120000
[pipeline]
retry_delay_ms = 100
[compaction]
min_files_to_compact = 2
compaction_interval_ms = 3000
[maintenance]
small_files_max = 3
[journal]
segment_size_bytes = 65536
group_size_max_bytes = 65536
"""


def test_the_total_is_the_same_for_every_reader_through_kills(tmp_path: Path) -> None:
    _move_money(tmp_path, ["query", "server", "query"], seed=7)


@pytest.mark.chaos
def test_the_total_is_the_same_through_thirty_kills(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    dice = random.Random(seed)
    _move_money(tmp_path, dice.choices(["query", "server", "pipeline"], [3, 2, 1], k=30), seed=seed)


def _move_money(home: Path, troubles: list[str], seed: int) -> None:
    with ServerProcess(home, settings=_SETTINGS, has_pipeline=True) as server:
        bank = Bank(server, seed)
        run(bank.run(troubles), timeout_s=300 + 60 * len(troubles))
        server.flush()
        run(bank.ask_again(), timeout_s=300)
        with duck_on(server.url) as duck:
            duck.execute("USE lake.default")
            rows = duck.execute(BY_OWNER.replace("bank.savings", "lake.bank.savings")).fetchall()
            assert [row[:2] for row in rows] == [("ender", TOTAL), ("opener", TOTAL)]
        verified(home)
        assert server.stop() == 0
