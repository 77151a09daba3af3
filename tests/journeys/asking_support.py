"""What the journeys about questions share: a server with everything, its query process, flushes, moments, changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from dolake.client import LakeClient, QueryResult
from dolake.errors import UnknownTable
from tests.support.server import ServerProcess

_WAIT_S = 240.0
_QUERY_MODULE = "dolake.query"
Event = dict[str, Any]


# --- the server ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering_server(home: Path, settings: str) -> Iterator[ServerProcess]:
    """A server with its pipeline and its query process; the latter answers already."""
    with ServerProcess(home, settings=settings, has_pipeline=True) as server:
        wait_for_answers(server)
        yield server


def wait_for_answers(server: ServerProcess) -> None:
    """Until questions are answered: after a start, or after the query process was killed."""

    def is_answering() -> bool:
        return bool(server.get("/v1/query", method="POST", body={"sql": "SELECT 1 AS one"})[0] == 200)

    wait_until(is_answering, lambda: f"no answers: {server.log[-2000:]}")


def wait_until(is_so: Callable[[], bool], otherwise: Callable[[], str] | str) -> None:
    give_up_at = time.monotonic() + _WAIT_S
    while not is_so():
        if time.monotonic() > give_up_at:
            pytest.fail(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.02)


def query_process_of(server: ServerProcess) -> psutil.Process | None:
    """The child that answers SQL, if there is one now."""
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.Error):  # one that has just ended has no command line any more
            if _QUERY_MODULE in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                return child
    return None


def kill_query_process(server: ServerProcess) -> None:
    """SIGKILL, once there is one. Returns when it is dead."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        process = query_process_of(server)
        found[:] = [process] if process else []
        return bool(found)

    wait_until(is_there, lambda: f"no query process: {server.log[-2000:]}")
    found[0].kill()
    with contextlib.suppress(psutil.TimeoutExpired):  # a zombie until the server looks
        found[0].wait(5)


def post(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    """As any HTTP client would: the answer, which must be 200."""
    status, answer = server.get(path, method="POST", body=body, headers={"Content-Type": "application/json"})
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def refusal(server: ServerProcess, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a question that must not be answered."""
    status, answer = server.get(path, method="POST", body=body, headers={"Content-Type": "application/json"})
    assert status >= 400, answer
    return status, answer["error"]


# --- changes ---------------------------------------------------------------------------------------------------------


def insert(table: str, key: str, **row: Any) -> Event:
    return {"table": table, "operation": "INSERT", "rowId": key, "after": row}


def update(table: str, key: str, *, before: Mapping[str, Any] | None = None, **row: Any) -> Event:
    change = {"table": table, "operation": "UPDATE", "rowId": key, "after": row}
    return change if before is None else change | {"before": dict(before)}


def delete(table: str, key: str, **before: Any) -> Event:
    return {"table": table, "operation": "DELETE", "rowId": key} | ({"before": before} if before else {})


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
