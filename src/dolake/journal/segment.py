"""One journal file: its header, its records in order, and where it truly ends.

From embedded.py, which decides when a file is full; to reader.py, which never reads past the durable mark.
Promise: `scan` yields intact records only, and `find_damage` tells a torn last write, which nobody was promised, from
bytes that were once durable and are now wrong.

    0   8 bytes  magic "DOLAKEJ\\n"
    8   u32      format version, 2; format 1 is read, and raised before anything is added to such a file
    12  u32      crc32c of bytes 16 to 63
    16  u64      position of the first change in this file
    24  u64      created, ms
    32  16 bytes id of the journal, the same in all its files
    48  16 bytes zero
    64  the first record, always a checkpoint
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from dolake.errors import Damaged
from dolake.journal import record
from dolake.journal.disk import Disk
from dolake.journal.record import Header, Kind
from dolake.positions import Position

MAGIC = b"DOLAKEJ\n"
FORMAT_VERSION = 2
FORMATS_READ = (1, 2)
HEADER_SIZE = 64
SUFFIX = ".segment"
_HEAD = struct.Struct("<8sII")
_BODY = struct.Struct("<QQ16s16x")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    base: Position
    created_ms: int
    journal_id: bytes
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        body = _BODY.pack(self.base, self.created_ms, self.journal_id)
        return _HEAD.pack(MAGIC, FORMAT_VERSION, google_crc32c.value(body)) + body


def raise_format(descriptor: int, disk: Disk) -> None:
    """Give a file of an earlier format this one, durably: its records are records of this format too.

    The version is not in the checksum of the header and lies in one disk sector, so it is the old or the new one.
    """
    disk.write(descriptor, [FORMAT_VERSION.to_bytes(4, "little")], len(MAGIC))
    disk.sync(descriptor)


def path_of(directory: Path, base: Position) -> Path:
    return directory / f"{base:020d}{SUFFIX}"


def list_bases(directory: Path) -> list[Position]:
    """The first positions of all segments, in order."""
    return sorted(int(path.stem) for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def read_header(descriptor: int, path: Path) -> SegmentHeader:
    """Read and check a segment's own header."""
    raw = os.pread(descriptor, HEADER_SIZE, 0)
    if len(raw) < HEADER_SIZE or raw[:8] != MAGIC:
        raise damaged(path, 0, "it does not begin with a journal header")
    _, version, crc = _HEAD.unpack_from(raw)
    if version not in FORMATS_READ:
        hint = "use the DoLake release that wrote it, or a newer one"
        raise Damaged(f"{path.name} has journal format {version}; this release reads 1 to {FORMAT_VERSION}", hint=hint)
    if google_crc32c.value(raw[_HEAD.size :]) != crc:
        raise damaged(path, 0, "the checksum of its header is wrong")
    base, created_ms, journal_id = _BODY.unpack_from(raw, _HEAD.size)
    if path.stem.isdecimal() and int(path.stem) != base:
        raise damaged(path, 0, f"its header says that it begins at position {base}")
    return SegmentHeader(base, created_ms, journal_id, version)


def damaged(path: Path, offset: int, what: str) -> Damaged:
    """The one way to say it: where, what, and the documented way out."""
    return Damaged(
        f"the journal is damaged in {path.name} at byte {offset}: {what}",
        hint="look with `dolake journal check --home DIR`; docs/explain/journal-format.md has the way out",
    )


class Scan:
    """Walk the intact records of a file from `offset` to `limit`; afterwards `offset` is where the walk ended."""

    def __init__(self, descriptor: int, *, offset: int = HEADER_SIZE, limit: int | None = None) -> None:
        self.offset = offset
        self._descriptor = descriptor
        self._limit = os.fstat(descriptor).st_size if limit is None else limit
        # One buffer for the whole walk: a fresh one per read costs more than the read.
        self._buffer = bytearray(_CHUNK_BYTES)
        self._start = self._end = offset

    def __iter__(self) -> Iterator[tuple[int, Header, memoryview]]:
        """Offset, header and body of each record; ends at the first byte that does not begin an intact record."""
        while found := self._record_at(self.offset):
            header, body = found
            start, self.offset = self.offset, self.offset + header.size
            yield start, header, body

    def _record_at(self, offset: int) -> tuple[Header, memoryview] | None:
        at = self._load(offset, record.HEADER_SIZE)
        header = None if at is None else record.decode_header(self._buffer, at)
        if header is None or offset + header.size > self._limit:
            return None
        at = self._load(offset, record.HEADER_SIZE + header.body_length)
        if at is None:
            return None
        with memoryview(self._buffer) as view:
            data = bytes(view[at : at + record.HEADER_SIZE + header.body_length])
        return (header, memoryview(data)[record.HEADER_SIZE :]) if record.is_intact(data, header) else None

    def _load(self, offset: int, size: int) -> int | None:
        """Where in the buffer these bytes of the file are; None where the file ends before them."""
        if offset + size > self._limit:
            return None
        if not self._start <= offset <= offset + size <= self._end:
            if size > len(self._buffer):
                self._buffer = bytearray(size)
            with memoryview(self._buffer) as view:
                wanted = min(len(self._buffer), self._limit - offset)
                self._start, self._end = offset, offset + os.preadv(self._descriptor, [view[:wanted]], offset)
            if offset + size > self._end:
                return None
        return offset - self._start


def find_damage(descriptor: int, end: int, position: Position) -> int | None:
    """After the last intact record at `end`: the offset of a later record that proves these bytes were once durable.

    A crash may leave any part of the last group of writes on disk, in any order, so an intact record behind a broken
    one proves nothing by itself. But each record says how far the file was synced when it was written: one that was
    written after `end` had been synced shows that an acknowledged record is broken.
    """
    size = os.fstat(descriptor).st_size
    rest = os.pread(descriptor, max(size - end, 0), end)
    at = rest.find(record.MAGIC_BYTES)
    while at >= 0:
        header = record.decode_header(rest, at)
        is_later = header is not None and header.position >= position and header.synced > end
        if header is not None and is_later and record.is_intact(rest, header, at):
            return end + at
        at = rest.find(record.MAGIC_BYTES, at + 1)
    return None


def first_checkpoint(path: Path, descriptor: int) -> tuple[int, Header, memoryview]:
    """The checkpoint that every segment begins with, and the offset behind it."""
    scan = Scan(descriptor)
    for _, header, body in scan:
        if header.kind is not Kind.CHECKPOINT:
            break
        return scan.offset, header, body
    raise damaged(path, HEADER_SIZE, "it does not begin with a checkpoint")
