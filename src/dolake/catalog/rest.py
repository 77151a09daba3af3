"""The Iceberg REST catalog over HTTP: paths, messages and status codes, and nothing else.

From server/app.py, which hands over everything below /v1 that is not an operator's route; to tables.py, views.py and
the store. Promise: what GET /v1/config advertises is exactly what is served here, because both are read from ROUTES.
Paths are split as they were sent and decoded part by part, so a slash or a separator inside a name stays inside it.
"""

from __future__ import annotations

import functools
import gzip
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import msgspec
from aiohttp import web

from dolake.catalog import locations
from dolake.catalog.base import Name, Namespace, Publish, Remember
from dolake.catalog.catalog import Catalog
from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, ReadOnly
from dolake.catalog.pins import PUBLISHED_TO, Pin, parse_pin, pinned
from dolake.catalog.tables import TableCommit
from dolake.catalog.values import Json, as_object, as_objects, read_text, read_texts
from dolake.errors import InvalidInput, NotFound

PIPELINE_HEADER = "X-DoLake-Pipeline"
SEPARATOR = "\x1f"
_COMPRESS_FROM_BYTES = 2048
_PAGE_MAX = 10_000
_ANSWERS_KEPT, _ANSWERS_KEPT_MS = "PT30M", 30 * 60 * 1000
_PUBLISH_KEYS = ("dolake.published-from", PUBLISHED_TO, "dolake.generation")


class Call:
    """One request, taken apart: its catalog, the named parts of its path, its query and its body."""

    def __init__(
        self, catalog: Catalog, request: web.Request, parts: dict[str, str], body: bytes, pin: Pin | None
    ) -> None:
        self.catalog, self.request, self.parts, self.pin = catalog, request, parts, pin
        self._body = body
        query = request.raw_path.partition("?")[2]
        self.query = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}

    @property
    def namespace(self) -> Namespace:
        return locations.check_namespace(tuple(self.parts["namespace"].split(SEPARATOR)))

    @property
    def table(self) -> Name:
        return locations.check_name(Name(self.namespace, self.parts["table"]))

    @property
    def view(self) -> Name:
        return locations.check_name(Name(self.namespace, self.parts["view"]))

    @property
    def is_pipeline(self) -> bool:
        return self.catalog.is_pipeline(self.request.headers.get(PIPELINE_HEADER))

    @property
    def idempotency_key(self) -> str | None:
        """The client's name for this very request, so that asking again does not do it again."""
        sent = self.request.headers.get("Idempotency-Key")
        if sent is None:
            return None
        try:
            return f"{uuid.UUID(sent)} {self.request.method} {self.request.raw_path}"
        except ValueError:
            raise InvalidInput(f"Idempotency-Key {sent[:60]!r} is not a UUID") from None

    def remember(self, status: int) -> Remember | None:
        key = self.idempotency_key
        return Remember(key, self.catalog.clock_ms() + _ANSWERS_KEPT_MS, status) if key else None

    @functools.cached_property
    def body(self) -> Json:
        try:
            return as_object(msgspec.json.decode(self._body), "the body")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body is not JSON: {error}", hint="send a JSON object") from None

    @property
    def page(self) -> tuple[str | None, int | None]:
        """Where the page begins and how long it is; without a pageToken everything is asked for."""
        token = self.query.get("pageToken")
        if token is None:
            return None, None
        size = self.query.get("pageSize", str(_PAGE_MAX))
        if not size.isdecimal() or not 1 <= int(size) <= _PAGE_MAX:
            raise InvalidInput(f"pageSize {size!r} is not a number from 1 to {_PAGE_MAX}")
        return token or None, int(size)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


Answer = web.StreamResponse
Handler = Callable[[Call], Awaitable[Answer]]


# --- namespaces ------------------------------------------------------------------------------------------------------


async def list_namespaces(call: Call) -> Answer:
    parent = call.query.get("parent", "")
    after, limit = call.page
    parts = tuple(parent.split(SEPARATOR)) if parent else ()
    page = await call.catalog.run(call.catalog.store.list_namespaces, parts, after, limit)
    return _json({"namespaces": [key.split(SEPARATOR) for key in page.items], "next-page-token": page.next})


async def create_namespace(call: Call) -> Answer:
    namespace = locations.check_namespace(tuple(read_texts(call.body, "namespace")))
    properties = _text_map(call.body.get("properties"), "properties")
    await call.catalog.run(call.catalog.store.create_namespace, namespace, properties)
    return _json({"namespace": namespace, "properties": properties})


async def load_namespace(call: Call) -> Answer:
    properties = await call.catalog.run(call.catalog.store.namespace_properties, call.namespace)
    return _json({"namespace": call.namespace, "properties": properties})


async def has_namespace(call: Call) -> Answer:
    await call.catalog.run(call.catalog.store.namespace_properties, call.namespace)
    return web.Response(status=204)


async def drop_namespace(call: Call) -> Answer:
    await call.catalog.run(call.catalog.store.drop_namespace, call.namespace)
    return web.Response(status=204)


async def update_namespace(call: Call) -> Answer:
    updates = _text_map(call.body.get("updates"), "updates")
    removals = read_texts(call.body, "removals") if call.body.get("removals") is not None else []
    if both := sorted(set(updates) & set(removals)):
        raise Unprocessable(f"Invalid namespace update, cannot simultaneously set and remove keys: {both}")
    changed = await call.catalog.run(call.catalog.store.update_namespace, call.namespace, updates, removals)
    return _json(dict(zip(("updated", "removed", "missing"), changed, strict=True)))


class Unprocessable(InvalidInput):
    """A request that is well formed and contradicts itself."""

    code = "UnprocessableEntityException"


# --- tables ----------------------------------------------------------------------------------------------------------


async def list_tables(call: Call) -> Answer:
    return await _list_names(call, "table")


async def create_table(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    create = call.catalog.tables.create
    document, metadata = await call.catalog.run(
        create, name, call.body, is_pipeline=call.is_pipeline, remember=call.remember(200)
    )
    if document is None:
        return _json({"metadata-location": None, "metadata": metadata, "config": {}})
    return await _loaded(call, document)


async def load_table(call: Call) -> Answer:
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    if call.pin:
        return await _loaded_pinned(call, document, call.pin)
    return await _loaded(call, document)


async def has_table(call: Call) -> Answer:
    await call.catalog.run(call.catalog.tables.find, call.table)
    return web.Response(status=204)


async def commit_table(call: Call) -> Answer:
    commit = _commit_of(call.table, call.body)
    publish = _publish_of([commit], call)
    tables = call.catalog.tables
    (document,) = await call.catalog.run(
        tables.commit, [commit], is_pipeline=call.is_pipeline, publish=publish, remember=call.remember(200)
    )
    return await _with_metadata(call, document)


async def commit_transaction(call: Call) -> Answer:
    changes = as_objects(call.body.get("table-changes"), "table-changes")
    if not changes:
        raise InvalidInput("table-changes is empty", hint="a transaction changes at least one table")
    commits = [_commit_of(_identifier(change.get("identifier")), change) for change in changes]
    publish = _publish_of(commits, call)
    await call.catalog.run(
        call.catalog.tables.commit,
        commits,
        is_pipeline=call.is_pipeline,
        publish=publish,
        remember=call.remember(204),
    )
    return web.Response(status=204)


async def drop_table(call: Call) -> Answer:
    drop = call.catalog.tables.drop
    await call.catalog.run(drop, call.table, is_purging=call.flag("purgeRequested"), is_forced=call.flag("force"))
    return web.Response(status=204)


async def unregister_table(call: Call) -> Answer:
    """Take the table out of the catalog; its files stay, and the answer says where they are."""
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    await call.catalog.run(call.catalog.tables.drop, call.table, is_purging=False, is_forced=call.flag("force"))
    return await _with_metadata(call, document)


async def register_table(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    location = read_text(call.body, "metadata-location")
    is_overwriting = call.body.get("overwrite") is True
    register = call.catalog.tables.register
    return await _loaded(call, await call.catalog.run(register, name, location, is_overwriting=is_overwriting))


async def rename_table(call: Call) -> Answer:
    source, target = _identifier(call.body.get("source")), _identifier(call.body.get("destination"))
    await call.catalog.run(call.catalog.tables.rename, source, target)
    return web.Response(status=204)


async def adopt_table(call: Call) -> Answer:
    return await _loaded(call, await call.catalog.run(call.catalog.tables.adopt, call.table))


async def report_metrics(call: Call) -> Answer:
    read_text(call.body, "report-type")
    return web.Response(status=204)


# --- views -----------------------------------------------------------------------------------------------------------


async def list_views(call: Call) -> Answer:
    return await _list_names(call, "view")


async def create_view(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    return await _loaded(call, await call.catalog.run(call.catalog.views.create, name, call.body))


async def load_view(call: Call) -> Answer:
    return await _loaded(call, await call.catalog.run(call.catalog.views.load, call.view))


async def has_view(call: Call) -> Answer:
    await call.catalog.run(call.catalog.views.load, call.view)
    return web.Response(status=204)


async def replace_view(call: Call) -> Answer:
    requirements, updates = call.body.get("requirements") or [], call.body.get("updates") or []
    replace = call.catalog.views.replace
    return await _loaded(call, await call.catalog.run(replace, call.view, requirements, updates))


async def drop_view(call: Call) -> Answer:
    await call.catalog.run(call.catalog.views.drop, call.view)
    return web.Response(status=204)


async def rename_view(call: Call) -> Answer:
    source, target = _identifier(call.body.get("source")), _identifier(call.body.get("destination"))
    await call.catalog.run(call.catalog.views.rename, source, target)
    return web.Response(status=204)


async def register_view(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    location = read_text(call.body, "metadata-location")
    return await _loaded(call, await call.catalog.run(call.catalog.views.register, name, location))


# --- the lake itself -------------------------------------------------------------------------------------------------


async def published(call: Call) -> Answer:
    row = await call.catalog.run(call.catalog.store.published)
    return _json({"position": row.position, "generation": row.generation, "atMs": row.at_ms})


async def config(call: Call) -> Answer:
    """What clients ask first. A server has one warehouse, so whatever name a client has for it is right."""
    warehouse = call.query.get("warehouse", "")
    overrides = {"prefix": quote(warehouse, safe="")} if parse_pin(warehouse) else {}
    return _json(
        {
            "defaults": {},
            "overrides": overrides,
            "idempotency-key-lifetime": _ANSWERS_KEPT,
            "endpoints": [
                f"{method} {_SHOWN_PREFIX}{path}" for method, path, _ in ROUTES if path.startswith(_OF_ICEBERG)
            ],
        }
    )


_NAMESPACE = "/namespaces/{namespace}"
_TABLE = "/namespaces/{namespace}/tables/{table}"
_VIEW = "/namespaces/{namespace}/views/{view}"
_SHOWN_PREFIX = "/v1/{prefix}"
_OF_ICEBERG = ("/namespaces", "/tables", "/views", "/transactions")

ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/config", config),
    ("GET", "/published", published),
    ("GET", "/namespaces", list_namespaces),
    ("POST", "/namespaces", create_namespace),
    ("GET", _NAMESPACE, load_namespace),
    ("HEAD", _NAMESPACE, has_namespace),
    ("DELETE", _NAMESPACE, drop_namespace),
    ("POST", f"{_NAMESPACE}/properties", update_namespace),
    ("PATCH", f"{_NAMESPACE}/properties", update_namespace),
    ("GET", f"{_NAMESPACE}/tables", list_tables),
    ("POST", f"{_NAMESPACE}/tables", create_table),
    ("GET", _TABLE, load_table),
    ("HEAD", _TABLE, has_table),
    ("POST", _TABLE, commit_table),
    ("POST", f"{_TABLE}/commits", commit_table),
    ("DELETE", _TABLE, drop_table),
    ("POST", f"{_TABLE}/metrics", report_metrics),
    ("POST", f"{_TABLE}/unregister", unregister_table),
    ("POST", f"{_TABLE}/adopt", adopt_table),
    ("POST", f"{_NAMESPACE}/register", register_table),
    ("POST", "/tables/rename", rename_table),
    ("POST", "/transactions/commit", commit_transaction),
    ("GET", f"{_NAMESPACE}/views", list_views),
    ("POST", f"{_NAMESPACE}/views", create_view),
    ("GET", _VIEW, load_view),
    ("HEAD", _VIEW, has_view),
    ("POST", _VIEW, replace_view),
    ("DELETE", _VIEW, drop_view),
    ("POST", "/views/rename", rename_view),
    ("POST", f"{_NAMESPACE}/register-view", register_view),
]
_ROOTS = frozenset(path.split("/")[1] for _, path, _ in ROUTES)


# --- from a request to its handler -----------------------------------------------------------------------------------


class MethodNotAllowed(InvalidInput):
    """The path is served, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: set[str]) -> None:
        super().__init__(message, hint=f"allowed: {', '.join(sorted(allowed))}")
        self.allowed = allowed


def find_route(method: str, raw_path: str) -> tuple[Handler, dict[str, str], Pin | None]:
    """The handler for a path below /v1, as it was sent, the decoded parts that its pattern names, and its pin."""
    segments = [segment for segment in raw_path.partition("?")[0].split("/") if segment]
    while segments and segments[0] == "v1":  # clients that were given .../v1 as the address add their own
        segments = segments[1:]
    pin = None
    if segments and segments[0] not in _ROOTS:
        pin = parse_pin(unquote(segments[0]))
        segments = segments[1:] if pin else segments
    allowed: set[str] = set()
    for each, path, handler in ROUTES:
        parts = _match(path.split("/")[1:], segments)
        if parts is not None:
            if each == method:
                _refuse_change(pin, method, handler)
                return handler, parts, pin
            allowed.add(each)
    if allowed:
        raise MethodNotAllowed(f"{method} is not served at this path", allowed)
    raise NotFound("No such path", hint="GET /v1/config lists what is served")


def _refuse_change(pin: Pin | None, method: str, handler: Handler) -> None:
    if pin and method not in ("GET", "HEAD") and handler is not report_metrics:
        raise ReadOnly("this warehouse is pinned to one moment and cannot be changed", hint="use it without @")


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    parts = {}
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            parts[wanted.strip("{}")] = unquote(segment)
        elif wanted != segment:
            return None
    return parts


async def serve(catalog: Catalog, request: web.Request, raw_path: str) -> Answer:
    """Answer one request of an Iceberg client; `raw_path` is what follows the base path."""
    handler, parts, pin = find_route(request.method, raw_path)
    call = Call(catalog, request, parts, await request.read(), pin)
    try:
        if request.method in ("GET", "HEAD") or call.idempotency_key is None:
            return await handler(call)
        return await _once(call, handler)
    except InvalidInput as error:
        if type(error) is InvalidInput:
            raise IllegalArgument(error.message, hint=error.hint) from None
        raise


# --- answers ---------------------------------------------------------------------------------------------------------


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def _list_names(call: Call, kind: Any) -> Answer:
    after, limit = call.page
    page = await call.catalog.run(call.catalog.store.list_names, call.namespace, kind, after, limit)
    namespace = call.namespace
    names = [{"namespace": namespace, "name": name} for name in page.items]
    return _json({"identifiers": names, "next-page-token": page.next})


async def _once(call: Call, handler: Handler) -> Answer:
    """Do what was asked, unless a request with the same key did it already; then give the same answer."""
    key = call.idempotency_key
    assert key is not None
    async with call.catalog.turn(key):
        raw = await call.catalog.run(call.catalog.store.recall_answer, key, call.catalog.clock_ms())
        if raw is None:
            answer = await handler(call)
            await call.catalog.run(_keep_answer, call, key, answer)
            return answer
    kept_answer = msgspec.json.decode(raw, type=_KeptAnswer)
    if kept_answer.location:
        return await _loaded(call, await call.catalog.run(call.catalog.tables.read, kept_answer.location))
    return web.Response(body=kept_answer.body, status=kept_answer.status, content_type="application/json")


def _keep_answer(call: Call, key: str, answer: Answer) -> None:
    """Commits have kept theirs with what they changed; the others do it here."""
    store, now_ms = call.catalog.store, call.catalog.clock_ms()
    if store.recall_answer(key, now_ms) is None and isinstance(answer, web.Response):
        body = answer.body if isinstance(answer.body, bytes) else b""
        kept = msgspec.json.encode(_KeptAnswer(answer.status, None, body))
        store.keep_answer(key, kept, now_ms + _ANSWERS_KEPT_MS)


class _KeptAnswer(msgspec.Struct):
    status: int
    location: str | None = None
    body: bytes = b""


async def _loaded_pinned(call: Call, document: Document, pin: Pin) -> Answer:
    def show() -> bytes:
        time_ms = None if pin.position is None else call.catalog.store.time_of(pin.position)
        return msgspec.json.encode(pinned(document.metadata, pin, time_ms))

    raw = await call.catalog.run(show)
    return await _raw_answer(call, document.location, raw, {}, config=b',"config":{}')


async def _loaded(call: Call, document: Document) -> Answer:
    """A table or view as a load shows it: 304 when the client has this very version."""
    is_refs = call.query.get("snapshots") == "refs"
    etag = f'"{document.name}{"-refs" if is_refs else ""}"'
    if etag in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers={"ETag": etag})
    raw = await call.catalog.run(lambda: document.raw_refs) if is_refs else document.raw
    return await _raw_answer(call, document.location, raw, {"ETag": etag}, config=b',"config":{}')


async def _with_metadata(call: Call, document: Document) -> Answer:
    """What a commit answers: where the metadata is and what it says."""
    return await _raw_answer(call, document.location, document.raw, {"ETag": f'"{document.name}"'})


async def _raw_answer(call: Call, location: str, raw: bytes, headers: dict[str, str], config: bytes = b"") -> Answer:
    """The metadata's bytes as they are on disk, in their envelope: nothing is encoded twice."""
    body = b'{"metadata-location":' + msgspec.json.encode(location) + b',"metadata":' + raw + config + b"}"
    if len(body) >= _COMPRESS_FROM_BYTES and "gzip" in call.request.headers.get("Accept-Encoding", ""):
        body = await call.catalog.run(gzip.compress, body, 1)
        headers = headers | {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(body=body, headers=headers, content_type="application/json")


def _identifier(value: object) -> Name:
    identifier = as_object(value, "identifier")
    return locations.check_name(Name(tuple(read_texts(identifier, "namespace")), read_text(identifier, "name")))


def _commit_of(name: Name, body: Json) -> TableCommit:
    return TableCommit(name, body.get("requirements") or [], body.get("updates") or [])


def _publish_of(commits: list[TableCommit], call: Call) -> Publish | None:
    """A publish of the pipeline says in its snapshots' summaries which stretch of the journal it covers."""
    stretches = set()
    for commit in commits:
        for update in as_objects(commit.updates, "updates"):
            summary = (update.get("snapshot") or {}).get("summary") or {}
            if _PUBLISH_KEYS[1] in summary:
                stretches.add(tuple(summary.get(key, "") for key in _PUBLISH_KEYS))
    if not stretches or not call.is_pipeline:
        return None
    if len(stretches) > 1:
        raise InvalidInput("the snapshots of one publish cover different stretches of the journal")
    try:
        start, end, generation = (int(value) for value in stretches.pop())
    except ValueError:
        raise InvalidInput(f"{', '.join(_PUBLISH_KEYS)} must be whole numbers") from None
    return Publish(start, end, generation, call.catalog.clock_ms())


def _text_map(value: object, what: str) -> dict[str, str]:
    if value is None:
        return {}
    node = as_object(value, what)
    for key, text in node.items():
        if not isinstance(text, str):
            raise InvalidInput(f"Cannot parse {what}: the value of {key} is not a string")
    return node
