"""The bytes of one record: what goes in comes out, and a changed byte is noticed."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import Batch, StreamId
from dolake.journal import record
from dolake.journal.record import HEADER_SIZE, Kind, StreamPoint
from tests.support.property import examples

U64_MAX = 2**64 - 1
sequences = st.integers(1, 2**63 - 1)
positions = st.integers(0, 2**62)
times = st.integers(0, 2**52)
names = st.text(max_size=40)
streams = st.builds(StreamId, names, names)
points = st.builds(StreamPoint, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    first, last = sorted((draw(sequences), draw(sequences)))
    return Batch(
        stream=draw(streams),
        epoch=draw(st.integers(0, 2**63 - 1)),
        number=draw(st.integers(0, 2**63 - 1)),
        sequence_first=first,
        sequence_last=last,
        change_count=draw(st.integers(1, 2**32 - 1)),
        tables=tuple(draw(st.lists(names, max_size=4))),
        payload=draw(st.binary(max_size=300)),
    )


def encoded(batch: Batch, *, position: int = 7, timestamp: int = 1000, synced: int = 64) -> bytes:
    buffers = record.encode(
        Kind.BATCH,
        record.meta_of(batch),
        batch.payload,
        position=position,
        change_count=batch.change_count,
        commit_timestamp_ms=timestamp,
        synced=synced,
    )
    return b"".join(buffers)


def small_batch(payload: bytes = b'{"events":[]}') -> Batch:
    return Batch(StreamId("shop", "eu"), 1, 2, 3, 5, 3, ("users",), payload)


@settings(max_examples=examples(100))
@given(batch=batches(), position=positions, timestamp=times, synced=positions)
def test_a_record_decodes_to_the_batch_that_was_encoded(
    batch: Batch, position: int, timestamp: int, synced: int
) -> None:
    data = encoded(batch, position=position, timestamp=timestamp, synced=synced)
    header = record.decode_header(data)
    assert header is not None
    assert record.is_intact(data, header)
    assert (header.kind, header.position, header.synced) == (Kind.BATCH, position, synced)
    assert header.end == position + batch.change_count
    kept = record.decode_batch(header, memoryview(data)[HEADER_SIZE : HEADER_SIZE + header.body_length])
    assert (kept.position, kept.end, kept.change_count) == (position, header.end, batch.change_count)
    assert (kept.stream, kept.epoch, kept.number) == (batch.stream, batch.epoch, batch.number)
    assert (kept.sequence_first, kept.sequence_last) == (batch.sequence_first, batch.sequence_last)
    assert (kept.tables, kept.payload, kept.commit_timestamp_ms) == (batch.tables, batch.payload, timestamp)


@settings(max_examples=examples(100))
@given(batch=batches(), others=st.binary(max_size=20))
def test_a_record_says_its_own_size_and_does_not_look_beyond_it(batch: Batch, others: bytes) -> None:
    data = encoded(batch)
    header = record.decode_header(data + others)
    assert header is not None
    assert len(data) == header.size == record.size_of(record.meta_of(batch), batch.payload)
    assert len(data) % 8 == 0
    assert record.is_intact(data + others, header)


@settings(max_examples=examples(100))
@given(batch=batches(), where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), before=st.binary(max_size=9))
def test_any_changed_byte_is_noticed(batch: Batch, where: float, flip: int, before: bytes) -> None:
    data = bytearray(encoded(batch))
    header = record.decode_header(bytes(data))
    assert header is not None
    at = int(where * (HEADER_SIZE + header.body_length))
    data[at] ^= flip
    found = record.decode_header(before + bytes(data), len(before))
    assert found is None or not record.is_intact(before + bytes(data), found, len(before))


def test_every_single_bit_of_a_record_is_covered() -> None:
    whole = encoded(small_batch())
    header = record.decode_header(whole)
    assert header is not None
    for bit in range(8 * (HEADER_SIZE + header.body_length)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        found = record.decode_header(bytes(data))
        assert found is None or not record.is_intact(bytes(data), found), f"bit {bit}"


@settings(max_examples=examples(60))
@given(batch=batches(), missing=st.integers(1, 400))
def test_a_record_that_is_cut_short_is_not_intact(batch: Batch, missing: int) -> None:
    data = encoded(batch)
    header = record.decode_header(data)
    assert header is not None
    cut = data[: max(0, HEADER_SIZE + header.body_length - missing)]
    found = record.decode_header(cut)
    assert found is None or not record.is_intact(cut, found)


@settings(max_examples=examples(100))
@given(garbage=st.binary(max_size=200))
def test_garbage_is_no_record(garbage: bytes) -> None:
    for data in (garbage, record.MAGIC_BYTES + garbage):
        header = record.decode_header(data)
        assert header is None or not record.is_intact(data, header)


def test_zeros_are_no_record() -> None:
    assert record.decode_header(bytes(4096)) is None


def test_the_checksum_is_crc32c_over_everything_behind_it() -> None:
    """The document of the format says so, and other readers than ours rely on it."""
    data = encoded(small_batch())
    header = record.decode_header(data)
    assert header is not None
    assert data[:4] == b"DLJR"
    assert int.from_bytes(data[4:8], "little") == google_crc32c.value(data[8 : HEADER_SIZE + header.body_length])
    assert data[HEADER_SIZE + header.body_length :].strip(b"\0") == b""


@settings(max_examples=examples(60))
@given(known=st.dictionaries(streams, points, max_size=8), tables=st.sets(names, max_size=8))
def test_a_checkpoint_remembers_every_stream_and_table(known: dict[StreamId, StreamPoint], tables: set[str]) -> None:
    meta = record.encode_checkpoint(known, tables)
    data = b"".join(
        record.encode(Kind.CHECKPOINT, meta, b"", position=9, change_count=0, commit_timestamp_ms=1, synced=0)
    )
    header = record.decode_header(data)
    assert header is not None
    assert header.kind is Kind.CHECKPOINT
    assert header.end == 9
    assert record.decode_checkpoint(header, memoryview(data)[HEADER_SIZE:]) == (known, tables)


@pytest.mark.parametrize("size", range(9))
def test_a_gap_or_batch_of_any_length_is_padded_to_eight_bytes(size: int) -> None:
    data = encoded(small_batch(b"x" * size))
    header = record.decode_header(data)
    assert header is not None
    assert len(data) % 8 == 0
    assert header.size - HEADER_SIZE - header.body_length < 8
