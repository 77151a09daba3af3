"""Anything at all sent to every route of the OpenAPI document is answered in Iceberg's shape, and hurts nobody."""

from __future__ import annotations

import copy
import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolake.catalog.scans import PlanTask, Scan
from dolake.identity.grants import SCOPES
from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from dolake.server.openapi import openapi_document
from tests.catalog.asking import Asker, table_body, view_body
from tests.catalog.examples import Json, field, order, schema, snapshot, spec, view_version
from tests.support.property import examples
from tests.support.server import ServerProcess

pytestmark = pytest.mark.own_lake
DOCUMENT = openapi_document("/lakehouse")
ROUTES = [(method.upper(), path, each) for path, item in DOCUMENT["paths"].items() for method, each in item.items()]
ROUTES += 3 * [
    route for route in ROUTES if route[2]["operationId"].startswith(("commit_", "create_", "replace_", "plan_scan"))
]
SHOP_TABLE = {"namespace": ["shop"], "name": "t"}

# --- what nearly makes sense -----------------------------------------------------------------------------------------

UPDATES: list[Json] = [
    {"action": "assign-uuid", "uuid": "0194c5a0-0000-7000-8000-000000000001"},
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-schema", "schema": schema(field(1, "id"), field(9, "new", "string"), id_=1), "last-column-id": 9},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "add-spec", "spec": spec(("id_bucket", "bucket[4]", 1, 1000))},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "remove-partition-specs", "spec-ids": [1]},
    {"action": "add-sort-order", "sort-order": order(1)},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "add-snapshot", "snapshot": snapshot(7, 1)},
    {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": 7, "type": "branch"},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "remove-snapshots", "snapshot-ids": [7]},
    {"action": "set-statistics", "statistics": {"snapshot-id": 7, "statistics-path": "s", "file-size-in-bytes": 1,
     "file-footer-size-in-bytes": 1, "blob-metadata": []}},
    {"action": "remove-statistics", "snapshot-id": 7},
    {"action": "set-partition-statistics", "partition-statistics": {"snapshot-id": 7, "statistics-path": "s",
     "file-size-in-bytes": 1}},
    {"action": "remove-partition-statistics", "snapshot-id": 7},
    {"action": "set-location", "location": "file:///tmp/elsewhere"},
    {"action": "set-properties", "updates": {"a": "1", "write.metadata.previous-versions-max": "3"}},
    {"action": "set-properties", "updates": {"write.metadata.path": "file:///tmp/elsewhere"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "add-encryption-key", "encryption-key": {"key-id": "k", "encrypted-key-metadata": "AAAA"}},
    {"action": "remove-encryption-key", "key-id": "k"},
    {"action": "add-view-version", "view-version": view_version(2)},
    {"action": "set-current-view-version", "view-version-id": -1},
]  # fmt: skip
NEEDS: list[Json] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "0194c5a0-0000-7000-8000-000000000001"},
    {"type": "assert-view-uuid", "uuid": "0194c5a0-0000-7000-8000-000000000001"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
]
commits = st.fixed_dictionaries(
    {
        "requirements": st.lists(st.sampled_from(NEEDS), max_size=1),
        "updates": st.lists(st.sampled_from(UPDATES), max_size=4),
    }
)
tables = st.fixed_dictionaries(
    {"name": st.sampled_from(["t", "u", "w/x", ".."])},
    optional={
        "partition-spec": st.just(spec(("at_day", "day", 2, 1000))),
        "write-order": st.just(order(1)),
        "stage-create": st.booleans(),
        "location": st.sampled_from(["file:///tmp/elsewhere", "", "relative", "/"]),
        "properties": st.just({"format-version": "3", "write.metadata.delete-after-commit.enabled": "true"}),
    },
).map(lambda extra: table_body() | extra)
PREDICATES: list[Any] = [
    True,
    {"type": "is-null", "term": "id"},
    {"type": "eq", "term": "id", "value": 5},
    {"type": "gt-eq", "left": {"type": "reference", "name": "id"}, "right": {"type": "literal", "value": 5}},
    {"type": "not-in", "term": "id", "values": [1, 2, 3]},
    {"type": "starts-with", "term": {"type": "transform", "transform": "truncate[4]", "term": "id"}, "value": "a"},
]
filters = st.recursive(
    st.sampled_from(PREDICATES),
    lambda inner: st.builds(lambda kind, left, right: {"type": kind, "left": left, "right": right},
                            st.sampled_from(["and", "or"]), inner, inner)
    | inner.map(lambda child: {"type": "not", "child": child}),
    max_leaves=4,
)  # fmt: skip
scans = st.fixed_dictionaries(
    {},
    optional={
        "filter": filters,
        "select": st.just(["id", "_file"]),
        "stats-fields": st.just(["id"]),
        "snapshot-id": st.just(7),
        "start-snapshot-id": st.just(7),
        "end-snapshot-id": st.just(7),
        "min-rows-requested": st.just(1),
        "case-sensitive": st.booleans(),
        "use-snapshot-schema": st.booleans(),
    },
)
plan_tasks = st.builds(
    lambda scan, page: {"plan-task": PlanTask("0194c5a0-0000-7000-8000-000000000001", page, scan).encoded()},
    st.builds(
        Scan, st.sampled_from([None, 7, 2**70]), st.sampled_from([0, 1, -1]), st.sampled_from([None, 7]), filters
    ),
    st.sampled_from([0, 1, -1, 2**70]),
)
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "plan_scan": scans,
    "fetch_tasks": plan_tasks,
    "create_namespace": st.just({"namespace": ["shop", "eu"], "properties": {"a": "1"}}),
    "update_namespace": st.just({"updates": {"a": "1"}, "removals": ["b"]}),
    "create_table": tables,
    "commit_table": commits,
    "commit_transaction": st.lists(commits, min_size=1, max_size=2).map(
        lambda parts: {"table-changes": [part | {"identifier": SHOP_TABLE} for part in parts]}
    ),
    "rename_table": st.just({"source": SHOP_TABLE, "destination": {"namespace": ["shop"], "name": "t2"}}),
    "report_metrics": st.just({"report-type": "scan-report", "metrics": {}}),
    "create_view": st.just(view_body()),
    "replace_view": commits,
    "rename_view": st.just({"source": {"namespace": ["shop"], "name": "v"}, "destination": SHOP_TABLE}),
    "register_table": st.just({"name": "r", "metadata-location": "file:///tmp/x.metadata.json", "overwrite": True}),
    "register_view": st.just({"name": "r", "metadata-location": "file:///tmp/x.metadata.json"}),
    "change_settings": st.just({"maxBufferSize": 1_000_000}),
}

# --- what does not ---------------------------------------------------------------------------------------------------

odd_numbers = st.sampled_from([0, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, 0.5])
odd_texts = st.sampled_from(["", "\x00", "..", "/", "\x1f", "x" * 300, "\ud7ff", "true", "-1", "struct", "main"])
leaves = st.none() | st.booleans() | st.integers() | odd_numbers | odd_texts | st.text(max_size=20)
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
path_parts = st.sampled_from(["shop", "t", "v", "t", "v", "shop%1Feu", "%2E%2E", "%00", "%", "%ff", "%1F", "v1"]) | (
    st.text(max_size=300).map(lambda text: quote(text.encode(errors="replace"), safe=""))
)
query_values = st.sampled_from(["", "true", "1", "refs", "shop", "-1", "lake%401", "lake%402026-01-01", "%ff"]) | (
    st.text(max_size=40).map(lambda text: quote(text.encode(errors="replace"), safe=""))
)
header_values = st.sampled_from(["", "x", "*", "gzip", "0194c5a0-0000-7000-8000-000000000001", "\xff", "0", '"x"']) | (
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
)
headers = st.dictionaries(
    st.sampled_from(["Idempotency-Key", "If-None-Match", "Accept-Encoding", "X-DoLake-Pipeline", "Content-Type"]),
    header_values,
    max_size=2,
)
prefixes = st.sampled_from(["", "", "", "/lakehouse", "/lakehouse/v1", "/v1"])
pins = st.sampled_from([*[""] * 12, "/lake%401", "/lake%402026-01-01T00:00:00Z", "/lake%40x", "/lake%40" + "9" * 400])


@st.composite
def mutated(draw: st.DrawFn, sensible: st.SearchStrategy[Any]) -> Any:
    """A body that makes sense, of which one or two places do not any more."""
    body = copy.deepcopy(draw(sensible))
    for _ in range(draw(st.integers(0, 2))):
        at, key = body, None
        parent: Any = None
        while isinstance(at, dict | list) and at and (parent is None or draw(st.integers(0, 3))):
            keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
            parent, key = at, draw(st.sampled_from(keys))
            at = parent[key]
        if parent is None:
            continue
        if draw(st.booleans()):
            parent[key] = draw(json_values)
        else:
            del parent[key]
    return body


@st.composite
def bodies(draw: st.DrawFn, operation: Json) -> bytes | None:
    name = re.sub(r"_\d+$", "", operation["operationId"])
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(
            st.none() | st.binary(max_size=60) | st.sampled_from([b"[" * 20_000, b'{"a":' * 20_000, b'"\\ud800"'])
        )
    value = draw(mutated(SENSIBLE[name]) if kind > 1 and name in SENSIBLE else json_values)
    return json.dumps(value).encode()


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes | None, dict[str, str]]:
    """Method, raw target, body and headers."""
    method, path, operation = draw(st.sampled_from(ROUTES))
    is_plain = draw(st.integers(0, 2))
    for part in re.findall(r"{[\w-]+}", path):
        known = {"{namespace}": "shop", "{table}": "t", "{view}": "v", "{job}": "job-1"}.get(part, "x-1")
        path = path.replace(part, known if is_plain else draw(path_parts))
    if path.startswith("/v1/namespaces"):
        path = "/v1" + draw(pins) + path.removeprefix("/v1")
    declared = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    query = [f"{name}={draw(query_values)}" for name in (*declared, "junk") if draw(st.booleans())]
    target = draw(prefixes) + path + ("?" + "&".join(query) if query else "")
    return method, target, draw(bodies(operation)), draw(headers)


# --- the test --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of its own: after this one, nobody knows what is in it."""
    with ServerProcess(tmp_path_factory.mktemp("fuzzed")) as process:
        yield process


def check(server: ServerProcess, request: tuple[str, str, bytes | None, dict[str, str]]) -> None:
    ask = Asker(server.url)
    found = ask("GET", "/namespaces/shop/tables/t")
    if found.status != 200 or "dolake.managed" in found.metadata.get("properties", {}):  # adopted, it refuses too much
        ask("DELETE", "/namespaces/shop/tables/t?force=true&purgeRequested=true")
        ask("POST", "/namespaces", {"namespace": ["shop"]})
        ask("DELETE", "/namespaces/shop/views/t")
        ask.table("/namespaces/shop")
        ask.view("/namespaces/shop")
    method, target, body, sent = request
    reply = ask(method, target, body, sent, base="")  # an answer of 5xx fails here
    if reply.status >= 400 and method != "HEAD" and "oauth" not in target:
        assert reply.error["type"]
    assert ask("GET", "/health", base="").status == 200


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests())
@pytest.mark.slow
def test_whatever_is_sent_to_any_route_is_answered_and_never_breaks_the_server(
    fuzzed: ServerProcess, request: tuple[str, str, bytes | None, dict[str, str]]
) -> None:
    check(fuzzed, request)


@settings(max_examples=8_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests())
@pytest.mark.chaos
def test_whatever_is_sent_for_a_long_time_is_answered_and_never_breaks_the_server(
    fuzzed: ServerProcess, request: tuple[str, str, bytes | None, dict[str, str]]
) -> None:
    check(fuzzed, request)


@pytest.mark.parametrize(
    "raw", [b"/v1/namespaces?parent=\xff", b"/v1/namespaces/\xff", b"/v1/namespaces/a?pageToken=\xff"]
)
def test_bytes_that_are_no_text_in_an_address_are_answered(fuzzed: ServerProcess, raw: bytes) -> None:
    host, port = fuzzed.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as answer:
        connection.sendall(b"GET " + raw + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = int(answer.readline().split()[1])
    assert status in (200, 400, 404)


# --- with tokens -----------------------------------------------------------------------------------------------------

SECRET_NAME = "kept_from_others"


@pytest.fixture(scope="module")
def tenanted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """A server with a token of each scope for the namespace `shop`, and another namespace whose name nobody may see."""
    home, tokens = tmp_path_factory.mktemp("tenanted"), {}
    for scope, namespaces in [("boss", []), *((scope, ["shop"]) for scope in SCOPES)]:
        scopes = ["admin"] if scope == "boss" else [scope]
        token, tokens[scope] = mint(scope, scopes, namespaces, [], now_ms=1, expires_ms=None)
        TokenFile(home).add(token)
    with ServerProcess(home) as process:
        ask, boss = Asker(process.url), {"Authorization": f"Bearer {tokens['boss']}"}
        for name in ("shop", SECRET_NAME):
            assert ask("POST", "/namespaces", {"namespace": [name]}, boss).status == 200
            assert ask("POST", f"/namespaces/{name}/tables", table_body(), boss).status == 200
            assert ask("POST", f"/namespaces/{name}/views", view_body(), boss).status == 200
        yield process, tokens


def check_tenant(
    tenanted: tuple[ServerProcess, dict[str, str]],
    request: tuple[str, str, bytes | None, dict[str, str]],
    scope: str,
    *,
    is_aimed: bool,
) -> None:
    """No answer of 5xx, and no other's name that the request did not have."""
    server, tokens = tenanted
    method, target, body, sent = request
    if is_aimed:  # at the other's things, with every way of naming them that the fuzzer knows
        target = re.sub(r"\bshop\b", SECRET_NAME, target)
        body = body and body.replace(b'"shop"', f'"{SECRET_NAME}"'.encode())
    ask, headers = Asker(server.url), sent | {"Authorization": f"Bearer {tokens[scope]}"}
    reply = ask(method, target, body, headers, base="")
    if not is_aimed:
        assert SECRET_NAME.encode() not in reply.raw, (method, target, reply)
    elif SECRET_NAME in target.partition("?")[0]:
        assert reply.status >= 400, (method, target, reply)
    boss = {"Authorization": f"Bearer {tokens['boss']}"}
    kept = ask("GET", f"/namespaces/{SECRET_NAME}/tables/t", None, boss)
    assert kept.status == 200
    assert "a" not in kept.metadata.get("properties", {})


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests(), scope=st.sampled_from(SCOPES), is_aimed=st.booleans())
@pytest.mark.slow
def test_whatever_a_tenant_sends_he_gets_no_trace_of_another_and_changes_nothing_of_his(
    tenanted: tuple[ServerProcess, dict[str, str]],
    request: tuple[str, str, bytes | None, dict[str, str]],
    scope: str,
    is_aimed: bool,
) -> None:
    check_tenant(tenanted, request, scope, is_aimed=is_aimed)


@settings(max_examples=8_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(request=requests(), scope=st.sampled_from(SCOPES), is_aimed=st.booleans())
@pytest.mark.chaos
def test_whatever_a_tenant_sends_for_a_long_time_he_gets_no_trace_of_another(
    tenanted: tuple[ServerProcess, dict[str, str]],
    request: tuple[str, str, bytes | None, dict[str, str]],
    scope: str,
    is_aimed: bool,
) -> None:
    check_tenant(tenanted, request, scope, is_aimed=is_aimed)
