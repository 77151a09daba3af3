"""Short words for changes that a client sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dolake.client import LakeClient, connect
from tests.support.aio import run

Change = dict[str, Any]


def insert(table: str, key: str | int, /, **row: Any) -> Change:
    """A key that is a number is the column `id` as well, here and below."""
    return {"table": table, "operation": "INSERT", "rowId": str(key), "after": _row(key, row)}


def order(number: int) -> Change:
    """Where any change will do."""
    return insert("orders", number)


def orders(count: int) -> list[Change]:
    return [order(number) for number in range(count)]


def update(
    table: str, key: str | int, before: Mapping[str, Any] | None, after: Mapping[str, Any], /, **metadata: Any
) -> Change:
    change = {"table": table, "operation": "UPDATE", "rowId": str(key), "after": _row(key, after)}
    change |= {} if before is None else {"before": _row(key, before)}
    return change | ({"metadata": metadata} if metadata else {})


def delete(table: str, key: str | int, /, **before: Any) -> Change:
    images = {"before": row} if (row := _row(key, before)) else {}
    return {"table": table, "operation": "DELETE", "rowId": str(key)} | images


def ddl(table: str, action: str, **more: str) -> Change:
    """Something that the source has done to the table."""
    return {"table": table, "operation": "DELETE", "rowId": "-", "metadata": {"ddl": {"action": action} | more}}


def _row(key: str | int, values: Mapping[str, Any]) -> dict[str, Any]:
    return ({"id": key} if isinstance(key, int) else {}) | dict(values)


async def sent(lake: LakeClient, changes: list[Change]) -> int:
    """The position behind these changes."""
    receipt = await lake.send(changes)
    assert receipt.position is not None
    return receipt.position


async def deliver(url: str, *changes: Change, source: str = "shop") -> None:
    """Send these over a connection that is made for them."""
    async with connect(url, source=source) as client:
        await client.send(list(changes))


def send(url: str, *changes: Change, source: str = "shop") -> None:
    """The same for a test that is not a coroutine."""
    run(deliver(url, *changes, source=source))
