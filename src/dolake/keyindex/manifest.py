"""What makes files an index: which runs in which order, which data files, and for which snapshot of the table.

From index.py and rebuild.py, which write it; to view.py. Promise: a manifest is replaced as a whole, and one that is
not byte for byte as it was written counts as missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import msgspec

from dolake.keyindex.disk import Disk
from dolake.keyindex.format import TEMPORARY
from dolake.keyindex.hashes import HASH

INDEX = "index.json"
NEXT = "next.json"
FORMAT_VERSION = 1


class RunInfo(msgspec.Struct, frozen=True):
    """A run by name. The checksum is that of its header, so that no other file can stand in for it."""

    name: str
    rows: int
    checksum: int


class DataFile(msgspec.Struct, frozen=True):
    """A data file of the table; `rows` of its rows are current."""

    id: int
    path: str
    rows: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs come newest first. Ids of data files rise and are never used again."""

    snapshot_id: int | None
    runs: tuple[RunInfo, ...] = ()
    files: tuple[DataFile, ...] = ()
    next_file_id: int = 0
    row_count: int = 0
    hash: str = HASH
    version: int = FORMAT_VERSION


class _Sealed(msgspec.Struct, frozen=True):
    """The file: a manifest and the checksum of its bytes, as they stand there."""

    crc32: int
    manifest: msgspec.Raw


def load_manifest(path: Path) -> Manifest | None:
    """None when it is missing, damaged, of another release or of another hash: none of these can be used."""
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        if crc32(sealed.manifest) != sealed.crc32:
            return None
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return manifest if (manifest.version, manifest.hash) == (FORMAT_VERSION, HASH) else None


def store_manifest(path: Path, manifest: Manifest, disk: Disk) -> None:
    """Replace the file so that a crash leaves the old content or the new, never a mix."""
    encoded = msgspec.json.encode(manifest)
    data = msgspec.json.encode(_Sealed(crc32(encoded), msgspec.Raw(encoded)))
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(descriptor, memoryview(data), 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    disk.rename(temporary, path)
    disk.sync_folder(path.parent)
