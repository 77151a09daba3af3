"""Memory, open files, the clock and the port: what a server shares with the rest of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from dolake.doctor.base import Finding, in_words, ok, problem, warning
from dolake.settings import Settings

_FILES_MIN, _FILES_WANTED = 1_024, 8_192
_SERVER_BYTES = 512 * 1024 * 1024
_PYTHON_WORKER_BYTES = 300 * 1024 * 1024
_CLOCK_UNSYNCHRONISED = 5
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_machine(settings: Settings, newest_ms: int, now_ms: int, running_url: str | None) -> Iterator[Finding]:
    """`newest_ms` is the time of the journal's newest batch, 0 where there is none."""
    yield _memory(settings)
    yield _open_files()
    yield _clock(newest_ms, now_ms)
    yield _port(settings.server.host, settings.server.port, running_url)


def _memory(settings: Settings) -> Finding:
    cores = os.cpu_count() or 1
    wanted = _SERVER_BYTES
    if settings.pipeline.enabled:
        wanted += settings.pipeline.driver_memory_bytes + cores * _PYTHON_WORKER_BYTES
    if settings.query.enabled:
        wanted += settings.query.memory_max_bytes
    has = min([psutil.virtual_memory().total, *_cgroup_limits()])
    available = min(psutil.virtual_memory().available, has)
    found = f"{in_words(has)}, {in_words(available)} free, {cores} cores; a busy server takes up to {in_words(wanted)}"
    remedy = "lower pipeline.driver_memory_bytes and query.memory_max_bytes, or give the machine more memory"
    if has < wanted // 2:
        return problem("memory", found, remedy)
    return warning("memory", found, remedy) if available < wanted else ok("memory", found)


def _cgroup_limits() -> Iterator[int]:
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            yield int(path.read_text())


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} at once (ulimit -n), at most {hard:,}"
    remedy = f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}, or LimitNOFILE=65536 in the systemd unit"
    if 0 <= soft < _FILES_MIN:
        return problem("open files", f"{found}; each connection and each file of a table takes one", remedy)
    if 0 <= soft < _FILES_WANTED:
        return warning("open files", f"{found}; each connection takes one", remedy)
    return ok("open files", found)


def _clock(newest_ms: int, now_ms: int) -> Finding:
    if newest_ms > now_ms:
        behind_s = (newest_ms - now_ms) / 1000
        what = f"{behind_s:,.1f} s behind the newest batch of the journal; times of new batches stand still until then"
        return warning("clock", what, "set the clock: `timedatectl set-ntp true`, or start chrony or ntpd")
    if _kernel_says_unsynchronised():
        remedy = "`timedatectl set-ntp true`, or start chrony or ntpd: time travel goes by this clock"
        return warning("clock", "the kernel says that nobody keeps it right", remedy)
    return ok("clock", "in step with the journal")


def _kernel_says_unsynchronised() -> bool:
    """Asked without changing anything; where it cannot be asked, nobody is accused."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == _CLOCK_UNSYNCHRONISED)
    except (OSError, AttributeError):
        return False


def _port(host: str, port: int, running_url: str | None) -> Finding:
    if running_url:
        return ok("port", f"a server of this home answers at {running_url}")
    if port == 0:
        return ok("port", "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            remedy = "stop who listens there (`ss -ltnp` names it), or choose another with --port or server.port"
            return problem("port", f"{host}:{port} cannot be used: {error.strerror}", remedy)
    return ok("port", f"{host}:{port} is free")
