"""The server's part of forgetting a key: the journal lets go as soon as it may, and the report says why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dolake.client import connect
from dolake.pipeline.link import Forgotten, JobReport
from dolake.server import forgetting
from dolake.server.forgetting import Forgets
from dolake.server.lake import Lake
from tests.support.aio import until
from tests.support.lake import running_lake
from tests.support.traces import traces

KEY = "QzMarker"


@asynccontextmanager
async def finishing(home: Path) -> AsyncIterator[tuple[Lake, JobReport, Forgets]]:
    """A lake with a change of the key, whose pipeline nobody has started, and the report that it would send."""
    async with running_lake(home) as (lake, url):
        pipeline = lake.start_pipeline(url)
        async with connect(url, source="shop") as client:
            await client.send({"table": "people", "operation": "INSERT", "rowId": KEY, "after": {"n": 1}})
        job = pipeline.jobs.ask_forget(
            lake.settings.current, "people", KEY, lake.journal.durable, source=None, is_patient=False
        )
        done = msgspec.structs.replace(job, state="done", forgotten=Forgotten(position=1, last_byte_ms=1))
        forgets = Forgets(lake)
        running = asyncio.create_task(forgets.run())
        try:
            yield lake, done, forgets
        finally:
            running.cancel()
            await asyncio.wait([running])
            lake.pipeline = None  # it was never there to be stopped


async def until_done(lake: Lake, report: JobReport) -> Forgotten:
    assert lake.pipeline
    board = lake.pipeline.jobs
    await until(lambda: board.find(report.job_id).state == "done")
    found = board.find(report.job_id).forgotten
    assert found is not None
    return found


async def test_a_job_is_done_when_the_journal_has_let_go(tmp_path: Path) -> None:
    async with finishing(tmp_path) as (lake, report, forgets):
        assert traces(tmp_path / "journal", KEY)
        lake._note_published(1)
        forgets.take(report)
        found = await until_done(lake, report)
        assert (found.waits, found.journal_bytes_removed > 0) == ((), True)
        assert found.last_byte_ms
        assert found.outside
        assert traces(tmp_path, KEY) == []
        assert lake.pipeline
        assert lake.pipeline.jobs.forgotten_count == 1


async def test_what_is_not_published_stays_in_the_journal_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "_PUBLISH_WAIT_S", 1.0)
    async with finishing(tmp_path) as (lake, report, forgets):
        forgets.take(report)
        found = await until_done(lake, report)
        (why,) = found.waits
        assert "the journal keeps positions from 0 on, because pipeline has come to 0 only" in why
        assert found.last_byte_ms is None
        assert traces(tmp_path / "journal", KEY)


async def test_files_that_a_repair_has_set_aside_are_named(tmp_path: Path) -> None:
    async with finishing(tmp_path) as (lake, report, forgets):
        aside = tmp_path / "journal" / "damaged"
        aside.mkdir()
        (aside / "1-0.segment").touch()
        lake._note_published(1)
        forgets.take(report)
        found = await until_done(lake, report)
        assert [each for each in found.outside if "repair" in each]
