"""`dolake bench upsert`, `pipeline`, `freshness`, `breadth`: runs too short to prove speed; the books must be right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import breadth, cloud, freshness, pipeline
from benchmarks.shop import TABLES

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"client", "java", "pipeline", "query", "server", "workers"}


def assert_whole(report: dict[str, Any], out: Path, disk: Path) -> None:
    """What holds for the report of each of them, and that nothing stays behind."""
    assert json.loads(out.read_text()) == report
    assert {"name", "cores"} <= report["machine"].keys()
    assert {"python", "dolake", "pyspark", "duckdb"} <= report["versions"].keys()
    assert all({"name", "measured", "met"} <= floor.keys() for floor in report["floors"])
    assert list(disk.iterdir()) == []


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_what_was_sent_to_the_pipeline_is_in_the_tables_and_every_process_is_accounted_for(
    tmp_path: Path, disk: Path
) -> None:
    out = tmp_path / "results" / "pipeline.json"
    load = pipeline.Load(seconds=3, warm_up_s=0.5, lag_max_events=5_000, batch_events=100)
    report = pipeline.run_pipeline_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    assert set(report["books"]) == set(TABLES)
    for book in report["books"].values():
        assert book["right"]
        assert book["rows"] > 0
    assert sum(book["changes"] for book in report["books"].values()) == report["throughput"]["events_in_all"]
    assert report["key_index"]["rows"] == sum(book["rows"] for book in report["books"].values())
    assert set(report["cpu_s_per_million_events"]) == set(report["memory_mb"]) == KINDS
    assert report["publishes"]["seen"] > 0
    assert "write" in report["publishes"]["mean_steps_ms"]
    assert report["throughput"]["lag_events_at_end"] <= load.lag_max_events


def test_duckdb_sees_every_batch_some_time_after_its_ack(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "freshness.json"
    load = freshness.Load(seconds=3, warm_up_s=1, rate_events_s=1_000, batch_events=50)
    report = freshness.run_freshness_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    figures = report["ack_to_visible"]
    assert figures["samples"] >= report["events"] / load.batch_events * len(TABLES) * 0.9
    assert 0 < figures["p50_s"] <= figures["p95_s"] <= figures["p99_s"] <= figures["max_s"]
    assert set(report["cpu_s"]) == KINDS | {"reader"}


def test_a_lake_in_a_store_is_measured_beside_one_on_a_folder(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "cloud.json"
    load = cloud.Load(seconds=4, warm_up_s=2, rate_events_s=500, batch_events=50, burst_events=2_000, delay_ms=5)
    report = cloud.run_cloud_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    assert report["store"]["requests"]["all"] > 0
    for half in (report["local"], report["store"]):
        assert half["flushes"] > 0
        assert half["burst"]["published_events_per_s"] > 0
        assert half["ack_to_visible"]["samples"] > 0


def test_updates_and_merges_leave_the_same_rows(tmp_path: Path, disk: Path) -> None:
    # In a process of its own: PySpark gives a process one session, which is that of the other tests here.
    out = tmp_path / "upsert.json"
    command = [sys.executable, "-m", "dolake.cli", "bench", "upsert", "--updates", "300", "--rounds", "1"]
    command += ["--rows", "2000", "--rows", "5000", "--out", str(out), "--home", str(disk)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert_whole(report, out, disk)
    assert [table["rows"] for table in report["tables"]] == [2_000, 5_000]
    for table in report["tables"]:
        assert table["right"]
        assert table["loaded"]["key_index"]["rows"] == table["rows"]
        assert table["ours"]["publish_ms"] > 0
        assert table["merge"]["ms"] > 0
        assert set(table["ours"]["cpu_s"]) == KINDS
        assert set(table["merge"]["cpu_s"]) == {"client", "java"}
    assert len(report["floors"]) == 3


def test_wide_tables_and_many_tables_are_published_whole(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "breadth.json"
    load = breadth.Load(seconds=2, warm_up_s=0.5, columns=40, wide_rate_events_s=50, tables=8, rate_per_table_s=5)
    report = breadth.run_breadth_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    for name in ("wide", "many"):
        assert report[name]["missing"] == 0
        assert report[name]["ack_to_published"]["samples"] > 0
