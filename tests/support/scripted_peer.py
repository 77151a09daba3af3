"""A real WebSocket server on a loopback port that answers exactly as a test tells it.

    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batch = await peer.batch()
        await peer.ack(batch)

The first connection plays the first script, the second the second, and the last one is played again for all others.
When a script returns, its connection stays open until the client leaves; `drop()` ends it without a word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Message = dict[str, Any]


class ClientGone(Exception):
    """The client closed its side."""


class PeerSocket:
    """The server's end of one connection."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self.headers = dict(request.headers)
        self.path = request.path
        self.received: list[Message] = []
        self.greeting: Message = {}
        self._request = request
        self._socket = socket

    async def receive(self) -> Message:
        frame = await self._socket.receive()
        if frame.type is not WSMsgType.TEXT:
            raise ClientGone
        message: Message = json.loads(frame.data)
        self.received.append(message)
        return message

    async def expect(self, kind: str) -> Message:
        """The next message, which must be of this kind."""
        message = await self.receive()
        assert message["type"] == kind, message
        return message

    async def batch(self) -> Message:
        """The next batch; heartbeats before it are answered."""
        while (message := await self.receive())["type"] == "heartbeat":
            await self.ack(message, status="ok", sequenceNumber=0)
        assert message["type"] == "cdc_batch", message
        return message

    async def welcome(self, durable: int = 0, number: int = 0, **fields: Any) -> Message:
        """Take the connect and answer with a status."""
        self.greeting = await self.expect("connect")
        await self.say(
            type="status",
            timestamp=1,
            correlationId=self.greeting["correlationId"],
            state="idle",
            buffer={"batchCount": 0, "eventCount": 0, "totalSizeBytes": 0, "utilization": 0.0},
            connectedSources=1,
            **{"lastDurableSequence": durable, "lastBatchNumber": number, "sourceEpoch": 0} | fields,
        )
        return self.greeting

    async def ack(self, message: Message, status: str = "buffered", **fields: Any) -> None:
        """Answer with an ack; fields named like those of `details` go there."""
        details = {"eventsProcessed": len(message.get("events", ())), "bufferUtilization": 0.0}
        for name in ("position", "bufferUtilization", "suggestedDelayMs", "persistedPath"):
            if name in fields:
                details[name] = fields.pop(name)
        answer = {"sequenceNumber": message.get("sequenceNumber", 0), "correlationId": message.get("correlationId")}
        await self.say(type="ack", timestamp=1, status=status, details=details, **answer | fields)

    async def nack(self, message: Message, reason: str, *, should_retry: bool, **fields: Any) -> None:
        answer = {"sequenceNumber": message.get("sequenceNumber", 0), "errorMessage": "as scripted"}
        if "correlationId" in message:
            answer["correlationId"] = message["correlationId"]
        await self.say(type="nack", timestamp=1, reason=reason, shouldRetry=should_retry, **answer | fields)

    async def say(self, **message: Any) -> None:
        await self._socket.send_str(json.dumps({name: value for name, value in message.items() if value is not None}))

    async def say_raw(self, text: str) -> None:
        await self._socket.send_str(text)

    def drop(self) -> None:
        """Cut the wire."""
        assert self._request.transport is not None
        self._request.transport.abort()

    async def hold(self) -> None:
        """Say nothing more, answer heartbeats, until the client leaves."""
        while True:
            message = await self.receive()
            if message["type"] == "heartbeat":
                await self.ack(message, status="ok")

    async def keep_all(self, durable: int = 0, number: int = 0) -> None:
        """A server without any trouble, until the client leaves."""
        await self.welcome(durable, number)
        await self.keep_the_rest()

    async def keep_the_rest(self) -> None:
        """The same after the welcome."""
        while True:
            batch = await self.batch()
            await self.ack(batch, position=batch["lastEventSequence"])

    async def swallow(self) -> None:
        """Take everything and answer nothing, until the client leaves."""
        while True:
            await self.receive()


Script = Callable[[PeerSocket], Awaitable[None]]


@dataclass
class ScriptedPeer:
    """The peer as a test sees it. `failures` holds what went wrong inside scripts."""

    url: str
    sockets: list[PeerSocket] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def batches(self) -> list[Message]:
        """Every batch that arrived, over all connections."""
        return [message for peer in self.sockets for message in peer.received if message["type"] == "cdc_batch"]


@asynccontextmanager
async def scripted_peer(
    *scripts: Script, http: dict[str, tuple[int, Any]] | None = None
) -> AsyncIterator[ScriptedPeer]:
    """Start it, and raise at the end what failed inside a script. `http` maps paths to a status and a JSON body."""
    state = ScriptedPeer("")

    async def connection(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            state.requests.append(request.path)
            status, body = (http or {}).get(request.path, (404, {}))
            return web.json_response(body, status=status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        peer = PeerSocket(request, socket)
        script = scripts[min(len(state.sockets), len(scripts) - 1)]
        state.sockets.append(peer)
        try:
            await script(peer)
            await peer.hold()
        except (ClientGone, ConnectionError):
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            state.failures.append(failure)
            peer.drop()
        return socket

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", connection)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        state.url = f"http://{host}:{port}"
        yield state
    finally:
        await runner.cleanup()
        if state.failures:  # the cause; what the test met is its consequence
            raise state.failures[0]
