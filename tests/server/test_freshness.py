"""How fresh the lake says it is, and what it does when that is not enough."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dolake.changes import StreamId
from dolake.client import connect
from dolake.errors import TooStale
from dolake.journal.base import Appended
from dolake.receiver.progress import Progress
from tests.support.changes import insert
from tests.support.http import ask
from tests.support.lake import running_lake
from tests.support.server import ServerProcess


@asynccontextmanager
async def filled(home: Path) -> AsyncIterator[str]:
    """A lake with four changes and no pipeline, so that nothing is ever published."""
    async with running_lake(home) as (_, url):
        async with connect(url, source="shop") as lake:
            await lake.send([insert("orders", n) for n in range(3)])
            await lake.send(insert("shop.items", 1))
        yield url


async def test_the_lake_its_tables_and_its_sources_say_how_far_they_are(tmp_path: Path) -> None:
    async with filled(tmp_path) as url:
        status, _, found = await ask(url, "/v1/freshness")
        assert status == 200
        assert (found["durable"]["position"], found["published"]["position"], found["visible"]["position"]) == (4, 0, 4)
        assert found["published"]["lagChanges"] == 4
        assert found["targetMs"] == 2000
        assert set(found["tables"]) == {"orders", "shop.items"}
        assert found["tables"]["orders"]["published"]["lagChanges"] == 3
        assert found["sources"]["shop"]["durable"]["sequence"] == 4
        assert set((await ask(url, "/v1/freshness?table=default.orders")).body["tables"]) == {"orders"}


async def test_what_is_older_than_was_asked_for_is_refused_after_the_wait(tmp_path: Path) -> None:
    async with filled(tmp_path) as url:
        status, _, found = await ask(url, "/v1/freshness?maxAgeMs=0&waitMs=60")
        assert (status, found["error"]["type"]) == (503, "too_stale")
        assert (await ask(url, "/v1/freshness?maxAgeMs=100000000")).status == 200
        assert (await ask(url, "/v1/freshness?table=nothing&maxAgeMs=0&waitMs=0")).status == 200
        assert (await ask(url, "/v1/freshness?maxAgeMs=x")).status == 400


async def test_the_client_reads_it_and_can_insist(tmp_path: Path) -> None:
    async with filled(tmp_path) as url:
        lake = connect(url)
        fresh = await lake.freshness()
        assert (fresh.durable.position, fresh.published.position) == (4, 0)
        assert fresh.tables["orders"].durable.at is not None
        assert fresh.sources["shop"].durable.sequence == 4
        with pytest.raises(TooStale):
            await lake.freshness("orders", max_age=0, timeout=0.05)


async def test_a_publish_moves_the_marks_and_is_counted_by_how_long_changes_waited() -> None:
    now_ms = 1_000
    progress = Progress(lambda: now_ms)
    for end, at_ms in ((10, 1_000), (15, 2_000)):
        now_ms = at_ms
        progress.add_durable(end, 1, 100, at_ms)
        progress.add_tables({"orders": 5}, 100, Appended(end, 5), stream=StreamId("shop"), sequence=end)
    now_ms = 2_500
    progress.publish_started()
    now_ms = 3_000
    progress.published(10, "")
    mark = progress.table_marks.by_name["orders"]
    assert (mark.durable.position, mark.published.position, mark.oldest_ms) == (15, 10, 2_000)
    assert progress.sources.by_name["shop"].published.sequence == 10
    assert (sum(progress.visibility.counts), progress.visibility.seconds) == (10, 20.0)
    assert (sum(progress.publish_times.counts), progress.publish_times.seconds) == (1, 0.5)


def test_the_metrics_have_the_histograms(default_server: ServerProcess) -> None:
    text = default_server.get("/metrics")[1]
    for name in ("dolake_ack_seconds", "dolake_visibility_seconds", "dolake_publish_duration_seconds"):
        assert f'{name}_bucket{{le="+Inf"}}' in text
