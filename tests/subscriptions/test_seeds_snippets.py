"""The subscribe snippets of the document that describes DoLake's client, in Python's spelling, run as they stand."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from dolake.client import create_lake_client
from tests.support.changes import delete, insert, update
from tests.support.server import ServerProcess


async def test_subscribe_to_changes_from_anywhere(
    server: ServerProcess, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, customers = table, table + "_customers"
    lake = create_lake_client(server.url)

    async def listen() -> None:
        async for batch in lake.subscribe(tables=[orders, customers], operations=["INSERT", "UPDATE"]):
            print(f"{len(batch.events)} changes in real-time")
            return

    async with _listening(server, listen()) as sender:
        await sender.send([insert(orders, 1), delete(orders, 1), insert(customers, 2), update(customers, 2, {}, {})])
    assert capsys.readouterr().out == "3 changes in real-time\n"


async def test_sync_to_downstream(server: ServerProcess, table: str) -> None:
    lake = create_lake_client(server.url)
    warehouse: list[Any] = []
    index: list[Any] = []
    cache: list[int] = []

    async def notify_warehouse(row: Any) -> None:
        warehouse.append(row)

    async def update_search_index(row: Any) -> None:
        index.append(row)

    async def refresh_cache(id_: int) -> None:
        cache.append(id_)

    async def sync_to_downstream() -> None:
        async for batch in lake.subscribe(tables=[table]):
            for event in batch.events:
                if event.operation == "INSERT":
                    # Trigger downstream systems in real-time
                    await notify_warehouse(event.after)
                    await update_search_index(event.after)
                    await refresh_cache(event.after.id)
            if len(cache) == 2:
                return

    async with _listening(server, sync_to_downstream()) as sender:
        await sender.send([insert(table, 1, total=5), update(table, 1, {"total": 5}, {"total": 6})])
        await sender.send([insert(table, 2, total=7)])
    assert cache == [1, 2]
    assert [row.total for row in warehouse] == [row["total"] for row in index] == [5, 7]


async def test_enable_cdc_streaming(server: ServerProcess, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = create_lake_client(server.url)

    async def listen() -> None:
        async for batch in lake.subscribe(tables=[table]):
            print(f"Received {len(batch.events)} changes")
            return

    async with _listening(server, listen()) as sender:
        await sender.send([insert(table, 1)])
    assert capsys.readouterr().out == "Received 1 changes\n"


@contextlib.asynccontextmanager
async def _listening(server: ServerProcess, listening: Any) -> Any:
    """Somebody who sends, once the one who listens is connected; waits for the end of what that one does."""
    async with create_lake_client(server.url) as sender, asyncio.TaskGroup() as tasks:
        await _until(server, 0)  # those of tests before this one are gone
        tasks.create_task(listening)
        await _until(server, 1)
        yield sender


async def _until(server: ServerProcess, subscribers: int) -> None:
    while (await asyncio.to_thread(server.get, "/v1/subscriptions"))[1]["subscribers"] != subscribers:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
