"""An index made anew from the table's own rows.

From the pipeline, which reads keys, paths and positions when the index is missing or stale; to index.py, whose index
it returns. Promise: the old manifest stays until the new one replaces it, and memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dolake.keyindex.datafiles import Block, DataFiles
from dolake.keyindex.disk import Disk
from dolake.keyindex.index import KeyIndex, new_run_path, sweep
from dolake.keyindex.manifest import INDEX, Manifest, load_manifest, store_manifest
from dolake.keyindex.merging import ROWS_IN_MEMORY
from dolake.keyindex.spill import Spill
from dolake.keyindex.view import KeyIndexView, info_of


def rebuild(
    folder: Path,
    snapshot_id: int | None,
    blocks: Iterable[Block],
    *,
    rows_in_memory: int = ROWS_IN_MEMORY,
    disk: Disk | None = None,
) -> KeyIndex:
    """Index the live rows of this snapshot, in any order. Damaged when a key has two rows: neither can be the one."""
    disk = disk or Disk()
    folder.mkdir(parents=True, exist_ok=True)
    old = load_manifest(folder / INDEX) or Manifest(None)
    sweep(folder, old, disk)  # a rebuild that did not finish left files, and they take the room of the new ones
    files = DataFiles(Manifest(None, next_file_id=old.next_file_id))
    spill = Spill(folder, rows_in_memory, disk)
    try:
        _add_all(blocks, files, spill)
        run = spill.finish(new_run_path(folder, old))
    finally:
        spill.close()
    runs = [run] if run else []
    view = KeyIndexView(files.manifest(snapshot_id, map(info_of, runs)), runs)
    store_manifest(folder / INDEX, view.manifest, disk)
    sweep(folder, view.manifest, disk)
    return KeyIndex(folder, view, disk)


def _add_all(blocks: Iterable[Block], files: DataFiles, spill: Spill) -> None:
    for block in blocks:
        entries = files.entries(block)
        files.add(entries.file)
        spill.add(entries)
