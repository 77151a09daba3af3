"""One value of a scan's filter: from JSON to a literal of the column's type.

From scan_filters.py, which loads it with PyIceberg. Promise: what the specification writes is taken, and what engines
send besides: the number inside of a date or a time, a moment without its zone; anything else is refused.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from pyiceberg import types as pt
from pyiceberg.expressions.literals import literal

from dolake.catalog.errors import IllegalArgument

_ZONE = re.compile(r"(Z|[+-][0-9]{2}:?[0-9]{2})$")
_DIGITS = 80  # more than a decimal of Iceberg's has, before and behind its point


def literal_of(value: object, field: pt.NestedField) -> Any:
    """A JSON value as one of the column's type: the specification's form, or the number that engines hold inside."""
    kind = field.field_type
    try:
        return _converted(value, kind)
    except (ValueError, TypeError, ArithmeticError, InvalidOperation) as error:
        reason = "" if str(error) in ("", "value") else f": {str(error)[:200]}"
        message = f"{shown(value)} is no value of {field.name}, which is {kind}{reason}"
        raise IllegalArgument(message) from None


def _converted(value: object, kind: pt.IcebergType) -> Any:
    if isinstance(value, bool) != isinstance(kind, pt.BooleanType) or not isinstance(value, bool | int | float | str):
        raise TypeError
    if isinstance(kind, pt.DecimalType):
        return literal(_exact(value, kind)).to(kind)
    if isinstance(kind, pt.BinaryType | pt.FixedType):
        return literal(bytes.fromhex(_text(value))).to(kind)
    if isinstance(kind, pt.StringType):
        return literal(_text(value))
    if isinstance(kind, pt.FloatType | pt.DoubleType):
        return literal(float(_number(value)))
    if isinstance(kind, pt.TimestamptzType) and isinstance(value, str) and not _ZONE.search(value):
        value += "+00:00"  # as PyIceberg sends it
    if isinstance(kind, pt.IntegerType | pt.LongType):  # beyond the type's range it is for PyIceberg to say what holds
        return literal(int(_number(value, whole=True)))
    plain: Any = value
    return literal(plain).to(kind)


def _exact(value: object, kind: pt.DecimalType) -> Decimal:
    """With the column's own scale, which must not cost a digit."""
    with localcontext(prec=_DIGITS):
        given = Decimal(str(value))
        scaled = given.quantize(Decimal(1).scaleb(-kind.scale))
    if scaled != given:
        raise ValueError("it has more digits")
    return scaled


def _number(value: object, *, whole: bool = False) -> int | float:
    if not isinstance(value, int if whole else int | float):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def shown(value: object) -> str:
    """For a sentence about it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
