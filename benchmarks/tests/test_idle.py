"""`dolake bench idle` in small: some hundred connections, no Spark; the report must be whole, and connections light."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.idle import Load, run_idle_bench

pytestmark = pytest.mark.chaos


def test_idle_connections_are_light_and_nothing_stays_behind(tmp_path: Path) -> None:
    disk, out = tmp_path / "disk", tmp_path / "idle.json"
    disk.mkdir()
    load = Load(connections=500, heartbeat_s=2, seconds=2, has_spark=False)
    report = run_idle_bench(load, out=out, home=disk)
    assert json.loads(out.read_text()) == report
    connections = report["connections"]
    assert connections["lost"] == 0
    assert connections["heartbeats_answered"] > 100
    assert 0 < connections["kb_per_connection"] < 40  # the promise is 20, of thousands; few share less
    assert set(report["lake"]["parts_mb"]) == {"server", "query"}
    assert report["floors"][0]["name"] == "KB per idle connection"
    assert list(disk.iterdir()) == []
