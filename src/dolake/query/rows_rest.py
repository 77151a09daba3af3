"""Rows by their keys over HTTP: one by its path, many by a body.

From server/app.py; by rows_link.py to the query process, and by rest.py where only SQL can tell. docs/reference/http.md
has the shapes.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from aiohttp import web

from dolake.catalog.base import SEPARATOR, Name
from dolake.catalog.call import sent_text
from dolake.catalog.locations import check_name
from dolake.errors import DoLakeError, InvalidInput
from dolake.identity.request import grant_of
from dolake.query.rest import OUTCOME, PROCESS, outcome_of, pass_on
from dolake.query.rows_link import SLOW
from dolake.query.rows_question import RowsBody, RowsQuestion, unknown_table

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RowsBody).decode
_PARAMETERS = {"source": str, "asOf": str, "snapshotId": str, "minPosition": int, "timeoutMs": int}


async def get_row(request: web.Request) -> web.StreamResponse:
    """One row by its key; 404 where there is none."""
    sent = dict[str, Any](keys=[sent_text(request.match_info["key"])])
    for name, kind in _PARAMETERS.items():
        if name in request.query:
            sent[name] = _number(name, request.query[name]) if kind is int else request.query[name]
    return await _find(request, msgspec.convert(sent, RowsBody), is_single=True)


async def get_rows(request: web.Request) -> web.StreamResponse:
    """Many rows by their keys, in that order; null where there is none."""
    try:
        body = _decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = 'send {"keys": ["1", "2"]}; docs/reference/http.md has its fields'
        raise InvalidInput(f"the body cannot be read: {error}", hint=hint) from None
    return await _find(request, body, is_single=False)


async def _find(request: web.Request, body: RowsBody, *, is_single: bool) -> web.StreamResponse:
    name = _table_in(request)
    if not grant_of(request).sees(name.namespace):  # in the words for a table that is not there
        raise unknown_table(name)
    fields = {each: getattr(body, each) for each in RowsBody.__struct_fields__}
    question = RowsQuestion(namespace=list(name.namespace), table=name.name, is_single=is_single, **fields).checked()
    process, began, outcome = request.app[PROCESS](), time.monotonic(), "client_left"
    try:
        raw = _encode(question)
        status, found = await process.look_up(raw)
        if status == SLOW:
            slow = await pass_on(request, "POST", "/rows", raw)
            outcome = slow[OUTCOME]
            return slow
        outcome = outcome_of(status, found)
        return web.Response(body=found, status=status, content_type="application/json")
    except DoLakeError as error:
        outcome = error.code
        raise
    finally:
        process.count_lookup(outcome, time.monotonic() - began)


def _table_in(request: web.Request) -> Name:
    """As in tables.py."""
    namespace, table = (sent_text(request.match_info[part]) for part in ("namespace", "table"))
    levels = namespace.split(SEPARATOR if SEPARATOR in namespace else ".")
    return check_name(Name(tuple(levels), table))


def _number(name: str, sent: str) -> int:
    if not sent.isdecimal() or len(sent) > 19:
        raise InvalidInput(f"{name} {sent[:20]!r} is not a whole number")
    return int(sent)


ROUTES = [
    ("GET", "/v1/tables/{namespace}/{table}/rows/{key}", get_row),
    ("POST", "/v1/tables/{namespace}/{table}/rows", get_rows),
]
