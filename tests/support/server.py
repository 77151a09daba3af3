"""A real `dolake serve` in a process of its own, to be stopped, killed and started again on the same home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_START_WAIT_S = 60.0


class ServerProcess:
    """Use as a context manager; whatever happens, no process is left behind."""

    def __init__(self, home: Path, *, settings: str = "", environ: dict[str, str] | None = None) -> None:
        self.home = home
        self.home.mkdir(parents=True, exist_ok=True)
        if settings:
            (home / "dolake.toml").write_text(settings)
        self._environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
        self._environ |= environ or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self._port = 0

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text() if (self.home / "server.log").exists() else ""

    def start(self, *, wait: bool = True) -> None:
        """Start on the port of last time, so that clients find the server again."""
        assert self._process is None, "already running"
        command = [sys.executable, "-m", "dolake.cli", "serve", "--home", str(self.home), "--port", str(self._port)]
        address = self.home / "server.json"
        address.unlink(missing_ok=True)
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        assert self._process is not None
        address = self.home / "server.json"
        deadline = time.monotonic() + _START_WAIT_S
        while not address.exists():
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.log}")
            assert time.monotonic() < deadline, f"the server did not become ready:\n{self.log}"
            time.sleep(0.01)
        self.url = json.loads(address.read_text())["url"]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL: no time to say goodbye."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=60)
        self._process = None
        return code

    def wait_exit(self) -> int:
        """Wait for a server that ends by itself."""
        assert self._process is not None
        code = self._process.wait(timeout=60)
        self._process = None
        return code

    def get(self, path: str, *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Ask over HTTP: (status, decoded JSON or text)."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                status, raw = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, raw = error.code, error.read()
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode()
