"""A real `dolake serve` in a process of its own, to be asked over HTTP, stopped, killed and started again."""

from __future__ import annotations

import contextlib
import json
import re
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from dolake import crashpoints
from dolake.cli.child import ChildServer

_QUERIES_WAIT_S = 180.0
_FLUSH_WAIT_S = 240.0
_WAIT_S = 240.0
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
        self._write_crash_file(point)

    @contextlib.contextmanager
    def holding(self, point: str) -> Iterator[Callable[[], None]]:
        """The process that reaches this point waits there until the block ends; the block can wait until it does."""
        assert point in crashpoints.POINTS
        self._write_crash_file(f"hold {point}")
        try:
            yield lambda: wait_for(lambda: self._crash_file.read_text() == crashpoints.HELD, f"held at {point}")
        finally:
            self._crash_file.unlink()

    def _write_crash_file(self, text: str) -> None:
        written = self._crash_file.with_suffix(".new")
        written.write_text(text)
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


def wait_for(is_so: Callable[[], bool], what: str, *, wait_s: float = _WAIT_S) -> None:
    """Until this is so. The report of a test that fails has the server's log."""
    give_up_s = time.monotonic() + wait_s
    while not is_so():
        assert time.monotonic() < give_up_s, f"never: {what}"
        time.sleep(0.02)


def wait_for_metrics(server: ServerProcess, *lines: str) -> None:
    """Until /metrics has these lines: the pipeline's report of a publish may come after a flush is answered."""

    def has_lines() -> bool:
        text = server.get("/metrics")[1]
        return all(line in text for line in lines)

    wait_for(has_lines, f"metrics {lines}")


def post(server: ServerProcess, path: str, /, **body: Any) -> dict[str, Any]:
    """As any HTTP client would: the answer, which must be a good one."""
    status, answer = server.get(path, method="POST", body=body, headers={"Content-Type": "application/json"})
    assert status < 300, (status, answer)
    assert isinstance(answer, dict)
    return answer


def refusal(server: ServerProcess, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a request that must be refused."""
    status, answer = server.get(path, method="POST", body=body, headers={"Content-Type": "application/json"})
    assert status >= 400, answer
    return status, answer["error"]


def query(server: ServerProcess, sql: str, **more: Any) -> list[dict[str, Any]]:
    """The rows that our own SQL has."""
    rows: list[dict[str, Any]] = post(server, "/v1/query", sql=sql, **more)["rows"]
    return rows


def status_of(server: ServerProcess) -> dict[str, Any]:
    status: dict[str, Any] = server.get("/status")[1]
    return status


def is_published(server: ServerProcess) -> bool:
    """Everything that is durable is in the tables."""
    status = status_of(server)
    return bool(status["committedPosition"] == status["durablePosition"])


def job_ended(server: ServerProcess, job_id: str) -> dict[str, Any]:
    """A job of upkeep, once it has ended in whatever way."""
    path = f"/v1/compaction/jobs/{job_id}"
    wait_for(lambda: server.get(path)[1]["state"] not in ("queued", "running"), "the job ends")
    job: dict[str, Any] = server.get(path)[1]
    return job


def run_job(server: ServerProcess, **body: Any) -> dict[str, Any]:
    """Ask for a job of upkeep, which is done well."""
    job = job_ended(server, post(server, "/v1/compaction/run", **body)["jobId"])
    assert job["state"] == "done", job
    return job


def children_of(server: ServerProcess, module: str) -> list[psutil.Process]:
    """The server's processes of this module that are alive."""
    found = []
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.Error):  # one that has just ended has no command line any more
            if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


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
