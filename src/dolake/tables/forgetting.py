"""Which changes are about one row, whose key may have been another one for a while. Pure.

From pipeline/forgetting.py, which lets all of them go. A row that was moved to another key (an UPDATE with
`previousRowId`) is the same row under both, so who forgets one key forgets the other: but only for the time in which it
was that row's. Whoever got the key after it moved away is somebody else, and stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dolake.positions import START, Position

END: Position = 2**62
"""Behind every position."""


@dataclass(frozen=True, slots=True)
class Move:
    """The change at this position gave a row another key."""

    position: Position
    previous: str
    key: str


@dataclass(frozen=True, slots=True)
class Life:
    """Changes of this key from `start` on and before `end` are about the row."""

    key: str
    start: Position = START
    end: Position = END

    @property
    def is_on(self) -> bool:
        """Whether the key is the row's now."""
        return self.end == END


def lives_of(key: str, moves: Iterable[Move]) -> tuple[Life, ...]:
    """The whole life of this key, and the parts of others' lives that were about the same row."""
    leaving: dict[str, list[Move]] = defaultdict(list)
    coming: dict[str, list[Move]] = defaultdict(list)
    borders: dict[str, list[Position]] = defaultdict(list)
    """Where a key gets another row: the one that it had leaves, or another one comes."""
    for move in sorted(moves, key=lambda move: move.position):
        leaving[move.previous].append(move)
        coming[move.key].append(move)
        borders[move.previous].append(move.position)
        borders[move.key].append(move.position)
    found: dict[Life, None] = {}
    waiting = [Life(key)]
    while waiting:
        life = waiting.pop()
        if life in found:
            continue
        found[life] = None
        gone = (move for move in leaving[life.key] if life.start <= move.position <= life.end)
        waiting += [Life(move.key, move.position, _next(borders[move.key], move.position)) for move in gone]
        come = (move for move in coming[life.key] if life.start <= move.position < life.end)
        waiting += [Life(move.previous, _last(borders[move.previous], move.position), move.position) for move in come]
    return tuple(found)


def _next(borders: Sequence[Position], position: Position) -> Position:
    at = bisect_right(borders, position)
    return borders[at] if at < len(borders) else END


def _last(borders: Sequence[Position], position: Position) -> Position:
    at = bisect_left(borders, position)
    return borders[at - 1] if at else START
