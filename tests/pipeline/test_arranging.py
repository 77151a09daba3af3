"""Rows divided as Iceberg's own transforms divide them, and sorted; each row is in one piece."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IntegerType, LongType, PrimitiveType, TimestampType, TimestamptzType

from dolake.pipeline.arranging import Arrangement, Divider, arranged, arrangement
from dolake.pipeline.files import shape_of
from dolake.tables.ordering import SortKey
from dolake.tables.rules import LayoutRules

TYPES = {
    "i": "int", "n": "long", "s": "string", "d": "date", "ts": "timestamp", "tz": "timestamptz",
    "dec": "decimal(9, 2)", "u": "uuid", "b": "binary", "is": "boolean",
}  # fmt: skip
SCHEMA = json.dumps(
    {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": number, "name": name, "required": False, "type": type_}
            for number, (name, type_) in enumerate(TYPES.items(), 1)
        ],
    }
)
MOMENT = dt.datetime(2017, 11, 16, 22, 31, 8, 123456)  # noqa: DTZ001
ROW: dict[str, Any] = {
    "i": 34, "n": -7, "s": "é☃😀x/y", "d": dt.date(2017, 11, 16), "ts": MOMENT, "tz": MOMENT.replace(tzinfo=dt.UTC),
    "dec": Decimal("-14.25"), "u": UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), "b": b"\x00\xff", "is": True,
}  # fmt: skip


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), shape_of(SCHEMA).arrow)


def by(*fields: tuple[str, str], sort: tuple[SortKey, ...] = (), words: tuple[str, ...] = ()) -> Arrangement:
    ids = {name: number for number, name in enumerate(TYPES, 1)}
    spec = {
        "spec-id": 3,
        "fields": [
            {"source-id": ids[column], "transform": transform, "name": f"{column}_{number}", "field-id": 1000 + number}
            for number, (column, transform) in enumerate(fields)
        ],
    }
    return arrangement(SCHEMA, spec, ("shop", "eu"), LayoutRules(partition_by=words), sort, 1 if sort else 0)


@pytest.mark.parametrize(
    ("column", "transform", "value", "folder"),
    [
        ("i", "identity", 34, "34"),
        ("n", "identity", -7, "-7"),
        ("s", "identity", "é☃😀x/y", "%C3%A9%E2%98%83%F0%9F%98%80x%2Fy"),
        ("d", "identity", "2017-11-16", "2017-11-16"),
        ("ts", "identity", "2017-11-16T22:31:08.123456", "2017-11-16T22%3A31%3A08.123456"),
        ("tz", "identity", "2017-11-16T22:31:08.123456+00:00", "2017-11-16T22%3A31%3A08.123456%2B00%3A00"),
        ("dec", "identity", "-14.25", "-14.25"),
        ("u", "identity", "f79c3e09-677c-4bbd-a479-3f349cb785e7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("b", "identity", "00ff", "00ff"),
        ("is", "identity", True, "true"),
        ("tz", "year", 47, "2017"),
        ("ts", "month", 574, "2017-11"),
        ("d", "day", "2017-11-16", "2017-11-16"),
        ("tz", "day", "2017-11-16", "2017-11-16"),
        ("tz", "hour", 419686, "2017-11-16-22"),
        ("s", "truncate[3]", "é☃😀", "%C3%A9%E2%98%83%F0%9F%98%80"),
        ("i", "truncate[10]", 30, "30"),
        ("n", "truncate[10]", -10, "-10"),
        ("dec", "truncate[10]", "-14.30", "-14.30"),
        ("b", "truncate[1]", "00", "00"),
        # The hashes that Iceberg's Java library gives.
        ("i", f"bucket[{1 << 30}]", 943497555, "943497555"),
        ("d", f"bucket[{1 << 30}]", 420411402, "420411402"),
        ("u", f"bucket[{1 << 30}]", 414313516, "414313516"),
    ],
)
def test_a_value_is_what_icebergs_transform_makes_of_it(column: str, transform: str, value: Any, folder: str) -> None:
    (piece,) = arranged(table_of(ROW), by((column, transform)))
    assert piece.mark == {"spec-id": 3, "partition": [value], "sort-order-id": 0}
    assert piece.folder == f"{column}_0={folder}"
    (piece,) = arranged(table_of({}), by((column, transform)))
    assert (piece.mark["partition"], piece.folder) == ([None], f"{column}_0=null")


@pytest.mark.parametrize(
    ("row", "hash_"),
    [
        ({"s": "iceberg"}, 136258265),
        ({"s": "é☃😀"}, 340592936),
        ({"dec": Decimal("14.20")}, 572987235),
        ({"dec": Decimal("-14.20")}, 667775751),
        ({"ts": MOMENT.replace(microsecond=0)}, 99539207),
        ({"tz": MOMENT.replace(microsecond=0, tzinfo=dt.UTC)}, 99539207),
    ],
)
def test_hashes_are_those_of_icebergs_java_library(row: dict[str, Any], hash_: int) -> None:
    (piece,) = arranged(table_of(row), by((next(iter(row)), f"bucket[{1 << 30}]")))
    assert piece.mark["partition"] == [hash_]


@given(
    value=st.integers(-(2**40), 2**40),
    type_=st.sampled_from([IntegerType(), LongType(), DateType(), TimestampType(), TimestamptzType()]),
    transform=st.sampled_from(["bucket[7]", "truncate[13]", "year", "month", "day", "hour"]),
)
def test_whole_numbers_are_divided_as_pyiceberg_divides_them(value: int, type_: PrimitiveType, transform: str) -> None:
    theirs = parse_transform(transform)
    if isinstance(type_, IntegerType | DateType):
        value %= 2**20
    if not theirs.can_transform(type_):
        return
    stored: Any = {IntegerType: pa.int32(), LongType: pa.int64(), DateType: pa.date32()}.get(type(type_))
    column = pa.array([value], pa.int64())
    if isinstance(type_, DateType):
        column = column.cast(pa.int32())
    column = column.cast(stored or pa.timestamp("us"))
    how = Arrangement(dividers=(Divider("x", transform, ("x",), type_),))
    (piece,) = arranged(pa.table({"x": column}), how)
    expected = theirs.transform(type_)(value)
    if transform == "day":
        assert expected is not None
        assert piece.mark["partition"] == [(dt.date(1970, 1, 1) + dt.timedelta(days=expected)).isoformat()]
    else:
        assert piece.mark["partition"] == [expected]


def test_each_row_is_in_the_piece_of_its_partition_in_the_order_of_the_table() -> None:
    rows = [{"n": n, "s": None if n % 3 == 0 else f"r{n % 3}", "i": n % 2} for n in range(100)]
    pieces = list(arranged(table_of(*rows), by(("s", "identity"), ("i", "identity"))))
    assert len(pieces) == 6
    assert sorted(int(row) for piece in pieces for row in piece.order) == list(range(100))
    for piece in pieces:
        region, parity = piece.mark["partition"]
        found = piece.rows.select(["n", "s", "i"]).to_pylist()
        assert found == [row for row in rows if (row["s"], row["i"]) == (region, parity)]
        assert [rows[row]["n"] for row in piece.order] == [row["n"] for row in found]


def test_rows_of_a_piece_are_sorted_and_nulls_are_last() -> None:
    rows = [{"n": n % 5 if n % 7 else None, "s": str(n % 2), "i": n} for n in range(50)]
    sort = (SortKey("n", "desc"), SortKey("i"))
    for piece in arranged(table_of(*rows), by(("s", "identity"), sort=sort)):
        found = piece.rows.select(["n", "s", "i"]).to_pylist()
        assert found == [rows[row] for row in piece.order]
        assert found == sorted(found, key=lambda row: (row["n"] is None, -(row["n"] or 0), row["i"]))
        assert piece.mark["sort-order-id"] == 1
    (piece,) = arranged(table_of(*rows), by(sort=(SortKey("u"), SortKey("i", "desc"))))
    assert piece.order.tolist() == list(range(49, -1, -1))


def test_the_lakes_own_layout_has_the_namespace_in_front() -> None:
    (piece,) = arranged(table_of(ROW), by(("d", "identity"), words=("date",)))
    assert piece.folder == "ns=shop.eu/d_0=2017-11-16"


def test_no_rows_make_no_piece_and_many_fields_no_overflow() -> None:
    assert list(arranged(table_of(), by(("n", "identity")))) == []
    rows = [{"n": n, "i": n, "s": str(n), "d": dt.date(2020, 1, 1) + dt.timedelta(days=n)} for n in range(3_000)]
    fields = [(name, "identity") for name in ("n", "i", "s", "d")]
    pieces = list(arranged(table_of(*rows), by(*fields, *fields[:1])))
    assert len(pieces) == 3_000
    assert np.concatenate([piece.order for piece in pieces]).size == 3_000
