"""What may go: segments that every registered consumer has passed.

From embedded.py, which removes what `removable` names. Pure, but for the small file that remembers the consumers.
Promise: without a registered consumer nothing is removed, and the newest segment never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dolake.errors import Damaged, NotFound
from dolake.journal.disk import Disk, write_file_atomically
from dolake.positions import Position

FILE_NAME = "consumers.json"


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A full segment: it covers [base, end), takes `size` bytes, and its last batch became durable at `newest_ms`."""

    base: Position
    end: Position
    size: int
    newest_ms: int


def removable(
    segments: Sequence[SealedSegment], released: Position | None, *, keep_since_ms: int, is_pressed: bool
) -> list[SealedSegment]:
    """The oldest segments that nobody needs.

    Segments inside the dedup window stay, so that a retry can be compared with what was written; when room runs out
    (`is_pressed`) they go all the same, because refusing new changes would be worse.
    """
    if released is None:
        return []
    going = []
    for sealed in segments:
        is_recent = sealed.newest_ms >= keep_since_ms and not is_pressed
        if sealed.end > released or is_recent:
            break
        going.append(sealed)
    return going


class Consumers:
    """Who reads the journal and how far each has come; survives restarts."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self._positions: dict[str, Position] = {}
        if self._path.exists():
            try:
                self._positions = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
            except msgspec.DecodeError as error:
                hint = "restore it, or remove it and let every consumer register again"
                raise Damaged(f"{self._path.name} cannot be read: {error}", hint=hint) from None

    def register(self, name: str, position: Position) -> Position:
        """A known consumer keeps its place; a new one starts at `position`."""
        if name not in self._positions:
            self._store({**self._positions, name: position})
        return self._positions[name]

    def release(self, name: str, position: Position) -> None:
        """Move a consumer forward; it never moves back."""
        if name not in self._positions:
            raise NotFound(f"no consumer {name!r} is registered", hint="register it first")
        if position > self._positions[name]:
            self._store({**self._positions, name: position})

    def released(self) -> Position | None:
        """What every consumer has passed; None when there is none, because then nothing is known to be needless."""
        return min(self._positions.values(), default=None)

    def all(self) -> dict[str, Position]:
        return dict(self._positions)

    def _store(self, positions: dict[str, Position]) -> None:
        write_file_atomically(self._disk, self._path, msgspec.json.encode(positions))
        self._positions = positions
