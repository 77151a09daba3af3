"""What a journal promises, whatever it is made of. tests/contracts/test_journal.py holds every backend to it.

From receiver/endpoint.py, which appends; to the pipeline and the query process, which read.

1. When a ticket's `wait` returns, the batch survives kill -9 and power failure, at the position that it names.
2. A stream's changes are kept once and in order, across retries with any batch borders, reconnects and restarts.
3. Readers see durable batches only, in one order that never changes.
4. Commit timestamps never fall along the journal, whatever the clock does.
5. What a registered consumer has not released is kept.
6. The state of a stream's source is the merge of every patch that was appended, across restarts and removed files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dolake.changes import Batch, StreamId
from dolake.journal.record import Record, StreamPoint
from dolake.positions import Position


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch is. `change_count` of its changes were new, `duplicate_count` had been durable before."""

    end: Position
    change_count: int
    duplicate_count: int = 0
    has_state: bool = False
    """Whether a state of the source was kept with it."""

    @property
    def is_duplicate(self) -> bool:
        """Whether nothing of the batch was new."""
        return not self.change_count and not self.has_state


class Ticket:
    """A batch on its way to the disk, in its place in the order. `wait` returns when it is durable."""

    __slots__ = ("done",)

    def __init__(self, done: asyncio.Future[Appended]) -> None:
        self.done = done

    async def wait(self) -> Appended:
        return await self.done


class Journal(Protocol):
    """Six verbs. `append` and `point` are for the event loop's thread; the others may be called from any."""

    async def append(self, batch: Batch) -> Ticket:
        """Give the batch its place. Raises InvalidSequence, Unavailable; waits only where a retry must be compared."""

    def point(self, stream: StreamId) -> StreamPoint:
        """How far this stream is durable."""

    def read(self, start: Position, end: Position | None = None) -> Iterator[Record]:
        """Every durable batch that has a change in [start, end)."""

    def register(self, consumer: str, position: Position) -> Position:
        """Keep what this consumer has not released, from now on. A known one keeps its place; returns where it is."""

    def release(self, consumer: str, position: Position) -> None:
        """This consumer needs nothing before `position` any more."""

    async def close(self) -> None:
        """Take no more, make durable what was taken, let go of the files."""
