"""The server's home folder: locked against a second server, and where others find out how to reach it.

From server/lifecycle.py. Promise: two servers never share a home, also after kill -9, because the lock is the
kernel's and dies with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

import msgspec

from dolake.errors import Conflict

LOCK_FILE = "server.lock"
ADDRESS_FILE = "server.json"


class Home:
    """A locked home folder; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    @property
    def journal_path(self) -> Path:
        return self.path / "journal"

    def __enter__(self) -> Home:
        self.path.mkdir(parents=True, exist_ok=True)
        # The folder itself is locked, because a lock file could be removed while it is held.
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        note = self.path / LOCK_FILE
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            owner = note.read_text(errors="replace").strip() if note.is_file() else ""
            raise Conflict(
                f"another server (process {owner or 'unknown'}) is using {self.path}",
                hint="stop it first, or give this one another --home",
            ) from None
        try:
            note.write_text(f"{os.getpid()}\n")
            self._remove_address()  # left behind by a server that was killed
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_address()
        os.close(self._descriptor)

    def write_address(self, url: str, version: str) -> None:
        """Say where the server is reached; written once it is ready."""
        temporary = self.path / (ADDRESS_FILE + ".tmp")
        temporary.write_bytes(msgspec.json.encode({"pid": os.getpid(), "url": url, "version": version}))
        temporary.replace(self.path / ADDRESS_FILE)

    def _remove_address(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / ADDRESS_FILE).unlink()
