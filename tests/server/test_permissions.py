"""Every route and every message, asked with every kind of token: the answers are written down in permission_rows.py."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from dolake.catalog import rest as catalog_rest
from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from dolake.server.app import ROUTES as OPERATORS
from dolake.server.permissions import PERMISSIONS
from dolake.subscriptions.requests import Said
from dolake.wire.messages import ReceivedMessage
from tests.server import permission_rows as table
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event

pytestmark = pytest.mark.own_lake  # it has tokens

HEADER, *LINES = [line.split() for line in table.ROUTES.strip().splitlines()]
COLUMNS = HEADER[1:9] + [f"lake_{each}" for each in HEADER[9:]]
SCOPES = ("ingest", "read", "write", "admin")
SERVED = {"GET /", "GET /ws", "GET /openapi.json"}
SERVED |= {f"{method} {path}" for method, path, _ in OPERATORS}
SERVED |= {f"{method} /v1{path}" for method, path, _ in catalog_rest.ROUTES}
_addresses = itertools.count(1)


@dataclass(frozen=True)
class Row:
    route: str
    expected: dict[str, str]
    is_changing: bool


def rows() -> dict[str, Row]:
    found = {}
    for line in LINES:
        is_changing = line[0] == "!"
        method, path, *cells = line[1:] if is_changing else line
        found[f"{method} {path}"] = Row(f"{method} {path}", dict(zip(COLUMNS, cells, strict=True)), is_changing)
    return found


ROWS = rows()


class Tenants:
    """A server with two tenants, and a token of each kind for the first."""

    def __init__(self, server: ServerProcess, tokens: dict[str, str]) -> None:
        self.server, self.tokens = server, tokens
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._opened: list[http.client.HTTPConnection] = []

    def ask(self, method: str, path: str, body: str | None = None, *, kind: str = "lake_admin") -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if kind in self.tokens:
            headers["Authorization"] = f"Bearer {self.tokens[kind]}"
        connection = self._connections.get(kind) or self._connect(kind)
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _connect(self, kind: str) -> http.client.HTTPConnection:
        """For a stranger from an address of its own each time, because failures of one address are slowed."""
        number = next(_addresses)
        source = f"127.1.{number // 250}.{number % 250 + 1}", 0
        host = self.server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=60, source_address=source)
        self._opened.append(connection)
        if kind in self.tokens:
            self._connections[kind] = connection
        return connection

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def restore(self) -> None:
        """What rows expect to be there, and nothing else."""
        for ns in ("tenant_a", "tenant_b"):
            self.ask("POST", "/v1/namespaces", json.dumps({"namespace": [ns]}))
            for kind, name in itertools.product(("tables", "views"), ("t", "v", "new")):
                self.ask("DELETE", f"/v1/namespaces/{ns}/{kind}/{name}?force=true")
            for kind, name in (("tables", "t"), ("views", "v")):
                body = self.filled(table.BODIES[f"POST /v1/namespaces/{{namespace}}/{kind}"], ns)
                assert self.ask("POST", f"/v1/namespaces/{ns}/{kind}", body.replace('"new"', f'"{name}"'))[0] == 200

    def filled(self, body: str, ns: str) -> str:
        return body.replace("$ns", ns).replace("$root", f"file://{self.server.home.resolve()}/warehouse")


def tokens_in(home: Path) -> dict[str, str]:
    found = {}
    for prefix, namespaces, sources in (("", ["tenant_a"], ["a-*"]), ("lake_", [], [])):
        for scope in SCOPES:
            token, found[prefix + scope] = mint(
                prefix + scope, [scope], namespaces, sources, now_ms=time.time_ns() // 1_000_000, expires_ms=None
            )
            TokenFile(home).add(token)
    return found


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    home = tmp_path_factory.mktemp("permissions")
    tokens = tokens_in(home)
    with ServerProcess(home) as server:
        found = Tenants(server, tokens)
        found.restore()
        yield found
        found.close()


def test_every_route_has_a_row_and_a_need_and_nothing_else_has() -> None:
    assert set(ROWS) == SERVED
    assert set(PERMISSIONS) == SERVED


@pytest.mark.parametrize("route", sorted(ROWS))
def test_each_token_gets_the_answer_that_is_written_down(tenants: Tenants, route: str) -> None:
    row = ROWS[route]
    method, _, path = row.route.partition(" ")
    known = {"table": "t", "view": "v", "job": "job-1", "query": "q1", "subscription": "s", "key": "1", "plan-id": "p"}
    got = {}
    for column, expected in row.expected.items():
        if expected == "-":
            continue
        ns = "tenant_b" if column.endswith("_b") else "tenant_a"
        body = tenants.filled(table.BODIES[row.route], ns) if row.route in table.BODIES else None
        asked = re.sub(r"{([\w-]+)}", lambda part: known.get(part[1]) or ns, path)  # noqa: B023 - used at once
        status, answer = tenants.ask(method, asked, body, kind=column.removesuffix("_b"))
        got[column] = str(status)
        if row.is_changing and status < 300:
            tenants.restore()
        if not column.startswith("lake_") and ns == "tenant_a":  # an answer may name what was asked for, and no other
            assert b"tenant_b" not in answer, (column, answer)
    assert got == {column: expected for column, expected in row.expected.items() if expected != "-"}


# --- messages --------------------------------------------------------------------------------------------------------


def message_rows(text: str) -> dict[str, dict[str, str]]:
    header, *lines = [line.split() for line in text.strip().splitlines()]
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def tags_of(union: Any) -> set[str]:
    return {str((getattr(each, "__origin__", each)).__struct_config__.tag) for each in get_args(union)}


def test_every_message_has_a_row() -> None:
    assert set(message_rows(table.MESSAGES)) == tags_of(ReceivedMessage)
    assert set(message_rows(table.SUBSCRIBER_MESSAGES)) == tags_of(Said)


def said(kind: str, source: str, name: str) -> dict[str, Any]:
    head = {"type": kind, "timestamp": 1, "sourceDoId": source, "correlationId": "c"}
    match kind:
        case "cdc_batch":
            sequence = time.time_ns()
            return head | batch(1, [event(sequence, table=name)], source=source)
        case "connect" | "heartbeat":
            return head | {"lastAckSequence": 0}
        case _:
            return head | {"reason": "manual"}


@pytest.mark.parametrize("kind", sorted(message_rows(table.MESSAGES)))
async def test_each_message_gets_the_answer_that_is_written_down(tenants: Tenants, kind: str) -> None:
    for column, expected in message_rows(table.MESSAGES)[kind].items():
        if expected == "-":
            continue
        source = "b-1" if column == "other_source" else "a-1"
        name = "tenant_b.t" if column == "other_table" else "tenant_a.t"
        headers = {"Authorization": f"Bearer {tenants.tokens['ingest']}"}
        async with Speaker(tenants.server.url, headers=headers) as speaker:
            answer = await speaker.ask(said(kind, source, name))
            assert answer["type"] == expected, (column, answer)
            if expected == "nack":
                assert (answer["reason"], answer["shouldRetry"]) == ("invalid_format", False)


async def test_a_refused_source_takes_no_stream_over(tenants: Tenants) -> None:
    lake = {"Authorization": f"Bearer {tenants.tokens['lake_ingest']}"}
    mine = {"Authorization": f"Bearer {tenants.tokens['ingest']}"}
    async with Speaker(tenants.server.url, headers=lake) as owner:
        assert (await owner.connect("b-9"))["type"] == "status"
        async with Speaker(tenants.server.url, headers=mine) as thief:
            assert (await thief.connect("b-9"))["reason"] == "invalid_format"
        answer = await owner.ask(batch(1, [event(1, table="tenant_b.t")], source="b-9"))
        assert answer["type"] == "ack"
        await asyncio.sleep(0)
