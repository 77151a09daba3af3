"""How long a failed log-in waits for its answer: longer with each one from the same address. Pure; the clock is passed.

From server/auth.py. Nobody guesses 256 bits; this keeps a broken or hostile client from filling logs and cores. Who
shows a valid token is never slowed, also when he shares the address. Promise: bounded memory, however many addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

DELAY_S, DELAY_MAX_S = 0.05, 2.0
_FORGET_AFTER_S = 60.0
_ADDRESSES_MAX = 10_000
_WAITING_MAX = 1_000


@dataclass(slots=True)
class _Row:
    count: int
    last_s: float


class Failures:
    """Failed log-ins by address."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self.waiting = 0
        """How many wait for their answer now."""

    def note(self, address: str, now_s: float) -> float:
        """Count one, and say how many seconds its answer waits."""
        row = self._rows.pop(address, None)
        if row is None or now_s - row.last_s > _FORGET_AFTER_S:
            row = _Row(0, now_s)
        row.count, row.last_s = row.count + 1, now_s
        self._rows[address] = row
        if len(self._rows) > _ADDRESSES_MAX:
            self._rows.popitem(last=False)
        # Each one that waits is a connection that we hold for him: there is a bound to that, too.
        return 0.0 if self.waiting >= _WAITING_MAX else min(DELAY_MAX_S, DELAY_S * 2 ** min(row.count - 1, 10))
