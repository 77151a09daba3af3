"""The words on the socket: every message of the protocol, checked once where the bytes come in.

From receiver/endpoint.py (the server's ear) and client/aio.py (the client's); to wire/session.py, which decides what a
valid message means. Promise: a message that passes here has the promised types, rising event sequences, images that
are JSON objects in valid UTF-8, and table names that are safe everywhere. Unknown fields are ignored, so that an old
server understands a new client. Names are camelCase on the wire and snake_case here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from dolake.changes import Operation, StreamId
from dolake.errors import MessageValidationError
from dolake.positions import CircuitBreakerState
from dolake.tables.names import problem_with_table_name

PROTOCOL_VERSION = 1
SEQUENCE_MAX = 2**63 - 1
ROW_ID_LENGTH_MAX = 4096
EVENTS_MAX = 100_000
CORRELATION_ID_LENGTH_MAX = 256

Sequence_ = Annotated[int, Meta(ge=1, le=SEQUENCE_MAX)]
"""An event's sequence. It starts at 1, because 0 already means «nothing yet» in lastAckSequence."""
Count = Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
SourceName = Annotated[str, Meta(min_length=1, max_length=256)]
ShardName = Annotated[str, Meta(max_length=256)]
CorrelationId = Annotated[str, Meta(max_length=CORRELATION_ID_LENGTH_MAX)]
RowId = Annotated[str, Meta(min_length=1, max_length=ROW_ID_LENGTH_MAX)]

AckStatus = Literal["ok", "buffered", "persisted", "duplicate", "fallback"]
NackReason = Literal[
    "buffer_full",
    "rate_limited",
    "invalid_sequence",
    "invalid_format",
    "internal_error",
    "shutting_down",
    "payload_too_large",
    "event_too_large",
    "load_shedding",
    "connection_limit",
    "ip_limit",
]
ServerState = Literal["idle", "receiving", "flushing", "recovering", "error"]
FlushReason = Literal["manual", "shutdown", "buffer_full", "time_threshold"]


# --- what an event looks like ----------------------------------------------------------------------------------------


class SchemaColumn(Struct, rename="camel", frozen=True, gc=False):
    """A column as its source declares it. Whether it may be null, and the comment, are for people to read."""

    name: Annotated[str, Meta(min_length=1, max_length=1_024)]
    type: Annotated[str, Meta(min_length=1, max_length=256)]
    nullable: bool = True
    key: bool = False
    """Whether it is part of the key: then its type never changes because of a value."""
    comment: Annotated[str, Meta(max_length=1_024)] | None = None
    """What the type alone does not say, such as `epoch milliseconds`; null leaves the column's comment as it is."""
    is_hint: bool = False
    """The source guesses the type: a later guess, or values that contradict it, may change the column."""


class Ddl(Struct, rename="camel", frozen=True, gc=False):
    """What a source has done to a table, not to a row of it."""

    action: Literal["create", "truncate", "drop", "rename", "rename_column", "drop_column"]
    column: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    to: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    """The new name of the table or the column."""

    def __post_init__(self) -> None:
        if self.action.endswith("_column") and self.column is None:
            raise ValueError(f"{self.action} needs the name of a `column`")
        if self.action.startswith("rename") and self.to is None:
            raise ValueError(f"{self.action} needs the new name in `to`")
        if self.action == "rename" and self.to is not None and (problem := problem_with_table_name(self.to)):
            raise ValueError(f"the new name {problem}")


class AbsentValue(Struct, frozen=True, gc=False):
    """What is known of a value that its source could not send."""

    size: Count
    """In bytes."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    reason: Annotated[str, Meta(max_length=256)]


class EventMetadata(Struct, rename="camel", frozen=True, gc=False):
    """The metadata fields that mean something to DoLake; a source may add others of its own."""

    transaction_id: Annotated[str, Meta(min_length=1, max_length=256)] | int | None = None
    transaction_end: bool = False
    previous_row_id: Annotated[str, Meta(min_length=1, max_length=ROW_ID_LENGTH_MAX)] | None = None
    unchanged: list[str] | None = None
    schema: (
        Annotated[list[SchemaColumn], Meta(max_length=10_000)] | dict[str, Any] | str | int | float | bool | None
    ) = None
    """Only a list means something to us: many sources have a schema of their own here, such as `public`."""
    ddl: Ddl | None = None
    rescued: dict[Annotated[str, Meta(min_length=1, max_length=1_024)], AbsentValue] | None = None
    """Columns of `after` (of `before`, for a DELETE) that were left out, because their values are too large."""


class _EventHead(Struct, rename="camel", kw_only=True, gc=False):
    sequence: Sequence_
    timestamp: Count
    operation: Operation
    table: str
    row_id: RowId


class CDCEvent(_EventHead, omit_defaults=True):
    """One change as the seeds define it, with its images as dictionaries."""

    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class RawEvent(_EventHead, omit_defaults=True):
    """The same change with its images left as the bytes they came in; what readers of the journal use."""

    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


class Image(Struct, frozen=True, gc=False):
    """A JSON object whose content nobody looks at: msgspec checks its syntax and keeps nothing of it."""


class EventEnvelope(_EventHead):
    """The same change for the receiver, which checks that images are objects and lets the journal keep the bytes."""

    before: Image | None = None
    after: Image | None = None
    metadata: EventMetadata | None = None


Event = TypeVar("Event", CDCEvent, RawEvent, EventEnvelope)


# --- client to server ------------------------------------------------------------------------------------------------
# Our server needs few of these fields, but the protocol requires more: so defaults are written out and never omitted.


class Capabilities(Struct, rename="camel", frozen=True):
    """What the client can do. `max_message_size` is what it is ready to receive; our messages are far smaller."""

    binary_protocol: bool = False
    compression: bool = False
    batching: bool = True
    max_batch_size: Count = 1000
    max_message_size: Count = 4 * 1024 * 1024


class ConnectMessage(Struct, tag="connect", tag_field="type", rename="camel", kw_only=True):
    """The first word of a client that wants to resume; answered by a status."""

    source_do_id: SourceName
    source_shard_name: ShardName | None = None
    source_epoch: Count | None = None
    timestamp: Count = 0
    correlation_id: CorrelationId | UnsetType = UNSET
    last_ack_sequence: Count = 0
    protocol_version: int = PROTOCOL_VERSION
    capabilities: Capabilities = Capabilities()


class BatchHead(Struct, tag_field="type", rename="camel", kw_only=True):
    """A batch but for its events."""

    source_do_id: SourceName
    source_shard_name: ShardName | None = None
    sequence_number: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX - 1)]
    timestamp: Count = 0
    correlation_id: CorrelationId | UnsetType = UNSET
    first_event_sequence: Count | None = None
    last_event_sequence: Count | None = None
    size_bytes: Count = 0
    is_retry: bool = False
    retry_count: Count = 0
    source_state: dict[str, Any] | UnsetType = UNSET
    """A merge patch onto the state that the lake keeps for this source; such a batch may have no events."""


class BatchMessage(BatchHead, Generic[Event], tag="cdc_batch"):
    """Changes of one stream, in order. Only sourceDoId, sequenceNumber and events are required."""

    events: Annotated[list[Event], Meta(max_length=EVENTS_MAX)]


class HeartbeatMessage(Struct, tag="heartbeat", tag_field="type", rename="camel", kw_only=True):
    """«I am still here.» Answered by an ack with status ok."""

    source_do_id: SourceName
    timestamp: Count = 0
    correlation_id: CorrelationId | UnsetType = UNSET
    last_ack_sequence: Count = 0
    pending_events: Count = 0


class FlushRequestMessage(Struct, tag="flush_request", tag_field="type", rename="camel", kw_only=True):
    """Asks for a publish now. Answered by an ack with status ok; `persisted` acks follow when it is done."""

    source_do_id: SourceName
    timestamp: Count = 0
    correlation_id: CorrelationId | UnsetType = UNSET
    reason: FlushReason = "manual"


CDCBatchMessage = BatchMessage[CDCEvent]
EnvelopeBatch = BatchMessage[EventEnvelope]
RawBatch = BatchMessage[RawEvent]
ClientMessage = ConnectMessage | CDCBatchMessage | HeartbeatMessage | FlushRequestMessage
ReceivedMessage = ConnectMessage | EnvelopeBatch | HeartbeatMessage | FlushRequestMessage


# --- server to client ------------------------------------------------------------------------------------------------


class AckDetails(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What the server knows at the ack. `position` is ours: pass it to a query to read your own writes."""

    events_processed: int
    buffer_utilization: float
    time_until_flush: int | UnsetType = UNSET
    persisted_path: str | UnsetType = UNSET
    remaining_tokens: int | UnsetType = UNSET
    bucket_capacity: int | UnsetType = UNSET
    suggested_delay_ms: int | UnsetType = UNSET
    circuit_breaker_state: CircuitBreakerState | UnsetType = UNSET
    position: int | UnsetType = UNSET


class RateLimitInfo(Struct, rename="camel"):
    """The sender's budget; the same three numbers as the X-RateLimit-* headers."""

    limit: int
    remaining: int
    reset_at: int


class AckMessage(Struct, tag="ack", tag_field="type", rename="camel", kw_only=True, omit_defaults=True):
    """`buffered` means on disk: the batch survives a crash from here on. `persisted` is cumulative."""

    timestamp: int
    correlation_id: str | UnsetType = UNSET
    sequence_number: int
    status: AckStatus
    batch_id: str | UnsetType = UNSET
    details: AckDetails | UnsetType = UNSET
    rate_limit: RateLimitInfo | UnsetType = UNSET


class NackMessage(Struct, tag="nack", tag_field="type", rename="camel", kw_only=True, omit_defaults=True):
    """Nothing of this batch was kept; only after `internal_error` that is not known, and a retry settles it.

    Ours: `expected_sequence_number` (where to go on) and `details` (what is wrong, and where).
    """

    timestamp: int
    correlation_id: str | UnsetType = UNSET
    sequence_number: int
    reason: NackReason
    error_message: str
    should_retry: bool
    retry_delay_ms: int | UnsetType = UNSET
    max_size: int | UnsetType = UNSET
    expected_sequence_number: int | UnsetType = UNSET
    details: list[dict[str, str]] | UnsetType = UNSET


class BufferStats(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Changes that are durable in the journal and not yet in the Iceberg tables."""

    batch_count: int
    event_count: int
    total_size_bytes: int
    utilization: float
    oldest_batch_time: int | UnsetType = UNSET
    newest_batch_time: int | UnsetType = UNSET


class StatusMessage(Struct, tag="status", tag_field="type", rename="camel", kw_only=True, omit_defaults=True):
    """The server's state. As the answer to `connect` it also says where this stream goes on."""

    timestamp: int
    correlation_id: str | UnsetType = UNSET
    state: ServerState
    buffer: BufferStats
    connected_sources: int
    last_flush_time: int | UnsetType = UNSET
    next_flush_time: int | UnsetType = UNSET
    last_durable_sequence: int | UnsetType = UNSET
    last_batch_number: int | UnsetType = UNSET
    source_epoch: int | UnsetType = UNSET
    position: int | UnsetType = UNSET
    max_payload_size: int | UnsetType = UNSET
    max_event_size: int | UnsetType = UNSET
    binary_protocol: bool | UnsetType = UNSET
    source_state: dict[str, Any] | UnsetType = UNSET


ServerMessage = AckMessage | NackMessage | StatusMessage


# --- bytes to messages and back --------------------------------------------------------------------------------------

encode = msgspec.json.Encoder().encode
_decode_received = msgspec.json.Decoder(ReceivedMessage).decode
# 1e999 is JSON, and what the receiver takes this must take too; a float in Python holds it as infinity.
_decode_client = msgspec.json.Decoder(ClientMessage, float_hook=float).decode
_decode_server: Callable[[bytes | str], ServerMessage] = msgspec.json.Decoder(ServerMessage).decode
_decode_raw_batch = msgspec.json.Decoder(RawBatch).decode


def decode_received(data: bytes) -> ReceivedMessage:
    """What the receiver uses: the envelope in full, the images only as «an object is here». `check_events` is next."""
    message: ReceivedMessage = _checked(_decode_received, data)
    return message


def read_received(data: bytes) -> tuple[ReceivedMessage, bytes]:
    """The message of a text frame, and the bytes to keep of it. `check_events` is next.

    A `rowId` that is a whole number means its text. Such a batch is written anew with texts, so that what is kept has
    one form; only a batch that has one pays for that.
    """
    try:
        return decode_received(data), data
    except MessageValidationError as error:
        if not _KEY_PATH.fullmatch(error.path):
            raise
    kept = _with_text_keys(data)
    return decode_received(kept), kept


def decode_server_message(data: bytes | str) -> ServerMessage:
    """What the client uses to read an ack, a nack or a status."""
    try:
        return _decode_server(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise as_validation_error(error, allowed={}) from None


def decode_json_batch(payload: bytes) -> RawBatch:
    """A batch in JSON as the journal keeps it; binary.py has the way to read one in either form."""
    return _decode_raw_batch(payload)


def validate_client_message(data: bytes | str | Mapping[str, Any]) -> ClientMessage:
    """Check any client message in full, by the receiver's own rules; raises MessageValidationError."""
    received, raw = read_received(_as_json(data))
    if isinstance(received, BatchMessage):
        check_events(received)
    message: ClientMessage = _checked(_decode_client, raw)
    return message


def validate_cdc_batch_message(data: bytes | str | Mapping[str, Any]) -> CDCBatchMessage:
    """Check that this is a valid `cdc_batch`; raises MessageValidationError."""
    message = validate_client_message(data)
    if not isinstance(message, BatchMessage):
        found = message.__struct_config__.tag
        raise MessageValidationError(f"Expected a cdc_batch, got a {found}", path="$.type")
    return message


def stream_of(message: ReceivedMessage, header_shard: str = "") -> StreamId:
    """Which stream this message speaks for; a shard named in X-Shard-Name counts where the message names none."""
    shard = getattr(message, "source_shard_name", None)
    return StreamId(message.source_do_id, header_shard if shard is None else shard)


_problem_with_table = lru_cache(maxsize=16_384)(problem_with_table_name)


def check_events(
    batch: BatchMessage[Any], problem_with_name: Callable[[str], str | None] = _problem_with_table
) -> tuple[str, ...]:
    """Check what types cannot say, and return the tables that the batch touches.

    One pass over the events costs 0.06 us each, which is why the conditions stand in line here. Who sends for DoLake
    itself brings a rule for names of its own.
    """
    events: Any = batch.events
    if isinstance(events, list):
        _check_order(events)
        tables = tuple(sorted({event.table for event in events}))
    else:  # columns, which know a faster way to the same answer
        events.check_order()
        tables = tuple(sorted(events.table_counts()))
    for table in tables:
        if problem := problem_with_name(table):
            index = next(i for i, event in enumerate(events) if event.table == table)
            raise MessageValidationError(f"table name {table[:80]!r} {problem}", path=f"$.events[{index}].table")
    if events:
        _check_announced(batch.first_event_sequence, events[0].sequence, "firstEventSequence")
        _check_announced(batch.last_event_sequence, events[-1].sequence, "lastEventSequence")
    return tables


def _check_order(events: Sequence[Any]) -> None:
    previous = 0
    for index, event in enumerate(events):
        if event.sequence <= previous:
            raise MessageValidationError(
                f"sequence {event.sequence} does not follow {previous}",
                path=f"$.events[{index}].sequence",
                hint="sequences rise along a batch, without repeats",
            )
        previous = event.sequence
        if event.after is None and event.operation != "DELETE":
            raise MessageValidationError(
                f"{event.operation} without an after image",
                path=f"$.events[{index}].after",
                hint="INSERT and UPDATE carry the whole row in `after`",
            )


def _check_announced(announced: int | None, found: int, field: str) -> None:
    if announced is not None and announced != found:
        raise MessageValidationError(f"{field} is {announced}, but the events say {found}", path=f"$.{field}")


def _as_json(data: bytes | str | Mapping[str, Any]) -> bytes:
    try:
        return data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else encode(data)
    except RecursionError as error:
        raise as_validation_error(error) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageValidationError(f"cannot be written as JSON: {error}") from None


def _checked(decode: Any, data: bytes) -> Any:
    try:
        # msgspec does not look at the bytes inside an image that nobody reads, so invalid UTF-8 would pass unseen.
        if not data.isascii():
            data.decode()
        return decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise as_validation_error(error) from None


_KEY_PATH = re.compile(r"\$\.events\[\d+\]\.(rowId|metadata\.previousRowId)")


class _AnyKeyEvent(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """An event whose key may be a whole number; all else is looked at when the batch is read again."""

    sequence: Raw | UnsetType = UNSET
    timestamp: Raw | UnsetType = UNSET
    operation: Raw | UnsetType = UNSET
    table: Raw | UnsetType = UNSET
    row_id: str | int
    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


class _AnyKeyBatch(BatchHead, tag="cdc_batch"):
    events: Annotated[list[_AnyKeyEvent], Meta(max_length=EVENTS_MAX)]


_decode_any_keys = msgspec.json.Decoder(_AnyKeyBatch).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_WHOLE = re.compile(rb"-?\d+")


def _with_text_keys(data: bytes) -> bytes:
    """The same batch with each whole number that is a key as its text."""
    batch = _checked(_decode_any_keys, data)
    for event in batch.events:
        event.row_id = str(event.row_id)
        if event.metadata is not UNSET and b"previousRowId" in bytes(event.metadata):
            event.metadata = _with_text_key(event.metadata)
    return encode(batch)


def _with_text_key(metadata: Raw) -> Raw:
    fields = _checked(_decode_fields, bytes(metadata))
    if (previous := fields.get("previousRowId")) is not None and _WHOLE.fullmatch(bytes(previous)):
        fields["previousRowId"] = Raw(b'"' + bytes(previous) + b'"')
    return Raw(encode(fields))


_ERROR_LENGTH_MAX = 300
_AT_PATH = re.compile(r" - at `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(\w+)`$")
_ALLOWED = {
    "operation": "INSERT, UPDATE or DELETE",
    "type": "connect, cdc_batch, heartbeat or flush_request",
    "reason": "manual, shutdown, buffer_full or time_threshold",
}


def as_validation_error(error: Exception, allowed: Mapping[str, str] = _ALLOWED) -> MessageValidationError:
    if isinstance(error, UnicodeDecodeError):
        return MessageValidationError(f"invalid UTF-8 at byte {error.start}", hint="send text frames in UTF-8")
    if isinstance(error, RecursionError):
        return MessageValidationError("nested too deeply", hint="flatten the row, or send the deep part as a string")
    text, path = str(error), "$"
    if match := _AT_PATH.search(text):
        text, path = text[: match.start()], match[1]
    if missing := _MISSING.match(text):
        path = f"{path}.{missing[1]}"
    words = allowed.get(path.rpartition(".")[2], "")
    # What was sent stands in the text; an answer must not grow with it.
    text, path = text[:_ERROR_LENGTH_MAX], path[:_ERROR_LENGTH_MAX]
    return MessageValidationError(text, path=path, hint=f"allowed: {words}" if words else "")


class MessageHead(Struct):
    """As much of a refused message as is needed to answer it."""

    sequence_number: int = 0
    correlation_id: str | UnsetType = UNSET
    is_batch: bool = False
    """Whether this is a cdc_batch whose number could be read: then that number is refused, and expected again."""


class AnyHead(Struct, rename="camel"):
    """These fields of a message, whatever stands in them."""

    type: Any = None
    sequence_number: Any = None
    correlation_id: Any = None


_decode_head = msgspec.json.Decoder(AnyHead).decode


def decode_head(data: bytes) -> MessageHead:
    """Read number and correlation id out of a message that failed to validate, as far as that is possible."""
    try:
        return head_of(_decode_head(data))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return MessageHead()


def head_of(found: AnyHead) -> MessageHead:
    """As much of it as has the right form."""
    head = MessageHead()
    if type(found.sequence_number) is int and 0 <= found.sequence_number <= SEQUENCE_MAX:
        head.sequence_number, head.is_batch = found.sequence_number, found.type == "cdc_batch"
    if isinstance(found.correlation_id, str) and len(found.correlation_id) <= CORRELATION_ID_LENGTH_MAX:
        head.correlation_id = found.correlation_id
    return head
