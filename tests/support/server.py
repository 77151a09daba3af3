"""A real `dolake serve` in a process of its own, to be asked over HTTP, stopped, killed and started again."""

from __future__ import annotations

import contextlib
import json
import re
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dolake import crashpoints
from dolake.cli.child import ChildServer

_QUERIES_WAIT_S = 180.0
_FLUSH_WAIT_S = 240.0
_LOG_CHARACTERS_SHOWN = 4_000
_running: list[ServerProcess] = []


def logs_of_running_servers() -> list[tuple[str, str]]:
    """For the report of a test that failed: title and end of the log of each server that runs."""
    return [(f"end of {each.home / 'server.log'}", each.log[-_LOG_CHARACTERS_SHOWN:]) for each in _running]


class ServerProcess(ChildServer):
    """Use as a context manager; whatever happens, no process is left behind."""

    def __init__(self, home: Path, *, environ: Mapping[str, str] | None = None, **more: Any) -> None:
        self._crash_file = home / "crash-at"
        super().__init__(home, environ={crashpoints.VARIABLE: str(self._crash_file)} | dict(environ or {}), **more)

    def __enter__(self) -> Self:
        super().__enter__()
        _running.append(self)
        if self._environ["DOLAKE_QUERY_ENABLED"] == "true":
            self._wait_for_queries()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self in _running:
            _running.remove(self)

    def _wait_for_queries(self) -> None:
        """A question waits ten seconds for the query process, which on a busy machine takes longer to start."""
        give_up_s = time.monotonic() + _QUERIES_WAIT_S
        while "query process started" not in self.log and time.monotonic() < give_up_s:
            time.sleep(0.05)

    @contextlib.contextmanager
    def configured(self, settings: str) -> Iterator[None]:
        """These settings, as in dolake.toml, for as long as the block takes, so that tests share one server."""
        changes = tomllib.loads(settings)
        self._configure(changes)
        try:
            yield
        finally:
            self._configure(_taken_back(changes))

    def _configure(self, changes: dict[str, Any]) -> None:
        status, answer = self.get("/v1/config", method="PATCH", body=changes)
        assert (status, answer["needsRestart"]) == (200, []), answer

    def flush(self) -> None:
        """Ask until all that is durable is in the tables: a busy machine may need longer than one request waits."""
        give_up_s, answer = time.monotonic() + _FLUSH_WAIT_S, None
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError):
                status, answer = self.get("/flush", method="POST")
                if status == 200 and answer["success"]:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not published: {answer}")

    def crash_at(self, point: str) -> None:
        """The process of this server that reaches this point next dies there."""
        assert point in crashpoints.POINTS
        written = self._crash_file.with_suffix(".new")
        written.write_text(point)
        written.replace(self._crash_file)

    @property
    def is_crash_due(self) -> bool:
        """The point of `crash_at` was not reached yet."""
        return self._crash_file.exists()

    def get(self, path: str, *, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """Ask over HTTP: (status, decoded JSON or text)."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                status, raw = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, raw = error.code, error.read()
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode()


def plans_made(server: ServerProcess) -> int:
    """How many scans the server has planned for engines."""
    _, text = server.get("/metrics")
    return int(float(re.findall(r'^dolake_scan_plans_total{outcome="ok"} (\S+)', text, re.MULTILINE)[0]))


def _taken_back(changes: dict[str, Any]) -> dict[str, Any]:
    """What makes each of these settings what it was; `tables` is one setting."""
    return {
        name: _taken_back(value) if isinstance(value, dict) and name != "tables" else None
        for name, value in changes.items()
    }
