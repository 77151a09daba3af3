"""`dolake bench catalog` against real servers: short runs prove nothing about speed, but the report must be whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.catalog import COMMITTERS, Load, run_catalog_bench

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).resolve().parents[2]
SMALL = Load(snapshots=(10, 20), rounds=2, loads=20, listed=30, lists=2, commits_each=2, crowd=(5, 10), publishes=5)


def test_the_report_has_every_figure_with_its_floor_and_nothing_stays_behind(tmp_path: Path) -> None:
    out = tmp_path / "results" / "catalog.json"
    disk = tmp_path / "disk"
    disk.mkdir()
    report = run_catalog_bench(SMALL, out=out, home=disk)
    assert json.loads(out.read_text()) == report
    assert {"name", "cores"} <= report["machine"].keys()
    assert {"python", "dolake", "pyiceberg", "sqlalchemy"} <= report["versions"].keys()
    assert [row["snapshots"] for row in report["commits"]] == [10, 20]
    for row in report["commits"]:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["times_faster"] > 0
    assert report["list"]["tables"] == 30
    assert report["committers"]["commits"] == COMMITTERS * 2
    assert report["committers"]["lost_updates"] == report["committers"]["strangers"] == 0
    assert len(report["floors"]) == 5  # the sixth is about 1,000 snapshots
    assert all({"name", "measured", "met"} <= floor.keys() for floor in report["floors"])
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_bench_leaves_no_server_and_no_files(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        f"from pathlib import Path; from benchmarks.catalog import *; run_catalog_bench(home=Path({str(tmp_path)!r}))"
    )
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    server = _announced_pid(tmp_path)
    time.sleep(1)  # into the first commits
    bench.send_signal(number)
    assert bench.wait(30) != 0
    assert not psutil.pid_exists(server)
    assert list(tmp_path.iterdir()) == []


def _announced_pid(folder: Path) -> int:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        for announcement in folder.glob("*/*/server.json"):
            return int(json.loads(announcement.read_text())["pid"])
        time.sleep(0.05)
    raise TimeoutError("the server did not start")
