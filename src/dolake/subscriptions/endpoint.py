"""Subscribers' connections: a WebSocket or a stream of server-sent events at /v1/subscribe, and names over HTTP.

From server/app.py; to feeds.py, which writes to these connections. docs/reference/subscriptions.md has the messages.
Promise: who is disconnected by us is told why and with which token to go on, as far as there is still a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket as sockets
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from dolake.errors import (
    Conflict,
    DoLakeError,
    InvalidInput,
    NotFound,
    SubscriptionTaken,
    Unavailable,
    UnknownTable,
)
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.positions import Position
from dolake.query.announcing import Wish
from dolake.settings import SubscriptionSettings
from dolake.subscriptions.feeds import Feeds, Subscriber
from dolake.subscriptions.names import Named, Names
from dolake.subscriptions.outlets import Message, Outlet, error_message, plain_message
from dolake.subscriptions.requests import (
    Acknowledge,
    Subscribe,
    beginning_of,
    read_message,
    read_query,
)
from dolake.subscriptions.source import Source
from dolake.subscriptions.tokens import position_in

logger = logging.getLogger(__name__)
_FIRST_WAIT_S = 30.0
_GOODBYE_S = 5.0
_MESSAGE_MAX_BYTES = 1024 * 1024
_SEND_BUFFER_BYTES = 512 * 1024
"""What the kernel may hold for one reader: else megabytes would look as if they were taken."""


class Subscriptions:
    """All that routes need."""

    def __init__(
        self,
        source: Source,
        feeds: Feeds,
        names: Names,
        *,
        lake: bytes,
        durable: Callable[[], Position],
        settings: Callable[[], SubscriptionSettings],
    ) -> None:
        self.source, self.feeds, self.names = source, feeds, names
        self.lake, self.durable, self.settings = lake, durable, settings

    async def prepare(self, wanted: Subscribe, grant: Grant) -> tuple[Wish, Position]:
        """What is wanted and where it begins; raises what is wrong with it."""
        wish, name = wanted.wish(), wanted.checked_name()
        for table in wish.tables:
            if not grant.sees_table(table):
                raise UnknownTable(f"there is no table {table}", hint="GET /v1/tables lists them")
        if len(self.feeds.subscribers) >= self.settings().subscribers_max:
            raise Unavailable("there are too many subscribers", hint="subscriptions.subscribers_max is the bound")
        known = self.names.find(name) if name else None
        if known is not None and not _sees(grant, known):
            raise Conflict(f"the name {name} is taken", hint="choose another one")
        if name and known is None and len(self.names) >= self.settings().names_max:
            raise Conflict("there are too many named subscriptions", hint="drop one, or raise subscriptions.names_max")
        beginning = beginning_of(wanted.from_, self.lake, self.durable())
        checked = await self.source.check(wish, None if known else beginning.time_ms)
        if known is not None and not wanted.is_resuming:
            start = known.position
        else:
            start = checked.start if beginning.position is None else beginning.position
        if start > self.durable():
            raise Conflict(
                f"the subscription {name} is at position {start}, and this lake ends at {self.durable()}",
                hint="was the lake restored from a backup? Drop the subscription and begin anew",
            )
        if name:
            await self.names.keep(name, wish, start)
        return wish, start

    def enter(self, wanted: Subscribe, wish: Wish, start: Position, outlet: Outlet, grant: Grant) -> Subscriber:
        """The subscriber is told from here on; who had its name before is told of that."""
        subscriber = Subscriber(wish, start, outlet, wanted.name, grant)
        if wanted.name:
            self.end_named(wanted.name, "another connection uses this subscription now")
        outlet.write(
            plain_message(
                "subscribed",
                token=self.feeds.token(start),
                position=start,
                durablePosition=self.durable(),
                name=wanted.name,
                tables=wish.tables,
                heartbeatMs=self.settings().heartbeat_ms,
            )
        )
        self.feeds.add(subscriber)
        return subscriber

    def end_named(self, name: str, why: str) -> None:
        for other in self.feeds.subscribers:
            if other.name == name:
                self.feeds.remove(other)
                other.end(SubscriptionTaken(why, hint="a name has one reader at a time"))

    async def acknowledge(self, name: str, token: str, told: Position) -> Message:
        position = position_in(token, self.lake, self.durable())
        if position > told:
            raise InvalidInput(
                f"position {position} was not sent yet", hint="acknowledge the token of a batch that was received"
            )
        kept = await self.names.acknowledge(name, position)
        return plain_message("acked", token=self.feeds.token(kept), position=kept)

    def listed(self, named: Named) -> dict[str, Any]:
        connected = any(each.name == named.name for each in self.feeds.subscribers)
        return {
            "name": named.name,
            **msgspec.to_builtins(named.wish),
            "position": named.position,
            "token": self.feeds.token(named.position),
            "lag": max(0, self.durable() - named.position),
            "connected": connected,
            "createdMs": named.created_ms,
            "acknowledgedMs": named.acknowledged_ms,
        }

    def as_json(self) -> dict[str, Any]:
        """The part of /status."""
        stats = self.feeds.stats
        return {
            "subscribers": len(self.feeds.subscribers),
            "named": len(self.names),
            "batches": stats.batch_count,
            "events": stats.event_count,
            "bytes": stats.byte_count,
        }


SUBSCRIPTIONS: web.AppKey[Callable[[], Subscriptions]] = web.AppKey("subscriptions")


async def subscribe(request: web.Request) -> web.StreamResponse:
    """Hear of changes as they come: a WebSocket, or server-sent events."""
    subscriptions = request.app[SUBSCRIPTIONS]()
    if web.WebSocketResponse().can_prepare(request).ok:
        return await _serve_socket(subscriptions, request)
    if "text/event-stream" in request.headers.get("Accept", "") or "tables" in request.query:
        return await _serve_events(subscriptions, request)
    raise InvalidInput(
        "this address speaks WebSocket, or sends server-sent events",
        hint="connect with a WebSocket client, or ask for /v1/subscribe?tables=orders",
    )


async def _serve_socket(subscriptions: Subscriptions, request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(
        decode_text=False, compress=False, max_msg_size=_MESSAGE_MAX_BYTES, timeout=_GOODBYE_S
    )
    await socket.prepare(request)
    outlet = _outlet(request, "socket")
    subscriber: Subscriber | None = None
    error: DoLakeError | None = None
    try:
        wanted = await _first_message(socket)
        if wanted is None:
            return socket
        wish, start = await subscriptions.prepare(wanted, grant_of(request))
        subscriber = subscriptions.enter(wanted, wish, start, outlet, grant_of(request))
        error = await _listen(subscriptions, socket, subscriber)
    except DoLakeError as found:
        error = found
    finally:
        if subscriber:
            subscriptions.feeds.remove(subscriber)
            subscriber.end()
    if error is not None:
        outlet.write(error_message(error, subscriptions.feeds.token(subscriber.position) if subscriber else None))
        await _goodbye(socket, outlet, error)
    return socket


async def _first_message(socket: web.WebSocketResponse) -> Subscribe | None:
    try:
        async with asyncio.timeout(_FIRST_WAIT_S):
            message = await socket.receive()
    except TimeoutError:
        raise InvalidInput("nothing was said", hint="send a `subscribe` message first") from None
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        return None
    said = read_message(message.data)
    if not isinstance(said, Subscribe):
        raise InvalidInput("the first message is to be `subscribe`", hint="acknowledge what was received afterwards")
    return said


async def _listen(
    subscriptions: Subscriptions, socket: web.WebSocketResponse, subscriber: Subscriber
) -> DoLakeError | None:
    """Take acknowledgements until either side ends it; gives the reason where it was ours."""
    reading = asyncio.ensure_future(_read_acks(subscriptions, socket, subscriber))
    try:
        await asyncio.wait([reading, subscriber.ended], return_when=asyncio.FIRST_COMPLETED)
        if subscriber.ended.done():
            return subscriber.ended.result()
        return reading.result()
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, DoLakeError):
            await reading


async def _read_acks(
    subscriptions: Subscriptions, socket: web.WebSocketResponse, subscriber: Subscriber
) -> DoLakeError | None:
    async for message in socket:
        try:
            said = read_message(message.data)
            if not isinstance(said, Acknowledge):
                raise InvalidInput("this connection has its subscription", hint="open another one for another")
            if subscriber.name is None:
                raise InvalidInput("only a named subscription is acknowledged", hint="subscribe with a name")
            subscriber.outlet.write(await subscriptions.acknowledge(subscriber.name, said.token, subscriber.position))
        except DoLakeError as error:
            return error
    return None


async def _goodbye(socket: web.WebSocketResponse, outlet: Outlet, error: DoLakeError) -> None:
    """Close it; who takes nothing any more is cut off in the end."""
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await socket.close(code=1013 if error.retryable else 1008, message=error.code.encode()[:120])
    except TimeoutError:
        outlet.abort()


async def _serve_events(subscriptions: Subscriptions, request: web.Request) -> web.StreamResponse:
    wanted = read_query(request.query, request.headers.get("Last-Event-ID"))
    wish, start = await subscriptions.prepare(wanted, grant_of(request))
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(b": dolake\n\n")  # the status goes out with it
    outlet = _outlet(request, "events")
    subscriber = subscriptions.enter(wanted, wish, start, outlet, grant_of(request))
    try:
        error = await subscriber.ended
        if error is not None:
            outlet.write(error_message(error, subscriptions.feeds.token(subscriber.position)))
    finally:
        subscriptions.feeds.remove(subscriber)
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await response.write_eof()
    except TimeoutError:
        outlet.abort()
    return response


def _outlet(request: web.Request, form: Any) -> Outlet:
    transport = request.transport
    assert transport is not None
    if (raw := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return Outlet(transport, form)


# --- names ------------------------------------------------------------------------------------------------------------


async def list_subscriptions(request: web.Request) -> web.StreamResponse:
    """The named subscriptions, and how far each has come."""
    subscriptions = request.app[SUBSCRIPTIONS]()
    grant = grant_of(request)
    found = [subscriptions.listed(each) for each in subscriptions.names.all() if _sees(grant, each)]
    own = [each for each in subscriptions.feeds.subscribers if all(map(grant.sees_table, each.wish.tables))]
    body = {"subscriptions": found, "subscribers": len(own)}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def drop_subscription(request: web.Request) -> web.StreamResponse:
    """Forget a named subscription; its reader is disconnected."""
    subscriptions = request.app[SUBSCRIPTIONS]()
    name = _found(subscriptions, request).name
    await subscriptions.names.drop(name)
    subscriptions.end_named(name, "the subscription was dropped")
    return web.Response(status=204)


def _found(subscriptions: Subscriptions, request: web.Request) -> Named:
    """The one that the address names; what its reader cannot see is not there."""
    name = request.match_info["subscription"]
    found = subscriptions.names.find(name)
    if found is None or not _sees(grant_of(request), found):
        raise NotFound(f"there is no subscription {name[:80]}", hint="GET /v1/subscriptions lists them")
    return found


def _sees(grant: Grant, named: Named) -> bool:
    return all(map(grant.sees_table, named.wish.tables))


class _Ack(msgspec.Struct):
    token: str


async def acknowledge(request: web.Request) -> web.StreamResponse:
    """Move a named subscription on to this token, for readers of server-sent events."""
    subscriptions = request.app[SUBSCRIPTIONS]()
    try:
        said = msgspec.json.decode(await request.read(), type=_Ack)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body cannot be read: {error}", hint='send {"token": "..."}') from None
    name = _found(subscriptions, request).name
    told = max((each.position for each in subscriptions.feeds.subscribers if each.name == name), default=2**62)
    answer = await subscriptions.acknowledge(name, said.token, told)
    return web.Response(body=answer.body, content_type="application/json")


ROUTES = [
    ("GET", "/v1/subscribe", subscribe),
    ("GET", "/v1/subscriptions", list_subscriptions),
    ("DELETE", "/v1/subscriptions/{subscription}", drop_subscription),
    ("POST", "/v1/subscriptions/{subscription}/ack", acknowledge),
]
