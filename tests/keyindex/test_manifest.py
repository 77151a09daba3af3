"""The manifest: replaced as a whole, and believed only when it is byte for byte as it was written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dolake.keyindex.disk import Disk
from dolake.keyindex.manifest import DataFile, Manifest, RunInfo, load_manifest, store_manifest

MANIFEST = Manifest(2**63 - 1, (RunInfo("000000000001.run", 5, 77),), (DataFile(3, "s3://b/ü.parquet", 5),), 4, 5)


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    store_manifest(path, Manifest(None), Disk())
    store_manifest(path, MANIFEST, Disk())
    assert load_manifest(path) == MANIFEST
    assert [found.name for found in tmp_path.iterdir()] == ["index.json"]


def test_a_manifest_that_does_not_exist_is_none(tmp_path: Path) -> None:
    assert load_manifest(tmp_path / "none" / "index.json") is None


def test_a_flipped_bit_never_makes_another_manifest(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    store_manifest(path, MANIFEST, Disk())
    data = path.read_bytes()
    for bit in range(0, len(data) * 8, 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert load_manifest(path) in (None, MANIFEST)


def test_no_cut_makes_another_manifest(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    store_manifest(path, MANIFEST, Disk())
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert load_manifest(path) is None


def test_a_manifest_of_another_release_or_hash_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    for other in ({"version": 2}, {"hash": "md5"}):
        store_manifest(path, msgspec.structs.replace(MANIFEST, **other), Disk())
        assert load_manifest(path) is None
