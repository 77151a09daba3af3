"""A real HTTP server on a loopback port that answers questions as a test tells it, and writes down what it was asked.

    async with answering_lake({"POST /v1/query": json_answer([{"count": 3}], count="BIGINT")}) as lake:
        result = await connect(lake.url).query("SELECT COUNT(*) FROM orders")

Its socket acknowledges every batch, with the position that the last of its changes has; `acknowledges` set to false
holds that back.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from aiohttp import WSMsgType, web

from tests.support.blocking import in_a_thread

FRESHNESS = {
    "position": 1200,
    "ageMs": 12,
    "sources": {"shop-1": {"sequence": 88}},
    "snapshots": {"default.orders": "7345", "default.new": None},
    "engine": "duckdb",
    "asOf": None,
    "files": {"read": 3, "pruned": 9},
    "tailRows": 14,
}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse] | web.StreamResponse]


@dataclass
class Asked:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class AnsweringLake:
    """The server as a test sees it."""

    url: str
    answers: dict[str, Answer]
    asked: list[Asked] = field(default_factory=list)
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    acknowledges: asyncio.Event = field(default_factory=asyncio.Event)
    left: list[str] = field(default_factory=list)
    """Paths whose client left before it was answered."""

    def bodies(self, path: str = "/v1/query") -> list[Any]:
        return [each.body for each in self.asked if each.path == path]


def plain_answer(body: Any, status: int = 200) -> Answer:
    return lambda _: web.Response(status=204) if status == 204 else web.json_response(body, status=status)


def json_answer(
    rows: Sequence[Mapping[str, Any]], /, *, notes: Mapping[str, Any] | None = None, **kinds: str
) -> Answer:
    """An answer in JSON: `kinds` are the columns and their SQL types."""
    body = {
        "queryId": "q-1",
        "columns": [{"name": name, "type": kind, "nullable": True} for name, kind in kinds.items()],
        "rows": list(rows),
        "rowCount": len(rows),
        "truncated": False,
        "warnings": [],
        "freshness": FRESHNESS,
        "elapsedMs": 7,
    } | dict(notes or {})
    return plain_answer(body)


THREE = json_answer([{"count": 3}], count="BIGINT")


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def arrow_bytes(
    *batches: pa.RecordBatch, notes: Mapping[str, Any] | None = None, last: Mapping[str, Any] | None = None
) -> bytes:
    """An Arrow stream as the server writes it; `last` goes with an empty batch at its end."""
    told = {"queryId": "q-1", "warnings": [], "freshness": FRESHNESS} | dict(notes or {})
    schema = batches[0].schema.with_metadata({b"dolake": json.dumps(told).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        if last is not None:
            writer.write_batch(batches[0].slice(0, 0), custom_metadata={"dolake": json.dumps(last)})
    return bytes(sink.getvalue())


def arrow_answer(data: bytes, *, chunk_bytes: int | None = None) -> Answer:
    """These bytes, at once or in small chunks."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/vnd.apache.arrow.stream"})
        await response.prepare(request)
        step = chunk_bytes or len(data) or 1
        for start in range(0, len(data), step):
            await response.write(data[start : start + step])
        await response.write_eof()
        return response

    return answer


def refusal(status: int, kind: str, message: str = "as told", hint: str = "", **headers: str) -> Answer:
    body = {"error": {"message": message, "type": kind, "code": status, "hint": hint}}
    return lambda _: web.json_response(body, status=status, headers=headers)


@asynccontextmanager
async def answering_lake(answers: Mapping[str, Answer] | None = None) -> AsyncIterator[AnsweringLake]:
    lake = AnsweringLake("", dict(answers or {}))
    lake.acknowledges.set()

    async def reply(request: web.Request) -> web.StreamResponse:
        if request.path == "/ws":
            return await _converse(lake, request)
        data = await request.read()
        lake.asked.append(Asked(request.method, request.path_qs, dict(request.headers), json.loads(data or b"null")))
        answer = lake.answers.get(f"{request.method} {request.path}", refusal(404, "not_found", "no such route"))
        try:
            response = answer(request)
            return await response if inspect.isawaitable(response) else response
        except asyncio.CancelledError:
            lake.left.append(request.path)
            raise

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    lake.url = f"http://{host}:{port}"
    try:
        yield lake
    finally:
        await runner.cleanup()


async def _converse(lake: AnsweringLake, request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    lake.sockets.append(socket)
    async for frame in socket:
        if frame.type is not WSMsgType.TEXT:
            break
        message = json.loads(frame.data)
        answer = {"timestamp": 1, "correlationId": message.get("correlationId")}
        if message["type"] == "connect":
            buffer = {"batchCount": 0, "eventCount": 0, "totalSizeBytes": 0, "utilization": 0.0}
            status = {"type": "status", "state": "idle", "buffer": buffer, "connectedSources": 1}
            await socket.send_json(answer | status | {"lastDurableSequence": 0, "lastBatchNumber": 0, "sourceEpoch": 0})
        elif message["type"] == "cdc_batch":
            await lake.acknowledges.wait()
            details = {"eventsProcessed": 1, "bufferUtilization": 0.0, "position": message["lastEventSequence"]}
            ack = {"type": "ack", "status": "buffered", "sequenceNumber": message["sequenceNumber"]}
            await socket.send_json(answer | ack | {"details": details})
        else:
            await socket.send_json(answer | {"type": "ack", "status": "ok", "sequenceNumber": 0})
    return socket


def answering_lake_in_a_thread(
    answers: Mapping[str, Answer] | None = None,
) -> AbstractContextManager[AnsweringLake]:
    """The same on a loop of its own, for tests that block."""
    return in_a_thread(answering_lake(answers))
