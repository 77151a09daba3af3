"""Damage to the key index, one kind at a time. The table is sound each time, so nothing else may be named."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dolake.keyindex import Block, Changes, KeyIndex, hash_keys
from dolake.keyindex.disk import Disk
from dolake.keyindex.manifest import INDEX, load_manifest, store_manifest
from tests.verify.lake import HandLake, check_of, differing

STATE = "default.items"


@pytest.fixture
def folder(lake: HandLake) -> Path:
    return lake.index_folder(STATE)


def differences(lake: HandLake) -> list[str]:
    report = lake.verify()
    assert differing(report) == {"index"}
    return check_of(report, "index").differences


def staged(lake: HandLake, changes: Changes) -> KeyIndex:
    """An index of the right snapshot that has one change too many."""
    index = lake.index("items")
    snapshot_id = index.snapshot_id
    assert snapshot_id is not None
    index.stage(changes, snapshot_id + 1)
    index.promote()
    manifest = load_manifest(lake.index_folder(STATE) / INDEX)
    assert manifest is not None
    store_manifest(lake.index_folder(STATE) / INDEX, msgspec.structs.replace(manifest, snapshot_id=snapshot_id), Disk())
    return index


def test_an_index_that_is_missing_is_named(lake: HandLake, folder: Path) -> None:
    shutil.rmtree(folder)
    (what,) = differences(lake)
    assert what.startswith("there is no key index of snapshot ")


def test_an_index_of_an_older_snapshot_is_named(lake: HandLake) -> None:
    lake.commit(STATE, has_index=False)
    (what,) = differences(lake)
    assert what.startswith("there is no key index of snapshot ")


def test_an_index_that_waits_for_its_promotion_is_sound(lake: HandLake, folder: Path) -> None:
    """As a pipeline leaves it that died right after its publish."""
    (folder / INDEX).rename(folder / "next.json")
    assert not lake.verify().difference_count


def test_a_byte_that_is_wrong_is_named(lake: HandLake, folder: Path) -> None:
    path = max(folder.glob("*.run"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert differences(lake) == [f"{path.name} is damaged: the checksum of a column is wrong"]


def test_a_key_that_the_index_does_not_have_is_named(lake: HandLake) -> None:
    staged(lake, Changes((), hash_keys([b"19"])))
    found = differences(lake)
    assert found[0] == "key '19' has a row, and the index does not have it"
    assert "the index counts 19 rows, the table has 20" in found
    assert any(what.startswith("the index counts 15 rows in ") and what.endswith("which has 16") for what in found)


def test_a_key_that_the_index_has_elsewhere_is_named(lake: HandLake) -> None:
    location = lake.files[STATE][0][0]["file-path"]
    staged(lake, Changes([Block(location, hash_keys([b"19"]), np.array([18]))]))
    assert differences(lake) == [f"key '19' is row 19 of {location}; the index says row 18 of {location}"]


def test_an_entry_that_is_too_much_is_named(lake: HandLake) -> None:
    location = lake.files[STATE][0][0]["file-path"]
    staged(lake, Changes([Block(location, hash_keys([b"never there"]), np.array([5]))]))
    found = differences(lake)
    assert f"the index has an entry for row 5 of {location}, and no such row is live" in found
    assert "the index counts 21 rows, the table has 20" in found


def test_an_entry_in_a_file_that_the_table_does_not_have_is_named(lake: HandLake) -> None:
    staged(lake, Changes([Block("file:///nowhere.parquet", hash_keys([b"never there"]), np.array([5]))]))
    found = differences(lake)
    assert "the index counts 1 rows in file:///nowhere.parquet, which has 0" in found
    assert "the index has an entry for row 5 of a file that is gone, and no such row is live" in found


def test_rows_that_are_counted_wrongly_for_a_file_are_named(lake: HandLake, folder: Path) -> None:
    """A file that seems to have no live row would leave the table with the next publish."""
    manifest = load_manifest(folder / INDEX)
    assert manifest is not None
    first, second, *rest = manifest.files
    files = (
        msgspec.structs.replace(first, rows=first.rows - 1),
        msgspec.structs.replace(second, rows=second.rows + 1),
        *rest,
    )
    store_manifest(folder / INDEX, msgspec.structs.replace(manifest, files=files), Disk())
    assert len(differences(lake)) == 2
