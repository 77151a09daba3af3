"""One lock for each name, there only as long as somebody holds it or waits for it.

From tables.py, whose changes of one table take turns.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from dolake.catalog.base import Name


class NameLocks:
    """See the module."""

    def __init__(self) -> None:
        self._locks: dict[Name, tuple[threading.Lock, int]] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.contextmanager
    def hold(self, names: Sequence[Name]) -> Iterator[None]:
        """All of them, in an order that everybody keeps: so nobody waits for who waits for him."""
        with contextlib.ExitStack() as stack:
            for name in sorted(set(names), key=lambda each: (each.namespace, each.name)):
                stack.enter_context(self._hold_one(name))
            yield

    @contextlib.contextmanager
    def _hold_one(self, name: Name) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(name) or (threading.Lock(), 0)
            self._locks[name] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = lock, users - 1
