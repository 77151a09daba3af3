"""Metadata files: read through a cache, and written before anybody points at them.

From tables.py and views.py, in the catalog's threads. Promise: a file that `write` returned from is durable, and is
never written twice under one name; what the cache holds is what the file holds, because files never change.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import msgspec

from dolake.catalog.errors import MissingFile
from dolake.catalog.readers import only_refs
from dolake.catalog.values import Json
from dolake.errors import Damaged, DoLakeError
from dolake.storage.base import Storage

SUFFIX = ".metadata.json"
HINT_FILE = "version-hint.text"
_CACHE_MAX_BYTES = 128 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Document:
    """One metadata file: its bytes, and what they say."""

    location: str
    raw: bytes

    @cached_property
    def metadata(self) -> Json:
        try:
            value: Json = _decode(self.raw)
        except msgspec.DecodeError as error:
            raise Damaged(f"the metadata file {self.location} cannot be read: {error}", hint="restore it") from None
        return value

    @cached_property
    def raw_refs(self) -> bytes:
        """The form that a load with `snapshots=refs` gets."""
        return _encode(only_refs(self.metadata))

    @property
    def name(self) -> str:
        """The file's own name: unique to this version of this table, so it serves as an ETag."""
        return self.location.rpartition("/")[2].removesuffix(SUFFIX)


class Documents:
    """All metadata files of the warehouse; keeps those last used in memory."""

    def __init__(self, storage: Storage, cache_max_bytes: int = _CACHE_MAX_BYTES) -> None:
        self.storage = storage
        self._cache: OrderedDict[str, Document] = OrderedDict()
        self._cache_bytes = 0
        self._cache_max_bytes = cache_max_bytes
        self._lock = threading.Lock()

    def read(self, location: str) -> Document:
        with self._lock:
            if found := self._cache.get(location):
                self._cache.move_to_end(location)
                return found
        document = Document(location, self.storage.read(location))
        self._keep(document)
        return document

    def read_present(self, location: str) -> Document:
        """Like `read`, but where it costs nothing the file is looked for too: a table without it is broken."""
        if self.storage.is_quick and not self.storage.exists(location):
            raise MissingFile(f"Failed to open input stream for file: {location}", hint="restore the file")
        return self.read(location)

    def write(self, metadata: Json, *, version: int) -> Document:
        """Write a new file below the table's location, durable when this returns."""
        folder = metadata.get("properties", {}).get("write.metadata.path") or f"{metadata['location']}/metadata"
        location = f"{folder.rstrip('/')}/{version:05d}-{uuid.uuid4()}{SUFFIX}"
        document = Document(location, _encode(metadata))
        vars(document)["metadata"] = metadata  # it need not be parsed to know what it says
        self.storage.write(location, document.raw)
        self._keep(document)
        return document

    def discard(self, location: str) -> None:
        """Remove a file that nobody points at; one that cannot be removed is an orphan for the upkeep."""
        with self._lock:
            if found := self._cache.pop(location, None):
                self._cache_bytes -= len(found.raw)
        with contextlib.suppress(DoLakeError, OSError):
            self.storage.delete(location)

    def hint(self, document: Document) -> None:
        """Leave word of the newest file for readers that have no catalog. Best effort: the catalog is the truth."""
        with contextlib.suppress(DoLakeError, OSError):
            folder = document.location.rpartition("/")[0]
            self.storage.replace(f"{folder}/{HINT_FILE}", document.name.encode())

    def _keep(self, document: Document) -> None:
        with self._lock:
            if document.location not in self._cache:
                self._cache[document.location] = document
                self._cache_bytes += len(document.raw)
            while self._cache_bytes > self._cache_max_bytes and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cache_bytes -= len(dropped.raw)


def version_of(location: str) -> int:
    """The number that a metadata file's name begins with; 0 for names that others gave."""
    digits = location.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0
