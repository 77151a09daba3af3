"""Metadata files: read through a cache, and written before anybody points at them.

From tables.py and views.py, in the catalog's threads. Promise: a file that `write` returned from is durable, and is
never written twice under one name; what the cache holds is what the file holds, because files never change.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from dolake.catalog.errors import MissingFile
from dolake.catalog.readers import only_refs
from dolake.catalog.values import Json
from dolake.errors import Damaged, DoLakeError, InvalidInput, NotFound, Unavailable
from dolake.storage.base import Storage

SUFFIX = ".metadata.json"
HINT_FILE = "version-hint.text"
METADATA_PATH = "write.metadata.path"
_NO_PLACE_FOR_A_FILE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.EINVAL)
_CACHE_MAX_BYTES = 128 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
# What grows with a table's age. Commits add to the end of these lists, so all but the end need not be encoded again.
_LONG_LISTS = ("snapshots", "snapshot-log")


@dataclass(frozen=True)
class Document:
    """One metadata file: its bytes, and what they say."""

    location: str
    raw: bytes
    raw_lists: dict[str, bytes] = field(default_factory=dict, repr=False)
    """The long lists of `metadata` as JSON, as far as they are known."""

    @cached_property
    def metadata(self) -> Json:
        try:
            value: Json = _decode(self.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Damaged(f"the metadata file {self.location} cannot be read: {error}", hint="restore it") from None
        return value

    @cached_property
    def raw_refs(self) -> bytes:
        """The form that a load with `snapshots=refs` gets."""
        return _encode(only_refs(self.metadata))

    @property
    def folder(self) -> str:
        return self.location.rpartition("/")[0]

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
        self.settling = threading.Lock()
        """Held by who gives a table a place until the catalog points there, and by who empties a place of nobody's."""

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
        missing = MissingFile(f"Failed to open input stream for file: {location}", hint="restore the file")
        if self.storage.is_quick and not self.storage.exists(location):
            raise missing
        try:
            return self.read(location)
        except NotFound:
            raise missing from None

    def read_foreign(self, location: str) -> Document:
        """A file that somebody else wrote and a client names: whatever is wrong with it is wrong with the request."""
        try:
            document = self.read_present(location)
            document.metadata  # noqa: B018 - parsed here, so that what cannot be is refused
        except NotFound:
            raise NotFound(f"no metadata file at {location}", hint="metadata-location names a .metadata.json") from None
        except (Damaged, OSError, ValueError) as error:
            self.forget(location)  # the cache holds good files alone
            raise InvalidInput(f"{location[:200]} is not a metadata file: {error}") from None
        return document

    def write(self, metadata: Json, *, version: int, before: Document | None = None) -> Document:
        """Write a new file below the table's location, durable when this returns. `before` saves encoding it all."""
        folder = metadata.get("properties", {}).get(METADATA_PATH) or f"{metadata['location']}/metadata"
        location = f"{folder.rstrip('/')}/{version:05d}-{uuid.uuid4()}{SUFFIX}"
        raw_lists = {key: _encode_list(metadata[key], key, before) for key in _LONG_LISTS if metadata.get(key)}
        raw = _encode(metadata | {key: msgspec.Raw(value) for key, value in raw_lists.items()})
        document = Document(location, raw, raw_lists)
        vars(document)["metadata"] = metadata  # it need not be parsed to know what it says
        try:
            self.storage.write(location, document.raw)
        except (OSError, ValueError) as error:
            raise _unwritable(location, error) from error
        self._keep(document)
        return document

    def discard(self, location: str) -> None:
        """Remove a file that nobody points at; one that cannot be removed is an orphan for the upkeep."""
        self.forget(location)
        with contextlib.suppress(DoLakeError, OSError):
            self.storage.delete(location)

    def hint(self, document: Document) -> None:
        """Leave word of the newest file for readers that have no catalog."""
        self.storage.replace(f"{document.folder}/{HINT_FILE}", document.name.encode())

    def forget(self, location: str) -> None:
        """Give its memory back; whoever asks for it after all reads the file again."""
        with self._lock:
            if found := self._cache.pop(location, None):
                self._cache_bytes -= len(found.raw)

    def _keep(self, document: Document) -> None:
        with self._lock:
            if document.location not in self._cache:
                self._cache[document.location] = document
                self._cache_bytes += len(document.raw)
            while self._cache_bytes > self._cache_max_bytes and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cache_bytes -= len(dropped.raw)


def _unwritable(location: str, error: OSError | ValueError) -> DoLakeError:
    """A place that cannot hold a file is the fault of who chose it; a full or broken disk is not."""
    if isinstance(error, ValueError) or error.errno in _NO_PLACE_FOR_A_FILE:
        hint = "choose another location, or leave it out"
        return InvalidInput(f"no file can be written at {location[:200]}: {error}", hint=hint)
    return Unavailable(f"the warehouse cannot be written: {error.strerror}", hint="look at the disk, then try again")


def _encode_list(entries: list[Json], key: str, before: Document | None) -> bytes:
    """As JSON; where the list begins as it did before, all or all but the last, only what is new is encoded."""
    known = before.raw_lists.get(key) if before else None
    if before and known:
        old = before.metadata[key]
        for same in (len(old), len(old) - 1):
            if 0 < same <= len(entries) and all(map(operator.is_, old[:same], entries)):
                gone, new = _encode(old[same:]), _encode(entries[same:])
                kept = memoryview(known)[: len(known) - len(gone) if same < len(old) else -1]
                return b"".join((kept, b"]") if new == b"[]" else (kept, b",", memoryview(new)[1:]))
    return _encode(entries)


def version_of(location: str) -> int:
    """The number that a metadata file's name begins with; 0 for names that others gave."""
    digits = location.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0
