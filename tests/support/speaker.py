"""A plain WebSocket client that says exactly what a test tells it to, and short words for events and batches."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any

import aiohttp
import msgspec


def event(sequence: int, *, table: str = "users", row_id: str | None = None, **fields: Any) -> dict[str, Any]:
    """One valid INSERT; any field can be replaced."""
    row_id = row_id or f"row-{sequence}"
    base = {
        "sequence": sequence,
        "timestamp": 1_763_000_000_000 + sequence,
        "operation": "INSERT",
        "table": table,
        "rowId": row_id,
        "after": {"id": row_id, "value": sequence},
    }
    return base | fields


def batch(number: int, events: list[dict[str, Any]], *, source: str = "source-1", **fields: Any) -> dict[str, Any]:
    return {"type": "cdc_batch", "sourceDoId": source, "sequenceNumber": number, "events": events} | fields


def events(first: int, last: int, **fields: Any) -> list[dict[str, Any]]:
    return [event(sequence, **fields) for sequence in range(first, last + 1)]


class Speaker:
    """One connection. `async with Speaker(url) as speaker: await speaker.ask(message)`."""

    def __init__(
        self, url: str, *, path: str = "/ws", headers: dict[str, str] | None = None, is_compressed: bool = False
    ) -> None:
        self._url, self._path, self._headers = url, path, headers or {}
        self._window_bits = 15 if is_compressed else 0

    async def __aenter__(self) -> Speaker:
        self._session = aiohttp.ClientSession()
        try:
            self.socket = await self._session.ws_connect(
                self._url + self._path, headers=self._headers, max_msg_size=64 * 1024 * 1024, compress=self._window_bits
            )
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.socket.close()
        await self._session.close()

    async def say(self, message: dict[str, Any] | str | bytes) -> None:
        text = message if isinstance(message, str) else json.dumps(message) if isinstance(message, dict) else None
        if text is None:
            assert isinstance(message, bytes)
            await self.socket.send_frame(message, aiohttp.WSMsgType.TEXT)
        else:
            await self.socket.send_str(text)

    async def hear(self, timeout_s: float = 90.0) -> dict[str, Any]:
        """The next message of the server."""
        async with asyncio.timeout(timeout_s):
            message = await self.socket.receive()
        self.is_binary = message.type is aiohttp.WSMsgType.BINARY
        assert self.is_binary or message.type is aiohttp.WSMsgType.TEXT, f"the server closed: {message}"
        decoded: dict[str, Any] = (msgspec.msgpack.decode if self.is_binary else json.loads)(message.data)
        return decoded

    async def ask_packed(self, message: dict[str, Any] | bytes) -> dict[str, Any]:
        """Say one thing in MessagePack, and hear one answer."""
        data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        await self.socket.send_frame(data, aiohttp.WSMsgType.BINARY)
        return await self.hear()

    async def ask(self, message: dict[str, Any] | str | bytes) -> dict[str, Any]:
        """Say one thing and hear one answer."""
        await self.say(message)
        return await self.hear()

    async def connect(self, source: str = "source-1", **fields: Any) -> dict[str, Any]:
        return await self.ask({"type": "connect", "timestamp": 1, "sourceDoId": source, "lastAckSequence": 0} | fields)
