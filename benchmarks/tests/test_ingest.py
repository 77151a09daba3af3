"""`dolake bench ingest` against the real server: short runs prove nothing about speed, but the report must be whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.ingest import run_ingest_bench
from dolake.errors import Unavailable

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).resolve().parents[2]


def test_the_report_has_both_phases_and_nothing_stays_behind(tmp_path: Path) -> None:
    out = tmp_path / "results" / "ingest.json"
    disk = tmp_path / "disk"
    disk.mkdir()
    report = run_ingest_bench(seconds=1, connections=2, batch_events=50, rate_events_s=2_000, out=out, home=disk)
    assert json.loads(out.read_text()) == report
    assert {"name", "cores"} <= report["machine"].keys()
    assert {"python", "dolake", "aiohttp", "msgspec"} <= report["versions"].keys()
    for phase in ("latency", "throughput"):
        figures = report[phase]
        assert figures["ended_early"] is None
        for name in ("events_per_s", "mb_per_s", "server_cpu_us_per_event", "ack_p50_ms", "batches_per_sync"):
            assert figures[name] > 0, f"{phase} has no {name}"
        assert figures["ack_p50_ms"] <= figures["ack_p99_ms"]
        assert figures["server_rss_peak_mb"] >= max(figures["server_rss_start_mb"], figures["server_rss_end_mb"])
    assert 1_000 <= report["latency"]["events_per_s"] <= 3_000
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_server_and_no_files(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        f"from pathlib import Path; from benchmarks.ingest import *; run_ingest_bench(home=Path({str(tmp_path)!r}))"
    )
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    server = _announced_pid(tmp_path)
    time.sleep(2)  # into the first phase
    os.kill(bench.pid, number)
    assert bench.wait(30) != 0
    assert not psutil.pid_exists(server)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no room for me')")
    with pytest.raises(Unavailable, match="exit code 1") as caught:
        run_ingest_bench(home=tmp_path, server_command=command)
    assert "no room for me" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def _announced_pid(folder: Path) -> int:
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        for announcement in folder.glob("*/json/home/server.json"):
            return int(json.loads(announcement.read_text())["pid"])
        time.sleep(0.05)
    raise TimeoutError("the server did not start")
