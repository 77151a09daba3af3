"""Questions to a server's `POST /v1/query`, as a program asks them, and the process that answers.

From query.py, travel.py, live.py and ducklake.py. An Asker has one connection that stays open; its times are those of
whoever waits for the last byte and reads it. Promise: an answer that is an error is raised in the server's words.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import pyarrow as pa

from benchmarks.load import LoadError
from benchmarks.stream import Json
from dolake.cli.child import ChildServer
from dolake.errors import Unavailable

_ANSWER_TIME_MAX_S = 600.0
_READY_TIME_MAX_S = 60.0
_POLL_S = 0.05
_LAST_WORDS = 2_000


class Asker:
    """One who asks over HTTP; not for two threads at once."""

    def __init__(self, server: ChildServer) -> None:
        self._server = server
        address = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(address.netloc, timeout=_ANSWER_TIME_MAX_S)

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def wait_ready(self) -> None:
        """Until the process that answers has started."""
        give_up_at = time.monotonic() + _READY_TIME_MAX_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(_NotYet):
                self.json("SELECT 1 AS one")
                return
            time.sleep(_POLL_S)
        raise Unavailable("no query was answered", hint=self._server.log[-_LAST_WORDS:])

    def json(self, sql: str, params: list[Any] | None = None, **options: Any) -> Json:
        """The answer as it is by default."""
        found: Json = json.loads(self._ask({"sql": sql, "params": params or [], **options}))
        return found

    def arrow(self, sql: str, params: list[Any] | None = None, **options: Any) -> pa.Table:
        answer = self._ask({"sql": sql, "params": params or [], "format": "arrow", **options})
        with pa.ipc.open_stream(answer) as stream:
            return stream.read_all()

    def row(self, sql: str, params: list[Any] | None = None, **options: Any) -> tuple[Any, ...]:
        """The values of the first row."""
        return tuple(self.json(sql, params, **options)["rows"][0].values())

    def _ask(self, body: Json) -> bytes:
        self._connection.request("POST", "/v1/query", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise _NotYet(found.decode(errors="replace"))
        if answer.status != http.HTTPStatus.OK:
            raise LoadError(f"{body['sql']}: {answer.status} {found.decode(errors='replace')[:_LAST_WORDS]}")
        return found


class _NotYet(LoadError):
    """The process that answers is starting."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """The process below a server that answers questions."""

    process: psutil.Process

    @classmethod
    def of(cls, server: ChildServer) -> Self:
        for process in psutil.Process(server.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "dolake.query" in process.cmdline():
                    return cls(process)
        raise Unavailable("no process answers queries", hint=server.log[-_LAST_WORDS:])

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def forget_peak(self) -> None:
        """Count the most memory from now on, where the system lets us; otherwise since the start."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """The most resident memory, or that of now where the system does not say."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return round(int(line.split()[1]) * 1024 / 1e6, 1)
        return round(self.process.memory_info().rss / 1e6, 1)
