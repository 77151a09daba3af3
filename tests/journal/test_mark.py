"""The durable mark: what one process writes, every other one sees whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dolake.errors import NotFound
from dolake.journal.mark import FILE_NAME, Mark, MarkFile
from tests.support.journals import flip, mark_of

ID = bytes(range(16))

HAMMER = """
import sys
from pathlib import Path
from dolake.journal.mark import Mark, MarkFile
file = MarkFile(Path(sys.argv[1]), writable=True)
print("ready", flush=True)
for position in range(1, 150_001):
    file.write(Mark(position, position, position, position, bytes(16)))
"""


def mark_at(position: int) -> Mark:
    return Mark(position, segment=position // 2, offset=position * 3, commit_timestamp_ms=position + 9, journal_id=ID)


def read(directory: Path) -> Mark | None:
    file = MarkFile(directory, writable=False)
    try:
        return file.read()
    finally:
        file.close()


def write(directory: Path, *positions: int) -> None:
    file = MarkFile(directory, writable=True)
    for position in positions:
        file.write(mark_at(position))
    file.close()


def test_the_last_mark_is_the_one_that_is_read(tmp_path: Path) -> None:
    for positions in ([1], [2, 3], [4, 5, 6], [7]):
        write(tmp_path, *positions)
        found = read(tmp_path)
        assert found is not None
        wanted = mark_at(positions[-1])
        assert (found.position, found.segment, found.offset) == (wanted.position, wanted.segment, wanted.offset)
        assert (found.commit_timestamp_ms, found.journal_id) == (wanted.commit_timestamp_ms, ID)


def test_an_open_reader_sees_every_new_mark(tmp_path: Path) -> None:
    writer = MarkFile(tmp_path, writable=True)
    reader = MarkFile(tmp_path, writable=False)
    assert reader.read() is None
    for position in range(1, 10):
        writer.write(mark_at(position))
        found = reader.read()
        assert found is not None
        assert found.position == position
    reader.close()
    writer.close()


def test_a_lower_position_written_later_counts(tmp_path: Path) -> None:
    """After a repair the end may lie before the old one: the newest word counts, not the largest."""
    write(tmp_path, 100, 50)
    assert mark_of(tmp_path).position == 50


@pytest.mark.parametrize("at", range(0, 128, 3))
def test_a_half_written_mark_leaves_the_one_before_it(tmp_path: Path, at: int) -> None:
    write(tmp_path, 10, 20)
    flip(tmp_path / FILE_NAME, at)
    assert mark_of(tmp_path).position in (10, 20)
    write(tmp_path, 30)
    assert mark_of(tmp_path).position == 30


def test_without_a_journal_there_is_no_mark_to_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no journal in"):
        MarkFile(tmp_path, writable=False)


def test_a_journal_that_is_just_being_made_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    with pytest.raises(NotFound, match="yet"):
        MarkFile(tmp_path, writable=False)


def test_a_file_of_zeros_holds_no_mark(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(bytes(4096))
    assert read(tmp_path) is None


def test_a_file_without_an_intact_mark_holds_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xa5" * 4096)
    assert read(tmp_path) is None


def test_a_reader_in_another_process_never_sees_half_a_mark_nor_one_that_falls(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        reader = MarkFile(tmp_path, writable=False)
        newest = 0
        while writer.poll() is None:
            mark = reader.read()
            if mark is None:
                assert newest == 0, "the mark vanished"
                continue
            assert mark.position == mark.segment == mark.offset == mark.commit_timestamp_ms
            assert mark.position >= newest
            newest = mark.position
        reader.close()
    assert writer.returncode == 0
    assert mark_of(tmp_path).position == 150_000
