"""Jobs of upkeep on a server: ask for one and wait, and say what all of them did.

From checks.py, hotkeys.py, soak.py, compact.py and systems.py. Promise: a wait is bounded.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from benchmarks.load import LoadError
from benchmarks.stream import Json, ask
from dolake.cli.child import ChildServer

_COMPACTING = ("files", "deletes")
_OVER = ("done", "failed", "cancelled")
_JOB_TIME_MAX_S = 900.0
_POLL_S = 0.05


def run_job(server: ChildServer, **request: Any) -> Json:
    """Ask for upkeep of `table`, of these `kinds`, or of all; returns the job when it is over."""
    job: Json = ask(server, "/v1/compaction/run", "POST", request)
    give_up_at = time.monotonic() + _JOB_TIME_MAX_S
    while job["state"] not in _OVER:
        if time.monotonic() > give_up_at:
            raise LoadError(f"{job['jobId']} is still {job['state']} after {_JOB_TIME_MAX_S:.0f} s")
        time.sleep(_POLL_S)
        job = ask(server, f"/v1/compaction/jobs/{job['jobId']}")
    return job


def ended_jobs(server: ChildServer, source: str) -> set[str]:
    """The compactions of a source that are over, by their ids."""
    return {
        job["jobId"]
        for job in _jobs(server)
        if job["table"] == source and job["kind"] in _COMPACTING and job["state"] in _OVER
    }


def jobs_of(server: ChildServer) -> Json:
    """What upkeep did in all, how its last jobs ended, and why some failed."""
    jobs, totals = _jobs(server), ask(server, "/v1/compaction/metrics")
    ended = Counter(f"{job['kind']}: {job['state']}" for job in jobs)
    return {
        "running": totals.pop("running"),
        "totals": totals,
        "last_jobs": dict(sorted(ended.items())),
        "longest_ms": max((job["tookMs"] for job in jobs), default=0),
        "failures": sorted({job["reason"] for job in jobs if job["state"] == "failed"}),
    }


def _jobs(server: ChildServer) -> list[Json]:
    found: list[Json] = ask(server, "/v1/compaction/jobs")["jobs"]
    return found
