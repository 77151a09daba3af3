"""Publishes and upkeep beside each other: who may change the tables now, and whose files no table names yet.

From publish.py, compaction.py and garbage.py.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from dolake.errors import OutcomeUnknown

_DOUBT_S = 600.0
"""A commit that was not answered can still happen as long as the server works on it."""


class Turns:
    """A lock that is fair; not to be taken twice by one thread.

    A plain one would let a busy stream of publishes through for ever, while a compaction waits to land.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._given = 0
        self._called = 0

    def __enter__(self) -> None:
        with self._condition:
            mine = self._given
            self._given += 1
            while self._called != mine:
                self._condition.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._called += 1
            self._condition.notify_all()


class InFlight:
    """Commits under way, and those of which nobody can say what became of them: their files must stay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_s: dict[float, float] = {}
        """When each of them began to write files, and until when it counts."""

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """From the first file to the answer."""
        began_s = time.time()
        with self._lock:
            while began_s in self._until_s:
                began_s -= 1e-3
            self._until_s[began_s] = float("inf")
        try:
            yield
        except OutcomeUnknown:
            with self._lock:
                self._until_s[began_s] = time.time() + _DOUBT_S
            raise
        except BaseException:
            self._end(began_s)
            raise
        self._end(began_s)

    def _end(self, began_s: float) -> None:
        with self._lock:
            del self._until_s[began_s]

    @property
    def since_s(self) -> float:
        """A file that was written before this belongs to none of them."""
        with self._lock:
            now_s = time.time()
            return min([began_s for began_s, until_s in self._until_s.items() if until_s > now_s], default=now_s)
