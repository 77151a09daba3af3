"""Questions over HTTP, as the server takes them: bytes go on to the query process, and those of the answer back.

From server/app.py; to worker.py, which reads the question and writes the answer. What both ends share stands here too.
Promise: nothing of an answer is kept in the server but the piece on its way; when the client leaves, the connection to
the query process is closed, which ends the query; a process that dies is a 503, or an answer that ends too early.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import web

from dolake.errors import (
    Conflict,
    DoLakeError,
    Forbidden,
    InvalidInput,
    NotFound,
    QueryCancelled,
    QueryOutOfMemory,
    QueryTimeout,
    QueryUnavailable,
    TooManyQueries,
    Unauthorized,
    Unavailable,
)
from dolake.identity.grants import to_header
from dolake.identity.request import grant_of
from dolake.query.copying import COPYING_HEADER
from dolake.query.question import CONTENT_TYPES, Format

logger = logging.getLogger(__name__)

QUERY_ID = "X-DoLake-Query-Id"
GRANT_HEADER = "X-DoLake-Grant"
"""What the asker may see: from the server to the query process, and from nobody else."""
BODY_MAX_BYTES = 1024 * 1024
RETRY_AFTER_S = "1"
_OURS = "X-DoLake-"
_TOLD = ("Accept", "Content-Type", QUERY_ID)
_LOOK_S = 0.05
_SHORT_MAX_BYTES = 1024 * 1024


class Process(Protocol):
    """The query process, as these routes use it."""

    def asking(self) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientSession]:
        """Connections to it; waits a moment for one that starts. Raises QueryUnavailable."""

    def count(self, outcome: str, seconds: float) -> None:
        """A question has been answered, or not."""

    async def look_up(self, question: bytes) -> tuple[int, bytes]:
        """Rows by key: status and body. Raises QueryUnavailable."""

    def count_lookup(self, outcome: str, seconds: float) -> None:
        """A look-up has been answered, or not."""


PROCESS: web.AppKey[Callable[[], Process]] = web.AppKey("query_process")
COPYING: web.AppKey[Callable[[], str]] = web.AppKey("copying")
"""Which tables are being copied, as a header; empty where none is."""


async def query(request: web.Request) -> web.StreamResponse:
    """Ask one SELECT; the answer is JSON, CSV or an Arrow stream."""
    return await _ask(request, "/query")


async def plan_query(request: web.Request) -> web.StreamResponse:
    """Which files a SELECT would read, and why not the others."""
    return await _ask(request, "/plan")


async def route_query(request: web.Request) -> web.StreamResponse:
    """Which engine would answer a SELECT, and why; with the files and partitions that it would read."""
    return await _ask(request, "/route")


async def diff(request: web.Request) -> web.StreamResponse:
    """Rows of a table that came, went or changed between two moments."""
    return await _ask(request, "/diff")


async def list_queries(request: web.Request) -> web.StreamResponse:
    """The queries that run or wait."""
    try:
        return await pass_on(request, "GET", "/queries", b"")
    except Conflict:  # where queries are off, none runs
        return web.Response(body=b'{"queries":[]}', content_type="application/json")


async def cancel_query(request: web.Request) -> web.StreamResponse:
    """End a query; who waits for its answer is told."""
    return await pass_on(request, "DELETE", f"/query/{request.match_info['query']}", b"")


async def _ask(request: web.Request, path: str) -> web.StreamResponse:
    """Pass a question on, and count how it ended."""
    body = await request.read()
    process, began, outcome = request.app[PROCESS](), time.monotonic(), "client_left"
    try:
        response = await pass_on(request, "POST", path, body)
        outcome = response[OUTCOME]
    except DoLakeError as error:
        outcome = error.code
        raise
    finally:
        process.count(outcome, time.monotonic() - began)
    return response


OUTCOME = web.ResponseKey("outcome", str)


async def pass_on(request: web.Request, method: str, path: str, body: bytes) -> web.StreamResponse:
    """Ask the query process, and give back what it says."""
    headers = {name: request.headers[name] for name in _TOLD if name in request.headers}
    headers[GRANT_HEADER] = to_header(grant_of(request))
    if copying := request.app[COPYING]():
        headers[COPYING_HEADER] = copying
    try:
        async with (
            request.app[PROCESS]().asking() as session,
            _while_there(request),
            session.request(method, path, data=body, headers=headers) as upstream,
        ):
            return await _returned(request, upstream)
    except aiohttp.ClientError as error:
        raise QueryUnavailable(
            "the query process ended while it worked on this", hint="ask again, and for less if that happens again"
        ) from error


@contextlib.asynccontextmanager
async def _while_there(request: web.Request) -> AsyncIterator[None]:
    """End the block when the client has left: nothing else says so while there is nothing to write to it."""
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    looking: list[asyncio.TimerHandle] = []

    def look() -> None:
        if _has_left(request):
            scope.reschedule(loop.time())
        else:
            looking[:] = [loop.call_later(_LOOK_S, look)]

    try:
        async with scope:
            look()
            yield
    except TimeoutError:
        raise QueryCancelled("the client left") from None
    finally:
        for each in looking:
            each.cancel()


def _has_left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _returned(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    passed = {
        name: value
        for name, value in upstream.headers.items()
        if name in ("Content-Type", "Retry-After") or name.startswith(_OURS)
    }
    if upstream.content_length is not None and upstream.content_length <= _SHORT_MAX_BYTES:
        whole = await upstream.read()
        short = web.Response(status=upstream.status, body=whole, headers=passed)
        short[OUTCOME] = outcome_of(upstream.status, whole)
        return short
    response = web.StreamResponse(status=upstream.status, headers=passed)
    response[OUTCOME] = "ok"
    await response.prepare(request)
    try:
        async for piece in upstream.content.iter_any():
            await response.write(piece)
    except aiohttp.ClientError as error:
        if _has_left(request):
            raise QueryCancelled("the client left") from None
        # The status is gone already: an answer that ends too early must not look like a whole one.
        logger.warning("answer cut off", extra={"reason": str(error)})
        response[OUTCOME] = "cut_off"
        if request.transport:
            request.transport.abort()
    return response


def outcome_of(status: int, body: bytes) -> str:
    """How a question ended, for the metrics."""
    if status < 400:
        return "ok"
    try:
        return str(msgspec.json.decode(body)["error"]["type"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "internal_error"


# --- what both ends share --------------------------------------------------------------------------------------------

_STATUSES: dict[type[DoLakeError], int] = {
    TooManyQueries: 429,
    QueryCancelled: 499,
    QueryTimeout: 504,
    QueryOutOfMemory: 507,
    InvalidInput: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Unavailable: 503,
}


def status_of(error: DoLakeError) -> int:
    """The first that fits."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)


def error_response(error: DoLakeError) -> web.Response:
    """In the one shape that all errors have."""
    status = status_of(error)
    kind = "internal_error" if type(error) is DoLakeError else error.code
    shown: dict[str, Any] = {"message": error.message, "type": kind, "code": status, "hint": error.hint}
    headers = {"Retry-After": RETRY_AFTER_S} if isinstance(error, Unavailable) else {}
    body = msgspec.json.encode({"error": shown})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def format_for(accept: str) -> Format:
    """The format that a client wants which does not name one."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for form, content_type in CONTENT_TYPES.items():
        if content_type.partition(";")[0] in wanted:
            return form
    return "json"


ROUTES = [
    ("POST", "/v1/query", query),
    ("POST", "/v1/query/plan", plan_query),
    ("POST", "/v1/query/route", route_query),
    ("POST", "/v1/diff", diff),
    ("GET", "/v1/queries", list_queries),
    ("DELETE", "/v1/query/{query}", cancel_query),
]
