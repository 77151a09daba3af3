"""How much the server has to do: 1.0 is as much as it can.

From lake.py, which starts it; to connection.py, which refuses batches while it is too much. The larger of two counts:

    lag        how late the event loop is, measured ten times a second, over `load_shedding_lag_ms`; falls slowly, so
               that those who were sent away do not come back all at once
    in flight  bytes received and not yet on disk, over `max_buffer_size`; at 1.0 the server stops reading anyway,
               so it only makes strangers give way to those who wait

How full the journal is does not count: acks suggest a delay for that, and `buffer_full` ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dolake.settings import SettingsStore

EVERY_S = 0.1
_FALL = 0.8


class Pressure:
    """Measures while it is started."""

    def __init__(self, settings: SettingsStore, in_flight_bytes: Callable[[], int]) -> None:
        self.lag_ms = 0.0
        self._settings, self._in_flight_bytes = settings, in_flight_bytes
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def load(self) -> float:
        current = self._settings.current
        in_flight = min(1.0, self._in_flight_bytes() / current.lake.max_buffer_size)
        return max(self.lag_ms / current.rate_limit.load_shedding_lag_ms, in_flight)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + EVERY_S
        self._timer = loop.call_at(self._due_s, self._measure, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag_ms = max((loop.time() - self._due_s) * 1000, self.lag_ms * _FALL)
        self.start()
