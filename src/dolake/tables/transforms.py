"""Iceberg's partition transforms: which of them fits which type of column, and how people read their values.

From partitions.py, and from the catalog, which refuses what does not fit; from all who name partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

MOMENTS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
DAYS = MOMENTS | {"date"}
BUCKETS = DAYS | {"int", "long", "time", "string", "binary", "fixed", "decimal", "uuid"}
NOT_PRIMITIVE = frozenset({"struct", "list", "map", "variant"})
TIMES = ("year", "month", "day", "hour")
"""From the coarsest to the finest: Iceberg takes one of them for a column."""
_TRUNCATES = frozenset({"int", "long", "string", "binary", "decimal"})
_FITS = {"bucket": BUCKETS, "truncate": _TRUNCATES, "year": DAYS, "month": DAYS, "day": DAYS, "hour": MOMENTS}
_NO_IDENTITY = NOT_PRIMITIVE | {"geometry", "geography"}
_EPOCH = date(1970, 1, 1)


def transform_fits(transform: str, kind: str) -> bool:
    """Whether a transform such as `day` or `bucket[16]` takes columns of this kind; one that nobody knows takes all."""
    name = transform.partition("[")[0]
    if name == "identity":
        return kind not in _NO_IDENTITY
    return name not in _FITS or kind in _FITS[name]


def shown_value(transform: str, value: Any) -> Any:
    """A partition's value as people read it: `2024-01` for a month, which Iceberg counts from 1970."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value.isoformat() if isinstance(value, date | datetime) else value
    try:
        match transform:
            case "year":
                return str(_EPOCH.year + value)
            case "month":
                return f"{_EPOCH.year + value // 12}-{value % 12 + 1:02d}"
            case "day":
                return (_EPOCH + timedelta(days=value)).isoformat()
            case "hour":
                return f"{(_EPOCH + timedelta(days=value // 24)).isoformat()}-{value % 24:02d}"
    except OverflowError:  # before the year 1 or after 9999
        pass
    return value


def partition_name(parts: Iterable[tuple[str, Any]]) -> str:
    """Such as `dt=2024-01-15/bucket=3`, from names and values as people read them."""
    return "/".join(f"{name}={shown_text(value)}" for name, value in parts)


def shown_text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
