"""What was moved back stays for a while; a list that is lost costs nothing but that."""

from __future__ import annotations

from pathlib import Path

from dolake.storage.restored import Restored
from dolake.tables.tiers import COLD, WARM

DAY_MS = 86_400_000


def test_a_partition_that_was_moved_back_stays_for_its_days(tmp_path: Path) -> None:
    Restored(tmp_path, "u").note("dt=1", WARM, 0)
    found = Restored(tmp_path, "u")
    assert found.stays("dt=1", 7, 7 * DAY_MS - 1)
    assert not found.stays("dt=1", 7, 7 * DAY_MS)
    assert not found.stays("dt=2", 7, 0)
    assert not Restored(tmp_path, "other").stays("dt=1", 7, 0)


def test_who_moves_it_away_again_ends_that(tmp_path: Path) -> None:
    Restored(tmp_path, "u").note("dt=1", WARM, 0)
    Restored(tmp_path, "u").note("dt=1", COLD, 1)
    assert not Restored(tmp_path, "u").stays("dt=1", 7, 2)


def test_a_damaged_list_is_an_empty_one(tmp_path: Path) -> None:
    Restored(tmp_path, "u").note("dt=1", WARM, 0)
    (path,) = (tmp_path / "upkeep").iterdir()
    path.write_bytes(b"{")
    assert not Restored(tmp_path, "u").stays("dt=1", 7, 0)
