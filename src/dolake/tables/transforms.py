"""Iceberg's partition transforms: which of them fits which type of column.

From partitions.py, and from the catalog, which refuses what does not fit. Pure.
"""

from __future__ import annotations

MOMENTS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
DAYS = MOMENTS | {"date"}
BUCKETS = DAYS | {"int", "long", "time", "string", "binary", "fixed", "decimal", "uuid"}
NOT_PRIMITIVE = frozenset({"struct", "list", "map", "variant"})
TIMES = ("year", "month", "day", "hour")
"""From the coarsest to the finest: Iceberg takes one of them for a column."""
_TRUNCATES = frozenset({"int", "long", "string", "binary", "decimal"})
_FITS = {"bucket": BUCKETS, "truncate": _TRUNCATES, "year": DAYS, "month": DAYS, "day": DAYS, "hour": MOMENTS}
_NO_IDENTITY = NOT_PRIMITIVE | {"geometry", "geography"}


def transform_fits(transform: str, kind: str) -> bool:
    """Whether a transform such as `day` or `bucket[16]` takes columns of this kind; one that nobody knows takes all."""
    name = transform.partition("[")[0]
    if name == "identity":
        return kind not in _NO_IDENTITY
    return name not in _FITS or kind in _FITS[name]
