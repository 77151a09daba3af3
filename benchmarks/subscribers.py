"""A thousand subscribers in one process: each reads its frames, and keeps a checksum of the events in them.

For subscribe.py, in a process of its own, so that its work is not the sender's. Reads the WebSocket itself: a full
client for each would measure the client. Events are decoded for a few subscribers; others must have the same bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
import zlib
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

Json = dict[str, Any]
_COMMIT = b'"commitTimestamp":'
_EVENTS = b'"events":['
_BATCH = b'{"type":"batch"'
_STUCK_BYTES = 64 * 1024


@dataclass
class Reader(asyncio.Protocol):
    """One subscriber."""

    wish: Json
    keeps_events: bool
    delays: list[tuple[float, float, int]]
    """Shared by all: when, how many ms after the oldest event of a frame became durable, and how many events."""
    crc: int = 0
    count: int = 0
    kept: list[bytes] = field(default_factory=list)
    error: str = ""
    is_subscribed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _buffer: bytearray = field(default_factory=bytearray)
    _is_upgraded: bool = False
    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        host = self.wish.pop("host")
        transport.write(
            f"GET /v1/subscribe HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._is_upgraded:
            head, end, rest = bytes(buffer).partition(b"\r\n\r\n")
            if not end:
                return
            assert b" 101 " in head, head
            self._is_upgraded = True
            self._buffer = buffer = bytearray(rest)
            self.transport.write(masked(json.dumps({"type": "subscribe", **self.wish}).encode()))
        at, size = 0, len(buffer)
        while size - at >= 2:
            length, start = buffer[at + 1] & 0x7F, at + 2
            if length == 126:
                length, start = int.from_bytes(buffer[at + 2 : at + 4]), at + 4
            elif length == 127:
                length, start = int.from_bytes(buffer[at + 2 : at + 10]), at + 10
            if size - start < length or start > size:
                break
            self._take(bytes(buffer[start : start + length]))
            at = start + length
        del buffer[:at]

    def _take(self, frame: bytes) -> None:
        if not frame.startswith(_BATCH):
            self._take_other(frame)
            return
        begin = frame.index(_EVENTS) + len(_EVENTS)
        number = frame.index(b'"count":') + 8
        count = int(frame[number : frame.index(b",", number)])
        events = frame[begin:-2]
        moment = frame.index(_COMMIT, begin) + len(_COMMIT)
        now_ms = time.time() * 1000
        self.delays.append((now_ms, now_ms - int(frame[moment : moment + 13]), count))
        self.crc = zlib.crc32(events, zlib.crc32(b",", self.crc) if self.count else self.crc)
        self.count += count
        if self.keeps_events:
            self.kept.append(events)

    def _take_other(self, frame: bytes) -> None:
        if not frame.startswith(b"{"):
            return
        said = json.loads(frame)
        if said["type"] == "subscribed":
            self.is_subscribed.set_result(None)
        elif said["type"] == "error":
            self.error = said["code"]
            if not self.is_subscribed.done():
                self.is_subscribed.set_exception(RuntimeError(frame.decode()))

    def numbers(self) -> list[int]:
        """What the kept events say of themselves."""
        return [event["after"]["n"] for event in json.loads(b"[" + b",".join(self.kept) + b"]")]


def masked(payload: bytes) -> bytes:
    """A client's frame; the mask is zero, which is one."""
    size = len(payload)
    head = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2)
    return b"\x81" + head + bytes(4) + payload


def read_all(pipe: Connection, url: str, wishes: list[tuple[Json, bool]]) -> None:
    """The process: subscribe all, say so, read until told to stop, report."""
    uvloop.run(_read_all(pipe, url, wishes))


async def _read_all(pipe: Connection, url: str, wishes: list[tuple[Json, bool]]) -> None:
    loop = asyncio.get_running_loop()
    address = urlsplit(url)
    delays: list[tuple[float, float, int]] = []
    readers: list[Reader] = []

    async def connect(wish: Json, *, keeps_events: bool) -> Reader:
        def made() -> Reader:
            return Reader({**wish, "host": address.netloc}, keeps_events, delays)

        _, reader = await loop.create_connection(made, address.hostname or "", address.port or 80)
        await reader.is_subscribed
        return reader

    for wish, keeps_events in wishes:
        readers.append(await connect(wish, keeps_events=keeps_events))
    pipe.send("ready")
    stuck: Reader | None = None
    while (word := await loop.run_in_executor(None, pipe.recv)) != "stop":
        if word == "stick":  # one more, that wants everything and is never read from again: full after a second or two
            everything = {"tables": list(dict.fromkeys(table for wish, _ in wishes for table in wish["tables"]))}
            stuck = await connect(everything, keeps_events=False)
            stuck.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STUCK_BYTES)
            stuck.transport.pause_reading()
        elif word == "forget":
            delays.clear()
        elif word == "counts":
            pipe.send([reader.count for reader in readers])
    report = [
        {
            "wish": wish,
            "count": reader.count,
            "crc": reader.crc,
            "error": reader.error,
            "numbers": reader.numbers() if keeps else None,
        }
        for (wish, keeps), reader in zip(wishes, readers, strict=True)
    ]
    pipe.send((report, np.array(delays)))
    for reader in [*readers, *([stuck] if stuck else [])]:
        with contextlib.suppress(Exception):
            reader.transport.abort()
    pipe.close()
