"""`dolake bench sqlite-writers` in small: the report must be whole, and no transaction fails that must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sqlite_writers import Load, run_sqlite_writers_bench

pytestmark = pytest.mark.chaos


def test_no_transaction_fails_and_nothing_stays_behind(tmp_path: Path) -> None:
    disk, out = tmp_path / "disk", tmp_path / "writers.json"
    disk.mkdir()
    load = Load(transactions=80, rounds=2, pauses=1, pause_s=0.5, bulk_rows=2_000, bulk_rounds=1)
    report = run_sqlite_writers_bench(load, out=out, home=disk)
    assert json.loads(out.read_text()) == report
    for kinds in report["writers"].values():
        assert kinds["one writer"]["followed"] | {"seconds": 0} == {"transactions": 80, "failed": 0, "seconds": 0}
        assert kinds["four writers, BEGIN IMMEDIATE"]["followed"]["failed"] == 0
        assert kinds["a transaction that pauses 0.5 s"]["followed"]["failed"] == 0
    for found in report["bulk_update"].values():
        assert found["followed"]["file_mb"] > found["plain"]["file_mb"]
    assert list(disk.iterdir()) == []
