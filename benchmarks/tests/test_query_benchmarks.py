"""`dolake bench query` and `live`: runs too short to prove speed, but every answer must be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import live, query
from benchmarks.asking import Answerer, Asker
from benchmarks.load import LoadError
from benchmarks.shop import TABLES
from benchmarks.tests.test_pipeline_benchmarks import KINDS, assert_whole
from benchmarks.workload import AGGREGATES, tiny_batches, updated_by
from dolake.cli.child import ChildServer
from dolake.errors import InvalidInput


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def _floor(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(floor for floor in report["floors"] if name in floor["name"])


@pytest.mark.chaos
def test_our_sql_and_duckdb_say_the_same_and_the_past_is_what_was_sent(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "results" / "query.json"
    load = query.Load(rows=3_500, unflushed=100, repeats=2, keys=1_000, changes=6_500)
    report = query.run_query_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    assert report["table"]["delete_files"] > 0
    for phase in ("published", "unflushed"):
        assert report[phase]["wrong"] == 0
        assert [each["name"] for each in report[phase]["questions"]] == [each.name for each in query.QUESTIONS]
        for each in report[phase]["questions"]:
            assert each["duckdb"]["ms"] > 0
            assert each["arrow"]["ratio"] > 0
            assert each["json"]["ratio"] > 0
    assert _floor(report, "un-flushed rows")["met"]
    past = report["time_travel"]
    assert past["right"], past
    assert past["tables"]["past_orders"]["snapshots"] == 1
    assert past["peak_memory_mb"] > 0
    assert len(report["floors"]) == 2 * len(query.QUESTIONS) + 4


@pytest.mark.chaos
def test_our_sql_shows_each_change_soon_after_its_ack_and_adds_up_as_ducklake_does(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "live.json"
    load = live.Load(
        seconds=3, warm_up_s=0.5, rate_events_s=1_000, batch_events=50, tiny_batches=20, rounds=1, rows=3_000, batches=3
    )
    report = live.run_live_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    stream = report["stream"]
    waits = stream["ack_to_visible_ms"]
    assert waits["samples"] > 5
    assert 0 < waits["p50"] <= waits["p95"] <= waits["p99"] <= waits["max"]
    assert set(stream["books"]) == set(TABLES)
    assert all(book["right"] for book in stream["books"].values()), stream["books"]
    assert set(stream["cpu_s"]) == KINDS
    for name, tiny in report["tiny"].items():
        assert tiny["wrong"] == 0, name
        assert 0 < tiny["commits"] <= 21
        assert len(tiny["rounds"][0]["each_aggregate_ms"]) == len(AGGREGATES)
    assert report["tiny"]["ducklake"]["rounds"][0]["same_answers"]
    for name, changes in report["changes"].items():
        assert changes["wrong"] == 0, name
        assert changes["same_answers"], name
    assert len(report["floors"]) == 9


@pytest.mark.chaos
def test_a_question_that_fails_says_why_and_the_process_that_answers_is_known(tmp_path: Path) -> None:
    with ChildServer(tmp_path / "home", has_queries=True) as server, Asker(server) as asker:
        assert asker.row("SELECT 1 AS one, 'x' AS x") == (1, "x")
        assert asker.arrow("SELECT ? AS n", [7]).to_pylist() == [{"n": 7}]
        with pytest.raises(LoadError, match="nowhere"):
            asker.json("SELECT * FROM nowhere")
        answerer = Answerer.of(server)
        answerer.forget_peak()
        assert answerer.peak_mb() > 10
        assert answerer.cpu_s() > 0


def test_a_past_without_changes_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="too few"):
        query.run_query_bench(query.Load(keys=100, changes=200), home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tiny_batches_follow_each_other_and_each_has_a_mark_of_its_own() -> None:
    first, second = tiny_batches(2, 10)
    assert first["id"].to_pylist() == list(range(1, 11))
    assert second["id"].to_pylist() == list(range(11, 21))
    assert updated_by(0) == "2026-01-31T00:00:00.000000Z"
    assert {f"{each.isoformat(timespec='microseconds')}Z" for each in second["updated"].to_pylist()} == {updated_by(1)}
