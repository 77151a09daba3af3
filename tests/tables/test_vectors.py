"""Deletion vectors: their bytes, read back by us and by PyIceberg."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from dolake.tables.vectors import positions_in, puffin, vectors_in

some_positions = st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 5_000), min_size=1, max_size=300).map(
    lambda found: np.array(sorted(found), np.uint32)
)
some_vectors = st.dictionaries(st.text(min_size=1, max_size=30), some_positions, min_size=1, max_size=5)


@given(vectors=some_vectors)
def test_what_is_written_is_read_back_by_place_and_by_name(vectors: dict[str, np.ndarray]) -> None:
    file, places = puffin(vectors)
    for path, positions in vectors.items():
        blob = file[places[path].offset :][: places[path].size]
        assert positions_in(blob).tolist() == positions.tolist()
    assert {path: found.tolist() for path, found in vectors_in(file).items()} == {
        path: positions.tolist() for path, positions in vectors.items()
    }


@given(vectors=some_vectors)
def test_pyiceberg_reads_the_same(vectors: dict[str, np.ndarray]) -> None:
    file, _ = puffin(vectors)
    found = deletion_vectors_from_puffin_file(PuffinFile(file))
    assert {each.referenced_data_file: each.to_vector().to_pylist() for each in found} == {
        path: positions.tolist() for path, positions in vectors.items()
    }


@given(positions=some_positions, data=st.data())
def test_a_flipped_bit_is_never_taken_for_a_vector(positions: np.ndarray, data: st.DataObject) -> None:
    file, places = puffin({"a.parquet": positions})
    place = places["a.parquet"]
    blob = bytearray(file[place.offset :][: place.size])
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="vector"):
        positions_in(bytes(blob))


@given(cut=st.integers(0, 200))
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    file, _ = puffin({"a.parquet": np.arange(0, 90, 3, dtype=np.uint32)})
    with pytest.raises(ValueError, match=r"Puffin|vector"):
        vectors_in(file[: min(cut, len(file) - 1)])


def test_a_million_rows_in_a_row_take_a_few_bytes() -> None:
    file, _ = puffin({"a.parquet": np.arange(1_000_000, dtype=np.uint32)})
    assert len(file) < 1_000
