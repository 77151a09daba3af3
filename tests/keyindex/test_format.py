"""One run as a file: its bytes, and what happens when they are not as they were written."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from dolake.keyindex import StaleIndex
from dolake.keyindex.disk import Disk
from dolake.keyindex.format import HEADER_SIZE, offsets, open_run, write_run
from dolake.keyindex.runs import Entries
from tests.keyindex.support import entries

ROWS = 1000


def many(rows: int = ROWS) -> Entries:
    chance = np.random.default_rng(7)
    hi = np.sort(chance.integers(0, 2**64, rows, dtype=np.uint64))
    return Entries(hi, hi[::-1].copy(), np.arange(rows, dtype=np.uint32), np.arange(rows, dtype=np.uint32)[::-1].copy())


def run_file(path: Path, rows: int = ROWS) -> Path:
    write_run(path, [many(rows)], rows, Disk())
    return path


def same(left: Entries, right: Entries) -> bool:
    return all(np.array_equal(one, two) for one, two in zip(left.columns(), right.columns(), strict=True))


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, ROWS])
def test_what_is_written_is_read(tmp_path: Path, rows: int) -> None:
    run = open_run(run_file(tmp_path / "a.run", rows))
    run.verify()
    assert same(run.entries, many(rows))
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]


@pytest.mark.parametrize("rows_max", [ROWS, ROWS + 1, 3 * ROWS])
def test_pieces_make_the_same_file_whatever_room_was_kept_for_them(tmp_path: Path, rows_max: int) -> None:
    pieces = [many().take(slice(start, start + 300)) for start in range(0, ROWS, 300)]
    write_run(tmp_path / "a.run", [pieces[0].take(slice(0, 0)), *pieces], rows_max, Disk())
    run = open_run(tmp_path / "a.run")
    run.verify()
    assert same(run.entries, many())
    assert run.checksum == open_run(run_file(tmp_path / "b.run")).checksum


def test_the_bytes_are_those_of_the_documentation(tmp_path: Path) -> None:
    write_run(tmp_path / "a.run", [entries((1, 2, 3, 4), (5, 6, 7, 8), (5, 9, 10, 11))], 3, Disk())
    data = (tmp_path / "a.run").read_bytes()
    magic, version, crc, rows, *columns = struct.unpack_from("<4sII4xQ4I", data)
    assert (magic, version, crc, rows) == (b"DLKI", 1, crc32(data[12:64]), 3)
    assert struct.unpack_from("<3Q", data, 64) == (1, 5, 5)
    assert struct.unpack_from("<3Q", data, 128) == (2, 6, 9)
    assert struct.unpack_from("<3I", data, 192) == (3, 7, 10)
    assert struct.unpack_from("<3I", data, 256) == (4, 8, 11)
    assert columns == [crc32(data[at : at + size]) for at, size in ((64, 24), (128, 24), (192, 12), (256, 12))]
    assert len(data) == 256 + 12


def test_a_row_takes_24_bytes(tmp_path: Path) -> None:
    assert run_file(tmp_path / "a.run").stat().st_size <= HEADER_SIZE + 24 * ROWS + 3 * 64


@pytest.mark.parametrize("size", [0, 3, 63, 64, 65, 5000, -1])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    path = run_file(tmp_path / "a.run")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StaleIndex):
        open_run(path)


def test_a_file_with_bytes_behind_its_end_is_refused(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.run")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(StaleIndex):
        open_run(path)


def test_each_flipped_bit_of_the_header_is_noticed_at_once(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.run")
    data = path.read_bytes()
    for bit in range(HEADER_SIZE * 8):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(StaleIndex):
            open_run(path)


@pytest.mark.parametrize("column", range(4))
def test_a_flipped_bit_of_a_column_is_found_by_verify(tmp_path: Path, column: int) -> None:
    path = run_file(tmp_path / "a.run")
    data = path.read_bytes()
    first, last = offsets(ROWS)[column] * 8, (offsets(ROWS)[column] + (8, 8, 4, 4)[column] * ROWS) * 8 - 1
    for bit in (first, (first + last) // 2, last):
        path.write_bytes(flipped(data, bit))
        run = open_run(path)
        with pytest.raises(StaleIndex, match="checksum"):
            run.verify()


def test_a_run_stays_readable_after_its_file_was_removed(tmp_path: Path) -> None:
    path = run_file(tmp_path / "a.run")
    run = open_run(path)
    path.unlink()
    run.forget()
    assert same(run.entries, many())


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def sync(self, descriptor: int) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "a.run", [many()], ROWS, FullDisk())
    assert list(tmp_path.iterdir()) == []


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
