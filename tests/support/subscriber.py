"""A plain WebSocket subscriber that shows every message as it came."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tests.support.speaker import Speaker


class Listener(Speaker):
    """`async with Listener(url, tables=["orders"]) as listener: await listener.events(3)`."""

    def __init__(self, url: str, **wanted: Any) -> None:
        super().__init__(url, path="/v1/subscribe")
        self._wanted = wanted
        self.token = ""
        self.batches: list[dict[str, Any]] = []
        self.subscribed: dict[str, Any] = {}

    async def __aenter__(self) -> Listener:
        await super().__aenter__()
        await self.say({"type": "subscribe"} | self._wanted)
        self.subscribed = await self.hear()
        self.token = self.subscribed.get("token", "")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def batch(self) -> dict[str, Any]:
        """The next batch; heartbeats are passed over."""
        while True:
            message = await self.hear()
            self.token = message.get("token", self.token)
            if message["type"] == "batch":
                self.batches.append(message)
                return message
            assert message["type"] == "heartbeat", message

    async def events(self, count: int) -> list[dict[str, Any]]:
        """The next so many events, however they come."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += (await self.batch())["events"]
        return found
