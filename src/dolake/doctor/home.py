"""The home's folder: may it be written, is it whole, is its disk large and quick enough, does a server use it."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dolake.backup.base import refuse_unfinished
from dolake.doctor.base import Finding, in_words, ok, problem, warning
from dolake.errors import Damaged, NotFound
from dolake.journal.mark import MarkFile
from dolake.settings import JournalSettings

_SYNC_SLOW_S = 0.05
_SYNCS = 10
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs")
_VOLATILE = ("tmpfs", "ramfs")


def check_home(home: Path, settings: JournalSettings) -> Iterator[Finding]:
    folder = _nearest(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield problem("home", f"{folder} may not be written", f"chown {_user()} {folder}, or choose another --home")
        return
    try:
        refuse_unfinished(home)
    except Damaged as error:
        yield problem("home", error.message, error.hint)
        return
    yield ok("home", str(home) if home.is_dir() else f"{home} will be made")
    yield _file_system(folder)
    yield _room(home, folder, settings)
    yield _sync(folder)


def newest_ms(home: Path) -> int:
    """When the journal's newest batch became durable; 0 where there is none."""
    try:
        mark_file = MarkFile(home / "journal", writable=False)
    except NotFound:
        return 0
    try:
        return mark.commit_timestamp_ms if (mark := mark_file.read()) else 0
    finally:
        mark_file.close()


def _nearest(path: Path) -> Path:
    """The folder itself, or the one above it that exists."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _file_system(folder: Path) -> Finding:
    mounted = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    kind = max(mounted, key=lambda part: len(part.mountpoint)).fstype if mounted else "unknown"
    if kind in _NETWORK:
        return problem("file system", f"{kind}, a network's", "a home belongs on a local disk that honours fdatasync")
    if kind in _VOLATILE:
        return warning("file system", f"{kind}, which is memory", "nothing survives a power failure there: use a disk")
    return ok("file system", kind)


def _room(home: Path, folder: Path, settings: JournalSettings) -> Finding:
    free = shutil.disk_usage(folder).free
    used = sum(path.stat().st_size for path in (home / "journal").glob("*.segment"))
    may_grow = max(0, settings.size_max_bytes + settings.segment_size_bytes - used)
    found = f"{in_words(free)} free; the journal may take {in_words(may_grow)} more while nothing is published"
    if free < 2 * settings.segment_size_bytes:
        return problem("disk", found, "free some space: two segments are the least that the journal needs")
    if free < may_grow:
        remedy = "free some space, or lower journal.size_max_bytes, so that its limit is met before the disk's"
        return warning("disk", found, remedy)
    return ok("disk", found)


def _sync(folder: Path) -> Finding:
    """How long a small write takes until it is safe: every acknowledgement waits for one."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(time.perf_counter() - began)
    median_s = statistics.median(times)
    found = f"a sync takes {1000 * median_s:.1f} ms"
    if median_s > _SYNC_SLOW_S:
        remedy = (
            "use a quicker disk, or see who else is busy on this one (iotop): each acknowledgement waits for a sync"
        )
        return warning("sync", found, remedy)
    return ok("sync", found)


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):
        return psutil.Process().username()
    return "<user>"
