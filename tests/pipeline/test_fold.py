"""Folding against a plain dictionary, whatever happens to the keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dolake.keyindex.hashes import Hashes, hash_keys, no_hashes
from dolake.pipeline.fold import GONE, Outcomes, fold, gone, join, outcomes, rows_of_part

KEYS = st.integers(0, 6)
CHANGES = st.lists(st.tuples(KEYS, st.booleans(), st.none() | KEYS), max_size=40)


def outcomes_of(changes: list[tuple[int, bool, int | None]]) -> Outcomes:
    """Each change has a key, whether it is a DELETE, and the key that its row had before, if that was another."""
    moved = [(index, old) for index, (_, is_delete, old) in enumerate(changes) if old is not None and not is_delete]
    return outcomes(
        hashes_of([key for key, _, _ in changes]),
        np.array([is_delete for _, is_delete, _ in changes], np.bool_),
        hashes_of([old for _, old in moved]),
        np.array([index for index, _ in moved], np.int64),
    )


def hashes_of(keys: list[int]) -> Hashes:
    return hash_keys([str(key).encode() for key in keys]) if keys else no_hashes()


def applied(changes: list[tuple[int, bool, int | None]]) -> dict[int, int]:
    """What a dictionary becomes: key to the number of the change that made its row, or GONE."""
    state: dict[int, int] = {}
    for number, (key, is_delete, old) in enumerate(changes):
        if old is not None and not is_delete:
            state[old] = GONE
        state[key] = GONE if is_delete else number
    return state


def found(folded: Outcomes) -> dict[tuple[int, int], int]:
    hi, lo = folded.hashes
    return {(int(high), int(low)): int(row) for high, low, row in zip(hi, lo, folded.rows, strict=True)}


def wanted(state: dict[int, int]) -> dict[tuple[int, int], int]:
    hi, lo = hashes_of(list(state))
    return {(int(high), int(low)): row for high, low, row in zip(hi, lo, state.values(), strict=True)}


@given(CHANGES)
def test_each_key_ends_as_its_last_change_left_it(changes: list[tuple[int, bool, int | None]]) -> None:
    folded = fold(outcomes_of(changes))
    assert len(folded) == len(found(folded)), "a key stands twice"
    assert found(folded) == wanted(applied(changes))


def test_keys_whose_hashes_share_a_half_stay_apart_and_last_changes_keep_their_order() -> None:
    hi, lo = [7, 1, 7, 7, 1], [2, 5, 3, 2, 5]
    changes = Outcomes(Hashes(np.array(hi, np.uint64), np.array(lo, np.uint64)), np.arange(5, dtype=np.int64))
    folded = fold(changes)
    assert folded.rows.tolist() == [2, 3, 4]
    assert list(zip(*(half.tolist() for half in folded.hashes), strict=True)) == [(7, 3), (7, 2), (1, 5)]
    apart = Outcomes(Hashes(np.array([1, 2], np.uint64), np.array([5, 5], np.uint64)), np.arange(2, dtype=np.int64))
    assert len(fold(apart)) == 2


@given(CHANGES, st.integers(0, 40))
def test_slices_folded_alone_and_then_together_are_the_same(
    changes: list[tuple[int, bool, int | None]], cut: int
) -> None:
    parts = [changes[:cut], changes[cut:]]
    joined = fold(join([fold(outcomes_of(part)) for part in parts]))
    state = applied(changes)
    for number, part in enumerate(parts):
        start = 0 if number == 0 else len(parts[0])
        rows = {key: row - start for key, row in state.items() if start <= row < start + len(part)}
        assert found(rows_of_part(joined, number)) == wanted(rows)
    lost = gone(joined)
    assert {(int(hi), int(lo)) for hi, lo in zip(*lost, strict=True)} == set(
        wanted({key: row for key, row in state.items() if row == GONE})
    )
