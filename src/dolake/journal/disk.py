"""The few things the journal asks of a disk, in one place so that a test can hand in one that fails.

From segment.py and embedded.py. Promise: `write` writes everything or raises; `sync` returns when the bytes are safe.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

CACHED_SEGMENTS = 4
"""How many sealed segments stay in memory for readers that follow closely (decision 0003)."""

_BUFFERS_MAX = 1024  # IOV_MAX on Linux; a longer list is refused with EINVAL


class Disk:
    """The real one."""

    def allocate(self, descriptor: int, size: int) -> None:
        """Reserve space, so that a full disk is met here and not in the middle of a group of batches."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # macOS: the file grows sparse and a full disk shows at the write
            os.ftruncate(descriptor, size)

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers one after the other at this offset."""
        for start in range(0, len(buffers), _BUFFERS_MAX):
            offset += self._write_some(descriptor, buffers[start : start + _BUFFERS_MAX], offset)

    def sync(self, descriptor: int) -> None:
        """Make written data durable. A failure is never repeated: after it nobody knows which pages were dropped."""
        getattr(os, "fdatasync", os.fsync)(descriptor)

    def forget_cached(self, path: Path) -> None:
        """Let the kernel reuse the memory that holds this file's pages; the file stays as it is."""
        if not hasattr(os, "posix_fadvise"):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path, descriptor: int | None = None) -> None:
        """Make created, renamed and removed names durable. An open descriptor works also when no other can be had."""
        if descriptor is not None:
            os.fsync(descriptor)
            return
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def _write_some(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> int:
        size = sum(map(len, buffers))
        written = os.pwritev(descriptor, buffers, offset)
        if written < size:  # rare (a signal, a quota): the rest goes out in one piece
            rest = b"".join(buffers)
            while written < size:
                written += os.pwrite(descriptor, rest[written:], offset + written)
        return size


def write_file_atomically(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old content or the new, never a mix."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(descriptor, [data], 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    disk.sync_directory(path.parent)
