"""A load of change batches that costs the sender little: a batch is encoded once, then only its numbers change.

From ingest.py, which says how hard to push; to a server's WebSocket, in the words that any client speaks. Promise:
every frame is a valid `cdc_batch` in the form that was asked for, with rising event sequences and batch numbers, and
each one is counted only when its `buffered` ack is there.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
import zlib
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dolake.wire.binary import is_binary, pack, unpack_server_message
from dolake.wire.columns import ColumnBatch, columns_of
from dolake.wire.messages import (
    AckMessage,
    ConnectMessage,
    NackMessage,
    decode_json_batch,
    decode_server_message,
    encode,
)
from tools.raw_websocket import BINARY, COMPRESSED, MASK_BYTE, MASKED, TEXT, encode_frame, open_raw_websocket

Encoding = Literal["json", "msgpack", "msgpack-maps"]
"""`msgpack` is in columns, as our client sends it; `msgpack-maps` has a map for each event, as any other would."""
TABLES = ("shop.orders", "shop.customers", "shop.payments")
NAMES = ("Alice Martin", "Jörg Weiß", "Bob Stone", "Zoë Karlsson", "Carol Diaz", "Tom Baker", "Eve Novak", "Ann Lee")
CITIES = ("London", "Zürich", "Madrid", "Porto", "Vienna", "Oslo")
STATES = ("new", "paid", "packed", "shipped")
SEQUENCE_FIRST = 100_000_000_000_000  # 15 digits from the first event on, so that a number is patched where it stands
NUMBER_WIDTH = 15
ANSWER_TIME_MAX_S = 30.0


class LoadError(Exception):
    """The server refused a batch, or stopped answering."""


class BatchLayout:
    """A batch of one stream as it looks in every frame, and where in it the numbers stand."""

    def __init__(
        self, source: str, *, events: int, seed: int = 1, encoding: Encoding = "json", is_compressed: bool = False
    ) -> None:
        self.source = source
        self.events = events
        self.encoding = encoding
        self.is_compressed = is_compressed
        self.payload = _encode_batch(source, events, seed)
        if encoding != "json":
            self._lay_out_binary()
            return
        self.encoded = encode_frame(self.payload)
        self._skip = len(self.encoded) - len(self.payload)
        found = [match.start(1) + self._skip for match in re.finditer(rb'"sequence":(\d{15})', self.payload)]
        # numpy scatters five times faster to indices that lie together in memory, hence an array for each half.
        self.low_digits_at = np.array(found)[:, None] + np.arange(10, 15)
        self.high_digits_at = np.array(found)[:, None] + np.arange(10)
        self.number_at = self._place_of(b'"sequenceNumber":')
        self.first_at = self._place_of(b'"firstEventSequence":')
        self.last_at = self._place_of(b'"lastEventSequence":')

    def _lay_out_binary(self) -> None:
        """In MessagePack each number that changes has eight bytes, most significant first, behind a mark."""
        self.payload = _as_columns(self.payload) if self.encoding == "msgpack" else _as_maps(self.payload)
        self.encoded = encode_frame(self.payload, BINARY)
        self._skip = len(self.encoded) - len(self.payload)
        if self.encoding == "msgpack":
            first = self._skip + self.payload.index(b"\xa8sequence") + 9 + (3 if self.events > 15 else 1)
            found = [first + 9 * index + 1 for index in range(self.events)]
        else:
            found = [match.end() + self._skip for match in re.finditer(rb"\xa8sequence\xcf", self.payload)]
        self.bytes_at = np.array(found)[:, None] + np.arange(8)
        self.number_at = self._binary_place_of(b"sequenceNumber\xcf")
        self.first_at = self._binary_place_of(b"firstEventSequence\xcf")
        self.last_at = self._binary_place_of(b"lastEventSequence\xcf")

    def _binary_place_of(self, key: bytes) -> slice:
        start = self._skip + self.payload.index(key) + len(key)
        return slice(start, start + 8)

    def _place_of(self, key: bytes) -> slice:
        start = self._skip + self.payload.index(key) + len(key)
        return slice(start, start + NUMBER_WIDTH)

    def wire_form(self, encoded: bytearray) -> bytes | bytearray:
        """What goes out: the frame itself, or one with its payload compressed, which no patch can do in place."""
        if not self.is_compressed:
            return encoded
        compressor = zlib.compressobj(1, wbits=-15)
        payload = bytes(encoded[self._skip :]).translate(MASKED)
        deflated = compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH)
        kind = TEXT if self.encoding == "json" else BINARY
        return encode_frame(deflated.removesuffix(b"\x00\x00\xff\xff"), kind | COMPRESSED)


class Frame:
    """One batch in memory of its own, which is sent again and again under new numbers."""

    def __init__(self, layout: BatchLayout) -> None:
        self._layout = layout
        self.encoded = bytearray(layout.encoded)
        self._bytes = np.frombuffer(self.encoded, dtype=np.uint8)
        self._high_written = -1

    def become(self, number: int) -> None:
        """Turn into the batch with this number, counted from 1."""
        first = SEQUENCE_FIRST + (number - 1) * self._layout.events
        last = first + self._layout.events - 1
        if self._layout.encoding != "json":
            packed = np.arange(first, last + 1).astype(">u8").view(np.uint8).reshape(-1, 8)
            self._bytes[self._layout.bytes_at] = packed ^ MASK_BYTE
            for place, value in (
                (self._layout.first_at, first),
                (self._layout.last_at, last),
                (self._layout.number_at, number),
            ):
                self.encoded[place] = value.to_bytes(8, "big").translate(MASKED)
            return
        sequences = np.arange(first, last + 1)
        self._bytes[self._layout.low_digits_at] = _FIVE_DIGITS.take(sequences % 100_000, axis=0)
        if not first // 100_000 == last // 100_000 == self._high_written:  # once in 100,000 events
            high = sequences // 100_000
            digits = (_FIVE_DIGITS.take(high // 100_000, axis=0), _FIVE_DIGITS.take(high % 100_000, axis=0))
            self._bytes[self._layout.high_digits_at] = np.concatenate(digits, axis=1)
            self._high_written = first // 100_000 if first // 100_000 == last // 100_000 else -1
        self._write(self._layout.first_at, first)
        self._write(self._layout.last_at, last)
        self._write(self._layout.number_at, number)

    def _write(self, place: slice, number: int) -> None:
        # Spaces after a number are valid JSON, which lets batch numbers begin at 1 in a field of fixed width.
        self.encoded[place] = (b"%-15d" % number).translate(MASKED)


@dataclass(slots=True)
class Meter:
    """What the connections of one phase have done so far."""

    bytes_sent: int = 0
    events_acked: int = 0
    bytes_acked: int = 0
    ack_times_s: list[float] = field(default_factory=list)
    send_delay_max_s: float = 0.0


class Stream:
    """One connection: keeps `window` batches in flight, or sends one every `pace_s` whatever the server does."""

    def __init__(
        self,
        layout: BatchLayout,
        meter: Meter,
        *,
        window: int,
        pace_s: float = 0,
        delay_s: float = 0,
        token: str | None = None,
    ) -> None:
        self._token = token
        self._layout = layout
        self._meter = meter
        self._window = window
        self._pace_s = pace_s
        self._delay_s = delay_s
        self._free: list[Frame] = []
        self._in_flight: dict[int, tuple[Frame, float]] = {}
        self._number = 0
        self._is_stopping = False
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, url: str, context: ssl.SSLContext | None = None) -> None:
        """Introduce the stream, then send until stop(), and return when everything sent has been answered."""
        headers = {"X-Client-ID": self._layout.source}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._layout.is_compressed:
            headers["Sec-WebSocket-Extensions"] = "permessage-deflate; client_no_context_takeover"
        self._socket = await open_raw_websocket(url, headers, self._read, self._fail, context)
        try:
            hello = ConnectMessage(source_do_id=self._layout.source, timestamp=time.time_ns() // 1_000_000)
            self._socket.send(encode_frame(encode(hello)))
            async with asyncio.timeout(ANSWER_TIME_MAX_S):
                await self._connected
            if self._pace_s:
                await self._send_at_pace()
            else:
                for _ in range(self._window):
                    self._send()
            await self._finish()
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopping = True

    async def _send_at_pace(self) -> None:
        # Open loop: a slow server meets the same load as a fast one, and its slowness shows in full in the ack times.
        due = time.perf_counter() + self._delay_s
        while not self._is_stopping and not self._finished.done():
            await asyncio.sleep(due - time.perf_counter())
            self._meter.send_delay_max_s = max(self._meter.send_delay_max_s, time.perf_counter() - due)
            self._send()
            due += self._pace_s

    async def _finish(self) -> None:
        while True:
            if self._is_stopping and not self._in_flight:
                return
            waited_for = next(iter(self._in_flight), None)
            await asyncio.wait([self._finished], timeout=ANSWER_TIME_MAX_S)
            if self._finished.done():
                self._finished.result()
                return
            if waited_for in self._in_flight:
                raise LoadError(f"no ack for {self._layout.source} within {ANSWER_TIME_MAX_S:.0f} s")

    def _send(self) -> None:
        frame = self._free.pop() if self._free else Frame(self._layout)
        self._number += 1
        frame.become(self._number)
        self._meter.bytes_sent += len(frame.encoded)
        self._in_flight[self._number] = (frame, time.perf_counter())
        self._socket.send(self._layout.wire_form(frame.encoded))

    def _read(self, data: bytes) -> None:
        message = unpack_server_message(data) if is_binary(data) else decode_server_message(data)
        if isinstance(message, NackMessage):
            self._fail(LoadError(f"batch {message.sequence_number} refused: {message.reason}, {message.error_message}"))
        elif not isinstance(message, AckMessage):
            if not self._connected.done():
                self._connected.set_result(None)
        elif message.status == "buffered":
            self._count(message.sequence_number)
        elif message.status != "persisted":
            self._fail(LoadError(f"batch {message.sequence_number} is new, but was answered with {message.status}"))

    def _count(self, number: int) -> None:
        frame, sent_at = self._in_flight.pop(number)
        self._free.append(frame)
        self._meter.ack_times_s.append(time.perf_counter() - sent_at)
        self._meter.events_acked += self._layout.events
        self._meter.bytes_acked += len(self._layout.payload)
        if not self._is_stopping:
            if not self._pace_s:
                self._send()
        elif not self._in_flight and not self._finished.done():
            self._finished.set_result(None)

    def _fail(self, error: Exception) -> None:
        for waiting in (self._connected, self._finished):
            if not waiting.done():
                waiting.set_exception(error)


_FIVE_DIGITS: npt.NDArray[np.uint8] = (
    ((np.arange(100_000)[:, None] // np.array([10_000, 1_000, 100, 10, 1]) % 10) + ord("0")) ^ MASK_BYTE
).astype(np.uint8)
"""Row n is n in five digits, masked."""


def _encode_batch(source: str, events: int, seed: int) -> bytes:
    chance = random.Random(seed)
    batch = {
        "type": "cdc_batch",
        "sourceDoId": source,
        "timestamp": 1_767_225_600_000,
        "events": [_event(chance, index) for index in range(events)],
        "sequenceNumber": SEQUENCE_FIRST,
        "firstEventSequence": SEQUENCE_FIRST,
        "lastEventSequence": SEQUENCE_FIRST,
        "sizeBytes": events * 340,
        "isRetry": False,
        "retryCount": 0,
    }
    return msgspec.json.encode(batch)


def _as_columns(payload: bytes) -> bytes:
    batch = decode_json_batch(payload)
    head = {name: getattr(batch, name) for name in batch.__struct_fields__ if name != "events"}
    return pack(ColumnBatch(events=columns_of(batch.events), **head))


def _as_maps(payload: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.json.decode(payload))


def _event(chance: random.Random, index: int) -> dict[str, object]:
    """One change of a small shop: 65 % inserts, 30 % updates with both images, 5 % deletes."""
    draw = chance.random()
    operation = "UPDATE" if draw < 0.30 else "DELETE" if draw < 0.35 else "INSERT"
    row = _row(chance, chance.randrange(100_000, 1_000_000))
    event: dict[str, object] = {
        "sequence": SEQUENCE_FIRST + index,
        "timestamp": 1_767_225_600_000 + index,
        "operation": operation,
        "table": chance.choice(TABLES),
        "rowId": str(row["id"]),
    }
    if operation != "INSERT":
        event["before"] = row
    if operation != "DELETE":
        event["after"] = {**row, "status": chance.choice(STATES), "quantity": chance.randrange(1, 20)}
    return event


def _row(chance: random.Random, number: int) -> dict[str, object]:
    return {
        "id": f"row-{number}",
        "name": chance.choice(NAMES),
        "city": chance.choice(CITIES),
        "status": chance.choice(STATES),
        "quantity": chance.randrange(1, 20),
        "price": round(chance.uniform(1, 500), 2),
        "is_gift": chance.random() < 0.2,
        "created": f"2026-01-{chance.randrange(10, 29)}T{chance.randrange(10, 24)}:15:{chance.randrange(10, 60)}Z",
        "note": None,
    }
