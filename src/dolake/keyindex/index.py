"""The key index of one table, as its writer sees it: look up, stage, promote, merge.

From the pipeline, one writer per table. Before a publish it stages what the publish will do to the keys, under the
snapshot id that the publish will create; after it, it promotes or discards. To view.py, which answers look-ups.
Promise: at every moment of a crash, `open` finds the index of the snapshot that the table has, or says StaleIndex.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dolake.errors import InvalidInput
from dolake.keyindex.datafiles import Block, DataFiles
from dolake.keyindex.disk import Disk
from dolake.keyindex.format import TEMPORARY, Run, open_run, write_run
from dolake.keyindex.hashes import Hashes, checked, no_hashes
from dolake.keyindex.manifest import INDEX, NEXT, Manifest, RunInfo, load_manifest, store_manifest
from dolake.keyindex.merging import ROWS_IN_MEMORY, merge_due, write_merged
from dolake.keyindex.replacing import Moved, replace, spill_rows
from dolake.keyindex.runs import NOT_FOUND, Entries, Places, concatenate, repeated, sort_entries
from dolake.keyindex.spill import PART, Spill
from dolake.keyindex.view import KeyIndexView, info_of

RUN = ".run"
_naming = threading.Lock()
_last_numbers: dict[Path, int] = {}


@dataclass(frozen=True, slots=True)
class Changes:
    """What one publish does: the rows of `upserts` are now where their blocks say, the keys of `deletes` have no row.

    No key may come twice, in one or in both.
    """

    upserts: Sequence[Block] = ()
    deletes: Hashes = field(default_factory=no_hashes)


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge that is written but not in use: `run` has all that is in `replaced`."""

    replaced: tuple[RunInfo, ...]
    run: Run


class KeyIndex:
    """See the module. One thread at a time, but for prepare_merge() and prepare_move()."""

    def __init__(self, folder: Path, view: KeyIndexView, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._view = view
        self._staged: KeyIndexView | None = None
        self._is_merging = False
        self._file_ids = itertools.count(view.manifest.next_file_id)

    @classmethod
    def open(
        cls, folder: Path, snapshot_id: int | None, *, is_verified: bool = True, disk: Disk | None = None
    ) -> KeyIndex:
        """The index of this snapshot, every byte of it checked unless told otherwise; StaleIndex when there is none.

        A table that never had a snapshot (None) is empty and so is its index, which is made here.
        """
        disk = disk or Disk()
        if snapshot_id is None and not (folder / INDEX).exists():
            folder.mkdir(parents=True, exist_ok=True)
            store_manifest(folder / INDEX, Manifest(None), disk)
        view = KeyIndexView.open(folder, snapshot_id)
        if is_verified:
            view.verify()
        if load_manifest(folder / INDEX) != view.manifest:  # the publish succeeded, and then we crashed
            disk.rename(folder / NEXT, folder / INDEX)
            disk.sync_folder(folder)
        sweep(folder, view.manifest, disk)
        return cls(folder, view, disk)

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def snapshot_id(self) -> int | None:
        return self._view.manifest.snapshot_id

    @property
    def row_count(self) -> int:
        """How many keys have a row."""
        return self._view.manifest.row_count

    @property
    def paths(self) -> Mapping[int, str]:
        """The data files that have current rows, by the ids that look_up() answers with."""
        return self._view.paths

    @property
    def view(self) -> KeyIndexView:
        """The index as it is now; it stays so when the index moves on."""
        return self._view

    def look_up(self, hashes: Hashes) -> Places:
        """Where the row of each key is, staged changes left out; NOT_FOUND for a key that has none."""
        return self._view.look_up(hashes)

    def positions_by_path(self, places: Places) -> dict[str, NDArray[np.uint32]]:
        """Group places by data file, positions ascending: what a position delete file holds."""
        return self._view.positions_by_path(places)

    # --- changing with a publish -------------------------------------------------------------------------------------

    def stage(self, changes: Changes, snapshot_id: int) -> None:
        """Write down what a publish that creates this snapshot will do. The index stays as it is until promote()."""
        self._refuse_staged(snapshot_id)
        files = self._draft()
        entries = _sorted_entries(changes, files)
        before = self.look_up(entries.hashes())
        files.add(before.file, -1)
        files.add(entries.file)
        entries = entries.take((entries.file != NOT_FOUND) | (before.file != NOT_FOUND))  # nothing is there to delete
        self._stage([self._write(entries)] if len(entries) else [], files, snapshot_id)

    def prepare_move(self, blocks: Iterable[Block], *, rows_in_memory: int = ROWS_IN_MEMORY) -> Moved:
        """Write where a compaction has put rows: the slow part. Meanwhile another thread may stage and promote."""
        spill = Spill(self._folder, rows_in_memory, self._disk)
        try:
            ids, rows = spill_rows(blocks, self._draft(), spill)
            return Moved(spill.finish(self._new_path()), ids, rows)
        finally:
            spill.close()

    def stage_move(self, moved: Moved, old: Iterable[str], outdated: Sequence[Block], snapshot_id: int) -> None:
        """Stage a compaction: all rows of the old files are where it put them, but for these, whose key has moved on.

        Like stage(), it is undone by discard().
        """
        self._refuse_staged(snapshot_id)
        files = self._draft()
        entries = replace(self._view, moved, old, outdated, files)
        runs = [self._write(entries)] if len(entries) else []
        self._stage([*runs, *([moved.run] if moved.run else [])], files, snapshot_id)

    def stage_rename(self, paths: Mapping[str, str], snapshot_id: int) -> None:
        """Stage that data files were written anew, row for row, under other paths. Undone by discard()."""
        self._refuse_staged(snapshot_id)
        files = self._draft()
        files.rename(paths)
        self._stage([], files, snapshot_id)

    def forget_move(self, moved: Moved) -> None:
        """The compaction is given up before it was staged."""
        self._remove([moved.run.name] if moved.run else [])

    def promote(self) -> None:
        """The publish succeeded: what was staged is the index from now on."""
        if self._staged is None:
            raise InvalidInput("nothing is staged in the key index", hint="stage the changes before the publish")
        self._disk.rename(self._folder / NEXT, self._folder / INDEX)
        self._disk.sync_folder(self._folder)
        self._view, self._staged = self._staged, None

    def discard(self) -> None:
        """The publish failed for certain: forget what was staged, if anything was."""
        if self._staged is None:
            return
        new = {run.name for run in self._staged.runs} - {run.name for run in self._view.runs}
        self._staged = None
        self._disk.remove(self._folder / NEXT)
        self._disk.sync_folder(self._folder)
        self._remove(new)

    def forsake(self) -> None:
        """The index does not tell the truth: whoever opens it next finds none and makes it anew."""
        for name in (INDEX, NEXT):
            self._disk.remove(self._folder / name)
        self._disk.sync_folder(self._folder)

    # --- merging, between publishes ----------------------------------------------------------------------------------

    def merge_due(self) -> tuple[RunInfo, ...]:
        """The runs to merge now, newest first; none when the index is in shape."""
        return _due(self._view.manifest)

    def merge(self, *, rows_max: int | None = None) -> bool:
        """Merge what is due, if anything is, and if it has no more rows than that."""
        if self._is_merging or (rows_max is not None and sum(run.rows for run in self.merge_due()) > rows_max):
            return False
        merged = self.prepare_merge()
        if merged is not None:
            self.finish_merge(merged)
        return merged is not None

    def prepare_merge(self, *, rows_in_memory: int = ROWS_IN_MEMORY, is_whole: bool = False) -> Merged | None:
        """Write what is due as one run: the slow part. Meanwhile another thread may stage, promote and discard.

        With `is_whole` all runs are due, so that nothing is left of keys that have no row.
        """
        view = self._view
        due = _due(view.manifest)
        if is_whole:
            due = view.manifest.runs if len(view.manifest.runs) > 1 else ()
        if not due:
            return None
        self._is_merging = True
        try:
            run = write_merged(
                self._new_path(),
                view.runs[: len(due)],
                drop_tombstones=len(due) == len(view.runs),
                rows_in_memory=rows_in_memory,
                disk=self._disk,
            )
        except BaseException:
            self._is_merging = False
            raise
        return Merged(due, run)

    def finish_merge(self, merged: Merged) -> None:
        """Use the new run in place of the old ones, and only then remove these."""
        self._refuse_staged(None)
        self._is_merging = False
        gone = {info.name for info in merged.replaced}
        runs = self._view.runs
        at = [run.name for run in runs].index(merged.replaced[0].name)
        runs = (*runs[:at], merged.run, *runs[at + len(gone) :])
        view = KeyIndexView(msgspec.structs.replace(self._view.manifest, runs=tuple(map(info_of, runs))), runs)
        store_manifest(self._folder / INDEX, view.manifest, self._disk)
        self._view = view
        self._remove(gone)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _refuse_staged(self, snapshot_id: int | None) -> None:
        if self._staged is not None:
            raise InvalidInput("a change is staged in the key index already", hint="promote or discard it first")
        if snapshot_id is not None and snapshot_id == self.snapshot_id:
            raise InvalidInput(f"the key index has snapshot {snapshot_id} already", hint="each publish creates another")

    def _write(self, entries: Entries) -> Run:
        path = self._new_path()
        write_run(path, [entries], len(entries), self._disk)
        return open_run(path)

    def _draft(self) -> DataFiles:
        """Of its own for each change; numbers of files are given once, whoever asks."""
        return DataFiles(self._view.manifest, self._file_ids)

    def _stage(self, new: Sequence[Run], files: DataFiles, snapshot_id: int) -> None:
        runs = [*new, *self._view.runs]
        view = KeyIndexView(files.manifest(snapshot_id, map(info_of, runs)), runs)
        try:
            store_manifest(self._folder / NEXT, view.manifest, self._disk)
        except OSError:
            self._remove([run.name for run in new])  # a full disk needs the room
            raise
        self._staged = view

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._disk.remove(self._folder / name)

    def _new_path(self) -> Path:
        return new_run_path(self._folder, self._view.manifest)


def new_run_path(folder: Path, manifest: Manifest) -> Path:
    """Never a name that was given in this process: an index that was given up may still be writing under it."""
    with _naming:
        number = max(next_number(manifest), _last_numbers.get(folder, 0) + 1)
        _last_numbers[folder] = number
    return run_path(folder, number)


def run_path(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}{RUN}"


def next_number(manifest: Manifest) -> int:
    """The first number that no run of this manifest has."""
    return max((int(run.name.removesuffix(RUN)) for run in manifest.runs), default=0) + 1


def _due(manifest: Manifest) -> tuple[RunInfo, ...]:
    return manifest.runs[: merge_due([run.rows for run in manifest.runs])]


def sweep(folder: Path, manifest: Manifest, disk: Disk) -> None:
    """Remove our files that this manifest does not name: left by a crash, a failed publish or an earlier index."""
    named = {run.name for run in manifest.runs}
    for path in folder.iterdir():
        if path.name == NEXT or (path.suffix in (RUN, PART, TEMPORARY) and path.name not in named):
            disk.remove(path)


def _sorted_entries(changes: Changes, files: DataFiles) -> Entries:
    """Upserts and tombstones together, in order."""
    hi, lo = checked(changes.deletes)
    tombstones = Entries(hi, lo, np.full(hi.size, NOT_FOUND, np.uint32), np.zeros(hi.size, np.uint32))
    entries = sort_entries(concatenate([*map(files.entries, changes.upserts), tombstones]))
    if repeated(entries).any():
        raise InvalidInput(
            "a key comes twice in one change of the key index", hint="fold the changes of a key to the last"
        )
    return entries
