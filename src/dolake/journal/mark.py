"""The durable mark: how far the journal is synced, for readers in any process.

From embedded.py, which moves it after each fdatasync and before the first acknowledgement; to reader.py and recovery.
Promise: the mark never names a byte that is not on disk. It is a small mapped file with two slots written in turn, each
with a counter and a CRC, so a reader never sees half of a new mark. It is not synced itself: after a power failure it
may be older than the journal, never newer.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from dolake.errors import NotFound
from dolake.positions import Position

FILE_NAME = "durable.mark"
_SLOT = struct.Struct("<QQQQQ16s")
_SLOT_SIZE = 64
_FILE_SIZE = 4096
_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """`position` changes are durable; the last one ends at byte `offset` of the segment that begins at `segment`."""

    position: Position
    segment: Position
    offset: int
    commit_timestamp_ms: int
    journal_id: bytes
    counter: int = 0


class MarkFile:
    """The mapped file. One writer, any number of readers."""

    def __init__(self, directory: Path, *, writable: bool) -> None:
        path = directory / FILE_NAME
        if writable:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(descriptor).st_size < _FILE_SIZE:
                # Real blocks, not a hole: a store into a mapped hole on a full disk would kill the process.
                os.pwrite(descriptor, bytes(_FILE_SIZE), 0)
                os.fsync(descriptor)
        else:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                hint = "start the server once with `dolake serve --home ...`"
                raise NotFound(f"no journal in {directory}", hint=hint) from None
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, _FILE_SIZE, access=access)
        except ValueError:  # the file is still empty: its server is just creating it
            raise NotFound(f"no journal in {directory} yet", hint="try again once the server is ready") from None
        finally:
            os.close(descriptor)
        self._counter = found.counter if (found := self.read()) else 0

    def read(self) -> Mark | None:
        """The newer intact slot; None before the first write."""
        for _ in range(_READS_MAX):
            slots = [self._read_slot(index) for index in (0, 1)]
            # A slot that is being written is whole a moment later. Taking the other one at once could return an older
            # mark than last time, or none, if the writer went from one to the other between our two looks.
            if all(mark is not None for mark in slots):
                break
        return max((mark for mark in slots if mark and mark.counter), key=lambda mark: mark.counter, default=None)

    def write(self, mark: Mark) -> None:
        """Replace the older slot."""
        self._counter += 1
        body = _SLOT.pack(
            self._counter, mark.position, mark.segment, mark.offset, mark.commit_timestamp_ms, mark.journal_id
        )
        start = (self._counter & 1) * _SLOT_SIZE
        crc: int = google_crc32c.value(body)
        self._map[start : start + _SLOT_SIZE] = body + crc.to_bytes(_SLOT_SIZE - _SLOT.size, "little")

    def close(self) -> None:
        self._map.close()

    def _read_slot(self, index: int) -> Mark | None:
        """A slot that was never written has counter 0; None when it is half-written."""
        raw = self._map[index * _SLOT_SIZE : (index + 1) * _SLOT_SIZE]
        body = raw[: _SLOT.size]
        if any(raw) and google_crc32c.value(body) != int.from_bytes(raw[_SLOT.size :], "little"):
            return None
        counter, position, segment, offset, timestamp, journal_id = _SLOT.unpack(body)
        return Mark(position, segment, offset, timestamp, journal_id, counter)
