"""How fast to go: what the server suggests. No I/O, no clock.

From conversation.py, which hands on what acks and nacks say and asks before every batch.
"""

from __future__ import annotations

from msgspec import UNSET

from dolake.wire.messages import AckDetails

UTILIZATION_HIGH = 0.7
SHRINK = 0.8
BATCH_EVENTS_MIN = 100


class Pace:
    """The size of the next batch, and how long to wait before it."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._events = float(events_max)
        self._paused_until_s = 0.0

    @property
    def events_max(self) -> int:
        return int(self._events)

    def heed(self, details: AckDetails, now_s: float) -> None:
        """Smaller batches while the server's buffer is filling, larger ones again when it has room."""
        if details.buffer_utilization > UTILIZATION_HIGH:
            self._events = max(self._events * SHRINK, min(BATCH_EVENTS_MIN, self._events_max))
        else:
            self._events = min(self._events / SHRINK, self._events_max)
        if details.suggested_delay_ms is not UNSET:
            self.pause(details.suggested_delay_ms, now_s)

    def pause(self, wait_ms: float, now_s: float) -> None:
        """Send nothing for so long; of two pauses the later end counts."""
        self._paused_until_s = max(self._paused_until_s, now_s + wait_ms / 1000)

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self._paused_until_s - now_s)
