"""How long to wait before the next try. No I/O, no clock.

From the client, after a server refused or went away, and from the server, before it starts a child process again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

BACK_OFF_BASE_MS = 100

_jitter = random.SystemRandom().random


class BackOff:
    """Waits that double up to a maximum, each shortened by chance, so that many clients do not come back as one."""

    def __init__(self, wait_max_ms: int, *, first_at_once: bool, jitter: Callable[[], float] = _jitter) -> None:
        self._wait_max_ms = wait_max_ms
        self._start = -1 if first_at_once else 0
        self._jitter = jitter
        self._attempt = self._start

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was waited for since the last success."""
        return self._attempt == self._start

    def next_ms(self) -> float:
        attempt, self._attempt = self._attempt, self._attempt + 1
        if attempt < 0:
            return 0.0
        wait_ms = min(self._wait_max_ms, BACK_OFF_BASE_MS * 2.0 ** min(attempt, 32))
        return wait_ms * (1 + self._jitter()) / 2

    def reset(self) -> None:
        self._attempt = self._start
