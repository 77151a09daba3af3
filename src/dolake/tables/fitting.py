"""Which values a column takes, and as what.

From pipeline/rows.py, value by value. Promise: a value fits a column exactly, or it is refused and the caller keeps its
JSON text.

- A string column takes every JSON value: a string as it is, anything else as its JSON text.
- A fraction is the nearest double, or the nearest float where that is declared; an integer must be exact, also where
  it is written as a fraction.
- A decimal comes as a number or as text, and with no more digits than its type has; a date as `2026-01-31`; a time
  without a zone as ISO 8601 without one; a uuid as its usual text; bytes as Base64.
"""

from __future__ import annotations

import base64
import contextlib
import math
import re
import uuid
from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import msgspec

from dolake.tables.schema import EXACT_MAX, LONG_MAX, LONG_MIN, Seen, timestamp_us
from dolake.tables.types import ListType, Primitive, StructType, Type, can_be_added, decimal_of, folded

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""What a decimal looks like as text. Python's own reading takes `NaN`, `1_000`, spaces, and digits of any script."""
_FLOAT_EXACT_MAX = 2**24
_FLOAT_MAX = 3.4028234663852886e38


class Misfit(Exception):
    """The value does not fit the column's type, and no addition would help."""


class NewField(Exception):
    """The value would fit if the struct had one more field, and the table has room for it."""


class Written(float):
    """A fraction that still knows its text, which can have more digits than a double, or be larger than all of them."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Written:
        made = super().__new__(cls, text)
        made.text = text
        return made


decode_written = msgspec.json.Decoder(float_hook=Written).decode
"""A JSON value in which all fractions are `Written`."""


def _as_written(value: Any) -> msgspec.Raw:
    return msgspec.Raw(value.text.encode())


_encode_written = msgspec.json.Encoder(enc_hook=_as_written).encode

Fitter = Callable[[Any], Any]
"""Takes a decoded JSON value; returns what Arrow takes for it (a time as microseconds) or raises one of these."""


def fitter(type_: Type, *, is_full: bool, depth: int = 1) -> Fitter:
    """The function that fits values to this type; `is_full` says that the table has no room for a new field."""
    match type_:
        case StructType():
            return _fitter_of_struct(type_, is_full=is_full, depth=depth)
        case ListType():
            return _fitter_of_list(type_, is_full=is_full, depth=depth)
        case _:
            return _fitter_of_decimal(type_) if decimal_of(type_) else _FITTERS[type_]


def _fit_long(value: Any) -> int:
    if type(value) is int and LONG_MIN <= value <= LONG_MAX:
        return value
    if isinstance(value, float) and abs(value) <= EXACT_MAX and value.is_integer() and _is_exact(value):
        return int(value)
    raise Misfit


def _is_exact(value: float) -> bool:
    """Whether the text says this number, and not one that is nearly it."""
    with contextlib.suppress(ArithmeticError):  # an exponent of twenty digits
        return not isinstance(value, Written) or Decimal(value.text) == value
    return False


def _fit_int(value: Any) -> int:
    found = _fit_long(value)
    if INT_MIN <= found <= INT_MAX:
        return found
    raise Misfit


def _fit_float(value: Any) -> float:
    """The nearest float. An integer must be exact there, a fraction within its range."""
    if type(value) is int:
        if abs(value) <= _FLOAT_EXACT_MAX:
            return float(value)
    elif isinstance(value, float) and abs(value) <= _FLOAT_MAX:
        return float(value)
    raise Misfit


def _fit_double(value: Any) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if type(value) is int and abs(value) <= EXACT_MAX:
        return float(value)
    raise Misfit


def _fit_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise Misfit


def _fit_string(value: Any) -> str:
    return value if type(value) is str else _encode_written(value).decode()


def _fit_timestamp(value: Any) -> int:
    result = timestamp_us(value) if type(value) is str else None
    if result is None:
        raise Misfit
    return result


def _fit_time(value: Any) -> int:
    """A time without a zone, which is another thing than one in UTC."""
    result = timestamp_us(value, has_zone=False) if type(value) is str else None
    if result is None:
        raise Misfit
    return result


def _fit_date(value: Any) -> date:
    if type(value) is str and _DATE.fullmatch(value):
        with contextlib.suppress(ValueError):
            return date.fromisoformat(value)
    raise Misfit


def _fit_uuid(value: Any) -> bytes:
    if type(value) is str and _UUID.fullmatch(value):
        return uuid.UUID(value).bytes
    raise Misfit


def _fit_binary(value: Any) -> bytes:
    """Base64 as it is written for these bytes: `AB==` means the same as `AA==`, and would come back as that."""
    if type(value) is str:
        with contextlib.suppress(ValueError):
            found = base64.b64decode(value, validate=True)
            if base64.b64encode(found) == value.encode():
                return found
    raise Misfit


def _fitter_of_decimal(type_: Primitive) -> Fitter:
    found = decimal_of(type_)
    assert found is not None, "the caller has looked"
    precision, scale = found
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def fit_decimal(value: Any) -> Decimal:
        text = value.text if isinstance(value, Written) else value if type(value) is str else repr(value)
        if type(value) is not bool and _NUMBER.fullmatch(text):
            with contextlib.suppress(ArithmeticError):
                return Decimal(text).quantize(unit, context=context)
        raise Misfit

    return fit_decimal


_FITTERS: dict[Primitive, Fitter] = {
    "int": _fit_int,
    "long": _fit_long,
    "float": _fit_float,
    "double": _fit_double,
    "boolean": _fit_boolean,
    "string": _fit_string,
    "timestamptz": _fit_timestamp,
    "timestamp": _fit_time,
    "date": _fit_date,
    "uuid": _fit_uuid,
    "binary": _fit_binary,
}


def _fitter_of_struct(type_: StructType, *, is_full: bool, depth: int) -> Fitter:
    parts = {field.name: fitter(field.type, is_full=is_full, depth=depth + 1) for field in type_.fields}
    taken = folded(type_.fields)

    def fit_struct(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit
        fitted: dict[str, Any] = {}
        has_new = False
        for name, part in value.items():
            if part is None:
                continue
            try:
                if name in parts:
                    fitted[name] = parts[name](part)
                else:
                    is_new = not is_full and can_be_added(name, taken)
                    raise NewField if is_new and Seen().add(part, depth + 1).type() is not None else Misfit
            except NewField:  # a misfit further on still refuses the whole, and then nothing needs to be added
                has_new = True
        if has_new:
            raise NewField
        return fitted

    return fit_struct


def _fitter_of_list(type_: ListType, *, is_full: bool, depth: int) -> Fitter:
    fit = fitter(type_.element, is_full=is_full, depth=depth + 1)

    def fit_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Misfit
        fitted: list[Any] = []
        has_new = False
        for part in value:
            try:
                fitted.append(None if part is None else fit(part))
            except NewField:
                has_new = True
        if has_new:
            raise NewField
        return fitted

    return fit_list
