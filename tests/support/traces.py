"""Looks for a text in every byte of a folder: as it is, inside Parquet files and inside Avro's compressed blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pyarrow.parquet as pq

_AVRO_SYNC_BYTES = 16


def traces(folder: Path, text: str) -> list[str]:
    """The files below this folder that have the text in them, or in their names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path.relative_to(folder)) for path in files if text in str(path) or _has(path, text)]


def hashed_traces(folder: Path, key: str) -> list[str]:
    """The files of key indexes that have the key's hash."""
    half = blake2b(key.encode(), digest_size=16).digest()[:8]
    return [path.name for path in sorted(folder.rglob("*.run")) if half in path.read_bytes()]


def _has(path: Path, text: str) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # a server is at work
        return False
    if text.encode() in data:
        return True
    if path.suffix == ".parquet":
        return text in str(pq.read_table(path, partitioning=None).to_pylist())
    is_deflated = path.suffix == ".avro" and b"avro.codec\x0edeflate" in data
    return is_deflated and any(text.encode() in block for block in _blocks(data))


def _blocks(data: bytes) -> Iterator[bytes]:
    """What is in the blocks of an Avro file that was compressed with deflate."""
    sync = data[-_AVRO_SYNC_BYTES:]
    for block in data.split(sync)[1:-1]:
        at = 0
        for _ in range(2):  # how many there are, and how long they are together
            while block[at] & 0x80:
                at += 1
            at += 1
        yield zlib.decompress(block[at:], -15)
