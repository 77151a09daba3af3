"""An index made anew from the table's rows, in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dolake.errors import Damaged
from dolake.keyindex import Block, Changes, KeyIndex, StaleIndex, rebuild
from tests.keyindex.support import block, hashes_of, places

REBUILD = """
import resource, sys
from pathlib import Path
import numpy as np
from dolake.keyindex import Block, Hashes, rebuild

rows, chance = int(sys.argv[2]), np.random.default_rng(1)
def blocks():
    for start in range(0, rows, 50_000):
        hi, lo = chance.integers(0, 2**64, (2, 50_000), dtype=np.uint64)
        yield Block(f"file-{start // 500_000}", Hashes(hi, lo), np.arange(50_000) + start % 500_000)

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
index = rebuild(Path(sys.argv[1]), 1, blocks(), rows_in_memory=200_000)
print(index.row_count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("rows_in_memory", [1, 7, 100, 10_000])
def test_rows_in_any_order_are_found(tmp_path: Path, rows_in_memory: int) -> None:
    order = np.random.default_rng(3).permutation(200).tolist()
    blocks = [block(f"file-{at % 3}", {key: key * 5 for key in order[at : at + 30]}) for at in range(0, 200, 30)]
    index = rebuild(tmp_path / "new" / "folder", 5, blocks, rows_in_memory=rows_in_memory)
    for found in (index, KeyIndex.open(tmp_path / "new" / "folder", 5)):
        truth = {key: (f"file-{at // 30 * 30 % 3}", key * 5) for at, key in enumerate(order)}
        assert places(found, range(300)) == truth
        assert found.row_count == 200


def test_an_empty_table_has_an_empty_index(tmp_path: Path) -> None:
    rebuild(tmp_path, None, [])
    assert places(KeyIndex.open(tmp_path, None), range(9)) == {}


def test_a_stale_index_is_replaced_and_its_files_are_removed(tmp_path: Path) -> None:
    rebuild(tmp_path, 1, [block("a", {1: 1})])
    index = rebuild(tmp_path, 2, [block("b", {2: 2})])
    assert places(index, range(9)) == {2: ("b", 2)}
    assert dict(index.paths) == {1: "b"}  # number 0 was file a, for whoever still reads the old index
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(StaleIndex):
        KeyIndex.open(tmp_path, 1)
    index.stage(Changes([block("c", {1: 1})]), 3)
    index.promote()
    assert places(KeyIndex.open(tmp_path, 3), range(9)) == {1: ("c", 1), 2: ("b", 2)}


@pytest.mark.parametrize("rows_in_memory", [1, 1000])
def test_a_key_with_two_rows_is_refused(tmp_path: Path, rows_in_memory: int) -> None:
    twice = [block("a", {1: 1, 2: 2}), block("b", {2: 9})]
    with pytest.raises(Damaged, match="1 rows have a key that another row has too"):
        rebuild(tmp_path, 1, twice, rows_in_memory=rows_in_memory)
    assert list(tmp_path.iterdir()) == []


def test_positions_use_all_32_bits(tmp_path: Path) -> None:
    index = rebuild(tmp_path, 1, [Block("a", hashes_of([1, 2]), np.array([0, 2**32 - 1], np.uint64))])
    assert places(index, [1, 2]) == {1: ("a", 0), 2: ("a", 2**32 - 1)}


def test_memory_does_not_grow_with_the_table_and_a_row_takes_at_most_32_bytes(tmp_path: Path) -> None:
    grown = []
    for rows in (400_000, 2_000_000):
        folder = tmp_path / str(rows)
        command = [sys.executable, "-c", REBUILD, str(folder), str(rows)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        count, memory = map(int, answer.stdout.split())
        assert count == rows
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 32 * rows
        grown.append(memory)
    assert grown[1] < 100 * 2**20
    assert grown[1] < grown[0] + 30 * 2**20
