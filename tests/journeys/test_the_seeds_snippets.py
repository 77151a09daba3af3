"""The snippets of the documents that describe DoLake, as written there, from a plain WebSocket client.

001 connects to the bare base path with headers, says `connect`, sends a batch and handles acks; 002 speaks to /ws and
sends a batch with hardly any fields. The names in camelCase are theirs.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from dolake.changes import StreamId
from dolake.journal.reader import JournalReader
from dolake.wire import MessageValidationError, validate_cdc_batch_message, validate_client_message
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import RawEvent
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> ServerProcess:
    return default_server


def date_now() -> int:
    return time.time_ns() // 1_000_000


def kept(server: ServerProcess, source: str, shard: str) -> list[RawEvent]:
    with JournalReader(server.home / "journal") as reader:
        records = [record for record in reader.read() if record.stream == StreamId(source, shard)]
    return [change for record in records for change in decode_raw_batch(record.payload).events]


def connect_message() -> dict[str, Any]:
    return {
        "type": "connect",
        "timestamp": date_now(),
        "sourceDoId": "dosql-shard-1",
        "sourceShardName": "users-shard-1",
        "lastAckSequence": 0,
        "protocolVersion": 1,
        "capabilities": {
            "binaryProtocol": False,
            "compression": False,
            "batching": True,
            "maxBatchSize": 1000,
            "maxMessageSize": 4194304,
        },
    }


def batch_message() -> dict[str, Any]:
    return {
        "type": "cdc_batch",
        "timestamp": date_now(),
        "sourceDoId": "dosql-shard-1",
        "events": [
            {
                "sequence": 1,
                "timestamp": date_now(),
                "operation": "INSERT",
                "table": "users",
                "rowId": "user-123",
                "after": {"id": "user-123", "name": "Alice", "email": "alice@example.com"},
            },
        ],
        "sequenceNumber": 1,
        "firstEventSequence": 1,
        "lastEventSequence": 1,
        "sizeBytes": 256,
        "isRetry": False,
        "retryCount": 0,
    }


async def test_001_connects_sends_a_batch_and_handles_the_acknowledgement(server: ServerProcess) -> None:
    console: list[str] = []

    async def on_message(data: str) -> None:
        msg = json.loads(data)
        if msg["type"] == "ack":
            console.append(f"Batch {msg['sequenceNumber']} acknowledged: {msg['status']}")
            if delay := (msg.get("details") or {}).get("suggestedDelayMs"):
                await asyncio.sleep(delay / 1000)
        elif msg["type"] == "nack":
            console.append(f"Batch {msg['sequenceNumber']} rejected: {msg['reason']}")
            if msg["shouldRetry"]:
                await asyncio.sleep((msg.get("retryDelayMs") or 1000) / 1000)
        else:
            console.append(f"{msg['type']}: {msg['lastDurableSequence']}")

    headers = {"Upgrade": "websocket", "X-Client-ID": "dosql-shard-1", "X-Shard-Name": "users-shard-1"}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{server.url}/lakehouse", headers=headers) as ws,
    ):
        await ws.send_str(json.dumps(connect_message()))
        await ws.send_str(json.dumps(batch_message()))
        for _ in range(2):
            await on_message(await ws.receive_str())
    assert console == ["status: 0", "Batch 1 acknowledged: buffered"]
    (alice,) = kept(server, "dosql-shard-1", "users-shard-1")
    assert (alice.sequence, alice.operation, alice.table, alice.row_id) == (1, "INSERT", "users", "user-123")
    assert json.loads(bytes(alice.after)) == batch_message()["events"][0]["after"]  # type: ignore[arg-type]


async def test_001_reads_every_detail_of_an_acknowledgement(server: ServerProcess) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{server.url}/lakehouse", headers={"X-Shard-Name": "details"}) as ws,
    ):
        await ws.send_str(json.dumps(batch_message() | {"correlationId": "pair-1"}))
        ack = json.loads(await ws.receive_str())
    assert ack["type"] == "ack"
    assert ack["correlationId"] == "pair-1"
    assert ack["sequenceNumber"] == 1
    assert ack["status"] == "buffered"
    assert isinstance(ack["batchId"], str)
    assert ack["details"]["eventsProcessed"] == 1
    assert 0.0 <= ack["details"]["bufferUtilization"] <= 0.7, "no reason to make batches smaller"
    assert ack["details"]["circuitBreakerState"] == "closed"


async def test_002_sends_a_batch_without_connect_and_without_optional_fields(server: ServerProcess) -> None:
    ctx_id = "0a1b2c3d-dosql"
    cdc_events = [
        {
            "sequence": sequence,
            "timestamp": date_now(),
            "operation": operation,
            "table": "users",
            "rowId": "user-7",
            **images,
        }
        for sequence, operation, images in (
            (1, "INSERT", {"after": {"id": "user-7", "name": "Bob"}}),
            (2, "UPDATE", {"before": {"id": "user-7", "name": "Bob"}, "after": {"id": "user-7", "name": "Rob"}}),
            (3, "DELETE", {"before": {"id": "user-7", "name": "Rob"}, "metadata": {"why": "asked to"}}),
        )
    ]
    headers = {"Upgrade": "websocket", "X-Client-ID": ctx_id, "X-Shard-Name": "users-shard-1"}
    answers = []
    sequence_number = 0
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/ws", headers=headers) as ws:
        for change in cdc_events:
            await ws.send_str(
                json.dumps(
                    {
                        "type": "cdc_batch",
                        "sourceDoId": ctx_id,
                        "events": [change],
                        "sequenceNumber": sequence_number,
                        "timestamp": date_now(),
                    }
                )
            )
            sequence_number += 1
            answers.append(json.loads(await ws.receive_str()))
    assert [(ack["type"], ack["sequenceNumber"], ack["status"]) for ack in answers] == [
        ("ack", 0, "buffered"),
        ("ack", 1, "buffered"),
        ("ack", 2, "buffered"),
    ]
    changes = kept(server, ctx_id, "users-shard-1")
    assert [change.operation for change in changes] == ["INSERT", "UPDATE", "DELETE"]


def test_001_validates_messages_before_they_are_sent() -> None:
    validate_client_message(json.dumps(connect_message()))
    assert validate_cdc_batch_message(batch_message()).events[0].row_id == "user-123"
    bad = batch_message()
    bad["events"][0]["operation"] = "UPSERT"
    try:
        validate_client_message(bad)
    except MessageValidationError as error:
        (details,) = error.error_details()
        assert details["path"] == "$.events[0].operation"
    else:
        pytest.fail("UPSERT is no operation")
