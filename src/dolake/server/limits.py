"""Limits on HTTP: how often one address may ask, what it has left, and how long it may take to say what it wants.

From app.py. Promise: every answer has X-RateLimit-*, a refusal also Retry-After; the pipeline, which knows the
server's secret, is not limited; a body that does not come is not waited for without end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from aiohttp import web

from dolake.catalog.base import PIPELINE_HEADER
from dolake.receiver.admission import raise_if_refused
from dolake.receiver.endpoint import CLIENT_ADDRESS
from dolake.server.lake import Lake
from dolake.server.operations import LAKE
from dolake.wire.messages import RateLimitInfo

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SUBSCRIBE = "/v1/subscribe"
_BUDGET = web.RequestKey("rate_limit", RateLimitInfo)


@web.middleware
async def limit_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note who asks, refuse who asks too often, and do not wait for ever for a body."""
    lake = request.app[LAKE]
    address = lake.limiter.client_address(request.remote or "", request.headers.getall("X-Forwarded-For", ()))
    request[CLIENT_ADDRESS] = address
    if not _is_pipeline(request, lake):
        result = lake.limiter.admit_request(address)
        if result.rate_limit is not None:
            request[_BUDGET] = result.rate_limit
        raise_if_refused(result)
    if _lasts(request):
        return await _as_connection(request, handler, lake, address)
    if not request.can_read_body:
        return await handler(request)
    wait_s = lake.settings.current.server.request_wait_max_ms / 1000
    timer = asyncio.get_running_loop().call_later(wait_s, _stop_waiting, request)
    try:
        return await handler(request)
    finally:
        timer.cancel()


async def _as_connection(request: web.Request, handler: Handler, lake: Lake, address: str) -> web.StreamResponse:
    """What stays open counts among the connections of its address, like a source's."""
    connection = object()
    raise_if_refused(lake.limiter.admit_connection(connection, address))
    try:
        return await handler(request)
    finally:
        lake.limiter.release(connection)


def _lasts(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical.endswith(_SUBSCRIBE)


def _stop_waiting(request: web.Request) -> None:
    if not request.content.is_eof():
        request.content.set_exception(web.HTTPRequestTimeout())


def _is_pipeline(request: web.Request, lake: Lake) -> bool:
    return lake.has_catalog and lake.catalog.is_pipeline(request.headers.get(PIPELINE_HEADER))


async def tell_budget(request: web.Request, response: web.StreamResponse) -> None:
    """On its way out every answer is told what its asker has left."""
    budget = request.get(_BUDGET)
    if budget is not None:
        response.headers["X-RateLimit-Limit"] = str(budget.limit)
        response.headers["X-RateLimit-Remaining"] = str(budget.remaining)
        response.headers["X-RateLimit-Reset"] = str(budget.reset_at)


def retry_after_s(wait_ms: int) -> str:
    """Retry-After counts in whole seconds."""
    return str(max(1, math.ceil(wait_ms / 1000)))
