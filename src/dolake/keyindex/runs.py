"""Sorted runs of index entries as numpy arrays: sort, look up, merge. No files here.

From view.py, which looks keys up; from merging.py, which merges. Promise: the newest run that has a key decides, and
keys that share their first 64 bits are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes

NOT_FOUND = 0xFFFFFFFF
"""In place of a file id: in an answer the key has no row, in a run the key was deleted (a tombstone)."""


class Places(NamedTuple):
    """Where rows are: file id and row position, in the order of the question; file is NOT_FOUND where there is none."""

    file: NDArray[np.uint32]
    position: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Entries:
    """Four columns of equal length. In a run they ascend by (hi, lo), and no key comes twice."""

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]
    file: NDArray[np.uint32]
    position: NDArray[np.uint32]

    def __len__(self) -> int:
        return self.hi.size

    def take(self, which: slice | NDArray[Any]) -> Entries:
        """These rows, by slice, mask or row numbers."""
        return Entries(self.hi[which], self.lo[which], self.file[which], self.position[which])

    def columns(self) -> tuple[NDArray[Any], ...]:
        """In the order in which they stand in a file."""
        return self.hi, self.lo, self.file, self.position

    def hashes(self) -> Hashes:
        return Hashes(self.hi, self.lo)


def look_up(runs: Sequence[Entries], hashes: Hashes) -> Places:
    """Find each hash in the newest run that has it; runs come newest first."""
    order = np.argsort(hashes.hi)  # in order, neighbouring questions touch neighbouring pages
    hi, lo = hashes.hi[order], hashes.lo[order]
    file = np.full(hi.size, NOT_FOUND, np.uint32)
    position = np.zeros(hi.size, np.uint32)
    waiting = np.arange(hi.size)
    for run in runs:
        rows = find(run, hi[waiting], lo[waiting])
        is_found = rows >= 0
        answered, rows = waiting[is_found], rows[is_found]
        file[answered], position[answered] = run.file[rows], run.position[rows]
        waiting = waiting[~is_found]
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return Places(file[back], position[back])


def look_up_one(runs: Sequence[Entries], hi: np.uint64, lo: np.uint64) -> tuple[int, int]:
    """The same for a single hash, where numpy's arrays of one cost more than the search: file and position."""
    for run in runs:
        at = int(run.hi.searchsorted(hi))
        while at < len(run) and run.hi[at] == hi:
            if run.lo[at] == lo:
                return int(run.file[at]), int(run.position[at])
            at += 1
    return NOT_FOUND, 0


def find(run: Entries, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The row of each hash in this run, -1 where it is missing."""
    rows = np.full(hi.size, -1, np.int64)
    at = np.searchsorted(run.hi, hi)
    asked = np.arange(hi.size)
    while True:
        # A second turn is for a hash that shares its first half with a smaller one: in practice none.
        is_near = at < len(run)
        asked, at = asked[is_near], at[is_near]
        is_near = run.hi[at] == hi[asked]
        asked, at = asked[is_near], at[is_near]
        is_same = run.lo[at] == lo[asked]
        rows[asked[is_same]] = at[is_same]
        if is_same.all():
            return rows
        asked, at = asked[~is_same], at[~is_same] + 1


def sort_entries(entries: Entries) -> Entries:
    """Sort by (hi, lo); entries of one key stay in the order in which they came."""
    ordered = entries.take(np.argsort(entries.hi, kind="stable"))
    is_tied = ordered.hi[1:] == ordered.hi[:-1]
    if not np.any(is_tied & (ordered.lo[1:] != ordered.lo[:-1])):
        return ordered
    # Different keys with equal first halves. Sorting by both halves takes three times as long, so it is for these only.
    return ordered.take(np.lexsort((ordered.lo, ordered.hi)))


def concatenate(parts: Sequence[Entries]) -> Entries:
    """One after the other; at least one."""
    return Entries(
        np.concatenate([part.hi for part in parts]),
        np.concatenate([part.lo for part in parts]),
        np.concatenate([part.file for part in parts]),
        np.concatenate([part.position for part in parts]),
    )


def merge(runs: Sequence[Entries], *, drop_tombstones: bool) -> Entries:
    """One run with what look_up() finds in all of these. Tombstones may go only when no older run is left out."""
    ordered = sort_entries(concatenate(runs))
    is_kept = ~repeated(ordered)
    if drop_tombstones:
        is_kept &= ordered.file != NOT_FOUND
    return ordered.take(is_kept)


def repeated(ordered: Entries) -> NDArray[np.bool_]:
    """Of sorted entries, those whose key the entry before them has too."""
    is_repeated = np.zeros(len(ordered), np.bool_)
    is_repeated[1:] = (ordered.hi[1:] == ordered.hi[:-1]) & (ordered.lo[1:] == ordered.lo[:-1])
    return is_repeated
