"""What the client says, as bytes for the socket. Pure.

From conversation.py, which knows when; the server's half of the same messages is wire/messages.py.
"""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from dolake.changes import StreamId
from dolake.client.window import Batch
from dolake.wire.binary import pack
from dolake.wire.columns import ColumnBatch, columns_of
from dolake.wire.messages import (
    SEQUENCE_MAX,
    Capabilities,
    ConnectMessage,
    FlushReason,
    FlushRequestMessage,
    HeartbeatMessage,
    RawBatch,
    RawEvent,
    StatusMessage,
    encode,
)
from dolake.wire.source_state import decode_state

_decode_events = msgspec.json.Decoder(list[RawEvent]).decode


class Words:
    """The messages of one stream. Each carries a correlation id of its own, which the answer repeats."""

    def __init__(self, stream: StreamId, *, wants_binary: bool = False, is_compressed: bool = False) -> None:
        self._stream = stream
        self._capabilities = Capabilities(binary_protocol=wants_binary, compression=is_compressed)
        self.is_binary = False
        """Whether batches go out in MessagePack: this client wants that, and the server said that it knows it."""
        self._count = 0

    def connect(self, epoch: int | None, durable_sequence: int) -> bytes:
        return encode(
            ConnectMessage(
                source_do_id=self._stream.source,
                source_shard_name=self._stream.shard,
                source_epoch=epoch,
                timestamp=_now_ms(),
                correlation_id=self._next_id("c"),
                last_ack_sequence=durable_sequence,
                capabilities=self._capabilities,
            )
        )

    def agree(self, status: StatusMessage) -> None:
        """The server has told what it speaks."""
        self.is_binary = self._capabilities.binary_protocol and status.binary_protocol is True

    def heartbeat(self, durable_sequence: int, pending_count: int) -> bytes:
        return encode(
            HeartbeatMessage(
                source_do_id=self._stream.source,
                timestamp=_now_ms(),
                correlation_id=self._next_id("h"),
                last_ack_sequence=durable_sequence,
                pending_events=pending_count,
            )
        )

    def flush_request(self, reason: FlushReason) -> tuple[str, bytes]:
        """The message, and the correlation id by which its answer is known."""
        correlation_id = self._next_id("f")
        return correlation_id, encode(
            FlushRequestMessage(
                source_do_id=self._stream.source, timestamp=_now_ms(), correlation_id=correlation_id, reason=reason
            )
        )

    def batch(self, batch: Batch) -> bytes:
        """The events were encoded when they were put; here they are only copied into place."""
        entries = [entry for entry in batch.entries if entry.event]
        state = batch.entries[-1].state if batch.entries else b""
        head: dict[str, Any] = {
            "source_do_id": self._stream.source,
            "source_shard_name": self._stream.shard,
            "sequence_number": batch.number,
            "timestamp": _now_ms(),
            "correlation_id": batch.correlation_id,
            "first_event_sequence": entries[0].sequence if entries else SEQUENCE_MAX,
            "last_event_sequence": entries[-1].sequence if entries else SEQUENCE_MAX,
            "source_state": decode_state(state) if state else UNSET,
            "size_bytes": batch.size_bytes,
            "is_retry": batch.retry_count > 0,
            "retry_count": batch.retry_count,
        }
        if self.is_binary and entries:
            events = _decode_events(b"[%b]" % b",".join([entry.event for entry in entries]))
            return pack(ColumnBatch(events=columns_of(events), **head))
        raws = [Raw(entry.event) for entry in entries]
        return encode(RawBatch(events=cast(list[RawEvent], raws), **head))

    @property
    def envelope_bytes_max(self) -> int:
        """How many bytes of a batch are not events, at most."""
        return len(self.batch(Batch(SEQUENCE_MAX, "b" * 20, [], SEQUENCE_MAX, SEQUENCE_MAX)))

    def _next_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
