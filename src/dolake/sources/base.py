"""What a source promises to the runner: pieces of its stream in order, each with what it changes of the source's state.

Filled by sqlite/source.py; Postgres is next. From a database that knows nothing of lakes; to runner.py, which sends the
pieces through dolake.client and reports back what is durable. All methods wait for the disk or the database: the
runner calls them in a thread of the source's own, one at a time.

The promise, which tests/contracts/test_source.py checks for every source:

- The database is read, not written: place and progress are kept in the lake, with the changes that they belong to.
- Sequences rise along the stream, for ever.
- A copied row is sent behind all changes that came before it was read, and before all that came later.
- The changes of one look are one transaction, except where one look finds more changes than a group may have.
- After a crash at any point, `resume` and `look` go on so that every change arrives once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dolake.changes import Change


@dataclass(frozen=True, slots=True)
class Standing:
    """What the lake says about the stream: how far it is, and the state that it keeps for the source."""

    epoch: int
    durable_sequence: int
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resumption:
    """`reason` says why everything is copied again, if it is."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Changes that are sent as one batch, and the merge patch for the source's state that is durable with them."""

    changes: Sequence[Change]
    state: dict[str, Any]
    place: int
    """The source's own number for the place behind these changes."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """How far the copy of one table is; `phase` is `copying` or `live`, or "" where only the lake knows."""

    table: str
    phase: str
    copied: int
    total: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What an operator asks: how far behind, and which tables are still being copied."""

    pending: int
    """Events that the lake has not acknowledged; without a running source, events that are kept in the file."""
    lag_ms: int
    """The age of the oldest of them; 0 when there is none."""
    last_sequence: int
    tables: Sequence[TableCopy] = field(default_factory=tuple)
    left_out: Sequence[str] = field(default_factory=tuple)
    """Tables that are not captured, each with the reason in words."""
    is_known: bool = True
    """Whether the lake was asked; else `pending` is what the file keeps."""

    @property
    def is_copying(self) -> bool:
        return any(table.phase == "copying" for table in self.tables)


class Source(Protocol):
    """One database, or one shard of it: one stream."""

    def resume(self, standing: Standing) -> Resumption:
        """Compare the lake's state with the database, and decide where to go on."""

    def look(self) -> Piece | None:
        """The next piece, behind the last one; None when nothing has happened."""

    def acknowledge(self, piece: Piece) -> None:
        """This piece and all before it are durable in the lake."""

    def has_work(self) -> bool:
        """Whether a look may find something; cheap enough to ask many times a second."""

    def table_to_compare(self) -> str | None:
        """A table of the lake that others write to, too: we must know its keys of this source to copy it again."""

    def compare(self, table: str, keys: Sequence[str] | None) -> None:
        """These keys of that table are this source's in the lake; None where the lake cannot tell."""

    def status(self) -> SourceStatus:
        """For people: lag and copies."""

    def close(self) -> None:
        """Let go of the database."""
