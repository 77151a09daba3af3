"""Which runs to merge and when, and the merge itself in little memory.

From index.py after a publish, and from rebuild.py. Promise: at most RUNS_MAX runs after each merge; the oldest run,
which holds most of the table, is written again only when a quarter of its size has come on top, so that a key costs
the same in a large table as in a small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.disk import Disk
from dolake.keyindex.format import Run, open_run, write_run
from dolake.keyindex.runs import Entries, merge

RUNS_MAX = 8
BOTTOM_SHARE = 4
"""The oldest run takes part when the others have more than 1/4 of its rows."""

ROWS_IN_MEMORY = 1_000_000


def merge_due(rows: Sequence[int]) -> int:
    """How many of the newest runs to merge now, given their sizes newest first; 0 when none."""
    if len(rows) > 1 and sum(rows[:-1]) * BOTTOM_SHARE > rows[-1]:
        return len(rows)
    if len(rows) <= RUNS_MAX:
        return 0
    # A run takes part when the newer ones have together grown to its size: each time a row is written again, it
    # lands in a run twice as large, so it is written about log2(table / flush) times before it reaches the bottom.
    above = [index for index in range(1, len(rows) - 1) if sum(rows[:index]) >= rows[index]]
    return max(above, default=1) + 1


def write_merged(path: Path, runs: Sequence[Run], *, drop_tombstones: bool, rows_in_memory: int, disk: Disk) -> Run:
    """Merge runs, newest first, into a new file, after every byte of them was found intact."""
    for run in runs:
        run.verify()  # else damage would get a fresh checksum
    pieces = merged_pieces(runs, drop_tombstones=drop_tombstones, rows_max=rows_in_memory)
    write_run(path, pieces, sum(len(run.entries) for run in runs), disk)
    return open_run(path)


def merged_pieces(runs: Sequence[Run], *, drop_tombstones: bool, rows_max: int) -> Iterator[Entries]:
    """The merged entries in ascending order, of at most `rows_max` entries at a time."""
    starts = [0] * len(runs)
    for border in [*_borders(runs, rows_max), None]:
        parts = [_part(run, start, border) for run, start in zip(runs, starts, strict=True)]
        starts = [start + len(part) for start, part in zip(starts, parts, strict=True)]
        yield merge(parts, drop_tombstones=drop_tombstones)


def _part(run: Run, start: int, border: np.uint64 | None) -> Entries:
    """A copy of the entries from `start` up to this value of hi, or to the end. The run's pages are given back."""
    entries = run.entries
    end = len(entries) if border is None else int(np.searchsorted(entries.hi, border, side="right"))
    part = Entries(*(column[start:end].copy() for column in entries.columns()))
    run.forget()
    return part


def _borders(runs: Sequence[Run], rows_max: int) -> NDArray[np.uint64]:
    """Values of hi that cut all runs into ranges of at most `rows_max` rows together.

    Of each run every `step`-th value is looked at. Between two borders lie 3k of these, for k runs, and each run can
    add what lies between two of its own: (3k + k) * step rows at most. Equal values are never cut apart.
    """
    step = max(rows_max // (4 * len(runs)), 1)
    seen = np.sort(np.concatenate([_every(run, step) for run in runs]))
    return np.unique(seen[3 * len(runs) :: 3 * len(runs)])


def _every(run: Run, step: int) -> NDArray[np.uint64]:
    values = run.entries.hi[::step].copy()
    run.forget()  # a page per value, and what the kernel maps around it: together nearly the whole column
    return values
