"""Subscriptions that begin at random moments of the past, while changes, flushes, compactions and kill -9 go on.

Each of them must get every change of its wish from its beginning to the end: no gap, no repeat, in order.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dolake.client import ChangeEvent, connect
from dolake.errors import DoLakeError
from tests.support.aio import run
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_TABLES = ("orders", "shop.items")
_WISHES: list[dict[str, Any]] = [
    {"tables": ["orders"]},
    {"tables": ["shop.items"], "where": "n % 3 = 0 OR last"},
    {"tables": list(_TABLES)},
    {"tables": list(_TABLES), "operations": ["UPDATE"]},
    {"tables": list(_TABLES), "transactions": True},
]
_SETTINGS = """
[subscriptions]
heartbeat_ms = 1000
batch_events_max = 40
[journal]
segment_size_bytes = 65536
group_size_max_bytes = 65536
"""


def test_past_and_present_join_five_times(tmp_path: Path) -> None:
    _tell(tmp_path, seed=5, listeners=5, change_count=1_500, kill_count=1)


@pytest.mark.chaos
def test_past_and_present_join_fifty_times(tmp_path: Path) -> None:
    _tell(tmp_path, seed=50, listeners=50, change_count=12_000, kill_count=6)


def _tell(home: Path, *, seed: int, listeners: int, change_count: int, kill_count: int) -> None:
    with ServerProcess(home, settings=_SETTINGS, has_pipeline=True) as server:
        run(_Story(server, seed, listeners, change_count, kill_count).tell(), timeout_s=120 + 60 * kill_count)


@dataclass
class _Heard:
    """What one subscription asked for and got."""

    wish: dict[str, Any]
    since: Any
    start: int | None
    events: list[ChangeEvent] = field(default_factory=list)


class _Story:
    """Position and number of a change are the same: one source sends them all."""

    def __init__(self, server: ServerProcess, seed: int, listeners: int, change_count: int, kill_count: int) -> None:
        self._server, self._random = server, random.Random(seed)
        self._listeners, self._count, self._kills = listeners, change_count, kill_count
        self._sent = 0
        self._is_over = asyncio.Event()
        self._everything = _Heard({"tables": list(_TABLES)}, "beginning", 0)

    async def tell(self) -> None:
        heard = [self._everything]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(self._everything))
            tasks.create_task(self._send())
            trouble = tasks.create_task(self._trouble())
            for number in range(self._listeners):
                await self._until(self._count * (number + 1) // (self._listeners + 1))
                heard.append(self._beginning(number))
                tasks.create_task(self._listen(heard[-1]))
            await self._is_over.wait()
            await trouble
        await self._ask("/flush", {})  # by now all of it is in the tables
        async with asyncio.TaskGroup() as tasks:
            for wish in _WISHES:
                heard.append(_Heard(wish, "beginning", 0))
                tasks.create_task(self._listen(heard[-1]))
        self._compare(heard)

    async def _until(self, sent: int) -> None:
        while self._sent < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def _beginning(self, number: int) -> _Heard:
        """At a moment that is past: a position, a token or a time."""
        wish = _WISHES[number % len(_WISHES)]
        known = self._everything.events
        match number % 3:
            case 1 if known:
                event = self._random.choice(known)
                return _Heard(wish, datetime.fromtimestamp(event.commit_timestamp_ms / 1000, UTC), None)
            case _:
                start = self._random.randrange(max(1, self._sent))
                return _Heard(wish, start, start)

    async def _listen(self, heard: _Heard) -> None:
        batches = connect(self._server.url).subscribe(**heard.wish, since=heard.since)
        async for batch in batches:
            heard.events += batch.events
            if any(event.after.last for event in batch.events if event.table == heard.wish["tables"][-1]):
                return

    async def _send(self) -> None:
        async with connect(self._server.url, source="shop", close_wait_ms=120_000) as lake:
            while self._sent < self._count:
                size = min(self._random.randint(1, 25), self._count - self._sent)
                await lake.send([self._change(self._sent + at, size, at) for at in range(size)])
                self._sent += size
                await asyncio.sleep(0.02)
        self._is_over.set()

    def _change(self, number: int, size: int, at: int) -> dict[str, Any]:
        is_last = number >= self._count - len(_TABLES)
        table = _TABLES[number % 2] if is_last else self._random.choice(_TABLES)
        row = {"n": number, "last": is_last, "text": f"é{number}", "price": number / 4}
        operation = "UPDATE" if number % 4 == 0 or is_last else "INSERT"
        change = {"table": table, "operation": operation, "rowId": str(number % 97), "after": row}
        if operation == "UPDATE":
            change["before"] = row | {"price": None}
        if size > 10:
            change["metadata"] = {"transactionId": f"t{number - at}", "transactionEnd": at == size - 1}
        return change

    async def _trouble(self) -> None:
        """Flushes and compactions all the time, and the server dies between."""
        kills = [self._count * (each + 1) // (self._kills + 1) for each in range(self._kills)]
        while not self._is_over.is_set():
            if kills and self._sent >= kills[0]:
                kills.pop(0)
                await asyncio.to_thread(self._server.kill)
                await asyncio.to_thread(self._server.start)
            await self._ask("/flush", {})
            await self._ask("/v1/compaction/run", {"namespace": "default", "table": "orders__changes"})
            await asyncio.sleep(0.5)  # how often, not how we wait for something

    async def _ask(self, path: str, body: Any) -> None:
        try:
            await asyncio.to_thread(self._server.get, path, method="POST", body=body)
        except (OSError, DoLakeError):
            return

    def _compare(self, heard: list[_Heard]) -> None:
        everything = self._everything.events
        assert [event.position for event in everything] == list(range(self._count))
        assert [event.after.n for event in everything] == list(range(self._count))
        for each in heard[1:]:
            wanted = [event for event in everything if _is_wanted(event, each)]
            assert [event.position for event in each.events] == [event.position for event in wanted], each.wish
            assert each.events == wanted  # the same values, wherever they were read


def _is_wanted(event: ChangeEvent, heard: _Heard) -> bool:
    if heard.start is not None and event.position < heard.start:
        return False
    if isinstance(heard.since, datetime) and event.commit_timestamp_ms < round(heard.since.timestamp() * 1000):
        return False
    wish = heard.wish
    is_met = "where" not in wish or event.after.n % 3 == 0 or event.after.last
    return event.table in wish["tables"] and event.operation in wish.get("operations", [event.operation]) and is_met
