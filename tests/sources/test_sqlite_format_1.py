"""Files and homes of the version of 2026-11: they are followed on, with the same names, and nothing is told twice.

`format_1.json` has, for each case, a SQLite file and the home of the lake that followed it, both made by that version
(commit 61e92c1): a copy in progress; a group of which half arrived, and changes that wait; all told; enabled and never
connected; and a stream in its second epoch, because the file was restored from a backup.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.sources.configured import view_of
from dolake.sources.runner import Runner
from dolake.sources.sqlite import has_traces
from dolake.sources.sqlite.attachment import Choice, plan, plan_all
from dolake.sources.sqlite.installation import disable
from dolake.sources.sqlite.store import Store
from tests.support import homes
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in

CASES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("format_1.json").read_text())
TABLES = ["empty", "names", "notes", "pairs", "users"]


class Old:
    """A file and a home of the version before."""

    def __init__(self, folder: Path, case: str) -> None:
        kept = CASES[case]
        self.path, self.home = folder / "app.db", folder / "home"
        self.path.write_bytes(zlib.decompress(base64.b64decode(kept["file"])))
        homes.unpack_files(json.loads(zlib.decompress(base64.b64decode(kept["home"]))), self.home)
        self.told = len(self.events())

    def events(self) -> list[dict[str, Any]]:
        return list(events_in(self.home))

    def do(self, statement: str) -> None:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute(statement)
        db.close()

    def rows(self, table: str) -> list[dict[str, Any]]:
        db = sqlite3.connect(self.path)
        cursor = db.execute(f"SELECT * FROM {table}")  # noqa: S608
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        db.close()
        return sorted([{name: value for name, value in row.items() if value is not None} for row in rows], key=repr)

    async def bring(self, home: Path | None = None) -> list[dict[str, Any]]:
        """What is told now."""
        count = len(self.events())
        async with running_lake(home or self.home) as (_, url):
            shard = plan(self.path, Choice(), await view_of(url, None)).carry_out()
            assert not await Runner(url, is_once=True).run([shard])
        return self.events()[count:]

    def assert_same(self, home: Path | None = None) -> None:
        mirror = Mirror.of(home or self.home)
        assert set(mirror.tables) <= set(TABLES)
        for table in TABLES:
            has = mirror.rows(table) if table in mirror.tables else []
            assert has == self.rows(table), table


@pytest.mark.parametrize("case", CASES)
async def test_a_file_of_the_version_before_is_followed_on_and_every_change_told_once(
    tmp_path: Path, case: str
) -> None:
    old = Old(tmp_path, case)
    fresh = await old.bring()
    old.assert_same()
    assert not [event for event in fresh if (event["metadata"] or {}).get("ddl", {}).get("action") == "truncate"], (
        "nothing is emptied"
    )
    if case in ("live", "told", "second epoch"):
        inserts = [event for event in fresh if event["operation"] == "INSERT"]
        assert {event["rowId"] for event in inserts if event["table"] == "users"} == set(), "nothing is copied again"
        assert len(inserts) <= 6
    assert {event["stream"] for event in fresh} <= {"app"}
    epochs = {event["epoch"] for event in old.events()}
    assert not fresh or fresh[-1]["epoch"] == max(epochs)
    if case not in ("second epoch",):
        updates = Counter(
            event["after"]["name"]
            for event in old.events()
            if event["operation"] == "UPDATE" and event["table"] == "users"
        )
        assert max(updates.values(), default=1) == 1
    old.do("UPDATE users SET name = 'later' WHERE id = 1")
    old.do("DELETE FROM notes WHERE n = 40")
    old.do("UPDATE notes SET text = 'changed' WHERE n = 41")
    (later,) = [event["after"]["name"] for event in await old.bring() if event["table"] == "users"]
    assert later == "later"
    old.assert_same()


@pytest.mark.parametrize("case", CASES)
async def test_a_file_of_the_version_before_with_a_lake_that_lost_everything_is_copied(
    tmp_path: Path, case: str
) -> None:
    old = Old(tmp_path, case)
    home = tmp_path / "another home"
    home.mkdir()
    await old.bring(home)
    old.assert_same(home)


async def test_the_tables_chosen_with_the_version_before_stay_chosen(tmp_path: Path) -> None:
    old = Old(tmp_path, "told")
    async with running_lake(old.home) as (_, url):
        made = plan(old.path, Choice(), await view_of(url, None))
    assert sorted(made.tables) == TABLES
    assert made.stream == StreamId("app")


@pytest.mark.parametrize("statement", ["VACUUM", "ALTER TABLE users ADD COLUMN more TEXT", "DELETE FROM notes"])
async def test_what_happened_to_the_file_between_the_versions_is_noticed(tmp_path: Path, statement: str) -> None:
    old = Old(tmp_path, "live")
    old.do(statement)
    old.do("UPDATE notes SET text = 'behind it' WHERE n > 40")
    await old.bring()
    old.assert_same()


async def test_a_table_that_the_version_before_could_not_change_types_of_keeps_its_rows(tmp_path: Path) -> None:
    old = Old(tmp_path, "told")
    old.do("INSERT INTO empty VALUES (1, 1700000000)")
    await old.bring()
    old.assert_same()


async def test_shards_of_the_version_before_stay_shards(tmp_path: Path) -> None:
    """That version followed the files of a folder as shards of one source."""
    old = Old(tmp_path, "told")
    other = tmp_path / "other.db"
    other.write_bytes(old.path.read_bytes())
    async with running_lake(old.home) as (_, url):
        view = await view_of(url, None)
        plans = plan_all([old.path, other], Choice(shards_of="apps"), view)
        assert [str(each.stream) for each in plans] == ["apps/app", "apps/other"]


@pytest.mark.parametrize("case", CASES)
def test_a_file_of_the_version_before_is_freed_of_every_trace(tmp_path: Path, case: str) -> None:
    old = Old(tmp_path, case)
    store = Store(old.path)
    disable(store)
    store.close()
    assert not has_traces(old.path)
    db = sqlite3.connect(old.path)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")}
    assert names == {*TABLES, "secret"}
    db.close()
