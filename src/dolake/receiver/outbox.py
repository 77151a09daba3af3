"""Answers on their way to one client: sent at once, or in order by one task, and never kept without bound.

From connection.py, which posts without waiting; to the socket. Promise: answers leave in the order they were posted; a
client that does not read them is noticed, and nobody waits for one that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import WSCloseCode, WSMsgType

from dolake.receiver.socket import Socket
from dolake.wire.binary import pack
from dolake.wire.messages import ServerMessage, encode

_MESSAGES_MAX = 1000
_BYTES_MAX = 1024 * 1024
_GOODBYE = WSCloseCode.GOING_AWAY.to_bytes(2, "big") + b"shutting down"
_DISMISSAL = WSCloseCode.POLICY_VIOLATION.to_bytes(2, "big") + b"the token is not valid any more"


class Flag:
    """An event that costs an idle connection nothing: asyncio's has a queue of 700 bytes, which here comes with the
    first who waits and goes with the last."""

    __slots__ = ("_event", "is_set")

    def __init__(self) -> None:
        self.is_set = True
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        self.is_set = True
        if self._event is not None:
            self._event.set()
            self._event = None

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        if not self.is_set:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()


class Outbox:
    """What one connection still has to be told."""

    __slots__ = (
        "_bytes",
        "_count",
        "_is_dismissing",
        "_is_drained",
        "_messages",
        "_sender",
        "_socket",
        "_tasks",
        "is_binary",
        "is_gone",
    )

    def __init__(self, socket: Socket) -> None:
        self.is_gone = False
        """Nothing can be sent any more: the client has left, or was told goodbye."""
        self._is_dismissing = False
        self._socket = socket
        self.is_binary = False
        """Whether the client wants MessagePack: it said so, or its last message was."""
        self._messages: list[tuple[bytes, WSMsgType]] = []
        self._count = 0
        self._bytes = 0
        self._is_drained = Flag()
        self._tasks: asyncio.TaskGroup | None = None
        self._sender: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Send from here on, in tasks of this group: one while there is something to send, and none for a silence."""
        self._tasks = tasks
        self._wake()

    def close(self) -> None:
        """The connection has ended; nobody may go on waiting for answers to go out."""
        self.is_gone = True
        self._messages.clear()
        self._count = self._bytes = 0
        self._is_drained.set()
        if self._sender:
            self._sender.cancel()

    @property
    def is_full(self) -> bool:
        return self._count > _MESSAGES_MAX or self._bytes > _BYTES_MAX

    def post(self, message: ServerMessage) -> None:
        if not self.is_gone:
            data = pack(message) if self.is_binary else encode(message)
            kind = WSMsgType.BINARY if self.is_binary else WSMsgType.TEXT
            if not self._send_at_once(data, kind):
                self._messages.append((data, kind))
                self._count += 1
                self._bytes += len(data)
                self._wake()

    def _send_at_once(self, data: bytes, kind: WSMsgType) -> bool:
        """Mostly nothing is on its way, and a task of its own would cost more than the answer."""
        if self._messages or self._sender or self._tasks is None:
            return False
        try:
            is_sent = self._socket.send_at_once(data, kind)
        except ConnectionError:
            self.close()
            return True
        if is_sent:
            self._is_drained.set()
        return is_sent

    def _wake(self) -> None:
        has_work = self._messages or self._is_dismissing
        if has_work and self._sender is None and self._tasks is not None and not self.is_gone:
            self._sender = self._tasks.create_task(self._send())

    async def _send(self) -> None:
        """Send whatever is posted, until there is nothing more or the client is gone."""
        try:
            while self._messages:
                posted, self._messages = self._messages, []
                for data, kind in posted:
                    await self._socket.send_frame(data, kind)
                    self._count -= 1
                    self._bytes -= len(data)
            self._is_drained.set()
            if self._is_dismissing and not self.is_gone:
                self.is_gone = True
                await self._socket.send_frame(_DISMISSAL, WSMsgType.CLOSE)
        except ConnectionError:
            self._sender = None
            self.close()
        finally:
            self._sender = None

    def dismiss(self) -> None:
        """Say goodbye behind what was posted: the token is not valid any more."""
        self._is_dismissing = True
        self._wake()

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
