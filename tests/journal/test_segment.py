"""One journal file: its header, its intact records, and what tells a torn write from damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.errors import Damaged
from dolake.journal import record, segment
from dolake.journal.record import Kind
from dolake.journal.segment import Scan, SegmentHeader
from tests.support.property import examples

HEAD = SegmentHeader(base=500, created_ms=1_763_000_000_000, journal_id=bytes(range(16)))


def record_bytes(payload: bytes, *, position: int, synced: int = 0, count: int = 1, kind: Kind = Kind.BATCH) -> bytes:
    return b"".join(
        record.encode(
            kind, b"meta", payload, position=position, change_count=count, commit_timestamp_ms=1, synced=synced
        )
    )


@contextmanager
def segment_file(tmp_path: Path, data: bytes, base: int = 500) -> Iterator[tuple[Path, int]]:
    path = segment.path_of(tmp_path, base)
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    with segment_file(tmp_path, HEAD.encode()) as (path, descriptor):
        assert segment.read_header(descriptor, path) == HEAD
    assert len(HEAD.encode()) == segment.HEADER_SIZE


@pytest.mark.parametrize("at", range(segment.HEADER_SIZE))
def test_any_changed_byte_of_a_header_is_refused(tmp_path: Path, at: int) -> None:
    data = bytearray(HEAD.encode())
    data[at] ^= 0x10
    with (
        segment_file(tmp_path, bytes(data)) as (path, descriptor),
        pytest.raises(Damaged, match=segment.path_of(tmp_path, 500).name),
    ):
        segment.read_header(descriptor, path)


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_file_too_short_for_a_header_is_refused(tmp_path: Path, size: int) -> None:
    with (
        segment_file(tmp_path, HEAD.encode()[:size]) as (path, descriptor),
        pytest.raises(Damaged, match=r"at byte 0"),
    ):
        segment.read_header(descriptor, path)


def test_a_newer_format_is_refused_with_its_number(tmp_path: Path) -> None:
    data = bytearray(HEAD.encode())
    data[8:12] = (3).to_bytes(4, "little")
    with segment_file(tmp_path, bytes(data)) as (path, descriptor), pytest.raises(Damaged, match="format 3") as refusal:
        segment.read_header(descriptor, path)
    assert "release" in refusal.value.hint


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    with (
        segment_file(tmp_path, HEAD.encode(), base=501) as (path, descriptor),
        pytest.raises(Damaged, match="begins at position 500"),
    ):
        segment.read_header(descriptor, path)


def test_segments_are_listed_in_the_order_of_their_positions(tmp_path: Path) -> None:
    for base in (10**18, 7, 0, 99, 100):
        segment.path_of(tmp_path, base).touch()
    (tmp_path / "notes.segment").touch()
    (tmp_path / "durable.mark").touch()
    (tmp_path / "next.tmp").touch()
    assert segment.list_bases(tmp_path) == [0, 7, 99, 100, 10**18]


def test_a_scan_yields_records_in_order_and_ends_behind_the_last(tmp_path: Path) -> None:
    records = [record_bytes(b"x" * size, position=500 + at) for at, size in enumerate([0, 1, 7, 8, 5000])]
    data = HEAD.encode() + b"".join(records)
    with segment_file(tmp_path, data + bytes(4096)) as (_, descriptor):
        scan = Scan(descriptor)
        found = [(offset, header.position, body[4:]) for offset, header, body in scan]
    assert [position for _, position, _ in found] == [500, 501, 502, 503, 504]
    assert [len(body) for _, _, body in found] == [0, 1, 7, 8, 5000]
    assert [offset for offset, _, _ in found] == [64 + sum(map(len, records[:at])) for at in range(5)]
    assert scan.offset == len(data)


def test_a_scan_reads_records_larger_than_its_own_buffer(tmp_path: Path) -> None:
    large = [record_bytes(bytes([at]) * (3 << 19), position=500 + at) for at in range(3)]
    with segment_file(tmp_path, HEAD.encode() + b"".join(large)) as (_, descriptor):
        assert [body[4:5] for _, _, body in Scan(descriptor)] == [b"\0", b"\1", b"\2"]


def test_a_scan_never_looks_beyond_its_limit(tmp_path: Path) -> None:
    records = [record_bytes(b"x" * 100, position=500 + at) for at in range(3)]
    data = HEAD.encode() + b"".join(records)
    second = 64 + len(records[0])
    with segment_file(tmp_path, data) as (_, descriptor):
        for limit in range(second, second + len(records[1])):
            assert [header.position for _, header, _ in Scan(descriptor, limit=limit)] == [500]
        limit = second + len(records[1])
        assert [header.position for _, header, _ in Scan(descriptor, limit=limit)] == [500, 501]


@settings(max_examples=examples(60))
@given(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=6), where=st.floats(0, 1, exclude_max=True))
def test_a_scan_stops_before_the_first_byte_that_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], where: float
) -> None:
    records = [record_bytes(b"x" * size, position=500 + at) for at, size in enumerate(sizes)]
    data = bytearray(HEAD.encode() + b"".join(records))
    at = 64 + int(where * (len(data) - 64))
    broken = next(index for index in range(len(sizes)) if at < 64 + sum(map(len, records[: index + 1])))
    header = record.decode_header(records[broken])
    assert header is not None
    start = 64 + sum(map(len, records[:broken]))
    is_padding = at >= start + record.HEADER_SIZE + header.body_length
    data[at] ^= 0xFF
    with segment_file(tmp_path_factory.mktemp("scan"), bytes(data)) as (_, descriptor):
        scan = Scan(descriptor)
        intact = len(list(scan))
    assert intact == (len(sizes) if is_padding else broken)
    assert is_padding or scan.offset == start


def test_a_record_behind_a_torn_one_of_the_same_group_is_no_proof_of_damage(tmp_path: Path) -> None:
    """Pages of an un-synced group reach the disk in any order."""
    end = 64
    tail = bytes(200) + record_bytes(b"x", position=502, synced=end)
    with segment_file(tmp_path, HEAD.encode() + tail) as (_, descriptor):
        assert segment.find_damage(descriptor, end, 500) is None


def test_a_record_written_after_these_bytes_were_synced_is_proof_of_damage(tmp_path: Path) -> None:
    end = 64
    tail = bytes(200) + record_bytes(b"x", position=502, synced=end + 200)
    with segment_file(tmp_path, HEAD.encode() + tail) as (_, descriptor):
        assert segment.find_damage(descriptor, end, 500) == end + 200


def test_a_broken_record_is_no_proof_of_anything(tmp_path: Path) -> None:
    tail = bytearray(bytes(200) + record_bytes(b"x" * 50, position=502, synced=264))
    tail[-20] ^= 1
    with segment_file(tmp_path, HEAD.encode() + bytes(tail)) as (_, descriptor):
        assert segment.find_damage(descriptor, 64, 500) is None


def test_a_segment_that_does_not_begin_with_a_checkpoint_is_damaged(tmp_path: Path) -> None:
    for first in (b"", bytes(100), record_bytes(b"x", position=500)):
        with (
            segment_file(tmp_path, HEAD.encode() + first) as (path, descriptor),
            pytest.raises(Damaged, match="at byte 64: it does not begin with a checkpoint"),
        ):
            segment.first_checkpoint(path, descriptor)


def test_damage_is_told_with_file_byte_and_way_out(tmp_path: Path) -> None:
    error = segment.damaged(segment.path_of(tmp_path, 500), 1234, "a checksum is wrong")
    assert "00000000000000000500.segment at byte 1234" in error.message
    assert "dolake journal check" in error.hint
    assert error.code == "damaged"
    assert not error.retryable
