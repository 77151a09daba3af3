"""Folding chunk after chunk is folding all of them at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dolake.keyindex.hashes import Hashes
from dolake.pipeline import fold
from dolake.query.folding import Folding

KEYS = [(hi, lo) for hi in (1, 5, 5 << 40) for lo in (0, 3, 9)]  # some share half of their hash
CHUNKS = st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=8), max_size=6)


def outcomes(chunk: list[tuple[tuple[int, int], bool]]) -> fold.Outcomes:
    hashes = Hashes(*(np.array([key[half] for key, _ in chunk], np.uint64) for half in (0, 1)))
    rows = [fold.GONE if is_gone else row for row, (_, is_gone) in enumerate(chunk)]
    return fold.Outcomes(hashes, np.array(rows, np.int64))


@given(CHUNKS)
def test_after_each_chunk_it_is_as_if_all_were_folded_at_once(chunks: list[list[tuple[tuple[int, int], bool]]]) -> None:
    folding, last = Folding(), dict[tuple[int, int], tuple[int, int] | None]()
    for number, chunk in enumerate(chunks):
        before = folding.touched
        copies = before.hi.copy(), before.lo.copy()
        folding.add(outcomes(chunk), len(chunk))
        last |= {key: None if is_gone else (number, row) for row, (key, is_gone) in enumerate(chunk)}
        touched = list(zip(folding.touched.hi.tolist(), folding.touched.lo.tolist(), strict=True))
        assert touched == sorted(last)
        kept = {(at, row) for at, each in enumerate(folding.kept) for row in np.flatnonzero(each).tolist()}
        assert kept == {where for where in last.values() if where}
        assert (before.hi == copies[0]).all()
        assert (before.lo == copies[1]).all()
