"""What a backup holds: one document that names every file, and that makes a folder a backup.

From take.py, which writes it when everything else is safe on the disk; to restore.py and check.py. Promise: a folder
without it is no backup; one that is not byte for byte as it was written is refused.
"""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import msgspec

from dolake.errors import Damaged, NotFound
from dolake.journal.disk import Disk, write_file_atomically
from dolake.positions import Position

FILE_NAME = "backup.json"
FORMAT_VERSION = 1


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """One file: where it belongs (below the home, a full path, or a place in a store), where it is kept, its bytes."""

    place: str
    kept: str
    size: int
    crc32c: int
    modified_ns: int = 0


class StreamEnd(msgspec.Struct, frozen=True):
    """How far a stream had come: what its source sent later is not in the backup."""

    stream: str
    epoch: int
    sequence: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. `position` changes were durable then, those before `published` were in the tables."""

    version: int = FORMAT_VERSION
    id: str
    dolake: str
    taken_ms: int
    home: str
    store: str = ""
    """Where the tables were, if not in a folder."""
    position: Position
    published: Position
    files: list[StoredFile]
    streams: list[StreamEnd]
    table_count: int
    indexes_left_out: list[str] = []
    """Tables whose key index moved while it was copied; it is built anew when the restored lake is first written."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


class _Sealed(msgspec.Struct, frozen=True):
    crc32c: int
    manifest: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    version: int


def store_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the folder a backup, or another one: before this it is what it was."""
    encoded = msgspec.json.encode(manifest)
    sealed = _Sealed(google_crc32c.value(encoded), msgspec.Raw(encoded))
    write_file_atomically(Disk(), folder / FILE_NAME, msgspec.json.encode(sealed))


def find_manifest(folder: Path) -> Manifest | None:
    """None where there is none yet."""
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if google_crc32c.value(bytes(sealed.manifest)) != sealed.crc32c:
            raise Damaged(f"{folder / FILE_NAME} is not as it was written", hint="use another backup")
        version = msgspec.json.decode(sealed.manifest, type=_Version).version
        if version != FORMAT_VERSION:
            hint = "use the DoLake release that wrote it, or a newer one"
            raise Damaged(f"{folder} has backup format {version}; this release reads {FORMAT_VERSION}", hint=hint)
        return msgspec.json.decode(sealed.manifest, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{folder / FILE_NAME} cannot be read: {error}", hint="use another backup") from None


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a backup that is whole."""
    found = find_manifest(folder)
    if found is None:
        raise NotFound(
            f"{folder} is no backup: it has no {FILE_NAME}",
            hint="a backup that did not finish has none; name the folder that `dolake backup` was given",
        )
    return found
