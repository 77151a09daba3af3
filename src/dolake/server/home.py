"""The server's home folder: locked against a second server, and where others find out how to reach it.

From server/lifecycle.py. Promise: two servers never share a home, also after kill -9, because the lock is the
kernel's and dies with its process. A home that a newer release wrote, or that was restored in part, is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

import msgspec

import dolake
from dolake.backup.base import refuse_unfinished
from dolake.errors import Conflict, Damaged
from dolake.journal.disk import Disk, write_file_atomically
from dolake.wire.address import ADDRESS_FILE, ServerAddress

LOCK_FILE = "server.lock"
FORMAT_FILE = "format.json"
FORMAT_VERSION = 2
"""What lies where in a home. The journal's segments, the catalog and the key index have versions of their own, which
their readers check; this one changes when a release could no longer make sense of the folder as a whole. Format 2 has
journal records of format 2. A home of format 1 is raised before anything of format 2 is written to it."""
_FORMATS_READ = (1, 2)


class _Format(msgspec.Struct, frozen=True, rename="camel"):
    version: int
    written_by: str = ""


class Home:
    """A locked home folder; use it as a context manager."""

    def __init__(self, path: Path, *, is_restoring: bool = False) -> None:
        self.path = path.absolute()
        self._is_restoring = is_restoring
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
            if not self._is_restoring:
                refuse_unfinished(self.path)
                self._check_format()
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

    def write_address(self, url: str, version: str, certificate_sha256: str | None = None) -> None:
        """Say where the server is reached, and by which certificate it is known; written once it is ready."""
        temporary = self.path / (ADDRESS_FILE + ".tmp")
        address = ServerAddress(pid=os.getpid(), url=url, version=version, certificate_sha256=certificate_sha256)
        temporary.write_bytes(msgspec.json.encode(address))
        temporary.replace(self.path / ADDRESS_FILE)

    def _check_format(self) -> None:
        """A home without the file is new, or of the time before it, and lies as version 1 does."""
        file = self.path / FORMAT_FILE
        try:
            found = msgspec.json.decode(file.read_bytes(), type=_Format)
        except FileNotFoundError:
            self._write_format(file)
            return
        except msgspec.DecodeError as error:
            hint = f'restore it, or write {{"version": {FORMAT_VERSION}}} if this release wrote the home'
            raise Damaged(f"{file} cannot be read: {error}", hint=hint) from None
        if found.version not in _FORMATS_READ:
            by = f", written by DoLake {found.written_by}" if found.written_by else ""
            raise Damaged(
                f"{self.path} has home format {found.version}{by}; this release reads 1 to {FORMAT_VERSION}",
                hint="use the release that wrote it, or a newer one; nothing was changed",
            )
        if found.version < FORMAT_VERSION:
            self._write_format(file)

    def _write_format(self, file: Path) -> None:
        """Durably, because an older release must refuse the home before it meets what it cannot read."""
        write_file_atomically(Disk(), file, msgspec.json.encode(_Format(FORMAT_VERSION, dolake.__version__)))

    def _remove_address(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / ADDRESS_FILE).unlink()
