"""A time in the past, how it is written, and what a table of changes shows of it.

From reader.py; to time_travel.py and history.py. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dolake.errors import InvalidInput
from dolake.query.sqltext import literal, moment


@dataclass(frozen=True, slots=True)
class Past:
    """A time, and the transactions (source and id) that had begun by then and not ended."""

    time_ms: int
    begun: tuple[tuple[str, str], ...] = ()

    @property
    def condition(self) -> str:
        """What a change must meet to have been seen then."""
        parts = [f"_commit_timestamp <= {moment(self.time_ms)}"]
        parts += [
            f"(_transaction IS NULL OR NOT (_source = {literal(source)} AND _transaction = {literal(id_)}))"
            for source, id_ in self.begun
        ]
        return " AND ".join(parts)


def parse_moment(as_of: str | int | float) -> int:
    """A time in ms: a number of them, or ISO 8601, in UTC where it names no zone."""
    if isinstance(as_of, int | float):
        return int(as_of)
    try:
        found = datetime.fromisoformat(as_of.strip())
    except ValueError:
        hint = "write it as 2026-11-15T12:00:00Z, or as milliseconds since 1970"
        raise InvalidInput(f"{as_of[:80]!r} is not a time", hint=hint) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_snapshot_id(id_: int | str | None) -> int | None:
    """A number, its digits, or these behind `snap-`."""
    if id_ is None or isinstance(id_, int):
        return id_
    digits = id_.strip().removeprefix("snap-")
    if not digits.isdecimal():
        raise InvalidInput(f"{id_[:80]!r} is not the id of a snapshot", hint="GET /v1/snapshots lists them")
    return int(digits)
