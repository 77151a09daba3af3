"""When runs are merged, what that costs over time, and that a merge in pieces is a merge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.keyindex import StaleIndex
from dolake.keyindex.disk import Disk
from dolake.keyindex.format import HEADER_SIZE, Run, open_run, write_run
from dolake.keyindex.merging import RUNS_MAX, merge_due, merged_pieces, write_merged
from dolake.keyindex.runs import Entries, merge, sort_entries


def simulate(bottom: int, flushes: list[int]) -> tuple[list[int], int, int]:
    """Sizes of the runs after these flushes, the rows that merges wrote, and the largest number of runs seen."""
    runs, written, most = [bottom], 0, 1
    for rows in flushes:
        runs.insert(0, rows)
        due = merge_due(runs)
        merged = sum(runs[:due])
        written += merged
        runs = [*([merged] if due else []), *runs[due:]]
        most = max(most, len(runs))
    return runs, written, most


@given(st.integers(0, 10**7), st.lists(st.integers(0, 10**6), max_size=200))
def test_there_are_never_many_runs(bottom: int, flushes: list[int]) -> None:
    assert simulate(bottom, flushes)[2] <= RUNS_MAX


def test_the_oldest_run_is_left_alone_until_a_quarter_of_it_came_on_top() -> None:
    runs, written, _ = simulate(10_000_000, [10_000] * 250)
    assert runs[-1] == 10_000_000
    assert sum(runs[:-1]) == 2_500_000
    assert written < 10 * 2_500_000
    assert len(simulate(10_000_000, [10_000] * 251)[0]) == 1


@pytest.mark.parametrize("rows", [10, 1_000, 100_000])
def test_a_key_costs_the_same_in_a_large_table(rows: int) -> None:
    """Counted over the time in which the table grows by half."""
    costs = []
    for bottom in (100 * rows, 1000 * rows):
        flushes = bottom // rows // 2
        costs.append(simulate(bottom, [rows] * flushes)[1] / (rows * flushes))
    assert costs[1] < costs[0] + 5  # rows written again per row that came: 10 times the table adds log2(10) at most
    assert costs[1] < 20


def runs_of(folder: Path, sizes: list[int], spread: int) -> list[Run]:
    chance = np.random.default_rng(len(sizes) * spread)
    found = []
    for number, size in enumerate(sizes):
        hi = chance.integers(0, spread, size, dtype=np.uint64)
        lo = chance.integers(0, 4, size, dtype=np.uint64)
        file = np.where(chance.random(size) < 0.2, 0xFFFFFFFF, number).astype(np.uint32)
        entries = merge([Entries(hi, lo, file, np.arange(size, dtype=np.uint32))], drop_tombstones=False)
        write_run(folder / f"{number}.run", [entries], len(entries), Disk())
        found.append(open_run(folder / f"{number}.run"))
    return found


@pytest.mark.parametrize("drop_tombstones", [True, False])
@pytest.mark.parametrize("rows_max", [1, 50, 999, 10**6])
@pytest.mark.parametrize("spread", [1, 40, 5_000, 2**63])
def test_a_merge_in_pieces_is_the_same_as_one_in_memory(
    tmp_path: Path, drop_tombstones: bool, rows_max: int, spread: int
) -> None:
    runs = runs_of(tmp_path, [3000, 0, 1, 700, 2000], spread)
    whole = merge([run.entries for run in runs], drop_tombstones=drop_tombstones)
    merged = write_merged(
        tmp_path / "all.run", runs, drop_tombstones=drop_tombstones, rows_in_memory=rows_max, disk=Disk()
    )
    merged.verify()
    for column, wanted in zip(merged.entries.columns(), whole.columns(), strict=True):
        assert np.array_equal(column, wanted)


def test_no_piece_is_larger_than_it_may_be(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, [5000, 10, 3000, 7000], 2**63)
    sizes = [len(piece) for piece in merged_pieces(runs, drop_tombstones=False, rows_max=1000)]
    assert max(sizes) <= 1000
    assert len(sizes) < 40


def test_damage_is_not_merged_into_a_good_run(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, [3000], 2**63)
    data = bytearray((tmp_path / "0.run").read_bytes())
    data[HEADER_SIZE + 100] ^= 4
    (tmp_path / "0.run").write_bytes(data)
    damaged = open_run(tmp_path / "0.run")
    with pytest.raises(StaleIndex):
        write_merged(tmp_path / "all.run", [damaged], drop_tombstones=False, rows_in_memory=100, disk=Disk())
    assert not (tmp_path / "all.run").exists()
    assert len(sort_entries(run.entries)) == len(damaged.entries)
