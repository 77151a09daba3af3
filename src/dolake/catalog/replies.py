"""What the catalog answers: tables and views as they are on disk, and the same answer twice to who asks twice.

From rest.py's handlers; to the client. Promise: metadata is sent as the bytes that lie in its file, encoded once and
for all; a client that has this version gets 304; a request with a known Idempotency-Key is not done again.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from dolake.catalog.access import Given, give
from dolake.catalog.base import Name
from dolake.catalog.call import ANSWERS_KEPT_MS, Call
from dolake.catalog.documents import Document
from dolake.catalog.pins import Pin, pinned
from dolake.catalog.values import Json, read_text
from dolake.errors import NotFound

Answer = web.StreamResponse
Handler = Callable[[Call], Awaitable[Answer]]
_COMPRESS_FROM_BYTES = 2048
_FORGET_EVERY_MS = 60_000
_REFUSED = re.compile(r"q=0(\.0*)?")


def json_answer(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def once(call: Call, handler: Handler) -> Answer:
    """Do what was asked, unless a request with the same key did it already; then give the same answer."""
    key = call.idempotency_key
    assert key is not None
    async with call.catalog.turn(key):
        raw = await call.catalog.run(call.catalog.store.recall_answer, key, call.catalog.clock_ms())
        if raw is None:
            answer = await handler(call)
            await call.catalog.run(_keep_answer, call, key, answer)
            return answer
    kept_answer = msgspec.json.decode(raw, type=_KeptAnswer)
    if kept_answer.location:
        document = await call.catalog.run(_read_kept, call, kept_answer.location)
        return await (with_metadata if "table" in call.parts else loaded)(call, document)
    etag = {"ETag": kept_answer.etag} if kept_answer.etag else {}
    return web.Response(body=kept_answer.body, status=kept_answer.status, headers=etag, content_type="application/json")


def _read_kept(call: Call, location: str) -> Document:
    """What the table was then. Where that file is gone already, as the table's properties say, what it is now."""
    try:
        return call.catalog.tables.read(location)
    except NotFound:
        if "view" in call.parts:
            return call.catalog.views.load(call.view)
        name = call.table if "table" in call.parts else Name(call.namespace, read_text(call.body, "name"))
        return call.catalog.tables.load(name)


def _keep_answer(call: Call, key: str, answer: Answer) -> None:
    """Most have kept theirs with what they changed; the others do it here, unless there are keys in it."""
    store, now_ms = call.catalog.store, call.catalog.clock_ms()
    if now_ms >= call.catalog.forget_next_ms:
        call.catalog.forget_next_ms = now_ms + _FORGET_EVERY_MS
        store.forget_answers(now_ms)
    if call.is_private:
        return
    if store.recall_answer(key, now_ms) is None and isinstance(answer, web.Response):
        body = answer.body if isinstance(answer.body, bytes) else b""
        if answer.headers.get("Content-Encoding") == "gzip":  # who asks again may not take it
            body = gzip.decompress(body)
        kept = msgspec.json.encode(_KeptAnswer(answer.status, None, body, answer.headers.get("ETag", "")))
        store.keep_answer(key, kept, now_ms + ANSWERS_KEPT_MS)


class _KeptAnswer(msgspec.Struct):
    status: int
    location: str | None = None
    body: bytes = b""
    etag: str = ""


def pinned_metadata(call: Call, document: Document, pin: Pin) -> Json:
    """The table's metadata at the pin's moment."""
    store, position, time_ms = call.catalog.store, pin.position, pin.time_ms
    if position is not None:
        time_ms = store.time_of(position)
    elif time_ms is not None:
        position = store.position_at(time_ms)
    return pinned(document.metadata, position, time_ms)


async def loaded_pinned(call: Call, document: Document, pin: Pin) -> Answer:
    raw = await call.catalog.run(lambda: msgspec.json.encode(pinned_metadata(call, document, pin)))
    given = await give(call, lambda: document.metadata)
    return await _raw_answer(call, document.location, raw, {}, given)


async def loaded(call: Call, document: Document) -> Answer:
    """A table or view as a load shows it: 304 when the client has this very version."""
    is_refs = call.query.get("snapshots") == "refs"
    given = await give(call, lambda: document.metadata)
    # With the keys that a client has, so that it hears of new ones before those lapse.
    etag = f'"{"-".join((document.name, *(["refs"] if is_refs else []), *([given.mark] if given.mark else [])))}"'
    if call.request.method == "GET" and etag in call.request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers={"ETag": etag})
    raw = await call.catalog.run(lambda: document.raw_refs) if is_refs else document.raw
    return await _raw_answer(call, document.location, raw, {"ETag": etag}, given)


async def with_metadata(call: Call, document: Document) -> Answer:
    """What a commit answers: where the metadata is and what it says."""
    return await _raw_answer(call, document.location, document.raw, {"ETag": f'"{document.name}"'})


async def _raw_answer(
    call: Call, location: str, raw: bytes, headers: dict[str, str], given: Given | None = None
) -> Answer:
    """The metadata's bytes as they are on disk, in their envelope: nothing is encoded twice."""
    end = b"," + msgspec.json.encode(given.fields)[1:] if given else b"}"
    if given and given.credentials:
        headers = headers | {"Cache-Control": "no-store"}
    # Joined, because each `+` would copy all of it once more.
    body = b"".join((b'{"metadata-location":', msgspec.json.encode(location), b',"metadata":', raw, end))
    return await long_answer(call, body, headers)


async def long_answer(call: Call, body: bytes, headers: dict[str, str]) -> Answer:
    """JSON, compressed where it pays and the client takes it."""
    if len(body) >= _COMPRESS_FROM_BYTES and _takes_gzip(call.request.headers.get("Accept-Encoding", "")):
        body = await call.catalog.run(gzip.compress, body, 1)
        headers = headers | {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(body=body, headers=headers, content_type="application/json")


def _takes_gzip(accepted: str) -> bool:
    """`gzip` among what the client takes, and not with a weight of nothing."""
    codings = [[part.strip().lower() for part in coding.split(";")] for coding in accepted.split(",")]
    return any(name == "gzip" and not _REFUSED.fullmatch("".join(weight)) for name, *weight in codings)
