"""What the server itself asks the query process: how a table differs from its past, and what it has now.

From tables.py, for rollbacks and for tables that are not published yet, and from quarantine.py; over the process's
socket.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec

from dolake import errors
from dolake.catalog.base import Name
from dolake.changes import Operation
from dolake.errors import DoLakeError, QueryUnavailable
from dolake.server.query_process import QueryProcess
from dolake.server.rollback import Difference, Target

_RESCUED_WAIT_MS = 2_000
_OPERATIONS: dict[str, Operation] = {"added": "INSERT", "removed": "DELETE", "changed": "UPDATE"}
"""By what the past has that the present lacks."""
_decode_line = msgspec.json.Decoder(tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]).decode


async def differences(
    process: QueryProcess, table: str, target: Target, *, timeout_ms: int
) -> AsyncGenerator[Difference, None]:
    """What has to be done to the table now, so that it is again as it was then."""
    then = {"snapshotId": target.snapshot_id} if target.snapshot_id is not None else {"asOf": target.as_of_ms}
    body = {"table": table, "from": None, "to": then, "format": "lines", "timeoutMs": timeout_ms}
    try:
        async with process.asking() as session, session.post("/diff", data=msgspec.json.encode(body)) as answer:
            if answer.status != 200:
                raise _error_in(await answer.read())
            async for line in _lines_of(answer):
                kind, key, now, past = _decode_line(line)
                yield Difference(_OPERATIONS[kind], key, now, past)
    except aiohttp.ClientError as error:
        hint = "nothing was changed; ask again"
        raise QueryUnavailable(
            "the query process ended while it compared the table with its past", hint=hint
        ) from error


async def columns_now(process: QueryProcess, table: Name) -> list[tuple[str, str]]:
    """Of a table that is in the tail alone: names, and types as DuckDB calls them."""
    named = ".".join('"' + part.replace('"', '""') + '"' for part in (".".join(table.namespace), table.name))
    answer = await ask_now(process, {"sql": f"SELECT * FROM {named} LIMIT 0"})  # noqa: S608 - quoted
    return [(each["name"], each["type"]) for each in answer["columns"]]


async def rescued_now(
    process: QueryProcess, namespace: str, table: str, columns: Mapping[str, int | None]
) -> dict[str, int | None]:
    """How many rows of a table have a value of each column that did not fit; None while that cannot be told."""
    named = ".".join('"' + part.replace('"', '""') + '"' for part in (namespace, table))
    keys = f"SELECT unnest(json_keys(_rescued)) AS name FROM {named} WHERE _rescued IS NOT NULL"  # noqa: S608 - quoted
    sql = f"SELECT name, count(*) AS n FROM ({keys}) GROUP BY name ORDER BY name"  # noqa: S608 - quoted
    try:
        answer = await ask_now(process, {"sql": sql, "timeoutMs": _RESCUED_WAIT_MS})
    except DoLakeError:
        return dict(columns)
    return {row["name"]: row["n"] for row in answer["rows"]}


async def ask_now(process: QueryProcess, body: dict[str, Any]) -> dict[str, Any]:
    """A question as `POST /v1/query` takes it, and the whole of its answer."""
    try:
        async with process.asking() as session, session.post("/query", data=msgspec.json.encode(body)) as answer:
            raw = await answer.read()
    except aiohttp.ClientError as error:
        raise QueryUnavailable("the query process ended while it was asked", hint="ask again") from error
    if answer.status != 200:
        raise _error_in(raw)
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found


async def _lines_of(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in answer.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


def _error_in(body: bytes) -> DoLakeError:
    """What the query process raised."""
    try:
        told = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return QueryUnavailable("the query process did not compare the table with its past")
    kinds = {
        each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DoLakeError)
    }
    return kinds.get(told["type"], QueryUnavailable)(told["message"], hint=told.get("hint", ""))
