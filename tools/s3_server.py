"""An S3 server for tests: moto's, in a thread of this process, with one bucket for each lake that asks.

Promise: `requests` counts what came in by method; with `is_down` the store answers nobody, with `lose_answers` it does
what it is asked and says something else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import botocore.session

from dolake.settings import StorageSettings
from tools.s3_guard import Guard

KEY, SECRET = "dolake-test-key", "dolake-test-secret"
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class S3Server:
    """One store; buckets have names of their own."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.requests: Counter[str] = Counter()
        self.log: list[tuple[str, str]] = []
        self._moto: Application = DomainDispatcherApplication(create_backend_app)
        self._numbers = itertools.count(1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.is_down = False
        self.lose_answers = 0
        """How many of the next writes are done and not confirmed."""
        self.has_conditions = True
        self.guard: Guard | None = None
        """Who looks at signatures and rights; without one everybody may do everything, as moto has it."""
        self._start()

    def _start(self) -> None:
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="moto", daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], respond: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests[method] += 1
        self.log.append((method, path))
        if self.is_down:
            return _refused(respond, "503 Slow Down", "SlowDown")
        if not self.has_conditions and "HTTP_IF_NONE_MATCH" in environ:
            return _refused(respond, "501 Not Implemented", "NotImplemented")
        if self.guard:
            return self.guard.answer(environ, respond, self._moto)
        if self.lose_answers and method == "PUT":
            self.lose_answers -= 1
            list(self._moto(environ, lambda *_: None))
            return _refused(respond, "500 Internal Server Error", "InternalError")
        return self._moto(environ, respond)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        session = botocore.session.Session()
        session.set_credentials(KEY, SECRET)
        return session.create_client("s3", region_name="us-east-1", endpoint_url=self.endpoint)

    def new_bucket(self) -> str:
        name = f"lake-{next(self._numbers)}"
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def settings(self, location: str, **more: Any) -> StorageSettings:
        """Of a lake in this store."""
        given: dict[str, Any] = {
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "endpoint": self.endpoint,
            "timeout_ms": 5_000,
        }
        return StorageSettings(location=location, **(given | more))

    def environment(self, location: str) -> dict[str, str]:
        """The same for a server of its own."""
        return {
            "DOLAKE_STORAGE_LOCATION": location,
            "DOLAKE_STORAGE_ENDPOINT": self.endpoint,
            "DOLAKE_STORAGE_ACCESS_KEY_ID": KEY,
            "DOLAKE_STORAGE_SECRET_ACCESS_KEY": SECRET,
            "DOLAKE_STORAGE_TRIES_MAX": "2",  # so that a store that is down is known to be, soon
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _refused(respond: Any, status: str, code: str) -> Iterable[bytes]:
    respond(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>try later</Message></Error>".encode()]


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.close()
