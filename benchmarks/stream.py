"""A server with its pipeline under load, and batches that cost the sender little.

From upsert.py, pipeline.py, steady.py, compact.py and peers.py. A Template is a batch that was encoded once, of which
only the numbers change; a Sender speaks to the server's WebSocket and knows what was acknowledged and what was
published. Promise: `running_server` leaves no process behind, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.load import LoadError
from benchmarks.machine import terminate_as_exit
from dolake.cli.child import COMMAND, ChildServer
from dolake.errors import Unavailable
from dolake.wire.messages import AckMessage, ConnectMessage, NackMessage, decode_server_message, encode
from tools.raw_websocket import MASK_BYTE, MASKED, RawWebSocket, encode_frame, open_raw_websocket

Json = dict[str, Any]
Keys = npt.NDArray[np.int64]

KEY_FIRST = 1_000_000_000
"""Keys and sequences have ten digits from the first on, so that they are patched where they stand."""
KEY = 9_876_543_210
"""Stands in a template's events wherever the key goes, as a number or in a text."""
BATCH_EVENTS = 1_000
_DIGITS = 10
_NUMBER_WIDTH = 15
_ANSWER_TIME_MAX_S = 120.0
_START_TIME_MAX_S = 120.0
_POLL_S = 0.02
_TIMESTAMP_MS = 1_767_225_600_000


# --- what is sent ----------------------------------------------------------------------------------------------------


class Template:
    """A batch of changes whose keys are filled in later."""

    def __init__(self, source: str, changes: Sequence[Json]) -> None:
        """Each change has operation, table, rowId, before and after as on the wire, with KEY in place of its key."""
        head = b'{"type":"cdc_batch","sourceDoId":%b,"events":[' % msgspec.json.encode(source)
        payload, sequences_at, keys_at, owners = bytearray(head), [], [], []
        for index, change in enumerate(changes):
            event = msgspec.json.encode({"sequence": KEY, "timestamp": _TIMESTAMP_MS, **change})
            sequence_at, *found = (match.start() + len(payload) for match in re.finditer(b"%d" % KEY, event))
            sequences_at.append(sequence_at)
            keys_at += found
            owners += [index] * len(found)
            payload += event + b","
        payload[-1:] = b'],"sequenceNumber":'
        number_at = len(payload)
        payload += b" " * _NUMBER_WIDTH + b"}"
        self.changes = changes
        self._encoded = encode_frame(bytes(payload))
        skip = len(self._encoded) - len(payload)
        self._number_at = slice(number_at + skip, number_at + skip + _NUMBER_WIDTH)
        places = np.arange(_DIGITS)
        self._sequences_at = np.array(sequences_at)[:, None] + places + skip
        self._keys_at = np.array(keys_at)[:, None] + places + skip
        self._owners = np.array(owners)

    def __len__(self) -> int:
        return len(self.changes)

    def frame(self, number: int, sequence_first: int, keys: Keys) -> bytearray:
        """The batch with this number, its sequences from this one on, and these keys."""
        frame = bytearray(self._encoded)
        at = np.frombuffer(frame, dtype=np.uint8)
        at[self._sequences_at] = _digits(np.arange(sequence_first, sequence_first + len(self)))
        at[self._keys_at] = _digits(keys)[self._owners]
        frame[self._number_at] = (b"%-*d" % (_NUMBER_WIDTH, number)).translate(MASKED)
        return frame


def _digits(values: Keys) -> npt.NDArray[np.uint8]:
    """Ten digits of each, masked as a frame is."""
    found = np.empty((len(values), _DIGITS), np.uint8)
    for place in reversed(range(_DIGITS)):
        values, digit = np.divmod(values, 10)
        found[:, place] = (digit + ord("0")) ^ MASK_BYTE
    return found


class Sender:
    """One stream over one connection: so many batches in flight, so many events not yet published, and no more."""

    def __init__(self, url: str, source: str, *, window: int = 16, lag_max_events: int | None = None) -> None:
        self._url, self._source, self._window, self._lag_max = url, source, window, lag_max_events
        self.sent = self.acked = self.published = 0
        """Counted in events."""
        self.held_s = 0.0
        """How long sending stood still because too much was not published."""
        self.on_ack: Callable[[int, float], None] = lambda number, at_s: None
        self._batch = 0
        self._in_flight: dict[int, int] = {}
        self._unpublished: deque[tuple[int, int]] = deque()
        self._wake = asyncio.Event()
        self._is_connected = False
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        self._socket: RawWebSocket = await open_raw_websocket(
            f"{self._url}/ws", {"X-Client-ID": self._source}, self._read, self._fail
        )
        self._socket.send(encode_frame(encode(ConnectMessage(source_do_id=self._source, timestamp=_TIMESTAMP_MS))))
        await self._until(lambda: self._is_connected)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def next_number(self) -> int:
        """The number of the batch that `send` sends next."""
        return self._batch + 1

    async def send(self, template: Template, keys: Keys) -> None:
        """Send a batch as soon as there is room for it."""
        if self._is_lagging():
            began = time.perf_counter()
            await self._until(lambda: not self._is_lagging())
            self.held_s += time.perf_counter() - began
        await self._until(lambda: len(self._in_flight) < self._window)
        self._batch += 1
        frame = template.frame(self._batch, KEY_FIRST + self.sent, keys)
        self.sent += len(template)
        self._in_flight[self._batch] = len(template)
        self._unpublished.append((self._batch, len(template)))
        self._socket.send(frame)

    async def settle(self, *, is_published: bool = False) -> None:
        """Wait until everything sent is durable, or published."""
        await self._until(lambda: (self.published if is_published else self.acked) == self.sent)

    def _is_lagging(self) -> bool:
        return self._lag_max is not None and self.sent - self.published >= self._lag_max

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true() or self._error:
            if self._error:
                raise self._error
            self._wake.clear()
            try:
                async with asyncio.timeout(_ANSWER_TIME_MAX_S):
                    await self._wake.wait()
            except TimeoutError:
                raise LoadError(f"no word from the server within {_ANSWER_TIME_MAX_S:.0f} s") from None

    def _read(self, data: bytes) -> None:
        message = decode_server_message(data)
        if isinstance(message, NackMessage):
            self._fail(LoadError(f"batch {message.sequence_number} refused: {message.reason}, {message.error_message}"))
        elif not isinstance(message, AckMessage):
            self._is_connected = True
        elif message.status == "persisted":
            while self._unpublished and self._unpublished[0][0] <= message.sequence_number:
                self.published += self._unpublished.popleft()[1]
        elif message.status == "buffered":
            self.acked += self._in_flight.pop(message.sequence_number)
            self.on_ack(message.sequence_number, time.perf_counter())
        else:
            self._fail(LoadError(f"batch {message.sequence_number} is new, but was answered with {message.status}"))
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake.set()


# --- the server ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_server(
    folder: Path, *, settings: str = "", command: Sequence[str] = COMMAND, environ: Mapping[str, str] | None = None
) -> Iterator[ChildServer]:
    """A server on this home whose pipeline is ready; stopped in order at the end."""
    with (
        terminate_as_exit(),
        ChildServer(folder, settings=settings, environ=environ, command=command, has_pipeline=True) as server,
    ):
        give_up_at = time.monotonic() + _START_TIME_MAX_S
        while (state := ask(server, "/status")["pipeline"]["state"]) not in ("ready", "publishing"):
            if time.monotonic() > give_up_at:
                raise Unavailable(f"the pipeline is still {state}", hint=server.log[-2000:])
            time.sleep(0.1)
        yield server
        server.stop()


def ask(
    server: ChildServer, path: str, method: str = "GET", body: Json | None = None, *, timeout_s: float = 120.0
) -> Any:
    """What the server answers, read as JSON; None where it has nothing to say."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, method=method)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
        return json.loads(answer.read() or b"null")


def last_publish(server: ChildServer) -> Json:
    """What the pipeline says of its last publish, once it has reported all of them.

    Senders hear `persisted` when the catalog has the publish, which is a little before the pipeline's own report.
    """
    give_up_at = time.monotonic() + _ANSWER_TIME_MAX_S
    while time.monotonic() < give_up_at:
        status = ask(server, "/status")
        found: Json | None = status["pipeline"]["lastPublish"]
        if found and found["position"] == status["durablePosition"]:
            return found
        time.sleep(_POLL_S)
    raise LoadError("the pipeline did not report its last publish")


def key_index_of(server: ChildServer, table: str = "") -> Json:
    """Rows and bytes of the key index on disk as of the last publish, of one table or of all."""
    last_publish(server)
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as answer:  # noqa: S310 - our own server
        lines = answer.read().decode().splitlines()

    def total(metric: str) -> float:
        start = f'{metric}{{table="{table}"' if table else metric + "{"
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))

    rows, size = total("dolake_key_index_rows"), total("dolake_key_index_bytes")
    return {"rows": int(rows), "bytes": int(size), "bytes_per_row": round(size / max(rows, 1), 2)}
