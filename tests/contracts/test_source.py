"""What every source promises (sources/base.py): copy, stream, crash, resume, schema change, transaction, re-sync.

A real lake in the test's own loop takes the changes; its journal, folded, must be the database.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import Change, StreamId
from dolake.client import connect
from dolake.sources.base import Piece, SourceStatus, Standing
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, copying, disable_cdc, enable_cdc, pieces, resync, status
from dolake.sources.sqlite.trimming import TrimRules
from tests.support.followed import event_of, merged
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in

STREAM = StreamId("shop")


class SqliteDatabase:
    """A SQLite file as the application sees it, beside the source that follows it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.home = folder / "home"
        self.home.mkdir()
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")

    def do(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.do("BEGIN")
        yield
        self.do("COMMIT")

    def enable(self) -> None:
        enable_cdc(self.path)

    def disable(self) -> None:
        disable_cdc(self.path)

    def status(self) -> SourceStatus:
        return status(self.path)

    def resync(self, table: str) -> None:
        resync(self.path, table)

    def open_source(self, trim_rules: TrimRules | None = None) -> SqliteSource:
        return SqliteSource(self.path, trim_rules=trim_rules)

    def shard(self) -> Shard:
        return Shard(STREAM, self.open_source)

    def kept_events(self) -> int:
        """How many events are still in the database."""
        return int(self.do("SELECT count(*) FROM _dolake_outbox WHERE seq > 0")[0][0])

    def lose(self, statement: str) -> None:
        """A change that nobody captures: the trigger is away for a moment."""
        ((name, sql),) = self.do(
            "SELECT name, sql FROM sqlite_schema WHERE name LIKE '%delete' AND tbl_name = 'orders'"
        )
        self.do("BEGIN")
        self.do(f"DROP TRIGGER {name}")
        self.do(statement)
        self.do(sql)
        self.do("COMMIT")

    def back_up(self) -> Path:
        copy = self.path.with_suffix(".backup")
        target = sqlite3.connect(copy)
        self.db.backup(target)
        target.close()
        return copy

    def restore(self, backup: Path) -> None:
        self.db.close()
        for part in self.path.parent.glob("shop.db*"):
            part.unlink()
        shutil.copy(backup, self.path)
        self.db = sqlite3.connect(self.path, isolation_level=None)

    def description(self) -> list[Any]:
        return self.do("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name")

    async def bring(self) -> Mirror:
        """Run the source until all is told; what the lake has then."""
        async with running_lake(self.home) as (_, url):
            failures = await Runner(url, is_once=True).run([self.shard()])
            assert not failures
        return Mirror.of(self.home)

    async def standing(self) -> Standing:
        """What the lake says about the stream."""
        async with running_lake(self.home) as (_, url), connect(url, source="shop") as lake:
            return Standing(lake.epoch or 0, lake.last_durable_sequence, lake.source_state or {})

    def events(self) -> list[dict[str, Any]]:
        return list(events_in(self.home))

    def rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self.db.execute(f'SELECT * FROM "{table}"')  # noqa: S608
        names = [column[0] for column in cursor.description]
        found = [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in cursor.fetchall()
        ]
        return sorted(found, key=repr)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path)
    yield database
    database.db.close()


def rest_of(source: SqliteSource) -> list[Change]:
    found: list[Change] = []
    while source.has_work():
        if piece := source.look():
            found += piece.changes
    return found


def after(standing: Standing, piece: Piece) -> Standing:
    """What the lake says when it has this piece."""
    durable = max([standing.durable_sequence, *(change.sequence for change in piece.changes)])
    return Standing(standing.epoch, durable, merged(standing.state, piece.state))


def fill(database: SqliteDatabase, rows: int = 1_200) -> None:
    database.do("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount REAL)")
    with database.transaction():
        for number in range(rows):
            database.do("INSERT INTO orders VALUES (?, ?, ?)", number, f"city {number % 7}", number * 1.1)


# --- copy and stream -------------------------------------------------------------------------------------------------


async def test_rows_that_were_there_are_copied_and_later_changes_follow(database: SqliteDatabase) -> None:
    fill(database)
    database.enable()
    database.do("UPDATE orders SET city = 'Oslo' WHERE id = 5")
    database.do("DELETE FROM orders WHERE id = 6")
    assert (await database.bring()).rows("orders") == database.rows("orders")
    database.do("INSERT INTO orders VALUES (5000, 'Bergen', 1)")
    database.do("UPDATE orders SET id = 6000 WHERE id = 7")
    count = len(database.events())
    assert (await database.bring()).rows("orders") == database.rows("orders")
    assert [event["operation"] for event in database.events()[count:]] == ["INSERT", "UPDATE"]
    assert database.events()[-1]["metadata"]["previousRowId"] == "7"


def test_changes_made_while_the_copy_goes_on_win_over_copied_rows(database: SqliteDatabase) -> None:
    fill(database, rows=11_000)
    database.enable()
    source = database.open_source()
    source.resume(Standing(0, 0))
    mirror, count = Mirror(), 0
    while source.has_work() and count <= 20:
        count += 1
        piece = source.look()
        database.do("UPDATE orders SET city = city || '!' WHERE id % 100 = ?", count)
        database.do("DELETE FROM orders WHERE id = ?", 1_199 - count)
        database.do("INSERT INTO orders VALUES (?, 'new', ?)", 20_000 + count, count)
        for change in piece.changes if piece else ():
            mirror.apply(event_of(change))
    for change in rest_of(source):
        mirror.apply(event_of(change))
    source.close()
    assert mirror.rows("orders") == database.rows("orders")


async def test_an_empty_table_is_copied_too_and_takes_rows_later(database: SqliteDatabase) -> None:
    database.do("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    database.enable()
    await database.bring()
    database.do("INSERT INTO orders VALUES (1)")
    assert (await database.bring()).rows("orders") == [{"id": 1}]


# --- crash and resume ------------------------------------------------------------------------------------------------


def test_a_source_that_dies_anywhere_goes_on_so_that_every_change_arrives_once(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHANGES_MAX", 30)
    monkeypatch.setattr(copying, "CHUNK_ROWS_MAX", 70)
    fill(database, rows=700)
    database.enable()
    standing = Standing(0, 0)
    sent: list[Change] = []
    for step in range(60):
        source = database.open_source()
        source.resume(standing)
        for turn in range(step % 3 + 1):
            with database.transaction():
                for number in range(step % 5 * 20):
                    database.do("UPDATE orders SET amount = ? WHERE id = ?", float(step + turn), number)
            if piece := source.look():  # a piece is durable with its state, or not at all
                if step % 4 == 3:
                    break
                sent += piece.changes
                standing = after(standing, piece)
        source._store.close()  # dies
    source = database.open_source()
    source.resume(standing)
    sent += rest_of(source)
    source.close()
    sequences = [change.sequence for change in sent]
    assert sequences == sorted(set(sequences))
    mirror = Mirror()
    for change in sent:
        mirror.apply(event_of(change))
    assert mirror.rows("orders") == database.rows("orders")


def test_a_crash_in_the_middle_of_a_group_does_not_split_its_transaction(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHANGES_MAX", 4)
    fill(database, rows=0)
    database.enable()
    source = database.open_source()
    source.resume(Standing(0, 0))
    standing = Standing(0, 0)
    while piece := source.look():
        standing = after(standing, piece)
    with database.transaction():
        for number in range(10):
            database.do("INSERT INTO orders VALUES (?, 'x', 1)", number)
    assert source.has_work()
    first = source.look()
    assert first is not None
    standing = after(standing, first)
    source._store.close()
    database.do("INSERT INTO orders VALUES (100, 'later', 1)")
    source = database.open_source()
    source.resume(standing)
    rest = rest_of(source)
    source.close()
    assert len(first.changes) == 4
    assert [change.row_id for change in rest] == ["4", "5", "6", "7", "8", "9", "100"]
    ids = [(change.metadata or {})["transactionId"] for change in (*first.changes, *rest)]
    assert len(set(ids[:10])) == 1
    assert ids[10] != ids[0]
    ends = [change.row_id for change in (*first.changes, *rest) if (change.metadata or {}).get("transactionEnd")]
    assert ends == ["9", "100"]


async def test_what_is_acknowledged_is_trimmed_and_numbers_are_never_used_again(database: SqliteDatabase) -> None:
    fill(database)
    database.enable()
    await database.bring()
    database.do("UPDATE orders SET amount = 5")
    await database.bring()
    highest = max(event["sequence"] for event in database.events())
    assert database.kept_events() > 1_000
    source = database.open_source(TrimRules(idle_s=0))
    source.resume(await database.standing())
    while source.has_work():
        source.look()
    source.close()
    assert database.kept_events() == 1
    database.do("INSERT INTO orders VALUES (9000, 'x', 1)")
    await database.bring()
    assert database.events()[-1]["sequence"] == highest + 1
    assert (await database.bring()).rows("orders") == database.rows("orders")


async def test_a_server_that_is_away_is_waited_for(database: SqliteDatabase) -> None:
    fill(database)
    database.enable()
    await database.bring()
    database.do("UPDATE orders SET city = 'Oslo'")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    running = asyncio.create_task(Runner(f"http://127.0.0.1:{port}", is_once=True).run([database.shard()]))
    await asyncio.sleep(0.1)
    async with running_lake(database.home, port=port):
        await running
    assert Mirror.of(database.home).rows("orders") == database.rows("orders")


# --- restored from a backup ------------------------------------------------------------------------------------------


async def test_a_database_restored_from_a_backup_is_noticed_and_copied_again(database: SqliteDatabase) -> None:
    fill(database, rows=50)
    database.enable()
    await database.bring()
    backup = database.back_up()
    database.do("INSERT INTO orders VALUES (777, 'gone after the restore', 1)")
    database.do("DELETE FROM orders WHERE id = 1")
    await database.bring()
    database.restore(backup)
    database.do("INSERT INTO orders VALUES (888, 'after', 1)")
    database.do("INSERT INTO orders VALUES (889, 'after', 1)")
    database.do("INSERT INTO orders VALUES (890, 'after', 1)")
    assert (await database.bring()).rows("orders") == database.rows("orders")
    database.do("INSERT INTO orders VALUES (891, 'after', 1)")
    count = len(database.events())
    assert (await database.bring()).rows("orders") == database.rows("orders")
    assert len(database.events()) == count + 1


async def test_a_lake_that_lost_everything_gets_everything_again(database: SqliteDatabase, tmp_path: Path) -> None:
    fill(database, rows=50)
    database.enable()
    await database.bring()
    database.home = tmp_path / "another home"
    database.home.mkdir()
    assert (await database.bring()).rows("orders") == database.rows("orders")


async def test_a_database_that_is_enabled_anew_is_copied_again(database: SqliteDatabase) -> None:
    fill(database, rows=50)
    database.enable()
    await database.bring()
    database.disable()
    database.do("DELETE FROM orders WHERE id < 10")
    database.enable()
    assert (await database.bring()).rows("orders") == database.rows("orders")


# --- re-sync ---------------------------------------------------------------------------------------------------------


async def test_one_table_is_copied_again_and_rows_that_were_deleted_unseen_vanish(database: SqliteDatabase) -> None:
    fill(database, rows=50)
    database.do("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
    database.do("INSERT INTO customers VALUES (1)")
    database.enable()
    await database.bring()
    database.lose("DELETE FROM orders WHERE id < 20")
    database.do("UPDATE orders SET city = 'Rome' WHERE id = 30")
    assert (await database.bring()).rows("orders") != database.rows("orders")
    count = len(database.events())
    database.resync("orders")
    assert (await database.bring()).rows("orders") == database.rows("orders")
    assert {event["table"] for event in database.events()[count:]} == {"orders"}


# --- schema changes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE orders ADD COLUMN note TEXT", "UPDATE orders SET note = 'new' WHERE id < 5"],
        ["ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'", "INSERT INTO orders VALUES (999, 'x', 1, 'own')"],
        ["ALTER TABLE orders RENAME COLUMN city TO town", "UPDATE orders SET town = 'Bergen' WHERE id < 5"],
        ["ALTER TABLE orders DROP COLUMN city", "INSERT INTO orders VALUES (999, 2)",
         "DELETE FROM orders WHERE id = 2"],
        [
            "ALTER TABLE orders RENAME COLUMN city TO town",
            "ALTER TABLE orders DROP COLUMN amount",
            "ALTER TABLE orders ADD COLUMN amount TEXT DEFAULT 'a lot'",
            "UPDATE orders SET town = 'Bergen' WHERE id < 5",
            "INSERT INTO orders VALUES (999, 'y', 'z')",
        ],
        ["DELETE FROM orders WHERE id < 3", "DROP TABLE orders",
         "CREATE TABLE orders (id INTEGER PRIMARY KEY, other TEXT)",
         "INSERT INTO orders VALUES (1, 'another table')"],
        ["CREATE TABLE orders_new AS SELECT id, amount FROM orders", "DROP TABLE orders",
         "ALTER TABLE orders_new RENAME TO orders", "UPDATE orders SET amount = 1 WHERE id = 1"],
    ],
    ids=["added", "added with a default", "renamed", "dropped", "all at once", "made anew", "rebuilt"],
)  # fmt: skip
async def test_changed_columns_and_what_was_written_before_anybody_noticed(
    database: SqliteDatabase, statements: list[str]
) -> None:
    fill(database, rows=50)
    database.enable()
    await database.bring()
    for statement in statements:
        database.do(statement)
    assert (await database.bring()).rows("orders") == database.rows("orders")
    database.do("UPDATE orders SET id = id + 10000 WHERE id > 40")
    database.do("DELETE FROM orders WHERE id = 10")
    assert (await database.bring()).rows("orders") == database.rows("orders")


async def test_new_dropped_and_renamed_tables_are_noticed(database: SqliteDatabase) -> None:
    fill(database, rows=50)
    database.enable()
    await database.bring()
    database.do("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
    database.do("INSERT INTO customers VALUES (1, 'before anybody noticed')")
    database.do("ALTER TABLE orders RENAME TO purchases")
    database.do("DELETE FROM purchases WHERE id = 3")
    mirror = await database.bring()
    assert mirror.rows("customers") == database.rows("customers")
    assert mirror.rows("purchases") == database.rows("purchases")
    assert "orders" not in mirror.tables
    database.do("DROP TABLE customers")
    assert (await database.bring()).rows("customers") == []


# --- transactions ----------------------------------------------------------------------------------------------------


async def test_the_changes_of_a_transaction_share_their_id_and_the_last_one_ends_it(database: SqliteDatabase) -> None:
    fill(database, rows=0)
    database.enable()
    await database.bring()
    with database.transaction():
        for number in range(1_500):
            database.do("INSERT INTO orders VALUES (?, 'x', 1)", number)
        database.do("UPDATE orders SET amount = 2 WHERE id = 1")
    await database.bring()
    metadata = [event["metadata"] for event in database.events() if "ddl" not in event["metadata"]]
    assert len({each["transactionId"] for each in metadata}) == 1
    assert [index for index, each in enumerate(metadata) if each.get("transactionEnd")] == [1_500]


async def test_what_is_rolled_back_is_never_told(database: SqliteDatabase) -> None:
    fill(database, rows=1)
    database.enable()
    await database.bring()
    count = len(database.events())
    database.do("BEGIN")
    database.do("INSERT INTO orders VALUES (999, 'x', 1)")
    database.do("ROLLBACK")
    database.do("INSERT INTO orders VALUES (1000, 'x', 1)")
    await database.bring()
    assert [event["rowId"] for event in database.events()[count:]] == ["1000"]


# --- and away --------------------------------------------------------------------------------------------------------


async def test_disabling_leaves_no_trace(database: SqliteDatabase) -> None:
    fill(database, rows=5)
    before = database.description()
    database.enable()
    await database.bring()
    assert database.description() != before
    database.disable()
    assert database.description() == before
    database.do("DELETE FROM orders")
