"""Iceberg's partition transforms: which of them fits which type of column, and how people read their values.

From partitions.py, and from the catalog, which refuses what does not fit; from all who name partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def shown_value(transform: str, value: Any, kind: str = "") -> Any:
    """A partition's value as people read it: `2024-01` for a month, which Iceberg counts from 1970.

    `kind` is the type of the column, where days and moments may be numbers too.
    """
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, int):
        return value if value is None or isinstance(value, str | float | bool) else _other_text(value)
    try:
        match transform, kind:
            case "year", _:
                return str(_EPOCH.year + value)
            case "month", _:
                return f"{_EPOCH.year + value // 12}-{value % 12 + 1:02d}"
            case ("day", _) | ("identity", "date"):
                return (_EPOCH + timedelta(days=value)).isoformat()
            case "hour", _:
                return f"{(_EPOCH + timedelta(days=value // 24)).isoformat()}-{value % 24:02d}"
            case "identity", "timestamp" | "timestamptz":
                moment = datetime(1970, 1, 1) + timedelta(microseconds=value)  # noqa: DTZ001
                return moment.isoformat() + ("+00:00" if kind == "timestamptz" else "")
    except OverflowError:  # before the year 1 or after 9999
        pass
    return value


def _other_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class PartitionNames:
    """How people read the partitions of a table, whichever of its specs they are of; from its metadata."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        kinds: dict[int, str] = {}
        for schema in metadata.get("schemas") or ():
            kinds |= kinds_of(schema)
        self._fields = {
            spec["spec-id"]: [
                (field["name"], str(field["transform"]).lower(), kinds.get(field.get("source-id"), ""))
                for field in spec["fields"]
            ]
            for spec in metadata.get("partition-specs") or ()
        }

    def values(self, spec_id: int, values: Sequence[Any]) -> dict[str, Any]:
        """By name; `values` are as manifests have them."""
        fields = self._fields.get(spec_id, ())
        return {
            name: shown_value(transform, value, kind)
            for (name, transform, kind), value in zip(fields, values, strict=False)
        }

    def parts(self, spec_id: int, values: Sequence[Any]) -> list[tuple[str, str, Any]]:
        """Transform, type of the column and value of each field."""
        fields = self._fields.get(spec_id, ())
        return [(transform, kind, value) for (_, transform, kind), value in zip(fields, values, strict=False)]

    def of(self, spec_id: int, values: Sequence[Any]) -> str:
        """Such as `dt=2024-01-15/bucket=3`."""
        return partition_name(self.values(spec_id, values).items())


def kinds_of(struct: Mapping[str, Any]) -> dict[int, str]:
    """The types of all columns by id, also of those inside others."""
    found: dict[int, str] = {}
    for field in struct.get("fields") or ():
        type_ = field["type"]
        found |= {field["id"]: type_} if isinstance(type_, str) else kinds_of(type_)
    return found


def partition_name(parts: Iterable[tuple[str, Any]]) -> str:
    """Such as `dt=2024-01-15/bucket=3`, from names and values as people read them."""
    return "/".join(f"{name}={shown_text(value)}" for name, value in parts)


def shown_text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
