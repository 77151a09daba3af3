"""Run a coroutine in a test: on a loop of its own, in debug mode, and never for ever."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result], timeout_s: float = 120, *, debug: bool = True) -> Result:
    """asyncio.run with debug on and a bound. Debug is off only where a test sends more than it could."""

    async def bounded() -> Result:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded(), debug=debug)


async def until(is_true: Callable[[], bool]) -> None:
    """Let the others run until this holds; the bound of run() ends a wait in vain."""
    while not is_true():  # noqa: ASYNC110 - the state of others has no event to wait for
        await asyncio.sleep(0.001)


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine: `@asynchronous async def test_...`."""

    @functools.wraps(test)
    def waiting(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs), timeout_s=60)

    return waiting
