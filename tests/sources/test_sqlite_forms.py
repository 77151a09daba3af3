"""The forms of SQLite columns, on values that SQLite itself has stored under the declared type."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.sources.sqlite.forms import Form, Observed, Value, choose, row_converter, schema_column
from dolake.sources.sqlite.values import reading_any_text
from dolake.tables.fitting import Misfit, decode_written, fitter


def stored(declared: str, values: list[Value]) -> list[Value]:
    """The values as SQLite has them in a column of this type."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db, reading_any_text(db):
        db.execute(f"CREATE TABLE t (v {declared})")
        db.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        return [value for (value,) in db.execute("SELECT v FROM t ORDER BY rowid")]


def form_of(declared: str, *values: Value) -> Form:
    observed = Observed()
    observed.add(declared, stored(declared, list(values)))
    return choose(declared, observed)


def wire(declared: str, *values: Value) -> list[Any]:
    form = form_of(declared, *values)
    return [form.convert(value) for value in stored(declared, list(values))]


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "type_", "on_the_wire"),
    [
        (["2026-01-31 10:00:00", None], "timestamp", "2026-01-31 10:00:00"),
        (["2026-01-31T10:00:00.123"], "timestamp", "2026-01-31T10:00:00.123"),
        (["2026-01-31T10:00:00.123Z"], "timestamptz", "2026-01-31T10:00:00.123Z"),
        (["2026-01-31 10:00:00.123 +02:00"], "timestamptz", "2026-01-31 10:00:00.123+02:00"),
        (["2026-01-31"], "date", "2026-01-31"),
        ([1769853600, 1769853601], "timestamptz", "2026-01-31T10:00:00Z"),
        ([1769853600.25, 1769853601], "timestamptz", "2026-01-31T10:00:00.250000Z"),
        ([1769853600123], "timestamptz", "2026-01-31T10:00:00.123Z"),
        ([2461071.75, 2461072.5, 2461073], "timestamptz", "2026-01-31T06:00:00.000Z"),
    ],
)
def test_a_column_of_times_has_the_one_form_that_all_its_values_have(
    values: list[Value], type_: str, on_the_wire: str
) -> None:
    assert form_of("DATETIME", *values).type == type_
    assert wire("DATETIME", *values)[0] == on_the_wire


def test_a_comment_says_how_the_file_has_the_times() -> None:
    assert form_of("TIMESTAMP", 1769853600123).comment == "epoch milliseconds"
    assert form_of("DATETIME", 1769853600).comment == "epoch seconds"
    assert form_of("DATE", 2461071.75).comment == "Julian days"
    assert form_of("DATETIME", "2026-01-31").comment == "ISO 8601 dates"
    assert form_of("DATETIME", "2026-01-31 10:00:00").comment == "", "the type says it"


def test_a_julian_day_is_the_time_that_sqlite_makes_of_it() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for text in ("1980-01-01 00:00:01.001", "2026-11-19 21:53:07.987", "2099-12-31 23:59:59.999"):
            (day,) = db.execute("SELECT julianday(?)", (text,)).fetchone()
            assert wire("DATETIME", day) == [f"{text.replace(' ', 'T')}Z"]


@pytest.mark.parametrize(
    "values",
    [
        ["2026-01-31 10:00:00", "2026-01-31 10:00:00Z"],
        ["2026-01-31 10:00:00", "2026-01-31"],
        ["2026-01-31 10:00:00", 1769853600],
        ["2026-01-31 10:00:00", ""],
        ["2026-01-31 10:00:00.1234567"],
        ["2026-02-30 10:00:00"],
        ["0000-00-00 00:00:00", "2026-01-31 10:00:00"],
        ["2026-01-31 10:00:00", b"x"],
        [1769853600, "never"],
    ],
)
def test_times_that_do_not_agree_are_text_and_can_be_read(values: list[Value]) -> None:
    assert form_of("DATETIME", *values).type == "string"
    found = wire("DATETIME", *values)
    assert found == [str(value) if not isinstance(value, bytes) else "X'78'" for value in values]


def test_the_comment_of_a_text_column_says_what_its_values_are() -> None:
    comment = form_of("DATETIME", "2026-01-31 10:00:00", 7, 8).comment
    assert comment == "values of several kinds: integers (2), ISO 8601 times without a zone (1)"


@pytest.mark.parametrize("values", [[0, 1769853600], [1769853600, 1769853600123], [20260131], [2461071, 2461072], [-5]])
def test_whole_numbers_that_may_be_something_else_stay_whole_numbers(values: list[Value]) -> None:
    assert form_of("DATETIME", *values) == Form("long")
    assert wire("DATETIME", *values) == values


def test_numbers_are_times_only_where_the_declared_type_hints_at_one() -> None:
    assert form_of("INTEGER", 1769853600) == Form("long")
    assert form_of("REAL", 2461071.75) == Form("double")
    assert form_of("TEXT", "2026-01-31 10:00:00") == Form("string")


# --- booleans, numbers, text and blobs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("no", "yes"), [(0, 1), ("0", "1"), ("f", "t"), ("F", "T"), ("no", "yes"), ("n", "y"), ("false", "TRUE")]
)
def test_the_usual_words_for_yes_and_no_are_booleans_where_one_is_declared(no: Value, yes: Value) -> None:
    assert form_of("BOOLEAN", yes, no, None).type == "boolean"
    assert wire("BOOLEAN", yes, no, None) == [True, False, None]
    assert form_of("BOOLEAN", yes).type == "boolean"


def test_two_ways_to_write_a_boolean_are_text_and_other_numbers_are_numbers() -> None:
    assert wire("BOOLEAN", "t", 1, 0) == ["t", "1", "0"]
    assert form_of("BOOLEAN", "t", "yes").type == "string"
    assert form_of("BOOLEAN", 0, 1, 2) == Form("long")
    assert form_of("VARCHAR(1)", "t", "f") == Form("string")


def test_money_is_a_decimal_with_room_for_every_digit() -> None:
    assert form_of("NUMERIC(10,2)", 12.34, 5).type == "decimal(10, 2)"
    found = form_of("NUMERIC(10,2)", 12.345, 7)
    assert (found.type, found.comment) == ("decimal(11, 3)", "wider than the declared NUMERIC(10,2)")
    assert form_of("DECIMAL(4, 2)", 123456, 0.5).type == "decimal(8, 2)"
    assert form_of("NUMERIC(10,2)", -0.1, 1e-7).type == "decimal(15, 7)"
    assert form_of("number(5)", 7).type == "decimal(5, 0)"


def test_numbers_that_no_decimal_holds_are_text_not_fractions() -> None:
    assert wire("NUMERIC(10,2)", 1e300, 0.5) == ["1e+300", "0.5"]
    assert wire("NUMERIC(10,2)", "12,50", 3) == ["12,50", "3"]
    assert form_of("NUMERIC(10,2)", "12,50") == Form("string")


def test_numbers_without_a_declared_type_are_what_they_are() -> None:
    assert form_of("", 1, 2) == Form("long")
    assert form_of("NUMERIC", 1, 2.5) == Form("double")
    assert wire("", 2**60, 0.5) == [str(2**60), "0.5"], "no double holds the one, no integer the other"
    assert form_of("INTEGER", 1, "one").type == "string"
    assert wire("REAL", 1.5, float("inf")) == [1.5, "Infinity"], "the rest of the column stays numbers"


def test_blobs_are_base64_and_among_other_values_they_are_written_as_sqlite_does() -> None:
    assert wire("BLOB", b"\x00\xff") == ["AP8="]
    assert wire("BLOB", b"\x00\xff", "text", 7, 0.5) == ["X'00FF'", "text", "7", "0.5"]
    assert form_of("BLOB", "text") == Form("string")
    assert wire("TEXT", b"\x00\xff", "text") == ["X'00FF'", "text"]


def test_bytes_that_are_stored_as_text_and_are_none_can_be_read() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as db, reading_any_text(db):
        (raw,) = db.execute("SELECT CAST(x'ff41' AS TEXT)").fetchone()
    observed = Observed()
    observed.add("TEXT", [raw, "text"])
    assert choose("TEXT", observed).convert(raw) == "X'FF41'"


def test_uuids_are_text_or_blobs_of_16_bytes() -> None:
    text = "00112233-4455-6677-8899-aabbccddeeff"
    blob = bytes.fromhex(text.replace("-", ""))
    assert form_of("UUID", text) == Form("uuid")
    assert wire("GUID", blob) == [text]
    assert form_of("UUID", text, blob).type == "string"
    assert form_of("UUID", text, "no uuid").type == "string"


# --- hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "type_"),
    [
        ("INTEGER", "long"), ("VARCHAR(20)", "string"), ("REAL", "double"), ("BLOB", "binary"), ("BOOLEAN", "boolean"),
        ("DATETIME", "timestamp"), ("TIMESTAMP WITH TIME ZONE", "timestamptz"), ("DATE", "date"), ("UUID", "uuid"),
        ("NUMERIC(10,2)", "decimal(10, 2)"), ("JSON", "string"), ("", "any"), ("NUMERIC", "any"),
        ("TIMESTAMP(6)", "timestamp"),
    ],
)  # fmt: skip
def test_an_empty_column_has_its_declared_type_as_a_hint(declared: str, type_: str) -> None:
    form = form_of(declared, None, None)
    assert (form.type, form.is_hint) == (type_, True)


def test_a_form_that_is_a_hint_lets_through_what_it_does_not_expect() -> None:
    form = form_of("BOOLEAN")
    assert [form.convert(value) for value in (1, 0, 2, "t", None)] == [True, False, 2, "t", None]
    assert form_of("DATETIME").convert("2026-01-31 10:00:00 +00:00") == "2026-01-31 10:00:00 +00:00"
    assert form_of("BLOB").convert("abcd") == "YWJjZA==", "which would otherwise be read as Base64"


def test_the_schema_says_how_values_are_written_and_that_every_type_but_a_keys_is_a_guess() -> None:
    assert schema_column("at", form_of("DATETIME"), nullable=True, key=False) == {
        "name": "at", "type": "timestamp", "nullable": True, "key": False, "isHint": True,
    }  # fmt: skip
    assert schema_column("at", form_of("DATETIME", 1769853600), nullable=False, key=True) == {
        "name": "at", "type": "timestamptz", "nullable": False, "key": True, "comment": "epoch seconds",
    }  # fmt: skip


# --- later values, and rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "first", "later"),
    [
        ("DATETIME", 1769853600, "tomorrow"),
        ("DATETIME", 1769853600, 0),
        ("DATETIME", 1769853600123, 1769853600),
        ("DATETIME", 2461071.75, 0.1),
        ("BOOLEAN", "t", "maybe"),
        ("BOOLEAN", 1, 2),
        ("UUID", "00112233-4455-6677-8899-aabbccddeeff", "x"),
        ("NUMERIC(10,2)", 1.25, "free"),
        ("BLOB", b"x", 7),
    ],
)
def test_a_later_value_that_does_not_fit_goes_as_it_is(declared: str, first: Value, later: Value) -> None:
    assert form_of(declared, first).convert(later) == later


def test_a_row_becomes_an_object_as_its_columns_say() -> None:
    forms = [form_of("INTEGER", 1), form_of("DATETIME", 1769853600), form_of("BOOLEAN", "t"), form_of("REAL", 0.5)]
    convert = row_converter(["id", "at", "ok", "r"], forms)
    assert convert((1, 1769853600, "f", 0.5)) == {"id": 1, "at": "2026-01-31T10:00:00Z", "ok": False, "r": 0.5}
    assert convert((b"\x01", None, None, float("-inf"))) == {"id": "X'01'", "at": None, "ok": None, "r": "-Infinity"}


VALUES = st.one_of(
    st.none(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.integers(min_value=0, max_value=2),
    st.integers(min_value=1_700_000_000, max_value=1_800_000_000),
    st.integers(min_value=1_700_000_000_000, max_value=1_800_000_000_000),
    st.floats(allow_nan=False),
    st.floats(min_value=2_440_000, max_value=2_480_000),
    st.decimals(min_value=-1000, max_value=1000, places=3).map(float),
    st.sampled_from(["t", "f", "yes", "no", "2026-01-31", "2026-01-31 10:00:00", "2026-01-31T10:00:00Z", "", "12.5"]),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.binary(min_size=16, max_size=16),
)
DECLARED = st.sampled_from(
    [
        "INTEGER",
        "TEXT",
        "REAL",
        "BLOB",
        "BOOLEAN",
        "DATE",
        "DATETIME",
        "TIMESTAMPTZ",
        "UUID",
        "NUMERIC(10,2)",
        "",
        "JSON",
    ]
)


@given(DECLARED, st.lists(VALUES, max_size=6), st.booleans())
def test_the_lake_takes_every_value_that_has_decided_a_form(
    declared: str, values: list[Value], is_of_one_kind: bool
) -> None:
    values = [value for value in values if not is_of_one_kind or type(value) is type(values[0])]
    form = form_of(declared, *values)
    if form.is_hint:
        return
    fit = fitter(form.type, is_full=False)
    for value, sent in zip(stored(declared, values), wire(declared, *values), strict=True):
        if value is None or sent in ("Infinity", "-Infinity"):
            continue
        try:
            taken = fit(decode_written(json.dumps(sent).encode()))
        except Misfit:
            raise AssertionError(f"{value!r} as {sent!r} does not fit {form}") from None
        if isinstance(taken, Decimal):
            assert taken == Decimal(repr(value))
        if form.type in ("long", "double"):
            assert taken == value


@given(DECLARED, st.lists(VALUES, max_size=8), st.integers(min_value=0, max_value=8))
def test_parts_that_were_observed_apart_and_kept_as_json_are_one(declared: str, values: list[Value], cut: int) -> None:
    values = stored(declared, values)
    whole, first, second = Observed(), Observed(), Observed()
    whole.add(declared, values)
    first.add(declared, values[:cut])
    second.add(declared, values[cut:])
    second = Observed.from_json(second.to_json())
    second.merge(first)
    assert second == whole
    assert choose(declared, second) == choose(declared, whole)
