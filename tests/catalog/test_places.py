"""Whose files lie where: a purge takes nobody else's, and nobody gets among those of a managed table."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dolake.catalog.base import Name, Pointer
from dolake.catalog.documents import Document, Documents
from dolake.catalog.errors import ManagedTable, NoSuchTable
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.tables import TableCommit, Tables
from dolake.catalog.tenants import check_paths, check_places
from dolake.catalog.views import Views
from dolake.errors import Forbidden, InvalidInput, NotFound
from dolake.identity.grants import EVERYTHING, Grant
from dolake.storage.local import LocalStorage, path_of
from tests.catalog.asking import set_properties, table_body, view_body

SHOP = ("shop",)


class Shop:
    """Tables and views on a real store and a real folder."""

    def __init__(self, home: Path) -> None:
        self.home, self.warehouse = home, home / "warehouse"
        self.store = SqliteStore(home / "catalog.db")
        self.documents = Documents(LocalStorage(self.warehouse))
        self.tables = Tables(self.store, self.documents, lambda: time.time_ns() // 1_000_000)
        self.views = Views(self.store, self.documents, lambda: time.time_ns() // 1_000_000)
        self.store.create_namespace(SHOP, {})

    def create(self, name: str, **fields: Any) -> Document:
        document, _ = self.tables.create(Name(SHOP, name), table_body(name, **fields), is_pipeline=False)
        assert document
        return document

    def managed(self, name: str) -> Document:
        self.create(name)
        return self.tables.adopt(Name(SHOP, name))

    def commit(self, name: str, *updates: dict[str, Any]) -> Document:
        (document,) = self.tables.commit([TableCommit(Name(SHOP, name), [], list(updates))], is_pipeline=False)
        return document

    def register(self, name: str, location: str, *, is_overwriting: bool = False) -> Document:
        return self.tables.register(Name(SHOP, name), location, is_overwriting=is_overwriting)

    def purge(self, name: str) -> None:
        self.tables.drop(Name(SHOP, name), is_purging=True, is_forced=False)

    def forge(self, document: Document, **changes: Any) -> str:
        """The metadata of a table as somebody else could write it, in a folder of its own."""
        file = self.warehouse / "forged" / f"{time.monotonic_ns()}.metadata.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(document.metadata | changes))
        return f"file://{file}"

    def close(self) -> None:
        self.tables.close()
        self.store.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path)
    yield opened
    opened.close()


def data_file(folder: Path) -> Path:
    file = folder / "data" / "f.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"rows")
    return file


# --- purge -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "/deeper", "/data"])
def test_a_purge_spares_the_data_of_a_table_whose_metadata_lies_elsewhere(shop: Shop, part: str) -> None:
    gone = shop.create("gone").metadata["location"]
    shop.create("other", location=f"{gone}{part}", properties={"write.metadata.path": f"{shop.warehouse}/meta"})
    rows = data_file(path_of(f"{gone}{part}"))
    shop.purge("gone")
    assert rows.read_bytes() == b"rows"
    shop.purge("other")
    assert not rows.exists()


@pytest.mark.parametrize("key", ["write.data.path", "write.object-storage.path", "write.folder-storage.path"])
def test_a_purge_spares_the_data_that_another_table_keeps_there(shop: Shop, key: str) -> None:
    gone = shop.create("gone").metadata["location"]
    shop.create("other")
    shop.commit("other", set_properties(**{key: f"{gone}/lent"}))
    rows = data_file(path_of(f"{gone}/lent"))
    shop.purge("gone")
    assert rows.exists()


def test_a_purge_spares_a_folder_that_is_a_part_of_another_tables(shop: Shop) -> None:
    outer = shop.create("outer").metadata["location"]
    shop.create("inner", location=f"{outer}/data")
    rows = data_file(path_of(outer))
    shop.purge("inner")
    assert rows.exists()
    shop.purge("outer")
    assert not path_of(outer).exists()


def test_a_purge_takes_a_tables_cold_files_and_nobody_elses(shop: Shop) -> None:
    gone, other = (shop.create(name).metadata["location"] for name in ("gone", "other"))
    cold, kept = (data_file(path_of(shop.documents.storage.tiers.folder(each, "cold"))) for each in (gone, other))
    shop.purge("gone")
    assert (cold.exists(), kept.exists()) == (False, True)


def test_nobody_writes_among_the_cold_files_of_a_managed_table(shop: Shop) -> None:
    managed = shop.managed("managed").metadata["location"]
    place = shop.documents.storage.tiers.folder(managed, "cold")
    shop.create("own")
    with pytest.raises(InvalidInput):
        shop.create("new", location=place)
    with pytest.raises(ManagedTable):
        shop.commit("own", set_properties(**{"write.data.path": f"{place}/data"}))


def test_a_token_of_a_namespace_reads_its_files_in_both_places(shop: Shop) -> None:
    storage, grant = shop.documents.storage, Grant("1", "tenant", namespaces=(SHOP,))
    check_paths(storage, grant, [f"{root}/shop/t/data/f.parquet" for root in (storage.root, storage.tiers.cold)])
    for place in ("other/t/data/f.parquet", "~elsewhere/1/data/f.parquet", "shopping/t/f.parquet"):
        with pytest.raises(Forbidden):
            check_paths(storage, grant, [f"{storage.tiers.cold}/{place}"])


@pytest.mark.parametrize(
    "key",
    [
        "location",
        "metadata-location",
        "metadata-file",
        "manifest-list",
        "manifests",
        "statistics-path",
        "write.metadata.path",
        "write.data.path",
        "write.object-storage.path",
        "write.folder-storage.path",
    ],
)
def test_a_place_of_another_tenant_is_refused_wherever_a_document_names_it(shop: Shop, key: str) -> None:
    storage, grant = shop.documents.storage, Grant("1", "tenant", namespaces=(SHOP,))
    own = f"{storage.root}/shop/t/f"
    refused: list[Any] = [f"{storage.root}/shopping/t/f", f"{storage.root}/f", [own, f"{storage.root}/other/f"], 5, {}]
    refused = [each for each in refused if each != {}] + ["s3://bucket/shop/t/f", "file://%00", "\0"]
    around: list[Callable[[Any], Any]] = [
        lambda value: {key: value},
        lambda value: [{"updates": [[{"snapshot": {key: value}}]]}],
    ]
    for document in around:
        check_places(storage, grant, document(own))
        check_places(storage, grant, document([own, own]))
        for value in refused:
            check_places(storage, EVERYTHING, document(value))
            with pytest.raises(Forbidden):
                check_places(storage, grant, document(value))


def test_a_purge_is_not_led_to_others_by_links(shop: Shop, tmp_path: Path) -> None:
    victim = shop.create("victim").metadata["location"]
    rows, mine = data_file(path_of(victim)), data_file(tmp_path / "mine")
    link = shop.warehouse / "link"
    link.symlink_to(path_of(victim))
    shop.create("sly", location=f"file://{link}", properties={"write.metadata.path": f"{shop.warehouse}/meta"})
    shop.purge("sly")
    assert rows.exists()
    sly = path_of(shop.create("sly2").metadata["location"])
    (sly / "way-out").symlink_to(mine.parent)
    shop.purge("sly2")
    assert not sly.exists()
    assert mine.exists()
    moved = path_of(shop.create("sly3").metadata["location"])
    moved.rename(tmp_path / "moved")
    moved.symlink_to(tmp_path / "moved")
    with pytest.raises(Exception, match="outside"):
        shop.tables.load(Name(SHOP, "sly3"))
    shop.purge("sly3")
    assert list((tmp_path / "moved").rglob("*.metadata.json"))


def test_a_purge_spares_a_view_and_what_an_older_release_entered(shop: Shop, tmp_path: Path) -> None:
    gone = shop.create("gone").metadata["location"]
    shop.create("old", location=f"{gone}/old", properties={"write.metadata.path": f"{shop.warehouse}/meta"})
    rows = data_file(path_of(f"{gone}/old"))
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection, connection:
        connection.execute("UPDATE pointers SET folders = '[]'")
    shop.purge("gone")
    assert rows.exists()
    second = shop.create("second").metadata["location"]
    view = shop.views.create(Name(SHOP, "v"), view_body(location=f"{second}/v"))
    shop.purge("second")
    assert path_of(view.location).exists()


def test_a_table_whose_file_is_gone_does_not_keep_others_from_being_purged(shop: Shop, tmp_path: Path) -> None:
    path_of(shop.create("broken").location).unlink()
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection, connection:
        connection.execute("UPDATE pointers SET folders = '[]'")
    folder = path_of(shop.create("fine").metadata["location"])
    shop.purge("fine")
    assert not folder.exists()


@pytest.mark.parametrize("moment", [1, 2])
def test_a_table_that_is_registered_during_a_purge_of_its_folder_is_whole_or_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    location, listed, calls = shop.create("gone").location, shop.store.pointers, itertools.count(1)
    with ThreadPoolExecutor(1) as threads:
        registering: list[Future[Document]] = []

        def register_meanwhile(*, is_managed: bool = False) -> list[Pointer]:
            found = listed(is_managed=is_managed)
            if not is_managed and next(calls) == moment:
                registering.append(threads.submit(shop.register, "twin", location))
                wait(registering, 0.1)
            return found

        monkeypatch.setattr(shop.store, "pointers", register_meanwhile)
        shop.purge("gone")
        is_refused = isinstance(registering[0].exception(), NotFound)
    assert is_refused is (moment == 2)
    assert path_of(location).exists() is not is_refused
    assert bool(listed()) is not is_refused


def test_many_who_create_and_purge_at_once_do_not_wait_for_each_other_for_ever(shop: Shop) -> None:
    def work(number: int) -> None:
        for _ in range(15):
            shop.create(f"t{number}")
            shop.commit(f"t{number}", set_properties(a="1"))
            shop.purge(f"t{number}")

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12), timeout=60))
    assert [path for path in shop.warehouse.rglob("*") if path.is_file()] == []


# --- managed tables --------------------------------------------------------------------------------------------------


def test_a_managed_table_has_one_name(shop: Shop) -> None:
    managed = shop.managed("managed")
    elsewhere = shop.forge(managed, location=f"{shop.warehouse}/elsewhere", properties={})
    other_uuid = shop.forge(managed, **{"table-uuid": "00000000-0000-0000-0000-000000000000", "properties": {}})
    loud = shop.forge(managed, **{"table-uuid": managed.metadata["table-uuid"].upper(), "properties": {}})
    shop.create("own")
    for location in (managed.location, elsewhere, other_uuid, loud):
        for name, is_overwriting in (("twin", False), ("own", True)):
            with pytest.raises(ManagedTable, match=r"shop\.managed, which is managed by DoLake") as caught:
                shop.register(name, location, is_overwriting=is_overwriting)
            assert caught.value.hint
    with pytest.raises(NoSuchTable):
        shop.tables.find(Name(SHOP, "twin"))
    shop.tables.drop(Name(SHOP, "managed"), is_purging=False, is_forced=True)
    assert shop.register("again", managed.location).metadata == managed.metadata


@pytest.mark.parametrize("spelling", ["{0}", "file:{0}", "{1}//{2}", "{1}/link", "{0}/metadata", "{0}/data/x"])
def test_nobody_writes_among_the_files_of_a_managed_table(shop: Shop, spelling: str) -> None:
    path = path_of(shop.managed("managed").metadata["location"])
    (path.parent / "link").symlink_to(path)
    place = spelling.format(path, path.parent, path.name)
    shop.create("own")
    with pytest.raises(ManagedTable):
        shop.create("new", location=place)
    with pytest.raises(ManagedTable):
        shop.create("new", location=place, stage_create=True)
    with pytest.raises(ManagedTable):
        shop.commit("own", {"action": "set-location", "location": place})
    for key in ("write.metadata.path", "write.data.path"):
        with pytest.raises(ManagedTable):
            shop.commit("own", set_properties(**{key: place}))
    shop.commit("own", set_properties(a="1"))
    shop.commit("managed", set_properties(a="1"))


def test_a_nested_namespace_may_lie_beside_the_files_of_a_managed_table(shop: Shop) -> None:
    location = shop.managed("managed").metadata["location"]
    shop.store.create_namespace(("shop", "managed"), {})
    made, _ = shop.tables.create(Name(("shop", "managed"), "inner"), table_body("inner"), is_pipeline=False)
    assert made
    assert made.metadata["location"].startswith(f"{location}/")


# --- register over a table -------------------------------------------------------------------------------------------


def test_a_table_that_is_replaced_by_another_is_never_missing(shop: Shop) -> None:
    files = [shop.create(name).location for name in ("a", "b")]
    shop.create("t")
    is_done, misses = threading.Event(), []

    def look() -> None:
        while not is_done.is_set():
            try:
                shop.tables.load(Name(SHOP, "t"))
            except NoSuchTable as error:
                misses.append(error)

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        for number in range(100):
            shop.register("t", files[number % 2], is_overwriting=True)
        is_done.set()
        looking.result()
    assert misses == []
    replaced = shop.tables.find(Name(SHOP, "t"))
    assert replaced.metadata_location == files[1]
    assert replaced.uuid == shop.tables.find(Name(SHOP, "b")).uuid


def test_registering_over_nothing_enters_a_table(shop: Shop) -> None:
    file = shop.create("a").location
    assert shop.register("b", file, is_overwriting=True).location == file


# --- locks -----------------------------------------------------------------------------------------------------------


def test_locks_of_names_that_nobody_uses_are_gone(shop: Shop) -> None:
    for number in range(20):
        shop.create(f"t{number}")
        shop.commit(f"t{number}", set_properties(a="1"))
        with pytest.raises(NoSuchTable):
            shop.commit(f"none{number}", set_properties(a="1"))
        shop.tables.rename(Name(SHOP, f"t{number}"), Name(SHOP, f"u{number}"))
        shop.purge(f"u{number}")
    assert len(shop.tables._locks) == 0


def test_a_lock_is_one_for_all_who_wait_for_it() -> None:
    from dolake.catalog.locks import NameLocks

    locks, inside, most = NameLocks(), 0, 0
    names = [Name(SHOP, each) for each in "abc"]

    def work(number: int) -> None:
        nonlocal inside, most
        for _ in range(200):
            with locks.hold([names[1], names[number % 3]]):
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert (most, len(locks)) == (1, 0)
