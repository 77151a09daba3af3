"""What every storage promises, run on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolake.errors import Conflict, InvalidInput, NotFound, Unavailable
from dolake.storage.base import Storage
from dolake.storage.local import LocalStorage
from dolake.storage.s3 import S3Storage
from tests.support.blocking import wait_until
from tools.s3_server import S3Server


@pytest.fixture
def store(s3: S3Server) -> Iterator[S3Storage]:
    location = f"s3://{s3.new_bucket()}/ware house"
    store = S3Storage(location, s3.settings(location))
    yield store
    store.close()


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "ware house")
    store: S3Storage = request.getfixturevalue("store")
    return store


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


def test_a_folder_with_more_files_than_one_answer_names_is_listed_and_removed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dolake.storage.s3._AT_ONCE_MAX", 3)
    names = [f"{storage.root}/t/{number}" for number in range(8)]
    for name in names:
        storage.write(name, b"")
    assert [file.location for file in storage.list(f"{storage.root}/t")] == names
    storage.delete_folder(f"{storage.root}/t")
    assert not list(storage.list(storage.root))


def test_a_name_that_begins_like_a_folder_is_not_in_it(storage: Storage) -> None:
    for name in ("t/1", "t2/1"):
        storage.write(f"{storage.root}/{name}", b"")
    storage.delete_folder(f"{storage.root}/t")
    assert [file.location for file in storage.list(storage.root)] == [f"{storage.root}/t2/1"]
    assert not storage.is_inside(f"{storage.root}-beside/x")


def test_what_is_set_aside_is_out_of_sight_at_once(storage: Storage) -> None:
    storage.write(f"{storage.root}/t/1", b"")
    aside = storage.set_aside(f"{storage.root}/t")
    assert not list(storage.list(f"{storage.root}/t"))
    storage.delete_folder(aside)
    assert not list(storage.list(storage.root))


def test_many_files_are_deleted_at_once_and_missing_ones_are_no_error(storage: Storage) -> None:
    names = [f"{storage.root}/{number}" for number in range(3)]
    for name in names[:2]:
        storage.write(name, b"")
    storage.delete_all(names)
    assert not list(storage.list(storage.root))


@pytest.mark.parametrize("size", [0, 10, 300_000, 40_000_000])
def test_a_file_written_in_pieces_is_read_in_pieces(storage: Storage, size: int) -> None:
    location, data = f"{storage.root}/t/data/large", bytes(range(256)) * (size // 256 + 1)
    with storage.open_write(location) as file:
        for first in range(0, size, 3_000_000):
            file.write(data[first : min(first + 3_000_000, size)])
        assert file.tell() == size
    assert storage.size(location) == size
    with storage.open_read(location) as file:
        assert file.size() == size
        for start, count in ((0, 5), (size // 2, 2_000_000), (max(0, size - 7), 7), (3, 11), (size, 1)):
            file.seek(start)
            assert file.read(count) == data[start : min(start + count, size)]


def test_arrow_writes_and_reads_parquet(storage: Storage) -> None:
    rows = pa.table({"x": pa.array(range(100_000)), "s": [f"text {n}" for n in range(100_000)]})
    with storage.open_write(f"{storage.root}/a.parquet") as file:
        pq.write_table(rows, file)
    with storage.open_read(f"{storage.root}/a.parquet") as file:
        assert pq.ParquetFile(file).read(columns=["x"]).column("x").to_pylist()[-1] == 99_999


def test_a_file_that_is_not_there_can_be_opened_or_measured_by_nobody(storage: Storage) -> None:
    with pytest.raises(NotFound):
        storage.size(f"{storage.root}/none")
    with pytest.raises(NotFound):
        storage.open_read(f"{storage.root}/none")


def test_the_cold_place_is_beside_the_warehouse_and_kept_like_it(storage: Storage) -> None:
    cold = storage.tiers.cold
    assert cold == f"{storage.root}-cold"
    storage.make_folder(f"{cold}/ns/t/data")
    with storage.open_write(f"{cold}/ns/t/data/x") as file:
        file.write(b"old")
    assert storage.read(f"{cold}/ns/t/data/x") == b"old"
    assert storage.is_inside(f"{cold}/ns/t")
    assert [each.location for each in storage.list(f"{cold}/ns/t")] == [f"{cold}/ns/t/data/x"]
    assert list(storage.list(storage.root)) == []
    with pytest.raises(InvalidInput):
        storage.delete_folder(cold)


@pytest.mark.parametrize("size", [10, 17 * 1024 * 1024])
def test_cold_files_have_their_class_however_they_are_written(s3: S3Server, size: int) -> None:
    bucket, archive = s3.new_bucket(), s3.new_bucket()
    given = {"cold_location": f"r2://{archive}/old", "cold_class": "STANDARD_IA"}
    store = S3Storage(f"s3://{bucket}/w", s3.settings(f"s3://{bucket}/w", **given))
    for place in (f"s3://{bucket}/w", f"s3://{archive}/old"):
        with store.open_write(f"{place}/data/x") as file:
            file.write(b"x" * size)
        store.write(f"{place}/y", b"y")
    store.close()
    client = s3.client()
    for name, class_ in ((bucket, "STANDARD"), (archive, "STANDARD_IA")):
        found = client.list_objects_v2(Bucket=name)["Contents"]
        assert [(each["StorageClass"], each["Size"]) for each in found] == [(class_, size), (class_, 1)]
    client.close()


def test_the_same_file_has_one_name_a_second_and_the_last_bytes_win(s3: S3Server) -> None:
    location = f"s3://{s3.new_bucket()}/w"
    store, reader = (S3Storage(location, s3.settings(location)) for _ in range(2))
    before = s3.requests["PUT"]
    for number in range(50):
        store.replace(f"{location}/hint", str(number).encode())
    assert s3.requests["PUT"] - before == 1
    assert store.read(f"{location}/hint") == b"49"  # what this process wrote, it reads
    wait_until(lambda: reader.read(f"{location}/hint") == b"49")
    assert s3.requests["PUT"] - before == 2
    store.replace(f"{location}/hint", b"50")
    store.close()
    assert reader.read(f"{location}/hint") == b"50"
    reader.close()


def test_a_small_file_costs_one_request_to_write_and_one_to_read(s3: S3Server, store: S3Storage) -> None:
    before = s3.requests.total()
    with store.open_write(f"{store.root}/a.parquet") as file:
        pq.write_table(pa.table({"x": [1, 2]}), file)
    assert s3.requests.total() == before + 1
    with store.open_read(f"{store.root}/a.parquet") as file:
        assert pq.read_table(file).num_rows == 2
    assert s3.requests.total() == before + 2


def test_a_store_that_is_down_is_tried_again_and_then_said_to_be(s3: S3Server) -> None:
    location = f"s3://{s3.new_bucket()}/w"
    store = S3Storage(location, s3.settings(location, tries_max=2))
    before = s3.requests.total()
    s3.is_down = True
    try:
        with pytest.raises(Unavailable):
            store.write(f"{location}/x", b"1")
        assert s3.requests.total() == before + 2
    finally:
        s3.is_down = False
    store.write(f"{location}/x", b"1")
    store.close()


def test_a_write_whose_answer_was_lost_has_happened_once(s3: S3Server, store: S3Storage) -> None:
    s3.lose_answers = 1
    store.write(f"{store.root}/x", b"1")  # the second try finds the file of the first
    assert s3.lose_answers == 0
    with pytest.raises(Conflict):
        store.write(f"{store.root}/x", b"1")


def test_a_store_without_conditions_is_looked_at_before_a_write(s3: S3Server, store: S3Storage) -> None:
    s3.has_conditions = False
    try:
        store.write(f"{store.root}/x", b"1")
        with pytest.raises(Conflict):
            store.write(f"{store.root}/x", b"2")
    finally:
        s3.has_conditions = True
    assert store.read(f"{store.root}/x") == b"1"


def test_a_bucket_that_is_not_there_is_named_with_what_to_do(s3: S3Server) -> None:
    store = S3Storage("s3://nobody/w", s3.settings("s3://nobody/w"))
    with pytest.raises(Unavailable, match="NoSuchBucket") as caught:
        store.write("s3://nobody/w/x", b"1")
    assert "storage.location" in caught.value.hint
    store.close()


def test_every_spelling_of_a_place_in_a_store_means_the_same_file(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    store = S3Storage(f"r2://{bucket}/w", s3.settings(f"r2://{bucket}/w"))
    assert store.root == f"s3://{bucket}/w"
    store.write(f"r2://{bucket}/w/x", b"1")
    for location in (f"s3://{bucket}/w/x", f"s3a://{bucket}/w/x", f"r2://{bucket}/w/x"):
        assert store.read(location) == b"1"
        assert store.resolve(location) == f"s3://{bucket}/w/x"
    for location in (f"s3://{bucket}/other/x", f"s3://{bucket}/w/../x", "s3://elsewhere/w/x", "file:///w/x", "/w/x"):
        assert not store.is_inside(location)
        with pytest.raises(InvalidInput):
            store.read(location)
    with pytest.raises(InvalidInput):
        store.delete_folder(store.root)
    store.close()


def test_a_table_may_be_below_another_root_that_is_named(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    store = S3Storage(f"s3://{bucket}/w", s3.settings(f"s3://{bucket}/w"), [f"r2://{bucket}/shared"])
    store.write(f"s3://{bucket}/shared/t/x", b"1")
    assert [file.location for file in store.list(f"s3://{bucket}/shared")] == [f"s3://{bucket}/shared/t/x"]
    store.close()


def test_keys_come_from_the_settings_the_environment_or_a_profile(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id = theirs\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    given = {"access_key_id": "", "secret_access_key": ""}
    for more, key in (({}, "dolake-test-key"), (given, "mine"), (given | {"profile": "other"}, "theirs")):
        store = S3Storage("s3://b/w", s3.settings("s3://b/w", **more))
        assert store.keys().access_key_id == key
        assert key not in repr(store.keys())
        store.close()


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
