"""How a table differs from its past, as the query process tells it: what rollback.py appends.

From tables.py, which hands this to the rollbacks; asks the query process over its socket, line by line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import msgspec

from dolake import errors
from dolake.changes import Operation
from dolake.errors import DoLakeError, QueryUnavailable
from dolake.server.query_process import QueryProcess
from dolake.server.rollback import Difference, Target

_OPERATIONS: dict[str, Operation] = {"added": "INSERT", "removed": "DELETE", "changed": "UPDATE"}
"""By what the past has that the present lacks."""
_decode_line = msgspec.json.Decoder(tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]).decode


async def differences(
    process: QueryProcess, table: str, target: Target, *, timeout_ms: int
) -> AsyncGenerator[Difference, None]:
    """What has to be done to the table now, so that it is again as it was then."""
    then = {"snapshotId": target.snapshot_id} if target.snapshot_id is not None else {"asOf": target.as_of_ms}
    body = {"table": table, "from": None, "to": then, "format": "lines", "timeoutMs": timeout_ms}
    session = await process.session()
    try:
        async with session.post("/diff", data=msgspec.json.encode(body)) as answer:
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
