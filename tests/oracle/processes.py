"""Who is alive: the processes of a server and of its pipeline, found by the session that each of them leads.

From driver.py, before and after a crash. The pipeline leads a session of its own, and Java, Spark's Python daemon and
its workers stay in it, so what a dead pipeline left behind is found without guessing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

_MODULE = "dolake.pipeline"


def pipeline_of(server_pid: int) -> int | None:
    """The pipeline process of this server, if it has one now."""
    for child in psutil.Process(server_pid).children():
        try:
            if _MODULE in child.cmdline():
                return child.pid
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def left_of(leaders: Iterable[int], wait_s: float) -> list[str]:
    """What is still alive of these sessions after so long; waits no longer than it must."""
    sessions = set(leaders)
    give_up_at = time.monotonic() + wait_s
    while (alive := _alive(sessions)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return alive


def _alive(sessions: set[int]) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
