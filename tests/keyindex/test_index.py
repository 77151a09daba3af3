"""The index as its writer uses it: around a publish, over restarts, and next to a plain dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dolake.errors import InvalidInput
from dolake.keyindex import NOT_FOUND, Block, Changes, Hashes, KeyIndex, KeyIndexView, StaleIndex, rebuild
from dolake.keyindex.manifest import INDEX, NEXT
from dolake.keyindex.merging import RUNS_MAX
from tests.keyindex.support import Place, block, hashes_of, places
from tests.support.property import examples

KEYS = range(60)


def published(folder: Path, *flushes: dict[int, int]) -> KeyIndex:
    """An index after these flushes: flush n creates snapshot n and the file `n`."""
    index = KeyIndex.open(folder, None)
    for snapshot_id, rows in enumerate(flushes, 1):
        index.stage(Changes([block(str(snapshot_id), rows)]), snapshot_id)
        index.promote()
    return index


def test_the_index_of_a_table_without_a_snapshot_is_empty(tmp_path: Path) -> None:
    for _ in range(2):
        index = KeyIndex.open(tmp_path / "keyindex" / "table", None)
        assert places(index, KEYS) == {}
        assert (index.row_count, index.snapshot_id, dict(index.paths)) == (0, None, {})


def test_an_upsert_is_found_at_its_newest_place_and_a_deleted_key_nowhere(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10, 2: 11, 3: 12}, {2: 0})
    index.stage(Changes([block("3", {4: 7})], hashes_of([3, 50])), 3)
    index.promote()
    assert places(index, KEYS) == {1: ("1", 10), 2: ("2", 0), 4: ("3", 7)}
    assert index.row_count == 3


def test_a_merge_of_all_runs_leaves_nothing_of_keys_that_have_no_row(tmp_path: Path) -> None:
    index = published(tmp_path, {key: key for key in range(50)})
    index.stage(Changes(deletes=hashes_of([7])), 2)
    index.promote()
    (gone,) = zip(*hashes_of([7]), strict=True)

    def has_hash() -> list[bool]:
        return [gone in set(zip(run.entries.hi, run.entries.lo, strict=True)) for run in index.view.runs]

    assert index.merge_due() == ()
    assert has_hash() == [True, True]
    merged = index.prepare_merge(is_whole=True)
    assert merged
    index.finish_merge(merged)
    assert has_hash() == [False]
    assert places(index, KEYS) == {key: ("1", key) for key in range(50) if key != 7}
    assert index.prepare_merge(is_whole=True) is None


def test_what_is_staged_shows_only_after_promote(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10})
    index.stage(Changes([block("2", {1: 0})]), 2)
    assert places(index, KEYS) == {1: ("1", 10)}
    index.promote()
    assert places(index, KEYS) == {1: ("2", 0)}
    assert index.snapshot_id == 2


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10})
    before = sorted(path.name for path in tmp_path.iterdir())
    index.stage(Changes([block("2", {1: 0})]), 2)
    index.discard()
    index.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert places(index, KEYS) == {1: ("1", 10)}
    index.stage(Changes([block("3", {1: 5})]), 3)
    index.promote()
    assert places(KeyIndex.open(tmp_path, 3), KEYS) == {1: ("3", 5)}


def test_a_publish_that_changes_no_key_moves_the_snapshot_only(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10})
    index.stage(Changes(deletes=hashes_of([9])), 2)
    index.promote()
    index = KeyIndex.open(tmp_path, 2)
    assert places(index, KEYS) == {1: ("1", 10)}
    assert len(index.view.runs) == 1


def test_the_publish_decides_which_of_two_manifests_is_the_index(tmp_path: Path) -> None:
    index = published(tmp_path / "a", {1: 10})
    index.stage(Changes([block("2", {1: 0})]), 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    failed, succeeded = KeyIndex.open(tmp_path / "a", 1), KeyIndex.open(tmp_path / "b", 2)
    assert places(failed, KEYS) == {1: ("1", 10)}
    assert places(succeeded, KEYS) == {1: ("2", 0)}
    for name in "ab":
        assert not (tmp_path / name / NEXT).exists()
        assert len(list((tmp_path / name).glob("*.run"))) == (1 if name == "a" else 2)


@pytest.mark.parametrize("snapshot_id", [None, 0, 3])
def test_an_index_of_another_snapshot_is_stale(tmp_path: Path, snapshot_id: int | None) -> None:
    published(tmp_path, {1: 10}, {2: 10})
    with pytest.raises(StaleIndex) as caught:
        KeyIndex.open(tmp_path, snapshot_id)
    assert caught.value.code == "stale_index"
    assert "rebuild" in caught.value.hint


def test_a_missing_folder_is_stale_when_the_table_has_a_snapshot(tmp_path: Path) -> None:
    with pytest.raises(StaleIndex):
        KeyIndex.open(tmp_path / "none", 1)
    assert not (tmp_path / "none").exists()


def test_a_missing_next_manifest_is_stale_when_its_publish_succeeded(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10})
    index.stage(Changes([block("2", {1: 0})]), 2)
    (tmp_path / NEXT).unlink()
    with pytest.raises(StaleIndex):
        KeyIndex.open(tmp_path, 2)
    assert places(KeyIndex.open(tmp_path, 1), KEYS) == {1: ("1", 10)}


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("is_flipped", [True, False])
def test_any_damaged_file_makes_the_index_stale(tmp_path: Path, part: float, is_flipped: bool) -> None:
    published(tmp_path, {key: key for key in range(20)}, {key: key for key in range(10)})
    for path in sorted(tmp_path.iterdir()):
        data = bytearray(path.read_bytes())
        at = int(part * len(data))
        intact = bytes(data)
        if is_flipped:
            data[at] ^= 8
        else:
            del data[at:]
        path.write_bytes(data)
        try:
            index = KeyIndex.open(tmp_path, 2)
        except StaleIndex:
            path.write_bytes(intact)
        else:  # the bytes between two columns mean nothing
            assert places(index, KEYS) == {key: ("2" if key < 10 else "1", key) for key in range(20)}


def test_a_missing_run_makes_the_index_stale(tmp_path: Path) -> None:
    published(tmp_path, {1: 10})
    next(tmp_path.glob("*.run")).unlink()
    with pytest.raises(StaleIndex):
        KeyIndex.open(tmp_path, 1)


def test_a_good_run_under_the_name_of_another_makes_the_index_stale(tmp_path: Path) -> None:
    published(tmp_path, {1: 10}, {2: 10})
    older, newer = sorted(tmp_path.glob("*.run"))
    newer.write_bytes(older.read_bytes())
    with pytest.raises(StaleIndex):
        KeyIndex.open(tmp_path, 2, is_verified=False)


def test_files_of_no_manifest_are_removed_and_foreign_files_are_not(tmp_path: Path) -> None:
    published(tmp_path, {1: 10})
    for name in ("000000000099.run", "000000000098.run.tmp", "spill-000001.part", "index.json.tmp", "notes.txt"):
        (tmp_path / name).write_bytes(b"left over")
    KeyIndex.open(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000001.run", INDEX, "notes.txt"]


def test_a_data_file_is_forgotten_with_its_last_row_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10, 2: 11}, {1: 0}, {2: 0})
    assert dict(index.paths) == {1: "2", 2: "3"}
    index.stage(Changes([block("1", {5: 5})]), 4)
    index.promote()
    assert dict(index.paths) == {1: "2", 2: "3", 3: "1"}
    assert places(index, KEYS) == {1: ("2", 0), 2: ("3", 0), 5: ("1", 5)}


def test_places_are_grouped_as_position_deletes_want_them(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 30, 2: 20, 3: 10}, {4: 5})
    groups = index.positions_by_path(index.look_up(hashes_of([4, 9, 1, 3, 2])))
    assert {path: positions.tolist() for path, positions in groups.items()} == {"1": [10, 20, 30], "2": [5]}
    assert index.positions_by_path(index.look_up(hashes_of([9]))) == {}


@pytest.mark.parametrize(
    "changes",
    [
        Changes([block("2", {1: 1}), block("3", {1: 2})]),
        Changes([block("2", {1: 1})], hashes_of([1])),
        Changes(deletes=hashes_of([1, 1])),
        Changes([Block("2", hashes_of([1, 2]), np.array([1]))]),
        Changes([Block("2", hashes_of([1]), np.array([-1]))]),
        Changes([Block("2", hashes_of([1]), np.array([2**32]))]),
        Changes([Block("2", hashes_of([1]), np.array([0.5]))]),
        Changes(deletes=Hashes(np.zeros(1, np.uint64), np.zeros(2, np.uint64))),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(tmp_path: Path, changes: Changes) -> None:
    index = published(tmp_path, {1: 10})
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InvalidInput):
        index.stage(changes, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    index.stage(Changes([block("2", {1: 1})]), 2)


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 10})
    with pytest.raises(InvalidInput, match="nothing is staged"):
        index.promote()
    with pytest.raises(InvalidInput, match="has snapshot 1 already"):
        index.stage(Changes(), 1)
    index.stage(Changes(), 2)
    with pytest.raises(InvalidInput, match="staged in the key index already"):
        index.stage(Changes(), 3)


def test_flushes_may_go_on_while_a_merge_is_written(tmp_path: Path) -> None:
    index = published(tmp_path, {1: 1, 2: 1, 3: 1}, {2: 2})
    merged = index.prepare_merge()
    assert merged is not None
    index.stage(Changes([block("3", {3: 3})]), 3)
    index.promote()
    index.stage(Changes([block("4", {1: 4})]), 4)
    with pytest.raises(InvalidInput, match="staged"):
        index.finish_merge(merged)
    index.discard()
    index.finish_merge(merged)
    for found in (index, KeyIndex.open(tmp_path, 3)):
        assert places(found, KEYS) == {1: ("1", 1), 2: ("2", 2), 3: ("3", 3)}
        assert len(found.view.runs) == 2


def test_a_deleted_key_stays_deleted_when_runs_are_merged_above_the_one_that_has_it(tmp_path: Path) -> None:
    index = rebuild(tmp_path, 1, [block("base", {key: key for key in range(1000)})])
    index.stage(Changes(deletes=hashes_of([5])), 2)
    index.promote()
    for snapshot_id in range(3, 12):
        index.stage(Changes([block(str(snapshot_id), {snapshot_id + 10: 0})]), snapshot_id)
        index.promote()
        index.merge()
    assert [run.rows for run in index.view.manifest.runs][-2:] == [8, 1000]
    assert places(KeyIndex.open(tmp_path, 11), [4, 5, 6, 13]) == {4: ("base", 4), 6: ("base", 6), 13: ("3", 0)}


def test_a_merge_of_everything_leaves_no_tombstones(tmp_path: Path) -> None:
    index = published(tmp_path, {key: key for key in range(20)})
    index.stage(Changes(deletes=hashes_of(range(20))), 2)
    index.promote()
    assert index.merge()
    assert [run.rows for run in index.view.manifest.runs] == [0]
    assert not index.merge()
    assert places(KeyIndex.open(tmp_path, 2), KEYS) == {}


class IndexBesideDict(RuleBasedStateMachine):
    """Random flushes, failures, merges, compactions and restarts, and a dict that says what must be found."""

    rows = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 2**32 - 1), max_size=12)

    @initialize(size=st.sampled_from([0, 1, 30, 1500]))
    def begin(self, size: int) -> None:
        """Many keys that never change make a large oldest run, so that newer ones are merged without it."""
        self.folder = Path(tempfile.mkdtemp(prefix="keyindex-"))
        self.truth: dict[int, Place] = {key: ("base", key) for key in range(size)}
        self.keys = [*KEYS, *range(len(KEYS), size, 100)]
        self.snapshot_id = 1
        base = block("base", {key: place[1] for key, place in self.truth.items()})
        self.index = rebuild(self.folder, 1, [base], rows_in_memory=400)
        self.held: list[tuple[KeyIndexView, dict[int, Place]]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(upserts=rows, deletes=st.sets(st.sampled_from(KEYS), max_size=6), end=st.sampled_from("psfx"))
    def flush(self, upserts: dict[int, int], deletes: set[int], end: str) -> None:
        """It ends with promote, a crash after the publish succeeded, a failed publish, or a crash before it."""
        snapshot_id = self.snapshot_id + 1
        path, deletes = f"flush-{snapshot_id}", deletes - upserts.keys()
        self.index.stage(Changes([block(path, upserts)], hashes_of(deletes)), snapshot_id)
        if end in "ps":
            kept = {key: place for key, place in self.truth.items() if key not in deletes}
            self.truth = kept | {key: (path, at) for key, at in upserts.items()}
        self.end(end, snapshot_id)

    @rule(data=st.data(), end=st.sampled_from("psfx"))
    def compact(self, data: st.DataObject, end: str) -> None:
        old = data.draw(st.sets(st.sampled_from(sorted(self.index.paths.values()) or ["none"])))
        late = data.draw(st.sets(st.sampled_from(KEYS)))
        snapshot_id = self.snapshot_id + 1
        moving = {key for key, (path, _) in self.truth.items() if path in old}
        rows = {key: at for at, key in enumerate(sorted(moving | late))}
        path = f"compacted-{snapshot_id}"
        moved = self.index.prepare_move([block(path, rows)], rows_in_memory=20)
        outdated = {key: at for key, at in rows.items() if key not in moving}
        self.index.stage_move(moved, old, [block(path, outdated)], snapshot_id)
        if end in "ps":
            self.truth |= {key: (path, rows[key]) for key in moving}
        self.end(end, snapshot_id)

    def end(self, end: str, snapshot_id: int) -> None:
        self.snapshot_id += end in "ps"
        if end == "p":
            self.index.promote()
        elif end == "f":
            self.index.discard()
        else:
            self.reopen()
        assert self.index.snapshot_id == self.snapshot_id

    @rule()
    def merge(self) -> None:
        while self.index.merge():
            pass
        assert len(self.index.view.runs) <= RUNS_MAX

    @rule()
    def reopen(self) -> None:
        self.index = KeyIndex.open(self.folder, self.snapshot_id)

    @rule()
    def hold_a_view(self) -> None:
        self.held.append((KeyIndexView.open(self.folder, self.snapshot_id), dict(self.truth)))

    @invariant()
    def finds_what_the_dict_has(self) -> None:
        assert places(self.index, self.keys) == self.seen(self.truth)
        assert self.index.row_count == len(self.truth)
        assert set(self.index.paths.values()) == {path for path, _ in self.truth.values()}

    @invariant()
    def views_stay_as_they_were(self) -> None:
        for view, truth in self.held[-3:]:
            assert places(view, self.keys) == self.seen(truth)

    def seen(self, truth: dict[int, Place]) -> dict[int, Place]:
        return {key: truth[key] for key in self.keys if key in truth}


IndexBesideDict.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
test_an_index_answers_as_a_dict_would = IndexBesideDict.TestCase


def test_not_found_is_what_an_answer_says(tmp_path: Path) -> None:
    found = KeyIndex.open(tmp_path, None).look_up(hashes_of([1, 2]))
    assert found.file.tolist() == [NOT_FOUND, NOT_FOUND]
