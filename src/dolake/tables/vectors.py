"""Deletion vectors, as tables of format 3 have them: which rows of a data file are gone, as a blob in a Puffin file.

From pipeline/files.py, which writes them; to all that read a table's deleted rows without Java. Pure bytes: the frame
and the footer are the specification's, the bitmaps Roaring's. Promise: what `puffin` made, `positions_in` and
`vectors_in` give back; bytes that are damaged raise ValueError and are never taken for a vector.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

Positions = NDArray[np.uint32]

_PUFFIN, _VECTOR = b"PFA1", b"\xd1\xd3\x39\x64"
_KIND = "deletion-vector-v1"
_POSITION_ID = 2147483645
"""Of the column `_pos`, which such a vector is about."""
_UNKNOWN = -1
"""The snapshot that a vector comes with is not known when it is written: the specification wants this for it."""
_FOOTER_END = 12


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """Where in its file a vector is."""

    offset: int
    size: int


def puffin(vectors: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, VectorPlace]]:
    """A file with a vector for each of these data files, and where each is; positions ascend."""
    parts, places, offset = [_PUFFIN], dict[str, VectorPlace](), len(_PUFFIN)
    for path, positions in vectors.items():
        blob = _blob(positions)
        places[path] = VectorPlace(offset, len(blob))
        parts.append(blob)
        offset += len(blob)
    blobs = [_description(path, places[path], len(positions)) for path, positions in vectors.items()]
    payload = msgspec.json.encode({"blobs": blobs})
    parts += [_PUFFIN, payload, struct.pack("<i", len(payload)), bytes(4), _PUFFIN]
    return b"".join(parts), places


def positions_in(blob: bytes) -> Positions:
    """What a vector says, as the bytes at its place have it."""
    if len(blob) < 20 or blob[4:8] != _VECTOR:
        raise ValueError("these bytes are no deletion vector")
    (length,) = struct.unpack(">I", blob[:4])
    framed, checksum = blob[4 : 4 + length], blob[4 + length : 8 + length]
    if len(framed) != length or len(checksum) != 4 or zlib.crc32(framed) != int.from_bytes(checksum, "big"):
        raise ValueError("a deletion vector is damaged: its checksum is another one")
    (count,) = struct.unpack("<q", framed[4:12])
    if count == 0:
        return np.empty(0, np.uint32)
    if count != 1 or framed[12:16] != bytes(4):
        raise ValueError("a deletion vector is of a file with more than four thousand million rows")
    return np.frombuffer(BitMap.deserialize(framed[16:]).to_array(), np.uint32)


def vectors_in(file: bytes) -> dict[str, Positions]:
    """All vectors of a Puffin file, by the data files that they are about."""
    if len(file) < _FOOTER_END + 2 * len(_PUFFIN) or file[:4] != _PUFFIN or file[-4:] != _PUFFIN:
        raise ValueError("this is no Puffin file")
    if file[-8:-4] != bytes(4):
        raise ValueError("the footer of a Puffin file is compressed, which vectors never need")
    (size,) = struct.unpack("<i", file[-_FOOTER_END:-8])
    start = len(file) - _FOOTER_END - size
    if size < 0 or start < len(_PUFFIN) or file[start - 4 : start] != _PUFFIN:
        raise ValueError("the footer of a Puffin file is damaged")
    try:
        blobs = msgspec.json.decode(file[start:-_FOOTER_END])["blobs"]
        found = [each for each in blobs if each["type"] == _KIND]
        return {
            each["properties"]["referenced-data-file"]: positions_in(file[each["offset"] :][: each["length"]])
            for each in found
        }
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise ValueError("the footer of a Puffin file is damaged") from error


def _blob(positions: NDArray[Any]) -> bytes:
    bitmap = BitMap(positions.astype(np.uint32, copy=False))
    bitmap.run_optimize()
    framed = b"".join((_VECTOR, struct.pack("<q", 1), bytes(4), bitmap.serialize()))
    return b"".join((struct.pack(">I", len(framed)), framed, struct.pack(">I", zlib.crc32(framed))))


def _description(path: str, place: VectorPlace, count: int) -> dict[str, Any]:
    return {
        "type": _KIND,
        "fields": [_POSITION_ID],
        "snapshot-id": _UNKNOWN,
        "sequence-number": _UNKNOWN,
        "offset": place.offset,
        "length": place.size,
        "properties": {"referenced-data-file": path, "cardinality": str(count)},
    }
