"""The pipeline's publishes, in the test's own process, where its secret is: all tables and the position, or nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dolake.catalog import replies
from dolake.catalog.base import PIPELINE_HEADER, Name
from dolake.server.lake import Lake
from tests.catalog.asking import Asker, Reply, set_properties, snapshot_updates, table_body, view_body
from tests.catalog.examples import Json
from tests.support.aio import until
from tests.support.lake import running_lake

TABLES = ("orders", "items", "users")


@dataclass
class Pipeline:
    """What the pipeline does, by HTTP, with its secret."""

    lake: Lake
    ask: Asker
    now_ms: int = 1_700_000_000_000

    def clock_ms(self) -> int:
        return self.now_ms

    async def asked(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        return await asyncio.to_thread(self.ask, method, path, body, headers)

    async def pipelined(self, method: str, path: str, body: Any = None) -> Reply:
        return await self.asked(method, path, body, {PIPELINE_HEADER: self.lake.catalog.pipeline_secret})

    async def create(self) -> None:
        await asyncio.to_thread(self.ask.namespace, "shop")
        for each in TABLES:
            await asyncio.to_thread(self.ask.table, "/namespaces/shop", each)
            adopted = await self.asked("POST", f"/namespaces/shop/tables/{each}/adopt", {})
            assert adopted.status == 200

    def publish_body(self, start: int, end: int, generation: int, tables: tuple[str, ...] = TABLES) -> Json:
        changes = []
        for each in tables:
            metadata = self.lake.catalog.tables.load(Name(("shop",), each)).metadata
            summary = {
                "dolake.published-from": str(start),
                "dolake.published-to": str(end),
                "dolake.generation": str(generation),
            }
            updates = snapshot_updates(metadata, summary=summary)
            changes.append({"identifier": {"namespace": ["shop"], "name": each}, "updates": updates})
        return {"table-changes": changes}

    async def publish(self, start: int, end: int, generation: int, tables: tuple[str, ...] = TABLES) -> Reply:
        body = await asyncio.to_thread(self.publish_body, start, end, generation, tables)
        return await self.pipelined("POST", "/transactions/commit", body)

    async def published(self) -> Json:
        body: Json = (await self.asked("GET", "/published")).body
        return body

    async def snapshot_counts(self, prefix: str = "") -> list[int]:
        replies = [await self.asked("GET", f"{prefix}/namespaces/shop/tables/{each}") for each in TABLES]
        return [len(reply.metadata["snapshots"]) for reply in replies]


@asynccontextmanager
async def pipeline(home: Path) -> AsyncIterator[Pipeline]:
    """A lake of three managed tables, whose pipeline is number 1."""
    made: list[Pipeline] = []
    async with running_lake(home, clock_ms=lambda: made[0].now_ms if made else 1_700_000_000_000) as (lake, url):
        made.append(Pipeline(lake, Asker(url)))
        lake.catalog.store.begin_generation()
        await made[0].create()
        yield made[0]


async def test_a_publish_moves_its_tables_and_the_position_together(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        assert await pipe.published() == {"position": 0, "generation": 1, "atMs": 0}
        assert (await pipe.publish(0, 120, 1)).status == 204
        assert await pipe.published() == {"position": 120, "generation": 1, "atMs": pipe.now_ms}
        assert await pipe.snapshot_counts() == [1, 1, 1]
        assert (await pipe.publish(120, 130, 1, ("users",))).status == 204
        assert (await pipe.published())["position"] == 130
        assert await pipe.snapshot_counts() == [1, 1, 2]


async def test_a_pipeline_that_was_replaced_cannot_publish(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        assert (await pipe.publish(0, 10, 1)).status == 204
        await asyncio.to_thread(pipe.lake.catalog.store.begin_generation)
        reply = await pipe.publish(10, 20, 1)
        assert reply.refusal == (409, "StaleGenerationException")
        assert await pipe.snapshot_counts() == [1, 1, 1]
        assert (await pipe.published())["position"] == 10
        assert (await pipe.publish(10, 20, 2)).status == 204
        assert (await pipe.publish(20, 30, 3)).refusal == (409, "StaleGenerationException")


async def test_a_publish_from_elsewhere_than_the_lakes_position_is_a_conflict_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with pipeline(tmp_path) as pipe:
        assert (await pipe.publish(0, 10, 1)).status == 204
        files = sorted(path.name for path in tmp_path.rglob("*.metadata.json"))
        for start, end in [(0, 10), (5, 20), (11, 20)]:
            assert (await pipe.publish(start, end, 1)).refusal == (409, "CommitFailedException")
        assert await pipe.snapshot_counts() == [1, 1, 1]
        assert (await pipe.published())["position"] == 10
        assert sorted(path.name for path in tmp_path.rglob("*.metadata.json")) == files


async def test_a_publish_whose_words_make_no_sense_is_refused(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        for start, end in [("x", "1"), ("", "5"), ("0", "9" * 30), ("0", "9" * 5000), ("0", "-1")]:
            body = await asyncio.to_thread(pipe.publish_body, 0, 1, 1)
            for change in body["table-changes"]:
                summary = change["updates"][0]["snapshot"]["summary"]
                summary |= {"dolake.published-from": start, "dolake.published-to": end}
            assert (await pipe.pipelined("POST", "/transactions/commit", body)).status == 400, (start, end[:40])
        body = await asyncio.to_thread(pipe.publish_body, 0, 10, 1)
        body["table-changes"][0]["updates"][0]["snapshot"]["summary"]["dolake.published-to"] = "11"
        assert (await pipe.pipelined("POST", "/transactions/commit", body)).status == 400
        assert (await pipe.published())["position"] == 0
        assert await pipe.snapshot_counts() == [0, 0, 0]


async def test_without_the_secret_nothing_is_published(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        body = await asyncio.to_thread(pipe.publish_body, 0, 10, 1)
        for headers in ({}, {PIPELINE_HEADER: "guess"}, {PIPELINE_HEADER: pipe.lake.catalog.pipeline_secret[:-1]}):
            reply = await pipe.asked("POST", "/transactions/commit", body, headers)
            assert reply.refusal == (403, "ManagedTableException")
        await asyncio.to_thread(pipe.ask.table, "/namespaces/shop", "own")
        own = await asyncio.to_thread(pipe.publish_body, 0, 10, 1, ("own",))
        assert (await pipe.asked("POST", "/transactions/commit", own)).status == 204
        assert (await pipe.published())["position"] == 0


async def test_the_pipeline_creates_managed_tables_and_its_secret_is_new_with_each_start(tmp_path: Path) -> None:
    secrets = []
    for name in ("one", "two"):
        async with running_lake(tmp_path) as (lake, url):
            headers = {PIPELINE_HEADER: lake.catalog.pipeline_secret}
            secrets.append(lake.catalog.pipeline_secret)
            ask = Asker(url)
            await asyncio.to_thread(ask, "POST", "/namespaces", {"namespace": ["shop"]})
            body = {"name": name, "schema": {"type": "struct", "fields": []}}
            managed = body | {"properties": {"dolake.managed": "true"}}
            assert (await asyncio.to_thread(ask, "POST", "/namespaces/shop/tables", managed)).status == 403
            made = await asyncio.to_thread(ask, "POST", "/namespaces/shop/tables", managed, headers)
            assert made.metadata["properties"]["dolake.managed"] == "true"
            assert (await asyncio.to_thread(ask.append, f"/namespaces/shop/tables/{name}")).status == 403
    first, second = secrets
    assert first != second


@pytest.mark.slow
async def test_a_read_of_many_tables_never_sees_half_of_a_publish(tmp_path: Path) -> None:
    names = [Name(("shop",), each) for each in TABLES]

    def check(pipe: Pipeline) -> int:
        documents, published = pipe.lake.catalog.tables.load_all(names)
        reached = {documents[name].metadata["snapshots"][-1]["summary"]["dolake.published-to"] for name in names}
        assert reached == {str(published.position)}
        return published.position

    async with pipeline(tmp_path) as pipe:
        assert (await pipe.publish(0, 1, 1)).status == 204
        is_done = threading.Event()
        seen: set[int] = set()

        def read() -> None:
            count = 0
            try:
                while count < 1000 or len(seen) < 2:
                    seen.add(check(pipe))
                    count += 1
            finally:
                is_done.set()

        reading = asyncio.create_task(asyncio.to_thread(read))
        position = 1
        while not is_done.is_set():
            assert (await pipe.publish(position, position + 1, 1)).status == 204
            position += 1
        await reading
        assert len(seen) > 1


async def test_who_waits_for_a_busy_table_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(20))
    async with pipeline(tmp_path) as pipe:
        for each in ("busy", "free"):
            await asyncio.to_thread(pipe.ask.table, "/namespaces/shop", each)
        path, body = "/namespaces/shop/tables/busy", {"updates": [set_properties(a="1")]}
        file = (await pipe.asked("GET", path)).body["metadata-location"]
        busy = {"namespace": ["shop"], "name": "busy"}
        changes: list[tuple[str, str, Any]] = [
            ("POST", path, body),
            ("POST", f"{path}/adopt", {}),
            ("POST", "/tables/rename", {"source": busy, "destination": busy | {"name": "moved"}}),
            ("POST", "/namespaces/shop/register", {"name": "busy", "metadata-location": file, "overwrite": True}),
            ("POST", "/namespaces/shop/tables", table_body("busy")),
            ("POST", f"{path}/unregister?force=true", {}),
            ("DELETE", f"{path}?force=true", None),
        ]
        # Nobody can make a commit take long from outside, so the test holds the table as a long commit would.
        with pipe.lake.catalog.tables._locks.hold([Name(("shop",), "busy")]):
            waiting = [asyncio.create_task(pipe.asked(*each)) for each in changes * 2]
            await until(lambda: len(pipe.lake.catalog._turns) > 0)
            free = await pipe.pipelined("POST", "/namespaces/shop/tables/free", body)
            assert free.status == 200
            assert not any(task.done() for task in waiting)
        assert {(await task).status for task in waiting} <= {200, 204, 403, 404, 409}
        assert pipe.lake.catalog._turns == {}


async def test_an_answer_is_kept_with_what_it_tells_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A server that dies between a change and its answer never comes to keep it afterwards.
    monkeypatch.setattr(replies, "_keep_answer", lambda *_: None)
    async with pipeline(tmp_path) as pipe:
        ns, own = "/namespaces/shop", {"namespace": ["shop"], "name": "own"}
        file = (await pipe.asked("POST", f"{ns}/tables", table_body("first"))).body["metadata-location"]
        seen = {"namespace": ["shop"], "name": "seen"}
        changes: list[tuple[str, str, Any]] = [
            ("POST", "/namespaces", {"namespace": ["new"], "properties": {"a": "1"}}),
            ("DELETE", "/namespaces/new", None),
            ("POST", f"{ns}/tables", table_body("own")),
            ("POST", f"{ns}/tables/own", {"updates": [set_properties(a="1")]}),
            ("POST", "/tables/rename", {"source": own, "destination": own | {"name": "moved"}}),
            ("DELETE", f"{ns}/tables/moved?purgeRequested=true", None),
            ("POST", f"{ns}/register", {"name": "twin", "metadata-location": file}),
            ("POST", f"{ns}/tables/twin/unregister", {}),
            ("POST", f"{ns}/views", view_body("seen")),
            ("POST", f"{ns}/views/seen", {"updates": [set_properties(a="1")]}),
            ("POST", "/views/rename", {"source": seen, "destination": seen | {"name": "later"}}),
            ("DELETE", f"{ns}/views/later", None),
        ]
        for method, path, body in changes:
            headers = {"Idempotency-Key": str(uuid.uuid4())}
            first, again = [await pipe.asked(method, path, body, headers) for _ in range(2)]
            assert first.status in (200, 204), first
            assert (first.status, first.raw) == (again.status, again.raw), path
            assert first.headers.get("etag") == again.headers.get("etag"), path


async def test_answers_that_nobody_can_ask_for_again_are_removed(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        counts = []
        for _ in range(3):
            for _ in range(2):
                headers = {"Idempotency-Key": str(uuid.uuid4())}
                body = {"updates": {"a": "1"}}
                assert (await pipe.asked("POST", "/namespaces/shop/properties", body, headers)).status == 200
            with closing(sqlite3.connect(tmp_path / "catalog.db")) as database:
                counts += database.execute("SELECT count(*) FROM answers").fetchone()
            pipe.now_ms += 31 * 60_000
        assert counts == [2, 2, 2]


# --- pins ------------------------------------------------------------------------------------------------------------


async def test_a_pinned_warehouse_shows_every_table_at_one_moment(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        times = []
        for start, end, tables in [(0, 10, TABLES), (10, 20, ("orders",)), (20, 30, TABLES)]:
            pipe.now_ms += 60_000
            assert (await pipe.publish(start, end, 1, tables)).status == 204
            times.append(pipe.now_ms)
        for moment, wanted in [
            (0, [0, 0, 0]), (9, [0, 0, 0]), (10, [1, 1, 1]), (15, [1, 1, 1]),
            (20, [2, 1, 1]), (30, [3, 2, 2]), (10**17, [3, 2, 2]),
        ]:  # fmt: skip
            assert await pipe.snapshot_counts(f"/lake%40{moment}") == wanted, moment
        # Snapshots carry the clock of who wrote them; a pin to a time must not show half a publish because of it.
        for time_ms, wanted in zip(times, [[1, 1, 1], [2, 1, 1], [3, 2, 2]], strict=True):
            text = datetime.fromtimestamp((time_ms + 1000) / 1000, UTC).isoformat()
            assert await pipe.snapshot_counts(f"/{quote(f'lake@{text}', safe='')}") == wanted


async def test_a_pinned_warehouse_is_read_only_and_config_gives_its_prefix(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        assert (await pipe.publish(0, 10, 1)).status == 204
        config = (await pipe.asked("GET", "/config?warehouse=lake%4010")).body
        assert config["overrides"] == {"prefix": "lake%4010"}
        pin, table = "/lake%4010", "/namespaces/shop/tables/orders"
        assert (await pipe.asked("HEAD", pin + table)).status == 204
        assert (await pipe.asked("GET", f"{pin}/namespaces")).body["namespaces"] == [["shop"]]
        for method, path in [
            ("POST", "/namespaces"), ("DELETE", "/namespaces/shop"), ("POST", table), ("DELETE", table),
            ("POST", f"{table}/adopt"), ("POST", "/transactions/commit"), ("POST", "/tables/rename"),
            ("POST", "/namespaces/shop/views"), ("POST", "/namespaces/shop/register"),
        ]:  # fmt: skip
            reply = await pipe.pipelined(method, pin + path, {})
            assert reply.refusal == (403, "ReadOnlyException"), path
        assert (await pipe.asked("POST", f"{pin}{table}/metrics", {"report-type": "scan-report"})).status == 204
        for bad in ("lake@", "lake@yesterday", "lake@-1", f"lake@{'9' * 5000}", "lake@²"):
            assert (await pipe.asked("GET", f"/config?warehouse={quote(bad)}")).status == 404, bad
            assert (await pipe.asked("GET", f"/{quote(bad, safe='')}/namespaces")).status == 404, bad


async def test_words_of_a_publish_in_somebodys_own_table_do_not_break_a_pin(tmp_path: Path) -> None:
    async with pipeline(tmp_path) as pipe:
        made = await asyncio.to_thread(pipe.ask.table, "/namespaces/shop", "own")
        updates = snapshot_updates(made.metadata, summary={"dolake.published-to": "soon"})
        await asyncio.to_thread(pipe.ask.commit, "/namespaces/shop/tables/own", *updates)
        assert (await pipe.asked("GET", "/lake%4010/namespaces/shop/tables/own")).status == 200
