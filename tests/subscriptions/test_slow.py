"""Who reads nothing keeps nobody waiting, is told so in the end, and misses nothing when it comes back."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp

from dolake.client import connect
from tests.support.changes import insert
from tests.support.server import ServerProcess
from tests.support.subscriber import Listener

_COUNT, _SIZE = 2_000, 2_000


async def test_a_stuck_subscriber_is_told_so_and_goes_on_with_its_token(server: ServerProcess, table: str) -> None:
    async with connect(server.url) as lake, aiohttp.ClientSession(connector=_small_windows()) as session:
        stuck = await session.ws_connect(server.url + "/v1/subscribe", max_msg_size=0)
        await stuck.send_json({"type": "subscribe", "tables": [table], "from": "now"})
        assert (await stuck.receive_json())["type"] == "subscribed"
        connection = stuck._response.connection
        assert connection is not None
        transport: Any = connection.transport
        transport.pause_reading()
        async with Listener(server.url, tables=[table]) as other:
            text = "x" * _SIZE
            for first in range(0, _COUNT, 100):
                await lake.send([insert(table, id_, text=text) for id_ in range(first, first + 100)])
            assert [event["after"]["id"] for event in await other.events(_COUNT)] == list(range(_COUNT))
        before = _ended(server)
        while _ended(server) == before == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        transport.resume_reading()
        seen, token = await _rest(stuck)
        assert seen == list(range(len(seen)))
        assert len(seen) < _COUNT
        async with Listener(server.url, tables=[table], **{"from": token}) as again:
            rest = [event["after"]["id"] for event in await again.events(_COUNT - len(seen))]
        assert rest == list(range(len(seen), _COUNT))


async def _rest(stuck: aiohttp.ClientWebSocketResponse[Any]) -> tuple[list[int], str]:
    """What still comes: batches in order, then the reason, unless the connection was cut before it."""
    seen: list[int] = []
    token = ""
    async for message in stuck:
        said = json.loads(message.data)
        token = said["token"]
        if said["type"] == "error":
            assert said["code"] == "too_slow"
            assert said["retryable"]
        elif said["type"] == "batch":
            seen += [event["after"]["id"] for event in said["events"]]
    return seen, token


def _ended(server: ServerProcess) -> int:
    _, text = server.get("/metrics")
    found = [line for line in text.splitlines() if line.startswith('dolake_subscriptions_ended_total{code="too_slow"}')]
    return int(float(found[0].split()[1])) if found else 0


def _small_windows() -> aiohttp.TCPConnector:
    """Sockets that hold little, so that who does not read is seen at once."""

    def made(info: Any) -> socket.socket:
        found = socket.socket(info[0], info[1], info[2])
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return found

    return aiohttp.TCPConnector(socket_factory=made)
