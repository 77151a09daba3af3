"""Which values a column takes: each type's own, exactly, and no other."""

from __future__ import annotations

import base64
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.tables.fitting import Misfit, NewField, Written, decode_written, fitter
from dolake.tables.layout import is_known
from dolake.tables.schema import Seen
from dolake.tables.types import Field, ListType, StructType, Type, parse_type

ID = "0188e0e0-1111-7222-8333-444455556666"
DAY_US = 86_400_000_000


def fit(type_: Type, text: str) -> Any:
    """What a JSON text becomes, as pipeline/rows.py does it."""
    return fitter(type_, is_full=False)(decode_written(text.encode()))


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("int", "0", 0),
        ("int", "-2147483648", -(2**31)),
        ("int", "2147483647", 2**31 - 1),
        ("int", "1e2", 100),
        ("int", "7.0", 7),
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-9223372036854775808", -(2**63)),
        ("long", "9007199254740992.0", 2**53),
        ("long", "12.00000000000000000000", 12),
        ("float", "0.5", 0.5),
        ("float", "16777216", 2.0**24),
        ("float", "-3.4028234663852886e38", -3.4028234663852886e38),
        ("double", "0.1", 0.1),
        ("double", "9007199254740992", 2.0**53),
        ("double", "-1.7976931348623157e308", -1.7976931348623157e308),
        ("decimal(10, 2)", "12.5", Decimal("12.50")),
        ("decimal(10, 2)", '"12.5"', Decimal("12.50")),
        ("decimal(10, 2)", '"+12.5"', Decimal("12.50")),
        ("decimal(10, 2)", '"-.5"', Decimal("-0.50")),
        ("decimal(10, 2)", "-99999999.99", Decimal("-99999999.99")),
        ("decimal(10, 2)", "1e2", Decimal("100.00")),
        ("decimal(10, 2)", "0.1000000", Decimal("0.10")),
        ("decimal(2, 2)", "0.99", Decimal("0.99")),
        ("decimal(38, 0)", "9" * 38, Decimal("9" * 38)),
        ("decimal(38, 38)", "0." + "9" * 38, Decimal("0." + "9" * 38)),
        ("date", '"0001-01-01"', date(1, 1, 1)),
        ("date", '"9999-12-31"', date(9999, 12, 31)),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("timestamp", '"1970-01-02 00:00"', DAY_US),
        ("timestamp", '"1969-12-31T23:59:59.999999"', -1),
        ("timestamptz", '"1970-01-02T00:00:00"', DAY_US),
        ("timestamptz", '"1970-01-02T01:00:00+01:00"', DAY_US),
        ("uuid", f'"{ID}"', UUID(ID).bytes),
        ("uuid", f'"{ID.upper()}"', UUID(ID).bytes),
        ("binary", '""', b""),
        ("binary", '"AAH/"', b"\x00\x01\xff"),
        ("binary", '"AA=="', b"\x00"),
        ("string", '"text"', "text"),
        ("string", "1.50", "1.50"),
        ("string", "1e400", "1e400"),
        ("string", '{"a": [1.50, null, 1e400]}', '{"a":[1.50,null,1e400]}'),
        ("string", "123456789012345678901234567890", "123456789012345678901234567890"),
        (
            ListType("string"),
            '["a",1.50,null,[0.30000000000000000001]]',
            ["a", "1.50", None, "[0.30000000000000000001]"],
        ),
        (ListType("decimal(38, 20)"), "[0.12345678901234567890]", [Decimal("0.12345678901234567890")]),
        (ListType("double"), "[1,2.5,null]", [1.0, 2.5, None]),
        (StructType((Field("d", "date"), Field("u", "uuid"))), '{"d":"2026-01-31"}', {"d": date(2026, 1, 31)}),
    ],
)
def test_a_value_of_the_type_fits(type_: Type, text: str, expected: Any) -> None:
    found = fit(type_, text)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("type_", "texts"),
    [
        ("boolean", ["0", "1", '"true"', "[]", "{}", "1.0"]),
        ("int", ["2147483648", "-2147483649", "1.5", '"1"', "true", "1e10", "[1]", "1e400"]),
        (
            "long",
            ["9223372036854775808", "0.5", '"1"', "false", "1e16", "9007199254740993.0", "0.99999999999999999999"],
        ),
        ("long", ["1.00000000000000000001", "1e400", "0e99999999999999999999"]),
        ("float", ["16777217", "3.5e38", "-1e39", "1e400", '"0.5"', "true"]),
        ("double", ["9007199254740993", "-9007199254740993", "1e400", "-1e400", '"0.5"', '"NaN"', "true"]),
        ("decimal(10, 2)", ["0.001", "100000000", "1e400", "1e-3", "true", "false", "[1]", "{}"]),
        (
            "decimal(10, 2)",
            ['""', '"abc"', '"NaN"', '"sNaN"', '"Infinity"', '"-inf"', '"1_0"', '" 1"', '"1 "', '"1,5"'],
        ),
        ("decimal(10, 2)", ['"\\u0661"', '"0x10"', '"1e"', '"."', '"1\\n"', '"1e99999999999999999999"']),
        ("decimal(2, 2)", ["1", "0.999", "-1.00"]),
        ("date", ['"0000-01-01"', '"2026-02-30"', '"2025-02-29"', '"2026-1-1"', '"20260131"', '"2026-01-31T00:00"']),
        ("date", ['"31.01.2026"', '"2026-W05-6"', '""', "20260131", '"2026-01-31 "', '"2026-01-3\\u0661"']),
        ("timestamp", ['"2026-01-31T00:00Z"', '"2026-01-31T00:00+00:00"', '"2026-01-31"', '"2026-01-31T24:00"']),
        ("timestamptz", ['"2026-01-31"', '"2016-12-31T23:59:60Z"', '"0000-01-01T00:00Z"', "1769817600", '"soon"']),
        ("timestamptz", ['"2026-01-31T12:00:00.123456789Z"', '"0001-01-01T00:00+01:00"', '"9999-12-31T23:59-01:00"']),
        ("uuid", [f'"{ID[:-1]}_"', f'"{{{ID}}}"', f'"urn:uuid:{ID}"', f'"{ID.replace("-", "")}"', f'" {ID[1:]}"', "1"]),
        ("uuid", ['"0188e0e0-1111-7222-8333-44445555_666"', '"----0188e0e0111172228333444455556666"', f'"{ID}\\n"']),
        ("binary", ['"A"', '"AA"', '"AB=="', '"A A="', '"AA==\\n"', '"AA-_"', '"\\u00fc"', "1", "[]"]),
        (ListType("long"), ['"a"', "{}", '["a"]', "[1.5]", "[[1]]"]),
        (StructType((Field("a", "long"),)), ['"a"', "[]", '{"a":"x"}', '{"A":1}', '{"a.b":1}', '{"a":1,"":2}']),
    ],
)
def test_any_other_value_does_not_fit(type_: Type, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(Misfit):
            pytest.fail(f"{text} became {fit(type_, text)!r}")


def test_a_new_field_is_asked_for_unless_something_else_does_not_fit() -> None:
    type_ = StructType((Field("a", "long"),))
    with pytest.raises(NewField):
        fit(type_, '{"a":1,"b":1e400}')
    with pytest.raises(Misfit):
        fit(type_, '{"b":1,"a":"x"}')
    with pytest.raises(Misfit):
        fitter(type_, is_full=True)({"b": 1})


@pytest.mark.parametrize(
    ("word", "type_"),
    [
        ("float(24)", "float"),
        ("float(25)", "double"),
        ("FLOAT (53)", "double"),
        ("numeric(5)", "decimal(5, 0)"),
        ("decimal(39,2)", None),
        ("decimal(2,3)", None),
        ("timestamp(6) without time zone", "timestamp"),
        ("timestamp(3) with time zone", "timestamptz"),
        ("Character  Varying (20)", "string"),
        ("geometry", None),
    ],
)
def test_the_words_of_databases_are_understood(word: str, type_: str | None) -> None:
    assert parse_type(word) == type_


def test_a_uuid_inside_a_list_or_an_object_is_no_type_that_can_be_written() -> None:
    inside = {"type": "list", "element-id": 2, "element": "uuid", "element-required": False}
    assert is_known("uuid")
    assert not is_known(inside)
    assert not is_known({"type": "struct", "fields": [{"id": 1, "name": "u", "type": "uuid"}]})
    assert not is_known({"type": "map", "key": "string", "value": "string"})
    assert is_known(inside | {"element": {"type": "struct", "fields": [{"id": 1, "name": "d", "type": "date"}]}})


# --- any value -------------------------------------------------------------------------------------------------------


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_is_exact_or_refused(value: Decimal, precision: int, scale: int) -> None:
    fitted = fitter(f"decimal({max(precision, scale)}, {scale})", is_full=False)
    try:
        found = fitted(str(value))
    except Misfit:
        return
    assert found == value
    assert len(found.as_tuple().digits) <= max(precision, scale)


@given(st.text() | st.uuids().map(str) | st.binary().map(lambda raw: raw.hex()))
def test_a_text_that_a_declared_type_takes_can_be_given_back(text: str) -> None:
    for type_, back in (
        ("date", lambda found: found.isoformat()),
        ("uuid", lambda found: str(UUID(bytes=found))),
        ("binary", lambda found: base64.b64encode(found).decode()),
    ):
        try:
            found = fitter(type_, is_full=False)(text)
        except Misfit:
            continue
        assert back(found) == (text.lower() if type_ == "uuid" else text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_fraction_is_the_number_and_its_text(value: float) -> None:
    text = msgspec.json.encode(value).decode()
    written = decode_written(text)
    assert (written, written.text) == (value, text)
    assert Seen().add(written).type() == "double"
    assert fit("string", text) == text
    assert Seen().add(Written("1e400")).type() == "string"
