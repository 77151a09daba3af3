"""One port: the rooms' routes joined, at the root and under the base path, and errors in one shape.

From server/lifecycle.py. Promise: every answer that is not 2xx says what is wrong and what to do, as JSON; a page from
another site cannot drive this server through somebody's browser.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

import dolake
from dolake.catalog import rest as catalog_rest
from dolake.catalog.rest import MethodNotAllowed, Unprocessable
from dolake.errors import (
    DoLakeError,
    Forbidden,
    InvalidInput,
    NotFound,
    RateLimited,
    Unauthorized,
    Unavailable,
    UnknownTable,
)
from dolake.identity.request import grant_of
from dolake.query import rest as query_rest
from dolake.query import rows_rest
from dolake.server import (
    compaction,
    forgetting,
    freshness,
    limits,
    oauth,
    operations,
    quarantine_rest,
    retype,
    sources_rest,
    tables,
    tiers,
)
from dolake.server.auth import BASE_PATH, DOORKEEPER, authenticate
from dolake.server.copying import CopyingTables
from dolake.server.door import Door, DoorRunner
from dolake.server.lake import Lake
from dolake.server.openapi import openapi
from dolake.server.operations import LAKE, json_response
from dolake.subscriptions import endpoint as subscriptions

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROUTES = [
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
    *subscriptions.ROUTES,
    *rows_rest.ROUTES,
]
CATALOG_BODY_MAX_BYTES = 64 * 1024 * 1024
"""A commit can carry the whole history of a table; other requests are small."""


def build_app(lake: Lake) -> web.Application:
    """All routes of the server, at the root and again under the base path."""
    door = Door(lambda: lake.settings.current.server.cors_origins)
    app = web.Application(
        middlewares=[errors_as_json, only_own_processes, limits.limit_requests, door.middleware, authenticate]
    )
    app.on_response_prepare.append(door.dress)
    app.on_response_prepare.append(limits.tell_budget)
    app[LAKE] = lake
    app[DOORKEEPER] = lake.doorkeeper
    app[BASE_PATH] = lake.settings.current.server.base_path
    app[query_rest.PROCESS] = lake.query_process
    app[query_rest.COPYING] = CopyingTables(lambda: lake.journal.points()).header
    app[subscriptions.SUBSCRIPTIONS] = lake.open_feeds
    for base in dict.fromkeys(("", lake.settings.current.server.base_path)):
        app.router.add_get(base or "/", front_door)
        if base:
            app.router.add_get(base + "/", front_door)
        app.router.add_get(base + "/ws", socket)
        app.router.add_get(base + "/openapi.json", openapi)
        for method, path, handler in ROUTES:
            if method == "GET":
                app.router.add_get(base + path, handler)  # HEAD comes with it
            else:
                app.router.add_route(method, base + path, handler)
        app.router.add_route("*", base + r"/v1/{path:[\s\S]*}", functools.partial(catalog, base=base))
    return app


def build_runner(lake: Lake) -> DoorRunner:
    """The routes, ready to listen."""
    return DoorRunner(build_app(lake), wait_s=lake.settings.current.server.request_wait_max_ms / 1000)


async def catalog(request: web.Request, *, base: str) -> web.StreamResponse:
    """Everything else below /v1 belongs to the Iceberg REST catalog."""
    raw_path = request.raw_path.removeprefix(base)
    if ours := {method for method, path, _ in ROUTES if base + path == request.path}:
        _refuse_other_methods(request.method, raw_path, ours)
    roomy = request.clone(client_max_size=CATALOG_BODY_MAX_BYTES)
    return await catalog_rest.serve(request.app[LAKE].catalog, roomy, raw_path)


def _refuse_other_methods(method: str, raw_path: str, ours: set[str]) -> None:
    """An operator's route came here because of its method: unless the catalog has that one, say which there are."""
    try:
        catalog_rest.find_route(method, raw_path)
    except (MethodNotAllowed, NotFound) as error:
        theirs = error.allowed if isinstance(error, MethodNotAllowed) else set()
        raise MethodNotAllowed(f"{method} is not served at this path", ours | theirs) from None


async def socket(request: web.Request) -> web.StreamResponse:
    """The CDC connection."""
    if not web.WebSocketResponse().can_prepare(request).ok:
        raise InvalidInput("this address speaks WebSocket", hint="connect with a WebSocket client, or ask /status")
    return await request.app[LAKE].receiver.serve(request)


async def front_door(request: web.Request) -> web.StreamResponse:
    """The bare base path: a CDC connection for those who upgrade, a signpost for those who do not."""
    if request.headers.get("Upgrade", "").lower() == "websocket":
        return await socket(request)
    return json_response(
        {
            "name": "dolake",
            "version": dolake.__version__,
            "state": request.app[LAKE].state,
            "routes": {"websocket": "/ws", "/openapi.json": "GET"} | {path: method for method, path, _ in ROUTES},
        }
    )


_HINTS = {
    404: "GET / lists the routes",
    405: "GET / lists the routes",
    413: f"at most 1 MiB, and {CATALOG_BODY_MAX_BYTES // 1024**2} MiB for the catalog: send it in parts",
}


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        hint = _HINTS.get(error.status, "")
        kind = error.reason.lower().replace(" ", "_")
        return _error(error.status, error.reason, kind, hint, dict(error.headers))
    except DoLakeError as error:
        if isinstance(error, UnknownTable):
            error = await tables.with_closest_name(request.app[LAKE], error, grant_of(request))
        headers = {"Retry-After": "1"} if isinstance(error, Unavailable) else {}
        if isinstance(error, RateLimited):
            headers["Retry-After"] = limits.retry_after_s(error.retry_after_ms)
        if isinstance(error, MethodNotAllowed):
            headers["Allow"] = ", ".join(sorted(error.allowed))
        if isinstance(error, Unauthorized):
            headers["WWW-Authenticate"] = 'Bearer realm="dolake"'
        return _error(_status_of(error), error.message, error.code, error.hint, headers)
    except TimeoutError:
        return _error(504, "it took too long", "timeout", "it may still happen; look at /status")
    except asyncio.CancelledError:
        raise
    except Exception:
        logger.exception("request failed", extra={"method": request.method, "path": request.path})
        return _error(500, "an error of ours; the log has it", "internal_error", "")


@web.middleware
async def only_own_processes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Beside TLS there is a plain port on loopback for the pipeline and the sources, which know a secret of ours."""
    lake = request.app[LAKE]
    if lake.own_port is not None and request.transport is not None:
        address = request.transport.get_extra_info("sockname")
        if address[1] == lake.own_port and not lake.doorkeeper.is_own_process(request):
            raise Forbidden("this port is for the server's own processes", hint="ask where server.json says, with TLS")
    return await handler(request)


def _status_of(error: DoLakeError) -> int:
    match error:
        case Unprocessable():
            return 422
        case MethodNotAllowed():
            return 405
        case RateLimited():
            return 429
        case _:
            return query_rest.status_of(error)


def _error(
    status: int, message: str, kind: str, hint: str, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    response = json_response({"error": {"message": message, "type": kind, "code": status, "hint": hint}}, status=status)
    for name in ("Allow", "Retry-After", "WWW-Authenticate"):
        if headers and name in headers:
            response.headers[name] = headers[name]
    return response
