"""Token buckets, and as many of them as memory allows. Pure: the time is always passed in.

From limiter.py. Promise: however many addresses ask, no more than `size_max` are remembered; who is forgotten begins
anew with a full bucket, so forgetting can only be kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MS_PER_S = 1000.0


class TokenBucket:
    """Holds up to `capacity` tokens and is refilled all the time.

    Capacity and rate come with each call, so that a changed setting holds for buckets that exist.
    """

    __slots__ = ("_at_ms", "tokens")

    def __init__(self, tokens: float, now_ms: float) -> None:
        self.tokens = tokens
        self._at_ms = now_ms

    def refill(self, now_ms: float, capacity: int, rate_per_s: float) -> float:
        """Returns what is in it now. A clock that was set back refills nothing, and takes nothing away."""
        passed_ms = max(0.0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self.tokens = min(float(capacity), self.tokens + passed_ms * rate_per_s / MS_PER_S)
        return self.tokens

    def wait_ms(self, wanted: float, rate_per_s: float) -> float:
        """How long until so many are there, if nobody takes any."""
        return max(0.0, wanted - self.tokens) * MS_PER_S / rate_per_s


Kept = TypeVar("Kept")


class Recent(Generic[Kept]):
    """What was used last, by name, up to a number; the one that was used longest ago goes first."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.forgotten_count = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str, make: Callable[[], Kept]) -> Kept:
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
            return found
        while len(self._kept) >= self.size_max:
            self._kept.popitem(last=False)
            self.forgotten_count += 1
        made = self._kept[name] = make()
        return made

    def clear(self) -> None:
        self._kept.clear()
