"""A compaction moves rows to other files: entries follow, unless their key has moved on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolake.errors import Damaged
from dolake.keyindex import Changes, KeyIndex, rebuild
from tests.keyindex.support import block, hashes_of, places

KEYS = range(40)


@pytest.fixture
def index(tmp_path: Path) -> KeyIndex:
    """Keys 0 to 9 in file a, 10 to 19 in file b; then key 1 was updated and key 2 deleted."""
    index = rebuild(
        tmp_path, 1, [block("a", {key: key for key in range(10)}), block("b", {key: key for key in range(10, 20)})]
    )
    index.stage(Changes([block("c", {1: 0})], hashes_of([2])), 2)
    index.promote()
    return index


def test_rows_that_changed_since_the_compaction_read_them_keep_their_place(index: KeyIndex) -> None:
    done = index.replace_files(["a"], [block("new", {key: 100 + key for key in range(10)})], 3)
    assert (done.moved_count, done.left_count) == (8, 0)
    assert {path: rows.tolist() for path, rows in done.outdated.items()} == {"new": [101, 102]}
    index.promote()
    found = places(index, KEYS)
    assert found[0] == ("new", 100)
    assert found[1] == ("c", 0)
    assert 2 not in found
    assert found[10] == ("b", 10)
    assert sorted(index.paths.values()) == ["b", "c", "new"]


def test_rows_that_no_block_has_stay_in_the_old_file_and_are_counted(index: KeyIndex) -> None:
    done = index.replace_files(["a", "b"], [block("new", {key: key for key in range(3, 15)})], 3)
    assert (done.moved_count, done.left_count) == (12, 6)
    index.promote()
    assert places(index, [0, 3, 15]) == {0: ("a", 0), 3: ("new", 3), 15: ("b", 15)}


def test_many_files_become_many_files_in_little_memory(index: KeyIndex, tmp_path: Path) -> None:
    blocks = [block(f"new-{key % 3}", {key: key}) for key in range(20)]
    done = index.replace_files(["a", "b", "c", "gone"], blocks, 3, rows_in_memory=4)
    assert {path: rows.tolist() for path, rows in done.outdated.items()} == {"new-2": [2]}
    index.promote()
    wanted = {key: (f"new-{key % 3}", key) for key in range(20) if key != 2}
    assert places(KeyIndex.open(tmp_path, 3), KEYS) == wanted


def test_a_key_in_two_new_rows_is_refused_and_changes_nothing(index: KeyIndex, tmp_path: Path) -> None:
    before = places(index, KEYS)
    with pytest.raises(Damaged):
        index.replace_files(["a"], [block("new", {3: 1}), block("newer", {3: 2})], 3)
    assert places(KeyIndex.open(tmp_path, 2), KEYS) == before
    assert len(list(tmp_path.glob("*.run"))) == 2
