"""Speed and waiting times, with the clock in the test's hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dolake.backoff import BackOff
from dolake.client.pace import Pace
from dolake.wire.messages import AckDetails


def details(utilization: float, suggested_delay_ms: int = 0) -> AckDetails:
    return AckDetails(events_processed=1, buffer_utilization=utilization, suggested_delay_ms=suggested_delay_ms)


def test_batches_shrink_while_the_buffer_fills_and_grow_back_when_it_empties() -> None:
    pace = Pace(500)
    pace.heed(details(0.71), 0)
    assert pace.events_max == 400
    for _ in range(20):
        pace.heed(details(0.9), 0)
    assert pace.events_max == 100
    for _ in range(20):
        pace.heed(details(0.7), 0)
    assert pace.events_max == 500


def test_batches_that_are_small_by_choice_do_not_grow_under_pressure() -> None:
    pace = Pace(10)
    pace.heed(details(1.0), 0)
    assert pace.events_max == 10


def test_a_suggested_delay_pauses_until_it_is_over() -> None:
    pace = Pace(500)
    pace.heed(details(0.9, suggested_delay_ms=2000), now_s=10)
    pace.pause(500, now_s=10)
    assert [pace.wait_s(now_s) for now_s in (10, 11.5, 12, 99)] == [2, 0.5, 0, 0]


def test_the_first_try_may_be_at_once_and_the_next_ones_wait_twice_as_long_each() -> None:
    waits = BackOff(1000, first_at_once=True, jitter=lambda: 1.0)
    assert [waits.next_ms() for _ in range(6)] == [0, 100, 200, 400, 800, 1000]
    waits.reset()
    assert waits.next_ms() == 0


@given(jitter=st.floats(0, 1), tries=st.integers(1, 2000))
def test_no_wait_is_longer_than_the_maximum_or_shorter_than_half_of_its_turn(jitter: float, tries: int) -> None:
    waits = BackOff(30_000, first_at_once=False, jitter=lambda: jitter)
    for _ in range(tries):
        wait_ms = waits.next_ms()
        assert 50 <= wait_ms <= 30_000
