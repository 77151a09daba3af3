"""Whose turn it is: so many queries at a time, so many that wait, and nobody for long.

From worker.py, on its event loop. Promise: first come, first served; who cannot be served soon is told at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from dolake.errors import DoLakeError, TooManyQueries
from dolake.settings import QuerySettings

_HINT = "try again; query.concurrency_max and query.queue_max say how many there may be"


class Slots:
    """Turns of queries."""

    def __init__(self, settings: QuerySettings) -> None:
        self._settings = settings
        self.running = 0
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def follow(self, settings: QuerySettings) -> None:
        self._settings = settings
        self._serve()

    async def take(self, who: Hashable) -> None:
        """Wait for a turn; `give_back` ends it."""
        if self.running < self._settings.concurrency_max and not self._waiting:
            self.running += 1
            return
        if len(self._waiting) >= self._settings.queue_max:
            raise TooManyQueries(f"{self.running} queries run and {self.queued} wait already", hint=_HINT)
        turn = self._waiting[who] = asyncio.get_running_loop().create_future()
        wait_ms = self._settings.queue_wait_max_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await turn
        except TimeoutError:
            self._withdraw(who, turn)
            raise TooManyQueries(f"no query ended within {wait_ms} ms", hint=_HINT) from None
        except BaseException:
            self._withdraw(who, turn)
            raise

    def refuse(self, who: Hashable, error: DoLakeError) -> None:
        """Who waits need not any more."""
        turn = self._waiting.pop(who, None)
        if turn and not turn.done():
            turn.set_exception(error)

    def give_back(self) -> None:
        self.running -= 1
        self._serve()

    def _withdraw(self, who: Hashable, turn: asyncio.Future[None]) -> None:
        self._waiting.pop(who, None)
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.give_back()  # it came in the moment of giving up

    def _serve(self) -> None:
        while self._waiting and self.running < self._settings.concurrency_max:
            turn = self._waiting.pop(next(iter(self._waiting)))
            if not turn.done():
                self.running += 1
                turn.set_result(None)
