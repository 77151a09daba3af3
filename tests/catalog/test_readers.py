"""Questions about metadata that others ask."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dolake.catalog.readers import (
    changes_data,
    current_schema,
    current_snapshot,
    current_view_version,
    default_sort_order,
    default_spec,
    only_refs,
    refs_of,
    snapshot_by_id,
    uuid_of,
)
from tests.catalog.examples import ORDERS, UUID, act, commit, ids, main, order, ref, spec, table, view


def test_a_table_s_current_parts() -> None:
    metadata = table(history=2)
    assert current_schema(metadata) == ORDERS
    assert default_spec(metadata) == spec()
    assert default_sort_order(metadata) == order()
    assert current_snapshot(metadata) is metadata["snapshots"][1]
    assert snapshot_by_id(metadata, 1) is metadata["snapshots"][0]
    assert snapshot_by_id(metadata, 9) is None
    assert uuid_of(metadata) == uuid_of(view()) == UUID


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_an_empty_table_has_no_current_snapshot(format_version: int) -> None:
    assert current_snapshot(table(format_version)) is None


def test_a_view_s_current_parts() -> None:
    metadata = view()
    assert current_schema(metadata) == ORDERS
    assert current_view_version(metadata) is metadata["versions"][0]


def test_only_the_snapshots_behind_refs_are_shown_and_the_rest_is_untouched() -> None:
    metadata = commit(table(history=5), ref("v1", 2, "tag"))
    files = [{"snapshot-id": id_} for id_ in (1, 2)]
    metadata = {**metadata, "statistics": files, "partition-statistics": files}
    before = copy.deepcopy(metadata)
    shown = only_refs(metadata)
    assert metadata == before
    assert ids(shown["snapshots"]) == [2, 5]
    assert ids(shown["statistics"]) == ids(shown["partition-statistics"]) == [2]
    assert ids(shown["snapshot-log"]) == [1, 2, 3, 4, 5]
    assert shown["snapshots"][1] is metadata["snapshots"][4]


def test_without_refs_a_table_has_main_if_it_has_a_snapshot() -> None:
    old = {key: value for key, value in table(history=1).items() if key != "refs"}
    assert refs_of(old) == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert refs_of({**old, "current-snapshot-id": -1}) == {}


@pytest.mark.parametrize(
    "update",
    [
        act("add-snapshot"),
        main(1),
        act("remove-snapshots"),
        act("remove-snapshot-ref"),
        act("remove-snapshot-ref", ref_name="main"),
        act("remove-snapshot-ref", ref_name="draft"),
        ref("draft", 1, "tag"),
        ref("main", 1, "tag"),
        ref("new", 1, "branch"),
        act("set-snapshot-ref", ref_name="new", snapshot_id=1),
        act("add-schema"),
        act("set-current-schema"),
        act("remove-schemas"),
        act("set-default-spec"),
        act("set-location"),
        act("upgrade-format-version"),
        act("assign-uuid"),
        act("an-update-of-the-future"),
        {},
        act("set-properties", updates={"dolake.managed": "false"}),
        act("set-properties", updated={"dolake.managed": "false"}),
        act("remove-properties", removals=["a", "dolake.managed"]),
        act("set-properties", updates={"schema.name-mapping.default": "[]"}),
    ],
    ids=str,
)
def test_what_changes_data_or_lifts_the_guard_is_told_apart(update: dict[str, Any]) -> None:
    refs = {name: {"snapshot-id": 1, "type": "branch"} for name in ("main", "draft")}
    assert changes_data([act("set-statistics"), update], refs)


def test_comments_statistics_tags_and_sort_orders_change_no_data() -> None:
    assert not changes_data(
        [
            act("set-properties", updates={"comment": "hello"}),
            act("remove-properties", removals=["comment"]),
            act("set-statistics"),
            act("remove-partition-statistics"),
            act("add-sort-order"),
            act("set-default-sort-order"),
            ref("v1", 2, "tag"),
            ref("new", 1, "TAG"),
            act("remove-snapshot-ref", ref_name="v1"),
        ],
        {"v1": {"snapshot-id": 1, "type": "tag"}},
    )
    assert not changes_data([], {})
