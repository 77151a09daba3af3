"""A lake in a store that looks at signatures and rights, with tokens: for tests of what its clients are given."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from tests.support.server import ServerProcess
from tools.s3_guard import EVERYTHING, READING, Guard
from tools.s3_server import KEY, SECRET, S3Server

READ_KEY, READ_SECRET = "dolake-read-key", "dolake-read-secret"
ROLE = "arn:aws:iam::123456789012:role/lake"
TOKENS = {
    "admin": ("admin", []),
    "reader": ("read", []),
    "writer": ("write", []),
    "reader_a": ("read", ["tenant_a"]),
    "writer_a": ("write", ["tenant_a"]),
    "writer_b": ("write", ["tenant_b"]),
}
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}
VENDED, SIGNED = "vended-credentials", "remote-signing"


class StoreLake:
    """A running server on a bucket, the store's guard, and a token of each kind."""

    def __init__(self, server: ServerProcess, s3: S3Server, guard: Guard, bucket: str) -> None:
        self.server, self.s3, self.guard, self.bucket = server, s3, guard, bucket
        self.tokens: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self.server.url

    def ask(
        self, who: str, method: str, path: str, body: Any = None, *, asks: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """As this token; `asks` is how it wants to reach the files."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()} | {"Content-Type": "application/json"}
        if who in self.tokens:
            sent["Authorization"] = f"Bearer {self.tokens[who]}"
        if asks is not None:
            sent["X-Iceberg-Access-Delegation"] = asks
        status, answer = self.server.get(f"/v1{path}", method=method, body=body, headers=sent)
        return int(status), answer

    def make_tokens(self) -> None:
        """From now on everybody needs one."""
        for name, (scope, namespaces) in TOKENS.items():
            now_ms = time.time_ns() // 1_000_000
            token, self.tokens[name] = mint(name, [scope], namespaces, [], now_ms=now_ms, expires_ms=None)
            TokenFile(self.server.home).add(token)
        while (
            any(self.ask(who, "GET", "/config")[0] != 200 for who in TOKENS) or self.ask("", "GET", "/config")[0] == 200
        ):
            time.sleep(0.05)

    def create(self, namespace: str, name: str, **more: Any) -> str:
        """A table, and where it lies."""
        self.ask("admin", "POST", "/namespaces", {"namespace": [namespace]})
        body = {"name": name, "schema": SCHEMA} | more
        status, answer = self.ask("admin", "POST", f"/namespaces/{namespace}/tables", body)
        assert status == 200, answer
        return str(answer["metadata"]["location"])

    def adopt(self, namespace: str, name: str) -> None:
        status, answer = self.ask("admin", "POST", f"/namespaces/{namespace}/tables/{name}/adopt")
        assert status == 200, answer

    def put(self, location: str, data: bytes = b"x") -> None:
        """With the lake's own keys."""
        bucket, _, key = location.removeprefix("s3://").partition("/")
        client = self.s3.client()
        client.put_object(Bucket=bucket, Key=key, Body=data)
        client.close()


@contextlib.contextmanager
def store_lake(home: Path, s3: S3Server, *, is_open: bool = False, **settings: str) -> Iterator[StoreLake]:
    """With these settings of the section storage; open, it has no tokens yet."""
    guard, bucket = Guard(), s3.new_bucket()
    guard.add(KEY, SECRET, EVERYTHING)
    guard.add(READ_KEY, READ_SECRET, READING)
    environ = s3.environment(f"s3://{bucket}/lake")
    environ |= {f"DOLAKE_STORAGE_{name.upper()}": value for name, value in settings.items()}
    before, s3.guard = s3.guard, guard
    try:
        with ServerProcess(home, environ=environ) as server:
            lake = StoreLake(server, s3, guard, bucket)
            if not is_open:
                lake.make_tokens()
            yield lake
    finally:
        s3.guard = before
