"""When to publish: a pure rule over what waits, since when, and what the settings say.

From spark_process.py, which asks it after each event. The thresholds of the settings are upper bounds; on most days the
freshness target decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolake.receiver.progress import Tail
from dolake.settings import DoLakeConfig


@dataclass(slots=True)
class Pace:
    """How long publishes take lately, so that the next one begins early enough."""

    typical_ms: float = 500.0

    def note(self, took_ms: int) -> None:
        self.typical_ms += 0.2 * (took_ms - self.typical_ms)


def publish_due_ms(
    tail: Tail, settings: DoLakeConfig, *, now_ms: int, last_ms: int | None, typical_ms: float, is_wanted: bool
) -> int | None:
    """The moment at which the next publish is due; None while nothing waits."""
    if tail.oldest_ms is None or not tail.is_behind:
        return None
    is_full = tail.change_count >= settings.flush_threshold_events or tail.byte_count >= settings.flush_threshold_bytes
    if is_wanted or is_full:
        return now_ms
    return min(
        tail.oldest_ms + settings.flush_threshold_ms,
        tail.oldest_ms + max(0, round(settings.freshness_target_ms - typical_ms)),
        (last_ms or tail.oldest_ms) + settings.flush_interval_ms,
    )
