"""A commit as a whole, and the updates that concern the table itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dolake.catalog.commit import apply_updates
from dolake.errors import InvalidInput
from tests.catalog.examples import (
    FILE,
    ORDERS,
    OTHER_UUID,
    START_MS,
    UUID,
    act,
    append,
    commit,
    field,
    ids,
    order,
    ref,
    schema,
    snapshot,
    spec,
    table,
)

CREATE = [
    act("assign-uuid", uuid=UUID),
    act("upgrade-format-version", format_version=2),
    act("add-schema", schema=ORDERS),
    act("set-current-schema", schema_id=-1),
    act("add-spec", spec=spec()),
    act("set-default-spec", spec_id=-1),
    act("add-sort-order", sort_order=order()),
    act("set-default-sort-order", sort_order_id=-1),
    act("set-location", location="file:///warehouse/shop/orders"),
    act("set-properties", updates={"write.parquet.compression-codec": "zstd"}),
]


# --- new tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_the_updates_of_a_staged_create_make_the_table_that_was_staged(format_version: int) -> None:
    updates = [*CREATE]
    updates[1] = act("upgrade-format-version", format_version=format_version)
    assert commit(None, *updates, now_ms=START_MS, location=None) == table(format_version)


def test_a_new_table_may_come_with_its_first_snapshot() -> None:
    made = commit(
        None, *CREATE, *append({"format-version": 2, "last-sequence-number": 0, "current-snapshot-id": -1}, 1)
    )
    assert made["current-snapshot-id"] == 1
    assert made["metadata-log"] == []


def test_a_new_table_without_an_assigned_uuid_gets_the_offered_one() -> None:
    made = apply_updates(None, CREATE[1:], now_ms=START_MS, metadata_location=None, new_uuid=OTHER_UUID)
    assert made["table-uuid"] == OTHER_UUID


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("assign-uuid", "UUID is required in format v2"),
        ("add-schema", "no schema has been added"),
        ("add-spec", "no spec has been added"),
        ("add-sort-order", "no order has been added"),
        ("set-location", "Table location is required in format v2"),
    ],
)
def test_a_new_table_needs_all_its_parts(missing: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(None, *(update for update in CREATE if update["action"] != missing))


def test_an_assigned_uuid_goes_before_the_offered_one() -> None:
    made = apply_updates(None, CREATE, now_ms=START_MS, metadata_location=None, new_uuid=OTHER_UUID)
    assert made["table-uuid"] == UUID


def test_nothing_makes_no_table() -> None:
    with pytest.raises(InvalidInput):
        commit(None)


# --- any commit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "update",
    [
        act("open-the-pod-bay-doors"),
        act("add-view-version", view_version={}),
        act("set-current-view-version", view_version_id=1),
        {},
        {"action": None},
        "add-schema",
        None,
    ],
    ids=str,
)
def test_an_unknown_update_is_invalid_input(update: Any) -> None:
    with pytest.raises(InvalidInput):
        commit(table(), update)


@pytest.mark.parametrize(
    "update",
    [
        act("assign-uuid"),
        act("upgrade-format-version", format_version="3"),
        act("add-schema"),
        act("add-schema", schema=[]),
        act("set-current-schema"),
        act("remove-schemas", schema_ids=["1"]),
        act("add-spec"),
        act("set-default-spec", spec_id=None),
        act("remove-partition-specs"),
        act("add-sort-order"),
        act("set-default-sort-order"),
        act("add-snapshot"),
        act("remove-snapshots", snapshot_ids=7),
        act("set-snapshot-ref", ref_name="main", snapshot_id=1),
        act("remove-snapshot-ref"),
        act("set-statistics"),
        act("remove-statistics"),
        act("set-partition-statistics", partition_statistics=3),
        act("remove-partition-statistics"),
        act("set-location", location=None),
        act("set-location", location=""),
        act("set-properties", updates={"a": 1}),
        act("set-properties"),
        act("remove-properties", removals="a"),
        act("add-encryption-key"),
        act("remove-encryption-key"),
    ],
    ids=str,
)
def test_a_malformed_update_is_invalid_input(update: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        commit(table(history=1), update)


@pytest.mark.parametrize(
    "update",
    [
        act("assign-uuid", uuid=UUID),
        act("upgrade-format-version", format_version=2),
        act("add-schema", schema=ORDERS),
        act("set-current-schema", schema_id=0),
        act("add-spec", spec=spec()),
        act("set-default-spec", spec_id=0),
        act("add-sort-order", sort_order=order()),
        act("set-default-sort-order", sort_order_id=0),
        act("remove-schemas", schema_ids=[]),
        act("remove-partition-specs", spec_ids=[]),
        act("remove-snapshots", snapshot_ids=[99]),
        act("remove-snapshot-ref", ref_name="nightly"),
        act("remove-statistics", snapshot_id=99),
        act("remove-partition-statistics", snapshot_id=99),
        act("set-location", location="file:///warehouse/shop/orders/"),
        act("set-properties", updates={}),
        act("remove-properties", removals=[]),
        act("remove-encryption-key", key_id="none"),
        ref("main", 1),
    ],
    ids=str,
)
def test_a_commit_that_changes_nothing_returns_the_same_object(update: dict[str, Any]) -> None:
    metadata = table(history=1)
    assert commit(metadata, update) is metadata


def test_updates_are_applied_in_their_order() -> None:
    made = commit(
        table(),
        act("set-properties", updates={"a": "1", "b": "1"}),
        act("remove-properties", removals=["a"]),
        act("set-properties", updates={"b": "2"}),
    )
    assert made["properties"] == {"write.parquet.compression-codec": "zstd", "b": "2"}


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_fields_that_we_do_not_know_are_kept_at_every_level(format_version: int) -> None:
    odd: Any = {"x-new": {"deep": [1, None]}}
    metadata = table(format_version, schema=schema(field(1, "id", **odd), **odd), partition_spec={"fields": [], **odd})
    metadata = {**metadata, **odd}
    metadata = commit(metadata, *append(metadata, 1, **odd))
    metadata = commit(metadata, {**ref("main", 1), **odd})
    metadata = commit(metadata, *append(metadata, 2))
    assert metadata["x-new"] == odd["x-new"]
    assert metadata["schemas"][0]["x-new"] == odd["x-new"]
    assert metadata["schemas"][0]["fields"][0]["x-new"] == odd["x-new"]
    assert metadata["partition-specs"][0]["x-new"] == odd["x-new"]
    assert metadata["snapshots"][0]["x-new"] == odd["x-new"]
    assert metadata["refs"]["main"] == {"type": "branch", "snapshot-id": 2, **odd}


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_the_result_is_plain_json(format_version: int) -> None:
    metadata = table(format_version, history=3)
    assert json.loads(json.dumps(metadata)) == metadata


def test_a_commit_shares_all_that_it_does_not_change() -> None:
    """The cost of a commit, counted instead of timed: of 500 snapshots it copies none, and of the lists only two."""
    metadata = table(history=500, properties={"write.metadata.previous-versions-max": "3"})
    made = commit(metadata, *append(metadata, 501))
    assert all(old is new for old, new in zip(metadata["snapshots"], made["snapshots"], strict=False))
    assert all(old is new for old, new in zip(metadata["snapshot-log"], made["snapshot-log"], strict=False))
    assert (len(made["snapshots"]), len(made["snapshot-log"])) == (501, 501)
    shared = {key for key, value in made.items() if value is metadata[key] and isinstance(value, dict | list)}
    changed = {"snapshots", "snapshot-log", "metadata-log", "refs"}
    assert shared == {key for key, value in made.items() if isinstance(value, dict | list)} - changed


def test_setting_a_property_does_not_even_look_at_the_snapshots() -> None:
    class Unread(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the snapshots were read")

    metadata = {**table(history=1), "snapshots": Unread(), "snapshot-log": Unread()}
    made = apply_updates(
        metadata, [act("set-properties", updates={"a": "b"})], now_ms=START_MS + 5000, metadata_location=FILE
    )
    assert made["snapshots"] is metadata["snapshots"]


# --- time and logs ---------------------------------------------------------------------------------------------------


def test_a_commit_remembers_the_file_that_it_replaces() -> None:
    first = table()
    made = commit(first, act("set-properties", updates={"a": "1"}), now_ms=START_MS + 5, location="file:///a.json")
    assert made["last-updated-ms"] == START_MS + 5
    assert made["metadata-log"] == [{"timestamp-ms": START_MS, "metadata-file": "file:///a.json"}]


def test_a_commit_to_metadata_that_has_no_file_remembers_none() -> None:
    assert commit(table(), act("set-properties", updates={"a": "1"}), location=None)["metadata-log"] == []


def test_the_metadata_log_forgets_the_oldest_files() -> None:
    metadata = table(properties={"write.metadata.previous-versions-max": "2"})
    for number in range(5):
        metadata = commit(metadata, act("set-properties", updates={"n": str(number)}), location=f"file:///{number}")
    assert [entry["metadata-file"] for entry in metadata["metadata-log"]] == ["file:///3", "file:///4"]


def test_the_metadata_log_has_a_hundred_entries_unless_told_otherwise() -> None:
    metadata = table(history=130)
    assert len(metadata["metadata-log"]) == 100


def test_the_new_limit_of_the_metadata_log_holds_at_once_and_is_at_least_one() -> None:
    made = commit(table(history=5), act("set-properties", updates={"write.metadata.previous-versions-max": "0"}))
    assert len(made["metadata-log"]) == 1


def test_a_limit_that_is_no_number_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="must have integer value"):
        commit(table(), act("set-properties", updates={"write.metadata.previous-versions-max": "many"}))


def test_a_clock_that_was_set_back_does_not_make_the_table_s_time_run_backwards() -> None:
    metadata = table(history=3)
    made = commit(metadata, act("set-properties", updates={"a": "1"}), now_ms=START_MS - 86_400_000)
    assert made["last-updated-ms"] == metadata["last-updated-ms"]


# --- the table itself ------------------------------------------------------------------------------------------------


def test_a_table_keeps_its_uuid() -> None:
    with pytest.raises(InvalidInput, match="Cannot reassign uuid"):
        commit(table(), act("assign-uuid", uuid=OTHER_UUID))


def test_an_old_table_without_a_uuid_can_be_given_one() -> None:
    old = {key: value for key, value in table(1).items() if key != "table-uuid"}
    assert commit(old, act("assign-uuid", uuid=OTHER_UUID))["table-uuid"] == OTHER_UUID


def test_a_location_loses_its_trailing_slashes() -> None:
    assert commit(table(), act("set-location", location="s3://bucket/orders//"))["location"] == "s3://bucket/orders"


def test_properties_may_come_under_their_older_names() -> None:
    made = commit(table(), act("set-properties", updated={"a": "1", "b": "2"}), act("remove-properties", removed=["a"]))
    assert made["properties"]["b"] == "2"
    assert "a" not in made["properties"]


def test_removing_a_property_that_is_not_there_is_no_error() -> None:
    assert commit(table(), act("remove-properties", removals=["never"]))["properties"] == table()["properties"]


def test_encryption_keys_are_added_once_and_removed() -> None:
    key = {"key-id": "k1", "encrypted-key-metadata": "AAEC", "encrypted-by-id": "master", "x-new": 1}
    made = commit(table(3), act("add-encryption-key", encryption_key=key))
    assert made["encryption-keys"] == [key]
    assert commit(made, act("add-encryption-key", encryption_key=key)) is made
    assert "encryption-keys" not in commit(made, act("remove-encryption-key", key_id="k1"))


def test_an_encryption_key_is_base64() -> None:
    with pytest.raises(InvalidInput, match="base64"):
        commit(table(3), act("add-encryption-key", encryption_key={"key-id": "k1", "encrypted-key-metadata": "?"}))


# --- formats ---------------------------------------------------------------------------------------------------------


def test_format_1_is_written_so_that_old_readers_find_one_schema_and_one_spec() -> None:
    metadata = commit(
        table(1),
        act("add-schema", schema=schema(*ORDERS["fields"], field(4, "more"))),
        act("set-current-schema", schema_id=-1),
        act("add-spec", spec=spec(("id", "identity", 1, 1000))),
        act("set-default-spec", spec_id=-1),
    )
    assert ids(metadata["schema"]["fields"], "id") == [1, 2, 3, 4]
    assert metadata["partition-spec"] == metadata["partition-specs"][1]["fields"]
    assert "last-sequence-number" not in metadata


def test_an_upgrade_from_1_to_2_brings_sequence_numbers_and_drops_what_old_readers_needed() -> None:
    made = commit(table(1, history=2), act("upgrade-format-version", format_version=2))
    assert made["last-sequence-number"] == 0
    assert not {"schema", "partition-spec"} & made.keys()
    assert ids(commit(made, *append(made, 3))["snapshots"]) == [1, 2, 3]


def test_an_upgrade_to_3_brings_row_ids_and_null_for_no_snapshot() -> None:
    made = commit(table(2), act("upgrade-format-version", format_version=3))
    assert made["next-row-id"] == 0
    assert made["current-snapshot-id"] is None
    assert commit(made, *append(made, 1))["next-row-id"] == 10


@pytest.mark.parametrize(("version", "reason"), [(1, "downgrade"), (0, "unsupported"), (4, "unsupported")])
def test_a_format_only_rises_and_only_to_one_that_we_support(version: int, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(table(2), act("upgrade-format-version", format_version=version))


@pytest.mark.parametrize(("format_version", "nothing"), [(1, -1), (2, -1), (3, None)])
def test_no_current_snapshot_is_written_as_each_format_s_readers_expect(
    format_version: int, nothing: int | None
) -> None:
    made = commit(table(format_version, history=1), act("remove-snapshot-ref", ref_name="main"))
    assert made["current-snapshot-id"] == nothing
    assert snapshot(1, 1)["snapshot-id"] in ids(made["snapshots"])
