"""MessagePack on the socket and in the journal: the same messages as in JSON, in binary frames.

From receiver/connection.py and the client; to messages.py, whose rules hold for both forms. A batch comes in columns
(columns.py), which are kept as they came, or with one map per event, which is written anew as the JSON that it stands
for and checked as such. Promise: what this lets through could have come in JSON, so no reader meets anything else.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, Struct

from dolake.errors import MessageValidationError
from dolake.wire.columns import ColumnBatch, Columns, columns_batch, raw_batch
from dolake.wire.messages import (
    EVENTS_MAX,
    AnyHead,
    BatchHead,
    ConnectMessage,
    FlushRequestMessage,
    HeartbeatMessage,
    MessageHead,
    RawBatch,
    ReceivedMessage,
    ServerMessage,
    as_validation_error,
    decode_json_batch,
    encode,
    head_of,
    read_received,
)


class _PlainEvent(Struct, rename="camel", omit_defaults=True):
    """An event of which only the images are looked at here; the JSON that comes of it is checked in full."""

    sequence: Any = None
    timestamp: Any = None
    operation: Any = None
    table: Any = None
    row_id: Any = None
    before: Any = None
    after: Any = None
    metadata: Any = None


class _AnyBatch(BatchHead, tag="cdc_batch"):
    events: Columns | Annotated[list[_PlainEvent], Meta(max_length=EVENTS_MAX)]


class _PlainBatch(BatchHead, tag="cdc_batch"):
    events: list[_PlainEvent]


_AnyMessage = ConnectMessage | _AnyBatch | HeartbeatMessage | FlushRequestMessage
_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError, OverflowError)
pack = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder(_AnyMessage).decode
decode_columns = msgspec.msgpack.Decoder(ColumnBatch).decode
_decode_server = msgspec.msgpack.Decoder(ServerMessage).decode
_decode_head = msgspec.msgpack.Decoder(AnyHead).decode


def is_binary(data: bytes) -> bool:
    """MessagePack's maps begin with a byte that no JSON text begins with."""
    return data[:1] >= b"\x80"


def unpack_received(data: bytes) -> tuple[ReceivedMessage, bytes]:
    """The message of a binary frame, and the bytes that the journal keeps of it. `check_events` is next."""
    try:
        message = _decode_any(data)
    except _ERRORS as error:
        raise as_validation_error(error) from None
    if not isinstance(message, _AnyBatch):
        return message, data
    if message.source_state is not UNSET:
        _refuse_odd(message.source_state, "$.sourceState")
    head = {name: getattr(message, name) for name in BatchHead.__struct_fields__}
    if isinstance(message.events, Columns):
        return columns_batch(ColumnBatch(events=message.events, **head)), data
    payload = _as_json(_PlainBatch(events=message.events, **head))
    return read_received(payload)


def unpack_head(data: bytes) -> MessageHead:
    """Number and correlation id of a binary message that was refused, as far as they can be read."""
    try:
        return head_of(_decode_head(data))
    except _ERRORS:
        return MessageHead()


def unpack_server_message(data: bytes) -> ServerMessage:
    """What the client uses to read an answer in a binary frame."""
    try:
        return cast(ServerMessage, _decode_server(data))
    except _ERRORS as error:
        raise as_validation_error(error, allowed={}) from None


def decode_raw_batch(payload: bytes) -> RawBatch:
    """A batch as the journal keeps it, in either form. It was validated on its way in, so this checks types only."""
    return raw_batch(decode_columns(payload)) if is_binary(payload) else decode_json_batch(payload)


# --- maps become JSON ------------------------------------------------------------------------------------------------

_SIMPLE = frozenset((str, int, bool, type(None), bytes, datetime))
"""Bytes become base64 and times RFC 3339, as from the Python client."""


def _as_json(batch: _PlainBatch) -> bytes:
    for index, event in enumerate(batch.events):
        for name in ("before", "after", "metadata"):
            _refuse_odd(getattr(event, name), f"$.events[{index}].{name}")
    try:
        return encode(batch)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageValidationError(f"cannot be written as JSON: {error}") from None


def _refuse_odd(value: Any, path: str) -> None:
    """What MessagePack can say and JSON cannot; it would be lost or become something else on the way."""
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                raise MessageValidationError(f"the key {key!r} is no text", path=path, hint="name fields with texts")
            if type(each) not in _SIMPLE:
                _refuse_odd(each, path)
    elif isinstance(value, list):
        for each in value:
            if type(each) not in _SIMPLE:
                _refuse_odd(each, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise MessageValidationError(
                f"{value} is no number that JSON has", path=path, hint="send nil, or the word as a text"
            )
    elif type(value) not in _SIMPLE:
        raise MessageValidationError("an extension type stands for nothing here", path=path, hint="send it as a text")
