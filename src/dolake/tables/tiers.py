"""Warm and cold: which of a lake's two places a data file is in, and how old a partition is.

From storage/, which knows the two places; to maintenance.py, which says what should move, and to all who show where
files are. Pure. Promise: a file's path alone says its tier, so that whoever reads a manifest knows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from dolake.errors import InvalidInput
from dolake.tables.transforms import TIMES, shown_value

Tier = Literal["warm", "cold"]
WARM: Tier = "warm"
COLD: Tier = "cold"
COLD_SUFFIX = "-cold"
"""Of the cold place where nobody names one: it is beside the warehouse."""
_ELSEWHERE = "~elsewhere"
"""No namespace has a folder of this name."""
_FORMS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}


@dataclass(frozen=True, slots=True)
class Tiers:
    """The two places of a lake: where tables are made, and where their old partitions go."""

    warm: str
    cold: str

    def of(self, path: str) -> Tier:
        return COLD if path.startswith(f"{self.cold}/") else WARM

    def folder(self, location: str, tier: Tier) -> str:
        """Where a table with this location has its files of a tier: the same path, below the other place."""
        if tier == WARM:
            return location
        if location.startswith(f"{self.warm}/"):
            return self.cold + location.removeprefix(self.warm)
        # A table that somebody put elsewhere: its own path could be anything, but it is like no other.
        return f"{self.cold}/{_ELSEWHERE}/{hashlib.sha256(location.encode()).hexdigest()[:16]}"

    def folders(self, location: str) -> tuple[str, str]:
        return location, self.folder(location, COLD)


def checked_tiers(tiers: Tiers) -> Tiers:
    """Refuses places of which one cannot be told from the other."""
    if f"{tiers.warm}/".startswith(f"{tiers.cold}/"):
        raise InvalidInput(
            f"the cold location {tiers.cold} has the warehouse {tiers.warm} in it",
            hint="name another one as storage.cold_location",
        )
    return tiers


# --- how old a partition is ------------------------------------------------------------------------------------------


def partition_end_ms(fields: Iterable[tuple[str, str, Any]]) -> int | None:
    """When the last moment that a partition can hold is over; None where its values are no spans of time.

    `fields` are transform, type of the column, and value, as Iceberg or as people have it. Of several spans the latest
    counts: all rows of the partition are older than that.
    """
    ends = [end for field in fields if (end := _end_ms(*field)) is not None]
    return max(ends, default=None)


def _end_ms(transform: str, kind: str, value: Any) -> int | None:
    if value is None:
        return None
    unit = "day" if transform == "identity" and kind == "date" else transform
    if unit not in TIMES:
        return None
    try:
        start = datetime.strptime(str(shown_value(transform, value, kind)), _FORMS[unit]).replace(tzinfo=UTC)
        return int(_next(start, unit).timestamp() * 1000)
    except (ValueError, OverflowError):  # before the year 1 or after 9999
        return None


def _next(start: datetime, unit: str) -> datetime:
    match unit:
        case "year":
            return start.replace(year=start.year + 1)
        case "month":
            return (start + timedelta(days=31)).replace(day=1)
        case "day":
            return start + timedelta(days=1)
        case _:
            return start + timedelta(hours=1)
