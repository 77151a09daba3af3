"""Commits to views."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.errors import InvalidInput
from tests.catalog.examples import (
    ORDERS,
    OTHER_UUID,
    START_MS,
    UUID,
    act,
    commit,
    field,
    ids,
    schema,
    view,
    view_version,
)

WIDER = schema(*ORDERS["fields"], field(4, "amount", "double"))
LAST = act("set-current-view-version", view_version_id=-1)


def add_version(version: dict[str, Any]) -> dict[str, Any]:
    return act("add-view-version", view_version=version)


def replaced(metadata: dict[str, Any], number: int) -> dict[str, Any]:
    return commit(metadata, add_version(view_version(number, f"select {number}")), LAST)


def test_a_replaced_view_has_a_new_current_version_and_an_entry_in_its_log() -> None:
    made = replaced(view(), 2)
    assert ids(made["versions"], "version-id") == [1, 2]
    assert made["current-version-id"] == 2
    assert made["version-log"][1] == {"timestamp-ms": START_MS + 2000, "version-id": 2}


def test_a_version_gets_the_next_id_if_its_own_is_taken() -> None:
    made = commit(view(), add_version(view_version(1, "select 2")), LAST)
    assert ids(made["versions"], "version-id") == [1, 2]


def test_version_ids_end_where_32_bits_do() -> None:
    metadata = commit(view(), add_version(view_version(2**31 - 1, "select 2")))
    with pytest.raises(InvalidInput, match="beyond 32 bits"):
        commit(metadata, add_version(view_version(3, "select 3")))


def test_an_equal_version_is_used_again_whatever_its_id_and_time() -> None:
    metadata = replaced(view(), 2)
    same = {**metadata["versions"][0], "version-id": 9, "timestamp-ms": 1}
    made = commit(metadata, add_version(same), act("set-current-view-version", view_version_id=1))
    assert ids(made["versions"], "version-id") == [1, 2]
    assert made["current-version-id"] == 1


def test_a_version_that_is_made_current_again_became_so_now() -> None:
    made = commit(replaced(view(), 2), act("set-current-view-version", view_version_id=1), now_ms=START_MS + 77)
    assert made["version-log"][-1] == {"timestamp-ms": START_MS + 77, "version-id": 1}


def test_a_commit_makes_one_entry_in_the_log_even_if_it_changes_its_mind() -> None:
    updates = [add_version(view_version(2, "select 2")), LAST, add_version(view_version(3, "select 3")), LAST]
    assert ids(commit(view(), *updates)["version-log"], "version-id") == [1, 3]


def test_a_version_may_name_the_schema_that_was_added_with_it() -> None:
    version = view_version(2, "select 2", schema_id=-1)
    made = commit(view(), act("add-schema", schema=WIDER), add_version(version), LAST)
    assert ids(made["schemas"], "schema-id") == [0, 1]
    assert made["versions"][1]["schema-id"] == 1


def test_a_schema_may_come_before_the_version_that_uses_it() -> None:
    assert ids(commit(view(), act("add-schema", schema=WIDER))["schemas"], "schema-id") == [0, 1]


def test_a_default_catalog_is_written_only_if_there_is_one() -> None:
    for catalog, written in (("prod", {"default-catalog": "prod"}), (None, {})):
        made = commit(view(), add_version(view_version(2, "select 2", default_catalog=catalog)))
        assert {key: value for key, value in made["versions"][1].items() if key == "default-catalog"} == written


def test_an_equal_schema_is_used_again() -> None:
    metadata = view()
    assert commit(metadata, act("add-schema", schema=ORDERS)) is metadata


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        ([LAST], "no current version id has been set"),
        ([act("set-current-view-version", view_version_id=9)], "unknown version: 9"),
        ([add_version(view_version(2, schema_id=-1))], "no schema has been added"),
        ([add_version(view_version(2, schema_id=7))], "unknown schema: 7"),
        ([add_version(view_version(2, "select 2", "spark", "SPARK"))], "multiple queries for dialect spark"),
        ([add_version(view_version(2, representations=[{"type": "plan"}]))], "unsupported view representations: plan"),
        ([act("assign-uuid", uuid=OTHER_UUID)], "Cannot reassign uuid"),
        ([act("upgrade-format-version", format_version=2)], "Unsupported format version: 2"),
        ([act("upgrade-format-version", format_version=0)], "Cannot downgrade"),
        ([act("set-location", location="")], "Invalid location"),
        ([act("set-properties", updates={"version.history.num-entries": "0"})], "must be positive"),
        ([act("set-current-schema", schema_id=0)], "Cannot apply update set-current-schema to a view"),
        ([act("add-snapshot", snapshot={})], "Cannot apply update add-snapshot to a view"),
        ([act("fly")], "Cannot apply update fly to a view"),
    ],
    ids=str,
)
def test_a_commit_that_cannot_be_is_refused(updates: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(view(), *updates)


@pytest.mark.parametrize("missing", sorted(view_version()))
def test_a_version_without_one_of_its_fields_is_refused(missing: str) -> None:
    sent = {key: value for key, value in view_version(2, "select 2").items() if key != missing}
    with pytest.raises(InvalidInput, match=missing):
        commit(view(), add_version(sent))


def test_a_commit_that_changes_nothing_returns_the_same_object() -> None:
    metadata = view()
    same = [
        act("assign-uuid", uuid=UUID),
        act("upgrade-format-version", format_version=1),
        act("set-location", location=metadata["location"]),
        act("set-properties", updates={}),
        act("remove-properties", removals=[]),
        act("set-current-view-version", view_version_id=1),
        add_version(metadata["versions"][0]),
    ]
    assert commit(metadata, *same) is metadata


def test_location_and_properties_change() -> None:
    made = commit(
        view(a="1"),
        act("set-location", location="s3://elsewhere"),
        act("set-properties", updates={"b": "2"}),
        act("remove-properties", removals=["a", "never"]),
    )
    assert (made["location"], made["properties"]) == ("s3://elsewhere", {"b": "2"})


def test_a_dialect_cannot_be_lost_by_accident() -> None:
    both = commit(view(), add_version(view_version(2, "select 2", "spark", "trino")), LAST)
    with pytest.raises(InvalidInput, match="loss of view dialects"):
        commit(both, add_version(view_version(3, "select 3", "trino")), LAST)
    allowed = act("set-properties", updates={"replace.drop-dialect.allowed": "true"})
    assert commit(both, allowed, add_version(view_version(3, "select 3", "trino")), LAST)["current-version-id"] == 3


def test_only_the_newest_versions_are_kept() -> None:
    metadata = view()
    for number in range(2, 15):
        metadata = replaced(metadata, number)
    assert ids(metadata["versions"], "version-id") == ids(metadata["version-log"], "version-id") == [*range(5, 15)]


def test_the_current_version_is_kept_however_old_and_the_log_has_no_gap() -> None:
    metadata = replaced(replaced(view(), 2), 3)
    metadata = commit(metadata, act("set-current-view-version", view_version_id=1))
    made = commit(metadata, act("set-properties", updates={"version.history.num-entries": "2"}))
    assert ids(made["versions"], "version-id") == [1, 3]
    assert ids(made["version-log"], "version-id") == [3, 1]


def test_versions_added_in_this_commit_are_kept_beyond_the_limit() -> None:
    limit = act("set-properties", updates={"version.history.num-entries": "1"})
    made = commit(view(), limit, *(add_version(view_version(n, f"select {n}")) for n in (2, 3)), LAST)
    assert ids(made["versions"], "version-id") == [2, 3]


def test_fields_that_we_do_not_know_are_kept() -> None:
    version = view_version(2, "select 2", x_new=1)
    version["representations"][0]["x-new"] = 2
    made = commit({**view(), "x-new": 3}, add_version(version), LAST)
    assert made["x-new"] == 3
    assert made["versions"][1]["x-new"] == 1
    assert made["versions"][1]["representations"][0]["x-new"] == 2
