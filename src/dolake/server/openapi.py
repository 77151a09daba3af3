"""The routes of this server as an OpenAPI 3.1 document, for people, generators and fuzzers.

Served by app.py at /openapi.json. Promise: paths and methods are read from the very tables that are served, so the
document has each route and no other. What a body and a query hold stands here, one line per handler.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

import dolake
from dolake.catalog import access, rest, scan_rest
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
from dolake.server.operations import json_response
from dolake.subscriptions import endpoint as subscriptions

Schema = dict[str, Any]
Handler = Callable[..., Any]
_TEXT: Schema = {"type": "string"}
_ENGINE: Schema = {"enum": ["auto", "duckdb", "spark"]}
_FLAG: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}
_WHOLE: Schema = {"type": "integer", "format": "int64"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LEVELS: Schema = {"type": "array", "items": _TEXT, "minItems": 1}
_TEXT_MAP: Schema = {"type": "object", "additionalProperties": _TEXT}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _body(required: dict[str, Schema] | None = None, **optional: Schema) -> Schema:
    """An object with these fields; the names of Python's arguments stand for the hyphens of the specification."""
    named = {key.replace("_", "-"): schema for key, schema in optional.items()}
    return {"type": "object", "required": list(required or {}), "properties": (required or {}) | named}


_ACTION = _body({"action": _TEXT})
_COMMIT = _body(requirements=_list_of(_body({"type": _TEXT})), updates=_list_of(_ACTION))
_IDENTIFIER = _body({"namespace": _LEVELS, "name": _TEXT})
_CHANGE = _COMMIT | {"required": ["identifier"], "properties": _COMMIT["properties"] | {"identifier": _IDENTIFIER}}
_RENAME = _body({"source": _IDENTIFIER, "destination": _IDENTIFIER})
_STRUCT = _body({"type": {"const": "struct"}, "fields": _list_of(_OBJECT)})
_REGISTRATION = _body({"name": _TEXT, "metadata-location": _TEXT}, overwrite=_FLAG)
_TABLE = _body(
    {"name": _TEXT, "schema": _STRUCT},
    location=_TEXT,
    partition_spec=_OBJECT,
    write_order=_OBJECT,
    stage_create=_FLAG,
    properties=_TEXT_MAP,
)
_VIEW = _body({"name": _TEXT, "schema": _STRUCT, "view-version": _OBJECT}, location=_TEXT, properties=_TEXT_MAP)

_MOMENT: dict[str, Schema] = {
    "asOf": _TEXT,
    "snapshotId": _TEXT,
    "partition": _OBJECT,
    "minPosition": _COUNT,
    "maxAgeMs": _COUNT,
    "limit": _COUNT,
    "timeoutMs": _COUNT,
    "namespace": _TEXT,
}
_ROWS: dict[str, Schema] = {
    "source": _TEXT,
    "asOf": _TEXT,
    "snapshotId": _TEXT,
    "minPosition": _COUNT,
    "timeoutMs": {"type": "integer", "minimum": 1},
}
_BODIES: dict[Handler, Schema] = {
    operations.change_settings: _OBJECT,
    compaction.run_job: _body(namespace=_TEXT, table=_TEXT, partitions=_list_of(_TEXT), kinds=_list_of(_TEXT)),
    tiers.move_tier: _body(
        {"table": _TEXT, "to": {"enum": ["warm", "cold"]}}, namespace=_TEXT, partitions=_list_of(_TEXT)
    ),
    query_rest.query: _body(
        {"sql": _TEXT},
        **_MOMENT,
        params={"type": "array"},
        format={"enum": ["json", "csv", "arrow"]},
        engine=_ENGINE,
    ),
    query_rest.plan_query: _body(
        None, **_MOMENT, sql=_TEXT, params={"type": "array"}, where=_TEXT, columns=_list_of(_TEXT)
    ),
    query_rest.route_query: _body(
        None, **_MOMENT, sql=_TEXT, params={"type": "array"}, where=_TEXT, columns=_list_of(_TEXT), engine=_ENGINE
    ),
    query_rest.diff: _body({"table": _TEXT, "from": _TEXT}, to=_TEXT, namespace=_TEXT, limit=_COUNT, timeoutMs=_COUNT),
    rows_rest.get_rows: _body({"keys": _list_of(_TEXT)}, **_ROWS),
    tables.roll_back: _body(snapshotId=_TEXT, asOf=_TEXT),
    retype.retype: _body({"column": _TEXT, "type": {"enum": ["text", "string"]}}),
    forgetting.forget: _body({"key": _TEXT}, source=_TEXT, patient=_FLAG),
    quarantine_rest.replay_quarantine: _body(positions=_list_of(_COUNT)),
    quarantine_rest.drop_quarantine: _body(positions=_list_of(_COUNT)),
    sources_rest.add_source: _body(
        {"path": _TEXT},
        name=_TEXT,
        kind={"enum": ["sqlite"]},
        tables=_list_of(_TEXT),
        exclude=_list_of(_TEXT),
        namespace=_TEXT,
        source=_TEXT,
    ),
    subscriptions.acknowledge: _body({"token": _TEXT}),
    rest.publish_nothing: _body({"from": _COUNT, "to": _COUNT, "generation": _COUNT}),
    rest.create_namespace: _body({"namespace": _LEVELS}, properties=_TEXT_MAP),
    rest.update_namespace: _body(updates=_TEXT_MAP, removals=_list_of(_TEXT)),
    rest.create_table: _TABLE,
    rest.commit_table: _COMMIT,
    rest.commit_transaction: _body({"table-changes": _list_of(_CHANGE) | {"minItems": 1}}),
    rest.register_table: _REGISTRATION,
    rest.rename_table: _RENAME,
    rest.report_metrics: _body({"report-type": _TEXT}),
    scan_rest.plan_scan: _body(
        snapshot_id=_WHOLE,
        start_snapshot_id=_WHOLE,
        end_snapshot_id=_WHOLE,
        select=_list_of(_TEXT),
        filter=_OBJECT,
        min_rows_requested=_COUNT,
        case_sensitive=_FLAG,
        use_snapshot_schema=_FLAG,
        stats_fields=_list_of(_TEXT),
    ),
    scan_rest.fetch_tasks: _body({"plan-task": _TEXT}),
    access.sign_request: _body(
        {"method": _TEXT, "uri": _TEXT}, region=_TEXT, headers=_OBJECT, body=_TEXT, provider=_TEXT
    ),
    rest.create_view: _VIEW,
    rest.replace_view: _COMMIT,
    rest.rename_view: _RENAME,
    rest.register_view: _REGISTRATION,
}

_CREDENTIALS: Schema = {
    "type": "object",
    "required": ["grant_type"],
    "properties": dict.fromkeys(("grant_type", "client_id", "client_secret", "subject_token", "scope"), _TEXT),
}

_PAGE: dict[str, Schema] = {"pageToken": _TEXT, "pageSize": {"type": "integer", "minimum": 1}}
_QUERIES: dict[Handler, dict[str, Schema]] = {
    compaction.list_candidates: {"namespace": _TEXT, "table": _TEXT},
    tiers.show_tiers: {"namespace": _TEXT, "table": _TEXT},
    tables.all_tables: _PAGE | {"changes": _FLAG},
    tables.all_snapshots: {"limit": _COUNT, "changes": _FLAG},
    tables.table_snapshots: {"limit": _COUNT},
    rows_rest.get_row: _ROWS,
    freshness.freshness: {"table": _TEXT, "maxAgeMs": _COUNT, "waitMs": _COUNT},
    quarantine_rest.table_quarantine: {"limit": _COUNT, "after": _COUNT},
    subscriptions.subscribe: {
        "tables": _TEXT,
        "operations": _TEXT,
        "where": _TEXT,
        "columns": _TEXT,
        "from": _TEXT,
        "name": _TEXT,
        "transactions": _FLAG,
    },
    rest.config: {"warehouse": _TEXT},
    rest.list_namespaces: _PAGE | {"parent": _TEXT},
    rest.list_tables: _PAGE,
    rest.list_views: _PAGE,
    rest.load_table: {"snapshots": {"enum": ["all", "refs"]}},
    rest.drop_table: {"purgeRequested": _FLAG, "force": _FLAG},
    rest.unregister_table: {"force": _FLAG},
}

_WITHOUT_CONTENT = {
    rest.has_namespace,
    rest.drop_namespace,
    rest.has_table,
    rest.commit_transaction,
    rest.drop_table,
    rest.rename_table,
    rest.report_metrics,
    scan_rest.cancel_plan,
    rest.has_view,
    rest.drop_view,
    rest.rename_view,
    query_rest.cancel_query,
    sources_rest.remove_source,
    subscriptions.drop_subscription,
}

_LATER = {compaction.run_job, compaction.run_auto, forgetting.forget, retype.retype, tiers.move_tier}

_ERROR = _body({"error": _body({"message": _TEXT, "type": _TEXT, "code": {"type": "integer"}, "hint": _TEXT})})
_HEADERS = ("Idempotency-Key",)


async def openapi(request: web.Request) -> web.Response:
    """This document."""
    return json_response(openapi_document(request.app[operations.LAKE].settings.current.server.base_path))


@functools.cache
def openapi_document(base_path: str) -> dict[str, Any]:
    """The whole document. Every path is also served below the base path."""
    served: list[tuple[str, str, Handler]] = [("GET", "/openapi.json", openapi)]
    served += subscriptions.ROUTES
    served += [
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
    ]
    served += rows_rest.ROUTES
    served += [(method, f"/v1{path}", handler) for method, path, handler in rest.ROUTES]
    paths: dict[str, dict[str, Any]] = {}
    seen: Counter[str] = Counter()
    for method, path, handler in served:
        seen[handler.__name__] += 1
        number = seen[handler.__name__]
        id_ = handler.__name__ if number == 1 else f"{handler.__name__}_{number}"
        paths.setdefault(path, {})[method.lower()] = _operation(id_, method, path, handler)
    return {
        "openapi": "3.1.0",
        "info": {"title": "DoLake", "version": dolake.__version__},
        "servers": [{"url": base or "/"} for base in dict.fromkeys(("", base_path))],
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(id_: str, method: str, path: str, handler: Handler) -> dict[str, Any]:
    success = "204" if handler in _WITHOUT_CONTENT else "202" if handler in _LATER else "200"
    answers: dict[str, Any] = {success: {"description": "It is done, or will be."}}
    if success != "204":
        kind = "text/plain" if handler is operations.metrics else "application/json"
        answers[success]["content"] = {kind: {"schema": _TEXT if kind == "text/plain" else _OBJECT}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers |= {code: {"description": words, "content": error} for code, words in _REFUSALS.items()}
    operation: dict[str, Any] = {"operationId": id_, "summary": _summary(handler), "responses": answers}
    if parameters := _parameters(method, path, handler):
        operation["parameters"] = parameters
    if handler is oauth.give_token:
        form = {"application/x-www-form-urlencoded": {"schema": _CREDENTIALS}}
        operation["requestBody"] = {"required": True, "content": form}
    if schema := _BODIES.get(handler):
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


_REFUSALS = {
    "4XX": "The request was refused; the hint says what to do.",
    "5XX": "It failed, or nobody knows whether it happened.",
}


def _parameters(method: str, path: str, handler: Handler) -> list[dict[str, Any]]:
    named = re.findall(r"{([\w-]+)}", path)
    found = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in named]
    found += [{"name": name, "in": "query", "schema": schema} for name, schema in _QUERIES.get(handler, {}).items()]
    if handler.__module__ == rest.__name__ and method not in ("GET", "HEAD"):
        key = {"type": "string", "format": "uuid"}
        found += [{"name": name, "in": "header", "schema": key} for name in _HEADERS]
    return found


def _summary(handler: Handler) -> str:
    """The first line of what the code says of itself, or its name in words."""
    text = (handler.__doc__ or "").strip().partition("\n")[0]
    return text or handler.__name__.replace("_", " ").capitalize()
