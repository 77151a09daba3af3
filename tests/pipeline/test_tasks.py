"""What a worker makes of a slice of the journal, without Spark around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dolake.changes import Batch, StreamId
from dolake.journal.reader import JournalReader
from dolake.pipeline.cut import Limits, next_cut
from dolake.pipeline.files import WriteOptions
from dolake.pipeline.reading import Wanting
from dolake.pipeline.tasks import (
    KeysJob,
    SliceJob,
    Staged,
    StateJob,
    TablePlan,
    read_keys,
    write_slice,
    write_state,
)
from dolake.storage.local import path_of
from dolake.tables.layout import changes_schema, columns_of, state_schema
from dolake.tables.schema import grow, grown
from tests.support import speaker
from tests.support.aio import run
from tests.support.clock import Clock
from tests.support.journals import keep, opened

OPTIONS = WriteOptions("snappy", 1_000)


def change(
    sequence: int, operation: str, key: str, before: Any = None, after: Any = None, **metadata: Any
) -> dict[str, Any]:
    images = {name: image for name, image in (("before", before), ("after", after)) if image is not None}
    more = {"metadata": metadata} if metadata else {}
    base = speaker.event(sequence, row_id=key, operation=operation)
    del base["after"]
    return base | images | more


def job_of(folder: Path, events: list[dict[str, Any]], *, has_source: bool = False) -> SliceJob:
    """A slice with these changes, and a table that has all of their columns."""

    async def write() -> None:
        async with opened(folder / "journal", clock=Clock()) as journal:
            payload = json.dumps(speaker.batch(1, events)).encode()
            last = events[-1]["sequence"]
            await keep(journal, Batch(StreamId("source-1"), 0, 1, 1, last, len(events), ("users",), payload))

    run(write())
    with JournalReader(folder / "journal") as reader:
        cut = next_cut(reader, 0, reader.durable(), Limits(10**6, 1 << 30, 0, 1 << 30))
    first = SliceJob(str(folder / "journal"), cut.slices[0], {}, OPTIONS, has_source, is_whole=True, token="try")
    wanting = write_slice(first)["users"]
    assert isinstance(wanting, Wanting)
    columns = grown((), grow((), wanting.seen))
    state, changes = state_schema(columns, has_source=has_source), changes_schema(columns)
    assert columns_of(state) == columns
    plan = TablePlan(columns, json.dumps(state), f"file://{folder}/s", json.dumps(changes), f"file://{folder}/c")
    return SliceJob(first.journal, first.part, {"users": plan}, OPTIONS, has_source, is_whole=True, token="try")


def staged_of(job: SliceJob) -> Staged:
    staged = write_slice(job)["users"]
    assert isinstance(staged, Staged)
    return staged


def rows_of(entry: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path_of(entry["file-path"])).to_pylist()
    return rows


EVENTS = [
    change(1, "INSERT", "a", after={"n": 1, "s": "x"}),
    change(2, "INSERT", "b", after={"n": 2}),
    change(3, "UPDATE", "a", before={"n": 1}, after={"n": 3, "s": None}),
    change(4, "DELETE", "b", before={"n": 2}),
    change(5, "UPDATE", "c", before={"n": 3}, after={"n": 5}, previousRowId="a", transactionId=7, transactionEnd=True),
]


def test_the_state_has_the_last_row_of_each_key_and_the_changes_have_all(tmp_path: Path) -> None:
    staged = staged_of(job_of(tmp_path, EVENTS))
    assert [(row["_key"], row["n"], row["s"]) for row in rows_of(staged.state_file)] == [("c", 5, None)]
    found = [
        (
            row["_position"],
            row["_operation"],
            row["_key"],
            row["n"],
            row["_before"] and row["_before"]["n"],
            row["_transaction"],
        )
        for row in rows_of(staged.changes_file)
    ]
    assert found == [
        (0, "INSERT", "a", 1, None, None),
        (1, "INSERT", "b", 2, None, None),
        (2, "UPDATE", "a", 3, 1, None),
        (3, "DELETE", "b", 2, 2, None),
        (4, "UPDATE", "c", 5, 3, "7"),
    ]
    assert sorted(staged.outcomes.rows.tolist()) == [-1, -1, 4]


def test_files_have_icebergs_field_ids_down_to_the_last_leaf(tmp_path: Path) -> None:
    job = job_of(tmp_path, [change(1, "INSERT", "a", after={"n": 1, "o": {"x": [{"y": 1.5}]}})])
    staged = staged_of(job)
    schema = json.loads(job.plans["users"].changes_schema)

    def ids(fields: list[Any]) -> list[int]:
        found = []
        for field in fields:
            found.append(field["id"])
            type_ = field["type"]
            while isinstance(type_, dict):
                if type_["type"] == "struct":
                    found += ids(type_["fields"])
                    break
                found.append(type_["element-id"])
                type_ = type_["element"]
        return found

    def written(fields: Any) -> list[int]:
        found = []
        for field in fields:
            found.append(int(field.metadata[b"PARQUET:field_id"]))
            inner = field.type
            found += written([inner.field(at) for at in range(inner.num_fields)])
        return found

    assert written(pq.read_schema(path_of(staged.changes_file["file-path"]))) == ids(schema["fields"])


def test_a_second_job_writes_the_same_state_from_the_changes_file(tmp_path: Path) -> None:
    job = job_of(tmp_path, EVENTS)
    staged = staged_of(job)
    kept = staged.outcomes.rows[staged.outcomes.rows >= 0]
    (again,) = write_state(StateJob(job.plans["users"], staged.changes_file["file-path"], kept, OPTIONS, "try"))
    assert rows_of(again.entry) == rows_of(staged.state_file)


def test_keys_read_back_have_the_hashes_that_were_written(tmp_path: Path) -> None:
    events = [change(number, "INSERT", f"k{number}", after={"n": number}) for number in range(1, 6)]
    for has_source in (False, True):
        folder = tmp_path / str(has_source)
        folder.mkdir()
        staged = staged_of(job_of(folder, events, has_source=has_source))
        assert staged.state_file
        block = read_keys(KeysJob(staged.state_file["file-path"], np.array([1, 3], np.uint32), has_source))
        assert block.positions.tolist() == [0, 2, 4]
        assert block.hashes.hi.tolist() == staged.outcomes.hashes.hi[[0, 2, 4]].tolist()


def test_the_same_row_id_of_two_sources_is_two_keys_where_the_source_is_part_of_the_key(tmp_path: Path) -> None:
    staged = {
        has_source: staged_of(job_of(_folder(tmp_path, has_source), EVENTS[:1], has_source=has_source))
        for has_source in (False, True)
    }
    assert staged[False].outcomes.hashes.hi[0] != staged[True].outcomes.hashes.hi[0]
    assert rows_of(staged[True].state_file)[0]["_source"] == "source-1"


def _folder(tmp_path: Path, has_source: bool) -> Path:
    folder = tmp_path / f"source-{has_source}"
    folder.mkdir()
    return folder
