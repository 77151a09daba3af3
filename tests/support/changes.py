"""Short words for changes that a client sends."""

from __future__ import annotations

from typing import Any

from dolake.client import LakeClient


def insert(table: str, id_: int, **values: Any) -> dict[str, Any]:
    return {"table": table, "operation": "INSERT", "rowId": str(id_), "after": {"id": id_} | values}


def order(number: int) -> dict[str, Any]:
    """Where any change will do."""
    return insert("orders", number)


def orders(count: int) -> list[dict[str, Any]]:
    return [order(number) for number in range(count)]


def update(table: str, id_: int, before: dict[str, Any], after: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"table": table, "operation": "UPDATE", "rowId": str(id_)}
    event |= {"before": {"id": id_} | before, "after": {"id": id_} | after}
    return event | ({"metadata": metadata} if metadata else {})


def delete(table: str, id_: int, **before: Any) -> dict[str, Any]:
    return {"table": table, "operation": "DELETE", "rowId": str(id_), "before": {"id": id_} | before}


async def sent(lake: LakeClient, changes: list[dict[str, Any]]) -> int:
    """The position behind these changes."""
    receipt = await lake.send(changes)
    assert receipt.position is not None
    return receipt.position
