"""How fresh the lake says it is, and what it does when that is not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dolake.changes import StreamId
from dolake.client.sync import connect
from dolake.errors import TooStale
from dolake.journal.base import Appended
from dolake.receiver.progress import Progress
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without its pipeline, so that nothing is ever published."""
    with ServerProcess(tmp_path_factory.mktemp("freshness")) as process:
        with connect(process.url, source="shop") as lake:
            lake.send([{"table": "orders", "operation": "INSERT", "row_id": str(n), "after": {}} for n in range(3)])
            lake.send({"table": "shop.items", "operation": "INSERT", "row_id": "1", "after": {}})
        yield process


def test_the_lake_its_tables_and_its_sources_say_how_far_they_are(server: ServerProcess) -> None:
    status, found = server.get("/v1/freshness")
    assert status == 200
    assert (found["durable"]["position"], found["published"]["position"], found["visible"]["position"]) == (4, 0, 4)
    assert found["published"]["lagChanges"] == 4
    assert found["targetMs"] == 2000
    assert set(found["tables"]) == {"orders", "shop.items"}
    assert found["tables"]["orders"]["published"]["lagChanges"] == 3
    assert found["sources"]["shop"]["durable"]["sequence"] == 4
    assert set(server.get("/v1/freshness?table=default.orders")[1]["tables"]) == {"orders"}


def test_what_is_older_than_was_asked_for_is_refused_after_the_wait(server: ServerProcess) -> None:
    status, found = server.get("/v1/freshness?maxAgeMs=0&waitMs=60")
    assert (status, found["error"]["type"]) == (503, "too_stale")
    assert server.get("/v1/freshness?maxAgeMs=100000000")[0] == 200
    assert server.get("/v1/freshness?table=nothing&maxAgeMs=0&waitMs=0")[0] == 200
    assert server.get("/v1/freshness?maxAgeMs=x")[0] == 400


def test_the_client_reads_it_and_can_insist(server: ServerProcess) -> None:
    lake = connect(server.url)
    fresh = lake.freshness()
    assert (fresh.durable.position, fresh.published.position) == (4, 0)
    assert fresh.tables["orders"].durable.at is not None
    assert fresh.sources["shop"].durable.sequence == 4
    with pytest.raises(TooStale):
        lake.freshness("orders", max_age=0, timeout=0.05)


def test_a_publish_moves_the_marks_and_is_counted_by_how_long_changes_waited() -> None:
    async def story() -> Progress:
        now_ms = 1_000
        progress = Progress(lambda: now_ms)
        for end, at_ms in ((10, 1_000), (15, 2_000)):
            now_ms = at_ms
            progress.add_durable(end, 1, 100, at_ms)
            stream = StreamId("shop")
            progress.add_tables({"orders": 5}, 100, Appended(end, 5), stream=stream, sequence=end)
        now_ms = 2_500
        progress.publish_started()
        now_ms = 3_000
        progress.published(10, "")
        return progress

    progress = asyncio.run(story())
    mark = progress.table_marks.by_name["orders"]
    assert (mark.durable.position, mark.published.position, mark.oldest_ms) == (15, 10, 2_000)
    assert progress.sources.by_name["shop"].published.sequence == 10
    assert (sum(progress.visibility.counts), progress.visibility.seconds) == (10, 20.0)
    assert (sum(progress.publish_times.counts), progress.publish_times.seconds) == (1, 0.5)


def test_the_metrics_have_the_histograms(server: ServerProcess) -> None:
    text = server.get("/metrics")[1]
    for name in ("dolake_ack_seconds", "dolake_visibility_seconds", "dolake_publish_duration_seconds"):
        assert f'{name}_bucket{{le="+Inf"}}' in text
