"""One port: the rooms' routes joined, at the root and under the base path, and errors in one shape.

From server/lifecycle.py. Promise: every answer that is not 2xx says what is wrong and what to do, as JSON; a page from
another site cannot drive this server through somebody's browser.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

import dolake
from dolake.catalog import rest as catalog_rest
from dolake.catalog.rest import MethodNotAllowed, Unprocessable
from dolake.errors import DoLakeError, InvalidInput, NotFound, Unavailable
from dolake.query import rest as query_rest
from dolake.server import compaction, operations, quarantine_rest, tables
from dolake.server.lake import Lake
from dolake.server.openapi import openapi
from dolake.server.operations import LAKE, json_response

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROUTES = [
    *operations.ROUTES,
    *compaction.ROUTES,
    *tables.ROUTES,
    *quarantine_rest.ROUTES,
    *query_rest.ROUTES,
]
CATALOG_BODY_MAX_BYTES = 64 * 1024 * 1024
"""A commit can carry the whole history of a table; other requests are small."""


def build_app(lake: Lake) -> web.Application:
    """All routes of the server, at the root and again under the base path."""
    app = web.Application(middlewares=[errors_as_json, refuse_foreign_origins])
    app[LAKE] = lake
    app[query_rest.PROCESS] = lake.query_process
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
        headers = {"Retry-After": "1"} if isinstance(error, Unavailable) else {}
        if isinstance(error, MethodNotAllowed):
            headers["Allow"] = ", ".join(sorted(error.allowed))
        return _error(_status_of(error), error.message, error.code, error.hint, headers)
    except TimeoutError:
        return _error(504, "it took too long", "timeout", "it may still happen; look at /status")
    except asyncio.CancelledError:
        raise
    except Exception:
        logger.exception("request failed", extra={"method": request.method, "path": request.path})
        return _error(500, "an error of ours; the log has it", "internal_error", "")


@web.middleware
async def refuse_foreign_origins(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Browsers send Origin with sockets and with what changes state; only pages of this machine may do that."""
    origin = request.headers.get("Origin")
    is_reading = request.method in ("GET", "HEAD", "OPTIONS") and "Upgrade" not in request.headers
    if origin and not is_reading and not _is_loopback(_host_of(origin)):
        return _error(403, f"pages of {origin[:200]} may not use this server", "forbidden", "use a client, not a page")
    return await handler(request)


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:  # such as http://[
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _status_of(error: DoLakeError) -> int:
    match error:
        case Unprocessable():
            return 422
        case MethodNotAllowed():
            return 405
        case _:
            return query_rest.status_of(error)


def _error(
    status: int, message: str, kind: str, hint: str, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    response = json_response({"error": {"message": message, "type": kind, "code": status, "hint": hint}}, status=status)
    for name in ("Allow", "Retry-After"):
        if headers and name in headers:
            response.headers[name] = headers[name]
    return response
