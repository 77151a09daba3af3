"""Words for partitions and orders, what they mean for a table's columns, and the specs that Python makes."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec as TheirSpec
from pyiceberg.table.metadata import TableMetadataUtil

from dolake import tables
from dolake.errors import InvalidInput
from dolake.settings.schema import TableSettings, problem_with_tables
from dolake.tables.ordering import SortKey, order_fields, problem_with_sort_word, sort_keys
from dolake.tables.partitions import (
    PartitionField,
    fitted,
    parse_partition_words,
    problem_with_partition_word,
    spec_changes,
)

COLUMNS = {
    "_key": "string",
    "id": "long",
    "region": "string",
    "ts": "timestamptz",
    "born": "date",
    "price": "decimal(9, 2)",
    "share": "double",
    "dt": "string",
    "_file_": "string",
}


def schema_of(**columns: Any) -> dict[str, Any]:
    fields = [
        {"id": number, "name": name, "required": False, "type": type_}
        for number, (name, type_) in enumerate(columns.items(), 1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


SCHEMA = schema_of(**COLUMNS, nested={"type": "struct", "fields": []})


def fields_of(*words: str, schema: dict[str, Any] = SCHEMA) -> list[tuple[str, str]]:
    fields = parse_partition_words(words, schema)
    assert fields is not None
    return [(field["name"], field["transform"]) for field in fitted(fields, schema).fields]


@pytest.mark.parametrize(
    ("word", "name", "transform"),
    [
        ("day(ts)", "ts_day", "day"),
        ("days(ts)", "ts_day", "day"),
        (" DAY ( ts ) ", "ts_day", "day"),
        ("hour(ts)", "ts_hour", "hour"),
        ("month(born)", "born_month", "month"),
        ("year(born)", "born_year", "year"),
        ("bucket(16, id)", "id_bucket", "bucket[16]"),
        ("bucket(16, _key)", "_key_bucket", "bucket[16]"),
        ("truncate(10, region)", "region_trunc", "truncate[10]"),
        ("region", "region", "identity"),
        ("identity(region)", "region", "identity"),
        ("identity(price)", "price", "identity"),
        ("day(ts) as moment", "moment", "day"),
        ("day(ts) as dt", "ts_day", "day"),  # a column is called dt already
        ("_file", "_file_", "identity"),  # as the source calls it
    ],
)
def test_a_word_becomes_a_field_of_the_tables_spec(word: str, name: str, transform: str) -> None:
    assert problem_with_partition_word(word) is None
    assert fields_of(word) == [(name, transform)]


@pytest.mark.parametrize(
    "word",
    ["", "day()", "day(ts", "day ts)", "week(ts)", "bucket(id)", "bucket(0, id)", "bucket(-1, id)", "bucket(x, id)",
     "bucket(99999999999, id)", "truncate(id, 5)", "day(1, ts)", "day(ts) as a b", "day(ts) as a/b", "f(g(x))"],
)  # fmt: skip
def test_a_malformed_word_is_refused_with_the_settings(word: str) -> None:
    assert problem_with_partition_word(word)
    assert "partition_by" in problem_with_tables({"shop.orders": TableSettings(partition_by=("day(ts)", word))})


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("day(gone)", "no column 'gone'"),
        ("day(region)", "type string"),
        ("hour(born)", "type date"),
        ("bucket(4, share)", "type double"),
        ("share", "fractions"),
        ("nested", "type struct"),
        ("hour(ts)", "divided by day already"),
        ("day(ts)", "divided by day already"),
    ],
)
def test_what_the_columns_do_not_allow_is_left_out_and_said(word: str, why: str) -> None:
    fields = parse_partition_words(["day(ts)", word, "region"], SCHEMA)
    assert fields
    found = fitted(fields, SCHEMA)
    assert [field["name"] for field in found.fields] == ["ts_day", "region"]
    assert len(found.problems) == 1
    assert why in found.problems[0]


def test_by_date_means_the_first_column_of_days_that_the_table_has() -> None:
    assert fields_of("date") == [("date", "day")]
    assert fields_of("date", schema=schema_of(updated_at="timestamp", created_at="timestamptz")) == [("date", "day")]
    found = parse_partition_words(["date"], schema_of(updated_at="timestamp", created_at="timestamptz"))
    assert found == (PartitionField("day", "created_at", "date"),)
    assert fields_of("date", schema=schema_of(date="date")) == [("date", "identity")]
    assert fields_of("date", schema=schema_of(date="timestamptz")) == [("date_day", "day")]
    assert fields_of("date", schema=schema_of(date="string", id="long")) == []


def test_no_word_wants_nothing_and_none_wants_no_partitions() -> None:
    assert parse_partition_words([], SCHEMA) is None
    assert parse_partition_words(["none"], SCHEMA) == ()


def test_a_spec_changes_by_what_goes_and_what_comes() -> None:
    by_day = {"source-id": 4, "transform": "day", "name": "dt", "field-id": 1000}
    by_region = {"source-id": 3, "transform": "identity", "name": "region"}
    assert spec_changes([by_day], [by_day | {"name": "other"}], [by_day]) == ([], [])
    assert spec_changes([by_day], [by_region, by_day], [by_day]) == ([], [by_region])
    assert spec_changes([by_day], [], [by_day]) == (["dt"], [])
    by_hour = by_day | {"transform": "hour"}
    gone, come = spec_changes([by_day], [by_hour], [by_day])
    assert (gone, [field["name"] for field in come]) == (["dt"], ["dt_2"])
    assert spec_changes([by_hour | {"name": "hr"}], [by_day], [by_day, by_hour | {"name": "hr"}])[1] == [by_day]


def test_pythons_specs_are_words_for_settings_and_json_for_a_schema() -> None:
    day = tables.create_day_partition_spec("ts", 1000)
    assert day.words() == ("day(ts) as dt",)
    assert day.for_schema(schema_of(ts="timestamptz")) == {
        "spec-id": 0,
        "fields": [{"source-id": 1, "transform": "day", "name": "dt", "field-id": 1000}],
    }
    hour = tables.create_hour_partition_spec("ts", 1001)
    assert [(field["name"], field["field-id"]) for field in hour.for_schema(SCHEMA)["fields"]] == [("hr", 1001)]
    bucket = tables.create_bucket_partition_spec("id", 16, 1002)
    assert bucket.for_schema(SCHEMA)["fields"][0]["transform"] == "bucket[16]"
    for spec, name in (
        (tables.create_identity_partition_spec("region"), "region"),
        (tables.create_month_partition_spec("born"), "month"),
        (tables.create_year_partition_spec("born"), "year"),
        (tables.create_truncate_partition_spec("region", 2), "trunc"),
    ):
        assert [
            field["name"] for field in TheirSpec.model_validate(spec.for_schema(SCHEMA)).model_dump()["fields"]
        ] == [name]
        assert all(problem_with_partition_word(word) is None for word in spec.words())


def test_a_composite_spec_takes_dicts_in_either_spelling() -> None:
    spec = tables.create_composite_partition_spec(
        [{"type": "day", "sourceField": "ts"}, {"type": "bucket", "source_field": "region", "numBuckets": 4}]
    )
    made = spec.for_schema(schema_of(ts="timestamptz", region="string"))["fields"]
    assert [(each["name"], each["transform"], each["field-id"]) for each in made] == [
        ("dt", "day", 1000),
        ("bucket", "bucket[4]", 1001),
    ]
    twice = [{"type": "bucket", "source_field": name, "num_buckets": 4} for name in ("region", "id")]
    made = tables.create_composite_partition_spec(twice).for_schema(SCHEMA)["fields"]
    assert [each["name"] for each in made] == ["bucket", "id_bucket"]


def test_a_spec_that_iceberg_would_refuse_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidInput, match="two spans of time"):
        tables.create_composite_partition_spec(
            [{"type": "day", "source_field": "ts"}, {"type": "hour", "sourceField": "ts"}]
        )
    with pytest.raises(InvalidInput, match="whole number"):
        tables.create_bucket_partition_spec("id", 0)
    with pytest.raises(InvalidInput, match="no column"):
        tables.create_day_partition_spec("gone").for_schema(SCHEMA)
    with pytest.raises(InvalidInput, match="source_field"):
        tables.create_composite_partition_spec([{"type": "day"}])


def test_rows_are_sorted_by_columns_that_have_an_order() -> None:
    keys, problems = sort_keys(["ts", "price DESC", "ts desc", "gone", "nested"], SCHEMA)
    assert keys == (SortKey("ts"), SortKey("price", "desc"))
    assert len(problems) == 2
    assert order_fields(keys, SCHEMA)[1] == {
        "transform": "identity", "source-id": 6, "direction": "desc", "null-order": "nulls-last",
    }  # fmt: skip
    assert problem_with_sort_word(" ")
    assert "sort_by" in problem_with_tables({"orders": TableSettings(sort_by=("ts", " "))})
    assert not problem_with_tables({"orders": TableSettings(sort_by="ts desc", partition_by="day(ts)")})


def test_new_metadata_and_its_first_snapshot_are_what_others_read() -> None:
    metadata = tables.create_table_metadata(
        "file:///lake/shop/orders", SCHEMA, partition_spec=tables.create_day_partition_spec("ts"), now_ms=5
    )
    assert metadata["last-column-id"] == len(SCHEMA["fields"])
    assert metadata["last-partition-id"] == 1000
    first = tables.create_append_snapshot(metadata, "file:///l.avro", added_files=2, added_rows=10, now_ms=4)
    assert (first["sequence-number"], first["timestamp-ms"], "parent-snapshot-id" in first) == (1, 5, False)
    id_ = first["snapshot-id"]
    metadata |= {"snapshots": [first], "current-snapshot-id": id_, "last-sequence-number": 1}
    second = tables.create_append_snapshot(metadata, "file:///m.avro", added_files=1, added_rows=5)
    assert second["parent-snapshot-id"] == id_
    assert (second["summary"]["added-records"], second["summary"]["total-records"]) == ("5", "15")
    theirs = TableMetadataUtil.parse_obj(metadata)
    assert [(field.name, str(field.transform)) for field in theirs.spec().fields] == [("ts_day", "day")]
    assert theirs.current_snapshot_id == id_
