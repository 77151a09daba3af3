"""A `dolake serve` as a child process: started, killed and started again on the same home and port.

For the demo, the benchmarks and the tests. Promise: leaving the `with` block leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dolake.errors import Unavailable

COMMAND = (sys.executable, "-m", "dolake.cli", "serve")
_START_WAIT_S = 60.0
_STOP_WAIT_S = 60.0
_LOG_TAIL_CHARACTERS = 2000


class ChildServer:
    """One server at a time, on one home.

    With Spark, which takes seconds to start, only where it is asked for; with SQL where there is Spark, or as told.
    """

    def __init__(
        self,
        home: Path,
        *,
        settings: str = "",
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        has_pipeline: bool = False,
        has_queries: bool | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        if settings:
            (home / "dolake.toml").write_text(settings)
        self.home = home
        self.url = ""
        # The settings of whoever runs us are not meant for this server.
        ours = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
        parts = {
            "DOLAKE_PIPELINE_ENABLED": str(has_pipeline).lower(),
            "DOLAKE_QUERY_ENABLED": str(has_pipeline if has_queries is None else has_queries).lower(),
        }
        self._environ = ours | parts | dict(environ or {})
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        """What the server has said so far."""
        path = self.home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True) -> None:
        """Start, on the port of last time, so that clients find the server again."""
        command = [*self._command, "--home", str(self.home), "--port", str(self._port)]
        (self.home / "server.json").unlink(missing_ok=True)
        with (self.home / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we stop the server in order.
            self._process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise

    def wait_ready(self) -> None:
        process = self._running()
        give_up_at = time.monotonic() + _START_WAIT_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(FileNotFoundError):
                self.url = json.loads((self.home / "server.json").read_text())["url"]
                self._port = int(self.url.rpartition(":")[2])
                return
            if process.poll() is not None:
                raise Unavailable(f"the server ended with exit code {process.returncode}", hint=self._last_words())
            time.sleep(0.01)
        raise Unavailable(f"the server was not ready within {_START_WAIT_S:.0f} s", hint=self._last_words())

    def kill(self) -> None:
        """SIGKILL: no time to say goodbye."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._running().send_signal(signal.SIGTERM)
        return self.wait_exit(_STOP_WAIT_S)

    def wait_exit(self, timeout_s: float | None = None) -> int:
        """Wait for a server that ends by itself; returns its exit code."""
        code = self._running().wait(timeout_s)
        self._process = None
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Unavailable("the server is not running", hint="start it first")
        return self._process

    def _last_words(self) -> str:
        return f"the last it said:\n{self.log[-_LOG_TAIL_CHARACTERS:]}"
