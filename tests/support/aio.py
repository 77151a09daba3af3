"""Run a coroutine in a test: on a loop of its own, in debug mode, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result], timeout_s: float = 30) -> Result:
    """asyncio.run with debug on and a bound."""

    async def bounded() -> Result:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded(), debug=True)


async def until(is_true: Callable[[], bool]) -> None:
    """Let the others run until this holds; the bound of run() ends a wait in vain."""
    while not is_true():  # noqa: ASYNC110 - the state of others has no event to wait for
        await asyncio.sleep(0.001)
