"""What may go: segments that every registered consumer has passed.

From embedded.py, which removes what `removable` names. Pure, but for the small file that remembers the consumers.
Promise: without a registered consumer nothing is removed, and the newest segment never is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dolake.errors import Damaged, NotFound, Unavailable
from dolake.journal.disk import Disk, write_file_atomically
from dolake.positions import Position

logger = logging.getLogger(__name__)
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


def missing_beginning(oldest: Position, released: Position | None) -> str:
    """Say which changes are gone that nobody had released; empty when all is well.

    It is no reason to stop: a full disk can keep a consumer's last place from being written down.
    """
    first = 0 if released is None else released
    return f"changes {first} to {oldest - 1} are not in the journal, and nobody released them" if oldest > first else ""


class Consumers:
    """Who reads the journal and how far each has come; survives restarts."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / FILE_NAME
        self._disk = disk
        self._positions: dict[str, Position] = {}
        self._stored: dict[str, Position] = {}
        if self._path.exists():
            try:
                self._positions = self._stored = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
            except msgspec.DecodeError as error:
                hint = "restore it, or remove it and let every consumer register again"
                raise Damaged(f"{self._path.name} cannot be read: {error}", hint=hint) from None

    def register(self, name: str, position: Position) -> Position:
        """A known consumer keeps its place; a new one starts at `position`, once that is safely written down."""
        if name not in self._positions:
            try:
                self._store({**self._positions, name: position})
            except OSError as error:
                what = f"consumer {name!r} could not be registered: {error.strerror}"
                raise Unavailable(what, hint="free disk space, then register again") from error
        return self._positions[name]

    def release(self, name: str, position: Position) -> None:
        """Move a consumer forward; it never moves back. `store` writes it down, after what is needless was removed."""
        if name not in self._positions:
            raise NotFound(f"no consumer {name!r} is registered", hint="register it first")
        if position > self._positions[name]:
            self._positions = {**self._positions, name: position}

    def remove(self, name: str) -> None:
        """It is no consumer any more."""
        self._positions = {each: at for each, at in self._positions.items() if each != name}
        self.store()

    def store(self) -> None:
        """Write the places down. A disk that refuses this is borne: else a full one could never be emptied.

        After a restart such a consumer stands where it stood before, or at the oldest position kept.
        """
        if self._positions == self._stored:
            return
        try:
            self._store(self._positions)
        except OSError as error:
            logger.warning("places of consumers not stored", extra={"reason": str(error)})

    def released(self) -> Position | None:
        """What every consumer has passed; None when there is none, because then nothing is known to be needless."""
        return min(self._positions.values(), default=None)

    def all(self) -> dict[str, Position]:
        return dict(self._positions)

    def _store(self, positions: dict[str, Position]) -> None:
        write_file_atomically(self._disk, self._path, msgspec.json.encode(positions))
        self._positions = self._stored = positions
