"""A folder of this machine as storage. Locations are `file:///...`; a plain path and `file:/...` mean the same.

From catalog/tables.py and pipeline/. Promise: storage/base.py's; a file that `open_write` made is synced when it is
closed, and its folder by `sync`, for many files at once. Nothing outside the warehouse folder is read or written: a
location is resolved, links included, before it is used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dolake.errors import Conflict, InvalidInput, NotFound
from dolake.storage.base import StoredFile
from dolake.tables.tiers import COLD_SUFFIX, Tiers, checked_tiers

_SYNCERS = 16


class LocalStorage:
    """See the module."""

    is_quick = True

    def __init__(self, folder: Path, roots: Sequence[Path] = (), cold: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cold = cold or Path(f"{folder}{COLD_SUFFIX}")
        self._roots = tuple(os.path.realpath(root) for root in (folder, cold, *roots))
        self._insides = tuple(root.rstrip("/") + "/" for root in self._roots)
        self.root = location_of(Path(self._roots[0]))
        self.tiers = checked_tiers(Tiers(self.root, location_of(Path(self._roots[1]))))
        self.client_options: dict[str, str] = {}

    def is_inside(self, location: str) -> bool:
        try:
            return os.path.realpath(path_of(location)).startswith(self._insides)
        except (InvalidInput, ValueError, OSError):
            return False

    def resolve(self, location: str) -> str:
        return location_of(self._path(location))

    def read(self, location: str) -> bytes:
        try:
            return self._path(location).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFound(f"no file at {location}", hint="it may have been removed by hand") from None

    def write(self, location: str, data: bytes) -> None:
        path = self._path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise Conflict(f"a file is already at {location}", hint="files are written once") from None
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)
        sync_path(path.parent)

    def replace(self, location: str, data: bytes) -> None:
        path = self._path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    def open_read(self, location: str) -> Any:
        import pyarrow as pa  # here and below: who keeps metadata alone does without it

        path = self._path(location)
        try:
            return pa.OSFile(str(path), "rb")
        except FileNotFoundError:
            raise NotFound(f"no file at {location}", hint="it may have been removed by hand") from None

    def open_write(self, location: str) -> Any:
        path = self._path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _synced_file()(str(path), "wb")
        file.path = path
        return file

    def sync(self, locations: Iterable[str]) -> None:
        """All at the same time, so that the file system's own journal is written once for many and not for each."""
        with ThreadPoolExecutor(_SYNCERS) as threads:
            list(threads.map(lambda location: sync_path(self._path(location)), locations))

    def size(self, location: str) -> int:
        try:
            return self._path(location).stat().st_size
        except FileNotFoundError:
            raise NotFound(f"no file at {location}", hint="it may have been removed by hand") from None

    def make_folder(self, location: str) -> None:
        _make_folder(self._path(location))

    def delete(self, location: str) -> None:
        self._path(location).unlink(missing_ok=True)

    def delete_all(self, locations: Iterable[str]) -> None:
        for location in locations:
            self.delete(location)

    def set_aside(self, location: str) -> str:
        path = self._folder_below(location)
        aside = path.with_name(f".removed-{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
        return location_of(aside)

    def delete_folder(self, location: str) -> None:
        shutil.rmtree(self._folder_below(location), ignore_errors=True)

    def exists(self, location: str) -> bool:
        return self._path(location).is_file()

    def list(self, location: str) -> Iterator[StoredFile]:
        for path in sorted(self._path(location).rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found = path.stat()
                    yield StoredFile(location_of(path), found.st_size, found.st_mtime_ns // 1_000_000)

    def close(self) -> None:
        """Nothing waits."""

    def _folder_below(self, location: str) -> Path:
        path = self._path(location)
        if str(path) in self._roots:
            raise InvalidInput("the warehouse itself is not removed", hint="name a folder below it")
        return path

    def _path(self, location: str) -> Path:
        resolved = os.path.realpath(path_of(location))
        if not resolved.startswith(self._insides) and resolved not in self._roots:
            raise InvalidInput(f"{location} is outside the warehouse {self.root}", hint="locations lie below it")
        return Path(resolved)


def location_of(path: Path) -> str:
    """The location that engines are given for a path. Not percent-encoded, because most of them do not decode it."""
    return f"file://{path}"


def path_of(location: str) -> Path:
    """The path behind any of the spellings that engines use."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    if "://" in location:
        raise InvalidInput(f"{location} is not a local location", hint="this warehouse is a folder: file:///...")
    return Path(location)


@functools.cache
def _synced_file() -> Any:
    import pyarrow as pa

    class SyncedFile(pa.OSFile):  # type: ignore[misc]
        """Arrow's own file, durable when it is closed."""

        path: Path

        def close(self) -> None:
            if not self.closed:
                super().close()
                sync_path(self.path)

    return SyncedFile


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _make_folder(path: Path) -> None:
    """And all above it, each durable before the next: a crash must not lose a folder and all that is in it."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Make a file or a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
