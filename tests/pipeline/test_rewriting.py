"""Data files written anew: which rows, in which columns, and where each of them has gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.keyindex.hashes import hash_keys
from dolake.pipeline.files import WriteOptions
from dolake.pipeline.rewriting import Moves, RewriteJob, rewrite
from dolake.storage.local import path_of
from dolake.tables.ordering import SortKey
from tests.pipeline.test_tasks import OPTIONS, change, job_of, rows_of, staged_of


def test_old_files_are_merged_by_field_id_into_the_columns_of_now(tmp_path: Path) -> None:
    row = {"n": 1, "o": {"x": 1, "y": "a"}, "l": [{"z": 1}, None], "none": None}
    events = [change(number, "INSERT", f"k{number}", after=row | {"n": number}) for number in range(1, 5)]
    first = job_of(tmp_path, [*events, change(5, "INSERT", "k5", after={"n": 5})])
    staged = staged_of(first)
    assert staged.state_file
    plan = first.plans["users"]
    now = json.loads(
        plan.state_schema.replace('"name": "n"', '"name": "renamed"').replace('"name": "x"', '"name": "xx"')
    )
    nested = next(field for field in now["fields"] if field["name"] == "o")
    nested["type"]["fields"].append({"id": 900, "name": "new", "required": False, "type": "double"})
    now["fields"].append(
        {
            "id": 901,
            "name": "later",
            "required": False,
            "type": {"type": "list", "element-id": 902, "element-required": False, "element": "string"},
        }
    )
    path = staged.state_file["file-path"]
    job = RewriteJob(
        json.dumps(now), plan.state_location, {path: np.array([1], np.uint32)}, OPTIONS, 1 << 30, "try", has_keys=True
    )
    merged = rewrite(job)
    (file,) = merged.files
    found = {row.pop("_key"): row for row in rows_of(file)}
    assert set(found) == {"k1", "k3", "k4", "k5"}
    assert found["k1"] == {
        "_rescued": None,
        "renamed": 1,
        "o": {"xx": 1, "y": "a", "new": None},
        "l": [{"z": 1}, None],
        "later": None,
    }
    assert found["k5"]["o"] is found["k5"]["l"] is None
    assert merged.hashes[0].hi.tolist() == staged.outcomes.hashes.hi[[0, 2, 3, 4]].tolist()


@pytest.mark.parametrize(("target_bytes", "file_count"), [(1, 3), (1 << 30, 1)])
def test_rows_keep_their_order_and_files_have_the_size_that_was_asked_for(
    tmp_path: Path, target_bytes: int, file_count: int
) -> None:
    first = job_of(tmp_path, [change(n, "INSERT", f"k{n}", after={"n": n}) for n in range(1, 2_501)])
    staged = staged_of(first)
    assert staged.state_file
    path, plan = staged.state_file["file-path"], first.plans["users"]
    options = WriteOptions("snappy", 10)
    job = RewriteJob(
        plan.state_schema,
        plan.state_location,
        {path: np.arange(0, 2_500, 4, dtype=np.uint32)},
        options,
        target_bytes,
        "try",
        has_keys=True,
    )
    done = rewrite(job)
    assert [row["n"] for file in done.files for row in rows_of(file)] == [n for n in range(1, 2_501) if n % 4 != 1]
    assert [file["record-count"] for file in done.files] == [len(part.hi) for part in done.hashes]
    assert len(done.files) == file_count
    assert all(
        pq.ParquetFile(path_of(file["file-path"])).metadata.num_rows == file["record-count"] for file in done.files
    )


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 10), min_size=1, max_size=20),
    data=st.data(),
)
def test_where_a_row_has_gone_follows_from_arithmetic(sizes: list[int], cuts: list[int], data: Any) -> None:
    old: dict[str, Any] = {}
    gone: dict[str, Any] = {}
    truth: list[tuple[str, int]] = []
    for number, size in enumerate(sizes):
        deleted = data.draw(st.sets(st.integers(0, size - 1)))
        old[f"old-{number}"] = np.array(sorted(deleted), np.uint32)
        truth += [(f"old-{number}", row) for row in range(size) if row not in deleted]
    late = data.draw(st.sets(st.sampled_from(truth))) if truth else set()
    for path in old:
        gone[path] = np.array(sorted(row for where, row in late if where == path), np.uint32)
    new: list[dict[str, Any]] = []
    at = 0
    while at < len(truth):
        count = min(cuts[len(new) % len(cuts)], len(truth) - at)
        new.append({"file-path": f"new-{len(new)}", "record-count": count})
        at += count
    places = [(file["file-path"], row) for file in new for row in range(file["record-count"])]
    wanted: dict[str, list[int]] = {}
    for row, place in zip(truth, places, strict=True):
        if row in late:
            wanted.setdefault(place[0], []).append(place[1])
    found = Moves(old, {f"old-{n}": size for n, size in enumerate(sizes)}, new).of(gone)
    assert {path: rows.tolist() for path, rows in found.items()} == wanted


def test_rows_of_a_sorted_table_are_sorted_and_say_where_they_were(tmp_path: Path) -> None:
    numbers = [n * 7919 % 1_009 for n in range(1_000)]
    first = job_of(
        tmp_path, [change(n + 1, "INSERT", f"k{n}", after={"n": number}) for n, number in enumerate(numbers)]
    )
    staged = staged_of(first)
    assert staged.state_file
    path, plan = staged.state_file["file-path"], first.plans["users"]
    deleted = np.arange(0, 1_000, 3, dtype=np.uint32)
    mark = {"spec-id": 2, "partition": ["eu"]}
    job = RewriteJob(
        plan.state_schema, plan.state_location, {path: deleted}, WriteOptions("none", 100), 4_096, "try", has_keys=True,
        folder="region=eu", mark=mark, sort=(SortKey("n", "desc"),), sort_order_id=1,
    )  # fmt: skip
    done = rewrite(job)
    assert len(done.files) > 1
    assert all(file | mark | {"sort-order-id": 1} == file for file in done.files)
    assert all("/data/region=eu/try-" in file["file-path"] for file in done.files)
    rows = [row for file in done.files for row in rows_of(file)]
    assert [row["n"] for row in rows] == sorted((n for at, n in enumerate(numbers) if at % 3), reverse=True)
    hashes = hash_keys([row["_key"].encode() for row in rows])
    assert np.concatenate([part.hi for part in done.hashes]).tolist() == hashes.hi.tolist()
    late = {path: np.array([1, 500, 998], np.uint32)}
    moved = Moves({path: deleted}, {path: 1_000}, done.files, done.order).of(late)
    found = {rows_of(file)[at]["_key"] for file in done.files for at in moved.get(file["file-path"], ())}
    assert found == {"k1", "k500", "k998"}


def test_what_is_too_large_to_be_sorted_keeps_its_order_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job_of(tmp_path, [change(n, "INSERT", f"k{n}", after={"n": -n}) for n in range(1, 101)])
    staged = staged_of(first)
    assert staged.state_file
    path, plan = staged.state_file["file-path"], first.plans["users"]
    monkeypatch.setattr("dolake.pipeline.rewriting._SORTED_BYTES_MAX", 10)
    files = {path: np.empty(0, np.uint32)}
    sort = (SortKey("n"),)
    job = RewriteJob(
        plan.state_schema, plan.state_location, files, OPTIONS, 1 << 30, "try", True, sort=sort, sort_order_id=1
    )
    (file,) = rewrite(job).files
    assert file["sort-order-id"] == 0
    assert [row["n"] for row in rows_of(file)] == [-n for n in range(1, 101)]
