"""How far each table and each source has come: durable, then published; and how long that took.

From progress.py, with every batch and every publish; to server/freshness.py and the metrics. Runs on the event loop.
Promise: what it says of a name is of this server's own time; before its first batch it says nothing of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from dolake.positions import START, Position

SECONDS_BUCKETS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_PART_MS = 100
_PARTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Point:
    """A place that was reached: its position, the source's sequence there, and when."""

    position: Position = START
    at_ms: int | None = None
    sequence: int = 0


@dataclass(slots=True)
class _Waiting:
    """Changes that became durable within a short time and are not published."""

    end: Position
    sequence: int
    since_ms: int
    change_count: int


@dataclass(slots=True)
class Mark:
    """One table or source."""

    durable: Point = Point()
    published: Point = Point()
    waiting: deque[_Waiting] = field(default_factory=deque)

    @property
    def oldest_ms(self) -> int | None:
        """Since when its oldest change waits that is not published."""
        return self.waiting[0].since_ms if self.waiting else None

    @property
    def change_count(self) -> int:
        return sum(each.change_count for each in self.waiting)

    def add(self, end: Position, sequence: int, change_count: int, at_ms: int) -> None:
        self.durable = Point(max(self.durable.position, end), at_ms, max(self.durable.sequence, sequence))
        newest = self.waiting[-1] if self.waiting else None
        if newest and (at_ms - newest.since_ms < _PART_MS or len(self.waiting) >= _PARTS_MAX):
            newest.end, newest.sequence = max(newest.end, end), max(newest.sequence, sequence)
            newest.change_count += change_count
        else:
            self.waiting.append(_Waiting(end, sequence, at_ms, change_count))

    def commit(self, position: Position, at_ms: int) -> None:
        while self.waiting and self.waiting[0].end <= position:
            done = self.waiting.popleft()
            self.published = Point(done.end, at_ms, done.sequence)


class Marks:
    """Those of all tables, or of all sources."""

    def __init__(self) -> None:
        self.by_name: dict[str, Mark] = {}

    def add(self, name: str, end: Position, change_count: int, at_ms: int, *, sequence: int = 0) -> None:
        self.by_name.setdefault(name, Mark()).add(end, sequence, change_count, at_ms)

    def commit(self, position: Position, at_ms: int) -> None:
        for each in self.by_name.values():
            each.commit(position, at_ms)


@dataclass(slots=True)
class Histogram:
    """How often something took how long."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BUCKETS) + 1))

    def note(self, seconds: float, times: int = 1) -> None:
        self.seconds += seconds * times
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += times
