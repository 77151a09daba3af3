"""Asking the catalog over HTTP with every byte as the test wrote it: paths are sent raw and nothing is retried."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.catalog.examples import ORDERS, Json, add, main, view_version

_snapshot_ids = itertools.count(1000)


@dataclass(frozen=True)
class Reply:
    """One answer; `body` is its JSON."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> Json:
        """The error of an answer that must be one, in Iceberg's shape."""
        error: Json = self.body["error"]
        assert set(error) == {"message", "type", "code", "hint"}, error
        assert error["code"] == self.status
        assert isinstance(error["message"], str)
        assert error["message"]
        return error

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.error["type"]

    @property
    def metadata(self) -> Json:
        assert self.status == 200, self.raw
        found: Json = self.body["metadata"]
        return found


@dataclass(frozen=True)
class Asker:
    """A catalog at `url`, with `base` before each path. Answers that are errors of ours fail the test at once."""

    url: str
    base: str = "/v1"

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        base: str | None = None,
    ) -> Reply:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        try:
            connection.request(method, (self.base if base is None else base) + path, body=data, headers=headers or {})
            answer = connection.getresponse()
            reply = Reply(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        assert reply.status < 500, reply
        return reply

    # --- what most tests begin with ----------------------------------------------------------------------------------

    def namespace(self, *levels: str, **properties: str) -> str:
        """Create it; its path."""
        reply = self("POST", "/namespaces", {"namespace": list(levels), "properties": properties})
        assert reply.status == 200, reply
        return namespace_path(*levels)

    def table(self, namespace: str, name: str = "t", **fields: Any) -> Reply:
        return self("POST", f"{namespace}/tables", table_body(name, **fields))

    def view(self, namespace: str, name: str = "v", **fields: Any) -> Reply:
        return self("POST", f"{namespace}/views", view_body(name, **fields))

    def commit(
        self, table: str, *updates: Json, needs: Sequence[Json] = (), headers: dict[str, str] | None = None
    ) -> Reply:
        return self("POST", table, {"requirements": list(needs), "updates": list(updates)}, headers)

    def append(self, table: str) -> Reply:
        """Load, then add a snapshot to main, as a writer does."""
        return self.commit(table, *snapshot_updates(self("GET", table).metadata))


def eventually(is_true: Callable[[], bool]) -> None:
    """Wait for what follows an answer a moment later, such as the hint of a commit."""
    give_up_at = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.005)


def namespace_path(*levels: str) -> str:
    return "/namespaces/" + "%1F".join(quote(level, safe="") for level in levels)


def table_body(name: str = "t", **fields: Any) -> Json:
    return {"name": name, "schema": ORDERS} | {key.replace("_", "-"): value for key, value in fields.items()}


def view_body(name: str = "v", **fields: Any) -> Json:
    made = {"name": name, "schema": ORDERS, "view-version": view_version(), "properties": {}}
    return made | {key.replace("_", "-"): value for key, value in fields.items()}


def snapshot_updates(metadata: Json, id_: int | None = None, summary: dict[str, str] | None = None) -> list[Json]:
    """One more snapshot on main, without any data: what a catalog looks at is all there."""
    id_ = next(_snapshot_ids) if id_ is None else id_
    made: Json = {
        "snapshot-id": id_,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{metadata['location']}/metadata/snap-{id_}.avro",
        "summary": {"operation": "append"} | (summary or {}),
        "schema-id": metadata["current-schema-id"],
    }
    if metadata["current-snapshot-id"] not in (None, -1):
        made["parent-snapshot-id"] = metadata["current-snapshot-id"]
    return [add(made), main(id_)]


def main_is(metadata: Json) -> Json:
    """The requirement that nobody has written to main since."""
    current = metadata["current-snapshot-id"]
    wanted = None if current in (None, -1) else current
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": wanted}


def set_properties(**properties: str) -> Json:
    return {"action": "set-properties", "updates": properties}


def lineage(metadata: Json) -> list[int]:
    """The snapshots of main, oldest first."""
    by_id = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    found, at = [], metadata["current-snapshot-id"]
    while at in by_id:
        found.append(at)
        at = by_id[at].get("parent-snapshot-id")
    return found[::-1]
