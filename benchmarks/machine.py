"""What surrounds every benchmark: a home that goes away, a way to end it, and on which machine it ran.

From every benchmark; their reports must name all this to be comparable.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PACKAGES = ("dolake", "aiohttp", "msgspec", "numpy", "google-crc32c", "uvloop")


@contextlib.contextmanager
def temporary_home(parent: Path | None) -> Iterator[Path]:
    """A folder below `parent`, gone afterwards; without one, on a disk."""
    # Not the default temporary folder: where that one is in memory, syncs cost nothing and gigabytes do.
    disk = Path("/var/tmp")  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="dolake-bench-", dir=parent or (disk if disk.is_dir() else None)) as name:
        yield Path(name)


@contextlib.contextmanager
def terminate_as_exit() -> Iterator[None]:
    """A SIGTERM to the bench unwinds it as Ctrl-C does, so that no server and no gigabytes stay behind."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread, where signals never arrive
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def machine_of(folder: Path) -> dict[str, Any]:
    """Which machine this is, and what kind of disk the folder is on."""
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "file_system": _file_system(folder),
    }


def versions_of(*more: str) -> dict[str, str]:
    """Python's, and those of the packages that a server runs on and of `more`, where they are installed."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit_of_repository() -> str | None:
    """What was measured, as git names it; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def machine_cpu_s() -> float:
    """How long the machine's cores have worked since it started, for whomever."""
    times: dict[str, float] = psutil.cpu_times()._asdict()
    return sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str | None:
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else None


# --- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What stands around a run's figures; made when it starts."""

    benchmark: str
    folder: Path
    packages: Sequence[str] = ()
    began_s: float = field(default_factory=time.monotonic)
    began_cpu_s: float = field(default_factory=machine_cpu_s)

    def report(self, figures: dict[str, Any], floors: Iterable[dict[str, Any]], out: Path | None) -> dict[str, Any]:
        """The whole report; `out` also gets it as JSON."""
        report = {
            "benchmark": self.benchmark,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit_of_repository(),
            "machine": machine_of(self.folder),
            "versions": versions_of(*self.packages),
            "busy_cores": round((machine_cpu_s() - self.began_cpu_s) / (time.monotonic() - self.began_s), 2),
            **figures,
            "floors": list(floors),
        }
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=2) + "\n")
        return report


def at_most(name: str, measured: float, floor: float) -> dict[str, Any]:
    """A promise with what was measured, and whether it was kept."""
    return {"name": name, "measured": measured, "at_most": floor, "met": measured <= floor}


def at_least(name: str, measured: float, floor: float) -> dict[str, Any]:
    return {"name": name, "measured": measured, "at_least": floor, "met": measured >= floor}


def progress_bars() -> Progress:
    """For a terminal; nothing elsewhere. A bar's `note` stands at its end."""
    return Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        disable=not sys.stdout.isatty(),
    )
