"""The few things the key index asks of a disk, in one place so that a test can stop it at any of them.

From format.py, manifest.py and index.py. Promise: `write` writes everything or raises; what was synced is safe, and so
is a name once its folder was synced.
"""

from __future__ import annotations

import os
from pathlib import Path


class Disk:
    """The real one."""

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        """Write all of it at this offset."""
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make created, renamed and removed names durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
