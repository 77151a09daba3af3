"""`dolake bench peers` with every system: short runs prove nothing about speed, but reports must be whole and right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from benchmarks.peers import _extrapolated_s, run_peers_bench
from benchmarks.workload import as_dicts, batch_file, inserts_file, write_workload
from dolake.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.chaos
def test_every_system_does_the_same_work_and_the_report_has_what_it_cost(tmp_path: Path) -> None:
    out = tmp_path / "results" / "peers.json"
    disk = tmp_path / "disk"
    disk.mkdir()
    report = run_peers_bench(events=2_000, batches=3, out=out, home=disk)
    assert json.loads(out.read_text()) == report
    assert {"python", "dolake", "pyspark", "pyiceberg", "duckdb", "duckdb-extension-ducklake"} <= report[
        "versions"
    ].keys()
    assert list(report["systems"]) == ["dolake", "spark", "pyiceberg", "ducklake"]
    for name, system in report["systems"].items():
        for job in ("inserts", "changes"):
            assert system[job]["right"], f"{name} is wrong after the {job}"
            assert system[job]["cpu_s"] > 0
            assert system[job]["files"] > 0
        changes = system["changes"]
        assert changes["batches"] == 3
        assert not changes["is_estimate"]
        assert 0 < changes["visible_p50_s"] <= changes["visible_p95_s"]
    ours = report["systems"]["dolake"]
    assert ours["inserts"]["cpu_by_kind_s"].keys() == {"client", "server", "query", "pipeline", "java", "workers"}
    assert ours["changes"]["checked_batches"] == 3
    assert [floor["name"].partition(":")[0] for floor in report["floors"]] == [
        "inserts",
        "3 batches of changes",
        "wrong after the inserts or after a batch",
        *["after upkeep"] * 3,
    ]
    assert ours["upkeep"]["right"]
    assert ours["upkeep"]["job"]["state"] == "done"
    assert ours["upkeep"]["live"][0]["data_files"] <= 2
    assert "upkeep" not in report["systems"]["spark"]
    assert list(disk.iterdir()) == []


@pytest.mark.chaos
def test_a_peer_that_takes_too_long_is_stopped_and_its_figures_are_marked_as_an_estimate(tmp_path: Path) -> None:
    report = run_peers_bench(events=2_000, batches=4, only=["pyiceberg"], peer_seconds=0, home=tmp_path)
    changes = report["systems"]["pyiceberg"]["changes"]
    assert changes["is_estimate"]
    assert changes["batches"] == 1
    assert changes["right"]
    assert report["floors"] == []  # ours did not run


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_bench_leaves_no_process_and_no_files(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "from pathlib import Path; from benchmarks.peers import *; "
        f"run_peers_bench(events=20_000, only=['pyiceberg'], home=Path({str(tmp_path)!r}))"
    )
    bench = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    worker = _worker_of(bench, tmp_path)
    bench.send_signal(number)
    assert bench.wait(30) != 0
    assert not worker.is_running()
    assert list(tmp_path.iterdir()) == []


def test_the_same_sizes_give_the_same_rows_and_totals_follow_the_changes(tmp_path: Path) -> None:
    first = write_workload(tmp_path / "first", events=1_500, batches=2)
    second = write_workload(tmp_path / "second", events=1_500, batches=2)
    assert first.expected == second.expected
    rows = {row["id"]: row for row in as_dicts(pq.read_table(inserts_file(first.folder)))}
    assert rows[1]["created"] == "2026-01-01T00:00:00.001000Z"
    for number, totals in enumerate(first.expected):
        assert totals.count == len(rows) == 1_500 - 50 * number
        assert totals.amount == sum(row["amount"] for row in rows.values())
        assert totals.qty == sum(row["qty"] for row in rows.values())
        for change in as_dicts(pq.read_table(batch_file(first.folder, number))) if number < 2 else ():
            if change.pop("op") == "D":
                del rows[change["id"]]
            else:
                rows[change["id"]] = change


def test_batches_that_were_not_run_go_on_as_those_that_were() -> None:
    assert _extrapolated_s([1.0, 1.0, 1.0], 3) == 3.0
    assert _extrapolated_s([1.0, 2.0, 3.0], 5) == pytest.approx(15.0)
    assert _extrapolated_s([2.0], 3) == pytest.approx(6.0)


@pytest.mark.parametrize(("sizes", "message"), [({"only": ["oracle"]}, "'oracle'"), ({"events": 1_000}, "do not fit")])
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    sizes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_peers_bench(home=tmp_path, **sizes)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def _worker_of(bench: subprocess.Popen[bytes], folder: Path) -> psutil.Process:
    """The peer's process, once it is at work."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        if list(folder.glob("*/pyiceberg/shop/orders/metadata/*")):
            return psutil.Process(bench.pid).children()[0]
        time.sleep(0.05)
    raise TimeoutError("the peer did not start")
