"""Rows move to other data files while their content stays: what a compaction does to the index.

From index.py, which stages the outcome. Promise: an entry moves only if it still is in one of the old files. A row that
was changed after the compaction read it keeps its newer place, and the caller learns which copies are outdated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.datafiles import Block, DataFiles
from dolake.keyindex.spill import Spill
from dolake.keyindex.view import KeyIndexView


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a compaction did to the index.

    `outdated` are rows of the new files whose key has meanwhile moved or gone: the same commit must delete them.
    `left_count` current rows of the old files were in no block: it must be 0 if the old files leave the table.
    """

    moved_count: int
    outdated: Mapping[str, NDArray[np.uint32]]
    left_count: int


def move_rows(
    view: KeyIndexView, old: set[str], blocks: Iterable[Block], files: DataFiles, spill: Spill
) -> Replacement:
    """Put the entries that move into `spill`, and count them in `files`."""
    old_ids = files.known(old)
    outdated: defaultdict[str, list[NDArray[np.uint32]]] = defaultdict(list)
    for block in blocks:
        entries = files.entries(block)
        before = view.look_up(block.hashes)
        is_moved = np.isin(before.file, old_ids)
        files.add(before.file[is_moved], -1)
        files.add(entries.file[is_moved])
        spill.add(entries.take(is_moved))
        if not is_moved.all():
            outdated[block.path].append(entries.position[~is_moved])
    late = {path: np.sort(np.concatenate(parts)) for path, parts in outdated.items()}
    return Replacement(spill.rows, late, files.rows_of(old_ids))
