"""Partition figures of tables whose metadata cannot be trusted, because somebody else wrote it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, MissingFile
from dolake.catalog.partitions import partition_stats
from dolake.errors import InvalidInput
from dolake.storage.local import LocalStorage, path_of


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "warehouse")


def written_table(folder: Path) -> Document:
    """A table of three rows, by PyIceberg."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("test", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    catalog.close()
    return Document(table.metadata_location, path_of(table.metadata_location).read_bytes())


def forged(document: Document, **changes: Any) -> Document:
    return Document(document.location, json.dumps(document.metadata | changes).encode())


def with_manifest_list(document: Document, location: str) -> Document:
    (snapshot,) = document.metadata["snapshots"]
    return forged(document, snapshots=[snapshot | {"manifest-list": location}])


def test_figures_are_counted_from_the_manifests(storage: LocalStorage, tmp_path: Path) -> None:
    (entry,) = partition_stats(written_table(tmp_path / "warehouse"), storage)
    assert (entry["rowCount"], entry["fileCount"]) == (3, 1)


def many_partitions(folder: Path, count: int) -> Document:
    """A table with a file in each of many days, and some in buckets of a later spec; the files are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("test", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    schema = Schema(NestedField(1, "at", TimestamptzType()), NestedField(2, "id", LongType()))
    by_day = PartitionSpec(PartitionField(1, 1000, DayTransform(), "dt"))
    table = catalog.create_table("shop.t", schema, partition_spec=by_day)

    def append(*partitions: Record) -> None:
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as files:
            for number, partition in enumerate(partitions):
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"{table.location()}/data/{number}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=partition,
                    record_count=10,
                    file_size_in_bytes=100,
                )
                file.spec_id = table.spec().spec_id
                files.append_data_file(file)

    append(*(Record(day) for day in range(count)))
    with table.update_spec() as update:
        update.remove_field("dt")
        update.add_field("id", BucketTransform(4), "bucket")
    append(Record(3), Record(3), Record(None))
    catalog.close()
    return Document(table.metadata_location, path_of(table.metadata_location).read_bytes())


def test_partitions_of_several_specs_are_counted_apart(storage: LocalStorage, tmp_path: Path) -> None:
    found = {entry["name"]: entry for entry in partition_stats(many_partitions(tmp_path / "warehouse", 3), storage)}
    assert {name: (each["specId"], each["fileCount"], each["rowCount"]) for name, each in found.items()} == {
        "dt=1970-01-01": (0, 1, 10),
        "dt=1970-01-02": (0, 1, 10),
        "dt=1970-01-03": (0, 1, 10),
        "bucket=3": (1, 2, 20),
        "bucket=null": (1, 1, 10),
    }
    assert found["bucket=3"]["partition"] == {"bucket": 3}
    assert found["bucket=3"]["lastUpdatedMs"] >= found["dt=1970-01-01"]["lastUpdatedMs"]


def test_a_partition_whose_last_snapshot_is_gone_was_changed_by_the_next_one_at_the_latest(
    storage: LocalStorage, tmp_path: Path
) -> None:
    document = many_partitions(tmp_path / "warehouse", 1)
    first, last = document.metadata["snapshots"]
    thinned = forged(document, snapshots=[last])
    found = {entry["name"]: entry for entry in partition_stats(thinned, storage)}
    assert found["dt=1970-01-01"]["lastUpdatedSnapshotId"] == last["snapshot-id"]
    assert found["dt=1970-01-01"]["lastUpdatedMs"] == last["timestamp-ms"]
    whole = {entry["name"]: entry for entry in partition_stats(document, storage)}
    assert whole["dt=1970-01-01"]["lastUpdatedMs"] == first["timestamp-ms"]


def test_ten_thousand_partitions_are_listed_in_no_time(storage: LocalStorage, tmp_path: Path) -> None:
    document = many_partitions(tmp_path / "warehouse", 10_000)
    began_s = time.process_time()
    assert len(partition_stats(document, storage)) == 10_002
    assert time.process_time() - began_s < 5.0  # half a second, where nobody else is at work


def test_manifests_outside_the_warehouse_are_not_read(storage: LocalStorage, tmp_path: Path) -> None:
    outside = written_table(tmp_path / "elsewhere")
    inside = written_table(tmp_path / "warehouse")
    link = tmp_path / "warehouse" / "link.avro"
    theirs = outside.metadata["snapshots"][0]["manifest-list"]
    link.symlink_to(path_of(theirs))
    for location in (theirs, "/etc/hostname", f"file://{link}", "s3://bucket/x.avro", "https://example.org/x.avro"):
        with pytest.raises(InvalidInput):
            partition_stats(with_manifest_list(inside, location), storage)
    own_list = tmp_path / "warehouse" / "own.avro"
    own_list.write_bytes(path_of(theirs).read_bytes())  # the list is inside, and names manifests that are not
    with pytest.raises(InvalidInput, match="outside the warehouse"):
        partition_stats(with_manifest_list(inside, f"file://{own_list}"), storage)


def test_a_missing_manifest_is_a_missing_file(storage: LocalStorage, tmp_path: Path) -> None:
    document = written_table(tmp_path / "warehouse")
    (list_path,) = [path_of(each["manifest-list"]) for each in document.metadata["snapshots"]]
    for manifest in list_path.parent.glob("*-m0.avro"):
        manifest.unlink()
    with pytest.raises(MissingFile, match="a manifest of the table is missing"):
        partition_stats(document, storage)
    list_path.unlink()
    with pytest.raises(MissingFile, match="a manifest of the table is missing"):
        partition_stats(document, storage)


def test_no_class_is_loaded_that_a_tables_properties_name(storage: LocalStorage, tmp_path: Path) -> None:
    document = written_table(tmp_path / "warehouse")
    properties = {"py-io-impl": "tests.catalog.no_such_module.Evil"}
    (entry,) = partition_stats(forged(document, properties=properties), storage)
    assert entry["rowCount"] == 3


def test_a_manifest_list_with_a_text_of_negative_length_is_refused(storage: LocalStorage, tmp_path: Path) -> None:
    document = written_table(tmp_path / "warehouse")
    path = path_of(document.metadata["snapshots"][0]["manifest-list"])
    good = path.read_bytes()
    assert good[:4] == b"Obj\x01"
    path.write_bytes(good[:5] + b"\x03" + good[6:])  # the name of the header's first entry is -2 long
    with pytest.raises(IllegalArgument, match="cannot be read"):
        partition_stats(document, storage)


def test_broken_manifests_are_refused_and_a_broken_disk_is_not_their_fault(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = written_table(tmp_path / "warehouse")
    path, chance = path_of(document.metadata["snapshots"][0]["manifest-list"]), random.Random(1)
    good, refused = path.read_bytes(), 0
    for _ in range(200):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        path.write_bytes(bad[: chance.randrange(len(bad))] if chance.random() < 0.3 else bad)
        try:
            partition_stats(document, storage)
        except (IllegalArgument, InvalidInput, MissingFile):
            refused += 1
    assert refused > 50
    path.write_bytes(good)

    def fail(_location: str) -> bytes:
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(storage, "read", fail)
    with pytest.raises(PermissionError):
        partition_stats(document, storage)
