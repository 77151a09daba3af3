"""Ends queries: one that takes too long, one that nobody waits for any more, and all of them when memory runs out.

From engine.py and job.py, which have a Stop for each query; to worker.py, which hears of a query that does not stop.
Promise: a query is told to stop again and again until it does, because a wish that comes before DuckDB has begun is
lost; within STUCK_AFTER_S it has stopped, or somebody is told that it has not. One that waits for a store cannot be
interrupted and ends by itself: then somebody is told that it is late, and that it is stuck only when the store's own
time is over, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from dolake.errors import QueryOutOfMemory, QueryStopped, QueryTimeout

STUCK_AFTER_S = 5.0
STUCK_OUTSIDE_AFTER_S = 60.0
"""Reading the tail or the metadata cannot be interrupted, ends by itself, and is of use to the next query."""
_LOOK_S = 0.02
_LOOK_IDLE_S = 1.0
_TIMEOUT_HINT = "ask for less, or give it more time with timeoutMs"
_MEMORY_HINT = "ask for fewer or shorter values; query.memory_max_bytes is the bound of all queries together"


class Stop:
    """The end of one query: asked for in any thread, obeyed in the query's own."""

    def __init__(self, timeout_ms: int | None = None) -> None:
        self.timeout_ms = timeout_ms
        self._deadline_s: float | None = None
        self._interrupt: Callable[[], None] | None = None
        self._asking = threading.Lock()
        self.error: QueryStopped | None = None
        """Why it is to end; None as long as it may go on."""
        self._asked_s = 0.0
        self._is_told_late = self._is_told_stuck = False

    def begin(self) -> None:
        """Its time runs from now on."""
        self._deadline_s = None if self.timeout_ms is None else time.monotonic() + self.timeout_ms / 1000

    def ask(self, error: QueryStopped) -> None:
        """End it; of several reasons the first one counts."""
        with self._asking:
            if self.error is None:
                self.error, self._asked_s = error, time.monotonic()
            if self._interrupt:
                self._interrupt()

    def check(self) -> None:
        """For the steps between two calls of DuckDB."""
        if self.error:
            raise self.error

    @contextlib.contextmanager
    def reaching(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """While DuckDB is at work, this is how to end it."""
        self.check()
        self._interrupt = interrupt
        try:
            yield
        finally:
            with self._asking:  # nobody interrupts what comes next on this connection
                self._interrupt = None

    def look(self, now_s: float) -> None:
        """Ask where that is due, and once more where it was asked."""
        if self.error is None and self._deadline_s is not None and now_s >= self._deadline_s:
            self.ask(QueryTimeout(f"the query took longer than {self.timeout_ms} ms", hint=_TIMEOUT_HINT))
        elif self.error:
            self.ask(self.error)

    def is_late(self, now_s: float) -> bool:
        """True once, when whoever asked should not wait any longer."""
        if self.error is None or self._is_told_late or now_s - self._asked_s < STUCK_AFTER_S:
            return False
        self._is_told_late = True
        return True

    def is_stuck(self, now_s: float, store_s: float = 0.0) -> bool:
        """True once, when it had time enough to stop, also where the store takes its time."""
        patience_s = store_s + (STUCK_AFTER_S if self._interrupt else STUCK_OUTSIDE_AFTER_S)
        if self.error is None or self._is_told_stuck or now_s - self._asked_s < patience_s:
            return False
        self._is_told_stuck = True
        return True


class Watch:
    """A thread that looks at all queries while there are any, and at the memory of this process."""

    def __init__(
        self,
        *,
        memory_max_bytes: int = 2**63,
        on_stuck: Callable[[Stop], None] = lambda _: None,
        on_late: Callable[[Stop], None] = lambda _: None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self.memory_max_bytes = memory_max_bytes
        """More than this ends every query; half as much again, or as much while none is at work, is told `on_full`."""
        self.store_s = 0.0
        """How long a request to the store may take, with all its tries; 0 where there is none."""
        self._on_stuck, self._on_late, self._on_full = on_stuck, on_late, on_full
        self._stops: set[Stop] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._process = psutil.Process()
        self._thread = threading.Thread(target=self._run, name="query-watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def over(self, stop: Stop) -> Iterator[Stop]:
        """Watch this query until the end of the block."""
        stop.begin()
        with self._changed:
            self._stops.add(stop)
            self._changed.notify()
        try:
            yield stop
        finally:
            with self._changed:
                self._stops.discard(stop)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def resident_bytes(self) -> int:
        """What this process has in memory."""
        return int(self._process.memory_info().rss)

    def _run(self) -> None:
        while not self._is_closed:
            stops = self._wait()
            self._look_at_memory(stops)
            now_s = time.monotonic()
            for stop in stops:
                stop.look(now_s)
                if stop.is_stuck(now_s, self.store_s):
                    self._on_stuck(stop)
                elif self.store_s and stop.is_late(now_s):
                    self._on_late(stop)

    def _wait(self) -> list[Stop]:
        """The queries at work, after a moment."""
        with self._changed:
            self._changed.wait(_LOOK_S if self._stops else _LOOK_IDLE_S)
            return list(self._stops)

    def _look_at_memory(self, stops: list[Stop]) -> None:
        resident = self.resident_bytes()
        if resident <= self.memory_max_bytes:
            return
        for stop in stops:
            stop.ask(QueryOutOfMemory("the queries at work took more memory than they may", hint=_MEMORY_HINT))
        if not stops or resident > 1.5 * self.memory_max_bytes:
            self._on_full()  # it is not given back, or it grows faster than queries can be stopped
