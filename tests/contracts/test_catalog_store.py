"""What every catalog store promises, run on each backend."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dolake.catalog.base import CatalogStore, Create, Move, Name, Publish
from dolake.catalog.errors import (
    AlreadyExists,
    CommitConflict,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    StaleGeneration,
)
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Damaged

SHOP = ("shop",)


@pytest.fixture(params=["sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogStore]:
    opened = SqliteStore(tmp_path / "catalog.db")
    yield opened
    opened.close()


def table(name: str, location: str = "m1", **fields: bool) -> Create:
    return Create(Name(SHOP, name), "table", f"uuid-{name}", location, **fields)


def view(name: str) -> Create:
    return Create(Name(SHOP, name), "view", f"uuid-{name}", "v1")


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
    (orders,) = store.commit([table("orders")])
    (moved,) = store.commit([Move(orders.name, "table", orders.version, "m2")])
    assert (moved.metadata_location, moved.version) == ("m2", orders.version + 1)
    with pytest.raises(CommitConflict, match=r"Cannot commit shop\.orders"):
        store.commit([Move(orders.name, "table", orders.version, "m3")])
    assert store.find(orders.name, "table").metadata_location == "m2"


def test_a_commit_of_many_tables_moves_all_or_none(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    one, two = store.commit([table("one"), table("two")])
    with pytest.raises(CommitConflict):
        store.commit([Move(one.name, "table", one.version, "m2"), Move(two.name, "table", 99, "m2")])
    assert store.find(one.name, "table").metadata_location == "m1"
    with pytest.raises(NoSuchTable):
        store.commit([Move(one.name, "table", one.version, "m2"), Move(Name(SHOP, "none"), "table", 1, "m2")])
    assert store.find(one.name, "table").metadata_location == "m1"


def test_a_publish_moves_the_position_with_the_pointers_or_neither(store: CatalogStore) -> None:
    store.create_namespace(SHOP, {})
    (orders,) = store.commit([table("orders", is_managed=True)])
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
    (orders,) = store.commit([table("orders")])

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


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "catalog.db")
    first.create_namespace(SHOP, {"a": "1"})
    first.commit([table("orders")])
    first.close()
    second = SqliteStore(tmp_path / "catalog.db")
    assert second.find(Name(SHOP, "orders"), "table").metadata_location == "m1"
    second.close()


def test_a_file_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Damaged, match="catalog version 99"):
        SqliteStore(path)
