"""The Iceberg REST catalog over HTTP: which path is served by what, and nothing else.

From server/app.py, which hands over everything below /v1 that is not an operator's route; to tables.py, views.py and
the store. Promise: what GET /v1/config advertises is exactly what is served here, because both are read from ROUTES.
Paths are split as they were sent and decoded part by part, so a slash or a separator inside a name stays inside it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import msgspec
from aiohttp import web

from dolake.catalog import access, locations, scan_rest
from dolake.catalog.base import (
    GENERATION,
    PUBLISHED_FROM,
    PUBLISHED_TO,
    SEPARATOR,
    Name,
    Namespace,
    Page,
    Publish,
)
from dolake.catalog.call import ANSWERS_KEPT, Call
from dolake.catalog.catalog import Catalog
from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, ManagedTable, NoSuchNamespace, ReadOnly
from dolake.catalog.partitions import partition_stats
from dolake.catalog.pins import Pin, parse_pin
from dolake.catalog.readers import WHOLE
from dolake.catalog.replies import Answer, Handler, json_answer, loaded, loaded_pinned, once, with_metadata
from dolake.catalog.tables import TableCommit
from dolake.catalog.values import Json, as_object, as_objects, read_text, read_texts
from dolake.crashpoints import reach
from dolake.errors import Forbidden, InvalidInput, NotFound

_PUBLISH_KEYS = (PUBLISHED_FROM, PUBLISHED_TO, GENERATION)


# --- namespaces ------------------------------------------------------------------------------------------------------


async def list_namespaces(call: Call) -> Answer:
    parent = call.query.get("parent", "")
    after, limit = call.page
    parts = tuple(parent.split(SEPARATOR)) if parent else ()
    if call.grant.is_lake_wide:
        page = await call.catalog.run(call.catalog.store.list_namespaces, parts, after, limit)
    else:
        page = await call.catalog.run(_namespaces_seen, call, parts, after, limit)
    return json_answer({"namespaces": [key.split(SEPARATOR) for key in page.items], "next-page-token": page.next})


def _namespaces_seen(call: Call, parent: Namespace, after: str | None, limit: int | None) -> Page:
    """Those that a token of some namespaces sees, and those on the way there; also the next page's token is one."""
    if parent and not call.grant.passes(parent):
        raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(parent)}")
    every = call.catalog.store.list_namespaces(parent, None, None).items
    seen = [key for key in every if call.grant.passes(tuple(key.split(SEPARATOR))) and (after is None or key > after)]
    page = seen[:limit]
    return Page(page, page[-1] if page and len(page) < len(seen) else None)


async def create_namespace(call: Call) -> Answer:
    namespace = locations.check_namespace(tuple(read_texts(call.body, "namespace")))
    if not call.grant.sees(namespace):
        raise Forbidden("this token makes no namespaces outside of its own", hint="ask whoever gave it to you")
    properties = _text_map(call.body.get("properties"), "properties")
    answer = {"namespace": namespace, "properties": properties}
    remember = call.remember(200, msgspec.json.encode(answer))
    await call.catalog.run(call.catalog.store.create_namespace, namespace, properties, remember)
    return json_answer(answer)


async def load_namespace(call: Call) -> Answer:
    properties = await call.catalog.run(call.catalog.store.namespace_properties, call.namespace)
    return json_answer({"namespace": call.namespace, "properties": properties})


async def has_namespace(call: Call) -> Answer:
    await call.catalog.run(call.catalog.store.namespace_properties, call.namespace)
    return web.Response(status=204)


async def drop_namespace(call: Call) -> Answer:
    await call.catalog.run(call.catalog.store.drop_namespace, call.namespace, call.remember(204))
    return web.Response(status=204)


async def update_namespace(call: Call) -> Answer:
    updates = _text_map(call.body.get("updates"), "updates")
    removals = read_texts(call.body, "removals") if call.body.get("removals") is not None else []
    if both := sorted(set(updates) & set(removals)):
        raise Unprocessable(f"Invalid namespace update, cannot simultaneously set and remove keys: {both}")
    changed = await call.catalog.run(call.catalog.store.update_namespace, call.namespace, updates, removals)
    return json_answer(dict(zip(("updated", "removed", "missing"), changed, strict=True)))


class Unprocessable(InvalidInput):
    """A request that is well formed and contradicts itself."""

    code = "UnprocessableEntityException"


# --- tables ----------------------------------------------------------------------------------------------------------


async def list_tables(call: Call) -> Answer:
    return await _list_names(call, "table")


async def create_table(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    create, remember = call.catalog.tables.create, call.remember(200)
    async with call.catalog.turns([name]):
        document, metadata = await call.catalog.run(
            create, name, call.body, is_pipeline=call.is_pipeline, remember=remember
        )
    if document is None:
        given = await access.give(call, lambda: metadata)
        return json_answer({"metadata-location": None, "metadata": metadata} | given.fields)
    return await loaded(call, document)


async def load_table(call: Call) -> Answer:
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    if call.pin:
        return await loaded_pinned(call, document, call.pin)
    return await loaded(call, document)


async def has_table(call: Call) -> Answer:
    await call.catalog.run(call.catalog.tables.find, call.table)
    return web.Response(status=204)


async def commit_table(call: Call) -> Answer:
    commit = _commit_of(call.table, call.body)
    publish = _publish_of([commit], call)
    (document,) = await _commit(call, [commit], publish, 200)
    return await with_metadata(call, document)


async def commit_transaction(call: Call) -> Answer:
    changes = as_objects(call.body.get("table-changes"), "table-changes")
    if not changes:
        raise InvalidInput("table-changes is empty", hint="a transaction changes at least one table")
    commits = [_commit_of(call.seen_table(_identifier(change.get("identifier"))), change) for change in changes]
    publish = _publish_of(commits, call)
    await _commit(call, commits, publish, 204)
    return web.Response(status=204)


async def _commit(call: Call, commits: list[TableCommit], publish: Publish | None, status: int) -> list[Document]:
    commit, remember = call.catalog.tables.commit, call.remember(status)
    async with call.catalog.turns(each.name for each in commits):
        documents = await call.catalog.run(
            commit, commits, is_pipeline=call.is_pipeline, publish=publish, remember=remember
        )
    if publish:
        reach("publish_unanswered")
        call.catalog.on_published(publish.to_position)
    return documents


async def drop_table(call: Call) -> Answer:
    is_purging, is_forced = call.flag("purgeRequested"), _is_forced(call)
    drop, remember = call.catalog.tables.drop, call.remember(204)
    async with call.catalog.turns([call.table]):
        await call.catalog.run(drop, call.table, is_purging=is_purging, is_forced=is_forced, remember=remember)
    return web.Response(status=204)


def _is_forced(call: Call) -> bool:
    """Whether also a managed table may go."""
    if call.flag("force") and not call.grant.may(("admin",)):
        raise Forbidden("this token cannot drop managed tables", hint="force=true needs the scope admin")
    return call.flag("force")


async def unregister_table(call: Call) -> Answer:
    """Take the table out of the catalog; its files stay, and the answer says where they are."""
    unregister, remember = call.catalog.tables.unregister, call.remember(200)
    async with call.catalog.turns([call.table]):
        document = await call.catalog.run(unregister, call.table, is_forced=_is_forced(call), remember=remember)
    return await with_metadata(call, document)


async def register_table(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    location = read_text(call.body, "metadata-location")
    is_overwriting = call.body.get("overwrite") is True
    register, remember = call.catalog.tables.register, call.remember(200)
    async with call.catalog.turns([name]):
        document = await call.catalog.run(
            register, name, location, is_overwriting=is_overwriting, remember=remember, check=call.check_places
        )
    return await loaded(call, document)


async def rename_table(call: Call) -> Answer:
    source, target = _renaming(call)
    rename, remember = call.catalog.tables.rename, call.remember(204)
    async with call.catalog.turns([source, target]):
        await call.catalog.run(rename, source, target, remember, is_pipeline=call.is_pipeline)
    return web.Response(status=204)


async def adopt_table(call: Call) -> Answer:
    async with call.catalog.turns([call.table]):
        document = await call.catalog.run(call.catalog.tables.adopt, call.table)
    return await loaded(call, document)


async def list_partitions(call: Call) -> Answer:
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    found = await call.catalog.run(partition_stats, document, call.catalog.storage)
    return json_answer(
        {"partitions": [{key: entry[key] for key in ("partition", "name", "specId")} for entry in found]}
    )


async def load_partition_stats(call: Call) -> Answer:
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    return json_answer({"partitions": await call.catalog.run(partition_stats, document, call.catalog.storage)})


async def report_metrics(call: Call) -> Answer:
    read_text(call.body, "report-type")
    assert call.table, "raises where the token does not see it"
    return web.Response(status=204)


# --- views -----------------------------------------------------------------------------------------------------------


async def list_views(call: Call) -> Answer:
    return await _list_names(call, "view")


async def create_view(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    return await loaded(call, await call.catalog.run(call.catalog.views.create, name, call.body, call.remember(200)))


async def load_view(call: Call) -> Answer:
    return await loaded(call, await call.catalog.run(call.catalog.views.load, call.view))


async def has_view(call: Call) -> Answer:
    await call.catalog.run(call.catalog.views.load, call.view)
    return web.Response(status=204)


async def replace_view(call: Call) -> Answer:
    requirements, updates = call.body.get("requirements") or [], call.body.get("updates") or []
    replace, remember = call.catalog.views.replace, call.remember(200)
    return await loaded(call, await call.catalog.run(replace, call.view, requirements, updates, remember))


async def drop_view(call: Call) -> Answer:
    await call.catalog.run(call.catalog.views.drop, call.view, call.remember(204))
    return web.Response(status=204)


async def rename_view(call: Call) -> Answer:
    source, target = _renaming(call)
    await call.catalog.run(call.catalog.views.rename, source, target, call.remember(204))
    return web.Response(status=204)


async def register_view(call: Call) -> Answer:
    name = Name(call.namespace, read_text(call.body, "name"))
    location = read_text(call.body, "metadata-location")
    register, remember = call.catalog.views.register, call.remember(200)
    return await loaded(call, await call.catalog.run(register, name, location, remember, call.check_places))


# --- the lake itself -------------------------------------------------------------------------------------------------


async def publish_nothing(call: Call) -> Answer:
    """The pipeline has passed a stretch of the journal that is in no table, because the lake does not take it."""
    numbers = [call.body.get(name) for name in ("from", "to", "generation")]
    if not all(type(number) is int for number in numbers):
        raise InvalidInput("from, to and generation must be whole numbers")
    if not call.is_pipeline:
        raise Forbidden("only the pipeline moves the published position", hint="POST /flush publishes what waits")
    start, end, generation = (int(str(number)) for number in numbers)
    publish = Publish(start, end, generation, call.catalog.publish_time_ms())
    await call.catalog.run(call.catalog.store.commit, [], publish, None)
    call.catalog.on_published(end)
    return web.Response(status=204)


async def published(call: Call) -> Answer:
    row = await call.catalog.run(call.catalog.store.published)
    return json_answer({"position": row.position, "generation": row.generation, "atMs": row.at_ms})


async def config(call: Call) -> Answer:
    """What clients ask first. A server has one warehouse, so whatever name a client has for it is right."""
    warehouse = call.query.get("warehouse", "")
    overrides = {"prefix": quote(warehouse, safe="")} if parse_pin(warehouse) else {}
    defaults, delegation = call.catalog.storage.client_options, call.catalog.delegation
    if delegation and not call.is_pipeline:  # Iceberg's own library asks for nothing unless it is told to
        defaults = defaults | {f"header.{access.ASKED}": delegation.usual}
    return json_answer(
        {
            "defaults": defaults,
            "overrides": overrides,
            "idempotency-key-lifetime": ANSWERS_KEPT,
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
    ("POST", "/published", publish_nothing),
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
    ("GET", f"{_TABLE}/partitions", list_partitions),
    ("GET", f"{_TABLE}/partition-stats", load_partition_stats),
    *scan_rest.ROUTES,
    *access.ROUTES,
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
_CHANGING_NOTHING = (*scan_rest.HANDLERS, access.sign_request)
_ROOTS = frozenset(path.split("/")[1] for _, path, _ in ROUTES)


# --- from a request to its handler -----------------------------------------------------------------------------------


class MethodNotAllowed(InvalidInput):
    """The path is served, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: set[str]) -> None:
        super().__init__(message, hint=f"allowed: {', '.join(sorted(allowed))}")
        self.allowed = allowed


def find_pattern(method: str, raw_path: str) -> str:
    """The path in ROUTES that serves this."""
    return _find(method, raw_path)[0]


def find_route(method: str, raw_path: str) -> tuple[Handler, dict[str, str], Pin | None]:
    """The handler for a path below /v1, as it was sent, the decoded parts that its pattern names, and its pin."""
    return _find(method, raw_path)[1:]


def _find(method: str, raw_path: str) -> tuple[str, Handler, dict[str, str], Pin | None]:
    segments = raw_path.partition("?")[0].strip("/").split("/")  # an empty part in between stays: it is an empty name
    while segments and segments[0] in ("v1", ""):  # clients that were given .../v1 as the address add their own
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
                return path, handler, parts, pin
            allowed.add(each)
    if allowed:
        raise MethodNotAllowed(f"{method} is not served at this path", allowed)
    raise NotFound("No such path", hint="GET /v1/config lists what is served")


def _refuse_change(pin: Pin | None, method: str, handler: Handler) -> None:
    if pin and method not in ("GET", "HEAD") and handler not in (report_metrics, *_CHANGING_NOTHING):
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
        if request.method in ("GET", "HEAD") or call.idempotency_key is None or handler in _CHANGING_NOTHING:
            return await handler(call)
        return await once(call, handler)
    except ManagedTable as error:
        if call.grant.is_lake_wide or not error.is_others:
            raise
        raise ManagedTable("this is, or lies in, a table that is managed by DoLake", hint=error.hint) from None
    except InvalidInput as error:
        if type(error) is InvalidInput:
            raise IllegalArgument(error.message, hint=error.hint) from None
        raise


# --- what requests say -----------------------------------------------------------------------------------------------


async def _list_names(call: Call, kind: Any) -> Answer:
    after, limit = call.page
    page = await call.catalog.run(call.catalog.store.list_names, call.namespace, kind, after, limit)
    namespace = call.namespace
    names = [{"namespace": namespace, "name": name} for name in page.items]
    return json_answer({"identifiers": names, "next-page-token": page.next})


def _identifier(value: object) -> Name:
    identifier = as_object(value, "identifier")
    return locations.check_name(Name(tuple(read_texts(identifier, "namespace")), read_text(identifier, "name")))


def _renaming(call: Call) -> tuple[Name, Name]:
    """From where to where: both in namespaces that the token sees."""
    source, target = _identifier(call.body.get("source")), _identifier(call.body.get("destination"))
    call.seen_table(source)
    call.seen(target.namespace)
    return source, target


def _commit_of(name: Name, body: Json) -> TableCommit:
    return TableCommit(name, body.get("requirements") or [], body.get("updates") or [])


def _publish_of(commits: list[TableCommit], call: Call) -> Publish | None:
    """A publish of the pipeline says in its snapshots' summaries which stretch of the journal it covers."""
    stretches = set()
    for commit in commits:
        for update in as_objects(commit.updates, "updates"):
            summary = _summary_of(update)
            if PUBLISHED_FROM in summary:  # a compaction says only how far it goes
                stretches.add(tuple(str(summary.get(key, "")) for key in _PUBLISH_KEYS))
    if not stretches or not call.is_pipeline:
        return None
    if len(stretches) > 1:
        raise InvalidInput("the snapshots of one publish cover different stretches of the journal")
    stretch = stretches.pop()
    if not all(WHOLE.fullmatch(value) for value in stretch):
        raise InvalidInput(f"{', '.join(_PUBLISH_KEYS)} must be whole numbers")
    start, end, generation = (int(value) for value in stretch)
    publish = Publish(start, end, generation, call.catalog.publish_time_ms())
    for commit in commits:
        _set_time(commit, publish.at_ms)
    return publish


def _set_time(commit: TableCommit, at_ms: int) -> None:
    """All tables of a publish get one moment, so that a time travel sees all of it or nothing."""
    for update in as_objects(commit.updates, "updates"):
        if _summary_of(update):
            update["snapshot"]["timestamp-ms"] = at_ms


def _summary_of(update: Json) -> Json:
    """What an update's snapshot says of itself; whether that is well formed, commit.py decides."""
    snapshot = update.get("snapshot")
    summary = snapshot.get("summary") if isinstance(snapshot, dict) else None
    return summary if isinstance(summary, dict) else {}


def _text_map(value: object, what: str) -> dict[str, str]:
    if value is None:
        return {}
    node = as_object(value, what)
    for key, text in node.items():
        if not isinstance(text, str):
            raise InvalidInput(f"Cannot parse {what}: the value of {key} is not a string")
    return node
