"""A real `dolake serve` in a process of its own, to be asked over HTTP, stopped, killed and started again."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from typing import Any, Self

from dolake.cli.child import ChildServer

_QUERIES_WAIT_S = 180.0


class ServerProcess(ChildServer):
    """Use as a context manager; whatever happens, no process is left behind."""

    def __enter__(self) -> Self:
        super().__enter__()
        if self._environ["DOLAKE_QUERY_ENABLED"] == "true":
            self._wait_for_queries()
        return self

    def _wait_for_queries(self) -> None:
        """A question waits ten seconds for the query process, which on a busy machine takes longer to start."""
        give_up_s = time.monotonic() + _QUERIES_WAIT_S
        while "query process started" not in self.log and time.monotonic() < give_up_s:
            time.sleep(0.05)

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
