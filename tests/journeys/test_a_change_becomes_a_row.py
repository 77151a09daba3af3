"""The whole way of a row: sent, durable, written by Spark, read by DuckDB; and still there, once, after a kill -9."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from dolake.client.sync import connect
from tests.oracle.engines import opened
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_CHANGES: list[dict[str, Any]] = [
    {"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1, "item": "tea", "price": 2.5}},
    {"table": "orders", "operation": "INSERT", "rowId": "2", "after": {"id": 2, "item": "cup", "price": 7.0}},
    {"table": "shop.items", "operation": "INSERT", "rowId": "tea", "after": {"stock": 9, "tags": ["hot"]}},
    {"table": "orders", "operation": "UPDATE", "rowId": "1", "after": {"id": 1, "item": "tea", "price": 3.5}},
    {
        "table": "orders",
        "operation": "DELETE",
        "rowId": "2",
        "before": {"id": 2, "item": "cup", "price": 7.0},
    },
]


def test_a_change_becomes_a_row_and_stays_one_through_a_crash(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, has_pipeline=True, has_queries=False) as server:
        told: queue.SimpleQueue[int] = queue.SimpleQueue()
        with connect(server.url, source="shop") as lake:
            lake.on_persisted(lambda number, _path: told.put(number))
            receipt = lake.send(_CHANGES)
            assert receipt.position == len(_CHANGES)
            server.flush()
            assert told.get(timeout=10) >= 1
        _assert_the_story_is_told(server)

        with connect(server.url, source="shop") as lake:  # durable, and the server dies before or while it publishes
            lake.send({"table": "orders", "operation": "INSERT", "rowId": "3", "after": {"id": 3, "item": "pot"}})
        server.kill()
        server.start()
        server.flush()
        with opened(server.url) as (_, engines):
            rows = engines["DuckDB"].rows("default.orders")
            assert sorted((row["_key"], row["item"], row["price"]) for row in rows) == [
                ("1", "tea", 3.5),
                ("3", "pot", None),
            ]
            changes = [row["_position"] for row in engines["DuckDB"].rows("default.orders__changes")]
            assert sorted(changes) == [0, 1, 3, 4, 5]
        assert server.stop() == 0


def _assert_the_story_is_told(server: ServerProcess) -> None:
    with opened(server.url) as (_, engines):
        duck = engines["DuckDB"]
        assert duck.rows("default.orders") == [{"_key": "1", "_rescued": None, "id": 1, "item": "tea", "price": 3.5}]
        (item,) = duck.rows("shop.items")
        assert (item["stock"], item["tags"]) == (9, ["hot"])
        changes = sorted(duck.rows("default.orders__changes"), key=lambda row: int(row["_position"]))
        assert [(row["_operation"], row["_key"], row["price"]) for row in changes] == [
            ("INSERT", "1", 2.5),
            ("INSERT", "2", 7.0),
            ("UPDATE", "1", 3.5),
            ("DELETE", "2", 7.0),
        ]
