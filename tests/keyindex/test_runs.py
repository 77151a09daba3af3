"""Sorted runs, compared with a plain dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dolake.keyindex.hashes import Hashes
from dolake.keyindex.runs import NOT_FOUND, Entries, look_up, look_up_one, merge, sort_entries
from tests.keyindex.support import HIGH_HALVES, LAST, entries

Key = tuple[int, int]
KEYS = st.tuples(st.sampled_from(HIGH_HALVES), st.integers(0, 3) | st.integers(LAST - 3, LAST))
RUN = st.dictionaries(KEYS, st.tuples(st.sampled_from([0, 1, 7, NOT_FOUND]), st.integers(0, 2**32 - 1)), max_size=30)
RUNS = st.lists(RUN, max_size=5)


def as_run(rows: dict[Key, tuple[int, int]]) -> Entries:
    return entries(*((*key, *place) for key, place in rows.items()))


def as_dict(run: Entries) -> dict[Key, tuple[int, int]]:
    rows = zip(*(column.tolist() for column in run.columns()), strict=True)
    return {(hi, lo): (file, position) for hi, lo, file, position in rows}


def newest(runs: list[dict[Key, tuple[int, int]]]) -> dict[Key, tuple[int, int]]:
    return {key: place for run in reversed(runs) for key, place in run.items()}


@given(RUNS, st.lists(KEYS, max_size=60))
def test_the_newest_run_that_has_a_key_decides(runs: list[dict[Key, tuple[int, int]]], asked: list[Key]) -> None:
    hashes = Hashes(np.array([hi for hi, _ in asked], np.uint64), np.array([lo for _, lo in asked], np.uint64))
    file, position = look_up([as_run(run) for run in runs], hashes)
    truth = newest(runs)
    for index, key in enumerate(asked):
        wanted = truth.get(key, (NOT_FOUND, 0))
        assert int(file[index]) == wanted[0]
        assert wanted[0] == NOT_FOUND or int(position[index]) == wanted[1]


@given(RUNS, st.lists(KEYS, max_size=20))
def test_one_key_is_found_as_many_are(runs: list[dict[Key, tuple[int, int]]], asked: list[Key]) -> None:
    truth, built = newest(runs), [as_run(run) for run in runs]
    for key in asked:
        hi, lo = map(np.uint64, key)
        file, position = look_up_one(built, hi, lo)
        wanted = truth.get(key, (NOT_FOUND, 0))
        assert file == wanted[0]
        assert file == NOT_FOUND or position == wanted[1]


@given(st.lists(RUN, min_size=1, max_size=5), st.booleans())
def test_a_merged_run_has_the_newest_entry_of_each_key_in_order(
    runs: list[dict[Key, tuple[int, int]]], drop_tombstones: bool
) -> None:
    merged = merge([as_run(run) for run in runs], drop_tombstones=drop_tombstones)
    truth = newest(runs)
    wanted = {key: place for key, place in truth.items() if not drop_tombstones or place[0] != NOT_FOUND}
    assert as_dict(merged) == wanted
    assert list(as_dict(merged)) == sorted(wanted)


def test_keys_with_equal_first_halves_are_told_apart() -> None:
    run = entries(*((5, lo, lo, 10 * lo) for lo in range(1, 9)), (6, 1, 99, 0))
    asked = Hashes(np.full(10, 5, np.uint64), np.arange(10, dtype=np.uint64))
    file, position = look_up([run], asked)
    assert file.tolist() == [NOT_FOUND, *range(1, 9), NOT_FOUND]
    assert position.tolist()[1:9] == [10 * lo for lo in range(1, 9)]


def test_entries_of_one_key_stay_in_their_order() -> None:
    same = np.full(50, 3, np.uint64)
    numbers = np.arange(50, dtype=np.uint32)
    assert sort_entries(Entries(same, same, numbers, numbers)).file.tolist() == list(range(50))
    other = np.array([9, 8] * 25, np.uint64)
    ordered = sort_entries(Entries(same, other, numbers, numbers))
    assert ordered.file.tolist() == [*range(1, 50, 2), *range(0, 50, 2)]
