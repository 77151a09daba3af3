"""A key's hash is the same everywhere and for ever."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest

from dolake.errors import InvalidInput
from dolake.keyindex import Hashes, hash_keys
from dolake.keyindex.hashes import checked


def test_a_hash_is_blake2b_of_the_key_in_two_little_endian_halves() -> None:
    keys = [b"", b"a", b"order-1", bytes(300)]
    hi, lo = hash_keys(keys)
    for index, key in enumerate(keys):
        digest = blake2b(key, digest_size=16).digest()
        assert int(hi[index]).to_bytes(8, "little") + int(lo[index]).to_bytes(8, "little") == digest


def test_the_hash_of_a_key_never_changes() -> None:
    hi, lo = hash_keys([b"order-1"])
    assert (int(hi[0]), int(lo[0])) == (733996287445233238, 15493829989321450028)


def test_no_keys_have_no_hashes() -> None:
    assert [half.size for half in hash_keys([])] == [0, 0]


def test_signed_hashes_are_refused_because_numpy_would_compare_them_as_floating_point() -> None:
    signed = np.array([-1], np.int64)
    with pytest.raises(InvalidInput, match="uint64"):
        checked(Hashes(signed, signed))  # type: ignore[arg-type]
