"""Whose turn it is: so many at a time, the others in their order, and nobody for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dolake.errors import QueryCancelled, TooManyQueries
from dolake.query.slots import Slots
from dolake.settings import QuerySettings
from tests.support.aio import until


def slots(**settings: Any) -> Slots:
    defaults: dict[str, Any] = {"concurrency_max": 1, "queue_max": 2, "queue_wait_max_ms": 5_000}
    return Slots(QuerySettings(**defaults | settings))


async def test_turns_are_given_in_the_order_of_arrival() -> None:
    queue, served = slots(queue_max=10), list[int]()

    async def ask(number: int) -> None:
        await queue.take(number)
        served.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(ask(number))
            await asyncio.sleep(0)
        for count in range(1, 4):
            await until(lambda count=count: len(served) == count)  # type: ignore[misc]
            assert (queue.running, queue.queued) == (1, 4 - count)
            queue.give_back()
    assert served == [0, 1, 2, 3]


async def test_a_full_queue_says_so_at_once() -> None:
    queue = slots(queue_max=0)
    await queue.take("one")
    with pytest.raises(TooManyQueries, match="1 queries run and 0 wait") as caught:
        await queue.take("two")
    assert caught.value.retryable
    queue.give_back()
    await queue.take("three")


async def test_nobody_waits_for_longer_than_is_allowed() -> None:
    queue = slots(queue_wait_max_ms=20)
    await queue.take("one")
    with pytest.raises(TooManyQueries, match="20 ms"):
        await queue.take("two")
    assert (queue.running, queue.queued) == (1, 0)


async def test_who_leaves_the_queue_takes_no_turn() -> None:
    queue = slots()
    await queue.take("one")
    waiting = asyncio.ensure_future(queue.take("two"))
    await until(lambda: queue.queued == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    queue.give_back()
    assert (queue.running, queue.queued) == (0, 0)


async def test_who_leaves_in_the_moment_of_its_turn_gives_it_back() -> None:
    queue = slots()
    await queue.take("one")
    waiting = asyncio.ensure_future(queue.take("two"))
    await until(lambda: queue.queued == 1)
    queue.give_back()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert queue.running == 0


async def test_who_waits_can_be_refused() -> None:
    queue = slots()
    await queue.take("one")
    waiting = asyncio.ensure_future(queue.take("two"))
    await until(lambda: queue.queued == 1)
    queue.refuse("two", QueryCancelled("never mind"))
    with pytest.raises(QueryCancelled):
        await waiting
    assert (queue.running, queue.queued) == (1, 0)


async def test_more_turns_serve_those_who_wait() -> None:
    queue = slots()
    await queue.take("one")
    waiting = asyncio.ensure_future(queue.take("two"))
    await until(lambda: queue.queued == 1)
    queue.follow(QuerySettings(concurrency_max=2))
    await waiting
    assert queue.running == 2
