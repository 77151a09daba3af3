"""A power failure at any step: the index of the table's snapshot is found whole, or it is said to be stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dolake.keyindex import Changes, KeyIndex, StaleIndex, rebuild
from tests.keyindex.support import CrashDisk, Place, block, hashes_of, places

KEYS = range(40)
OLD: dict[int, Place] = {key: ("1", key) for key in range(20)}
NEW: dict[int, Place] = {key: ("2", key) for key in range(5)} | {key: OLD[key] for key in range(6, 20)}
CHANGES = Changes([block("2", {key: key for key in range(5)})], hashes_of([5]))


@pytest.fixture
def disk(tmp_path: Path) -> CrashDisk:
    (tmp_path / "images").mkdir()
    return CrashDisk(tmp_path / "index", tmp_path / "images")


@pytest.fixture
def index(tmp_path: Path, disk: CrashDisk) -> KeyIndex:
    """Snapshot 1, which has OLD."""
    rebuild(tmp_path / "index", 1, [block("1", {key: key for key in range(20)})])
    return KeyIndex.open(tmp_path / "index", 1, disk=disk)


def images_of(disk: CrashDisk, step: Callable[[], object]) -> list[Path]:
    """What the folder may look like after a crash in this step, or right after it."""
    start = len(disk.images)
    step()
    disk.photograph()
    assert len(disk.images) > start + 1
    return disk.images[start:]


def found_in(image: Path, snapshot_id: int) -> dict[int, Place] | None:
    """What the index of this snapshot has, None when it is stale. Opened twice: opening may have repaired something."""
    try:
        KeyIndex.open(image, snapshot_id)
    except StaleIndex:
        return None
    return places(KeyIndex.open(image, snapshot_id), KEYS)


def test_a_crash_while_staging_costs_nothing(index: KeyIndex, disk: CrashDisk) -> None:
    for image in images_of(disk, lambda: index.stage(CHANGES, 2)):
        assert found_in(image, 1) == OLD


def test_a_snapshot_that_was_never_published_is_never_half_indexed(index: KeyIndex, disk: CrashDisk) -> None:
    for image in images_of(disk, lambda: index.stage(CHANGES, 2)):
        assert found_in(image, 2) in (None, NEW)


def test_a_crash_after_the_publish_costs_nothing(index: KeyIndex, disk: CrashDisk) -> None:
    index.stage(CHANGES, 2)
    for image in images_of(disk, index.promote):
        assert found_in(image, 2) == NEW


def test_a_crash_after_a_failed_publish_costs_nothing(index: KeyIndex, disk: CrashDisk) -> None:
    index.stage(CHANGES, 2)
    for image in images_of(disk, index.discard):
        assert found_in(image, 1) == OLD


def test_a_crash_while_merging_costs_nothing(index: KeyIndex, disk: CrashDisk) -> None:
    index.stage(CHANGES, 2)
    index.promote()
    for image in images_of(disk, index.merge):
        assert found_in(image, 2) == NEW
    assert len(index.view.runs) == 1


def test_a_crash_while_compacting_costs_nothing(index: KeyIndex, disk: CrashDisk) -> None:
    moved = block("2", {key: 100 + key for key in range(20)})

    def compact() -> None:
        index.stage_move(index.prepare_move([moved], rows_in_memory=6), ["1"], [], 2)

    for image in images_of(disk, compact):
        assert found_in(image, 1) == OLD
    for image in images_of(disk, index.promote):
        assert found_in(image, 2) == {key: ("2", 100 + key) for key in range(20)}


def test_a_rebuild_that_crashed_is_stale_and_can_be_done_again(
    tmp_path: Path, index: KeyIndex, disk: CrashDisk
) -> None:
    rows = [block("2", {key: key for key in range(9)}), block("3", {key: key for key in range(9, 30)})]
    truth = {key: ("2" if key < 9 else "3", key) for key in range(30)}
    images = images_of(disk, lambda: rebuild(tmp_path / "index", 7, rows, rows_in_memory=4, disk=disk))
    for image in images[::5] + images[-12:]:
        assert found_in(image, 7) in (None, truth)
        assert places(rebuild(image, 7, rows, rows_in_memory=1000), KEYS) == truth
        assert sorted(path.suffix for path in image.iterdir()) == [".json", ".run"]
    assert places(index, KEYS) == OLD  # who had it open still reads the snapshot of then


def test_a_crash_while_opening_costs_nothing(tmp_path: Path, index: KeyIndex, disk: CrashDisk) -> None:
    index.stage(CHANGES, 2)
    for image in images_of(disk, lambda: KeyIndex.open(tmp_path / "index", 2, disk=disk)):
        assert found_in(image, 2) == NEW


def test_a_full_disk_while_staging_leaves_the_index_usable(tmp_path: Path) -> None:
    class FullDisk(CrashDisk):
        def rename(self, source: Path, target: Path) -> None:
            if target.name == "next.json":
                raise OSError(28, "No space left on device")
            super().rename(source, target)

    (tmp_path / "images").mkdir()
    rebuild(tmp_path / "index", 1, [block("1", {key: key for key in range(20)})])
    index = KeyIndex.open(tmp_path / "index", 1, disk=FullDisk(tmp_path / "index", tmp_path / "images"))
    with pytest.raises(OSError, match="No space"):
        index.stage(CHANGES, 2)
    assert places(index, KEYS) == OLD
    assert len(list((tmp_path / "index").glob("*.run"))) == 1
