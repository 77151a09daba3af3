"""Small keys with known hashes, and a disk that shows the folder as a crash at each of its steps would leave it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dolake.keyindex import NOT_FOUND, Block, Hashes, KeyIndex, KeyIndexView
from dolake.keyindex.disk import Disk
from dolake.keyindex.runs import Entries, sort_entries

Place = tuple[str, int]
"""Path of a data file, and a position in it."""

LAST = 2**64 - 1
HIGH_HALVES = (0, 1, 2**32, 2**63 - 1, 2**63, LAST - 1, LAST)


def hashes_of(keys: Iterable[int]) -> Hashes:
    """Hashes that collide in their first half all the time, at both ends of its range and in the middle."""
    numbers = list(keys)
    hi = np.array([HIGH_HALVES[key % len(HIGH_HALVES)] for key in numbers], np.uint64)
    return Hashes(hi, np.array([LAST - key for key in numbers], np.uint64))


def block(path: str, rows: Mapping[int, int]) -> Block:
    """A block with the position of each key."""
    return Block(path, hashes_of(rows), np.array(list(rows.values()), np.int64))


def entries(*rows: tuple[int, int, int, int]) -> Entries:
    """A sorted run of (hi, lo, file, position)."""
    columns = np.array(rows, dtype=object).reshape(-1, 4).T
    hi, lo = columns[0].astype(np.uint64), columns[1].astype(np.uint64)
    return sort_entries(Entries(hi, lo, columns[2].astype(np.uint32), columns[3].astype(np.uint32)))


def places(index: KeyIndex | KeyIndexView, keys: Iterable[int]) -> dict[int, Place]:
    """What the index says of these keys; keys without a row are left out."""
    numbers = list(keys)
    found = index.look_up(hashes_of(numbers))
    return {
        key: (index.paths[int(file)], int(position))
        for key, file, position in zip(numbers, found.file, found.position, strict=True)
        if file != NOT_FOUND
    }


class CrashDisk(Disk):
    """Before each step, a copy of the folder as a power failure would leave it: what was not synced is garbage."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.images: list[Path] = []
        self._folder = folder
        self._target = images
        self._unsynced: set[int] = set()

    def photograph(self) -> None:
        image = self._target / f"{len(self.images):04d}"
        self.images.append(image)
        shutil.copytree(self._folder, image)
        for path in self._folder.iterdir():
            if path.stat().st_ino in self._unsynced:
                (image / path.name).write_bytes(b"garbage")

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        self._unsynced.add(os.fstat(descriptor).st_ino)
        self.photograph()
        super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.photograph()
        super().sync(descriptor)
        self._unsynced.discard(os.fstat(descriptor).st_ino)

    def rename(self, source: Path, target: Path) -> None:
        self.photograph()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.photograph()
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        self.photograph()
        super().sync_folder(folder)
