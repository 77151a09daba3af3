"""A real `dolake serve` in a process of its own, to be asked over HTTP, stopped, killed and started again."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from dolake.cli.child import ChildServer


class ServerProcess(ChildServer):
    """Use as a context manager; whatever happens, no process is left behind."""

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
