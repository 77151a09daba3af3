"""A file and a lake agree before anything is written: which stream it is, whose tables they are, what was chosen."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dolake.changes import Change, StreamId
from dolake.client import connect
from dolake.errors import Conflict, DoLakeError, InvalidInput, NotFound, Unavailable
from dolake.sources.configured import view_of
from dolake.sources.runner import Runner
from dolake.sources.sqlite import disable_cdc, enable_cdc, has_traces
from dolake.sources.sqlite.attachment import Choice, Plan, plan_all
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in


class Desk:
    """Files in folders, and a lake at work."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.home = folder / "home"

    def file(self, name: str, *tables: str, rows: int = 2) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        for table in tables:
            do(path, f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, word TEXT)")
            for number in range(1, rows + 1):
                do(path, f"INSERT INTO {table} VALUES (?, ?)", number, name)  # noqa: S608
        return path

    async def plans(self, *paths: Path, **chosen: Any) -> list[Plan]:
        return plan_all(paths, Choice(**chosen), await view_of(self.url, None))

    async def follow(self, *paths: Path, **chosen: Any) -> list[Plan]:
        """Bring all that these files have."""
        plans = await self.plans(*paths, **chosen)
        assert not await Runner(self.url, is_once=True).run([each.carry_out() for each in plans])
        return plans

    async def refused(self, *paths: Path, error: type[DoLakeError] = Conflict, **chosen: Any) -> str:
        """Why it is refused; and the files are as they were."""
        before = [everything(path) for path in paths]
        with pytest.raises(error) as caught:
            await self.plans(*paths, **chosen)
        assert [everything(path) for path in paths] == before
        return f"{caught.value.message}\n{caught.value.hint}"

    def words(self, table: str) -> list[str]:
        return sorted(row["word"] for row in Mirror.of(self.home).rows(table))

    def events(self) -> list[dict[str, Any]]:
        return list(events_in(self.home))


def do(path: Path, statement: str, *values: Any) -> list[Any]:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        return db.execute(statement, values).fetchall()
    finally:
        db.close()


def everything(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return list(db.iterdump())
    finally:
        db.close()


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    (tmp_path / "home").mkdir()
    async with running_lake(tmp_path / "home") as (_, url):
        yield Desk(tmp_path, url)


def streams(plans: list[Plan]) -> list[str]:
    return [str(plan.stream) for plan in plans]


# --- two databases ---------------------------------------------------------------------------------------------------


async def test_two_files_of_one_name_do_not_become_one_stream(desk: Desk) -> None:
    one, two = desk.file("p1/db.sqlite3", "orders"), desk.file("p2/db.sqlite3", "orders")
    await desk.follow(one)
    why = await desk.refused(two)
    assert "table orders of" in why
    assert str(one) in why
    assert "--namespace" in why
    plans = await desk.follow(two, namespace="shop2")
    assert streams(plans) == ["db-2"]
    assert desk.words("orders") == ["p1/db.sqlite3"] * 2
    assert desk.words("shop2.orders") == ["p2/db.sqlite3"] * 2
    do(two, "UPDATE orders SET word = 'new' WHERE id = 1")
    await desk.follow(two, namespace="shop2")
    await desk.follow(one)
    assert desk.words("orders") == ["p1/db.sqlite3"] * 2
    assert desk.words("shop2.orders") == ["new", "p2/db.sqlite3"]


async def test_two_files_of_one_name_and_other_tables_are_two_streams(desk: Desk) -> None:
    one, two = desk.file("p1/db.sqlite3", "orders"), desk.file("p2/db.sqlite3", "users")
    plans = await desk.follow(one, two)
    assert len(set(streams(plans))) == 2
    assert streams(await desk.follow(two, one)) == streams(plans)[::-1]
    assert desk.words("users") == ["p2/db.sqlite3"] * 2


async def test_two_files_with_a_table_of_one_name_are_refused(desk: Desk) -> None:
    one, two = desk.file("a1.db", "orders"), desk.file("b1.db", "users", "orders")
    assert "--shards" in await desk.refused(one, two)
    await desk.follow(one)
    assert "belongs to another database" in await desk.refused(two)
    await desk.follow(two, exclude=["orders"])
    assert desk.words("orders") == ["a1.db"] * 2


async def test_a_stream_of_another_client_is_never_taken(desk: Desk) -> None:
    async with connect(desk.url, source="app") as client:
        await client.send(Change("other", "INSERT", "1", {"word": "kept"}))
    path = desk.file("app.db", "orders")
    plans = await desk.follow(path)
    assert streams(plans) == ["app-2"]
    assert not [event for event in desk.events() if (event.get("metadata") or {}).get("ddl")]
    assert streams(await desk.follow(path)) == ["app-2"]


async def test_a_file_that_was_only_enabled_does_not_take_the_stream_of_another_client(desk: Desk) -> None:
    async with connect(desk.url, source="app") as client:
        await client.send(Change("other", "INSERT", "1", {"word": "kept"}))
    path = desk.file("app.db", "orders")
    enable_cdc(path)
    assert streams(await desk.follow(path)) == ["app-2"]


async def test_a_stream_that_a_person_names_and_another_client_has_is_refused(desk: Desk) -> None:
    async with connect(desk.url, source="shop") as client:
        await client.send(Change("other", "INSERT", "1", {"word": "kept"}))
    assert "--source" in await desk.refused(desk.file("app.db", "orders"), source="shop")


async def test_a_followed_file_does_not_change_its_stream(desk: Desk) -> None:
    path = desk.file("app.db", "orders")
    await desk.follow(path)
    why = await desk.refused(path, source="shop")
    assert "stream app" in why
    assert streams(await desk.follow(path, source="app")) == ["app"]


# --- copies, moved and restored files --------------------------------------------------------------------------------


async def test_a_copy_that_lags_behind_is_refused_and_can_be_made_a_database_of_its_own(desk: Desk) -> None:
    one = desk.file("app.db", "orders")
    await desk.follow(one)
    copy = desk.folder / "test.db"
    shutil.copy(one, copy)
    do(one, "INSERT INTO orders VALUES (3, 'in the original')")
    await desk.follow(one)
    do(copy, "DELETE FROM orders WHERE id = 1")
    why = await desk.refused(copy)
    assert "is a copy of" in why
    assert "--as-copy" in why
    assert "belongs to another database" in await desk.refused(copy, is_copy=True)
    plans = await desk.follow(copy, is_copy=True, namespace="test")
    assert streams(plans) == ["test"]
    assert desk.words("test.orders") == ["app.db"]
    assert len(desk.words("orders")) == 3
    await desk.follow(copy, namespace="test")
    await desk.follow(one)
    assert len(desk.words("orders")) == 3


async def test_a_copy_is_refused_while_the_original_is_followed(desk: Desk) -> None:
    one = desk.file("app.db", "orders")
    await desk.follow(one)
    copy = desk.folder / "test.db"
    shutil.copy(one, copy)
    async with connect(desk.url, source="app"):
        assert "followed now" in await desk.refused(copy)
        assert "followed now" in await desk.refused(copy, is_restored=True)


async def test_a_moved_file_goes_on_with_a_warning(desk: Desk) -> None:
    one = desk.file("app.db", "orders")
    await desk.follow(one)
    count = len(desk.events())
    moved = desk.folder / "elsewhere.db"
    one.rename(moved)
    do(moved, "INSERT INTO orders VALUES (3, 'moved')")
    (plan,) = await desk.follow(moved)
    assert str(plan.stream) == "app"
    assert str(one) in plan.warnings[0]
    assert [event["rowId"] for event in desk.events()[count:]] == ["3"]
    (plan,) = await desk.follow(moved)
    assert not plan.warnings


async def test_a_file_restored_from_a_backup_elsewhere_takes_the_place_of_the_one_that_was_followed(
    desk: Desk,
) -> None:
    one = desk.file("app.db", "orders")
    await desk.follow(one)
    backup = desk.folder / "backup.db"
    shutil.copy(one, backup)
    do(one, "INSERT INTO orders VALUES (3, 'lost')")
    await desk.follow(one)
    one.unlink()
    do(backup, "UPDATE orders SET word = 'restored' WHERE id = 2")
    assert "--restored" in await desk.refused(backup)
    (plan,) = await desk.follow(backup, is_restored=True)
    assert str(plan.stream) == "app"
    assert desk.words("orders") == ["app.db", "restored"]
    await desk.follow(backup)
    assert desk.words("orders") == ["app.db", "restored"]


async def test_a_restored_file_keeps_the_names_that_its_tables_have_in_the_lake(desk: Desk) -> None:
    one = desk.file("app.db", "orders")
    await desk.follow(one, namespace="shop")
    do(one, "INSERT INTO orders VALUES (3, 'new')")
    backup = desk.folder / "backup.db"
    shutil.copy(one, backup)
    do(one, "DELETE FROM orders WHERE id = 1")
    await desk.follow(one, namespace="shop")
    shutil.copy(backup, one)
    await desk.follow(one)
    assert len(desk.words("shop.orders")) == 3
    assert {event["table"] for event in desk.events()} == {"shop.orders"}


async def test_a_file_that_was_replaced_by_one_that_was_never_followed_is_copied_again(desk: Desk) -> None:
    path = desk.file("app.db", "orders", "users")
    await desk.follow(path, tables=["orders"])
    (plan,) = await desk.plans(path)
    shard = plan.carry_out()
    shard.open_source().close()
    other = desk.file("other.db", "orders", "users", "more", rows=3)
    other.replace(path)
    shard.open_source().close()
    await desk.follow(path)
    assert desk.words("orders") == ["other.db"] * 3
    assert {event["table"] for event in desk.events()} == {"orders"}


async def test_a_file_that_is_gone_for_a_while_is_waited_for(desk: Desk) -> None:
    path = desk.file("app.db", "orders")
    (plan,) = await desk.plans(path)
    shard = plan.carry_out()
    shard.open_source().close()
    path.rename(desk.folder / "away.db")
    with pytest.raises(Unavailable, match="is gone"):
        shard.open_source()
    (desk.folder / "away.db").rename(path)
    shard.open_source().close()


async def test_a_file_that_was_disabled_stays_so(desk: Desk) -> None:
    path = desk.file("app.db", "orders")
    (plan,) = await desk.plans(path)
    shard = plan.carry_out()
    shard.open_source().close()
    disable_cdc(path)
    with pytest.raises(NotFound, match="is not followed"):
        shard.open_source()
    assert not has_traces(path)


# --- shards ----------------------------------------------------------------------------------------------------------


async def test_files_of_a_folder_are_shards_where_a_person_says_so(desk: Desk) -> None:
    one, two = desk.file("shops/a.db", "orders"), desk.file("shops/b.db", "orders")
    plans = await desk.follow(one, two, shards_of="shops")
    assert streams(plans) == ["shops/a", "shops/b"]
    assert streams(await desk.follow(one, two, shards_of="shops")) == ["shops/a", "shops/b"]
    assert streams(await desk.follow(one)) == ["shops/a"], "what a file is stays"


async def test_a_shard_of_another_source_is_refused(desk: Desk) -> None:
    one, two = desk.file("shops/a.db", "orders"), desk.file("others/b.db", "orders")
    await desk.follow(one, shards_of="shops")
    assert "belongs to another database" in await desk.refused(two, shards_of="others")


# --- what is chosen --------------------------------------------------------------------------------------------------


async def test_a_name_that_no_table_has_is_refused_with_a_guess(desk: Desk) -> None:
    path = desk.file("app.db", "orders", "users")
    assert "did you mean 'orders'" in await desk.refused(path, error=InvalidInput, tables=["ordrs"])
    assert "did you mean 'users'" in await desk.refused(path, error=InvalidInput, exclude=["user"])
    await desk.follow(path)
    assert "did you mean 'orders'" in await desk.refused(path, error=InvalidInput, tables=["ordrs"])


async def test_a_chosen_table_that_the_application_drops_later_does_not_stop_the_others(desk: Desk) -> None:
    path = desk.file("app.db", "orders", "users")
    await desk.follow(path, tables=["orders", "users"])
    do(path, "DROP TABLE users")
    do(path, "INSERT INTO orders VALUES (3, 'later')")
    await desk.follow(path)
    await desk.follow(path, tables=["orders", "users"])
    assert len(desk.words("orders")) == 3


async def test_what_is_excluded_is_not_followed(desk: Desk) -> None:
    path = desk.file("app.db", "orders", "users", "user_tokens")
    (plan,) = await desk.follow(path, exclude=["user*"])
    assert list(plan.tables) == ["orders"]
    assert {event["table"] for event in desk.events()} == {"orders"}
    (plan,) = await desk.follow(path, exclude=["user_*"])
    assert sorted(plan.tables) == ["orders", "users"]
    assert desk.words("users") == ["app.db"] * 2


async def test_a_plan_alone_writes_nothing(desk: Desk) -> None:
    path = desk.file("app.db", "orders")
    before = everything(path)
    (plan,) = await desk.plans(path, tables=["ord*"])
    assert everything(path) == before
    assert plan.tables == {"orders": "orders"}
    assert plan.needs_writing


# --- masks -----------------------------------------------------------------------------------------------------------


def people(desk: Desk) -> Path:
    path = desk.folder / "app.db"
    do(path, "CREATE TABLE people (id INTEGER PRIMARY KEY, password TEXT, Name TEXT, phone TEXT, age INTEGER)")
    do(path, "INSERT INTO people VALUES (1, 'secret', 'Ada', '0123456', 36), (2, NULL, 'Bob', '7654321', 7)")
    return path


def told(desk: Desk, since: int = 0) -> str:
    return repr([(event.get("before"), event.get("after")) for event in desk.events()[since:]])


async def test_masked_values_never_leave_the_file(desk: Desk) -> None:
    path = people(desk)
    masks = {"people.password": "hash", "PEOPLE.name": "redact", "people.phone": "truncate(3)", "people.age": "hash"}
    await desk.follow(path, masks=masks)
    do(path, "UPDATE people SET password = 'secret2', name = 'Grace' WHERE id = 1")
    do(path, "DELETE FROM people WHERE id = 2")
    await desk.follow(path)
    for word in ("secret", "Ada", "Grace", "Bob", "0123", "7654", "36"):
        assert f"'{word}" not in told(desk)
    (row,) = Mirror.of(desk.home).rows("people")
    assert row["Name"] == "***"
    assert row["phone"] == "012"
    assert Mirror.of(desk.home).types["people"]["age"] == "string"


async def test_changed_masks_replace_what_the_lake_has(desk: Desk) -> None:
    path = people(desk)
    await desk.follow(path)
    await desk.follow(path, masks={"people.password": "redact"})
    assert {row.get("password") for row in Mirror.of(desk.home).rows("people")} == {"***", None}
    await desk.follow(path, masks={})
    assert {row.get("password") for row in Mirror.of(desk.home).rows("people")} == {"secret", None}


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ({"people.id": "hash"}, "part of the key"),
        ({"people.passwrd": "hash"}, "no followed table has that column"),
        ({"persons.password": "hash"}, "no followed table has that column"),
        ({"people.password": "scramble"}, "scramble"),
        ({"people.password": "truncate(x)"}, "truncate"),
    ],
)
async def test_a_mask_that_cannot_be_meant_is_refused(desk: Desk, mask: dict[str, str], words: str) -> None:
    assert words in await desk.refused(people(desk), error=InvalidInput, masks=mask)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE people RENAME COLUMN password TO pwd"],
        ["ALTER TABLE people RENAME TO persons"],
        ["ALTER TABLE people RENAME COLUMN password TO pwd", "ALTER TABLE people RENAME TO persons"],
    ],
    ids=["column", "table", "both"],
)
async def test_a_mask_follows_a_rename(desk: Desk, statements: list[str]) -> None:
    path = people(desk)
    await desk.follow(path, masks={"people.password": "redact"})
    count = len(desk.events())
    for statement in statements:
        do(path, statement)
    column = "pwd" if "COLUMN" in statements[0] else "password"
    table = "persons" if "TO persons" in statements[-1] else "people"
    do(path, f"UPDATE {table} SET {column} = 'secret3' WHERE id = 1")  # noqa: S608
    await desk.follow(path)
    do(path, f"UPDATE {table} SET {column} = 'secret4' WHERE id = 1")  # noqa: S608
    await desk.follow(path)
    assert "secret" not in told(desk, count)


async def test_a_column_that_comes_back_in_a_rebuilt_table_is_masked_still(desk: Desk) -> None:
    path = people(desk)
    await desk.follow(path, masks={"people.password": "redact"})
    count = len(desk.events())
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(
        "BEGIN; CREATE TABLE new_people (id INTEGER PRIMARY KEY, password TEXT, more TEXT);"
        "INSERT INTO new_people (id, password) SELECT id, password FROM people; DROP TABLE people;"
        "ALTER TABLE new_people RENAME TO people; COMMIT"
    )
    db.close()
    await desk.follow(path)
    assert "secret" not in told(desk, count)


async def test_the_streams_that_are_known_are_those_of_the_view(desk: Desk) -> None:
    path = desk.file("app.db", "orders")
    await desk.follow(path)
    view = await view_of(desk.url, None)
    assert set(view.streams) == {StreamId("app")}
    assert [str(each.stream) for each in view.owners("orders")] == ["app"]
