"""Folding that goes on: each key's last outcome so far, and which rows of which chunk are still current.

From table_tail.py, chunk by chunk in journal order. Pure numpy. Promise: after each chunk the same as if all of them
were folded at once (pipeline/fold.py), at the price of the chunk and a copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes, no_hashes
from dolake.pipeline.fold import GONE, Outcomes, fold

_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Folding:
    """Keys ascend by hash; `_where` has a chunk's number and a row in it, or GONE."""

    def __init__(self) -> None:
        self.touched = no_hashes()
        """Never changed in place: who has it may keep it."""
        self._where: Ints = np.empty(0, np.int64)
        self.kept: list[Bools] = []
        """Of each chunk, which rows are current."""

    @property
    def chunk_count(self) -> int:
        return len(self.kept)

    def add(self, changes: Outcomes, row_count: int) -> None:
        """One chunk more, of so many rows."""
        last = fold(changes)
        order = np.lexsort((last.hashes.lo, last.hashes.hi))
        hi, lo, rows = last.hashes.hi[order], last.hashes.lo[order], last.rows[order]
        kept = np.zeros(row_count, np.bool_)
        kept[rows[rows != GONE]] = True
        where = np.where(rows == GONE, GONE, rows | (self.chunk_count << _ROW_BITS))
        self.kept.append(kept)
        at, is_known = self._find(hi, lo)
        self._let_go(self._where[at[is_known]])
        self._where[at[is_known]] = where[is_known]
        is_new = ~is_known
        if is_new.any():
            # Behind all that are not larger, so that equal halves keep their order.
            places = at[is_new]
            self.touched = Hashes(
                np.insert(self.touched.hi, places, hi[is_new]), np.insert(self.touched.lo, places, lo[is_new])
            )
            self._where = np.insert(self._where, places, where[is_new])

    def _find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> tuple[NDArray[np.intp], Bools]:
        """Where each key is, or belongs."""
        known_hi, known_lo = self.touched
        at = np.searchsorted(known_hi, hi)
        # Keys that share the first half of their hash are next to each other, ascending by the second.
        while True:
            inside = at < len(known_hi)
            behind = np.zeros(len(at), np.bool_)
            behind[inside] = (known_hi[at[inside]] == hi[inside]) & (known_lo[at[inside]] < lo[inside])
            if not behind.any():
                break
            at = at + behind
        is_known = np.zeros(len(at), np.bool_)
        is_known[inside] = (known_hi[at[inside]] == hi[inside]) & (known_lo[at[inside]] == lo[inside])
        return at, is_known

    def _let_go(self, where: Ints) -> None:
        """Rows that a later change replaces."""
        rows = where[where != GONE]
        numbers = rows >> _ROW_BITS
        for number in np.unique(numbers).tolist():
            self.kept[number] = self.kept[number].copy()
            self.kept[number][rows[numbers == number] & _ROW_MASK] = False
