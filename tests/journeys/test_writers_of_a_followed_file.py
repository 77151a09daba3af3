"""Following a file makes no transaction of its application fail, in both journal modes of SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from dolake.sources.sqlite import enable_cdc
from tests.support.server import ServerProcess
from tests.support.source_process import following, wait_until_told
from tools.sqlite_writers import JOURNAL_MODES, Outcome, Writers, make_file, run_writers

TRANSACTIONS, TRANSACTIONS_IN_CHAOS = 200, 10_000
ROWS = 200

Run = Callable[..., list[Outcome]]


@pytest.fixture(params=JOURNAL_MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def followed(mode: str, default_server: ServerProcess, tmp_path: Path) -> Run:
    """Writers of a file that is followed; afterwards the lake has every row that was committed."""

    def run(*writers: Writers) -> list[Outcome]:
        name = f"writers_{uuid.uuid4().hex[:8]}"
        path = tmp_path / f"{name}.db"
        make_file(path, mode, ROWS)
        with following(path, default_server.url, name):
            outcomes = run_writers(path, *writers)
            wait_until_told(path, default_server.url)
        with contextlib.closing(sqlite3.connect(path)) as db:
            ((count,),) = db.execute("SELECT count(*) FROM orders").fetchall()
        assert count == ROWS + sum(each.transactions - each.failed for each in outcomes)
        return outcomes

    return run


@pytest.fixture
def only_enabled(mode: str, tmp_path: Path) -> Run:
    """Writers of a file with triggers that no source reads."""

    def run(*writers: Writers) -> list[Outcome]:
        path = tmp_path / f"{uuid.uuid4().hex[:8]}.db"
        make_file(path, mode, ROWS)
        enable_cdc(path)
        return run_writers(path, *writers)

    return run


@pytest.mark.slow
def test_no_transaction_of_one_writer_fails(followed: Run) -> None:
    assert not followed(Writers(1, "DEFERRED", TRANSACTIONS))[0].failures


@pytest.mark.slow
def test_no_transaction_of_four_writers_that_begin_immediate_fails(followed: Run) -> None:
    assert not followed(Writers(4, "IMMEDIATE", TRANSACTIONS // 4))[0].failures


@pytest.mark.slow
def test_a_transaction_that_pauses_between_reading_and_writing_does_not_fail(followed: Run) -> None:
    assert not followed(Writers(1, "DEFERRED", 2, pause_s=1.5))[0].failures


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
def test_none_of_ten_thousand_transactions_of_one_writer_fails(followed: Run) -> None:
    assert not followed(Writers(1, "DEFERRED", TRANSACTIONS_IN_CHAOS))[0].failures


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
def test_none_of_ten_thousand_transactions_of_four_writers_fails(followed: Run) -> None:
    assert not followed(Writers(4, "IMMEDIATE", TRANSACTIONS_IN_CHAOS // 4))[0].failures


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
def test_no_transaction_that_pauses_five_seconds_fails(followed: Run) -> None:
    assert not followed(Writers(1, "DEFERRED", 20, pause_s=5))[0].failures


@pytest.mark.slow
def test_deferred_writers_fail_no_more_often_than_without_a_source(followed: Run, only_enabled: Run) -> None:
    compare_deferred_writers(followed, only_enabled, Writers(4, "DEFERRED", 50), turns=3, factor=2.0)


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
def test_deferred_writers_fail_no_more_often_in_ten_thousand_transactions(followed: Run, only_enabled: Run) -> None:
    compare_deferred_writers(
        followed, only_enabled, Writers(4, "DEFERRED", TRANSACTIONS_IN_CHAOS // 40), turns=10, factor=1.25
    )


def compare_deferred_writers(followed: Run, only_enabled: Run, turn: Writers, *, turns: int, factor: float) -> None:
    """They make each other fail, with a source or without: so how many fail, in turns. It differs by chance."""
    without, beside = 0, 0
    for _ in range(turns):
        without += only_enabled(turn)[0].failed
        beside += followed(turn)[0].failed
    assert beside <= factor * without + 3 * (without + beside) ** 0.5
