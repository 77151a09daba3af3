"""What the journeys about questions share: a server with everything, its query process, flushes, moments, changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Any

import psutil

from dolake.client import LakeClient, QueryResult
from dolake.errors import UnknownTable
from tests.support.changes import delete
from tests.support.server import ServerProcess, children_of, wait_for

# --- the server ------------------------------------------------------------------------------------------------------


def wait_for_answers(server: ServerProcess) -> None:
    """Until questions are answered: after a start, or after the query process was killed."""

    def is_answering() -> bool:
        return bool(server.get("/v1/query", method="POST", body={"sql": "SELECT 1 AS one"})[0] == 200)

    wait_for(is_answering, "answers")


def kill_query_process(server: ServerProcess) -> None:
    """SIGKILL, once there is one. Returns when it is dead."""
    wait_for(lambda: bool(children_of(server, "dolake.query")), "a query process")
    (process,) = children_of(server, "dolake.query")
    process.kill()
    with contextlib.suppress(psutil.TimeoutExpired):  # a zombie until the server looks
        process.wait(5)


# --- tables ---------------------------------------------------------------------------------------------------------


async def emptied(lake: LakeClient, *tables: str) -> None:
    """Delete every row that an earlier test left, so that the seeds' own names serve all of them."""
    for table in tables:
        with contextlib.suppress(UnknownTable):
            found = await lake.query(f'SELECT _key FROM "{table}"')  # noqa: S608 - our own names
            if keys := [row["_key"] for row in found]:
                await lake.send([delete(table, key) for key in keys])


# --- moments ---------------------------------------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{moment_ms % 1000:03d}Z"


async def a_moment() -> datetime:
    """A moment that lies strictly between what was acknowledged and what is sent next: the lake counts in ms."""
    await asyncio.sleep(0.005)
    moment = datetime.now(UTC)
    await asyncio.sleep(0.005)
    return moment


def dicts(result: QueryResult) -> list[dict[str, Any]]:
    return [row.as_dict() for row in result.rows]
