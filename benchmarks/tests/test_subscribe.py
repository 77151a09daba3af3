"""The benchmark of subscriptions, small: it counts what it says, and finds what is missing."""

from __future__ import annotations

import pytest

from benchmarks.subscribe import Load, _wrong, run_subscribe_bench


@pytest.mark.chaos
def test_every_subscriber_gets_exactly_its_changes() -> None:
    load = Load(
        subscribers=24, tables=2, rate_events_s=200, seconds=1.0, warm_up_s=0.5, batch_events=20, has_pipeline=False
    )
    report = run_subscribe_bench(load)
    assert report["wrong"] == 0
    assert report["delivered_events"] > 0
    assert report["ack_to_delivery_ms"]["p99"] > 0


def test_a_gap_a_repeat_and_other_bytes_are_found() -> None:
    wish = {"tables": ["t"]}
    sent = {"t": [1, 2, 3]}
    first = {"wish": wish, "count": 3, "crc": 7, "numbers": [1, 2, 3]}
    same = {"wish": wish, "count": 3, "crc": 7, "numbers": None}
    assert _wrong([first, same], sent) == 0
    assert _wrong([first, same | {"crc": 8}], sent) == 1
    assert _wrong([first, same | {"count": 2}], sent) == 1
    assert _wrong([first | {"numbers": [1, 3]}, same], sent) == 2
    assert _wrong([first | {"numbers": [1, 2, 2, 3]}], sent) == 1
