"""When a publish is due."""

from __future__ import annotations

from typing import Any

import msgspec

from dolake.receiver.progress import Tail
from dolake.server.flushing import Pace, publish_due_ms
from dolake.settings import DoLakeConfig

SETTINGS = DoLakeConfig(
    flush_threshold_events=100,
    flush_threshold_bytes=10_000,
    flush_threshold_ms=60_000,
    flush_interval_ms=30_000,
    freshness_target_ms=2_000,
)
NOW_MS = 1_000_000


def due(
    changes: int, *, byte_count: int = 10, since_ms: int = NOW_MS, is_wanted: bool = False, **more: Any
) -> int | None:
    tail = Tail()
    if changes:
        tail.add(changes, 1, byte_count, since_ms)
    settings = msgspec.structs.replace(SETTINGS, **more)
    return publish_due_ms(tail, settings, now_ms=NOW_MS, last_ms=NOW_MS - 1_000, typical_ms=500, is_wanted=is_wanted)


def test_nothing_is_due_while_nothing_waits() -> None:
    assert due(0) is None
    assert due(0, is_wanted=True) is None


def test_a_publish_begins_early_enough_to_meet_the_freshness_target() -> None:
    assert due(1) == NOW_MS + 1_500
    assert due(1, freshness_target_ms=100) == NOW_MS, "a target that cannot be met is due at once"


def test_many_changes_many_bytes_and_a_wish_are_due_at_once() -> None:
    assert due(100) == due(1, byte_count=10_000) == due(1, is_wanted=True) == NOW_MS


def test_age_and_interval_are_upper_bounds() -> None:
    assert due(1, freshness_target_ms=10**6) == NOW_MS + 29_000, "30 s after the last publish"
    assert due(1, freshness_target_ms=10**6, flush_interval_ms=10**6) == NOW_MS + 60_000


def test_states_alone_are_published_like_changes_so_that_no_position_is_waited_for_in_vain() -> None:
    tail = Tail()
    tail.add(1, 1, 10, NOW_MS, change_count=0)
    assert (tail.change_count, tail.is_behind) == (0, True)
    due_ms = publish_due_ms(tail, SETTINGS, now_ms=NOW_MS, last_ms=None, typical_ms=500, is_wanted=False)
    assert due_ms == NOW_MS + 1_500
    tail.commit(1)
    assert publish_due_ms(tail, SETTINGS, now_ms=NOW_MS, last_ms=None, typical_ms=500, is_wanted=True) is None


def test_the_pace_follows_what_publishes_take() -> None:
    pace = Pace(500)
    for _ in range(50):
        pace.note(1_000)
    assert 990 < pace.typical_ms <= 1_000
