"""A thread that reads the journal on while nobody asks, so that who asks finds most of it read.

From reader.py, one for the tail of statements and one for that of look-ups. Promise: an idle lake costs no look at the
catalog; what goes wrong here is told to who asks, and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dolake.errors import NotFound, Unavailable
from dolake.positions import Position

_FOLLOW_S, _FOLLOW_IDLE_S, _AFTER_ERROR_S = 0.02, 0.2, 1.0


class Follower:
    """Calls `follow` with what is published and what is durable, for as long as the latter is ahead."""

    def __init__(
        self,
        name: str,
        published: Callable[[], Position],
        durable: Callable[[], Position],
        follow: Callable[[Position, Position], None],
    ) -> None:
        self._published, self._durable, self._follow = published, durable, follow
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        rests_at: Position | None = None
        while not self._is_over.wait(_FOLLOW_S if rests_at is None else _FOLLOW_IDLE_S):
            try:
                if (durable := self._durable()) == rests_at:
                    continue  # all of it was published
                rests_at = None
                published = self._published()
                self._follow(published, durable)
                rests_at = durable if published >= durable else None
            except (NotFound, Unavailable, OSError):
                self._is_over.wait(_AFTER_ERROR_S)  # who asks gets to know
