"""What every process of a server under load costs: CPU seconds, and memory over time.

From every benchmark that runs a server. A Meter reads those of the server, the process that answers SQL, the
pipeline, Java, Spark's Python workers and this process. Promise: the figures are by kind of process, whoever comes and
goes meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Self

import psutil

_SEEN_EVERY_S = 0.5
_MINUTE_S = 60.0
_PARTS = 12


class Meter:
    """CPU seconds and memory by kind of process: `root` (the one given) and all below it, and this one as `client`.

    Of a process that ends, what it used after the last look is not seen, so use it with `watching` where workers come
    and go. Memory is resident memory; what forked workers share is counted in each of them. Its own part is without
    pages of files, such as those of a key index, which the system may drop at any time.
    """

    def __init__(self, pid: int, *, root: str = "server") -> None:
        self._root, self._own, self._name = psutil.Process(pid), psutil.Process(), root
        self._lock = threading.Lock()
        self._kinds: dict[psutil.Process, str] = {}
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._began_s = time.monotonic()
        self.memory: list[tuple[float, dict[str, int]]] = []
        """Of each look the seconds since the start, and the bytes by kind."""
        self.memory_own: list[tuple[float, dict[str, int]]] = []
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self.look()
        with self._lock:
            self._first, self._began_s = dict(self._last), time.monotonic()
            self.memory, self.memory_own = [], []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def cpu_s(self) -> dict[str, float]:
        """Used since the start, by kind."""
        self.look()
        found: dict[str, float] = {}
        for process, used in self._last.items():
            kind = self._kinds[process]
            found[kind] = found.get(kind, 0.0) + used - self._first.get(process, 0.0)
        return {kind: round(used, 2) for kind, used in sorted(found.items())}

    def memory_mb(self, start_s: float = 0.0, end_s: float = float("inf"), *, is_own: bool = False) -> dict[str, float]:
        """The mean between two moments, by kind."""
        memory = self.memory_own if is_own else self.memory
        looks = [found for at_s, found in memory if start_s <= at_s <= end_s] or [{}]
        kinds = sorted({kind for found in looks for kind in found})
        return {kind: round(sum(found.get(kind, 0) for found in looks) / len(looks) / 1e6, 1) for kind in kinds}

    def look(self) -> None:
        with self._lock:
            resident: Counter[str] = Counter()
            own: Counter[str] = Counter()
            for process in (self._own, self._root, *self._below()):
                with contextlib.suppress(psutil.Error):
                    with process.oneshot():
                        kind, times, memory = self._kind_of(process), process.cpu_times(), process.memory_info()
                    self._kinds[process], self._last[process] = kind, times.user + times.system
                    resident[kind] += memory.rss
                    own[kind] += memory.rss - getattr(memory, "shared", 0)  # Linux alone says
            self.memory.append((self.seconds, resident))
            self.memory_own.append((self.seconds, own))

    @contextlib.contextmanager
    def watching(self, every_s: float = _SEEN_EVERY_S) -> Iterator[Self]:
        """Look again and again, from a thread."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(every_s):
                self.look()

        thread = threading.Thread(target=watch, name="meter", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            is_over.set()
            thread.join()

    def _below(self) -> list[psutil.Process]:
        try:
            return self._root.children(recursive=True)
        except psutil.Error:
            return []

    def _kind_of(self, process: psutil.Process) -> str:
        if process == self._own:
            return "client"
        if process == self._root:
            return self._name
        command = process.cmdline()
        if command and os.path.basename(command[0]) == "java":  # noqa: PTH119 - no file, a word
            return "java"
        if "dolake.query" in command:
            return "query"
        is_worker = any(word in ("dolake.pipeline.daemon", "pyspark.daemon") for word in command)
        return "workers" if is_worker else "pipeline"


def memory_of(meter: Meter, seconds: float) -> dict[str, dict[str, float]]:
    """The means of the first and the last minute, by kind of process; of thirds, where the run is short.

    The ratio is that of their own memory: the pages of the key index's files grow with the table, and may be dropped.
    """
    part = min(_MINUTE_S, seconds / 3)
    first, last = meter.memory_mb(0, part, is_own=True), meter.memory_mb(seconds - part, seconds, is_own=True)
    first_all, last_all = meter.memory_mb(0, part), meter.memory_mb(seconds - part, seconds)
    return {
        kind: {
            "first_own": first[kind],
            "last_own": last.get(kind, 0.0),
            "ratio": round(last.get(kind, 0.0) / first[kind], 3),
            "first": first_all[kind],
            "last": last_all.get(kind, 0.0),
        }
        for kind in first
    }


def memory_over_time(meter: Meter, seconds: float) -> list[dict[str, Any]]:
    """The means of parts of equal length, one after the other."""
    ends = [seconds * number / _PARTS for number in range(_PARTS + 1)]
    return [{"until_s": round(end, 1), **meter.memory_mb(start, end, is_own=True)} for start, end in pairwise(ends)]
