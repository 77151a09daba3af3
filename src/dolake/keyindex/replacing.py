"""Rows move to other data files while their content stays: what a compaction does to the index, in two steps.

From index.py. The first step is slow, and nobody waits for it: the moved rows become a run of their own. The second is
taken while nothing else changes the table: keys that have moved on meanwhile get an entry on top of that run. So it
costs what has changed, and not what was compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dolake.errors import Damaged
from dolake.keyindex.datafiles import Block, DataFiles
from dolake.keyindex.format import Run
from dolake.keyindex.hashes import Hashes
from dolake.keyindex.runs import Entries, sort_entries
from dolake.keyindex.spill import Spill
from dolake.keyindex.view import KeyIndexView


@dataclass(frozen=True, slots=True)
class Moved:
    """The rows of new data files, as a run that is written but not in use."""

    run: Run | None
    ids: Mapping[str, int]
    rows: Mapping[str, int]


def spill_rows(blocks: Iterable[Block], files: DataFiles, spill: Spill) -> tuple[dict[str, int], dict[str, int]]:
    """Put all rows into `spill`; returns each file's number and how many rows it has."""
    ids: dict[str, int] = {}
    rows: dict[str, int] = {}
    for block in blocks:
        entries = files.entries(block)
        if len(entries):
            ids[block.path] = int(entries.file[0])
            rows[block.path] = rows.get(block.path, 0) + len(entries)
            spill.add(entries)
    return ids, rows


def replace(
    view: KeyIndexView, moved: Moved, old: Iterable[str], outdated: Sequence[Block], files: DataFiles
) -> Entries:
    """Count the new files in place of the old ones; returns where the keys of the outdated rows are now.

    Damaged when that does not add up: then a row would be lost, or come back.
    """
    old_ids = files.known(set(old))
    rows = dict(moved.rows)
    for block in outdated:
        rows[block.path] = rows.get(block.path, 0) - len(block.positions)
    left = files.rows_of(old_ids)
    if left != sum(rows.values()):
        raise Damaged(
            f"{left} current rows were in the old files, and {sum(rows.values())} are in the new ones",
            hint="the compaction is given up; look with `dolake verify`",
        )
    files.replace(old_ids, moved.ids, rows)
    hi, lo = (
        np.concatenate([np.empty(0, np.uint64), *(block.hashes[part] for block in outdated)]) for part in range(2)
    )
    places = view.look_up(Hashes(hi, lo))
    return sort_entries(Entries(hi, lo, places.file, places.position))
