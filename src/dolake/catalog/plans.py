"""The scans that are being planned, and the plans that were made: bounded in number, in bytes and in age.

From scan_rest.py, on the event loop; the planning itself runs in threads of its own, so that loads and commits do not
wait for it. Promise: what is dropped here can be planned again, because a plan task says how; a plan belongs to the
token and the table that it was made for.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dolake.catalog.errors import NoSuchPlan, ScanTooLarge
from dolake.catalog.scans import Scan
from dolake.errors import Unavailable
from dolake.settings import CatalogSettings

_THREADS = 2
"""Planning is Python's work: more threads would only take turns, and take them from the event loop."""
_WAITING_MAX = 64
_KEPT_MAX = 1_000
_KEPT_MS = 10 * 60 * 1000

Work = Callable[[Callable[[], None]], list[bytes]]
"""Makes the pages; calls its argument now and then, which raises when it is to stop."""


Owner = tuple[str, str]
"""The token's id, and the table's uuid."""


@dataclass(slots=True, eq=False)
class Plan:
    """One plan: on the way, made, or failed."""

    id: str
    owner: Owner
    scan: Scan
    used_ms: int
    done: asyncio.Future[list[bytes]]
    is_cancelled: threading.Event

    @property
    def pages(self) -> list[bytes]:
        """Of a plan that is done; raises what went wrong."""
        return self.done.result()

    @property
    def has_failed(self) -> bool:
        return self.done.done() and (self.done.cancelled() or self.done.exception() is not None)

    @property
    def size(self) -> int:
        return sum(map(len, self.pages)) if self.done.done() and not self.has_failed else 0


class Plans:
    """All plans of the catalog."""

    def __init__(self, settings: CatalogSettings, clock_ms: Callable[[], int]) -> None:
        self.settings, self._clock_ms = settings, clock_ms
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="plan")
        self.outcome_counts: Counter[str] = Counter({"ok": 0})

    def begin(self, owner: Owner, scan: Scan, work: Work, plan_id: str | None = None) -> Plan:
        """Plan in the background, under a new id, or again under the one that it had."""
        self._forget_old()
        if sum(not each.done.done() for each in self._plans.values()) >= _WAITING_MAX:
            raise Unavailable("too many scans are being planned", hint="try again in a moment, or plan in the client")
        if plan_id is None or plan_id in self._plans:
            plan_id = str(uuid.uuid4())
        is_cancelled = threading.Event()
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._make, work, is_cancelled)
        plan = self._plans[plan_id] = Plan(plan_id, owner, scan, self._clock_ms(), done, is_cancelled)
        done.add_done_callback(self._note)
        return plan

    def find(self, plan_id: str, owner: Owner) -> Plan | None:
        self._forget_old()
        plan = self._plans.get(plan_id)
        if plan is None or plan.owner != owner:
            return None
        plan.used_ms = self._clock_ms()
        self._plans.move_to_end(plan_id)
        return plan

    async def wait(self, plan: Plan, wait_ms: int) -> bool:
        """Whether it is done by then. It goes on if whoever waits goes away."""
        if wait_ms:
            await asyncio.wait([plan.done], timeout=wait_ms / 1000)
        return plan.done.done()

    @property
    def kept_count(self) -> int:
        return len(self._plans)

    @property
    def kept_bytes(self) -> int:
        return sum(plan.size for plan in self._plans.values())

    def drop(self, plan: Plan) -> None:
        plan.is_cancelled.set()
        self._plans.pop(plan.id, None)

    async def close(self) -> None:
        for plan in list(self._plans.values()):
            self.drop(plan)
        await asyncio.to_thread(self._threads.shutdown)

    def _make(self, work: Work, is_cancelled: threading.Event) -> list[bytes]:
        give_up_s = time.monotonic() + self.settings.plan_timeout_ms / 1000

        def may_go_on() -> None:
            if is_cancelled.is_set():
                raise NoSuchPlan("the planning was cancelled", hint="plan the scan again")
            if time.monotonic() > give_up_s:
                raise ScanTooLarge(
                    f"planning this scan takes longer than {self.settings.plan_timeout_ms} ms",
                    hint="add a filter, or plan it in the client: scan-planning-mode=client",
                )

        may_go_on()
        return work(may_go_on)

    def _note(self, done: asyncio.Future[list[bytes]]) -> None:
        error = None if done.cancelled() else done.exception()  # looked at, so that asyncio misses nobody who does
        self.outcome_counts["ok" if error is None else getattr(error, "code", "internal_error")] += 1
        self._forget_old()

    def _forget_old(self) -> None:
        """Those that nobody used for long, and then the longest unused until the rest fits."""
        made = [plan for plan in self._plans.values() if plan.done.done()]
        size = self.kept_bytes
        for plan in made:
            is_old = plan.used_ms + _KEPT_MS < self._clock_ms()
            if is_old or size > self.settings.plan_memory_max_bytes or len(self._plans) > _KEPT_MAX:
                size -= plan.size
                del self._plans[plan.id]
