"""The demo's processes: the lake, the source that follows the shop's files, and the shop itself.

From demo.py. Promise: leaving the `with` block leaves no process behind, whatever happened inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from dolake.cli.child import ChildServer
from dolake.cli.demo_shop import TABLES, file_of
from dolake.errors import Unavailable
from dolake.sources.base import SourceStatus
from dolake.sources.configured import view_of
from dolake.sources.sqlite import is_attached, status
from dolake.sources.sqlite.lake_view import LakeView

_STOP_WAIT_S = 30.0
_LOOK_EVERY_S = 0.1


class Stage:
    """Use as a context manager. The server runs inside; source and shop are started when the story needs them."""

    def __init__(self, folder: Path, rate: int) -> None:
        self.shop = folder / "shop"
        self.shop.mkdir(parents=True)
        self.server = ChildServer(folder / "lake", has_pipeline=True)
        self.rate = rate
        self._view = LakeView()
        self._source: subprocess.Popen[bytes] | None = None
        self._seller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._seller, self._source):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        self.server.__exit__(kind, error, trace)

    @property
    def files(self) -> list[Path]:
        return [file_of(self.shop, table) for table in TABLES]

    def start_source(self) -> None:
        """`dolake source sqlite FILE... --to URL`, as anybody would type it."""
        command = [
            sys.executable,
            "-m",
            "dolake.cli",
            "source",
            "sqlite",
            *map(str, self.files),
            "--to",
            self.server.url,
        ]
        self._source = self._start(command, "source.log")

    def start_selling(self) -> None:
        self._seller = self._start(
            [sys.executable, "-m", "dolake.cli.demo_shop", str(self.shop), str(self.rate)], "seller.log"
        )

    def stop_selling(self) -> None:
        if self._seller:
            _stop(self._seller)
            self._seller = None

    def stop(self) -> None:
        """In the direction of the data."""
        self.stop_selling()
        if self._source:
            _stop(self._source)
            self._source = None
        self.server.stop()

    def standing(self) -> list[SourceStatus]:
        """How far each file is, by what the lake says."""
        for name, process in (("source", self._source), ("shop", self._seller)):
            if process and process.poll() is not None:
                words = (self.shop.parent / f"{'seller' if name == 'shop' else name}.log").read_text(errors="replace")
                raise Unavailable(f"the {name} ended with exit code {process.returncode}", hint=words[-2000:])
        with contextlib.suppress(Unavailable):  # while it is down, what it said last
            self._view = asyncio.run(view_of(self.server.url, None))
        return [status(path, self._view) for path in self.files if is_attached(path)]

    async def told(self, wait_s: float) -> float:
        """Wait until the lake has acknowledged everything that the files have; returns how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < wait_s:
            found = await asyncio.to_thread(self.standing)
            if len(found) == len(TABLES) and not any(each.pending or each.is_copying for each in found):
                return time.monotonic() - began
            await asyncio.sleep(_LOOK_EVERY_S)
        raise Unavailable(f"the lake did not have everything after {wait_s:.0f} s", hint="is the machine very busy?")

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.shop.parent / log).open("ab") as written:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
