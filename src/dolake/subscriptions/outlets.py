"""Messages as bytes on a connection: made once, written to all who get the same.

From feeds.py; to the transports of sockets and event streams. A server's frames are not masked, so a frame is the same
for every reader. Nothing is queued here but what the transport itself holds, and that is bounded by who writes.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Literal

import msgspec

from dolake.errors import DoLakeError
from dolake.positions import Position

Form = Literal["socket", "events"]
_encode = msgspec.json.Encoder().encode
_TEXT, _SHORT_MAX, _MIDDLE_MAX = b"\x81", 125, 0xFFFF


class Message:
    """One message in each form that somebody wants."""

    def __init__(self, kind: str, body: bytes, token: str = "") -> None:
        self.kind, self.body, self.token = kind, body, token

    def bytes_for(self, form: Form) -> bytes:
        return self.frame if form == "socket" else self.chunk

    @cached_property
    def frame(self) -> bytes:
        """As a WebSocket's text frame."""
        size = len(self.body)
        if size <= _SHORT_MAX:
            return _TEXT + size.to_bytes(1) + self.body
        if size <= _MIDDLE_MAX:
            return _TEXT + b"\x7e" + size.to_bytes(2) + self.body
        return _TEXT + b"\x7f" + size.to_bytes(8) + self.body

    @cached_property
    def chunk(self) -> bytes:
        """As a server-sent event, in a chunk of its own."""
        id_ = f"id: {self.token}\n".encode() if self.token else b""
        event = b"event: " + self.kind.encode() + b"\n" + id_ + b"data: " + self.body + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(event), event)


def batch_message(token: str, start: Position, end: Position, count: int, events: bytes | memoryview) -> Message:
    """Events that are JSON already."""
    head = f'{{"type":"batch","token":"{token}","from":{start},"position":{end},"count":{count},"events":['
    return Message("batch", b"".join((head.encode(), events, b"]}")), token)


def heartbeat_message(token: str, position: Position, now_ms: int) -> Message:
    body = {"type": "heartbeat", "token": token, "position": position, "timestamp": now_ms}
    return Message("heartbeat", _encode(body), token)


def error_message(error: DoLakeError, token: str | None) -> Message:
    body: dict[str, object] = {"type": "error", "code": error.code, "message": error.message, "hint": error.hint}
    body |= {"retryable": error.retryable} | ({"token": token} if token else {})
    return Message("error", _encode(body), token or "")


def plain_message(kind: str, **fields: object) -> Message:
    return Message(kind, _encode({"type": kind} | fields))


class Outlet:
    """Where one subscriber's messages go."""

    def __init__(self, transport: asyncio.WriteTransport, form: Form) -> None:
        self._transport, self.form = transport, form
        self._written = 0

    def write(self, message: Message) -> None:
        """Never waits: look at `waiting_bytes` first. To a reader that is gone nothing is written."""
        if self._transport.is_closing():
            return
        data = message.bytes_for(self.form)
        self._written += len(data)
        self._transport.write(data)

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    @property
    def taken_bytes(self) -> int:
        """How much has left so far."""
        return self._written - self.waiting_bytes

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()
