"""What every catalog store promises, run on each backend."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from dolake.catalog.base import CatalogStore, Create, Kind, Move, Name, Pointer, Publish, Published, Remember
from dolake.catalog.errors import (
    AlreadyExists,
    CommitConflict,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    StaleGeneration,
)
from dolake.catalog.postgres import PostgresStore
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Damaged, DoLakeError
from tests.support.postgres import PostgresServer

SHOP = ("shop",)


@pytest.fixture(params=["sqlite", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CatalogStore]:
    """Opens one and the same store, again and again."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "catalog.db")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    schema = postgres.new_schema()
    return lambda: PostgresStore(postgres.url, schema)


@pytest.fixture
def store(reopen: Callable[[], CatalogStore]) -> Iterator[CatalogStore]:
    opened = reopen()
    yield opened
    opened.close()


def table(name: str, location: str = "m1", **fields: Any) -> Create:
    return Create(Name(SHOP, name), "table", f"uuid-{name}", location, **fields)


def view(name: str) -> Create:
    return Create(Name(SHOP, name), "view", f"uuid-{name}", "v1")


def entered(store: CatalogStore, *changes: Create) -> list[Pointer]:
    store.commit(changes)
    return [store.find(change.name, change.kind) for change in changes]


def answer_of(store: CatalogStore, key: str) -> dict[str, Any]:
    raw = store.recall_answer(key, now_ms=1)
    assert raw is not None
    answer: dict[str, Any] = json.loads(raw)
    return answer


def test_a_namespace_has_its_properties(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {"owner": "ann"})
    assert store.namespace_properties(SHOP) == {"owner": "ann"}
    assert store.update_namespace(SHOP, {"a": "1"}, ["owner", "none"]) == (["a"], ["owner"], ["none"])
    assert store.namespace_properties(SHOP) == {"a": "1"}


def test_a_namespace_exists_once(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    with pytest.raises(AlreadyExists, match="Namespace already exists: shop"):
        store.create_namespace(SHOP, {})


def test_a_nested_namespace_needs_its_parent_and_keeps_it_from_being_dropped(store: CatalogStore) -> None:
    with pytest.raises(NoSuchNamespace, match="Namespace does not exist: shop"):
        store.create_namespace(("shop", "eu"), {})
    store.create_namespace(SHOP, {})
    store.create_namespace(("shop", "eu"), {})
    with pytest.raises(NamespaceNotEmpty, match="is not empty"):
        store.drop_namespace(SHOP)
    store.drop_namespace(("shop", "eu"))
    store.drop_namespace(SHOP)
    with pytest.raises(NoSuchNamespace):
        store.namespace_properties(SHOP)


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_namespace_with_a_table_or_a_view_in_it_is_not_dropped(store: CatalogStore, kind: Kind) -> None:
    store.create_namespace(SHOP, {})
    store.commit([table("orders") if kind == "table" else view("orders")])
    with pytest.raises(NamespaceNotEmpty, match="is not empty"):
        store.drop_namespace(SHOP)
    assert store.find(Name(SHOP, "orders"), kind)
    store.drop(Name(SHOP, "orders"), kind)
    store.drop_namespace(SHOP)


def test_a_drop_takes_only_the_table_of_its_own_namespace(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.create_namespace(("old",), {})
    store.commit([table("orders")])
    store.rename(Name(SHOP, "orders"), Name(("old",), "orders"), "table")
    store.commit([table("orders")])
    store.drop(Name(SHOP, "orders"), "table")
    assert store.find(Name(("old",), "orders"), "table").uuid == "uuid-orders"


def test_listings_come_in_pages_that_join_without_gap_or_repeat(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.commit([table(f"t{number:02}") for number in range(7)])
    names, after = [], None
    while True:
        page = store.list_names(SHOP, "table", after, 3)
        names += page.items
        if page.next is None:
            break
        after = page.next
    assert names == [f"t{number:02}" for number in range(7)]
    assert store.list_names(SHOP, "table", None, None).items == names
    assert store.list_names(SHOP, "view", None, None).items == []
    assert store.list_namespaces((), None, None).items == ["shop"]


def test_a_table_and_a_view_cannot_share_a_name(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.commit([table("orders")])
    with pytest.raises(AlreadyExists, match=r"Table with same name already exists: shop\.orders"):
        store.commit([view("orders")])
    with pytest.raises(NoSuchView, match=r"View does not exist: shop\.orders"):
        store.find(Name(SHOP, "orders"), "view")


def test_a_pointer_moves_only_from_the_version_that_was_seen(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    (orders,) = entered(store, table("orders"))
    store.commit([Move(orders.name, "table", orders.version, "m2")])
    moved = store.find(orders.name, "table")
    assert (moved.metadata_location, moved.version) == ("m2", orders.version + 1)
    with pytest.raises(CommitConflict, match=r"Cannot commit shop\.orders"):
        store.commit([Move(orders.name, "table", orders.version, "m3")])
    assert store.find(orders.name, "table").metadata_location == "m2"


def test_a_commit_of_many_tables_moves_all_or_none(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    one, two = entered(store, table("one"), table("two"))
    with pytest.raises(CommitConflict):
        store.commit([Move(one.name, "table", one.version, "m2"), Move(two.name, "table", 99, "m2")])
    assert store.find(one.name, "table").metadata_location == "m1"
    with pytest.raises(NoSuchTable):
        store.commit([Move(one.name, "table", one.version, "m2"), Move(Name(SHOP, "none"), "table", 1, "m2")])
    assert store.find(one.name, "table").metadata_location == "m1"


def test_a_publish_moves_the_position_with_the_pointers_or_neither(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    (orders,) = entered(store, table("orders", is_managed=True))
    generation = store.begin_generation().generation
    store.commit([Move(orders.name, "table", 1, "m2")], Publish(0, 100, generation, 5))
    assert store.published().position == 100
    with pytest.raises(CommitConflict, match="the lake is at 100"):
        store.commit([Move(orders.name, "table", 2, "m3")], Publish(0, 200, generation, 6))
    assert store.find(orders.name, "table").metadata_location == "m2"
    assert store.find(orders.name, "table").is_managed


def test_a_pipeline_that_was_replaced_cannot_publish(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    old = store.begin_generation().generation
    new = store.begin_generation().generation
    assert new > old
    with pytest.raises(StaleGeneration, match=f"generation {old} was replaced by {new}"):
        store.commit([table("orders")], Publish(0, 1, old, 1))
    with pytest.raises(NoSuchTable):
        store.find(Name(SHOP, "orders"), "table")


def test_renaming_moves_a_table_and_refuses_a_name_that_is_taken(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.create_namespace(("old",), {})
    store.commit([table("one"), table("two"), view("seen")])
    store.rename(Name(SHOP, "one"), Name(("old",), "one"), "table")
    assert store.find(Name(("old",), "one"), "table").uuid == "uuid-one"
    with pytest.raises(AlreadyExists, match=r"Cannot rename shop\.two to shop\.seen\. View already exists"):
        store.rename(Name(SHOP, "two"), Name(SHOP, "seen"), "table")
    with pytest.raises(NoSuchNamespace):
        store.rename(Name(SHOP, "two"), Name(("none",), "two"), "table")
    with pytest.raises(NoSuchTable):
        store.rename(Name(SHOP, "one"), Name(SHOP, "three"), "table")


def test_a_dropped_table_is_gone_and_its_name_is_free(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.commit([table("orders")])
    assert store.drop(Name(SHOP, "orders"), "table").metadata_location == "m1"
    with pytest.raises(NoSuchTable, match=r"Table does not exist: shop\.orders"):
        store.drop(Name(SHOP, "orders"), "table")
    store.commit([view("orders")])


def test_an_answer_is_remembered_until_its_time(store: CatalogStore) -> None:
    store.keep_answer("k", b"answer", until_ms=100)
    assert store.recall_answer("k", now_ms=99) == b"answer"
    assert store.recall_answer("k", now_ms=100) is None
    assert store.recall_answer("other", now_ms=1) is None


@pytest.mark.parametrize(
    ("change", "status", "location"),
    [
        (lambda store, key: store.create_namespace(("new",), {}, key), 204, None),
        (lambda store, key: store.drop_namespace(("empty",), key), 204, None),
        (lambda store, key: store.commit([table("new", "m7")], None, key), 200, "m7"),
        (lambda store, key: store.commit([Move(Name(SHOP, "t"), "table", 1, "m8")], None, key), 200, "m8"),
        (lambda store, key: store.commit([Move(Name(SHOP, "t"), "table", 1, "m8")], None, key), 204, None),
        (lambda store, key: store.drop(Name(SHOP, "t"), "table", key), 204, None),
        (lambda store, key: store.drop(Name(SHOP, "t"), "table", key), 200, "m1"),
        (lambda store, key: store.drop(Name(SHOP, "v"), "view", key), 204, None),
        (lambda store, key: store.rename(Name(SHOP, "t"), Name(SHOP, "u"), "table", key), 204, None),
    ],
)
def test_an_answer_is_kept_with_what_it_changed_and_not_without(
    store: CatalogStore, change: Callable[[CatalogStore, Remember], Any], status: int, location: str | None
) -> None:
    store.create_namespace(SHOP, {})
    store.create_namespace(("empty",), {})
    store.commit([table("t"), view("v")])
    change(store, Remember("first", 100, status))
    assert answer_of(store, "first")["status"] == status
    assert answer_of(store, "first")["location"] == location
    with pytest.raises(DoLakeError):  # what it needs is not there any more
        change(store, Remember("second", 100, status))
    assert store.recall_answer("second", now_ms=1) is None


def test_an_answer_with_a_body_is_kept_as_it_is(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {}, Remember("k", 100, 200, b'{"a":1}'))
    assert base64.b64decode(answer_of(store, "k")["body"]) == b'{"a":1}'
    assert answer_of(store, "k")["location"] is None


def test_a_name_becomes_another_table_at_once_and_only_from_the_version_that_was_seen(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    (orders,) = entered(store, table("orders", is_managed=True, folders=("a",)))
    other = Move(orders.name, "table", orders.version, "m9", is_managed=False, folders=("b",), uuid="uuid-other")
    store.commit([other])
    found = store.find(orders.name, "table")
    assert found == Pointer(orders.name, "table", "uuid-other", "m9", orders.version + 1, False, ("b",))
    with pytest.raises(CommitConflict):
        store.commit([other])


def test_every_pointer_is_listed_with_where_its_files_lie(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    managed = table("managed", "m2", is_managed=True, folders=("file:///w/ü", "file:///w/b"))
    assert store.pointers() == store.pointers(is_managed=True) == []
    store.commit([table("own"), managed, view("seen")])
    by_name = {pointer.name.name: pointer for pointer in store.pointers()}
    assert {name: pointer.folders for name, pointer in by_name.items()} == {
        "own": (), "managed": ("file:///w/ü", "file:///w/b"), "seen": (),
    }  # fmt: skip
    assert store.pointers(is_managed=True) == [by_name["managed"]] == [store.find(managed.name, "table")]
    store.commit([Move(managed.name, "table", 1, "m3")])
    assert store.find(managed.name, "table").folders == managed.folders


def test_a_metadata_file_is_pointed_at_as_long_as_one_name_has_it(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    store.commit([table("first", "same"), table("second", "same")])
    store.commit([Move(Name(SHOP, "first"), "table", 1, "m2")])
    assert store.is_pointed_at("same")
    store.drop(Name(SHOP, "second"), "table")
    assert not store.is_pointed_at("same")
    assert not store.is_pointed_at("none")
    assert store.is_pointed_at("m2")


def test_positions_and_times_of_publishes_are_found_from_each_other(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    generation = store.begin_generation().generation
    assert store.time_of(100) is None
    assert store.position_at(100) is None
    store.commit([table("t")], Publish(0, 10, generation, 1000))
    store.commit([Move(Name(SHOP, "t"), "table", 1, "m2")], Publish(10, 25, generation, 2000))
    assert [store.time_of(position) for position in (0, 9, 10, 24, 25, 99)] == [None, None, 1000, 1000, 2000, 2000]
    assert [store.position_at(time_ms) for time_ms in (0, 999, 1000, 1999, 2000, 9999)] == [None, None, 10, 10, 25, 25]


def test_a_thousand_reads_during_publishes_never_see_half_of_one(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    names = [Name(SHOP, f"t{number}") for number in range(3)]
    store.commit([Create(name, "table", str(name), "0", is_managed=True) for name in names])
    generation = store.begin_generation().generation
    done = threading.Event()

    def publish() -> int:
        position = 0
        while not done.is_set():
            moves = [Move(name, "table", position + 1, str(position + 1)) for name in names]
            store.commit(moves, Publish(position, position + 1, generation, 1))
            position += 1
        return position

    def read() -> None:
        for _ in range(250):
            pointers, published = store.snapshot(names)
            assert {pointer.metadata_location for pointer in pointers} == {str(published.position)}

    with ThreadPoolExecutor(5) as threads:
        publishing = threads.submit(publish)
        try:
            for reading in [threads.submit(read) for _ in range(4)]:
                reading.result()
        finally:
            done.set()
        assert publishing.result() > 0


def test_sixteen_committers_to_one_table_lose_no_update(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    (orders,) = entered(store, table("orders"))

    def commit(number: int) -> int:
        won = 0
        for _ in range(10):
            while True:
                seen = store.find(orders.name, "table")
                try:
                    store.commit([Move(orders.name, "table", seen.version, f"{number}")])
                except CommitConflict:
                    continue
                won += 1
                break
        return won

    with ThreadPoolExecutor(16) as threads:
        wins = sum(threads.map(commit, range(16)))
    assert store.find(orders.name, "table").version == orders.version + wins == 161


def test_what_was_committed_is_there_after_reopening(reopen: Callable[[], CatalogStore]) -> None:
    first = reopen()
    first.create_namespace(SHOP, {"a": "1"})
    first.commit([table("orders")])
    first.close()
    second = reopen()
    assert second.find(Name(SHOP, "orders"), "table").metadata_location == "m1"
    second.close()


def test_a_file_of_the_first_release_is_brought_up_to_date_with_all_that_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    first = resources.files("dolake.catalog").joinpath("sql/0001_initial.sql").read_text()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(first)
        connection.execute("""INSERT INTO namespaces VALUES ('shop', '', '{"owner":"ann"}')""")
        connection.execute("INSERT INTO pointers VALUES ('shop', 'orders', 'table', 'uuid-orders', 'm1', 7, 1)")
        connection.execute("UPDATE published SET position = 5, generation = 2, at_ms = 9")
        connection.execute("INSERT INTO publishes VALUES (5, 9)")
        connection.commit()
        connection.execute("PRAGMA user_version = 1")
    for _ in range(2):  # the second time there is nothing to do
        store = SqliteStore(path)
        assert store.namespace_properties(SHOP) == {"owner": "ann"}
        orders = Pointer(Name(SHOP, "orders"), "table", "uuid-orders", "m1", 7, is_managed=True, folders=())
        assert store.pointers() == store.pointers(is_managed=True) == [orders]
        assert store.published() == Published(5, 2, 9)
        assert store.time_of(5) == 9
        store.close()
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        assert version == 3
    store = SqliteStore(path)
    store.commit([Move(orders.name, "table", 7, "m2", folders=("a",))])
    assert store.find(orders.name, "table").folders == ("a",)
    store.close()


def test_a_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Damaged, match="catalog version 99"):
        SqliteStore(path)
