"""Iceberg's type names and partition transforms: how they are written, since which format, what fits what.

From schemas.py and specs.py. A type is what stands in a schema's JSON: text for a primitive one ("long",
"decimal(9, 2)"), an object for struct, list and map. Canonical text means: as Iceberg's Java library writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from dolake.catalog.values import is_int, is_whole, refuse
from dolake.errors import InvalidInput
from dolake.tables.transforms import BUCKETS, NOT_PRIMITIVE, transform_fits

_PLAIN = (BUCKETS - {"fixed", "decimal"}) | {"boolean", "float", "double", "unknown", "variant"}
_FORMAT_MIN = {"timestamp_ns": 3, "timestamptz_ns": 3, "variant": 3, "unknown": 3, "geometry": 3, "geography": 3}
_CRS = "OGC:CRS84"
_EDGES = frozenset({"spherical", "vincenty", "thomas", "andoyer", "karney"})
_DECIMAL_DIGITS_MAX = 38
_TYPE_TEXT_MAX = 200

_FIXED = re.compile(r"fixed\[\s*(\d{1,10})\s*\]")
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)")
_GEOMETRY = re.compile(r"geometry\s*(?:\(\s*([^)]*?)\s*\))?", re.IGNORECASE)
_GEOGRAPHY = re.compile(r"geography\s*(?:\(\s*([^,]*?)\s*(?:,\s*(\w*)\s*)?\))?", re.IGNORECASE)
_WITH_WIDTH = re.compile(r"(\w+)\[(\d{1,10})\]")


def canonical_type(text: str) -> str:
    """The one spelling of a primitive type, so that equal types are equal text."""
    lower = text.lower()
    if lower in _PLAIN:
        return lower
    if len(text) > _TYPE_TEXT_MAX:  # before the patterns: on long runs of spaces they take quadratic time
        refuse(f"Cannot parse type string to primitive: {text[:_TYPE_TEXT_MAX]}...")
    if found := _FIXED.fullmatch(lower):
        return f"fixed[{_small(text, found[1])}]"
    if found := _DECIMAL.fullmatch(lower):
        if int(found[1]) > _DECIMAL_DIGITS_MAX:
            refuse(f"Decimals with precision larger than {_DECIMAL_DIGITS_MAX} are not supported: {found[1]}")
        return f"decimal({int(found[1])}, {_small(text, found[2])})"
    if found := _GEOMETRY.fullmatch(text):
        return f"geometry({_crs(found[1])})"
    if found := _GEOGRAPHY.fullmatch(text):
        edges = "spherical" if found[2] is None else found[2].lower()
        if edges not in _EDGES:
            refuse(f"Invalid edge interpolation algorithm: {found[2]}")
        return f"geography({_crs(found[1])}, {edges})"
    raise InvalidInput(f"Cannot parse type string to primitive: {text}")


def kind_of(type_: str | Mapping[str, Any]) -> str:
    """The type without its parameters: `decimal(9, 2)` is a decimal."""
    text = type_ if isinstance(type_, str) else str(type_["type"])
    return re.split(r"[\[(\s]", text, maxsplit=1)[0].lower()


def format_version_min(type_: str | Mapping[str, Any]) -> int:
    return _FORMAT_MIN.get(kind_of(type_), 1)


def is_primitive(type_: str | Mapping[str, Any]) -> bool:
    return kind_of(type_) not in NOT_PRIMITIVE


def canonical_transform(text: str) -> str:
    """Known transforms in lower case. Unknown ones stay as they are: a later format may know them."""
    lower = text.lower()
    if found := _WITH_WIDTH.fullmatch(lower):
        if found[1] in ("bucket", "truncate"):
            if not (is_int(int(found[2])) and int(found[2]) > 0):
                refuse(f"Invalid width of transform: {text} (must be > 0)")
            return f"{found[1]}[{int(found[2])}]"
        return text
    return lower if lower in ("identity", "year", "month", "day", "hour", "void") else text


def can_transform(transform: str, type_: str | Mapping[str, Any]) -> bool:
    """May this transform, in canonical spelling, be applied to a column of this type?"""
    return transform_fits(transform, kind_of(type_))


def check_default(type_: str | Mapping[str, Any], value: Any) -> None:
    """A column's default must be a value of its type, in the form that the table format prescribes for JSON."""
    if not isinstance(type_, str):
        refuse(f"Invalid default value for {kind_of(type_)}: {value!r} (must be null)")
    try:
        fits = _is_value(type_, value)
    except (ValueError, InvalidOperation):
        fits = False
    if not fits:
        refuse(f"Cannot parse default as a {type_} value: {value!r}")


def _is_value(type_: str, value: Any) -> bool:
    match kind_of(type_):
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return is_int(value)
        case "long":
            return is_whole(value)
        case "float" | "double":
            return isinstance(value, float)
    return isinstance(value, str) and _is_text_value(type_, value)


def _is_text_value(type_: str, text: str) -> bool:
    match kind_of(type_):
        case "string":
            return True
        case "uuid":
            return len(text) == len(str(UUID(text)))
        case "date":
            return bool(date.fromisoformat(text))
        case "time":
            return time.fromisoformat(text).tzinfo is None
        case "timestamp" | "timestamp_ns":
            return datetime.fromisoformat(text).tzinfo is None
        case "timestamptz" | "timestamptz_ns":
            return datetime.fromisoformat(text).utcoffset() == timedelta(0)
        case "binary":
            return bytes.fromhex(text) is not None
        case "fixed":
            return len(bytes.fromhex(text)) == int(type_[6:-1])
        case "decimal":
            scale = Decimal(text).as_tuple().exponent
            return isinstance(scale, int) and -scale == int(type_.partition(",")[2].strip(" )"))
    return False  # unknown, variant and the geo types have no default but null


def _small(text: str, digits: str) -> int:
    if not is_int(int(digits)):
        refuse(f"Cannot parse type string to primitive: {text}")
    return int(digits)


def _crs(text: str | None) -> str:
    if text == "":
        refuse("Invalid CRS: (empty string)")
    return _CRS if text is None else text
