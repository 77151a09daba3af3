"""What a table's columns are: types found in a first batch, names that can be columns, and how columns are added."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.tables.fitting import Misfit, NewField, fitter
from dolake.tables.schema import (
    DEPTH_MAX,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
    Addition,
    Seen,
    grow,
    grown,
    infer,
    timestamp_us,
)
from dolake.tables.types import (
    ICEBERGS_NAMES,
    OUR_NAMES,
    Columns,
    Field,
    ListType,
    StructType,
    Type,
    column_name,
    count_leaves,
    problem_with_column_name,
    source_name,
)


def seen(*values: Any) -> Seen:
    found = Seen()
    for value in values:
        found.add(value)
    return found


# --- the type of values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ([None, {}, [[]]], None),
        ({"a": None, "b": []}, None),
        (1, "long"),
        (-(2**63), "long"),
        (2**63, "string"),
        (True, "boolean"),
        (1.0, "double"),
        ("", "string"),
        ("2026-01-01", "string"),
        ("2026-01-01T00:00Z", "timestamptz"),
        ([1, None], ListType("long")),
        ({"a": 1, "b": []}, StructType((Field("a", "long"),))),
        ([{"a": 1}, {"b": "x"}], ListType(StructType((Field("a", "long"), Field("b", "string"))))),
    ],
)
def test_one_value_tells_a_type_or_nothing_yet(value: Any, type_: Type | None) -> None:
    assert infer(value) == type_


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2.5], "double"),
        ([2**53, 2.5], "double"),
        ([2**53 + 1, 2.5], "string"),
        ([2**53 + 1, 1], "long"),
        ([1, True], "string"),
        ([1, "x"], "string"),
        (["2026-01-01T00:00Z", "soon"], "string"),
        (["2026-01-01T00:00Z", 5], "string"),
        ([1, {"a": 1}], "string"),
        ([[1], {"a": 1}], "string"),
        ([None, 1], "long"),
        ([[], {"a": 1}], StructType((Field("a", "long"),))),
        ([{"a": 1}, {"a": 2.5, "b": True}], StructType((Field("a", "double"), Field("b", "boolean")))),
        ([[1], [2.5]], ListType("double")),
        ([[1], ["x"]], ListType("string")),
    ],
)
def test_several_values_agree_on_one_type(values: list[Any], type_: Type) -> None:
    assert seen(*values).type() == type_


def test_a_value_nested_too_deep_is_a_string() -> None:
    def nested(depth: int) -> Any:
        return [nested(depth - 1)] if depth else 1

    type_ = infer(nested(DEPTH_MAX + 5))
    depth = 0
    while isinstance(type_, ListType):
        type_, depth = type_.element, depth + 1
    assert (type_, depth) == ("string", DEPTH_MAX)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["x", "2026-01-01T00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abAB."), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values), st.lists(json_values))
def test_what_two_workers_saw_is_what_one_would_have_seen(one: list[Any], two: list[Any]) -> None:
    together, apart = seen(*one, *two), seen(*one)
    apart.merge(msgspec.json.decode(msgspec.json.encode(seen(*two)), type=Seen))
    assert apart == together
    assert apart.type() == together.type()


@given(st.dictionaries(st.sampled_from("abAB."), json_values))
def test_columns_travel_as_json(row: dict[str, Any]) -> None:
    columns = grown((), grow((), Seen().add(row)))
    assert msgspec.json.decode(msgspec.json.encode(columns), type=Columns) == columns


# --- timestamps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T00",
        "2026-01-01T00Z",
        "2026-01-01t00:00Z",
        "2026-01-01T00:00z",
        "2026-01-01T0000Z",
        "20260101T00:00Z",
        "2026-1-01T00:00Z",
        "2026-01-01  00:00",
        " 2026-01-01T00:00Z",
        "2026-01-01T00:00Z\n",
        "2026-01-01T00:00:00 Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00,5Z",
        "2026-01-01T00:00.5Z",
        "2026-01-01T00:00:00.1234567Z",
        "2026-01-01T00:00:00.0000000000Z",
        "2026-01-01T24:00Z",
        "2026-01-01T23:59:60Z",
        "2026-02-29T00:00Z",
        "2026-13-01T00:00Z",
        "2026-01-01T00:00+24:00",
        "2026-01-01T00:00+23:60",
        "2026-01-01T00:00+1",
        "2026-01-01T00:00[UTC]",
        "0000-01-01T00:00Z",
        "10000-01-01T00:00Z",
        "0001-01-01T00:00+00:01",
        "9999-12-31T23:59-00:01",
        "２０２６-01-01T00:00Z",
    ],
)
def test_other_text_is_no_timestamp(text: str) -> None:
    assert timestamp_us(text) is None


@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),  # noqa: DTZ001 hypothesis wants them naive
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.sampled_from(["T", " "]),
)
def test_a_timestamp_is_its_moment_whatever_its_zone(moment: datetime, east: int, separator: str) -> None:
    expected = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert timestamp_us(moment.isoformat(separator)) == expected
    assert timestamp_us(f"{moment.isoformat(separator)}Z") == expected
    there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=east))).isoformat(separator)
    assert timestamp_us(there) == expected
    assert timestamp_us(there[:-3] + there[-2:]) == expected


def test_the_years_are_1_to_9999() -> None:
    assert timestamp_us("0001-01-01T00:00:00Z") == TIMESTAMP_MIN_US
    assert timestamp_us("9999-12-31T23:59:59.999999000Z") == TIMESTAMP_MAX_US


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ICEBERGS_NAMES, *OUR_NAMES, "_FILE", "_file_", "_key___"])
def test_a_reserved_name_gets_an_underscore_more(name: str) -> None:
    assert column_name(name) == f"{name}_"
    assert source_name(f"{name}_") == name


@pytest.mark.parametrize("name", ["id", "file", "__file", "_files", "_", "id_"])
def test_another_name_stays_as_it_is(name: str) -> None:
    assert column_name(name) == name
    assert source_name(name) == name


def test_no_column_of_a_source_is_called_as_one_of_ours() -> None:
    assert {source_name(name) for name in (*ICEBERGS_NAMES, *OUR_NAMES)} == {None}


@given(st.from_regex(r"_?(file|key|x)?_{0,4}", fullmatch=True), st.from_regex(r"_?(file|key|x)?_{0,4}", fullmatch=True))
def test_two_names_never_become_one(one: str, two: str) -> None:
    assert (column_name(one) == column_name(two)) == (one == two)
    assert source_name(column_name(one)) == one


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        ("a.b", "dot"),
        ("x" * 129, "128 bytes"),
        ("é" * 65, "128 bytes"),
        ("a\nb", r"'\n'"),
        ("a\x00", r"'\x00'"),
        ("a\u202eb", r"'\u202e'"),
        ("\ud800", r"'\ud800'"),
    ],
)
def test_a_name_that_cannot_be_a_column_is_refused_with_the_reason(name: str, problem: str) -> None:
    assert problem in (problem_with_column_name(name) or "")


@pytest.mark.parametrize("name", ["id", "order items", "größe", "表", "x" * 128, "a-b", "a/b", 'a"b', "a\\b", "2024"])
def test_an_ordinary_name_is_fine(name: str) -> None:
    assert problem_with_column_name(name) is None


# --- growing ---------------------------------------------------------------------------------------------------------

PLACE = StructType((Field("city", "string"),))
KNOWN: Columns = (Field("id", "long"), Field("place", PLACE), Field("stops", ListType(PLACE)))


def test_new_columns_come_in_the_order_they_were_seen() -> None:
    growth = grow((), Seen().add({"b": 1, "a": "x", "_file": True, "nothing": None}))
    assert list(growth.additions) == [
        Addition((), Field("b", "long")),
        Addition((), Field("a", "string")),
        Addition((), Field("_file_", "boolean")),
    ]


def test_a_new_field_is_found_inside_structs_and_lists() -> None:
    row = {"id": "x", "place": {"city": 5, "zip": 1}, "stops": [{"city": "Rome", "way": {"km": 2.5}}]}
    growth = grow(KNOWN, Seen().add(row))
    assert list(growth.additions) == [
        Addition(("place",), Field("zip", "long")),
        Addition(("stops", "element"), Field("way", StructType((Field("km", "double"),)))),
    ]
    assert grown(KNOWN, growth) == (
        Field("id", "long"),
        Field("place", StructType((*PLACE.fields, Field("zip", "long")))),
        Field("stops", ListType(StructType((*PLACE.fields, Field("way", StructType((Field("km", "double"),))))))),
    )


def test_a_name_that_differs_only_in_case_is_no_new_column() -> None:
    assert not grow(KNOWN, Seen().add({"ID": 1, "place": {"City": 1}}))
    assert grow((), Seen().add({"Id": 1, "id": 2})).additions == (Addition((), Field("Id", "long")),)
    assert infer({"Id": 1, "id": 2}) == StructType((Field("Id", "long"),))


def test_a_name_that_cannot_be_a_column_is_left_out() -> None:
    assert not grow((), Seen().add({"": 1, "a.b": 2, "c": {"d.e": 1}}))


def test_a_type_stays_where_nothing_wider_can_be_had() -> None:
    assert not grow(KNOWN, Seen().add({"id": 2.5, "place": [1], "stops": {"city": "Rome"}}))


def test_a_table_takes_as_many_leaves_as_it_has_room_for() -> None:
    row = {"a": 1, "b": {"c": 1, "d": [{"e": 1, "f": 2}]}, "g": 1}
    columns = grown((), grow((), Seen().add(row), leaves_max=3))
    assert count_leaves(columns) == 3
    inner = ListType(StructType((Field("e", "long"),)))
    assert columns == (Field("a", "long"), Field("b", StructType((Field("c", "long"), Field("d", inner)))))
    assert not grow(columns, Seen().add(row), leaves_max=3)


# --- fitting ---------------------------------------------------------------------------------------------------------


def test_a_struct_with_a_field_more_asks_for_it_unless_something_else_does_not_fit() -> None:
    fit = fitter(PLACE, is_full=False)
    assert fit({"city": "Rome", "zip": None}) == {"city": "Rome"}
    with pytest.raises(NewField):
        fit({"zip": 1})
    with pytest.raises(Misfit):
        fit({"zip": 1, "a.b": 2})
    with pytest.raises(Misfit):
        fitter(PLACE, is_full=True)({"zip": 1})


@given(json_values, json_values)
def test_once_the_columns_have_grown_a_value_fits_or_never_will(one: Any, two: Any) -> None:
    columns = grown((), grow((), Seen().add({"x": one})))
    columns = grown(columns, grow(columns, Seen().add({"x": two})))
    for value in (one, two):
        if columns and value is not None:
            fit = fitter(columns[0].type, is_full=False)
            try:
                fit(value)
            except Misfit:
                continue
