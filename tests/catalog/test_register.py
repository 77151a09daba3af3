"""Metadata files that somebody else wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dolake.catalog.register import registered_table_metadata, registered_view_metadata
from dolake.errors import InvalidInput
from tests.catalog.examples import (
    ORDERS,
    START_MS,
    append,
    commit,
    ids,
    order,
    ref,
    schema,
    snapshot,
    spec,
    table,
    view,
    view_version,
)


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_we_wrote_comes_back_as_it_is(format_version: int) -> None:
    metadata = commit(table(format_version, history=3), ref("v1", 2, "tag"))
    metadata["x-new"] = 1
    before = copy.deepcopy(metadata)
    assert registered_table_metadata(metadata) == metadata == before


def test_an_old_table_of_format_1_gets_the_lists_that_came_later() -> None:
    old = {
        "format-version": 1,
        "location": "file:///old",
        "last-updated-ms": START_MS + 1000,
        "last-column-id": 3,
        "schema": {"type": "struct", "fields": ORDERS["fields"]},
        "partition-spec": [{"name": "at_day", "transform": "day", "source-id": 2}],
        "current-snapshot-id": 1,
        "snapshots": [snapshot(1, None)],
    }
    made = registered_table_metadata(old)
    assert made["schemas"] == [ORDERS]
    assert made["partition-specs"] == [spec(("at_day", "day", 2, 1000))]
    assert made["last-partition-id"] == 1000
    assert made["sort-orders"] == [order()]
    assert made["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert ids(commit(made, *append(made, 2))["snapshots"]) == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"format-version": 4},
        {"format-version": None},
        {"table-uuid": None},
        {"location": None},
        {"last-sequence-number": 2},
        {"last-column-id": "3"},
        {"last-updated-ms": START_MS - 100_000},
        {"schemas": []},
        {"schemas": [schema({"id": 1})]},
        {"current-schema-id": 7},
        {"partition-specs": [spec(("x", "identity", 9, 1000))]},
        {"default-spec-id": 3},
        {"sort-orders": None},
        {"default-sort-order-id": 3},
        {"properties": {"a": 1}},
        {"snapshots": [snapshot(1, 1), snapshot(1, 1)]},
        {"snapshots": [{}]},
        {"snapshots": {}},
        {"current-snapshot-id": 99},
        {"current-snapshot-id": 1},
        {"refs": []},
        {"refs": {"main": {"snapshot-id": 2, "type": "branch"}}},
        {"refs": {"x": {"snapshot-id": 99, "type": "tag"}}},
        {"refs": {"x": 3}},
        {"snapshot-log": [{"snapshot-id": 1}]},
        {"snapshot-log": [{"snapshot-id": 1, "timestamp-ms": t} for t in (START_MS, START_MS - 61_000)]},
        {"metadata-log": [{"timestamp-ms": 1}]},
        {"statistics": [{"snapshot-id": 1}]},
        {"partition-statistics": [{"snapshot-id": 1}]},
        {"encryption-keys": [{}]},
    ],
    ids=str,
)
def test_a_file_that_java_would_not_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        registered_table_metadata({**table(history=3), **wrong})


@pytest.mark.parametrize(
    "missing", ["last-sequence-number", "schemas", "partition-specs", "last-partition-id", "sort-orders"]
)
def test_format_2_must_have_what_format_1_may_leave_out(missing: str) -> None:
    metadata = table()
    del metadata[missing]
    with pytest.raises(InvalidInput):
        registered_table_metadata(metadata)


def test_a_file_that_is_no_object_is_refused() -> None:
    documents: list[Any] = [None, [], "{}"]
    for document in documents:
        with pytest.raises(InvalidInput):
            registered_table_metadata(document)
        with pytest.raises(InvalidInput):
            registered_view_metadata(document)


def test_a_view_comes_back_as_it_is() -> None:
    metadata = {**view(), "x-new": 1}
    assert registered_view_metadata(metadata) == metadata
    del metadata["properties"]
    assert registered_view_metadata(metadata)["properties"] == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"view-uuid": None},
        {"format-version": 2},
        {"location": 3},
        {"schemas": []},
        {"versions": []},
        {"versions": [view_version(1, schema_id=9)]},
        {"current-version-id": 9},
        {"version-log": [{}]},
        {"properties": None},
    ],
    ids=str,
)
def test_a_view_that_java_would_not_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        registered_view_metadata({**view(), **wrong})
