"""How far changes have come, for acks, the status and the pipeline: durable, then committed.

From the journal (what became durable) and from whoever publishes (what was committed); to receiver/endpoint.py, which
tells senders `persisted`, and to the status routes. Everything here runs on the event loop.

This is the pipeline's seam: `attach`, `publish_started`, `published`, `publish_failed`, and `flush_wanted` to wait on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dolake.changes import StreamId
from dolake.errors import FlushError
from dolake.journal.base import Appended
from dolake.positions import START, CircuitBreakerState, Position
from dolake.receiver.freshness import Histogram, Marks

_FAILURES_MAX = 3
_BUCKETS_MAX = 4096
_PART_MS = 100


@dataclass(slots=True)
class _Bucket:
    """Some batches that became durable one after the other."""

    start: Position
    end: Position
    state_count: int
    """Positions at which there is no change, but a state of a source alone."""
    batch_count: int
    byte_count: int
    oldest_ms: int
    newest_ms: int


class Tail:
    """What is durable and not yet committed, counted in buckets so that a tail of any length costs little memory.

    A bucket leaves when all of it is committed, so the batch and byte counts may lag behind by one bucket, and the age
    of the oldest change by the little time that a bucket is open. The count of changes is exact, but in a bucket that
    is committed in part: the states that it holds are counted as changes, because any of them may be committed.
    """

    def __init__(self, committed: Position = START) -> None:
        self.committed = committed
        self.durable = committed
        self._buckets: deque[_Bucket] = deque()
        self._state_count = 0

    def add(
        self,
        end: Position,
        batch_count: int,
        byte_count: int,
        at_ms: int,
        *,
        oldest_ms: int | None = None,
        change_count: int | None = None,
    ) -> None:
        """More is durable. Without a count every position is taken for a change."""
        state_count = 0 if change_count is None else end - self.durable - change_count
        self._state_count += state_count
        newest = self._buckets[-1] if self._buckets else None
        if newest and (at_ms - newest.oldest_ms < _PART_MS or len(self._buckets) >= _BUCKETS_MAX):
            newest.end, newest.newest_ms = end, at_ms
            newest.state_count += state_count
            newest.batch_count += batch_count
            newest.byte_count += byte_count
        else:
            oldest = at_ms if oldest_ms is None else oldest_ms
            self._buckets.append(_Bucket(self.durable, end, state_count, batch_count, byte_count, oldest, at_ms))
        self.durable = end

    def commit(self, position: Position) -> list[tuple[int, int]]:
        """Says what was committed by it: of each bucket how many changes it has, and since when they were durable."""
        self.committed = max(self.committed, position)
        done = []
        while self._buckets and self._buckets[0].end <= self.committed:
            bucket = self._buckets.popleft()
            self._state_count -= bucket.state_count
            done.append((bucket.end - bucket.start - bucket.state_count, bucket.oldest_ms))
        return done

    @property
    def is_behind(self) -> bool:
        """Whether something is durable and not committed: changes, or states alone."""
        return self.durable > self.committed

    @property
    def change_count(self) -> int:
        first = self._buckets[0] if self._buckets else None
        in_doubt = first.state_count if first and first.start < self.committed else 0
        return max(0, self.durable - self.committed - self._state_count + in_doubt)

    @property
    def batch_count(self) -> int:
        return sum(bucket.batch_count for bucket in self._buckets)

    @property
    def byte_count(self) -> int:
        return sum(bucket.byte_count for bucket in self._buckets)

    @property
    def oldest_ms(self) -> int | None:
        return self._buckets[0].oldest_ms if self._buckets else None

    @property
    def newest_ms(self) -> int | None:
        return self._buckets[-1].newest_ms if self._buckets else None


@dataclass(slots=True)
class _Part:
    """Changes of one table that became durable within a short time."""

    end: Position
    changes: int
    bytes: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Lag:
    """What of a table is durable and not yet committed."""

    changes: int
    bytes: int
    seconds: float


class TableLags:
    """The lag of each table, since this server started; counted in parts of time, so that it costs little memory."""

    def __init__(self) -> None:
        self._parts: dict[str, deque[_Part]] = {}

    def add(self, table: str, end: Position, changes: int, byte_count: int, at_ms: int) -> None:
        parts = self._parts.setdefault(table, deque())
        newest = parts[-1] if parts else None
        if newest and (at_ms - newest.since_ms < _PART_MS or len(parts) >= _BUCKETS_MAX):
            newest.end = max(newest.end, end)
            newest.changes += changes
            newest.bytes += byte_count
        else:
            parts.append(_Part(end, changes, byte_count, at_ms))

    def commit(self, position: Position) -> None:
        for parts in self._parts.values():
            while parts and parts[0].end <= position:
                parts.popleft()

    def lags(self, now_ms: int) -> dict[str, Lag]:
        return {table: _lag_of(parts, now_ms) for table, parts in self._parts.items()}


def _lag_of(parts: deque[_Part], now_ms: int) -> Lag:
    oldest_ms = parts[0].since_ms if parts else now_ms
    seconds = max(0, now_ms - oldest_ms) / 1000
    return Lag(sum(part.changes for part in parts), sum(part.bytes for part in parts), seconds)


Published = Callable[[Position, str], None]


class Progress:
    """The lake's progress, and the state of publishing."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.tail = Tail()
        self.tables = TableLags()
        self.table_marks, self.sources = Marks(), Marks()
        self.visibility, self.publish_times = Histogram(), Histogram()
        """From durable to published, change by change; and how long publishes took."""
        self._publishing_since_ms: int | None = None
        self.breaker: CircuitBreakerState = "closed"
        self.is_attached = False
        self.is_flushing = False
        self.last_flush_ms: int | None = None
        self.next_flush_ms: int | None = None
        self.flush_count = 0
        self.failure_count = 0
        self.last_failure = ""
        self.fallback_bytes = 0
        """Bytes taken while the circuit breaker was open."""
        self.flush_wanted = asyncio.Event()
        self.last_durable_ms: int | None = None
        self._failures_in_row = 0
        self._listeners: list[Published] = []
        self._watchers: list[Callable[[], None]] = []
        self._waiters: list[tuple[Position, asyncio.Future[None]]] = []

    def attach(self) -> None:
        """A publisher is at work; until then nothing can become `persisted`."""
        self.is_attached = True

    def detach(self) -> None:
        self.is_attached = False

    def add_durable(
        self, end: Position, batch_count: int, byte_count: int, at_ms: int, *, change_count: int | None = None
    ) -> None:
        self.tail.add(end, batch_count, byte_count, at_ms, change_count=change_count)
        self.last_durable_ms = at_ms
        self._tell_watchers()
        if self.breaker != "closed":
            self.fallback_bytes += byte_count

    def add_tables(
        self,
        counts: Mapping[str, int],
        byte_count: int,
        appended: Appended,
        *,
        stream: StreamId | None = None,
        sequence: int = 0,
    ) -> None:
        """Which tables a durable batch touches; its bytes are shared out by its changes."""
        if not appended.change_count:
            return
        now_ms, total = self._clock_ms(), sum(counts.values())
        for table, count in counts.items():
            self.tables.add(table, appended.end, count, byte_count * count // total, now_ms)
            self.table_marks.add(table, appended.end, count, now_ms)
        if stream is not None:
            self.sources.add(str(stream), appended.end, total, now_ms, sequence=sequence)

    def on_published(self, listener: Published) -> None:
        """Call this with the committed position and the path of its data after each publish."""
        self._listeners.append(listener)

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Call this when more is durable or a flush is wanted: the publisher may have something to do."""
        self._watchers.append(watcher)

    def request_flush(self) -> None:
        self.flush_wanted.set()
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def publish_started(self) -> None:
        self.is_flushing = True
        self._publishing_since_ms = self._clock_ms()
        self.flush_wanted.clear()
        if self.breaker == "open":
            self.breaker = "half-open"

    def published(self, position: Position, path: str) -> None:
        """Everything before `position` is in the Iceberg tables."""
        self.is_flushing = False
        self.breaker, self._failures_in_row, self.fallback_bytes = "closed", 0, 0
        self.last_flush_ms = now_ms = self._clock_ms()
        self.flush_count += 1
        if self._publishing_since_ms is not None:
            self.publish_times.note(max(0, now_ms - self._publishing_since_ms) / 1000)
            self._publishing_since_ms = None
        for change_count, since_ms in self.tail.commit(position):
            self.visibility.note(max(0, now_ms - since_ms) / 1000, change_count)
        self.table_marks.commit(position, now_ms)
        self.sources.commit(position, now_ms)
        self.tables.commit(position)
        for listener in self._listeners:
            listener(position, path)
        waiting, self._waiters = self._waiters, []
        for wanted, done in waiting:
            if wanted > self.tail.committed:
                self._waiters.append((wanted, done))
            elif not done.done():
                done.set_result(None)

    def publish_ended(self) -> None:
        """What was asked for is published, as far as it may be."""
        self.is_flushing = False

    def publish_failed(self, reason: str) -> None:
        """The changes stay in the journal; after a few failures in a row the breaker opens."""
        self.is_flushing = False
        self.failure_count += 1
        self.last_failure = reason
        self._failures_in_row += 1
        if self._failures_in_row >= _FAILURES_MAX or self.breaker == "half-open":
            self.breaker = "open"
        error = FlushError(
            f"publishing failed: {reason}",
            used_fallback=True,
            hint="the changes are safe in the journal and go out later",
        )
        waiting, self._waiters = self._waiters, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(error)

    async def wait_committed(self, position: Position) -> None:
        """Return when everything before `position` is published; raises FlushError when publishing it failed."""
        if self.tail.committed >= position:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((position, done))
        await done
