"""The position deletes of a state table: for each data file one delete file, replaced when more of its rows go.

From publish.py. In a table of format 3 they are deletion vectors, those of a publish in one Puffin file. Promise: a
data file never has two delete files or vectors of ours, so that readers open one and a compaction knows which to take
along. Positions last used are kept in memory, up to a bound; the others are read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dolake.pipeline.arranging import folder_of, mark_of
from dolake.pipeline.files import new_file, read_positions, write_deletes, write_vectors

Json = dict[str, Any]
Positions = NDArray[np.uint32]
_CACHED_MAX = 8_000_000
_NO_FILES: Mapping[str, Json] = {}
_WRITERS = 4
VECTORS_FORMAT_MIN = 3


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What a publish adds and removes; `apply` it when the publish is visible."""

    add: dict[str, Json]
    remove: list[Json]
    positions: dict[str, Positions]
    dropped: Sequence[str] = ()
    """Data files that leave the table, and their delete files with them."""


def union(known: Positions, more: Positions) -> Positions:
    """Both are sorted, and a stable sort knows how to join such runs: half a second less where a table is large."""
    joined = np.concatenate((known, more))
    joined.sort(kind="stable")
    return joined[np.append(True, joined[1:] != joined[:-1])] if len(joined) else joined


class DeleteFiles:
    """The delete files of one table by the data file that they name."""

    def __init__(
        self, location: str, entries: Mapping[str, Sequence[Json]], cold: str = "", format_version: int = 2
    ) -> None:
        self._location = location
        self._has_vectors = format_version >= VECTORS_FORMAT_MIN
        self._places = (location, cold) if cold else (location,)
        """Where data files are. Delete files are all in the first one, because they are replaced again and again."""
        self._entries = {path: list(found) for path, found in entries.items() if found}
        self._positions: OrderedDict[str, Positions] = OrderedDict()
        self._cached = 0

    def plan(
        self,
        gone: Mapping[str, Positions],
        token: str,
        dropped: Sequence[str] = (),
        files: Mapping[str, Json] = _NO_FILES,
    ) -> DeletePlan:
        """Write new delete files, or vectors, that have these positions too.

        `files` are the entries of the data files: a delete file is of the same partition as the file that it names.
        """
        merged = {path: union(self._known(path), positions) for path, positions in gone.items()}
        marks = {path: mark_of(files[path]) if path in files else {} for path in merged}
        add = self._write(merged, token, marks)
        return DeletePlan(add, self._entries_of([*gone, *dropped]), merged, dropped)

    def _write(self, merged: Mapping[str, Positions], token: str, marks: Mapping[str, Json]) -> dict[str, Json]:
        """A delete file for each data file, several at a time, for most of it is waiting; vectors are one file."""
        if not merged:
            return {}
        if self._has_vectors:
            return write_vectors(merged, new_file(self._location, token, kind="puffin"), marks)
        with ThreadPoolExecutor(_WRITERS) as threads:
            targets = [new_file(self._location, token, folder_of(self._places, path)) for path in merged]
            written = threads.map(write_deletes, merged, merged.values(), targets, marks.values())
            return dict(zip(merged, written, strict=True))

    def apply(self, plan: DeletePlan) -> None:
        for path in plan.dropped:
            self._entries.pop(path, None)
            self._cached -= len(self._positions.pop(path, ()))
        for path, entry in plan.add.items():
            self._entries[path] = [entry]
            self._keep(path, plan.positions[path])

    def of(self, path: str) -> Positions:
        """The positions that are deleted in this data file."""
        return self._known(path)

    def _entries_of(self, paths: Iterable[str]) -> list[Json]:
        return [entry for path in paths for entry in self._entries.get(path, ())]

    def _known(self, path: str) -> Positions:
        if path in self._positions:
            self._positions.move_to_end(path)
            return self._positions[path]
        parts = [read_positions(entry) for entry in self._entries.get(path, ())]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint32)

    def _keep(self, path: str, positions: Positions) -> None:
        self._cached += len(positions) - len(self._positions.pop(path, ()))
        self._positions[path] = positions
        while self._cached > _CACHED_MAX and len(self._positions) > 1:
            _, dropped = self._positions.popitem(last=False)
            self._cached -= len(dropped)
