"""Backups beside a server that takes changes: each holds what was acknowledged before it began."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from dolake.backup.manifest import Manifest
from dolake.backup.restore import check_backup, restore
from dolake.backup.take import take_backup
from dolake.changes import StreamId
from dolake.client import LakeClient, connect
from dolake.client.sync import connect as connect_sync
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, enable_cdc
from tests.support.aio import run, until
from tests.support.command import dolake
from tests.support.kept import sequences_of
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.own_lake]
# Small segments, so that the journal moves on to new ones while it is copied.
SETTINGS = "[journal]\nsegment_size_bytes = 1048576\ngroup_size_max_bytes = 1048576\n"


def backed_up(server: ServerProcess, folder: Path) -> Manifest:
    return take_backup(server.home, server.home / "warehouse", folder)


async def test_each_backup_holds_all_that_was_acknowledged_before_it_and_sources_go_on_from_there(
    tmp_path: Path,
) -> None:
    async def stream(lake: LakeClient, is_over: asyncio.Event) -> None:
        number = 0
        while not is_over.is_set():
            changes = [
                {"table": "t", "operation": "INSERT", "rowId": str(n), "after": {"n": n, "text": "x" * 200}}
                for n in range(number, number + 500)
            ]
            await lake.send(changes)
            number += 500
            await asyncio.sleep(0.02)  # a stream, and not a flood that takes a core

    taken = []
    with ServerProcess(tmp_path / "lake", settings=SETTINGS) as server:
        async with connect(server.url, source="shop") as lake, asyncio.TaskGroup() as tasks:
            is_over = asyncio.Event()
            tasks.create_task(stream(lake, is_over))
            for number in range(3):
                before = lake.last_durable_sequence
                await until(lambda before=before: lake.last_durable_sequence >= before + 1_000)  # type: ignore[misc]
                acknowledged = lake.last_durable_sequence
                taken.append((acknowledged, await asyncio.to_thread(backed_up, server, tmp_path / f"backup{number}")))
            is_over.set()
    for number, (acknowledged, manifest) in enumerate(taken):
        home = tmp_path / f"home{number}"
        assert check_backup(tmp_path / f"backup{number}")[1] == []
        restore(tmp_path / f"backup{number}", home)
        kept = sequences_of(home)
        assert kept == list(range(1, len(kept) + 1))
        assert len(kept) == manifest.position
        assert len(kept) >= acknowledged
    with ServerProcess(home) as server:
        async with connect(server.url, source="shop") as lake:
            assert lake.last_durable_sequence == len(kept)
            receipt = await lake.send({"table": "t", "operation": "DELETE", "rowId": "1"})
            assert receipt.sequence_last == len(kept) + 1


def test_the_command_says_where_each_source_goes_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "lake") as server:
        with connect_sync(server.url, source="shop") as lake:
            lake.send([{"table": "t", "operation": "INSERT", "rowId": str(n), "after": {"n": n}} for n in range(1_234)])
        told = dolake("backup", tmp_path / "backup", "--home", server.home)
    assert told.returncode == 0, told.stderr
    assert "1,234 changes durable, 0 of them in 0 tables" in told.stdout
    answer = dolake("restore", tmp_path / "backup", "--home", tmp_path / "home")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"shop +0 +1,234", answer.stdout)


def test_a_sqlite_source_copies_again_what_a_restored_lake_lost(tmp_path: Path) -> None:
    """Its outbox forgets what was acknowledged, and the lake that acknowledged it is gone."""
    file, home = tmp_path / "shop.db", tmp_path / "lake"

    def write(first: int, last: int) -> None:
        with contextlib.closing(sqlite3.connect(file)) as opened, opened:
            opened.execute("CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY, n INTEGER)")
            opened.executemany("INSERT INTO items VALUES (?, ?)", [(n, n) for n in range(first, last + 1)])
            opened.execute("DELETE FROM items WHERE id = ?", (first,))

    def bring(server: ServerProcess) -> list[int]:
        shard = Shard(StreamId("shop"), lambda: SqliteSource(file))
        assert run(Runner(server.url, is_once=True).run([shard]), timeout_s=120) == {}
        return [row.id for row in connect_sync(server.url).query("SELECT id FROM items ORDER BY id").rows]

    write(1, 100)
    enable_cdc(file)
    with ServerProcess(home, has_queries=True) as server:
        assert bring(server) == list(range(2, 101))
        backed_up(server, tmp_path / "backup")
        write(101, 200)
        assert bring(server) == [*range(2, 101), *range(102, 201)]
    shutil.rmtree(home)
    restore(tmp_path / "backup", home)
    write(201, 210)
    with ServerProcess(home, has_queries=True) as server:
        assert bring(server) == [*range(2, 101), *range(102, 201), *range(202, 211)]
