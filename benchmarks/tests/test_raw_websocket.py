"""The load generator's own WebSocket client, against a server that is not ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import WSMsgType, web

from tools.raw_websocket import RawWebSocketError, encode_frame, open_raw_websocket

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def echo(request: web.Request) -> web.StreamResponse:
    """Ping first, then send every text back."""
    socket = web.WebSocketResponse(max_msg_size=1 << 20)
    await socket.prepare(request)
    await socket.ping()
    async for message in socket:
        await socket.send_frame(str(message.data).encode(), WSMsgType.TEXT)
    return socket


async def hang_up(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.close(message=b"full")
    return socket


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def say_to(handler: Handler, texts: list[str]) -> list[bytes]:
    """Open a connection to this handler, send the texts one after another, and return the answers."""
    answers: asyncio.Queue[bytes | Exception] = asyncio.Queue()
    app = web.Application()
    app.router.add_get("/ws", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/ws"
        socket = await open_raw_websocket(url, {}, answers.put_nowait, answers.put_nowait)
        try:
            received = []
            for text in texts:
                socket.send(encode_frame(text.encode()))
                answer = await asyncio.wait_for(answers.get(), 10)
                if isinstance(answer, Exception):
                    raise answer
                received.append(answer)
            return received
        finally:
            socket.close()
    finally:
        await runner.cleanup()


def test_texts_of_every_length_arrive_as_they_were() -> None:
    texts = ["", "ü", "a" * 125, "b" * 126, "c" * 65_535, "d" * 65_536, "ß" * 200_000]
    assert asyncio.run(say_to(echo, texts)) == [text.encode() for text in texts]


def test_a_refused_upgrade_says_the_status() -> None:
    with pytest.raises(RawWebSocketError, match="503"):
        asyncio.run(say_to(refuse, []))


def test_a_close_says_the_servers_reason() -> None:
    with pytest.raises(RawWebSocketError, match="full"):
        asyncio.run(say_to(hang_up, ["hello"]))
