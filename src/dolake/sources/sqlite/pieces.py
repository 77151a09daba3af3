"""Changes are cut into pieces: each is one batch, with the patch that brings the lake's state behind it.

From source.py, group by group and chunk by chunk. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dolake.changes import Change
from dolake.sources.base import Piece
from dolake.sources.sqlite.events import Told
from dolake.sources.sqlite.state import FileState, OpenTransaction, Place, as_json, digest_of, patch_between

PIECE_CHANGES_MAX = 2_000
PIECE_SIZE_MAX = 400_000
"""As counted in characters: the largest batch that a lake takes is some ten times that."""


class PieceMaker:
    """Knows which state the lake will have behind the last piece."""

    def __init__(self, sent: dict[str, Any]) -> None:
        self._sent = sent
        self._tables_encoded = b""
        self._tables: dict[str, Any] = {}
        self._events = 0
        self._size = 0

    @property
    def event_size(self) -> int:
        """The mean size of the events that were told, about."""
        return self._size // max(1, self._events)

    def cut(self, changes: Sequence[Change], state: FileState) -> Piece:
        """These changes, and the state as it is behind them."""
        now = self._as_json(state)
        patch = patch_between(self._sent, now)
        self._sent = now
        return Piece(changes, patch, state.place.outbox)

    def is_changed(self, state: FileState) -> bool:
        return self._as_json(state) != self._sent

    def _as_json(self, state: FileState) -> dict[str, Any]:
        """Of a file with hundreds of tables most pieces change none: then the former ones are taken."""
        encoded = msgspec.json.encode(state.tables)
        if encoded != self._tables_encoded:
            self._tables_encoded, self._tables = encoded, msgspec.to_builtins(state.tables)
        made = as_json(msgspec.structs.replace(state, tables={}))
        return {**made, "tables": self._tables} if state.tables else made

    def of_group(self, told: Iterable[Told], state: FileState, last: int) -> list[Piece]:
        """A group that ends with number `last` of the outbox; the state changes while it is told."""
        pieces: list[Piece] = []
        changes: list[Change] = []
        size = 0
        row: Sequence[Any] | None = None
        for each in told:
            row = each.row
            if each.change is not None:
                self._events += 1
                self._size += each.size
                changes.append(each.change)
                size += each.size
            if each.is_last and (len(changes) >= PIECE_CHANGES_MAX or size >= PIECE_SIZE_MAX) and row[0] < last:
                rest = OpenTransaction(each.transaction, last) if each.transaction else None
                state.place = Place(row[0], digest_of(plain(row)), rest)
                pieces.append(self.cut(changes, state))
                changes, size = [], 0
        if row is not None:
            state.place = Place(row[0], digest_of(plain(row)))
        if changes or self.is_changed(state):
            pieces.append(self.cut(changes, state))
        return pieces

    def of_changes(self, changes: Sequence[Change], state: FileState) -> list[Piece]:
        """Changes that no event stands behind; the state comes with the last of them."""
        if len(changes) <= PIECE_CHANGES_MAX:
            return [self.cut(changes, state)]
        starts = range(0, len(changes), PIECE_CHANGES_MAX)
        whole = self.cut((), state)
        parts = [Piece(changes[start : start + PIECE_CHANGES_MAX], {}, whole.place) for start in starts]
        return [*parts[:-1], Piece(parts[-1].changes, whole.state, whole.place)]


def plain(row: Sequence[Any]) -> tuple[Any, ...]:
    """An event without the columns at its end that are empty: their number grows with the widest table."""
    width = len(row)
    while width and row[width - 1] is None:
        width -= 1
    return tuple(row[:width])
