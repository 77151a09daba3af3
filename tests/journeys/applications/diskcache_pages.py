"""A cache of diskcache: it sets pragmas, has triggers of its own, keeps counters, and evicts what is old."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from counting import Writes, main
from diskcache import Cache


def begin(path: str, writes: Writes) -> None:
    """The cache's file is `cache.db` in its folder."""
    with Cache(str(Path(path).parent), eviction_policy="least-recently-used", statistics=True) as cache:
        for number in range(50):
            writes.do(lambda number=number: cache.set(f"page {number}", {"number": number}))


def work(path: str, writes: Writes) -> None:
    with Cache(str(Path(path).parent)) as cache:
        for number in range(150):
            writes.do(lambda number=number: cache.set(number, "text " * (number % 40), tag=f"tag {number % 3}"))
            writes.do(lambda number=number: cache.get(f"page {number % 50}"))
        writes.do(lambda: cache.set(b"bytes", b"\x00" * 1000, expire=0.000001))
        writes.do(lambda: cache.set(("a", 1), 1.5))
        for number in range(40):
            writes.do(lambda: cache.incr("counter"))
            writes.do(lambda number=number: cache.delete(number))
        with cache.transact():
            for number in range(30):
                writes.do(lambda number=number: cache.add(f"added {number}", number))
        writes.do(lambda: cache.evict("tag 1"))
        writes.do(cache.expire)
        writes.do(lambda: cache.push("first", prefix="queue"))
        writes.do(lambda: cache.pull(prefix="queue"))


if __name__ == "__main__":
    main({"begin": begin, "work": work})
