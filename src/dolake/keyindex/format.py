"""One run as a file: four columns behind a small header, written once, then mapped into memory.

From merging.py and index.py, which write; to view.py, which maps. Promise: a file that is cut short, or whose header is
not as it was written, is refused with StaleIndex; `verify` says the same of every byte of the columns.

    0   4 bytes  magic "DLKI"
    4   u32      format version, 1
    8   u32      crc32 of bytes 12 to 63: the run's checksum, because it covers those of the columns
    12  4 bytes  zero
    16  u64      rows
    24  4 x u32  crc32 of each column
    40  24 bytes zero
    64  hi u64 x rows, lo u64 x rows, file u32 x rows, position u32 x rows, each from a multiple of 64 on
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from dolake.keyindex.disk import Disk
from dolake.keyindex.errors import stale
from dolake.keyindex.runs import Entries

MAGIC = b"DLKI"
FORMAT_VERSION = 1
HEADER_SIZE = 64
ROW_SIZE = 24
TEMPORARY = ".tmp"
_HEAD = struct.Struct("<4sII")
_BODY = struct.Struct("<4xQ4I24x")
_COLUMNS = (("<u8", 8), ("<u8", 8), ("<u4", 4), ("<u4", 4))
_CHUNK_BYTES = 1 << 22
_CHUNK_ROWS = 1 << 19

Checksums = tuple[int, int, int, int]


def offsets(rows: int) -> list[int]:
    """Where each column begins, and where the last one ends."""
    found, end = [], HEADER_SIZE
    for _, width in _COLUMNS:
        start = -(-end // 64) * 64
        found.append(start)
        end = start + rows * width
    return [*found, end]


# --- writing ---------------------------------------------------------------------------------------------------------


def write_run(path: Path, pieces: Iterable[Entries], rows_max: int, disk: Disk, *, is_durable: bool = True) -> None:
    """Write pieces that ascend, `rows_max` rows in all at most; the file has its name only when it is whole."""
    temporary = path.with_name(path.name + TEMPORARY)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rows, checksums = _write_columns(descriptor, pieces, rows_max, disk)
        _close_gaps(descriptor, rows, rows_max, disk)
        disk.write(descriptor, memoryview(encode_header(rows, checksums)), 0)
        if is_durable:
            disk.sync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    disk.rename(temporary, path)
    if is_durable:
        disk.sync_folder(path.parent)


def encode_header(rows: int, checksums: Checksums) -> bytes:
    body = _BODY.pack(rows, *checksums)
    return _HEAD.pack(MAGIC, FORMAT_VERSION, crc32(body)) + body


def _write_columns(descriptor: int, pieces: Iterable[Entries], rows_max: int, disk: Disk) -> tuple[int, Checksums]:
    """Write each column where it begins if there are `rows_max` rows; returns how many there are."""
    rows, starts, checksums = 0, offsets(rows_max), [0, 0, 0, 0]
    for piece in filter(len, pieces):
        for index, (column, (kind, width)) in enumerate(zip(piece.columns(), _COLUMNS, strict=True)):
            data = np.ascontiguousarray(column, dtype=kind).data.cast("B")
            checksums[index] = crc32(data, checksums[index])
            disk.write(descriptor, data, starts[index] + rows * width)
        rows += len(piece)
    return rows, (checksums[0], checksums[1], checksums[2], checksums[3])


def _close_gaps(descriptor: int, rows: int, rows_max: int, disk: Disk) -> None:
    """Move the columns to where they belong: how many rows a merge leaves is known only when it is done."""
    wanted = offsets(rows)
    for source, target, (_, width) in zip(offsets(rows_max), wanted, _COLUMNS, strict=False):
        if source != target:
            _move_left(descriptor, source, target, rows * width, disk)
    os.ftruncate(descriptor, wanted[-1])


def _move_left(descriptor: int, source: int, target: int, size: int, disk: Disk) -> None:
    for start in range(0, size, _CHUNK_BYTES):
        data = os.pread(descriptor, min(_CHUNK_BYTES, size - start), source + start)
        disk.write(descriptor, memoryview(data), target + start)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """A mapped file. It stays readable after the file was removed, for as long as anybody holds it."""

    name: str
    checksum: int
    entries: Entries
    _checksums: Checksums
    _map: mmap.mmap

    def verify(self) -> None:
        """Read everything; StaleIndex when a byte of a column is not as it was written."""
        for column, expected in zip(self.entries.columns(), self._checksums, strict=True):
            found = 0
            for start in range(0, column.size, _CHUNK_ROWS):
                found = crc32(column[start : start + _CHUNK_ROWS].data.cast("B"), found)
                self.forget()
            if found != expected:
                raise stale(f"{self.name} is damaged: the checksum of a column is wrong")

    def forget(self) -> None:
        """Let go of the pages that were read, so that walking through a large run needs little memory."""
        self._map.madvise(mmap.MADV_DONTNEED)


def open_run(path: Path) -> Run:
    """Map a run and check its header. A file that is not there is FileNotFoundError: a merge may have removed it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rows, checksum, checksums = _read_header(path.name, os.pread(descriptor, HEADER_SIZE, 0))
        if os.fstat(descriptor).st_size != offsets(rows)[-1]:
            raise stale(f"{path.name} is damaged: it does not have the size of {rows} rows")
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return Run(path.name, checksum, _map_columns(mapped, rows), checksums, mapped)


def _map_columns(mapped: mmap.mmap, rows: int) -> Entries:
    starts = offsets(rows)
    columns = [np.ndarray((rows,), kind, mapped, start) for start, (kind, _) in zip(starts[:-1], _COLUMNS, strict=True)]
    return Entries(*columns)


def _read_header(name: str, raw: bytes) -> tuple[int, int, Checksums]:
    if len(raw) < HEADER_SIZE or raw[:4] != MAGIC:
        raise stale(f"{name} is damaged: it does not begin with the header of a run")
    _, version, checksum = _HEAD.unpack_from(raw)
    if version != FORMAT_VERSION:
        raise stale(f"{name} has run format {version}; this release reads {FORMAT_VERSION}")
    if crc32(raw[_HEAD.size :]) != checksum:
        raise stale(f"{name} is damaged: the checksum of its header is wrong")
    rows, *checksums = _BODY.unpack_from(raw, _HEAD.size)
    return rows, checksum, (checksums[0], checksums[1], checksums[2], checksums[3])
