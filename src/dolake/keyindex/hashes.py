"""Keys as 128-bit hashes: what the index stores in place of a key.

From the pipeline, which has the keys as bytes; to index.py and view.py. Promise: the same key has the same hash in
every process and release, and nobody can craft two keys with one hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dolake.errors import InvalidInput

HASH = "blake2b-128"
"""Stands in the manifest: an index of another hash is not used."""

_HASH_BYTES = 16


class Hashes(NamedTuple):
    """One hash a row: its first eight bytes in `hi`, its last eight in `lo`, both little-endian."""

    hi: NDArray[np.uint64]
    lo: NDArray[np.uint64]


def hash_keys(keys: Sequence[bytes]) -> Hashes:
    """Hash each key.

    Keys come from strangers: with a quick hash somebody could make two rows share an entry, and one would be lost.
    """
    digests = b"".join([blake2b(key, digest_size=_HASH_BYTES).digest() for key in keys])
    words = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    return Hashes(np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]))


def checked(hashes: Hashes) -> Hashes:
    """Refuse what numpy would quietly compare as floating point, and so wrongly."""
    if hashes.hi.dtype != np.uint64 or hashes.lo.dtype != np.uint64 or hashes.hi.size != hashes.lo.size:
        raise InvalidInput(
            "hashes are two uint64 arrays of equal length", hint="signed ones become so by view('uint64')"
        )
    return hashes


def no_hashes() -> Hashes:
    return Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
