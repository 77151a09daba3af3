"""Who asks: each request's token is recognised once, and what it may do goes with the request.

The middleware of app.py; to every room's routes, which ask `grant_of(request)`. While there is no token, everybody who
reaches the port may do everything (lifecycle.py lets only this machine reach it); as soon as there is one, everybody
needs one. docs/explain/security.md has the rules. Promise: no handler runs before its need is met; a revoked or expired
token ends open connections within a quarter of a second; no token is in any log, error or answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import hdrs, web

from dolake.catalog import rest as catalog_rest
from dolake.catalog.base import PIPELINE_HEADER
from dolake.catalog.rest import MethodNotAllowed
from dolake.errors import Forbidden, NotFound, Unauthorized
from dolake.identity.audit import write_audit
from dolake.identity.grants import NOBODY_YET, PIPELINE, Grant
from dolake.identity.request import GRANT
from dolake.identity.slowing import Failures
from dolake.identity.store import TokenBook
from dolake.receiver.endpoint import CLIENT_ADDRESS
from dolake.server.permissions import ANY, Need, need_of

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOK_EVERY_S = 0.2


class Doorkeeper:
    """The tokens of a running server, and what came of showing them."""

    def __init__(self, home: Path, clock_ms: Callable[[], int]) -> None:
        self.home, self.clock_ms = home, clock_ms
        self.book = TokenBook(home, clock_ms)
        self.failures = Failures()
        self.login_counts: Counter[str] = Counter()
        """Log-ins that failed, by reason: missing, invalid."""
        self.forbidden_count = 0
        self.is_pipeline: Callable[[str | None], bool] = lambda _secret: False
        """Whether this is the pipeline's secret; the catalog knows it once it is open."""
        self._on_change: list[Callable[[], None]] = []
        self._on_look: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None], *, is_always: bool = False) -> None:
        """Called on the event loop when tokens were made or revoked. Expiry is for the listener to mind, unless it is
        called at each look, which is too much for ten thousand connections."""
        (self._on_look if is_always else self._on_change).append(listener)

    async def watch(self, stopping: asyncio.Event) -> None:
        """Look for tokens that were made, revoked or have expired, until the server stops."""
        while not stopping.is_set():
            has_changed = False
            try:
                has_changed = await asyncio.to_thread(self.book.refresh)
            except Exception:  # what was known stays: better than to let anybody in, or nobody
                logger.exception("tokens not read")
            for listener in [*self._on_look, *(self._on_change if has_changed else ())]:
                listener()
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def recognise(self, request: web.Request) -> Grant:
        """Who asks. Raises Unauthorized, after a while."""
        if PIPELINE_HEADER in request.headers and self.is_pipeline(request.headers[PIPELINE_HEADER]):
            return PIPELINE
        kind, _, text = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if not self.book.is_required:
            # A source of ours keeps its grant, and so its connection, when the first token is made.
            return self.book.recognise_own(text.strip()) or NOBODY_YET
        try:
            if kind.lower() != "bearer":
                raise Unauthorized("a token is needed", hint="send it as `Authorization: Bearer dolake_...`")
            return self.book.recognise(text.strip())
        except Unauthorized:
            await self.note_failure(request, "invalid" if kind else "missing")
            raise

    def is_own_process(self, request: web.Request) -> bool:
        """Whether the pipeline or one of our sources asks."""
        text = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")[2]
        is_pipeline = PIPELINE_HEADER in request.headers and self.is_pipeline(request.headers[PIPELINE_HEADER])
        return is_pipeline or self.book.recognise_own(text.strip()) is not None

    async def note_failure(self, request: web.Request, reason: str) -> None:
        """Count it, and let it wait."""
        self.login_counts[reason] += 1
        address = _address_of(request)
        delay_s = self.failures.note(address, time.monotonic())
        if self.failures.waiting == 0 and reason == "invalid":
            logger.warning("log-in failed", extra={"address": address, "reason": reason})
        self.failures.waiting += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self.failures.waiting -= 1

    def check(self, grant: Grant, need: Need) -> None:
        """Raises Forbidden, in the same words whether there is such a thing or not."""
        if need.scopes and not grant.may(need.scopes):
            self.forbidden_count += 1
            raise Forbidden(
                "this token may not do that", hint=f"it needs the scope {' or '.join(need.scopes)}: make another one"
            )
        if need.is_lake_wide and not grant.is_lake_wide:
            self.forbidden_count += 1
            raise Forbidden("this concerns the whole lake", hint="it needs a token that is not of some namespaces only")

    async def write_audit(self, request: web.Request, grant: Grant, outcome: str) -> None:
        await asyncio.to_thread(
            write_audit,
            self.home,
            who=f"{grant.name} ({grant.id})",
            what=f"{request.method} {request.path_qs}",
            outcome=outcome,
            now_ms=self.clock_ms(),
            address=_address_of(request),
        )


DOORKEEPER = web.AppKey("doorkeeper", Doorkeeper)


def _address_of(request: web.Request) -> str:
    """The client's, also behind a trusted proxy."""
    return request.get(CLIENT_ADDRESS) or request.remote or ""


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Nothing below runs before it is known who asks, and that he may."""
    keeper, need = request.app[DOORKEEPER], need_for(request)
    if need.is_open:
        return await handler(request)
    request[GRANT] = grant = await keeper.recognise(request)
    if not need.is_audited or grant is PIPELINE:
        keeper.check(grant, need)
        return await handler(request)
    outcome = "failed"
    try:
        keeper.check(grant, need)
        response = await handler(request)
        outcome = str(response.status)
        return response
    except Exception as error:
        outcome = getattr(error, "code", type(error).__name__)
        raise
    finally:
        await keeper.write_audit(request, grant, outcome)


BASE_PATH = web.AppKey("base_path", str)
_CATALOG_PATTERN = "/v1/{path}"


def need_for(request: web.Request) -> Need:
    """What this request needs; where there is no such route, a token at least."""
    resource = request.match_info.route.resource
    if resource is None:
        return ANY
    base, pattern = request.app[BASE_PATH], resource.canonical
    base = base if base and (pattern == base or pattern.startswith(f"{base}/")) else ""
    pattern = pattern.removeprefix(base) or "/"
    if pattern == _CATALOG_PATTERN:
        return _catalog_need(request, base)
    if pattern == "/" and request.headers.get("Upgrade", "").lower() == "websocket":
        pattern = "/ws"
    return need_of(request.method, pattern)


def _catalog_need(request: web.Request, base: str) -> Need:
    """Found by the same path as the handler is (app.catalog), so that both mean the same."""
    try:
        found = catalog_rest.find_pattern(request.method, request.raw_path.removeprefix(base))
    except (MethodNotAllowed, NotFound, Forbidden):
        return ANY  # there is no such thing, which the route itself will say
    return need_of(request.method, f"/v1{found}")
