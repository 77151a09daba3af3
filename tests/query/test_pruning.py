"""No partition is left out that has a row which meets the condition, whatever the transform."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, PrimitiveType, StringType, TimestamptzType

from dolake.query.pruning import partition_check

WHOLE = st.integers(-(10**15), 10**15)
KINDS: list[tuple[PrimitiveType, list[str], st.SearchStrategy[Any]]] = [
    (LongType(), ["identity", "bucket[5]", "truncate[10]"], st.integers(-50, 50)),
    (StringType(), ["identity", "bucket[5]", "truncate[2]"], st.text("abc\u00e9", max_size=4)),
    (DateType(), ["identity", "bucket[5]", "day", "month", "year"], st.integers(-800, 800)),
    (TimestamptzType(), ["identity", "bucket[5]", "hour", "day", "month", "year"], WHOLE),
]
MEETS: dict[str, Any] = {
    "=": lambda row, values: row == values[0],
    "<": lambda row, values: row < values[0],
    "<=": lambda row, values: row <= values[0],
    ">": lambda row, values: row > values[0],
    ">=": lambda row, values: row >= values[0],
    "in": lambda row, values: row in values,
}


def reason_of(type_: PrimitiveType, transform: str, row: Any, operator: str, values: list[Any]) -> str | None:
    """Why a file with this row in its partition is not read."""
    spec = {"spec-id": 4, "fields": [{"source-id": 1, "transform": transform, "name": "part", "field-id": 1000}]}
    stored = parse_transform(transform).transform(type_)(row)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///a.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(stored),
        record_count=1,
        file_size_in_bytes=1,
    )
    file.spec_id = 4
    return partition_check({"partition-specs": [spec]}, NestedField(1, "x", type_), operator, values)(file)


@given(data=st.data())
def test_a_partition_that_has_such_a_row_is_read(data: st.DataObject) -> None:
    type_, transforms, rows = data.draw(st.sampled_from(KINDS))
    transform, operator = data.draw(st.sampled_from(transforms)), data.draw(st.sampled_from(sorted(MEETS)))
    row, values = data.draw(rows), data.draw(st.lists(rows, min_size=1, max_size=3 if operator == "in" else 1))
    if data.draw(st.booleans()):
        values[-1] = row
    if MEETS[operator](row, values):
        assert reason_of(type_, transform, row, operator, values) is None
    assert reason_of(type_, transform, row, "not_null", []) is None
    assert reason_of(type_, transform, None, "is_null", []) is None


def days(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


def moment(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("type_", "transform", "row", "operator", "values", "shown"),
    [
        (LongType(), "identity", 7, "=", [8], "part=7"),
        (LongType(), "bucket[5]", 7, "=", [8], "part="),
        (LongType(), "truncate[10]", 17, "<", [10], "part=10"),
        (StringType(), "truncate[2]", "abc", ">=", ["ac"], "part=ab"),
        (DateType(), "identity", days("2024-01-15"), ">", [days("2024-01-15")], "part=2024-01-15"),
        (DateType(), "month", days("2024-01-15"), ">=", [days("2024-02-01")], "part=2024-01"),
        (TimestamptzType(), "day", moment("2024-01-15"), "<", [moment("2024-01-15")], "part=2024-01-15"),
        (TimestamptzType(), "hour", moment("2024-01-15"), ">=", [moment("2024-01-16")], "part=2024-01-15-00"),
        (TimestamptzType(), "year", moment("2024-01-15"), "in", [1, 2], "part=2024"),
        (StringType(), "identity", None, "=", ["x"], "part=null"),
        (StringType(), "identity", "x", "is_null", [], "part=x"),
    ],
)
def test_a_partition_that_cannot_have_one_is_not_read_and_named(
    type_: PrimitiveType, transform: str, row: Any, operator: str, values: list[Any], shown: str
) -> None:
    reason = reason_of(type_, transform, row, operator, values)
    assert reason is not None
    assert reason.startswith("x: ")
    assert shown in reason
