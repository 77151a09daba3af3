"""Values of a JSON answer as Python has them, by the type of their column. Pure.

From results.py. Promise: what arrow.py makes of the same value is equal. Dates, times, decimals and large integers are
text in JSON because its numbers would lose digits; here they become what they are.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

Reader = Callable[[Any], Any]
"""From the value in JSON to the value in Python. Readers are not called with None."""

_MONTH_DAYS = 30
_INTERVAL_PART = re.compile(r"(-?\d+) (year|month|day)s?")
_INTERVAL_CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?\d*$")


def reader_of(kind: str) -> Reader | None:
    """How to read values of this SQL type, such as `DECIMAL(10,2)[]`; None where JSON has the value itself."""
    kind = kind.strip()
    if kind.endswith("]"):
        return _list_reader(reader_of(kind[: kind.rindex("[")]))
    name, _, inside = kind.partition("(")
    match name.strip().upper():
        case "STRUCT":
            return _struct_reader({field: reader_of(type_) for field, type_ in _fields(inside[:-1])})
        case "MAP":
            key, value = _split(inside[:-1])
            return _map_reader(reader_of(key), reader_of(value))
        case "BIGINT" | "UBIGINT" | "HUGEINT" | "UHUGEINT" | "BIGNUM":
            return _or_text(int)
        case "DECIMAL" | "NUMERIC":
            return _or_text(_decimal)
        case "FLOAT" | "DOUBLE" | "REAL":
            return _or_text(float)
        case "TIMESTAMP WITH TIME ZONE" | "TIMESTAMPTZ":
            return _or_text(_instant)
        case "TIMESTAMP" | "TIMESTAMP_S" | "TIMESTAMP_MS" | "TIMESTAMP_NS":
            return _or_text(datetime.fromisoformat)
        case "DATE":
            return _or_text(date.fromisoformat)
        case "TIME" | "TIME WITH TIME ZONE" | "TIMETZ":
            return _or_text(time.fromisoformat)
        case "INTERVAL":
            return _or_text(interval_of)
        case "BLOB" | "BIT":
            return _or_text(b64decode)
        case _:
            return None


def mapping_of(pairs: list[tuple[Any, Any]]) -> Any:
    """A MAP: a dictionary, unless its keys cannot be keys."""
    try:
        return dict(pairs)
    except TypeError:
        return pairs


def interval_of(text: str) -> timedelta:
    """`1 year 2 months 3 days 04:05:06.7` as a length of time; a month has 30 days in it, as it has where two are
    compared in SQL."""
    parts, clock = _INTERVAL_PART.findall(text), _INTERVAL_CLOCK.search(text)
    days = sum(int(count) * {"year": 12 * _MONTH_DAYS, "month": _MONTH_DAYS, "day": 1}[unit] for count, unit in parts)
    if clock is None:
        if not parts:
            raise ValueError(text)
        return timedelta(days=days)
    sign, hours, minutes, seconds, fraction = clock.groups(default="")
    rest = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int(fraction.ljust(6, "0"))
    )
    return timedelta(days=days) + (-rest if sign else rest)


def interval_from(months: int, days: int, nanoseconds: int) -> timedelta:
    """The same from Arrow's three numbers."""
    return timedelta(days=months * _MONTH_DAYS + days, microseconds=nanoseconds // 1000)


# --- readers ----------------------------------------------------------------------------------------------------------


def _decimal(value: Any) -> Decimal:
    return Decimal(str(value))


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _or_text(read: Reader) -> Reader:
    """What cannot be read stays what it is: `infinity`, a year that Python does not have, a value of another type."""

    def read_if_possible(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError):
            return value

    return read_if_possible


def _list_reader(read: Reader | None) -> Reader | None:
    if read is None:
        return None
    return lambda values: [None if value is None else read(value) for value in values]


def _struct_reader(readers: dict[str, Reader | None]) -> Reader | None:
    active = {name: read for name, read in readers.items() if read is not None}
    if not active:
        return None

    def read_struct(found: dict[str, Any]) -> dict[str, Any]:
        changed = {name: read(found[name]) for name, read in active.items() if found.get(name) is not None}
        return found | changed

    return read_struct


def _map_reader(read_key: Reader | None, read_value: Reader | None) -> Reader:
    def read_map(entries: list[dict[str, Any]]) -> Any:
        return mapping_of([(_read(read_key, each["key"]), _read(read_value, each["value"])) for each in entries])

    return read_map


def _read(read: Reader | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


# --- the text of a type -----------------------------------------------------------------------------------------------


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_TOKEN = re.compile(r"""\"(?:[^"]|"")*"|'(?:[^']|'')*'|[(),]""")


def _fields(inside: str) -> list[tuple[str, str]]:
    """`a INTEGER, "b b" VARCHAR` as names and types."""
    found = []
    for part in _split(inside):
        if quoted := _QUOTED.match(part):
            name, kind = quoted[1].replace('""', '"'), part[quoted.end() :]
        else:
            name, _, kind = part.partition(" ")
        found.append((name, kind))
    return found


def _split(inside: str) -> list[str]:
    """At the commas that stand in no bracket and no quotes."""
    parts, start, depth = [], 0, 0
    for token in _TOKEN.finditer(inside):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "," and depth == 0:
            parts.append(inside[start : token.start()].strip())
            start = token.end()
    return [*parts, inside[start:].strip()]
