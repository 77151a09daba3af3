"""The real `dolake source sqlite` on one file, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dolake.sources.configured import view_of
from dolake.sources.sqlite import status
from dolake.sources.sqlite.lake_view import KnownStream
from tests.support.server import wait_for


@contextlib.contextmanager
def following(path: Path, url: str, name: str) -> Iterator[None]:
    """Follow the file as the stream `name`, with its tables in a namespace of that name, from its first state on."""
    command = [sys.executable, "-m", "dolake.cli", "source", "sqlite", str(path), "--to", url]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    log_path = path.parent / f"{path.stem}-source.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--source", name, "--namespace", name], env=environ, stdout=log, stderr=log
        )
    try:
        wait_for(lambda: process.poll() is not None or stream_of(url, name) is not None, "the source begins")
        assert process.poll() is None, log_path.read_text()[-3_000:]
        yield
        assert process.poll() is None, log_path.read_text()[-3_000:]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def stream_of(url: str, name: str) -> KnownStream | None:
    """What the lake knows about the stream; None as long as it has no state."""
    view = asyncio.run(view_of(url, None))
    return next((each for each in view.streams.values() if each.stream.source == name and each.state), None)


def wait_until_told(path: Path, url: str) -> None:
    """Until the lake has all that the file has."""

    def is_told() -> bool:
        found = status(path, asyncio.run(view_of(url, None)))
        return not found.pending and not found.is_copying

    wait_for(is_told, f"all of {path.name} is in the lake")
