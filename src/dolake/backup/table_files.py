"""The files of tables, wherever they are, as a backup sees them: by location, copied once, kept under a name of ours.

From take.py and restore.py. A folder's files belong below the home or to an absolute path; a store's belong to their
location, and the backup has their bytes: upkeep removes old files from a store as from a folder, so a backup that only
named them would be none a day later. Promise: FileNotFoundError for one that has gone, from either.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import google_crc32c

from dolake.backup.copying import Copied, Meter, copy_file
from dolake.backup.manifest import StoredFile
from dolake.errors import NotFound
from dolake.storage.base import Storage
from dolake.storage.local import LocalStorage, path_of

if TYPE_CHECKING:
    from dolake.storage.s3 import S3Storage

FILES = "files"
STORE = "s3://"
_CHUNK_BYTES = 1 << 20


class TableFiles(Protocol):
    """Where the tables' files are."""

    storage: Storage

    def read(self, location: str) -> bytes: ...
    def size(self, location: str) -> int: ...
    def place_of(self, location: str) -> tuple[str, str]:
        """Where the file belongs, and where the backup keeps it."""

    def is_kept(self, location: str, known: StoredFile) -> bool:
        """Whether the backup has these very bytes."""

    def copy(self, location: str, target: Path, meter: Meter) -> StoredFile: ...


class FolderFiles:
    """On this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.storage: Storage = LocalStorage(Path("/"))  # tables may be below other roots than the warehouse

    def read(self, location: str) -> bytes:
        return path_of(location).read_bytes()

    def size(self, location: str) -> int:
        return path_of(location).stat().st_size

    def place_of(self, location: str) -> tuple[str, str]:
        path = path_of(location)
        real = Path(os.path.realpath(path.parent)) / path.name
        if real.is_relative_to(self._home):
            place = str(real.relative_to(self._home))
            return place, f"{FILES}/home/{place}"
        return str(real), f"{FILES}/elsewhere{real}"

    def is_kept(self, location: str, known: StoredFile) -> bool:
        stat = path_of(location).stat()
        return (known.size, known.modified_ns) == (stat.st_size, stat.st_mtime_ns)

    def copy(self, location: str, target: Path, meter: Meter) -> StoredFile:
        path, (place, kept) = path_of(location), self.place_of(location)
        modified_ns = path.stat().st_mtime_ns
        copied = copy_file(path, target, meter)
        return StoredFile(place, kept, copied.size, copied.crc32c, modified_ns)


class StoreFiles:
    """In a store."""

    def __init__(self, storage: S3Storage) -> None:
        self.storage: Storage = storage
        self._store = storage

    def read(self, location: str) -> bytes:
        with _gone_as_on_a_disk():
            return self._store.read(location)

    def size(self, location: str) -> int:
        with _gone_as_on_a_disk():
            return self._store.size(location)

    def place_of(self, location: str) -> tuple[str, str]:
        place = self._store.resolve(location)
        return place, f"{FILES}/store/{place.removeprefix(STORE)}"

    def is_kept(self, location: str, known: StoredFile) -> bool:
        """Files of tables are written once, under names that are given once."""
        return True

    def copy(self, location: str, target: Path, meter: Meter) -> StoredFile:
        place, kept = self.place_of(location)
        target.parent.mkdir(parents=True, exist_ok=True)
        part, crc, size = target.with_name(target.name + ".part"), 0, 0
        with _gone_as_on_a_disk(), self._store.open_download(location) as source, part.open("wb") as written:
            while piece := source.read(_CHUNK_BYTES):
                written.write(piece)
                crc, size = google_crc32c.extend(crc, piece), size + len(piece)
                meter.add(len(piece))
            written.flush()
            os.fsync(written.fileno())
        part.replace(target)
        return StoredFile(place, kept, size, crc)


def table_files(home: Path, storage: S3Storage | None) -> TableFiles:
    return FolderFiles(home) if storage is None else StoreFiles(storage)


def is_in_store(storage: S3Storage, file: StoredFile) -> bool:
    """Whether the store has it already: then it is the same, unless it is one of those that are written again."""
    try:
        return file.place.endswith((".parquet", ".puffin")) and storage.size(file.place) == file.size
    except NotFound:
        return False


def bring_to_store(storage: S3Storage, source: Path, file: StoredFile, meter: Meter) -> Copied:
    """What was sent. One that is not as it was backed up never gets its name."""
    crc, size = 0, 0
    upload = storage.open_upload(file.place)
    with source.open("rb", buffering=0) as opened:
        while piece := opened.read(_CHUNK_BYTES):
            upload.write(piece)
            crc, size = google_crc32c.extend(crc, piece), size + len(piece)
            meter.add(len(piece))
    copied = Copied(size, crc)
    if copied == Copied(file.size, file.crc32c):
        upload.close()
    else:
        upload.abandon()
    return copied


@contextlib.contextmanager
def _gone_as_on_a_disk() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(str(error)) from error
