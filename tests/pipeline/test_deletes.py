"""Position deletes: one file for each data file, whatever was deleted before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolake.pipeline import deletes
from dolake.pipeline.deletes import DeleteFiles
from dolake.storage.local import path_of
from dolake.tables.vectors import vectors_in
from tests.support.property import examples

DATA = "file:///lake/default/users/data/a.parquet"
OTHER = "file:///lake/default/users/data/b.parquet"


def positions(*numbers: int) -> deletes.Positions:
    return np.array(numbers, np.uint32)


def test_a_delete_file_names_its_data_file_and_has_the_ids_of_the_specification(tmp_path: Path) -> None:
    plan = DeleteFiles(f"file://{tmp_path}", {}).plan({DATA: positions(3, 7)}, "try")
    entry = plan.add[DATA]
    assert (entry["content"], entry["referenced-data-file"], entry["record-count"]) == ("position-deletes", DATA, 2)
    schema = pq.read_schema(path_of(entry["file-path"]))
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"2147483546", b"2147483545"]
    assert pq.read_table(path_of(entry["file-path"])).to_pylist() == [
        {"file_path": DATA, "pos": 3},
        {"file_path": DATA, "pos": 7},
    ]
    assert entry["lower-bounds"]["values"] == [DATA.encode().hex(), (3).to_bytes(8, "little").hex()]


def test_a_delete_file_is_in_the_partition_of_the_file_that_it_names(tmp_path: Path) -> None:
    location = f"file://{tmp_path}"
    path = f"{location}/data/region=eu/a.parquet"
    files = {path: {"spec-id": 3, "partition": ["eu"], "file-path": path}}
    plan = DeleteFiles(location, {}).plan({path: positions(1), OTHER: positions(2)}, "try", files=files)
    assert (plan.add[path]["spec-id"], plan.add[path]["partition"]) == (3, ["eu"])
    assert plan.add[path]["file-path"].startswith(f"{location}/data/region=eu/try-")
    assert (plan.add[OTHER]["spec-id"], plan.add[OTHER]["partition"]) == (0, [])
    assert plan.add[OTHER]["file-path"].startswith(f"{location}/data/try-")


def test_more_deletes_of_a_data_file_replace_its_delete_file(tmp_path: Path) -> None:
    files = DeleteFiles(f"file://{tmp_path}", {})
    first = files.plan({DATA: positions(1), OTHER: positions(5)}, "one")
    assert first.remove == []
    files.apply(first)
    second = files.plan({DATA: positions(0, 2)}, "two")
    assert second.remove == [first.add[DATA]]
    assert second.positions[DATA].tolist() == [0, 1, 2]
    assert files.of(DATA).tolist() == [1], "nothing has changed until the publish is visible"
    files.apply(second)
    assert files.of(DATA).tolist() == [0, 1, 2]
    assert files.of(OTHER).tolist() == [5]


def test_what_a_table_had_before_is_read_again(tmp_path: Path) -> None:
    entry = DeleteFiles(f"file://{tmp_path}", {}).plan({DATA: positions(4, 9)}, "before").add[DATA]
    files = DeleteFiles(f"file://{tmp_path}", {DATA: [entry], OTHER: []})
    plan = files.plan({DATA: positions(1)}, "after")
    assert (plan.remove, plan.positions[DATA].tolist()) == ([entry], [1, 4, 9])


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from([DATA, OTHER]), st.sets(st.integers(0, 50), min_size=1)), max_size=6))
def test_positions_are_never_lost_however_little_is_kept_in_memory(
    tmp_path: Path, steps: list[dict[str, set[int]]]
) -> None:
    wanted: dict[str, set[int]] = {DATA: set(), OTHER: set()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletes, "_CACHED_MAX", 3)
        files = DeleteFiles(f"file://{tmp_path}", {})
        for step in steps:
            files.apply(files.plan({path: positions(*sorted(found)) for path, found in step.items()}, "try"))
            for path, found in step.items():
                wanted[path] |= found
        assert {path: set(files.of(path).tolist()) for path in wanted} == wanted


def test_a_table_of_format_3_gets_one_file_with_a_vector_for_each_data_file(tmp_path: Path) -> None:
    location = f"file://{tmp_path}"
    path = f"{location}/data/region=eu/a.parquet"
    files = {path: {"spec-id": 3, "partition": ["eu"], "file-path": path}}
    plan = DeleteFiles(location, {}, format_version=3).plan(
        {path: positions(1), OTHER: positions(2, 9)}, "try", (), files
    )
    mine, other = plan.add[path], plan.add[OTHER]
    assert mine["file-path"] == other["file-path"]
    assert (mine["file-format"], mine["referenced-data-file"], mine["record-count"]) == ("puffin", path, 1)
    assert (mine["spec-id"], mine["partition"], other["spec-id"]) == (3, ["eu"], 0)
    content = path_of(other["file-path"]).read_bytes()
    assert len(content) == mine["file-size-in-bytes"]
    assert {name: found.tolist() for name, found in vectors_in(content).items()} == {path: [1], OTHER: [2, 9]}
    assert DeleteFiles(location, plan_entries(plan), format_version=3).of(OTHER).tolist() == [2, 9]


def test_a_vector_replaces_a_delete_file_of_format_2_and_has_its_positions(tmp_path: Path) -> None:
    location = f"file://{tmp_path}"
    before = DeleteFiles(location, {}).plan({DATA: positions(4)}, "two")
    after = DeleteFiles(location, plan_entries(before), format_version=3).plan({DATA: positions(1)}, "three")
    assert after.remove == [before.add[DATA]]
    assert DeleteFiles(location, plan_entries(after), format_version=3).of(DATA).tolist() == [1, 4]


def plan_entries(plan: deletes.DeletePlan) -> dict[str, list[dict[str, Any]]]:
    return {path: [entry] for path, entry in plan.add.items()}
