"""Every change is in the next answer, and a question that eats, hangs or dies hurts nobody who sends.

One real server with everything; a source goes on sending all the while, and each of its acknowledgements is kept to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dolake.client import LakeClient, connect, create_lake_client
from dolake.errors import DoLakeError, ForbiddenSql, QueryCancelled, QueryOutOfMemory, QueryTimeout, QueryUnavailable
from tests.journeys.asking_support import kill_query_process
from tests.support.changes import deliver, insert, update
from tests.support.server import ServerProcess, query
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_SETTINGS = """\
[lake]
freshness_target_ms = 200
[query]
memory_max_bytes = 268435456
spill_max_bytes = 67108864
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("hurting")
    with ServerProcess(home, settings=_SETTINGS, has_pipeline=True) as running:
        yield running


# --- at once ---------------------------------------------------------------------------------------------------------


async def test_three_hundred_changes_are_each_in_the_answer_right_after_their_ack(server: ServerProcess) -> None:
    """While publishes go on. Whoever asks sees them: the sender itself, and others who know no position."""

    await deliver(server.url, insert("crowd", "0", n=0))
    server.flush()  # Spark has started by then
    before = server.get("/v1/published")[1]["position"]
    sql = "SELECT COUNT(*) AS n, MAX(turn) AS last FROM turns"
    lake = create_lake_client(url=server.url)
    async with connect(server.url, source="shop") as shop:
        positions = []
        for turn in range(300):
            await shop.send(
                [insert("turns", f"{turn}", turn=turn)]
                if turn % 3
                else [insert("turns", f"{turn}", turn=-1), update("turns", f"{turn}", None, {"turn": turn})]
            )
            asked = await (shop if turn % 2 else lake).query(sql)
            assert (asked.rows[0].n, asked.rows[0].last) == (turn + 1, turn)
            positions.append(asked.freshness.position)
        assert positions == sorted(positions)
    assert server.get("/v1/published")[1]["position"] > before, "no publish came in between"


async def test_a_sender_that_only_queued_its_changes_still_reads_them(server: ServerProcess) -> None:
    async with connect(server.url, source="queue") as shop:
        for n in range(500):
            await shop.put(insert("queued", f"{n}", n=n))
        assert (await shop.query("SELECT COUNT(*) FROM queued")).scalar() == 500


# --- questions that go wrong -----------------------------------------------------------------------------------------

_ENDLESS = "SELECT COUNT(*) FROM crowd a, crowd b, crowd c, crowd d, crowd e WHERE a.n + b.n + c.n + d.n + e.n = -1"
_GREEDY = "SELECT STRING_AGG(a.note || b.note || c.note, '') AS all_of_it FROM crowd a, crowd b, crowd c"
_RECURSIVE = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT MAX(n) FROM t"


class Pump:
    """A source that never stops sending."""

    def __init__(self, lake: LakeClient, table: str) -> None:
        self._lake, self._table = lake, table
        self.acked_count = 0

    async def run(self) -> None:
        while True:
            numbers = range(self.acked_count, self.acked_count + 10)
            await self._lake.send([insert(self._table, f"{n}", n=n) for n in numbers])
            self.acked_count += 10
            await asyncio.sleep(0.01)


async def test_a_question_that_eats_hangs_or_dies_never_touches_what_is_sent(server: ServerProcess) -> None:
    await deliver(server.url, *(insert("crowd", f"{n}", n=n, note="x" * 200) for n in range(500)))
    lake = create_lake_client(url=server.url)
    async with connect(server.url, source="pump") as shop, asyncio.TaskGroup() as tasks:
        pump = Pump(shop, "pumped")
        pumping = tasks.create_task(pump.run())
        for sql, errors in (
            (_GREEDY, (QueryOutOfMemory,)),
            (_ENDLESS, (QueryTimeout,)),
            (_RECURSIVE, (QueryTimeout, QueryOutOfMemory, ForbiddenSql)),
        ):
            before = pump.acked_count
            with pytest.raises(errors):
                await lake.query(sql, timeout=20 if sql is _GREEDY else 2)
            await _progress(pump, before)
        for _ in range(3):
            before = pump.acked_count
            asking = tasks.create_task(_error_of(lake, _ENDLESS))
            await _running(lake, _ENDLESS)
            await asyncio.to_thread(kill_query_process, server)
            assert isinstance(await asking, QueryUnavailable)
            await _progress(pump, before)
            assert await _count_once_it_answers(lake, "pumped") >= before
        pumping.cancel()
        await shop.drain()
    acked = pump.acked_count
    (row,) = query(server, "SELECT COUNT(*), COUNT(DISTINCT n) AS numbers, MAX(n) AS last FROM pumped")
    assert row["count"] == row["numbers"] == row["last"] + 1
    assert row["count"] >= acked > 0, "acknowledged and lost"
    server.flush()
    with duck_on(server.url) as duck:
        assert duck.execute("SELECT COUNT(*) FROM lake.default.pumped").fetchall() == [(row["count"],)]
    assert server.get("/health")[0] == 200


async def test_a_question_ends_when_somebody_says_so_or_its_asker_leaves(server: ServerProcess) -> None:
    await deliver(server.url, *(insert("crowd", f"{n}", n=n, note="x" * 200) for n in range(500)))
    lake = create_lake_client(url=server.url)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_error_of(lake, _ENDLESS, query_id="to-be-cancelled"))
        await _running(lake, _ENDLESS)
        assert await lake.cancel("to-be-cancelled")
        assert isinstance(await asking, QueryCancelled)
        assert not await lake.cancel("to-be-cancelled")
    leaving = asyncio.create_task(lake.query(_ENDLESS))
    await _running(lake, _ENDLESS)
    leaving.cancel()
    await asyncio.wait([leaving])
    await _eventually_nothing_runs(lake)


async def _error_of(lake: LakeClient, sql: str, **options: Any) -> DoLakeError:
    try:
        await lake.query(sql, timeout=60, **options)
    except DoLakeError as error:
        return error
    raise AssertionError("it was answered")


async def _running(lake: LakeClient, sql: str) -> None:
    """Until this one runs."""
    while not any(each.sql.strip() == sql and each.state == "running" for each in await lake.list_queries()):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def _eventually_nothing_runs(lake: LakeClient) -> None:
    while await lake.list_queries():  # noqa: ASYNC110 - another process has no event to wait for
        await asyncio.sleep(0.02)


async def _progress(pump: Pump, before: int) -> None:
    """Acknowledgements have gone on, and go on."""
    assert pump.acked_count > before
    reached = pump.acked_count
    while pump.acked_count < reached + 10:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _count_once_it_answers(lake: LakeClient, table: str) -> int:
    while True:
        try:
            return int((await lake.query(f"SELECT COUNT(*) FROM {table}")).rows[0].count)  # noqa: S608
        except QueryUnavailable:
            await asyncio.sleep(0.05)
