"""The document at /openapi.json: well formed, complete, and true of what is served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dolake.catalog import rest
from dolake.query import rest as query_rest
from dolake.query import rows_rest
from dolake.server import (
    compaction,
    forgetting,
    freshness,
    oauth,
    operations,
    quarantine_rest,
    retype,
    sources_rest,
    tables,
    tiers,
)
from dolake.server.openapi import openapi_document
from dolake.subscriptions import endpoint as subscriptions
from tests.support.server import ServerProcess

OURS = [
    *operations.ROUTES,
    *oauth.ROUTES,
    *compaction.ROUTES,
    *tiers.ROUTES,
    *tables.ROUTES,
    *forgetting.ROUTES,
    *retype.ROUTES,
    *freshness.ROUTES,
    *quarantine_rest.ROUTES,
    *sources_rest.ROUTES,
    *query_rest.ROUTES,
    *rows_rest.ROUTES,
    *subscriptions.ROUTES,
]
METHODS = {"get", "head", "post", "patch", "put", "delete"}
TYPES = {"string", "boolean", "integer", "object", "array"}


@pytest.fixture(scope="module")
def document(query_server: ServerProcess) -> dict[str, Any]:
    status, body = query_server.get("/openapi.json")
    assert status == 200
    found: dict[str, Any] = body
    return found


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def check_schema(schema: dict[str, Any], document: dict[str, Any]) -> None:
    """The part of JSON Schema that the document uses, and no other."""
    assert set(schema) <= {
        "type", "format", "items", "properties", "required", "additionalProperties", "enum", "const", "minItems",
        "minimum", "$ref",
    }, schema  # fmt: skip
    if reference := schema.get("$ref"):
        name = re.fullmatch(r"#/components/schemas/(\w+)", reference)
        assert name
        assert name[1] in document["components"]["schemas"]
        return
    assert schema.get("type") in TYPES or "enum" in schema or "const" in schema, schema
    assert set(schema.get("required", ())) <= set(schema.get("properties", {})) | set(schema.get("required", ()))
    inner = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for each in (*schema.get("properties", {}).values(), *inner):
        check_schema(each, document)
    if "required" in schema:
        assert set(schema["required"]) <= set(schema["properties"])


def test_the_document_is_served_at_the_root_and_under_the_base_path(
    query_server: ServerProcess, document: dict[str, Any]
) -> None:
    assert query_server.get("/lakehouse/openapi.json") == (200, document)
    assert document == openapi_document("/lakehouse")
    assert [each["url"] for each in document["servers"]] == ["/", "/lakehouse"]


def test_the_document_has_every_route_and_no_other(document: dict[str, Any]) -> None:
    described = {(method.upper(), path) for method, path, _ in operations_of(document)}
    served = {(method, path) for method, path, _ in OURS}
    served |= {(method, f"/v1{path}") for method, path, _ in rest.ROUTES}
    assert described == served | {("GET", "/openapi.json")}


def test_the_document_is_well_formed(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert set(document["info"]) == {"title", "version"}
    ids = [operation["operationId"] for _, _, operation in operations_of(document)]
    assert len(ids) == len(set(ids))
    for method, path, operation in operations_of(document):
        assert method in METHODS
        assert path.startswith("/")
        assert operation["summary"]
        in_path = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert in_path == set(re.findall(r"{([\w-]+)}", path))
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] in ("path", "query", "header")
            check_schema(parameter["schema"], document)
        if "requestBody" in operation:
            assert method not in ("get", "head", "delete")
            for content in operation["requestBody"]["content"].values():
                check_schema(content["schema"], document)
        assert operation["responses"]
        for code, answer in operation["responses"].items():
            assert re.fullmatch(r"\d{3}|[45]XX", code)
            assert answer["description"]
            for content in answer.get("content", {}).values():
                check_schema(content["schema"], document)


def test_every_change_says_what_its_body_holds_unless_it_takes_none(document: dict[str, Any]) -> None:
    bare = {
        path
        for method, path, operation in operations_of(document)
        if method in ("post", "patch") and "requestBody" not in operation
    }
    table = "/v1/namespaces/{namespace}/tables/{table}"
    source = "/v1/sources/{source}"
    of_tables = {f"{table}/unregister", f"{table}/adopt"}
    assert bare == {"/flush", "/v1/compaction/auto", f"{source}/pause", f"{source}/resume"} | of_tables


def test_a_body_without_its_required_fields_is_refused_as_the_document_says(
    query_server: ServerProcess, document: dict[str, Any]
) -> None:
    for method, path, operation in operations_of(document):
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if schema.get("required"):
            status, body = query_server.get(re.sub(r"{[\w-]+}", "x", path), method=method.upper(), body={})
            assert status == 400, (method, path, body)
            assert set(body["error"]) == set(
                document["components"]["schemas"]["Error"]["properties"]["error"]["required"]
            )


def test_an_operators_route_with_another_method_says_which_there_are(query_server: ServerProcess) -> None:
    for path in ("/v1/config", "/v1/settings", "/lakehouse/v1/memory-stats"):
        status, body = query_server.get(path, method="PUT")
        assert status == 405, path
        assert "allowed: " in body["error"]["hint"]
