"""The ways in which SQLite files hold times: ISO 8601 text, seconds or milliseconds since 1970, Julian days.

From forms.py. Pure. Promise: what a function here makes of a value is the same time, to the last digit that it had.
"""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from dolake.tables.schema import timestamp_us

TextKind = Literal["date", "local", "zoned"]
Unit = Literal["seconds", "milliseconds", "julian"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1980_S, _YEAR_2100_S = 315_532_800, 4_102_444_800
"""Numbers outside of these years are more likely no times at all: a counter, a size, a date such as 20260131."""
_DAY_MS = 86_400_000
_EPOCH_JULIAN_MS = 210_866_760_000_000
"""1970-01-01 as a Julian day, which SQLite keeps as a whole number of milliseconds."""
RANGES: dict[Unit, tuple[float, float]] = {
    "seconds": (_YEAR_1980_S, _YEAR_2100_S),
    "milliseconds": (_YEAR_1980_S * 1_000, _YEAR_2100_S * 1_000),
    "julian": (
        (_YEAR_1980_S * 1_000 + _EPOCH_JULIAN_MS) / _DAY_MS,
        (_YEAR_2100_S * 1_000 + _EPOCH_JULIAN_MS) / _DAY_MS,
    ),
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SPACE_BEFORE_ZONE = re.compile(r" (?=(?:Z|[+-]\d\d(?::?\d\d)?)$)", re.ASCII)


def kind_of_text(text: str) -> TextKind | None:
    """Which kind of ISO 8601 this is; None for any other text, and for times that Iceberg cannot hold exactly."""
    if _DATE.fullmatch(text):
        with contextlib.suppress(ValueError):
            date.fromisoformat(text)
            return "date"
        return None
    text = iso_text(text)
    if timestamp_us(text) is None:
        return None
    return "local" if timestamp_us(text, has_zone=False) is not None else "zoned"


def iso_text(text: str) -> str:
    """The text as the lake reads it. Sequelize, and SQLite itself, allow a space before the zone."""
    return _SPACE_BEFORE_ZONE.sub("", text)


def is_within(unit: Unit, low: float, high: float) -> bool:
    """Whether all numbers between these are times from 1980 to 2100."""
    first, last = RANGES[unit]
    return first <= low and high <= last


def unit_of_real(value: float) -> Unit | None:
    """What a number with a fraction is, if it is a time and comes back the same."""
    if is_within("seconds", value, value) and round(value * 1e6) / 1e6 == value:
        return "seconds"
    if is_within("julian", value, value) and round(value * _DAY_MS) / _DAY_MS == value:
        return "julian"
    return None


def text_of_number(value: float, unit: Unit) -> str | None:
    """ISO 8601 in UTC; None where the number is no time in this unit, or where it would lose digits."""
    if not is_within(unit, value, value):
        return None
    if unit == "milliseconds":
        return _text(timedelta(milliseconds=int(value)), "milliseconds") if value == int(value) else None
    if unit == "seconds" and value == int(value):
        return _text(timedelta(seconds=int(value)), "seconds")
    if unit_of_real(float(value)) != unit:
        return None
    if unit == "seconds":
        return _text(timedelta(microseconds=round(value * 1e6)), "microseconds")
    return _text(timedelta(milliseconds=round(value * _DAY_MS) - _EPOCH_JULIAN_MS), "milliseconds")


def _text(since_1970: timedelta, timespec: str) -> str:
    return (_EPOCH + since_1970).isoformat(timespec=timespec).replace("+00:00", "Z")
