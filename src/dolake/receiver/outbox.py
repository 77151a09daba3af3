"""Answers on their way to one client: sent in order by one task, and never kept without bound.

From connection.py, which posts without waiting; to the socket. Promise: answers leave in the order they were posted; a
client that does not read them is noticed, and nobody waits for one that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from aiohttp import WSCloseCode, WSMsgType, web

_MESSAGES_MAX = 1000
_BYTES_MAX = 1024 * 1024
_GOODBYE = WSCloseCode.GOING_AWAY.to_bytes(2, "big") + b"shutting down"


class Outbox:
    """What one connection still has to be told."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.is_gone = False
        """Nothing can be sent any more: the client has left, or was told goodbye."""
        self._socket = socket
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) > _MESSAGES_MAX or self._bytes > _BYTES_MAX

    def post(self, message: bytes) -> None:
        if not self.is_gone:
            self._messages.append(message)
            self._bytes += len(message)
            self._wake.set()

    async def send(self) -> None:
        """Send whatever is posted, until cancelled or until the client is gone."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._messages:
                    await self._socket.send_frame(self._messages[0], WSMsgType.TEXT)
                    self._bytes -= len(self._messages.popleft())
                self._is_drained.set()
        except ConnectionError:
            pass
        finally:  # also when the connection ends and cancels us: nobody may go on waiting for answers to go out
            self.is_gone = True
            self._messages.clear()
            self._bytes = 0
            self._is_drained.set()

    async def drained(self) -> None:
        """Wait until everything posted so far has been sent."""
        self._is_drained.clear()
        await self._is_drained.wait()

    async def say_goodbye(self) -> None:
        """Send a close frame and nothing after it.

        Not socket.close(), which cuts the connection while the client may still be sending: closed over bytes that
        nobody read, TCP resets it, and answers that the client has not read yet are lost on the way.
        """
        self.is_gone = True
        with contextlib.suppress(ConnectionError):
            await self._socket.send_frame(_GOODBYE, WSMsgType.CLOSE)
