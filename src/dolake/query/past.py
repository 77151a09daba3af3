"""A time in the past, and what a table of changes shows of it.

From reader.py; to time_travel.py and history.py. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

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
