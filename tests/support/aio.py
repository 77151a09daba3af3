"""How a test's coroutines run: until what they wait for is there, and never for ever."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_MARGIN_S = 5.0


def run(work: Coroutine[Any, Any, Result], timeout_s: float = 120, *, debug: bool = True) -> Result:
    """asyncio.run with debug on and a time limit, for a test that is not a coroutine itself.

    Such a test needs a new loop for each example, or it blocks between its coroutines. Debug is off only where a test
    sends more than it could.
    """

    async def in_time() -> Result:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(in_time(), debug=debug)


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a state that has no event. The test's timeout is the limit."""
    while not is_true():  # noqa: ASYNC110 - the state of others has no event to wait for
        await asyncio.sleep(0.001)


def bounded(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The same test, cancelled shortly before pytest-timeout ends it.

    pytest-timeout raises from a signal handler. If that happens in one of asyncio's own callbacks, the callback is lost
    and the test, or the end of its loop, hangs for ever: about one in ten of the tests that wait in until().
    """

    @functools.wraps(test)
    async def in_time(*args: Any, **kwargs: Any) -> None:
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        async with asyncio.timeout(left_s - _MARGIN_S if left_s else None):
            await test(*args, **kwargs)

    return in_time
