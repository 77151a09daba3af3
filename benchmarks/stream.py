"""A server with its pipeline under load: batches that cost the sender little, and what every process costs.

From upsert.py, pipeline.py, freshness.py and peers.py. A Template is a batch that was encoded once, of which only the
numbers change; a Sender speaks to the server's WebSocket and knows what was acknowledged and what was published; a
Meter reads CPU seconds and memory of the server, the pipeline, Java, Spark's Python workers and this process. Promise:
`running_server` leaves no process behind, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.load import LoadError
from benchmarks.machine import terminate_as_exit
from benchmarks.raw_websocket import MASK_BYTE, MASKED, RawWebSocket, encode_frame, open_raw_websocket
from dolake.cli.child import COMMAND, ChildServer
from dolake.errors import Unavailable
from dolake.wire.messages import AckMessage, ConnectMessage, NackMessage, decode_server_message, encode

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
_SEEN_EVERY_S = 0.5
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


# --- what it costs ---------------------------------------------------------------------------------------------------


class Meter:
    """CPU seconds and memory by kind of process: `root` (the one given) and all below it, and this one as `client`.

    Of a process that ends, what it used after the last look is not seen, so use it with `watching` where workers come
    and go. Memory is resident memory; what forked workers share is counted in each of them. Its own part is without
    pages of files, such as those of a key index, which the system may drop at any time.
    """

    def __init__(self, pid: int, *, root: str = "server") -> None:
        self._root, self._own, self._name = psutil.Process(pid), psutil.Process(), root
        self._lock = threading.Lock()
        self._kinds: dict[psutil.Process, str] = {}
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._began_s = time.monotonic()
        self.memory: list[tuple[float, dict[str, int]]] = []
        """Of each look the seconds since the start, and the bytes by kind."""
        self.memory_own: list[tuple[float, dict[str, int]]] = []
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self.look()
        with self._lock:
            self._first, self._began_s = dict(self._last), time.monotonic()
            self.memory, self.memory_own = [], []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def cpu_s(self) -> dict[str, float]:
        """Used since the start, by kind."""
        self.look()
        found: dict[str, float] = {}
        for process, used in self._last.items():
            kind = self._kinds[process]
            found[kind] = found.get(kind, 0.0) + used - self._first.get(process, 0.0)
        return {kind: round(used, 2) for kind, used in sorted(found.items())}

    def memory_mb(self, start_s: float = 0.0, end_s: float = float("inf"), *, is_own: bool = False) -> dict[str, float]:
        """The mean between two moments, by kind."""
        memory = self.memory_own if is_own else self.memory
        looks = [found for at_s, found in memory if start_s <= at_s <= end_s] or [{}]
        kinds = sorted({kind for found in looks for kind in found})
        return {kind: round(sum(found.get(kind, 0) for found in looks) / len(looks) / 1e6, 1) for kind in kinds}

    def look(self) -> None:
        with self._lock:
            resident: Counter[str] = Counter()
            own: Counter[str] = Counter()
            for process in (self._own, self._root, *self._below()):
                with contextlib.suppress(psutil.Error):
                    with process.oneshot():
                        kind, times, memory = self._kind_of(process), process.cpu_times(), process.memory_info()
                    self._kinds[process], self._last[process] = kind, times.user + times.system
                    resident[kind] += memory.rss
                    own[kind] += memory.rss - getattr(memory, "shared", 0)  # Linux alone says
            self.memory.append((self.seconds, resident))
            self.memory_own.append((self.seconds, own))

    @contextlib.contextmanager
    def watching(self, every_s: float = _SEEN_EVERY_S) -> Iterator[Self]:
        """Look again and again, from a thread."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(every_s):
                self.look()

        thread = threading.Thread(target=watch, name="meter", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            is_over.set()
            thread.join()

    def _below(self) -> list[psutil.Process]:
        try:
            return self._root.children(recursive=True)
        except psutil.Error:
            return []

    def _kind_of(self, process: psutil.Process) -> str:
        if process == self._own:
            return "client"
        if process == self._root:
            return self._name
        command = process.cmdline()
        if command and os.path.basename(command[0]) == "java":  # noqa: PTH119 - no file, a word
            return "java"
        is_worker = any(word in ("dolake.pipeline.daemon", "pyspark.daemon") for word in command)
        return "workers" if is_worker else "pipeline"


# --- the server ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_server(folder: Path, *, settings: str = "", command: Sequence[str] = COMMAND) -> Iterator[ChildServer]:
    """A server on this home whose pipeline is ready; stopped in order at the end."""
    with (
        terminate_as_exit(),
        ChildServer(folder, settings=settings, command=command, has_pipeline=True) as server,
    ):
        give_up_at = time.monotonic() + _START_TIME_MAX_S
        while (state := ask(server, "/status")["pipeline"]["state"]) not in ("ready", "publishing"):
            if time.monotonic() > give_up_at:
                raise Unavailable(f"the pipeline is still {state}", hint=server.log[-2000:])
            time.sleep(0.1)
        yield server
        server.stop()


def ask(server: ChildServer, path: str, method: str = "GET", timeout_s: float = 120.0) -> Any:
    """What the server answers, read as JSON."""
    request = urllib.request.Request(server.url + path, method=method)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
        return json.load(answer)


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
