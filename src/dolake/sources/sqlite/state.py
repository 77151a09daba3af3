"""How far a source is with a file, as the lake keeps it: the file itself is not written for that.

Kept as the stream's `sourceState`: every batch carries what it changes of it, so rows and place are durable together.
From source.py, which sends it and reads it back. Pure.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

COPYING, LIVE = "copying", "live"
KIND = "sqlite"
ALL = ("*",)


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction of which a part is sent: the rest goes out under the same id."""

    id: str
    last: int
    """The number of the outbox with which it ends."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Up to where the outbox is sent."""

    outbox: int = 0
    digest: str = ""
    """Of the event with that number: another file with the same numbers has another one."""
    transaction: OpenTransaction | None = None


class TableState(msgspec.Struct, rename="camel", omit_defaults=True):
    """How far we are with a table."""

    shape: int
    lake: str
    """The table's name in the lake."""
    phase: str = COPYING
    cursor: list[Any] | None = None
    """The key of the row that was copied last."""
    filling: str | None = None
    """Where set, only rows that match this are copied: those with a value in a column that was added."""
    empties: bool = False
    """Whether the lake's table must first be emptied."""
    copied: int = 0
    total: int = 0
    forms: dict[str, Any] = {}
    """What columns are in the lake, where the first rows have shown that it is not what their declared type says."""
    hints: tuple[str, ...] = ALL
    """The columns that have had no value yet."""

    def copy_again(self, *, empties: bool = False) -> None:
        """All rows of it, from the first."""
        self.phase, self.cursor, self.filling, self.copied, self.total = COPYING, None, None, 0, 0
        self.empties = self.empties or empties

    def forget_forms(self) -> None:
        """Choose all forms again."""
        self.forms, self.hints = {}, ALL


class FileState(msgspec.Struct, rename="camel", omit_defaults=True):
    """The whole state of one file."""

    kind: str = KIND
    identity: str = ""
    instance: str = ""
    host: str = ""
    path: str = ""
    place: Place = Place()
    tables: dict[str, TableState] = {}


def address_of(path: Path) -> tuple[str, str]:
    """Where a file is: host and path, as a state has them."""
    return socket.gethostname(), str(path.resolve())


def read_state(raw: Any) -> FileState | None:
    """The state as the lake has it; None where it has none of this kind."""
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        return None
    try:
        return msgspec.convert(raw, FileState)
    except msgspec.ValidationError:
        return None


def as_json(state: FileState) -> dict[str, Any]:
    made = msgspec.to_builtins(state)
    assert isinstance(made, dict)
    return {"kind": state.kind, **made}


def patch_between(before: Any, after: Any) -> dict[str, Any]:
    """The JSON merge patch that makes one state of the other. Both are JSON objects."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if value is old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := patch_between(old, value):
                patch[name] = inner
        elif name not in before or value != old:
            patch[name] = value
    return patch


def digest_of(row: Sequence[Any] | None) -> str:
    """A short digest of an event as the outbox has it."""
    return hashlib.sha256(repr(tuple(row)).encode()).hexdigest()[:16] if row is not None else ""
