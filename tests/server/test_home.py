"""Which homes a release opens: its own, those of releases before it, and none that it could misread."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from importlib import resources
from pathlib import Path

import pytest

from dolake.catalog.base import Name
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Damaged
from dolake.journal import segment
from dolake.server.home import FORMAT_FILE, FORMAT_VERSION, Home
from tests.support.homes import FOLDER, unpack
from tests.support.journals import segments_of
from tests.support.lake import running_lake
from tests.support.speaker import Speaker, batch, events

KEPT = sorted(path.stem for path in FOLDER.glob("*.json"))


def test_there_are_homes_of_earlier_days_to_open() -> None:
    assert KEPT


@pytest.mark.parametrize("name", KEPT)
async def test_a_home_of_an_earlier_day_opens_with_everything_in_it_and_goes_on(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    assert format_of(tmp_path) in (None, 1)
    async with running_lake(tmp_path) as (lake, url):
        assert lake.journal.durable == 11
        assert await lake.catalog.run(lake.catalog.store.namespace_properties, ("shop",)) == {"owner": "Ada"}
        users = await lake.catalog.run(lake.catalog.tables.load, Name(("shop",), "users"))
        assert [field["name"] for field in users.metadata["schemas"][0]["fields"]] == ["id"]
        async with Speaker(url) as speaker:
            shop = await speaker.ask({"type": "connect", "sourceDoId": "shop", "protocolVersion": 1})
            assert (shop["lastDurableSequence"], shop["sourceEpoch"]) == (9, 0)
            ack = await speaker.ask(batch(3, events(10, 10), source="shop"))
            assert (ack["status"], ack["details"]["position"]) == ("buffered", 12)
            assert shop["sourceState"] == {}
            ack = await speaker.ask(batch(4, [], source="shop", sourceState={"at": 10}))
            assert (ack["status"], ack["details"]["position"]) == ("buffered", 13)
        async with Speaker(url) as speaker:
            restored = await speaker.ask({"type": "connect", "sourceDoId": "restored", "protocolVersion": 1})
            assert (restored["lastDurableSequence"], restored["sourceEpoch"]) == (2, 3)
        records = list(lake.journal.read(0))
        assert [each.position for each in records][-1] == 11
        async with Speaker(url) as speaker:
            shop = await speaker.ask({"type": "connect", "sourceDoId": "shop", "protocolVersion": 1})
            assert (shop["lastBatchNumber"], shop["sourceState"]) == (4, {"at": 10})
    assert format_of(tmp_path) == FORMAT_VERSION
    assert all(path.read_bytes()[8] == segment.FORMAT_VERSION for path in segments_of(tmp_path / "journal"))


def format_of(home: Path) -> int | None:
    file = home / FORMAT_FILE
    return json.loads(file.read_bytes())["version"] if file.exists() else None


@pytest.mark.parametrize("name", KEPT)
def test_a_home_of_format_1_is_raised_before_anything_else_is_written_to_it(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    segments = {path: path.read_bytes() for path in segments_of(tmp_path / "journal")}
    with Home(tmp_path):
        assert format_of(tmp_path) == FORMAT_VERSION
        assert {path: path.read_bytes() for path in segments} == segments
    assert [data[8] for data in segments.values()] == [1]


@pytest.mark.parametrize("version", [1, 2])
def test_a_catalog_of_each_earlier_version_is_brought_to_this_one(version: int, tmp_path: Path) -> None:
    folder = resources.files("dolake.catalog").joinpath("sql")
    steps = sorted(entry.name for entry in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name))
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as opened:
        for step in steps[:version]:
            opened.executescript(folder.joinpath(step).read_text())
        opened.execute(f"PRAGMA user_version = {version}")
        opened.execute("UPDATE published SET position = 7")
        opened.commit()
    store = SqliteStore(tmp_path / "catalog.db")
    assert store.published().position == 7
    store.create_namespace(("a",), {})
    assert store.pointers() == []
    store.close()


def test_a_home_says_which_format_it_has_from_its_first_start_on(tmp_path: Path) -> None:
    with Home(tmp_path):
        pass
    first = (tmp_path / FORMAT_FILE).read_bytes()
    assert json.loads(first)["version"] == FORMAT_VERSION
    with Home(tmp_path):
        pass
    assert (tmp_path / FORMAT_FILE).read_bytes() == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"version": 99, "writtenBy": "9.9.9"}', "home format 99, written by DoLake 9.9.9; this release reads 1 to 2"),
        ('{"version": 0}', "home format 0; this release reads 1 to 2"),
        ("{", "cannot be read"),
    ],
)
def test_a_home_of_another_format_is_refused_in_words_and_left_as_it_is(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / FORMAT_FILE).write_text(content)
    with pytest.raises(Damaged, match=message), Home(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [FORMAT_FILE]
