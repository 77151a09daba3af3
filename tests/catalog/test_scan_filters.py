"""Filters of scans: what is refused, with which words, and what of a filter is left for the files of a partition."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from dolake.catalog.errors import IllegalArgument
from dolake.catalog.scan_filters import Filter
from tests.catalog.examples import Json

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "group", IntegerType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "name", StringType()),
    NestedField(5, "price", DecimalType(38, 2)),
    NestedField(6, "real", FloatType()),
    NestedField(7, "wide", DoubleType()),
    NestedField(8, "flag", BooleanType()),
    NestedField(9, "day", DateType()),
    NestedField(10, "local", TimestampType()),
    NestedField(11, "time", TimeType()),
    NestedField(12, "uuid", UUIDType()),
    NestedField(13, "raw", BinaryType()),
    NestedField(14, "four", FixedType(4)),
    NestedField(15, "home", StructType(NestedField(16, "city", StringType()))),
    NestedField(17, "tags", ListType(18, StringType())),
)
BY_GROUP = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "group"))
BY_DAY = PartitionSpec(PartitionField(3, 1000, DayTransform(), "at_day"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
DAY = 20454  # 2026-01-01


def is_(kind: str, term: Any, *value: Any) -> Json:
    return {"type": kind, "term": term} | ({"value": value[0]} if value else {})


def both(kind: str, left: Any, right: Any) -> Json:
    return {"type": kind, "left": left, "right": right}


def no(child: Any) -> Json:
    return {"type": "not", "child": child}


def left_of(node: Any, spec: PartitionSpec, *partition: Any) -> object:
    return Filter(node, SCHEMA, is_case_sensitive=True).residual_of(spec)(Record(*partition))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "non-object: None"),
        (7, "non-object: 7"),
        ({}, "without a type"),
        ({"type": 7}, "without a type"),
        ({"type": "like", "term": "name", "value": "a%"}, "'like' is no kind of expression"),
        ({"type": "not"}, "'not': child is missing"),
        ({"type": "and", "left": True}, "'and': right is missing"),
        ({"type": "eq", "term": "id"}, "'eq': right is missing"),
        ({"type": "eq", "value": 1}, "'eq': left is missing"),
        ({"type": "in", "term": "id"}, "'in': values is missing"),
        ({"type": "in", "term": "id", "values": 1}, "non-array: 1"),
        (is_("eq", "ID", 1), "Cannot find field 'ID'"),
        (is_("eq", 7, 1), "requires string or object"),
        (is_("eq", {"type": "apply", "function": "f"}, 1), "'apply'"),
        (is_("eq", {"type": "reference", "id": 99}, 1), "the id 99"),
        (is_("eq", {"type": "reference", "name": {"type": "reference"}}, 1), "is no name of a field"),
        (is_("eq", {"type": "transform", "term": {"type": "transform"}}, 1), "'transform'"),
        (is_("eq", {"type": "transform", "transform": "half", "term": "nope"}, 1), "Cannot find field 'nope'"),
        (is_("eq", {"type": "transform", "transform": "half", "term": "id"}, 1), "'half' is no transform"),
        (is_("eq", {"type": "transform", "transform": 7, "term": "id"}, 1), "7 is no transform"),
        (is_("eq", "id", "1"), "'1' is no value of id, which is long"),
        (is_("eq", "id", 1.5), "1.5 is no value of id"),
        (is_("eq", "id", True), "True is no value of id"),
        (is_("eq", "id", None), "None is no value of id"),
        (is_("eq", "id", [1]), r"\[1\] is no value of id"),
        (is_("eq", "flag", 1), "1 is no value of flag"),
        (is_("eq", "name", 1), "1 is no value of name"),
        (is_("eq", "price", "1.234"), "more digits"),
        (is_("eq", "price", "x"), "'x' is no value of price"),
        (is_("eq", "real", "NaN"), "'NaN' is no value of real"),
        (is_("eq", "day", "yesterday"), "'yesterday' is no value of day"),
        (is_("eq", "at", "2026-13-01T00:00:00"), "is no value of at"),
        (is_("eq", "uuid", "1"), "'1' is no value of uuid"),
        (is_("eq", "raw", "xyz"), "'xyz' is no value of raw"),
        (is_("eq", "four", "00"), "'00' is no value of four"),
        (is_("eq", "home", 1), "1 is no value of home"),
        (is_("starts-with", "id", "1"), "starts-with is for text"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_with_what_is_wrong(node: Any, words: str) -> None:
    with pytest.raises(IllegalArgument, match=words):
        Filter(node, SCHEMA, is_case_sensitive=True)


def test_a_filter_may_be_long_and_not_endlessly_deep() -> None:
    long: Any = is_("eq", "id", 0)
    for number in range(1, 500):
        long = both("or", long, is_("eq", "id", number))
    assert left_of(long, BY_BUCKET, 0)
    deep: Any = is_("eq", "id", 0)
    for number in range(200):
        deep = both("and" if number % 2 else "or", deep, is_("eq", "id", number))
    with pytest.raises(IllegalArgument, match="nested more than 100 deep"):
        Filter(deep, SCHEMA, is_case_sensitive=True)


# --- what is taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "values"),
    [
        ("id", [1, 2**40, 10**30]),
        ("group", [1, 2**40]),
        ("at", ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00", "2026-01-01T01:00:00+01:00", 1767225600000000]),
        ("local", ["2026-01-01T00:00:00", "2026-01-01T00:00:00.000001", 1767225600000000]),
        ("day", ["2026-01-01", DAY]),
        ("time", ["01:00:00", 3_600_000_000]),
        ("price", ["12.30", "12.3", 12, 12.5, "123456789012345678901234567890123456.78"]),
        ("real", [1, 1.5, 1e308]),
        ("wide", [1, 1.5, 1e308]),
        ("flag", [True]),
        ("name", ["a", ""]),
        ("uuid", ["f79c3e09-677c-4bbd-a479-3f349cb785e7"]),
        ("raw", ["00FF", "00ff", ""]),
        ("four", ["00FF00FF"]),
        ("home.city", ["Rome"]),
        ("tags.element", ["x"]),
        ({"type": "reference", "id": 1}, [1]),
        ({"type": "reference", "name": "id"}, [1]),
        ({"type": "transform", "transform": "bucket[4]", "term": "name"}, [3]),
    ],
)
def test_every_type_is_taken_in_each_form_that_engines_send(term: Any, values: list[Any]) -> None:
    for value in values:
        for node in (
            is_("eq", term, value),
            {"type": "eq", "left": term, "right": {"type": "literal", "value": value}},
        ):
            assert left_of(node, BY_GROUP, 1) in (node, True, False)
    node = {"type": "in", "term": term, "values": values}
    assert left_of(node, BY_GROUP, 1) in (node, True, False)
    for kind in ("is-null", "not-null"):
        assert left_of(is_(kind, term), BY_DAY, DAY) in (is_(kind, term), True, False)


def test_names_are_found_without_their_case_where_that_is_asked_for() -> None:
    node = is_("eq", "GROUP", 1)
    assert Filter(node, SCHEMA, is_case_sensitive=False).residual_of(BY_GROUP)(Record(1)) is True


def test_what_cannot_be_judged_rules_nothing_out_also_behind_a_not() -> None:
    odd = is_("eq", {"type": "transform", "transform": "bucket[4]", "term": "id"}, 3)
    assert Filter(odd, SCHEMA, is_case_sensitive=True).expression == AlwaysTrue()
    assert Filter(no(odd), SCHEMA, is_case_sensitive=True).expression == AlwaysTrue()
    assert left_of(no(odd), BY_BUCKET, 1) == no(odd)


# --- what is left ----------------------------------------------------------------------------------------------------

LATE = is_("gt-eq", "at", "2026-01-02T12:00:00+00:00")


@pytest.mark.parametrize(
    ("node", "spec", "partition", "left"),
    [
        (True, BY_GROUP, 1, True),
        ({"type": "false"}, BY_GROUP, 1, False),
        (is_("eq", "group", 1), BY_GROUP, 1, True),
        (is_("eq", "group", 1), BY_GROUP, 2, False),
        (is_("eq", "group", 1), BY_GROUP, None, False),
        (is_("is-null", "group"), BY_GROUP, None, True),
        (is_("lt", "group", 5), BY_GROUP, None, False),
        (is_("eq", "id", 1), BY_GROUP, 1, is_("eq", "id", 1)),
        (both("and", is_("eq", "group", 1), is_("eq", "id", 1)), BY_GROUP, 1, is_("eq", "id", 1)),
        (both("and", is_("eq", "group", 1), is_("eq", "id", 1)), BY_GROUP, 2, False),
        (both("or", is_("eq", "group", 1), is_("eq", "id", 1)), BY_GROUP, 1, True),
        (both("or", is_("lt", "group", 5), is_("eq", "id", 1)), BY_GROUP, None, is_("eq", "id", 1)),
        (no(is_("eq", "group", 1)), BY_GROUP, 1, False),
        (no(is_("eq", "id", 1)), BY_GROUP, 1, no(is_("eq", "id", 1))),
        (LATE, BY_DAY, DAY, False),
        (LATE, BY_DAY, DAY + 1, LATE),
        (LATE, BY_DAY, DAY + 2, True),
        (is_("eq", "group", 2**40), BY_GROUP, 1, False),
        (is_("lt", "group", 2**40), BY_GROUP, 1, True),
    ],
)
def test_of_a_filter_is_left_what_the_partition_does_not_decide(
    node: Any, spec: PartitionSpec, partition: Any, left: object
) -> None:
    assert left_of(node, spec, partition) == left
