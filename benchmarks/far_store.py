"""An S3 store that is far away, in a process of its own: moto's server behind a proxy that waits before each request.

From cloud.py. Others reach the same store through a second proxy, so that `take_log` has the lake's own requests alone.
Promise: leaving the `with` block leaves no process behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tools.faulty_proxy import faulty_proxy
from tools.s3_server import KEY, SECRET, s3_server

Logged = tuple[str, str, int]
_END_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class FarStore:
    """One bucket of it."""

    bucket: str
    port: int
    others_port: int
    _link: Connection

    @property
    def environ(self) -> dict[str, str]:
        """Of a server whose tables are there."""
        return {
            "DOLAKE_STORAGE_LOCATION": f"s3://{self.bucket}/lake",
            "DOLAKE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "DOLAKE_STORAGE_ACCESS_KEY_ID": KEY,
            "DOLAKE_STORAGE_SECRET_ACCESS_KEY": SECRET,
        }

    @property
    def secret_sql(self) -> str:
        """How DuckDB gets there."""
        return (
            f"CREATE SECRET own (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', ENDPOINT '127.0.0.1:{self.others_port}',"
            " URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
        )

    def take_log(self) -> list[Logged]:
        """The lake's requests since the last time."""
        self._link.send("log")
        found: list[Logged] = self._link.recv()
        return found


@contextlib.contextmanager
def far_store(delay_ms: int) -> Iterator[FarStore]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=[delay_ms, theirs], daemon=True)
    process.start()
    try:
        told: dict[str, Any] = ours.recv()
        yield FarStore(**told, _link=ours)
    finally:
        with contextlib.suppress(OSError):
            ours.send("end")
        process.join(_END_WAIT_S)
        process.kill()
        process.join()


def _serve(delay_ms: int, link: Connection) -> None:
    with s3_server() as store, faulty_proxy(store.port) as lake, faulty_proxy(store.port) as others:
        lake.delay_ms = others.delay_ms = delay_ms
        link.send({"bucket": store.new_bucket(), "port": lake.port, "others_port": others.port})
        with contextlib.suppress(EOFError):  # whoever started us is gone
            while link.recv() == "log":
                found, lake.log = lake.log, []
                link.send(found)
