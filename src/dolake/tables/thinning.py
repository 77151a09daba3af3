"""Which snapshots of a table may go: all stay for a while, then one a minute, one an hour, one a day. Pure.

From pipeline/maintenance.py, which lets them go, and catalog/facts.py, which shows what is due. Promise: the newest
snapshot and those that a branch or tag names stay; what was current at the end of a minute, hour or day is what stays
of it, so that `AS OF` a full minute, hour or day is exact in all tables for as long as that step lasts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
"""Each divides the next: the last of an hour is the last of its minute, so nothing that is wanted later goes early."""
_AGE_MIN_MS = 1_000

Moment = tuple[int, int]
"""A time in ms, and the id of the snapshot that became the current one."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Up to which age all snapshots are kept, one a minute, one an hour, one a day; and how many at most."""

    all_ms: int
    minutely_ms: int
    hourly_ms: int
    daily_ms: int
    count_max: int

    def width_ms(self, age_ms: int) -> int | None:
        """One snapshot in each such stretch of time is kept; all of them where it is 0, and none where it is None."""
        if age_ms > self.daily_ms:
            return None
        limits = ((self.all_ms, 0), (self.minutely_ms, _MINUTE_MS), (self.hourly_ms, _HOUR_MS))
        return next((width for limit, width in limits if age_ms <= limit), _DAY_MS)


@dataclass(frozen=True, slots=True)
class History:
    """When which snapshot became the current one, oldest first, and those that branches and tags name."""

    moments: Sequence[Moment]
    named: Collection[int] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> History:
        """As Iceberg's metadata has it. What was never current, or is not in the log any more, has its own time."""
        times = {each["snapshot-id"]: each["timestamp-ms"] for each in metadata.get("snapshots") or ()}
        log = [(each["timestamp-ms"], each["snapshot-id"]) for each in metadata.get("snapshot-log") or ()]
        logged = {id_ for _, id_ in log}
        others = [(time_ms, id_) for id_, time_ms in times.items() if id_ not in logged]
        moments = sorted((*others, *(each for each in log if each[1] in times)), key=lambda each: each[0])
        return cls(moments, frozenset(ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()))

    @property
    def snapshot_count(self) -> int:
        return len({id_ for _, id_ in self.moments})


def snapshots_to_remove(history: History, steps: Steps, now_ms: int) -> list[int]:
    """Those that no step keeps, then those that are too many; oldest first."""
    if not history.moments:
        return []
    always = {*history.named, history.moments[-1][1]}
    last_ms: dict[int, int] = {}  # when each became the current one for the last time, in that order
    for time_ms, id_ in history.moments:
        last_ms.pop(id_, None)
        last_ms[id_] = time_ms
    kept = always | set(_kept_by_steps(history.moments, steps, now_ms))
    line = [(time_ms, id_) for id_, time_ms in last_ms.items() if id_ in kept]
    kept.difference_update(_most_crowded(line, always, steps, now_ms))
    return [id_ for id_ in last_ms if id_ not in kept]


def _kept_by_steps(moments: Sequence[Moment], steps: Steps, now_ms: int) -> Iterable[int]:
    """The last of each stretch, whatever its own age: what is newer than the stretch's end replaces it nowhere."""
    for at, (time_ms, id_) in enumerate(moments):
        width_ms = steps.width_ms(now_ms - time_ms)
        if width_ms is None:
            continue
        next_ms = moments[at + 1][0] if at + 1 < len(moments) else None
        if not width_ms or next_ms is None or next_ms // width_ms != time_ms // width_ms:
            yield id_


def _most_crowded(line: Sequence[Moment], always: Collection[int], steps: Steps, now_ms: int) -> list[int]:
    """So many that no more are left than may be: each time the one whose neighbours' ages differ least, as a ratio.

    So the past gets coarser with its age, and not shorter. The oldest counts as if one of the greatest age stood
    before it. Which goes first does not depend on how many must go.
    """
    excess = len(line) - steps.count_max
    if excess <= 0:
        return []
    ages_ms = (steps.daily_ms, *(max(0, now_ms - time_ms) for time_ms, _ in line))  # of line[at - 1], at `at`
    ages = [math.log(age_ms + _AGE_MIN_MS) for age_ms in ages_ms]
    left, right = list(range(-1, len(line))), list(range(1, len(line) + 2))

    def gap(at: int) -> float:
        return ages[left[at]] - ages[right[at]]

    heap = [(gap(at), at) for at in range(1, len(line)) if line[at - 1][1] not in always]
    heapq.heapify(heap)
    gone: list[int] = []
    while heap and len(gone) < excess:
        known, at = heapq.heappop(heap)
        if known != gap(at):  # a neighbour went meanwhile
            heapq.heappush(heap, (gap(at), at))
            continue
        gone.append(line[at - 1][1])
        right[left[at]], left[right[at]] = right[at], left[at]
    return gone
