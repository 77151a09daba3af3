"""What a writer relied on, checked against what is there."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.catalog.commit import check_requirements
from dolake.catalog.errors import CommitConflict
from dolake.errors import InvalidInput
from tests.catalog.examples import OTHER_UUID, UUID, commit, need, ref, table, view

TABLE = commit(table(history=2), ref("release", 1, "tag"))

HOLDS = [
    need("assert-table-uuid", uuid=UUID),
    need("assert-table-uuid", uuid=UUID.upper()),
    need("assert-ref-snapshot-id", ref="main", snapshot_id=2),
    need("assert-ref-snapshot-id", ref="release", snapshot_id=1),
    need("assert-ref-snapshot-id", ref="nightly", snapshot_id=None),
    need("assert-last-assigned-field-id", last_assigned_field_id=3),
    need("assert-current-schema-id", current_schema_id=0),
    need("assert-last-assigned-partition-id", last_assigned_partition_id=999),
    need("assert-default-spec-id", default_spec_id=0),
    need("assert-default-sort-order-id", default_sort_order_id=0),
]

FAILS = [
    (need("assert-create"), "table already exists"),
    (need("assert-table-uuid", uuid=OTHER_UUID), "UUID does not match"),
    (need("assert-ref-snapshot-id", ref="main", snapshot_id=1), "branch main has changed: expected id 1 != 2"),
    (need("assert-ref-snapshot-id", ref="main", snapshot_id=None), "branch main was created concurrently"),
    (need("assert-ref-snapshot-id", ref="release", snapshot_id=None), "tag release was created concurrently"),
    (need("assert-ref-snapshot-id", ref="nightly", snapshot_id=7), "branch or tag nightly is missing, expected 7"),
    (need("assert-last-assigned-field-id", last_assigned_field_id=2), "last assigned field id changed"),
    (need("assert-current-schema-id", current_schema_id=1), "current schema changed"),
    (need("assert-last-assigned-partition-id", last_assigned_partition_id=1000), "last assigned partition id changed"),
    (need("assert-default-spec-id", default_spec_id=1), "default partition spec changed"),
    (need("assert-default-sort-order-id", default_sort_order_id=1), "default sort order changed"),
]

MALFORMED: list[Any] = [
    need("assert-nothing-at-all"),
    need("assert-table-uuid"),
    need("assert-table-uuid", uuid=None),
    need("assert-ref-snapshot-id", snapshot_id=1),
    need("assert-ref-snapshot-id", ref="main", snapshot_id="1"),
    need("assert-last-assigned-field-id", last_assigned_field_id=True),
    need("assert-current-schema-id", current_schema_id=1.0),
    need("assert-default-spec-id", default_spec_id=2**31),
    {"uuid": UUID},
    {"type": 7},
    "assert-create",
    None,
]


@pytest.mark.parametrize("requirement", HOLDS, ids=str)
def test_a_requirement_that_holds_lets_the_commit_pass(requirement: dict[str, Any]) -> None:
    check_requirements(TABLE, [requirement])


@pytest.mark.parametrize(("requirement", "reason"), FAILS, ids=str)
def test_a_requirement_that_does_not_hold_is_a_conflict_in_java_s_words(
    requirement: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CommitConflict) as refused:
        check_requirements(TABLE, [requirement])
    assert refused.value.message.startswith(f"Requirement failed: {reason}")


@pytest.mark.parametrize("requirement", MALFORMED, ids=str)
def test_an_unknown_or_malformed_requirement_is_invalid_input(requirement: Any) -> None:
    with pytest.raises(InvalidInput):
        check_requirements(TABLE, [requirement])


def test_a_malformed_requirement_is_found_even_behind_one_that_fails() -> None:
    with pytest.raises(InvalidInput):
        check_requirements(TABLE, [FAILS[1][0], need("assert-table-uuid")])


def test_no_requirements_always_hold() -> None:
    check_requirements(TABLE, [])
    check_requirements(None, [])


def test_assert_create_holds_where_nothing_is() -> None:
    check_requirements(None, [need("assert-create")])


def test_assert_create_stands_alone() -> None:
    with pytest.raises(InvalidInput, match="Invalid create requirements: assert-table-uuid"):
        check_requirements(None, [need("assert-create"), need("assert-table-uuid", uuid=UUID)])


@pytest.mark.parametrize("requirement", HOLDS, ids=str)
def test_every_other_requirement_needs_a_table(requirement: dict[str, Any]) -> None:
    with pytest.raises(CommitConflict, match="table does not exist"):
        check_requirements(None, [requirement])


def test_a_view_is_known_by_its_uuid() -> None:
    check_requirements(view(), [need("assert-view-uuid", uuid=UUID)])
    with pytest.raises(CommitConflict, match="view UUID does not match"):
        check_requirements(view(), [need("assert-view-uuid", uuid=OTHER_UUID)])


def test_tables_and_views_have_their_own_requirements() -> None:
    with pytest.raises(InvalidInput, match="Cannot validate assert-table-uuid against a view"):
        check_requirements(view(), [need("assert-table-uuid", uuid=UUID)])
    with pytest.raises(InvalidInput, match="Cannot validate assert-view-uuid against a table"):
        check_requirements(TABLE, [need("assert-view-uuid", uuid=UUID)])


def test_a_table_from_before_there_were_refs_has_main_at_its_current_snapshot() -> None:
    old = {key: value for key, value in TABLE.items() if key != "refs"}
    check_requirements(old, [need("assert-ref-snapshot-id", ref="main", snapshot_id=2)])
