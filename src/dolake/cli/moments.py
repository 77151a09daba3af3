"""Points in time as people write them: `2025-01-14 12:00`, `5 minutes ago`, `1h30m`, `yesterday`. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from dolake.errors import InvalidInput

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNIT = r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
_PART = re.compile(rf"(\d+(?:\.\d+)?|an?)\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?", re.IGNORECASE)
_SNAPSHOT_DIGITS_MIN = 9


def moment_of(text: str, now: datetime | None = None) -> datetime:
    """The point in time that is meant. Times without a zone are UTC."""
    now = now or datetime.now(UTC)
    plain = text.strip().lower()
    match plain:
        case "now":
            return now
        case "yesterday":
            return now - timedelta(days=1)
        case "today":
            return now.replace(hour=0, minute=0, second=0, microsecond=0)
    ago = _length_of(plain.removesuffix("ago").removeprefix("-").strip())
    if ago is not None:
        return now - ago
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a point in time",
            hint="write it like 2025-01-14T12:00:00Z, '5 minutes ago', 1h30m or yesterday",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def place_of(text: str) -> datetime | dict[str, str]:
    """A point in time, or a snapshot if the text is digits only. A day may have eight digits, a snapshot has more."""
    digits = text.strip()
    if digits.isdecimal() and len(digits) >= _SNAPSHOT_DIGITS_MIN:
        return {"snapshot_id": digits}
    return moment_of(text)


def _length_of(text: str) -> timedelta | None:
    """`1h30m`, `2 days`, `an hour and 5 minutes`; None for anything else."""
    seconds, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        seconds += (1.0 if part[1].startswith("a") else float(part[1])) * _UNITS_S[part[2][0]]
        at = part.end()
    return timedelta(seconds=seconds) if text else None
