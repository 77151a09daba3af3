"""A disk that fails on command."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from dolake.journal.disk import Disk


class FailingDisk(Disk):
    """The real disk until a failure is ordered. Each order holds until it is taken back."""

    def __init__(self) -> None:
        self.is_full = False
        self.is_sync_failing = False
        self.is_write_failing = False
        self.sync_count = 0

    def allocate(self, descriptor: int, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(descriptor, size)

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        if self.is_write_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.is_full:
            # A real full disk writes what still fits.
            data = b"".join(buffers)
            os.pwrite(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        self.sync_count += 1
        if self.is_sync_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)
