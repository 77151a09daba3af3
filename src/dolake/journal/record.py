"""The bytes of one record: a batch, a checkpoint of all streams, or a gap left by a repair. This is format 2.

From writer.py; to reader.py and recovery.py, in this process and in others. Promise: decoding returns
what encoding was given, or says that the bytes are not a record; a CRC32C over everything but itself decides.
Synchronous and light: Spark workers import this. docs/explain/journal-format.md has the same layout with its reasons.

    0   u32  magic  "DLJR"
    4   u32  crc32c of bytes 8 to the end of the body
    8   u32  body length (meta + payload, without padding)
    12  u32  meta length
    16  u64  position of the first change
    24  u32  how many changes
    28  u8   kind: 1 batch, 2 checkpoint, 3 gap
    29  u8   form of the payload: 1 JSON, 2 columns, 3 Arrow, 4 list of files; 0 no payload, or written in format 1
    30  u16  flags: what a change of the batch may carry
    32  u64  commit timestamp, ms
    40  u64  synced: every byte of this segment before this offset was durable when the record was written
    48  body: meta as msgpack, then payload; then zeros up to a multiple of 8

In format 1 the bytes 29 to 31 are zero and the meta is shorter; whatever is longer at its end is for later releases.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import google_crc32c
import msgspec

from dolake.changes import Batch, StreamId
from dolake.errors import Damaged
from dolake.positions import Position
from dolake.wire.source_state import merge

MAGIC = 0x524A4C44  # "DLJR" in little-endian
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
HEADER = struct.Struct("<IIIIQIBBHQQ")
HEADER_SIZE = HEADER.size
_CHECKED = struct.Struct("<IIQIBBHQQ")
_ALIGN = 8
BODY_SIZE_MAX_BYTES = 1 << 30


class Kind(IntEnum):
    BATCH = 1
    CHECKPOINT = 2
    GAP = 3


class Form(IntEnum):
    """How the payload is written. ARROW and FILES are for later releases."""

    UNSAID = 0
    JSON = 1
    COLUMNS = 2
    ARROW = 3
    FILES = 4


_FORMS_READ = (Form.UNSAID, Form.JSON, Form.COLUMNS)


class Flag(IntFlag):
    """What a change of the batch may carry in its metadata. A flag that is not set says: none does."""

    TRANSACTION = 1
    DDL = 2
    UNCHANGED = 4
    PREVIOUS_KEY = 8


_MARKS = {
    Flag.TRANSACTION: b'"transactionId"',
    Flag.DDL: b'"ddl"',
    Flag.UNCHANGED: b'"unchanged"',
    Flag.PREVIOUS_KEY: b'"previousRowId"',
}
_ALL_FLAGS = Flag.TRANSACTION | Flag.DDL | Flag.UNCHANGED | Flag.PREVIOUS_KEY
_ESCAPE = b"\\u00"
"""How a letter of a name may be written instead of itself."""


class BatchMeta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What recovery and dedup need to know of a batch without reading its payload."""

    source: str
    shard: str
    epoch: int
    number: int
    sequence_first: int
    sequence_last: int
    tables: tuple[str, ...]
    source_state: bytes = b""
    idempotency_key: str = ""


class StreamPoint(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a stream is durable: its epoch, highest event sequence and last batch number; and its source's state."""

    epoch: int = 0
    sequence: int = 0
    number: int = 0
    state: bytes = b""
    """A JSON object; empty where the stream has no state."""

    def reached(self, epoch: int) -> int:
        """The highest sequence within this epoch; another epoch begins from nothing."""
        return self.sequence if self.epoch == epoch else 0

    def after(self, batch: Batch | BatchMeta) -> StreamPoint:
        """The point once this batch is durable. Writing, recovery and repair must move it alike."""
        state = self.state if self.epoch == batch.epoch else b""
        if batch.source_state:
            state = merge(state, batch.source_state)
        return StreamPoint(batch.epoch, max(self.reached(batch.epoch), batch.sequence_last), batch.number, state)


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """All that must outlive old segments. Each segment begins with one."""

    streams: list[tuple[str, str, StreamPoint]]
    tables: list[str]


@dataclass(frozen=True, slots=True)
class Header:
    kind: Kind
    position: Position
    change_count: int
    commit_timestamp_ms: int
    synced: int
    meta_length: int
    body_length: int
    crc: int
    form: int = Form.UNSAID
    flags: int = 0

    @property
    def end(self) -> Position:
        return self.position + (position_count(self.change_count) if self.kind is Kind.BATCH else self.change_count)

    @property
    def size(self) -> int:
        """How many bytes of the file the record takes, padding included."""
        return HEADER_SIZE + self.body_length + -self.body_length % _ALIGN


@dataclass(frozen=True, slots=True)
class Record:
    """One batch as the journal keeps it; `payload` is the cdc_batch message, decoded by wire.decode_raw_batch."""

    position: Position
    change_count: int
    commit_timestamp_ms: int
    stream: StreamId
    epoch: int
    number: int
    sequence_first: int
    sequence_last: int
    tables: tuple[str, ...]
    payload: bytes
    form: Form = Form.UNSAID
    flags: Flag = _ALL_FLAGS
    """What a change of it may carry; of a record of format 1 found in its payload."""
    source_state: bytes = b""
    idempotency_key: str = ""

    @property
    def end(self) -> Position:
        return self.position + position_count(self.change_count)


_encode_meta = msgspec.msgpack.Encoder().encode
_decode_batch_meta = msgspec.msgpack.Decoder(BatchMeta).decode
_decode_checkpoint = msgspec.msgpack.Decoder(Checkpoint).decode
_PADDING = tuple(bytes(n) for n in range(_ALIGN))


def position_count(change_count: int) -> int:
    """How many positions a batch takes: one for each change; one also for a batch that carries only a state."""
    return max(1, change_count)


def form_of(payload: bytes) -> Form:
    """JSON begins with a bracket, MessagePack's maps with a byte that no JSON text begins with."""
    return Form.UNSAID if not payload else Form.COLUMNS if payload[0] >= 0x80 else Form.JSON


def flags_of(payload: bytes) -> Flag:
    """What a change of this batch may carry: a name that is found elsewhere in it counts too."""
    if _ESCAPE in payload:
        return _ALL_FLAGS
    found = Flag(0)
    if b'"metadata"' in payload or payload[:1] >= b"\x80":
        for flag, mark in _MARKS.items():
            if mark in payload:
                found |= flag
    return found


def meta_of(batch: Batch) -> bytes:
    """Encoded apart from the header, because it is known before the position is."""
    stream = batch.stream
    return _encode_meta(
        BatchMeta(
            stream.source,
            stream.shard,
            batch.epoch,
            batch.number,
            batch.sequence_first,
            batch.sequence_last,
            batch.tables,
            batch.source_state,
            batch.idempotency_key,
        )
    )


def size_of(meta: bytes, payload: bytes) -> int:
    body = len(meta) + len(payload)
    return HEADER_SIZE + body + -body % _ALIGN


def encode(
    kind: Kind,
    meta: bytes,
    payload: bytes,
    *,
    position: Position,
    change_count: int,
    commit_timestamp_ms: int,
    synced: int,
    form: int = Form.UNSAID,
    flags: int = 0,
) -> tuple[bytes, ...]:
    """The record as buffers for one vectored write; the payload is not copied."""
    body_length = len(meta) + len(payload)
    checked = _CHECKED.pack(
        body_length, len(meta), position, change_count, kind, form, flags, commit_timestamp_ms, synced
    )
    crc = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(checked), meta), payload)
    head = struct.pack("<II", MAGIC, crc) + checked + meta
    padding = _PADDING[-body_length % _ALIGN]
    return (head, payload, padding) if padding else (head, payload)


def decode_header(data: bytes | bytearray, offset: int = 0) -> Header | None:
    """The header at this offset, or None where no record begins. Its CRC is checked with the body."""
    if len(data) - offset < HEADER_SIZE:
        return None
    magic, crc, body_length, meta_length, position, count, kind, form, flags, timestamp, synced = HEADER.unpack_from(
        data, offset
    )
    if magic != MAGIC or not 1 <= kind <= 3 or meta_length > body_length or body_length > BODY_SIZE_MAX_BYTES:
        return None
    return Header(Kind(kind), position, count, timestamp, synced, meta_length, body_length, crc, form, flags)


def is_intact(data: bytes, header: Header, offset: int = 0) -> bool:
    """Whether header and body at this offset are the bytes that were written."""
    end = offset + HEADER_SIZE + header.body_length
    if len(data) < end:
        return False
    crc: int = google_crc32c.value(data[offset + 8 : end])
    return crc == header.crc


def decode_meta(header: Header, body: memoryview) -> BatchMeta:
    """What is known of a batch without its payload."""
    return _decode_batch_meta(body[: header.meta_length])


def decode_batch(header: Header, body: memoryview) -> Record:
    """The batch of an intact record. One in a form of a later release is refused, because nobody could read it."""
    meta = decode_meta(header, body)
    if header.form not in _FORMS_READ:
        raise Damaged(
            f"the batch at position {header.position} has payload form {header.form}, which this release does not read",
            hint="use the DoLake release that wrote it, or a newer one",
        )
    payload = bytes(body[header.meta_length : header.body_length])
    return Record(
        position=header.position,
        change_count=header.change_count,
        commit_timestamp_ms=header.commit_timestamp_ms,
        stream=StreamId(meta.source, meta.shard),
        epoch=meta.epoch,
        number=meta.number,
        sequence_first=meta.sequence_first,
        sequence_last=meta.sequence_last,
        tables=meta.tables,
        payload=payload,
        form=Form(header.form),
        flags=Flag(header.flags) if header.form else flags_of(payload),
        source_state=meta.source_state,
        idempotency_key=meta.idempotency_key,
    )


def encode_checkpoint(streams: dict[StreamId, StreamPoint], tables: set[str]) -> bytes:
    rows = [(stream.source, stream.shard, point) for stream, point in streams.items()]
    return _encode_meta(Checkpoint(rows, sorted(tables)))


def decode_checkpoint(header: Header, body: memoryview) -> tuple[dict[StreamId, StreamPoint], set[str]]:
    checkpoint = _decode_checkpoint(body[: header.meta_length])
    return {StreamId(source, shard): point for source, shard, point in checkpoint.streams}, set(checkpoint.tables)
