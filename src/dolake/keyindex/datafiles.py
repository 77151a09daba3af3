"""The table's data files by number, and how many rows of each are current.

From index.py and rebuild.py, which prepare a manifest with it. Promise: a number stands for one file for ever, or for
another one that has the same rows at the same places; a file leaves the manifest when its last current row has moved or
gone, so the list does not grow with the past.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dolake.errors import InvalidInput
from dolake.keyindex.errors import stale
from dolake.keyindex.hashes import Hashes, checked
from dolake.keyindex.manifest import DataFile, Manifest, RunInfo
from dolake.keyindex.runs import NOT_FOUND, Entries

POSITION_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one data file: the hashes of their keys and their positions in the file."""

    path: str
    hashes: Hashes
    positions: NDArray[Any]


class DataFiles:
    """A draft: the files of a manifest, with what one change adds and takes."""

    def __init__(self, manifest: Manifest, ids: Iterator[int] | None = None) -> None:
        self.next_id = manifest.next_file_id
        self._new_ids = itertools.count(self.next_id) if ids is None else ids
        self._paths = {file.id: file.path for file in manifest.files}
        self._ids = {file.path: file.id for file in manifest.files}
        self._rows = {file.id: file.rows for file in manifest.files}

    def entries(self, block: Block) -> Entries:
        """The block's rows as entries, its file numbered; not counted yet, not sorted."""
        hi, lo = checked(block.hashes)
        positions = np.asarray(block.positions)
        if positions.size != hi.size:
            raise InvalidInput(f"{block.path}: hashes and positions differ in number", hint="give one of each per row")
        if positions.size and not (
            positions.dtype.kind in "iu" and 0 <= positions.min() <= positions.max() <= POSITION_MAX
        ):
            raise InvalidInput(
                f"{block.path}: a position is no number of a row", hint="positions are integers from 0 to 2^32 - 1"
            )
        file = np.full(hi.size, self._id_of(block.path), np.uint32)
        return Entries(hi, lo, file, positions.astype(np.uint32))

    def known(self, paths: set[str]) -> NDArray[np.uint32]:
        """The numbers of those of these files that have current rows."""
        return np.array(sorted(self._ids[path] for path in paths if path in self._ids), np.uint32)

    def add(self, ids: NDArray[np.uint32], sign: int = 1) -> None:
        """Count one current row more for each of these, or with sign -1 one less; NOT_FOUND is passed over."""
        for id_, count in zip(*np.unique(ids[ids != NOT_FOUND], return_counts=True), strict=True):
            self._rows[int(id_)] = self._rows.get(int(id_), 0) + sign * int(count)

    def rows_of(self, ids: NDArray[np.uint32]) -> int:
        return sum(self._rows[int(id_)] for id_ in ids)

    def replace(self, old: NDArray[np.uint32], new: Mapping[str, int], rows: Mapping[str, int]) -> None:
        """The old files have no current row any more, and the new ones, numbered elsewhere, so many."""
        self._rows |= dict.fromkeys(map(int, old), 0)
        for path, id_ in new.items():
            self._enter(path, id_)
            self._rows[id_] = rows[path]

    def rename(self, paths: Mapping[str, str]) -> None:
        """Files that were written anew, row for row: the new one has the number of the old one."""
        for old, new in paths.items():
            if (id_ := self._ids.pop(old, None)) is not None:
                self._ids[new], self._paths[id_] = id_, new

    def manifest(self, snapshot_id: int | None, runs: Iterable[RunInfo]) -> Manifest:
        """A manifest with the files that have current rows."""
        files = self._listed()
        return Manifest(snapshot_id, tuple(runs), files, self.next_id, sum(file.rows for file in files))

    def _listed(self) -> tuple[DataFile, ...]:
        if any(rows < 0 or id_ not in self._paths for id_, rows in self._rows.items()):
            raise stale("the key index does not agree with its own list of data files")
        return tuple(DataFile(id_, self._paths[id_], rows) for id_, rows in self._rows.items() if rows)

    def _id_of(self, path: str) -> int:
        if path not in self._ids:
            self._enter(path, next(self._new_ids))
        return self._ids[path]

    def _enter(self, path: str, id_: int) -> None:
        self._ids[path], self._paths[id_], self._rows[id_] = id_, path, 0
        self.next_id = max(self.next_id, id_ + 1)
