"""Metadata files: what is written is what a reader gets, however little of it was encoded anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.catalog.documents import Documents
from dolake.storage.local import LocalStorage

Json = dict[str, Any]


class MemoryStorage(LocalStorage):
    """Files that are only remembered: a property test writes hundreds."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, location: str, data: bytes) -> None:
        self.files[location] = data


def metadata_of(snapshots: list[Json]) -> Json:
    log = [{"snapshot-id": each["snapshot-id"], "timestamp-ms": 1} for each in snapshots]
    return {"location": "file:///w/t", "snapshots": snapshots, "properties": {"a": "é\n"}, "snapshot-log": log, "x": 1}


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), max_size=8))
def test_a_file_that_follows_another_has_the_bytes_of_one_that_was_encoded_whole(
    steps: list[tuple[int, int, int]],
) -> None:
    storage = MemoryStorage()
    documents, before, snapshots, next_id = Documents(storage), None, list[Json](), 0
    for added, expired, changed in steps:
        first = max(0, len(snapshots) - changed)
        snapshots = snapshots[:first] + [each | {"n": added} for each in snapshots[first:]]
        snapshots = snapshots[expired:] + [{"snapshot-id": next_id + n, "summary": {"ü": '"'}} for n in range(added)]
        next_id += added
        before = documents.write(metadata_of(snapshots), version=next_id, before=before)
        assert storage.files[before.location] == msgspec.json.encode(metadata_of(snapshots))


def test_an_entry_that_was_changed_in_the_middle_is_written_as_it_is_now() -> None:
    storage = MemoryStorage()
    documents = Documents(storage)
    first = documents.write(metadata_of([{"snapshot-id": 1, "n": 1}, {"snapshot-id": 2}]), version=0)
    changed = metadata_of([{"snapshot-id": 1, "n": 1.0}, {"snapshot-id": 2}, {"snapshot-id": 3}])
    second = documents.write(changed, version=1, before=first)
    assert storage.files[second.location] == msgspec.json.encode(changed)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_forgotten_file_is_read_from_the_disk_again(tmp_path: Path, is_forgotten: bool) -> None:
    storage = LocalStorage(tmp_path)
    documents = Documents(storage)
    written = documents.write({"location": f"{storage.root}/t", "snapshots": [{"snapshot-id": 1}]}, version=0)
    if is_forgotten:
        documents.forget(written.location)
    read = documents.read(written.location)
    assert (read is written) is not is_forgotten
    assert read.metadata == written.metadata
