"""What metadata tells of a table and its past: rows, snapshots, versions of its columns."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.catalog.base import PUBLISHED_TO, Name
from dolake.catalog.history import describe_schema, describe_table, newest, snapshots_of, time_text
from dolake.tables import layout
from dolake.tables.types import Field, ListType, StructType
from tests.catalog.examples import START_MS, Json, act, append, commit, field, schema, table

ORDERS = Name(("default",), "orders")
FULL = {"total-records": "10", "total-data-files": "2", "total-position-deletes": "3", "total-equality-deletes": "0"}


def managed(*columns: Field, **request: Any) -> Json:
    fields = columns or (Field("id", "long"), Field("name", "string"))
    return table(
        schema=layout.state_schema(fields, has_source=False), properties=layout.properties("orders"), **request
    )


def with_snapshot(metadata: Json, id_: int, **summary: str) -> Json:
    said = {"operation": "overwrite"} | {key.replace("_", "-"): value for key, value in summary.items()}
    schema_id = metadata["current-schema-id"]
    return commit(metadata, *append(metadata, id_, summary=said, schema_id=schema_id), now_ms=START_MS + id_ * 1000)


def with_columns(metadata: Json, *columns: Field, has_source: bool = False) -> Json:
    """As the pipeline adds them: known columns keep their ids."""
    (now,) = [each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]]
    ids = {each["name"]: each["id"] for each in now["fields"]}
    wanted = layout.state_schema(columns, has_source=has_source)
    new = (each["name"] for each in wanted["fields"] if each["name"] not in ids)
    ids |= {name: number for number, name in enumerate(new, start=metadata["last-column-id"] + 1)}
    fields = [each | {"id": ids[each["name"]]} for each in wanted["fields"]]
    return commit(
        metadata,
        act("add-schema", schema=schema(*fields, id_=-1), last_column_id=max(ids.values())),
        act("set-current-schema", schema_id=-1),
        now_ms=metadata["last-updated-ms"],
    )


def describe_snapshots(metadata: Json) -> list[Json]:
    return [each.describe() for each in newest(snapshots_of(ORDERS, metadata), 100)]


# --- a table ---------------------------------------------------------------------------------------------------------


def test_a_table_has_the_rows_that_a_reader_finds() -> None:
    told = describe_table(ORDERS, with_snapshot(managed(), 7, **FULL))
    assert told == {
        "namespace": "default",
        "name": "orders",
        "managed": True,
        "snapshotId": "7",
        "updatedAt": "2023-11-14T22:13:27.000Z",
        "rows": 7,
    }


def test_a_table_without_a_snapshot_has_no_rows_and_was_changed_when_it_was_made() -> None:
    told = describe_table(ORDERS, table())
    assert (told["managed"], told["snapshotId"], told["rows"]) == (False, None, 0)
    assert told["updatedAt"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize(
    ("summary", "rows"),
    [
        (FULL | {"total-position-deletes": "0"}, 10),
        (FULL, None),  # of a stranger's deletes nobody knows whether two name one row
        (FULL | {"total-position-deletes": "0", "total-equality-deletes": "1"}, None),
        ({}, None),
        (FULL | {"total-records": "many"}, None),
    ],
)
def test_rows_of_a_table_of_ones_own_are_told_where_its_summary_is_enough(summary: Json, rows: int | None) -> None:
    assert describe_table(ORDERS, with_snapshot(table(), 1, **summary))["rows"] == rows


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_snapshots_come_newest_first_with_their_position_and_the_current_one_is_marked() -> None:
    metadata = managed()
    for number in (1, 2, 3):
        metadata = with_snapshot(metadata, number, **{PUBLISHED_TO: str(100 * number), "added-records": "5"}, **FULL)
    told = describe_snapshots(metadata)
    assert [each["snapshotId"] for each in told] == ["3", "2", "1"]
    assert [each["position"] for each in told] == [300, 200, 100]
    assert [each["isCurrent"] for each in told] == [True, False, False]
    assert told[0] == {
        "snapshotId": "3",
        "table": "default.orders",
        "timestamp": "2023-11-14T22:13:23.000Z",
        "operation": "overwrite",
        "position": 300,
        "addedRecords": 5,
        "deletedRecords": 0,
        "totalRecords": 10,
        "rows": 7,
        "addedFiles": 0,
        "totalFiles": 2,
        "isCurrent": True,
    }


def test_of_earlier_snapshots_files_are_not_known() -> None:
    metadata = with_snapshot(with_snapshot(managed(), 1, **FULL), 2, **FULL)
    now, before = describe_snapshots(metadata)
    assert (now["totalFiles"], now["rows"]) == (2, 7)
    assert (before["totalFiles"], before["addedFiles"], before["rows"]) == (None, None, 7)
    assert (before["addedRecords"], before["totalRecords"]) == (0, 10)


def test_an_id_of_64_bits_is_told_as_text() -> None:
    metadata = managed()
    metadata["snapshots"] = [{"snapshot-id": 2**63 - 1, "timestamp-ms": START_MS, "manifest-list": "x"}]
    assert describe_snapshots(metadata)[0]["snapshotId"] == "9223372036854775807"


def test_a_snapshot_that_says_nothing_of_itself_is_told_with_nothing() -> None:
    metadata = table()
    metadata["snapshots"] = [{"snapshot-id": 1, "timestamp-ms": 2**62, "manifest-list": "x"}]
    (told,) = describe_snapshots(metadata)
    unknown = {key for key, value in told.items() if value is None}
    assert unknown == set(told) - {"snapshotId", "table", "isCurrent"}


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_763_000_000_123, "2025-11-13T02:13:20.123Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (-(2**63), None),
    ],
)
def test_a_time_is_told_to_the_millisecond_in_utc(time_ms: int, text: str | None) -> None:
    assert time_text(time_ms) == text


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_schema_has_the_users_columns_with_icebergs_ids_and_types() -> None:
    nested = Field("o", StructType((Field("a", "long"), Field("l", ListType("string")))))
    told = describe_schema(ORDERS, managed(Field("id", "long"), Field("at", "timestamptz"), nested))
    assert (told["table"], told["version"]) == ("default.orders", 1)
    plain = [(each["name"], each["type"], each["required"]) for each in told["fields"][:2]]
    assert plain == [("id", "long", False), ("at", "timestamptz", False)]
    assert told["fields"][0]["id"] > 2  # those before are ours
    struct = told["fields"][2]["type"]
    assert struct["type"] == "struct"
    assert [(each["name"], each["type"]) for each in struct["fields"][:1]] == [("a", "long")]
    assert struct["fields"][1]["type"]["element"] == "string"


def test_a_column_that_was_renamed_is_told_by_the_name_to_write_in_sql() -> None:
    told = describe_schema(ORDERS, managed(Field("id", "long"), Field("_key_", "string")))
    assert [each["name"] for each in told["fields"]] == ["id", "_key_"]


def test_a_table_of_ones_own_shows_all_of_its_columns() -> None:
    told = describe_schema(ORDERS, table(schema=schema(field(1, "_key"), field(2, "id"))))
    assert [each["name"] for each in told["fields"]] == ["_key", "id"]


def test_a_new_column_is_a_new_version_and_the_old_one_is_kept() -> None:
    metadata = with_snapshot(managed(Field("id", "long")), 1)
    metadata = with_columns(metadata, Field("id", "long"), Field("phone", "string"))
    assert describe_schema(ORDERS, metadata)["versions"][1]["since"] is None  # nothing was written with it yet
    metadata = with_snapshot(with_snapshot(metadata, 2), 3)
    told = describe_schema(ORDERS, metadata)
    assert told["version"] == 2
    assert [each["name"] for each in told["fields"]] == ["id", "phone"]
    assert [each["version"] for each in told["versions"]] == [1, 2]
    assert [[one["name"] for one in each["fields"]] for each in told["versions"]] == [["id"], ["id", "phone"]]
    assert [each["since"] for each in told["versions"]] == ["2023-11-14T22:13:21.000Z", "2023-11-14T22:13:22.000Z"]


def test_schemas_that_differ_only_in_our_own_columns_are_one_version() -> None:
    metadata = with_snapshot(managed(Field("id", "long")), 1)
    metadata = with_snapshot(with_columns(metadata, Field("id", "long"), has_source=True), 2)
    assert len(metadata["schemas"]) == 2
    told = describe_schema(ORDERS, metadata)
    assert told["version"] == len(told["versions"]) == 1
    assert told["versions"][0]["since"] == "2023-11-14T22:13:21.000Z"


def test_since_when_a_version_is_there_is_unknown_once_its_first_snapshot_has_expired() -> None:
    metadata = with_snapshot(with_snapshot(managed(Field("id", "long")), 1), 2)
    metadata = with_snapshot(with_columns(metadata, Field("id", "long"), Field("phone", "string")), 3)
    metadata = commit(metadata, act("remove-snapshots", snapshot_ids=[1]))
    assert [each["since"] for each in describe_schema(ORDERS, metadata)["versions"]] == [
        None,
        "2023-11-14T22:13:23.000Z",
    ]
    metadata = commit(metadata, act("remove-snapshots", snapshot_ids=[2]))
    assert [each["since"] for each in describe_schema(ORDERS, metadata)["versions"]] == [None, None]


def test_columns_that_are_again_what_they_were_are_that_version_again() -> None:
    metadata = with_columns(managed(Field("id", "long")), Field("id", "long"), Field("phone", "string"))
    metadata = commit(metadata, act("set-current-schema", schema_id=0))
    told = describe_schema(ORDERS, metadata)
    assert (told["version"], len(told["versions"])) == (1, 2)
