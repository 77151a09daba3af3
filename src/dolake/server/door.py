"""What stands on every answer, what a browser's page may do, and how much of a request is read before it is refused.

From server/lifecycle.py, which listens with `DoorRunner`, and app.py, which adds the rest. Promise: every answer has
the security headers, also one to bytes that are no HTTP; a page from a site that `server.cors_origins` does not name
can neither change anything here nor read an answer; nobody holds a connection for long without a whole request.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_request import BaseRequest

from dolake.errors import Forbidden

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LINE_MAX_BYTES = 8190
"""Of the first line, which has the URL, and of each header; there may be 128 of these."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TLS_HEADERS = {"Strict-Transport-Security": "max-age=86400"}
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = "ETag, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
_PREFLIGHT_KEPT_S = 600


def add_headers(response: web.StreamResponse, *, is_secure: bool) -> None:
    """A route may have set one of them to something of its own."""
    for name, value in (HEADERS | _TLS_HEADERS if is_secure else HEADERS).items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "dolake"  # where aiohttp has put its version
    kept = "private, no-cache" if hdrs.ETAG in response.headers else "no-store"
    response.headers.setdefault(hdrs.CACHE_CONTROL, kept)


class Door:
    """The rules for browsers; `origins` tells which sites are named at this moment."""

    def __init__(self, origins: Callable[[], Sequence[str]]) -> None:
        self._origins = origins

    async def dress(self, request: web.Request, response: web.StreamResponse) -> None:
        """For app.on_response_prepare."""
        add_headers(response, is_secure=request.secure)
        if not self._origins():
            return
        response.headers.add(hdrs.VARY, "Origin")
        origin = request.headers.get("Origin")
        if origin and origin in self._origins():
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
            # The answer is meant for that page. A browser's credentials are never asked for: tokens travel in a header.
            response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"

    @property
    def middleware(self) -> Any:
        """Answers a browser's question beforehand, and refuses what a page may not do."""

        @web.middleware
        async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
            origin = request.headers.get("Origin")
            if not origin or origin in self._origins():
                is_asking_first = request.method == "OPTIONS" and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
                return _preflight(request) if origin and is_asking_first else await handler(request)
            is_reading = request.method in ("GET", "HEAD", "OPTIONS") and "Upgrade" not in request.headers
            if not is_reading and not _is_loopback(_host_of(origin)):
                raise Forbidden(
                    f"pages of {origin[:200]} may not use this server",
                    hint="use a client, not a page; server.cors_origins names the sites that may",
                )
            return await handler(request)

        return check_origin


def _preflight(request: web.Request) -> web.Response:
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_KEPT_S),
    }
    if wanted:
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
    return web.Response(status=204, headers=headers)


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


# --- requests that never reach a route -------------------------------------------------------------------------------


class DoorRunner(web.AppRunner):
    """aiohttp's runner, with bounds of ours and our words for what is no HTTP."""

    def __init__(self, app: web.Application, *, wait_s: float) -> None:
        """wait_s: a connection that brings no whole head of a request for so long is closed."""
        super().__init__(
            app,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=wait_s,
            max_line_size=LINE_MAX_BYTES,
            max_field_size=LINE_MAX_BYTES,
        )

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        return server


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _RequestHandler(self, loop=self._loop, **self._kwargs)


class _RequestHandler(web.RequestHandler):
    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A stranger's bytes are no error of ours: they get an answer in our form, and no traceback in the log."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        logger.debug("request not understood", extra={"status": status, "reason": type(exc).__name__})
        said = {
            "message": f"this is no HTTP request that is understood here: {type(exc).__name__}",
            "type": "bad_request",
            "code": status,
            "hint": f"a line of it, such as the URL or one header, has at most {LINE_MAX_BYTES} bytes",
        }
        response = web.Response(
            status=status, body=msgspec.json.encode({"error": said}), content_type="application/json"
        )
        add_headers(response, is_secure=request.secure)
        response.force_close()
        return response
