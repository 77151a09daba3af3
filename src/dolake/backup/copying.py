"""Bytes from here to there: counted, checked on the way, and on the disk before anybody relies on them.

From take.py and restore.py. Promise: a file has its name only when it is whole and synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from dolake.errors import Unavailable

_CHUNK_BYTES = 1 << 20
_PART = ".part"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes are done, and how many there are as far as is known."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was written."""

    size: int
    crc32c: int


class Meter:
    """Counts bytes for whoever watches."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._what = ""
        self.done = self.total = 0

    def begin(self, what: str, total: int) -> None:
        self._what, self.done, self.total = what, 0, total
        self._progress(what, 0, total)

    def add(self, count: int) -> None:
        self.done += count
        self._progress(self._what, self.done, self.total)


def copy_file(source: Path, target: Path, meter: Meter) -> Copied:
    """Copy a file under its whole length."""
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return copy_bytes(descriptor, os.fstat(descriptor).st_size, target, meter)
    finally:
        os.close(descriptor)


def copy_bytes(descriptor: int, length: int, target: Path, meter: Meter) -> Copied:
    """Copy the first bytes of an open file; shorter where the file is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + _PART)
    crc, done = 0, 0
    with part.open("wb", buffering=0) as written:
        while done < length and (piece := os.pread(descriptor, min(_CHUNK_BYTES, length - done), done)):
            written.write(piece)
            crc = google_crc32c.extend(crc, piece)
            done += len(piece)
            meter.add(len(piece))
        os.fsync(written.fileno())
    part.replace(target)
    return Copied(done, crc)


def checksum(path: Path, meter: Meter) -> Copied:
    """Read a file to its end."""
    crc, done = 0, 0
    with path.open("rb", buffering=0) as opened:
        while piece := opened.read(_CHUNK_BYTES):
            crc = google_crc32c.extend(crc, piece)
            done += len(piece)
            meter.add(len(piece))
    return Copied(done, crc)


def require_room(folder: Path, wanted_bytes: int) -> None:
    """Say at once that the disk is too small, and not after an hour."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes:
        raise Unavailable(
            f"{folder} has {free:,} bytes free, and {wanted_bytes:,} are needed",
            hint="free some space there, or name another folder",
        )


def sync_folders(root: Path) -> None:
    """Make the names of all files below durable."""
    for folder, _, _ in os.walk(root):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
