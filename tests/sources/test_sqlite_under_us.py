"""A SQLite file that becomes another while its source runs, or that cannot be used for a while."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.errors import Unavailable
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, disable_cdc, enable_cdc, store
from tests.support.followed import Followed
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in


class Running:
    """A source at work, opened again where it says that it must be; beside it what the lake has."""

    def __init__(self, app: Followed) -> None:
        self.app = app
        self.reasons: list[str] = []
        self.source = self._open()

    def _open(self) -> SqliteSource:
        source = SqliteSource(self.app.path)
        self.reasons.append(source.resume(self.app.standing).reason)
        return source

    def run(self) -> None:
        while self.source.has_work():
            try:
                piece = self.source.look()
            except Unavailable:
                self.source.close()
                self.source = self._open()
                continue
            if piece is not None:
                self.app.take(piece)
                self.source.acknowledge(piece)

    def assert_same(self) -> None:
        self.run()
        assert sorted(self.app.mirror.tables["t"].values(), key=repr) == self.app.rows("t")


@pytest.fixture
def app(app: Followed) -> Followed:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    enable_cdc(app.path)
    return app


@pytest.fixture
def running(app: Followed) -> Iterator[Running]:
    made = Running(app)
    made.run()
    yield made
    made.source.close()


def insert(app: Followed, *numbers: int) -> None:
    for number in numbers:
        app.do("INSERT INTO t VALUES (?, ?)", number, number)


def test_a_file_restored_in_place_under_a_running_source_is_copied_again(app: Followed, running: Running) -> None:
    backup = sqlite3.connect(":memory:")
    app.db.backup(backup)
    insert(app, *range(3, 10))
    running.assert_same()
    backup.backup(app.db)
    insert(app, *range(20, 40))  # passes the numbers that the lake has
    running.assert_same()
    assert "restored from a backup" in running.reasons[-1]
    insert(app, 50)
    running.assert_same()


def test_a_file_moved_into_the_place_of_a_followed_one_is_noticed(
    app: Followed, running: Running, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    app.db.backup(other)
    other.execute("PRAGMA journal_mode = DELETE")
    other.close()
    insert(app, 3, 4, 5)
    running.assert_same()
    app.db.close()
    shutil.move(tmp_path / "other.db", app.path)
    for part in ("-wal", "-shm"):
        app.path.with_name(app.path.name + part).unlink(missing_ok=True)
    app.db = sqlite3.connect(app.path, isolation_level=None)
    insert(app, 6, 7)
    running.assert_same()
    assert "restored from a backup" in running.reasons[-1]


def test_a_file_disabled_and_enabled_under_a_running_source_is_copied_again(app: Followed, running: Running) -> None:
    insert(app, *range(3, 30))
    running.assert_same()
    disable_cdc(app.path)
    app.do("DELETE FROM t WHERE id = 2")
    enable_cdc(app.path)
    insert(app, *range(60, 120))
    running.assert_same()
    assert "enabled anew" in running.reasons[-1]


def test_a_file_that_is_followed_no_longer_says_so_when_it_is_opened_again(app: Followed, running: Running) -> None:
    disable_cdc(app.path)
    with pytest.raises(Unavailable, match="followed no longer"):
        running.source.look()


def test_a_running_source_puts_a_dropped_outbox_back(app: Followed, running: Running) -> None:
    insert(app, 3, 4)
    running.assert_same()
    app.do("DROP TABLE _dolake_outbox")
    with pytest.raises(sqlite3.OperationalError, match="_dolake_outbox"):
        insert(app, 5)
    running.run()
    app.do("SELECT count(*) FROM t")  # a connection that dropped the table itself must read once to see the new one
    insert(app, 5, 6)
    app.do("DELETE FROM t WHERE id = 3")
    running.assert_same()


def test_a_file_that_is_locked_can_be_tried_again_later(
    app: Followed, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_WAIT_S", 0.01)
    running.source.close()
    app.do("PRAGMA journal_mode = DELETE")
    source = SqliteSource(app.path)
    app.do("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable, match="locked") as caught:
        source.resume(app.standing)
    assert caught.value.retryable
    assert caught.value.hint
    app.do("ROLLBACK")
    source.resume(app.standing)
    source.close()


async def test_one_damaged_file_fails_alone_and_the_others_go_on(tmp_path: Path) -> None:
    for name in ("good", "bad", "home"):
        (tmp_path / name).mkdir()
    good, bad = Followed(tmp_path / "good"), Followed(tmp_path / "bad")
    for each in (good, bad):
        each.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        insert(each, 1, 2)
        enable_cdc(each.path)
    bad.do("UPDATE _dolake_outbox SET v0 = '{' WHERE seq = -1")

    def shard(name: str, each: Followed) -> Shard:
        return Shard(StreamId(name), lambda: SqliteSource(each.path))

    async with running_lake(tmp_path / "home") as (_, url):
        failures: dict[StreamId, Any] = await Runner(url, is_once=True).run([shard("bad", bad), shard("good", good)])
    assert list(failures) == [StreamId("bad")]
    assert sorted(Mirror.of(tmp_path / "home").tables["t"].values(), key=repr) == good.rows("t")
    good.db.close()
    bad.db.close()


def test_a_key_that_is_no_text_though_sqlite_calls_it_one_is_copied(tmp_path: Path) -> None:
    app = Followed(tmp_path)
    app.do("CREATE TABLE t (k TEXT PRIMARY KEY, a, at TIMESTAMP) WITHOUT ROWID")
    app.do("INSERT INTO t VALUES (CAST(x'ff41' AS TEXT), 1, CAST(x'ff42' AS TEXT)), ('a', 2, NULL)")
    enable_cdc(app.path)
    assert {row["a"] for row in app.lake_rows("t")} == {1, 2}
    app.do("UPDATE t SET a = a + 10")
    assert {row["a"] for row in app.lake_rows("t")} == {11, 12}
    app.db.close()


async def test_a_value_that_is_too_large_for_the_lake_is_named_and_all_others_arrive(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    app = Followed(tmp_path)
    app.do("CREATE TABLE files (name TEXT PRIMARY KEY, data BLOB, note)")
    app.do("INSERT INTO files VALUES ('small', x'00', 'a'), ('large', zeroblob(900000), 'b'), ('last', x'01', 'c')")
    app.do("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    app.do("INSERT INTO other VALUES (1)")
    enable_cdc(app.path)
    async with running_lake(tmp_path / "home") as (_, url):
        shard = Shard(StreamId("app"), lambda: SqliteSource(app.path))
        assert not await Runner(url, is_once=True).run([shard])
        app.do("UPDATE files SET data = zeroblob(1000000) WHERE name = 'last'")
        app.do("DELETE FROM files WHERE name = 'large'")
        assert not await Runner(url, is_once=True).run([shard])
    events = [event for event in events_in(tmp_path / "home") if event["table"] == "files"]
    large = next(event for event in events if event["rowId"] == "large")
    assert large["after"] == {"name": "large", "note": "b"}
    assert large["metadata"]["rescued"]["data"]["size"] == 1_200_000
    mirror = Mirror.of(tmp_path / "home")
    assert sorted(mirror.tables["files"]) == ["last", "small"]
    assert mirror.rows("other") == [{"id": 1}]
    app.db.close()
