"""What can be told of tables without running SQL, over HTTP: which there are, their snapshots, their columns; rollback.

From app.py; to the catalog, whose threads read the metadata, and to rollback.py. docs/reference/http.md has the shapes.
Promise: a listing reads the metadata of its page alone, and a look at the whole lake takes a few tables at a time, so
neither holds up who else needs the catalog.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from dolake.catalog import locations
from dolake.catalog.base import SEPARATOR, CatalogStore, Name, Namespace, Page, Pointer
from dolake.catalog.call import sent_text
from dolake.catalog.catalog import Catalog
from dolake.catalog.errors import NoSuchTable
from dolake.catalog.history import (
    Snapshot,
    describe_lost_table,
    describe_new_schema,
    describe_schema,
    describe_table,
    newest,
    snapshots_of,
)
from dolake.catalog.readers import snapshot_by_id
from dolake.catalog.values import Json
from dolake.errors import InvalidInput, NoSuchSnapshot, NotFound, UnknownTable
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.server.differences import columns_now, differences, rescued_now
from dolake.server.lake import Lake
from dolake.server.operations import LAKE, json_response
from dolake.server.rollback import Rollbacks, Target
from dolake.suggestions import with_suggestion
from dolake.tables.layout import CHANGES_SUFFIX, OURS
from dolake.tables.names import plain_table_name, split_table_name

SNAPSHOTS_MAX, PAGE_MAX = 10_000, 1_000
_SNAPSHOTS, _PAGE = 100, 100
_TABLES_AT_ONCE = 100
_NAMES_AT_ONCE = 200
_COUNT = re.compile("[0-9]{1,19}")
_ID = re.compile("[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def all_tables(request: web.Request) -> web.Response:
    """The tables of all namespaces in the order of their names, page by page."""
    lake = request.app[LAKE]
    size = number_in(request, "pageSize", _PAGE, PAGE_MAX)
    after = _page_token(request)
    grant = grant_of(request)
    page = await lake.catalog.run(_page_of_tables, lake.catalog, after, size, _is_set(request), grant)
    if page["nextPageToken"] is None:
        page["tables"] += await lake.catalog.run(_unpublished, lake, grant)
    for each in page["tables"] if lake.query is not None else ():
        if columns := each.get("rescued"):
            each["rescued"] = await rescued_now(lake.query_process(), each["namespace"], each["name"], columns)
    return json_response(page)


async def all_snapshots(request: web.Request) -> web.Response:
    """The newest snapshots of all tables that the lake manages."""
    catalog, has_changes = request.app[LAKE].catalog, _is_set(request)
    limit = number_in(request, "limit", _SNAPSHOTS, SNAPSHOTS_MAX)
    pointers = await catalog.run(_managed_tables, catalog, has_changes, grant_of(request))
    found: list[Snapshot] = []
    for at in range(0, len(pointers), _TABLES_AT_ONCE):
        found = await catalog.run(_with_newer, catalog, found, pointers[at : at + _TABLES_AT_ONCE], limit)
    return json_response({"snapshots": [each.describe() for each in found]})


async def table_snapshots(request: web.Request) -> web.Response:
    """The newest snapshots of one table."""
    lake, name = request.app[LAKE], table_in(request)
    limit = number_in(request, "limit", _SNAPSHOTS, SNAPSHOTS_MAX)
    found = await lake.catalog.run(lambda: newest(snapshots_of(name, load_table(lake, name)), limit))
    return json_response({"snapshots": [each.describe() for each in found]})


async def table_schema(request: web.Request) -> web.Response:
    """The columns of a table, and what they were."""
    lake, name = request.app[LAKE], table_in(request)
    try:
        return json_response(await lake.catalog.run(lambda: describe_schema(name, load_table(lake, name))))
    except UnknownTable:
        if lake.query is None or not _is_durable(lake, name):
            raise
        columns = await columns_now(lake.query_process(), name)
        return json_response(describe_new_schema(name, columns))


async def roll_back(request: web.Request) -> web.Response:
    """Make a table what it was at a snapshot or a time, by changes that follow all others."""
    lake, name = request.app[LAKE], table_in(request)
    target = _target_of(await request.read())
    if lake.settings.current.lake.key_scope == "source":
        raise InvalidInput(
            "with key_scope = source each source owns its rows, and a rollback is none of them",
            hint="send the rows as they were from the source itself",
        )
    source = await lake.catalog.run(_source_of, lake, name, target)
    done = await rollbacks_of(lake).roll_back(lake.receiver, source, target)
    changes = {"added": done.added, "removed": done.removed, "changed": done.changed}
    return json_response({"table": str(name), "position": done.position, "changes": changes})


_ROLLBACKS: WeakKeyDictionary[Lake, Rollbacks] = WeakKeyDictionary()


def rollbacks_of(lake: Lake) -> Rollbacks:
    """Those of a running server."""
    if lake not in _ROLLBACKS:
        found = _ROLLBACKS[lake] = Rollbacks(lake.home.path)
        found.differences = lambda table, target: differences(
            lake.query_process(), table, target, timeout_ms=lake.settings.current.query.timeout_max_ms
        )
    return _ROLLBACKS[lake]


# --- listing ---------------------------------------------------------------------------------------------------------


def _page_of_tables(catalog: Catalog, after: Name | None, size: int, has_changes: bool, grant: Grant) -> Json:
    found = (each for each in _tables_behind(catalog.store, after, grant) if has_changes or not _is_changes(each))
    page = list(itertools.islice(found, size + 1))
    has_more = len(page) > size
    last = page[size - 1].name if has_more else None
    return {
        "tables": [_described(catalog, pointer) for pointer in page[:size]],
        "nextPageToken": SEPARATOR.join((*last.namespace, last.name)) if last else None,
    }


def _unpublished(lake: Lake, grant: Grant) -> list[Json]:
    """Tables whose changes are durable, and which are not in the catalog yet."""
    names = {Name(*split_table_name(plain_table_name(each))) for each in lake.journal.tables if grant.sees_table(each)}
    pointers, _ = lake.catalog.store.snapshot(sorted(names, key=str), skips_missing=True)
    missing = names - {pointer.name for pointer in pointers}
    return [describe_lost_table(name, is_managed=True) for name in sorted(missing, key=str)]


def _described(catalog: Catalog, pointer: Pointer) -> Json:
    try:
        return describe_table(pointer.name, catalog.tables.read(pointer.metadata_location).metadata)
    except NotFound:
        return describe_lost_table(pointer.name, is_managed=pointer.is_managed)


def _tables_behind(store: CatalogStore, after: Name | None, grant: Grant) -> Iterator[Pointer]:
    """Every table behind this name, in order; looked up as far as somebody takes them."""
    name = after.name if after else None
    for namespace in _namespaces_from(store, after.namespace if after else ()):
        if not grant.sees(namespace):
            name = None
            continue
        for each in _pages(functools.partial(store.list_names, namespace, "table"), name):
            with contextlib.suppress(NotFound):  # dropped meanwhile
                yield store.find(Name(namespace, each), "table")
        name = None


def _namespaces_from(store: CatalogStore, at: Namespace) -> Iterator[Namespace]:
    """This namespace and all behind it: each before those below it, which is the order of their keys."""
    if at:
        yield at
    yield from _namespaces_below(store, at, None)
    while at:
        yield from _namespaces_below(store, at[:-1], SEPARATOR.join(at))
        at = at[:-1]


def _namespaces_below(store: CatalogStore, parent: Namespace, after: str | None) -> Iterator[Namespace]:
    for key in _pages(functools.partial(store.list_namespaces, parent), after):
        namespace = tuple(key.split(SEPARATOR))
        yield namespace
        yield from _namespaces_below(store, namespace, None)


def _pages(turn: Callable[[str | None, int], Page], after: str | None) -> Iterator[str]:
    """The items of all pages; of a namespace that is dropped meanwhile, as far as it goes."""
    with contextlib.suppress(NotFound):
        while True:
            page = turn(after, _NAMES_AT_ONCE)
            yield from page.items
            if page.next is None:
                return
            after = page.next


def _is_changes(pointer: Pointer) -> bool:
    return pointer.is_managed and pointer.name.name.endswith(CHANGES_SUFFIX)


# --- snapshots of the lake -------------------------------------------------------------------------------------------


def _managed_tables(catalog: Catalog, has_changes: bool, grant: Grant) -> list[Pointer]:
    seen = [each for each in catalog.store.pointers(is_managed=True) if grant.sees(each.name.namespace)]
    found = [each for each in seen if has_changes or not _is_changes(each)]
    return sorted(found, key=lambda each: (each.name.namespace, each.name.name))


def _with_newer(catalog: Catalog, found: list[Snapshot], pointers: list[Pointer], limit: int) -> list[Snapshot]:
    """The newest of those found and of these tables."""
    more: list[Snapshot] = []
    for pointer in pointers:
        with contextlib.suppress(NotFound):  # dropped meanwhile
            more += snapshots_of(pointer.name, catalog.tables.read(pointer.metadata_location).metadata)
    return newest((*found, *more), limit)


# --- one table -------------------------------------------------------------------------------------------------------


def load_table(lake: Lake, name: Name) -> Json:
    """The metadata of a table; where there is none, what to do about it."""
    try:
        return lake.catalog.tables.load(name).metadata
    except NoSuchTable:
        hint = "GET /v1/tables lists them"
        if _is_durable(lake, name):
            hint = "its changes are durable, but it is not published yet: wait a moment, or POST /flush"
        raise UnknownTable(f"Table does not exist: {name}", table=plain_table_name(str(name)), hint=hint) from None


def _source_of(lake: Lake, name: Name, target: Target) -> str:
    """The name that the table has at its sources, if it can be rolled back to this."""
    try:
        metadata = load_table(lake, name)
    except UnknownTable:
        if target.snapshot_id is not None or not _is_durable(lake, name):
            raise
        return plain_table_name(str(name))  # durable and not yet published, so it has a past, but no snapshot
    source = (metadata.get("properties") or {}).get(OURS)
    if source is None or name.name.endswith(CHANGES_SUFFIX):
        raise InvalidInput(
            f"{name} is not what sources send changes of, so it cannot be rolled back by changes",
            hint="tables of your own are rolled back by the engine that writes them; history stays as it is",
        )
    if target.snapshot_id is not None and snapshot_by_id(metadata, target.snapshot_id) is None:
        raise NoSuchSnapshot(
            f"{name} has no snapshot {target.snapshot_id}",
            hint=f"GET /v1/tables/{'.'.join(name.namespace)}/{name.name}/snapshots lists those that are kept;"
            " asOf goes further back",
        )
    return str(source)


def _is_durable(lake: Lake, name: Name) -> bool:
    """Whether sources have sent changes of it."""
    return any(plain_table_name(each) == plain_table_name(str(name)) for each in lake.journal.tables)


async def with_closest_name(lake: Lake, error: UnknownTable, grant: Grant) -> UnknownTable:
    """The error about a table that is not there, with the closest name that the caller sees."""
    return with_suggestion(error, await lake.catalog.run(_names_seen, lake, grant)) if error.table else error


def _names_seen(lake: Lake, grant: Grant) -> list[str]:
    published = (plain_table_name(str(each.name)) for each in lake.catalog.store.pointers() if each.kind == "table")
    durable = (plain_table_name(each) for each in lake.journal.tables)
    return [each for each in {*published, *durable} if grant.sees_table(each)]


# --- what requests say -----------------------------------------------------------------------------------------------


def table_in(request: web.Request) -> Name:
    """The table of the path; the levels of its namespace are joined by dots, or by %1F as in the catalog's paths.

    One that the request's token does not see is as unknown as one that is not there.
    """
    namespace, table = (sent_text(request.match_info[part]) for part in ("namespace", "table"))
    levels = namespace.split(SEPARATOR if SEPARATOR in namespace else ".")
    name = locations.check_name(Name(tuple(levels), table))
    if not grant_of(request).sees(name.namespace):
        raise UnknownTable(
            f"Table does not exist: {name}", table=plain_table_name(str(name)), hint="GET /v1/tables lists them"
        )
    return name


def number_in(request: web.Request, name: str, default: int, high: int, *, low: int = 1) -> int:
    sent = request.query.get(name)
    if sent is None:
        return default
    if not _COUNT.fullmatch(sent) or not low <= int(sent) <= high:
        raise InvalidInput(f"{name} {sent[:20]!r} is not a number from {low} to {high}")
    return int(sent)


def _page_token(request: web.Request) -> Name | None:
    *namespace, name = sent_text(request.query.get("pageToken", "")).split(SEPARATOR)
    if not name:
        return None
    if not namespace:
        raise InvalidInput("this pageToken is none of ours", hint="send the nextPageToken of the page before")
    return Name(tuple(namespace), name)


def _is_set(request: web.Request, name: str = "changes") -> bool:
    return request.query.get(name, "").lower() == "true"


class _RollbackBody(msgspec.Struct, rename="camel"):
    snapshot_id: int | str | None = None
    as_of: int | str | None = None


_HINT = 'send {"snapshotId": "7345..."} or {"asOf": "2026-11-15T12:00:00Z"}'


def _target_of(raw: bytes) -> Target:
    try:
        body = msgspec.json.decode(raw, type=_RollbackBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body cannot be read: {error}", hint=_HINT) from None
    if (body.snapshot_id is None) == (body.as_of is None):
        raise InvalidInput("say either snapshotId or asOf", hint=_HINT)
    if body.as_of is not None:
        return Target(as_of_ms=_time_ms(body.as_of))
    if not _ID.fullmatch(str(body.snapshot_id)):
        raise InvalidInput(f"snapshotId {str(body.snapshot_id)[:40]!r} is not the number of a snapshot", hint=_HINT)
    return Target(snapshot_id=int(body.snapshot_id or 0))


def _time_ms(sent: int | str) -> int:
    """ms since 1970, or ISO 8601; without a zone it is UTC. What is finer than a millisecond is cut off."""
    try:
        moment = _EPOCH + timedelta(milliseconds=sent) if isinstance(sent, int) else datetime.fromisoformat(sent)
    except (ValueError, OverflowError):
        raise InvalidInput(f"asOf {str(sent)[:40]!r} is not a time", hint=_HINT) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


ROUTES = [
    ("GET", "/v1/tables", all_tables),
    ("GET", "/v1/snapshots", all_snapshots),
    ("GET", "/v1/tables/{namespace}/{table}/snapshots", table_snapshots),
    ("GET", "/v1/tables/{namespace}/{table}/schema", table_schema),
    ("POST", "/v1/tables/{namespace}/{table}/rollback", roll_back),
]
