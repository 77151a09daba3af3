"""`dolake bench hotkeys`, `soak`, `publishes` and `compact`: too short to prove speed, but what they say is right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from benchmarks import hotkeys, publishes, soak
from benchmarks.checks import AFTER_JOB, AT_CHECK
from benchmarks.plot import Panel, write_svg
from benchmarks.tests.test_pipeline_benchmarks import KINDS, assert_whole

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def _floor(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(floor for floor in report["floors"] if name in floor["name"])


@pytest.mark.chaos
def test_hot_keys_stay_in_few_files_and_are_what_was_sent(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "results" / "hotkeys.json"
    load = hotkeys.Load(seconds=25, compare_seconds=0, warm_up_s=1, check_every_s=6)
    report = hotkeys.run_hotkeys_bench(load, out=out, home=disk)
    assert_whole(report, out, disk)
    found = report["with_upkeep"]
    assert found["book"]["right"]
    assert set(found["memory_mb"]) == KINDS
    assert {look["table"] for look in found["looks"]} == {"hot", "hot__changes"}
    assert {read["when"] for read in found["reads"]} <= {AT_CHECK, AFTER_JOB}
    assert all(read["duckdb"]["ratio"] > 0 for read in found["reads"])
    assert found["jobs"]["totals"]["jobsDone"] > 0
    for name in ("hot: live data", "hot__changes: live data", "jobs that failed", "differ from what was sent"):
        assert _floor(report, name)["met"], _floor(report, name)


@pytest.mark.chaos
def test_a_short_soak_leaves_the_books_right_and_nothing_for_verify_to_find(tmp_path: Path, disk: Path) -> None:
    out, plot = tmp_path / "soak.json", tmp_path / "soak.svg"
    load = soak.Load(
        seconds=180,
        warm_up_s=1,
        rate_events_s=1_000,  # a fifth of what `make soak` sends: other tests run beside it
        batch_events=100,
        check_every_s=30,
        look_every_ms=5_000,
        snapshots_max=5,
        gc_grace_ms=1_000,
    )
    report = soak.run_soak_bench(load, out=out, plot=plot, home=disk)
    assert_whole(report, out, disk)
    assert set(report["books"]) == set(soak.TABLES)
    assert all(book["right"] for book in report["books"].values())
    assert report["verify"]["ran"]
    assert report["verify"]["exit_code"] == 0, report["verify"]
    for name in ("jobs that failed", "live data and delete files", "bytes of any metadata file", "were removed"):
        assert _floor(report, name)["met"], _floor(report, name)
    assert "polyline" in plot.read_text()


@pytest.mark.chaos
def test_each_batch_is_a_publish_of_its_own(tmp_path: Path, disk: Path) -> None:
    out = tmp_path / "publishes.json"
    report = publishes.run_publishes_bench(publishes.Load(count=8, look_every=3), out=out, home=disk)
    assert_whole(report, out, disk)
    assert [look["publishes"] for look in report["looks"]] == [1, 4, 7]
    at_end = report["at_end"]["hot__changes"]
    assert at_end["snapshots"] >= 8
    assert at_end["rows"] == 8 * 10
    assert _floor(report, "hot: load in ms")["met"]


@pytest.mark.chaos
def test_ours_lands_beside_updates_and_both_lakes_keep_their_rows(tmp_path: Path, disk: Path) -> None:
    # In a process of its own: PySpark gives a process one session, which is that of the other tests here.
    out = tmp_path / "compact.json"
    command = [sys.executable, "-m", "dolake.cli", "bench", "compact", "--files", "24", "--rows-per-file", "500"]
    command += ["--tries", "1", "--out", str(out), "--home", str(disk)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert_whole(report, out, disk)
    assert report["ours"]["before"]["data_files"] >= 24
    assert report["ours"]["job"]["state"] == "done"
    assert report["ours"]["landed"] == report["ours"]["pieces"] > 0
    assert report["right"] == {"ours": True, "spark": True}
    assert report["spark"]["undisturbed"]["files_before"] == 24


@pytest.mark.chaos
def test_an_interrupted_bench_leaves_no_process_and_no_files(tmp_path: Path) -> None:
    script = (
        f"from pathlib import Path; from benchmarks.hotkeys import *; run_hotkeys_bench(home=Path({str(tmp_path)!r}))"
    )
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    family = _family_at_work(bench, tmp_path)
    bench.send_signal(signal.SIGINT)
    assert bench.wait(60) != 0
    _, alive = psutil.wait_procs(family, 10)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def _family_at_work(bench: subprocess.Popen[bytes], folder: Path) -> list[psutil.Process]:
    """Server, pipeline and Java, once there is a table."""
    give_up_at = time.monotonic() + 120
    while time.monotonic() < give_up_at:
        if list(folder.glob("*/with_upkeep/warehouse/default/hot/data/*")):
            return psutil.Process(bench.pid).children(recursive=True)
        time.sleep(0.05)
    raise TimeoutError("the table was not made")


def test_a_plot_is_an_svg_with_a_line_for_each_series(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plot.svg"
    panels = [Panel("files < 5 & more", {"state": [(0, 0), (10, 5)], "changes": [(0, 1)]}), Panel("none", {})]
    write_svg(path, "a title", panels)
    lines = list(ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}polyline"))  # noqa: S314 - we wrote it
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 1]
