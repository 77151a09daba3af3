"""The first metadata of a table or a view."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dolake.catalog.create import RESERVED_PROPERTIES, new_table_metadata, new_view_metadata
from dolake.errors import InvalidInput
from tests.catalog.examples import (
    ORDERS,
    START_MS,
    UUID,
    field,
    hyphened,
    ids,
    order,
    schema,
    spec,
    table,
    view,
    view_version,
)

NESTED = schema(
    field(10, "id", required=True),
    field(20, "tags", {"type": "list", "element-id": 21, "element": "string", "element-required": True}),
    field(30, "at", {"type": "struct", "fields": [field(31, "day", "date"), field(32, "place", "string")]}),
    field(
        40,
        "prices",
        {
            "type": "map",
            "key-id": 41,
            "key": "string",
            "value-id": 42,
            "value": {"type": "struct", "fields": [field(43, "net", "double")]},
            "value-required": False,
        },
    ),
    field(50, "note", "string"),
    identifier_field_ids=[10],
)


def create(properties: dict[str, str] | None = None, **request: Any) -> dict[str, Any]:
    request = {"name": "t", "schema": ORDERS, **hyphened(request)}
    if properties is not None:
        request["properties"] = properties
    before = copy.deepcopy(request)
    made = new_table_metadata(request, location="file:///warehouse/t/", uuid=UUID, now_ms=START_MS)
    assert request == before
    return made


def test_a_new_table_of_format_2_is_empty_and_complete() -> None:
    assert create() == {
        "format-version": 2,
        "table-uuid": UUID,
        "location": "file:///warehouse/t",
        "last-sequence-number": 0,
        "last-updated-ms": START_MS,
        "last-column-id": 3,
        "current-schema-id": 0,
        "schemas": [ORDERS],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"write.parquet.compression-codec": "zstd"},
        "current-snapshot-id": -1,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def test_new_tables_of_formats_1_and_3_differ_where_the_formats_do() -> None:
    one, three = table(1), table(3)
    assert (one["schema"], one["partition-spec"]) == (ORDERS, [])
    assert "last-sequence-number" not in one
    assert (three["next-row-id"], three["current-snapshot-id"]) == (0, None)


def test_columns_are_numbered_anew_siblings_first() -> None:
    made = create(schema=NESTED)
    fields = made["schemas"][0]["fields"]
    assert ids(fields, "id") == [1, 2, 3, 4, 5]
    assert fields[1]["type"]["element-id"] == 6
    assert ids(fields[2]["type"]["fields"], "id") == [7, 8]
    assert (fields[3]["type"]["key-id"], fields[3]["type"]["value-id"]) == (9, 10)
    assert ids(fields[3]["type"]["value"]["fields"], "id") == [11]
    assert made["schemas"][0]["identifier-field-ids"] == [1]
    assert made["last-column-id"] == 11


def test_specs_and_orders_follow_their_columns_to_the_new_ids() -> None:
    by_day = spec(("day", "identity", 31, 1234), ("id_bucket", "bucket[4]", 10, 1230), id_=7)
    made = create(schema=NESTED, partition_spec=by_day, write_order=order(50, 10, id_=3))
    assert made["partition-specs"] == [spec(("day", "identity", 7, 1000), ("id_bucket", "bucket[4]", 1, 1001))]
    assert made["sort-orders"] == [order(5, 1)]
    assert (made["last-partition-id"], made["default-sort-order-id"]) == (1001, 1)


def test_a_spec_may_come_without_ids() -> None:
    sent = {"fields": [{"name": "at_day", "transform": "day", "source-id": 2}]}
    assert create(partition_spec=sent)["partition-specs"] == [spec(("at_day", "day", 2, 1000))]


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_the_format_comes_from_a_property_that_is_then_consumed(version: str) -> None:
    made = create({"format-version": version, "owner": "me"})
    assert made["format-version"] == int(version)
    assert made["properties"] == {"write.parquet.compression-codec": "zstd", "owner": "me"}


@pytest.mark.parametrize("version", ["0", "4", "two", "", "2.0"])
def test_a_format_that_we_do_not_support_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput):
        create({"format-version": version})


def test_reserved_properties_are_not_stored_and_defaults_can_be_overridden() -> None:
    sent = dict.fromkeys(RESERVED_PROPERTIES, "2") | {"write.parquet.compression-codec": "gzip"}
    assert create(sent)["properties"] == {"write.parquet.compression-codec": "gzip"}


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"write.metadata.metrics.column.nowhere": "full"}, "could not find column nowhere"),
        ({"commit.retry.num-retries": "often"}, "must have integer value"),
        ({"commit.retry.min-wait-ms": "-1"}, "non negative"),
        ({"encryption.key-id": "k"}, "Invalid properties for v2: encryption.key-id"),
        ({"a": 1}, "string value"),
    ],
    ids=str,
)
def test_properties_that_make_no_sense_are_refused(properties: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        create(properties)


def test_tables_of_format_3_may_be_encrypted() -> None:
    assert create({"format-version": "3", "encryption.key-id": "k"})["properties"]["encryption.key-id"] == "k"


def test_metrics_may_be_set_for_any_column() -> None:
    create({"write.metadata.metrics.column.prices.value.net": "full", "commit.retry.num-retries": "3"}, schema=NESTED)
    create({"write.metadata.metrics.column.prices.net": "full"}, schema=NESTED)


def test_types_and_defaults_of_format_3_are_refused_in_format_2() -> None:
    for each in (field(1, "v", "variant"), field(1, "v", "long", initial_default=3)):
        with pytest.raises(InvalidInput, match="not supported until v3"):
            create(schema=schema(each))
        assert create({"format-version": "3"}, schema=schema(each))["format-version"] == 3


@pytest.mark.parametrize(
    "request_",
    [
        {"schema": None},
        {"schema": "long"},
        {"schema": {"type": "list"}},
        {"schema": {"type": "struct"}},
        {"partition-spec": spec(("x", "identity", 9, 1000))},
        {"partition-spec": spec(("x", "void", 9, 1000))},
        {"partition-spec": []},
        {"write-order": order(9)},
        {"write-order": {"fields": []}},
        {"properties": []},
    ],
    ids=str,
)
def test_a_malformed_request_is_invalid_input(request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        create(**request_)


# --- views -----------------------------------------------------------------------------------------------------------


def test_a_new_view_has_one_version_made_now() -> None:
    made = view(owner="me")
    assert made == {
        "view-uuid": UUID,
        "format-version": 1,
        "location": "file:///warehouse/shop/latest",
        "properties": {"owner": "me"},
        "schemas": [ORDERS],
        "current-version-id": 1,
        "versions": [{**view_version(), "timestamp-ms": START_MS}],
        "version-log": [{"timestamp-ms": START_MS, "version-id": 1}],
    }


def test_a_new_view_counts_from_1_whatever_the_client_proposed() -> None:
    request = {"schema": {**ORDERS, "schema-id": 9}, "view-version": view_version(8, schema_id=9)}
    made = new_view_metadata(request, location="file:///v", uuid=UUID, now_ms=START_MS)
    assert (made["current-version-id"], made["versions"][0]["schema-id"]) == (1, 0)
    assert made["schemas"][0]["schema-id"] == 0


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "view-version"),
        ({"view-version": view_version(), "schema": None}, "schema"),
        ({"view-version": view_version(representations=[]), "schema": ORDERS}, "without specifying a query"),
        (
            {"view-version": view_version(1, "x", "spark", "Spark"), "schema": ORDERS},
            "multiple queries for dialect spark",
        ),
        ({"view-version": view_version(representations=[{"type": "png"}]), "schema": ORDERS}, "unsupported"),
        (
            {"view-version": view_version(), "schema": ORDERS, "properties": {"version.history.num-entries": "x"}},
            "integer",
        ),
    ],
    ids=str,
)
def test_a_malformed_view_request_is_invalid_input(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        new_view_metadata(request_, location="file:///v", uuid=UUID, now_ms=START_MS)
