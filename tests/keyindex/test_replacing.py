"""A compaction moves rows to other files: entries follow, unless their key has moved on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dolake.errors import Damaged
from dolake.keyindex import Block, Changes, KeyIndex, rebuild
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


def replace(index: KeyIndex, old: list[str], new: Sequence[Block], outdated: Sequence[Block], snapshot_id: int) -> None:
    index.stage_move(index.prepare_move(new, rows_in_memory=4), old, outdated, snapshot_id)
    index.promote()


def test_rows_that_changed_since_the_compaction_read_them_keep_their_place(index: KeyIndex) -> None:
    rows = {key: 100 + key for key in range(10)}
    replace(index, ["a"], [block("new", rows)], [block("new", {key: rows[key] for key in (1, 2)})], 3)
    found = places(index, KEYS)
    assert found[0] == ("new", 100)
    assert found[1] == ("c", 0)
    assert 2 not in found
    assert found[10] == ("b", 10)
    assert sorted(index.paths.values()) == ["b", "c", "new"]


def test_what_changes_while_it_is_prepared_is_not_undone(index: KeyIndex) -> None:
    rows = {key: key for key in range(20) if key not in (1, 2)}
    moved = index.prepare_move([block("new", rows)])
    index.stage(Changes([block("d", {3: 0, 50: 1})], hashes_of([4])), 3)
    index.promote()
    index.stage_move(moved, ["a", "b"], [block("new", {3: 3, 4: 4})], 4)
    index.promote()
    while index.merge():
        pass
    wanted = {key: ("new", key) for key in rows if key not in (3, 4)} | {1: ("c", 0), 3: ("d", 0), 50: ("d", 1)}
    assert places(index, range(60)) == wanted
    assert len(set(index.paths)) == 3


@pytest.mark.parametrize("rows", [range(3, 15), range(30)])
def test_rows_that_do_not_add_up_are_refused_and_change_nothing(index: KeyIndex, tmp_path: Path, rows: range) -> None:
    before = places(index, KEYS)
    moved = index.prepare_move([block("new", {key: key for key in rows})])
    with pytest.raises(Damaged, match="current rows"):
        index.stage_move(moved, ["a", "b"], [], 3)
    index.forget_move(moved)
    assert places(KeyIndex.open(tmp_path, 2), KEYS) == before
    assert len(list(tmp_path.glob("*.run"))) == 2


def test_many_files_become_many_files_in_little_memory(index: KeyIndex, tmp_path: Path) -> None:
    blocks = [block(f"new-{key % 3}", {key: key}) for key in range(20) if key != 2]
    replace(index, ["a", "b", "c", "gone"], blocks, [], 3)
    wanted = {key: (f"new-{key % 3}", key) for key in range(20) if key != 2}
    assert places(KeyIndex.open(tmp_path, 3), KEYS) == wanted


def test_a_key_in_two_new_rows_is_refused_and_changes_nothing(index: KeyIndex, tmp_path: Path) -> None:
    before = places(index, KEYS)
    with pytest.raises(Damaged):
        index.prepare_move([block("new", {3: 1}), block("newer", {3: 2})])
    assert places(KeyIndex.open(tmp_path, 2), KEYS) == before
    assert len(list(tmp_path.glob("*.run"))) == 2


def test_an_index_that_was_given_up_never_writes_over_a_run_of_the_next(index: KeyIndex, tmp_path: Path) -> None:
    again = KeyIndex.open(tmp_path, 2)
    again.stage(Changes([block("d", {7: 0})]), 3)
    again.promote()
    index.prepare_move([block("new", {key: key for key in range(10)})])
    assert places(KeyIndex.open(tmp_path, 3), KEYS)[7] == ("d", 0)


def test_files_that_are_written_anew_row_for_row_keep_their_rows(tmp_path: Path) -> None:
    index = KeyIndex.open(tmp_path, None)
    index.stage(Changes([block("a", {1: 0, 2: 1}), block("b", {3: 0})]), 1)
    index.promote()
    index.stage_rename({"a": "a2", "never": "seen"}, 2)
    assert places(index, [1, 2, 3]) == {1: ("a", 0), 2: ("a", 1), 3: ("b", 0)}
    index.discard()
    index.stage_rename({"a": "a2", "never": "seen"}, 3)
    index.promote()
    index.stage(Changes([block("c", {2: 5})]), 4)
    index.promote()
    assert places(KeyIndex.open(tmp_path, 4), [1, 2, 3]) == {1: ("a2", 0), 2: ("c", 5), 3: ("b", 0)}
