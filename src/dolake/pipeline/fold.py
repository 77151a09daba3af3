"""Fold changes to the last one per key: what a table's state becomes, whatever happened in between.

From tasks.py, which folds a slice, and publish.py, which folds slices together. Pure numpy on key hashes. Promise:
after folding, each key stands once, with the outcome of its last change in journal order: a row, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes

GONE = -1
"""In place of a row number: the key has no row any more."""
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What changes did to keys, in journal order before folding: `rows` holds a row's number, or GONE."""

    hashes: Hashes
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def outcomes(keys: Hashes, is_delete: NDArray[np.bool_], previous: Hashes, previous_of: NDArray[np.int64]) -> Outcomes:
    """One outcome per change, and one more where a change moved a row away from its previous key.

    Change i is row i. `previous_of` says which change each previous key belongs to; that key is gone just before it.
    """
    rows = np.where(is_delete, GONE, np.arange(len(is_delete), dtype=np.int64))
    if not len(previous_of):
        return Outcomes(keys, rows)
    hi, lo = (np.insert(own, previous_of, old) for own, old in zip(keys, previous, strict=True))
    return Outcomes(Hashes(hi, lo), np.insert(rows, previous_of, GONE))


def fold(changes: Outcomes) -> Outcomes:
    """The last outcome of each key, in journal order of these last changes."""
    hi, lo = changes.hashes
    order = np.lexsort((lo, hi))  # stable, so equal keys stay in journal order
    hi, lo = hi[order], lo[order]
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[:-1] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    last = np.sort(order[is_last])
    return Outcomes(Hashes(changes.hashes.hi[last], changes.hashes.lo[last]), changes.rows[last])


def join(parts: Sequence[Outcomes]) -> Outcomes:
    """Parts one after the other, in journal order; a row's number says its part, too (see `rows_of_part`)."""
    hi = np.concatenate([part.hashes.hi for part in parts])
    lo = np.concatenate([part.hashes.lo for part in parts])
    rows = [np.where(part.rows < 0, GONE, part.rows | (number << _ROW_BITS)) for number, part in enumerate(parts)]
    return Outcomes(Hashes(hi, lo), np.concatenate(rows))


def rows_of_part(joined: Outcomes, number: int) -> Outcomes:
    """Those that are rows of this part, with their numbers there."""
    return _where(joined, joined.rows >> _ROW_BITS == number, _ROW_MASK)


def gone(changes: Outcomes) -> Hashes:
    """The keys that have no row any more."""
    return _where(changes, changes.rows == GONE, GONE).hashes


def _where(changes: Outcomes, chosen: NDArray[np.bool_], mask: int) -> Outcomes:
    hi, lo = changes.hashes
    return Outcomes(Hashes(hi[chosen], lo[chosen]), changes.rows[chosen] & mask)
