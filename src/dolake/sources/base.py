"""What a source promises to the runner: its place in the stream, groups of changes in order, and a copy among them.

Filled by sqlite/source.py; Postgres is next. From a database that knows nothing of lakes; to runner.py, which sends the
groups through dolake.client and brings back what is durable. All methods wait for the disk or the database: the
runner calls them in a thread of the source's own, one at a time.

The promise, which tests/contracts/test_source.py checks for every source:

- Sequences rise along the stream, for ever. A change and its event are one transaction of the database.
- A copied row has its place in the sequence: what the row was at that moment. So the live change wins.
- A group never ends inside a transaction, except where one look finds more changes than a group may have.
- After a crash at any moment, `resume` and `look` go on so that every change arrives once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dolake.changes import Change


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the lake says that the stream is."""

    epoch: int
    durable_sequence: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where to go on: in which epoch, behind which sequence; `reason` says why everything is copied again, if it is."""

    epoch: int
    after: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that became visible together in the database, up to and including sequence `last`."""

    last: int
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class TableCopy:
    """How far the copy of one table is; `phase` is `copying` or `live`."""

    table: str
    phase: str
    copied: int
    total: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What an operator asks: how far behind, and which tables are still being copied."""

    epoch: int | None
    acknowledged_sequence: int
    last_sequence: int
    pending: int
    """Events that the lake has not acknowledged."""
    lag_ms: int
    """The age of the oldest of them; 0 when there is none."""
    tables: Sequence[TableCopy] = field(default_factory=tuple)
    left_out: Sequence[str] = field(default_factory=tuple)
    """Tables that are not captured, each with the reason in words."""

    @property
    def is_copying(self) -> bool:
        return any(table.phase != "live" for table in self.tables)


class Source(Protocol):
    """One database, or one shard of it: one stream."""

    def resume(self, standing: Standing) -> Resumption:
        """Compare the lake's place with our own, and decide where to go on."""

    def look(self) -> Group | None:
        """The next group, behind the last one; None when nothing has happened. Copies a chunk where one is due."""

    def acknowledge(self, sequence: int) -> None:
        """Everything up to this is durable in the lake: it may be forgotten with the next look."""

    def has_work(self) -> bool:
        """Whether a look may find something; cheap enough to ask many times a second."""

    def table_to_compare(self) -> str | None:
        """A table of the lake that others write to, too: we must know its keys of this source to copy it again."""

    def compare(self, table: str, keys: Sequence[str] | None) -> None:
        """These keys of that table are this source's in the lake; None where nobody can tell."""

    def status(self) -> SourceStatus:
        """For people: lag and copies."""

    def close(self) -> None:
        """Let go of the database, having written down what is acknowledged."""
