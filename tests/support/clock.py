"""A clock that is passed in, so that a test decides what time it is."""

from __future__ import annotations


class Clock:
    """Milliseconds that move when a test says so."""

    def __init__(self, now_ms: int = 1_763_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def move(self, by_ms: int) -> None:
        self.now_ms += by_ms
