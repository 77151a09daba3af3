"""What every storage promises, run on each backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolake.errors import Conflict, InvalidInput, NotFound
from dolake.storage.base import Storage
from dolake.storage.local import LocalStorage


@pytest.fixture(params=["local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "ware house")


def test_what_was_written_is_read_back(storage: Storage) -> None:
    storage.write(f"{storage.root}/a/b.json", b"{}")
    assert storage.read(f"{storage.root}/a/b.json") == b"{}"
    assert storage.exists(f"{storage.root}/a/b.json")


def test_a_file_is_written_once(storage: Storage) -> None:
    storage.write(f"{storage.root}/x", b"1")
    with pytest.raises(Conflict):
        storage.write(f"{storage.root}/x", b"2")
    assert storage.read(f"{storage.root}/x") == b"1"


def test_a_file_can_be_replaced(storage: Storage) -> None:
    storage.replace(f"{storage.root}/hint", b"1")
    storage.replace(f"{storage.root}/hint", b"2")
    assert storage.read(f"{storage.root}/hint") == b"2"


def test_a_missing_file_is_not_found_and_may_be_deleted(storage: Storage) -> None:
    with pytest.raises(NotFound):
        storage.read(f"{storage.root}/none")
    assert not storage.exists(f"{storage.root}/none")
    storage.delete(f"{storage.root}/none")


def test_a_folder_is_listed_and_removed_as_a_whole(storage: Storage) -> None:
    for name in ("t/data/1", "t/metadata/2", "u/3"):
        storage.write(f"{storage.root}/{name}", b"abc")
    assert [file.location for file in storage.list(f"{storage.root}/t")] == [
        f"{storage.root}/t/data/1",
        f"{storage.root}/t/metadata/2",
    ]
    assert {file.size for file in storage.list(f"{storage.root}/t")} == {3}
    storage.delete_folder(f"{storage.root}/t")
    assert [file.location for file in storage.list(storage.root)] == [f"{storage.root}/u/3"]


def test_nothing_outside_the_warehouse_is_touched(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "warehouse")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "warehouse" / "link").symlink_to(tmp_path)
    for location in (f"{storage.root}/../secret", f"file://{tmp_path}/secret", f"{storage.root}/link/secret"):
        with pytest.raises(InvalidInput, match="outside the warehouse"):
            storage.read(location)
        with pytest.raises(InvalidInput):
            storage.write(location + "2", b"")
    with pytest.raises(InvalidInput):
        storage.delete_folder(storage.root)
    with pytest.raises(InvalidInput, match="not a local location"):
        storage.read("s3://bucket/key")


def test_every_spelling_of_a_location_means_the_same_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write(str(tmp_path / "x"), b"1")
    for location in (f"file:{tmp_path}/x", f"file://{tmp_path}/x", f"{tmp_path}/x"):
        assert storage.read(location) == b"1"


def test_a_place_has_one_spelling_links_followed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "warehouse")
    storage.write(f"{storage.root}/t/x", b"1")
    (tmp_path / "warehouse" / "link").symlink_to(tmp_path / "warehouse" / "t")
    (tmp_path / "warehouse" / "out").symlink_to(tmp_path)
    path = tmp_path / "warehouse"
    for location in (f"{storage.root}/t", f"{path}/t/", f"file:{path}//t", f"{path}/./link", f"{path}/none/../t"):
        assert storage.resolve(location) == f"{storage.root}/t"
    assert storage.resolve(f"{path}/link/new") == f"{storage.root}/t/new"
    for location in (f"{path}/out/x", "s3://bucket/t", f"{path}-beside"):
        with pytest.raises(InvalidInput):
            storage.resolve(location)
        assert not storage.is_inside(location)


def test_a_removed_folder_takes_nothing_with_it_that_its_links_lead_to(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "warehouse")
    for name in ("t/x", "other/x"):
        storage.write(f"{storage.root}/{name}", b"1")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "warehouse" / "t" / "link").symlink_to(tmp_path / "warehouse" / "other")
    (tmp_path / "warehouse" / "t" / "way-out").symlink_to(tmp_path)
    storage.delete_folder(f"{storage.root}/t")
    assert not storage.exists(f"{storage.root}/t/x")
    assert storage.read(f"{storage.root}/other/x") == b"1"
    assert (tmp_path / "mine").read_text() == "mine"
