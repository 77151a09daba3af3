"""What a verification finds, in the words that people and programs get.

From every check of this room; to cli/verify.py, which shows it, and to whoever reads the JSON. Promise: a check that
has no difference says how much it compared, so that silence can be told from idleness.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dolake.positions import Position

NAMED_MAX = 20
"""How many differences a check names one by one; it counts all of them."""

Advance = Callable[[int], None]
"""Called with how many rows more are done."""


class Check(msgspec.Struct, rename="camel"):
    """One comparison. `table` is empty where it is about the lake as a whole."""

    table: str
    name: str
    compared: int = 0
    difference_count: int = 0
    differences: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    """What a reader should know, but is no difference."""

    def differ(self, what: str, count: int = 1) -> None:
        """Count a difference, or several that one sentence names."""
        self.difference_count += count
        if len(self.differences) < NAMED_MAX:
            self.differences.append(what)

    def note(self, what: str) -> None:
        if len(self.notes) < NAMED_MAX:
            self.notes.append(what)

    def differ_all(self, sentences: list[str], count: int) -> None:
        """Count all of them, though only the first ones have a sentence."""
        for sentence in sentences:
            self.differ(sentence)
        self.difference_count += count - len(sentences)


class TableSize(msgspec.Struct, rename="camel"):
    """How much of a table was read."""

    table: str
    changes: int
    rows: int


class Report(msgspec.Struct, rename="camel"):
    """All that was compared, at one position of the journal."""

    position: Position
    tables: list[TableSize]
    checks: list[Check]
    took_ms: int

    @property
    def difference_count(self) -> int:
        return sum(check.difference_count for check in self.checks)


def short(value: object) -> str:
    """A value as people read it, cut where it gets long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


_SHOWN_MAX = 80
