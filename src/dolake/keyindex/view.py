"""An index opened for reading: a manifest and its mapped runs. Any process may have one, beside the writer.

From index.py, which replaces its view with each change; from the query process, which opens its own. Promise: a view
answers for exactly one snapshot, for as long as it is held, and never from files that another manifest names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dolake.keyindex.errors import stale
from dolake.keyindex.format import Run, open_run
from dolake.keyindex.hashes import Hashes, checked
from dolake.keyindex.manifest import INDEX, NEXT, Manifest, RunInfo, load_manifest
from dolake.keyindex.runs import NOT_FOUND, Places, look_up, look_up_one

_OPENS_MAX = 100


class KeyIndexView:
    """Look up keys as of one snapshot."""

    def __init__(self, manifest: Manifest, runs: Sequence[Run]) -> None:
        self.manifest = manifest
        self.runs = tuple(runs)
        self.paths = {file.id: file.path for file in manifest.files}

    @classmethod
    def open(cls, folder: Path, snapshot_id: int | None) -> KeyIndexView:
        """Open the index of this snapshot without changing anything; StaleIndex when there is none."""
        for _ in range(_OPENS_MAX):
            manifest = find_manifest(folder, snapshot_id)
            try:
                return cls(manifest, open_runs(folder, manifest))
            except FileNotFoundError:  # the writer has merged meanwhile: the manifest of now names other runs
                continue
        raise stale(f"the key index in {folder.name} lacks a run that it names")

    def look_up(self, hashes: Hashes) -> Places:
        """Where the row of each key is; NOT_FOUND for a key that has none."""
        places = look_up([run.entries for run in self.runs], checked(hashes))
        self._check(set(np.unique(places.file).tolist()))
        return places

    def look_up_one(self, hashes: Hashes) -> tuple[int, int]:
        """File and position of a single key; the file is NOT_FOUND where it has none."""
        hi, lo = checked(hashes)
        file, position = look_up_one([run.entries for run in self.runs], hi[0], lo[0])
        self._check({file})
        return file, position

    def _check(self, files: set[int]) -> None:
        if not files - {NOT_FOUND} <= self.paths.keys():
            raise stale("the key index points to a data file that it does not list")

    def positions_by_path(self, places: Places) -> dict[str, NDArray[np.uint32]]:
        """Group places by data file, positions ascending: what a position delete file holds."""
        order = np.lexsort((places.position, places.file))
        file, position = places.file[order], places.position[order]
        ids, starts = np.unique(file, return_index=True)
        groups = zip(ids.tolist(), np.split(position, starts[1:]), strict=False)
        return {self.paths[id_]: group for id_, group in groups if id_ != NOT_FOUND}

    def verify(self) -> None:
        """Read every byte; StaleIndex when one is not as it was written."""
        for run in self.runs:
            run.verify()


def find_manifest(folder: Path, snapshot_id: int | None) -> Manifest:
    """The manifest of this snapshot. It is still called `next` between the publish and its promotion."""
    for name in (INDEX, NEXT, INDEX):  # once more, for the writer may have promoted between our two looks
        manifest = load_manifest(folder / name)
        if manifest is not None and manifest.snapshot_id == snapshot_id:
            return manifest
    raise stale(f"there is no key index of snapshot {snapshot_id} in {folder.name}")


def open_runs(folder: Path, manifest: Manifest) -> list[Run]:
    return [_open_named(folder, info) for info in manifest.runs]


def info_of(run: Run) -> RunInfo:
    return RunInfo(run.name, len(run.entries), run.checksum)


def _open_named(folder: Path, info: RunInfo) -> Run:
    run = open_run(folder / info.name)
    if info_of(run) != info:
        raise stale(f"{info.name} is not the run that the manifest names")
    return run
