"""How far changes have come: what waits, what is committed, and whether publishing works."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.errors import FlushError
from dolake.positions import Position
from dolake.receiver.progress import Progress, Tail
from tests.support.clock import Clock


async def progress_with(durable: Position = 0) -> Progress:
    progress = Progress(Clock())
    if durable:
        progress.add_durable(durable, 1, 100, 1)
    return progress


# --- what waits ------------------------------------------------------------------------------------------------------


def test_nothing_waits_at_first() -> None:
    tail = Tail()
    assert (tail.change_count, tail.batch_count, tail.byte_count) == (0, 0, 0)
    assert tail.oldest_ms is None
    assert tail.newest_ms is None


def test_what_is_durable_and_not_committed_waits() -> None:
    tail = Tail()
    tail.add(10, 2, 1000, 5)
    tail.add(15, 1, 500, 9)
    assert (tail.change_count, tail.batch_count, tail.byte_count) == (15, 3, 1500)
    assert (tail.oldest_ms, tail.newest_ms) == (5, 9)


def test_what_is_committed_waits_no_more() -> None:
    tail = Tail()
    tail.add(10, 2, 1000, 5)
    tail.commit(10)
    assert (tail.change_count, tail.batch_count, tail.byte_count) == (0, 0, 0)
    assert tail.oldest_ms is None


def test_the_count_of_changes_is_exact_also_in_the_middle() -> None:
    tail = Tail()
    tail.add(10, 2, 1000, 5)
    tail.commit(7)
    assert tail.change_count == 3


def test_the_oldest_is_what_waits_and_not_what_was_committed_long_ago() -> None:
    """Small batches in a row, committed behind: or each publish would make the next one due at once."""
    tail = Tail()
    for number in range(1, 1_000):
        tail.add(10 * number, 1, 100, 50 * number)
        tail.commit(10 * (number - 10))
        assert tail.oldest_ms is not None
        assert 50 * number - tail.oldest_ms <= 50 * 10 + 100


def test_a_commit_never_moves_back() -> None:
    tail = Tail()
    tail.add(10, 1, 1, 1)
    tail.commit(8)
    tail.commit(5)
    assert tail.committed == 8


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 700), st.integers(0, 1000), st.integers(0, 100)), max_size=60)
)
def test_the_tail_counts_right_whatever_is_added_and_committed(steps: list[tuple[int, int, int, int]]) -> None:
    tail, durable, committed = Tail(), 0, 0
    batches, sizes = 0, 0
    for now, (changes, batch_count, byte_count, part) in enumerate(steps):
        durable += changes
        batches, sizes = batches + batch_count, sizes + byte_count
        tail.add(durable, batch_count, byte_count, now)
        committed = max(committed, durable * part // 100)
        tail.commit(committed)
        assert tail.change_count == durable - committed
        assert 0 <= tail.batch_count <= batches
        assert 0 <= tail.byte_count <= sizes
        assert (tail.batch_count == 0) == (committed == durable)
        if tail.oldest_ms is not None and tail.newest_ms is not None:
            assert tail.oldest_ms <= tail.newest_ms <= now


def test_a_tail_of_millions_of_batches_costs_little_memory() -> None:
    tail = Tail()
    for end in range(1, 10_000_000, 500):
        tail.add(end, 500, 10, end)
    assert len(tail._buckets) <= 4097
    assert tail.change_count == tail.durable


# --- publishing ------------------------------------------------------------------------------------------------------


async def test_a_publish_is_told_to_all_who_listen() -> None:
    progress = await progress_with(10)
    heard: list[tuple[Position, str]] = []
    progress.on_published(lambda position, path: heard.append((position, path)))
    progress.on_published(lambda position, path: heard.append((position, path)))
    flushing = [progress.is_flushing]
    progress.publish_started()
    flushing.append(progress.is_flushing)
    progress.published(10, "warehouse/default")
    flushing.append(progress.is_flushing)
    assert heard == [(10, "warehouse/default")] * 2
    assert flushing == [False, True, False]
    assert progress.flush_count == 1
    assert progress.last_flush_ms == Clock().now_ms


async def test_a_flush_that_was_asked_for_is_wanted_until_one_starts() -> None:
    progress = await progress_with()
    progress.request_flush()
    await asyncio.wait_for(progress.flush_wanted.wait(), 1)
    progress.publish_started()
    assert not progress.flush_wanted.is_set()
    progress.request_flush()
    progress.published(0, "")
    assert progress.flush_wanted.is_set(), "asked for while another was running: that one may not cover it"


async def test_waiting_for_a_position_ends_when_a_publish_covers_it() -> None:
    progress = await progress_with(20)
    ten, twenty = (asyncio.ensure_future(progress.wait_committed(position)) for position in (10, 20))
    await asyncio.sleep(0)
    progress.published(10, "")
    await ten
    assert not twenty.done()
    progress.published(20, "")
    await twenty
    await progress.wait_committed(15)


async def test_waiting_ends_with_an_error_when_publishing_fails_and_says_that_nothing_is_lost() -> None:
    progress = await progress_with(20)
    waiting = asyncio.ensure_future(progress.wait_committed(20))
    await asyncio.sleep(0)
    progress.publish_failed("no bucket")
    with pytest.raises(FlushError, match="no bucket") as caught:
        await waiting
    assert caught.value.used_fallback
    assert caught.value.retryable
    assert "safe in the journal" in caught.value.hint


async def test_who_stopped_waiting_does_no_harm() -> None:
    progress = await progress_with(20)
    for is_published in (True, False):
        waiting = asyncio.ensure_future(progress.wait_committed(30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if is_published:
            progress.published(20, "")
        else:
            progress.publish_failed("no bucket")


# --- the circuit breaker ---------------------------------------------------------------------------------------------


def failing(progress: Progress, times: int) -> None:
    for _ in range(times):
        progress.publish_started()
        progress.publish_failed("no bucket")


async def test_the_breaker_opens_after_a_few_failures_in_a_row() -> None:
    progress = await progress_with()
    states = []
    for _ in range(3):
        states.append(progress.breaker)
        failing(progress, 1)
    assert states == ["closed"] * 3
    assert progress.breaker == "open"
    assert progress.failure_count == 3
    assert progress.last_failure == "no bucket"


async def test_failures_with_a_success_between_them_do_not_open_the_breaker() -> None:
    progress = await progress_with()
    for _ in range(5):
        failing(progress, 2)
        progress.published(0, "")
    assert progress.breaker == "closed"


async def test_an_open_breaker_is_half_open_while_it_is_tried_and_one_more_failure_opens_it() -> None:
    progress = await progress_with()
    failing(progress, 3)
    states = [progress.breaker]
    progress.publish_started()
    states.append(progress.breaker)
    progress.publish_failed("still no bucket")
    states.append(progress.breaker)
    assert states == ["open", "half-open", "open"]


async def test_one_success_closes_the_breaker_and_empties_the_fallback() -> None:
    progress = await progress_with()
    failing(progress, 3)
    progress.add_durable(5, 1, 400, 1)
    assert progress.fallback_bytes == 400
    progress.publish_started()
    progress.published(5, "")
    assert progress.breaker == "closed"
    assert progress.fallback_bytes == 0


async def test_only_what_is_taken_while_the_breaker_is_open_counts_as_fallback() -> None:
    progress = await progress_with()
    ends = itertools.count(1)
    progress.add_durable(next(ends), 1, 100, 1)
    failing(progress, 2)
    progress.add_durable(next(ends), 1, 100, 1)
    assert progress.fallback_bytes == 0
    failing(progress, 1)
    progress.add_durable(next(ends), 1, 100, 1)
    progress.publish_started()
    progress.add_durable(next(ends), 1, 100, 1)
    assert progress.fallback_bytes == 200


async def test_a_publisher_attaches_and_detaches() -> None:
    progress = await progress_with()
    seen = [progress.is_attached]
    progress.attach()
    seen.append(progress.is_attached)
    progress.detach()
    seen.append(progress.is_attached)
    assert seen == [False, True, False]
