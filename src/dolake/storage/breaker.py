"""A circuit breaker for a store that says nothing: one request finds out whether it is back, the others need not wait.

From s3.py, around each request. A request to a store that hangs takes all its tries and their timeouts; with one after
the other every thread of a room would soon do nothing else, and what needs no store would stand behind them.
Promise: a store that answers, however badly, closes it at once; one that is back is found within a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from dolake.errors import StoreUnavailable

_LOOK_S = 1.0


class Breaker:
    """Of one process and one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = self._is_probing = False
        self._closed_until_s = 0.0

    @contextlib.contextmanager
    def passing(self, location: str) -> Iterator[None]:
        """The block asks the store; StoreUnavailable at once where another one is just finding out."""
        is_probe = self._enter(location)
        try:
            yield
        except StoreUnavailable:
            self._leave(is_probe=is_probe, is_silent=True)
            raise
        except BaseException:
            self._leave(is_probe=is_probe, is_silent=False)
            raise
        self._leave(is_probe=is_probe, is_silent=False)

    def _enter(self, location: str) -> bool:
        with self._lock:
            if not self._is_open:
                return False
            if self._is_probing or time.monotonic() < self._closed_until_s:
                hint = "it is asked again every second; what needs no store goes on"
                raise StoreUnavailable(
                    f"the store did not answer lately, so it was not asked for {location}", hint=hint
                )
            self._is_probing = True
            return True

    def _leave(self, *, is_probe: bool, is_silent: bool) -> None:
        with self._lock:
            if is_probe:
                self._is_probing = False
            if is_silent:
                self._is_open, self._closed_until_s = True, time.monotonic() + _LOOK_S
            else:
                self._is_open = False
