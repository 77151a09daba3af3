"""What a commit leaves for after its answer: hints for readers without a catalog, and old files that may go.

From tables.py, which hands it over while it holds the table's lock. Promise: one thread does it in the order it came;
who hands over more than that thread can do waits; what fails is logged and harms no commit; `close` does all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)
_WAITING_MAX = 100
LATER_S = 0.02
"""Long enough for the answer to go out first, and short enough for nobody to miss a hint."""


class Afterwards:
    """See the module."""

    def __init__(self, waiting_max: int = _WAITING_MAX) -> None:
        self._free = threading.BoundedSemaphore(waiting_max)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog-after")

    def do(self, work: Callable[[], object], *, delay_s: float = 0.0) -> None:
        """Hand this over. It must not wait for a lock that somebody holds who hands over something, too."""
        self._free.acquire()
        self._thread.submit(self._run, work, time.monotonic() + delay_s)

    def settle(self) -> None:
        """Return when all that was handed over until now is done."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        self._thread.shutdown()

    def _run(self, work: Callable[[], object], due_s: float) -> None:
        try:
            time.sleep(max(0.0, due_s - time.monotonic()))
            work()
        except Exception:
            logger.warning("what follows a commit failed", exc_info=True)
        finally:
            self._free.release()
