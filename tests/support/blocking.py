"""For tests that block: servers on a loop of their own, and waiting without one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

Served = TypeVar("Served")


@contextmanager
def in_a_thread(server: AbstractAsyncContextManager[Served]) -> Iterator[Served]:
    """`with in_a_thread(scripted_peer(script)) as peer`: it runs until the end of the block."""
    ready = threading.Event()
    found: list[tuple[Served, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with server as served:
            leave = asyncio.Event()
            found.append((served, asyncio.get_running_loop(), leave))
            ready.set()
            await leave.wait()

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(lambda: asyncio.run(serve(), debug=True))
        assert ready.wait(10)
        served, loop, leave = found[0]
        try:
            yield served
        finally:
            loop.call_soon_threadsafe(leave.set)
            serving.result(10)


def wait_until(is_true: Callable[[], object], timeout_s: float = 30) -> None:
    """Wait for a state that has no event."""
    give_up_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_s, f"not within {timeout_s} s"
        time.sleep(0.01)


def client_threads() -> list[threading.Thread]:
    """What a blocking client has started and not ended."""
    return [thread for thread in threading.enumerate() if thread.name == "dolake client"]
