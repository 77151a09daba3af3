"""The bytes of one record: what goes in comes out, and a changed byte is noticed."""

from __future__ import annotations

import json
from dataclasses import replace

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import Batch, StreamId
from dolake.errors import Damaged
from dolake.journal import record
from dolake.journal.record import HEADER_SIZE, Kind, StreamPoint
from dolake.wire.binary import pack
from dolake.wire.columns import ColumnBatch, columns_of
from dolake.wire.messages import BatchHead, decode_json_batch, encode
from tests.support.property import examples
from tests.support.speaker import batch, event

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
        source_state=draw(st.sampled_from([b"", b"{}", b'{"at":1}'])),
        idempotency_key=draw(names),
    )


def encoded(
    batch: Batch, *, position: int = 7, timestamp: int = 1000, synced: int = 64, form: int = 0, flags: int = 0
) -> bytes:
    buffers = record.encode(
        Kind.BATCH,
        record.meta_of(batch),
        batch.payload,
        position=position,
        change_count=batch.change_count,
        commit_timestamp_ms=timestamp,
        synced=synced,
        form=form,
        flags=flags,
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
    assert (kept.source_state, kept.idempotency_key) == (batch.source_state, batch.idempotency_key)


def decoded(data: bytes) -> record.Record:
    header = record.decode_header(data)
    assert header is not None
    return record.decode_batch(header, memoryview(data)[HEADER_SIZE : HEADER_SIZE + header.body_length])


@pytest.mark.parametrize("form", [record.Form.JSON, record.Form.COLUMNS])
def test_a_record_says_the_form_of_its_payload_and_what_its_changes_may_carry(form: record.Form) -> None:
    flags = record.Flag.DDL | record.Flag.PREVIOUS_KEY
    kept = decoded(encoded(small_batch(), form=form, flags=flags))
    assert (kept.form, kept.flags) == (form, flags)


@pytest.mark.parametrize(("payload", "flags"), [(b"{}", 0), (b'{"metadata":{"ddl":1}}', record.Flag.DDL)])
def test_what_a_record_of_format_1_carries_is_found_in_its_payload(payload: bytes, flags: int) -> None:
    """It has neither a form nor flags, and a shorter meta."""
    meta = msgspec.msgpack.encode(["shop", "eu", 1, 2, 3, 5, ["users"]])
    kept = decoded(
        b"".join(
            record.encode(Kind.BATCH, meta, payload, position=7, change_count=3, commit_timestamp_ms=1000, synced=64)
        )
    )
    assert (kept.form, kept.source_state, kept.idempotency_key) == (record.Form.UNSAID, b"", "")
    assert kept.flags == flags


@pytest.mark.parametrize("form", [record.Form.ARROW, record.Form.FILES, 77])
def test_a_payload_in_a_form_of_a_later_release_is_refused_in_words(form: int) -> None:
    with pytest.raises(Damaged, match=f"position 7 has payload form {int(form)}, which this release does not read"):
        decoded(encoded(small_batch(), form=form))


@pytest.mark.parametrize(
    ("metadata", "flags"),
    [
        ({"transactionId": 7}, record.Flag.TRANSACTION),
        ({"ddl": {"action": "truncate"}}, record.Flag.DDL),
        ({"unchanged": ["a"], "previousRowId": "6"}, record.Flag.UNCHANGED | record.Flag.PREVIOUS_KEY),
        ({"other": 1}, record.Flag(0)),
    ],
)
@pytest.mark.parametrize("is_columns", [False, True])
def test_flags_are_found_in_both_forms_of_a_batch(
    metadata: dict[str, object], flags: record.Flag, is_columns: bool
) -> None:
    message = decode_json_batch(json.dumps(batch(1, [event(1, metadata=metadata), event(2)])).encode())
    head = {name: getattr(message, name) for name in BatchHead.__struct_fields__}
    payload = pack(ColumnBatch(events=columns_of(message.events), **head)) if is_columns else encode(message)
    assert record.flags_of(payload) == flags
    assert record.form_of(payload) is (record.Form.COLUMNS if is_columns else record.Form.JSON)


def test_a_name_that_may_be_written_with_escapes_may_be_any() -> None:
    assert all(flag in record.flags_of(b'{"events":[{"metadata":{"\\u0064dl":{}}}]}') for flag in record.Flag)


@pytest.mark.parametrize(("change_count", "end"), [(0, 8), (1, 8), (3, 10)])
def test_a_batch_without_changes_takes_one_position(change_count: int, end: int) -> None:
    data = encoded(replace(small_batch(b""), change_count=change_count, source_state=b"{}"))
    header = record.decode_header(data)
    assert header is not None
    assert (header.end, decoded(data).end, decoded(data).change_count) == (end, end, change_count)


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
