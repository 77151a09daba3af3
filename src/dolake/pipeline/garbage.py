"""Files in a table's folder that no snapshot names: found by Spark's workers, kept for a while, then removed.

From maintenance.py. They come from snapshots that have expired, from publishes and compactions that failed, and from
processes that died. Promise: a file goes only when it was unnamed at a look at least `gc_grace_ms` ago and is unnamed
now, and when it is older than every commit under way or in doubt; so a query that began before the snapshot expired
still finds its files, and a publish never loses one.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dolake.catalog.named_files import named_files
from dolake.errors import Damaged, Unavailable
from dolake.pipeline.store import store
from dolake.storage.base import Storage, StoredFile
from dolake.storage.local import sync_path

Json = dict[str, Any]
_FOLDERS = ("data", "metadata")
_HINT = "version-hint.text"
_OUR_DATA = re.compile(r"(\d+|compacted|moved|retyped|forgotten)-[0-9a-f]{12}-[0-9a-f-]{36}\.(parquet|puffin)")


@dataclass(frozen=True, slots=True)
class GarbageJob:
    """A table's folder, where its cold files are, and the metadata that names all of them."""

    location: str
    cold: str
    metadata: Json


@dataclass(frozen=True, slots=True)
class Found:
    """A file that nothing names."""

    path: str
    modified_s: float
    size_bytes: int


def find_garbage(job: GarbageJob) -> list[Found]:
    """Damaged when a file that the table names is not there: then we do not know what we see, and nothing may go."""
    storage = store()
    root, cold = storage.resolve(job.location), storage.resolve(job.cold)
    described = set(map(storage.resolve, _metadata_files(job.metadata)))
    needed = set(map(storage.resolve, named_files(job.metadata, storage)))
    files = [file for name in _FOLDERS for file in storage.list(f"{root}/{name}")]
    files += _cold_files(storage, cold, is_needed=any(each.startswith(f"{cold}/") for each in needed))
    listed = {file.location: file for file in files if not file.location.endswith(f"/{_HINT}")}
    if lost := {each for each in needed if each.startswith((f"{root}/", f"{cold}/"))} - listed.keys():
        raise Damaged(
            f"{job.location} lacks {len(lost)} files that the table names, such as {_name_of(min(lost))}",
            hint="nothing was removed; restore the files, then look again",
        )
    unnamed = (listed[each] for each in listed.keys() - needed - described if _is_ours(each))
    return [Found(file.location, file.modified_ms / 1000, file.size) for file in unnamed]


def _cold_files(storage: Storage, cold: str, *, is_needed: bool) -> list[StoredFile]:
    """Keys of a store may be for the warehouse alone; who never moved anything need not know that."""
    try:
        return list(storage.list(f"{cold}/data"))
    except Unavailable:
        if is_needed:
            raise
        return []


def _is_ours(location: str) -> bool:
    """Whether its name is one that we, or Iceberg's library for us, give: nothing else is ours to remove."""
    folder, name = location.rsplit("/", 2)[1:]
    return name.endswith(".avro") if folder == "metadata" else _OUR_DATA.fullmatch(name) is not None


def _name_of(location: str) -> str:
    return location.rpartition("/")[2]


def _metadata_files(metadata: Json) -> list[str]:
    return [metadata["metadata-location"], *(entry["metadata-file"] for entry in metadata.get("metadata-log", ()))]


class Waiting:
    """The files of one table that wait for their end, with the time since when nothing names them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since_s: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):  # lost: then they wait once more
            self._since_s = msgspec.json.decode(path.read_bytes(), type=dict[str, float])

    def look(self, found: list[Found], *, grace_s: float, in_flight_since_s: float) -> list[Found]:
        """Note what was found now; returns those whose time has come."""
        now_s = time.time()
        found = [each for each in found if each.modified_s < in_flight_since_s]  # else it may just become named
        self._since_s = {each.path: min(self._since_s.get(each.path, now_s), now_s) for each in found}
        due = [each for each in found if max(self._since_s[each.path], each.modified_s) <= now_s - grace_s]
        self._store()
        return due

    def forget(self, removed: list[Found]) -> None:
        for each in removed:
            self._since_s.pop(each.path, None)
        self._store()

    def _store(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self._since_s))
        sync_path(new)
        new.replace(self._path)


def remove(files: list[Found]) -> int:
    """Returns how many bytes that freed."""
    store().delete_all(each.path for each in files)
    return sum(each.size_bytes for each in files)
