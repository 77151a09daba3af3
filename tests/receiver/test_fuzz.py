"""Twenty thousand messages that somebody has broken, and frames that are none: each is answered, nobody else notices.

One server in a process of its own, seeded chance, so that a failure comes again. What the journal keeps of it all is
checked at the end by the receiver's own rules.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dolake.journal.reader import JournalReader
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import NackReason
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event, events
from tools.raw_websocket import PING, TEXT, RawWebSocket, encode_frame, open_raw_websocket

pytestmark = pytest.mark.own_lake  # what its journal holds and how large it grows is checked as a whole
BINARY = 0x2
MESSAGES = 20_000
CONNECTIONS = 4
PIECE = 50
TAKEN_OVER = "now (close this one)"
"""How a connection is told, unasked, that a newer one speaks for its stream."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzz")) as process:
        yield process


# --- messages that somebody has broken -------------------------------------------------------------------------------

ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1,
        2**31,
        2**53,
        2**63,
        2**64,
        -(2**63),
        10**40,
        0.5,
        1e308,
        "",
        "x",
        "\x00",
        "../..",
        "a" * 300,
    ),
    *(
        [],
        {},
        [[]],
        {"": {}},
        "users",
        "INSERT",
        "cdc_batch",
        "é" * 100,
        "🙂",
        "users__changes",
        "_row_id",
        [None] * 50,
    ),
]
PIECES = [
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x00",
    ),
    *(b"1e999", b"-0", b"NaN", b"9" * 400, b"null", b'"type":"connect",', b'"events":[', b"[" * 3000, b'{"a":' * 300),
]


def valid(chance: random.Random, source: str, number: int) -> dict[str, Any]:
    match chance.randrange(8):
        case 0:
            return {"type": "connect", "sourceDoId": source, "lastAckSequence": 0, "capabilities": {"batching": True}}
        case 1:
            return {"type": "heartbeat", "sourceDoId": source, "lastAckSequence": number, "pendingEvents": 0}
        case 2:
            return {"type": "flush_request", "sourceDoId": source, "reason": "manual"}
        case _:
            first = number * 10
            return batch(number, events(first, first + chance.randrange(4)), source=source)


def with_something_odd(chance: random.Random, message: Any) -> Any:
    """One place of it, however deep, holds something else, or is gone."""
    if isinstance(message, dict) and message and chance.random() < 0.85:
        key = chance.choice(list(message))
        if chance.random() < 0.15:
            return {name: value for name, value in message.items() if name != key}
        return message | {key: with_something_odd(chance, message[key])}
    if isinstance(message, list) and message and chance.random() < 0.85:
        index = chance.randrange(len(message))
        return [*message[:index], with_something_odd(chance, message[index]), *message[index + 1 :]]
    return chance.choice(ODD)


def with_broken_bytes(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + chance.choice(PIECES) + data[at:]
            case 3:
                data = data[:at] + data[at + chance.randrange(1, 20) :]
            case _:
                data = data + data[at:]
    return data


def packed(message: Any) -> bytes | None:
    try:
        return msgspec.msgpack.encode(message)
    except OverflowError:  # a number that MessagePack does not have
        return None


def broken_frame(chance: random.Random, source: str, number: int) -> bytes:
    message = valid(chance, source, number)
    if chance.random() < 0.5:
        message = with_something_odd(chance, message)
    binary = packed(message) if chance.random() < 0.4 else None
    data = json.dumps(message).encode() if binary is None else binary
    if chance.random() < 0.6:
        data = with_broken_bytes(chance, data)
    return encode_frame(data, TEXT if binary is None else BINARY)


class Listener:
    """Counts the answers that a raw connection hears."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.lost: Exception | None = None
        self._news = asyncio.Event()

    def hear(self, data: bytes) -> None:
        said = json.loads(data) if data[:1] == b"{" else msgspec.msgpack.decode(data)
        if not said.get("errorMessage", "").endswith(TAKEN_OVER):  # two connections came upon the same odd name
            self.answers.append(said)
        self._news.set()

    def lose(self, error: Exception) -> None:
        self.lost = error
        self._news.set()

    async def wait(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough() and self.lost is None:
            self._news.clear()
            await self._news.wait()


class _BothWays(RawWebSocket):
    """Hears binary answers as text: the fuzzer only counts them."""

    def _take_frame(self) -> tuple[int, bytes] | None:
        found = super()._take_frame()
        return (TEXT, found[1]) if found and found[0] == BINARY else found


async def hang_up(socket: RawWebSocket) -> None:
    socket.close()
    socket._transport.abort()  # what the server does not read would keep it open
    for _ in range(3):
        await asyncio.sleep(0)


async def fuzz(url: str, seed: int, count: int) -> Counter[str]:
    """Send so many on one connection after another; every one of them must be answered."""
    chance, said = random.Random(seed), Counter[str]()
    for piece in range(count // PIECE):
        listener, source = Listener(), f"fuzz-{seed}-{piece}"
        socket = await open_raw_websocket(f"{url}/ws", {}, listener.hear, listener.lose)
        socket.__class__ = _BothWays
        frames = [broken_frame(chance, source, number) for number in range(1, PIECE + 1)]
        for frame in frames:
            socket.send(frame)
        await listener.wait(lambda heard=listener.answers: len(heard) >= PIECE)  # type: ignore[misc]
        assert listener.lost is None, f"seed {seed}, piece {piece}: {listener.lost}"
        assert len(listener.answers) == PIECE
        await hang_up(socket)
        for answer in listener.answers:
            if answer["type"] == "nack":
                assert answer["errorMessage"]
                assert answer["reason"] in get_args(NackReason)
            said[answer.get("reason") or answer.get("status") or answer["type"]] += 1
    return said


async def behave(url: str, source: str, is_over: Callable[[], bool]) -> int:
    """A client as it should be, which must not notice anything; returns how many batches it sent."""
    number = 0
    async with Speaker(url) as speaker:
        await speaker.connect(source)
        while not is_over() or number < 20:
            number += 1
            answer = await speaker.ask(batch(number, [event(number)], source=source))
            assert (answer.get("status"), answer["sequenceNumber"]) == ("buffered", number), answer
    return number


def kept_by_stream(home: Path) -> dict[str, list[int]]:
    """The sequences of each source as the journal has them, and every record is what the receiver would take."""
    found: dict[str, list[int]] = {}
    with JournalReader(home / "journal") as reader:
        for record in reader.read():
            changes = decode_raw_batch(record.payload).events
            assert changes
            assert len(changes) == record.change_count
            for change in changes:
                assert change.operation in ("INSERT", "UPDATE", "DELETE")
                assert change.table
                for image in (change.before, change.after):
                    if isinstance(image, msgspec.Raw):
                        assert json.loads(bytes(image)) is None or isinstance(json.loads(bytes(image)), dict)
            found.setdefault(str(record.stream), []).extend(change.sequence for change in changes)
    return found


async def test_twenty_thousand_broken_messages_are_all_answered_and_nobody_else_notices(server: ServerProcess) -> None:
    asyncio.get_running_loop().set_debug(False)  # which would slow the senders down
    is_over = False
    good = asyncio.ensure_future(behave(server.url, "good", lambda: is_over))
    counts = await asyncio.gather(*(fuzz(server.url, seed, MESSAGES // CONNECTIONS) for seed in range(CONNECTIONS)))
    is_over = True
    sent = await good
    await asyncio.sleep(0.05)  # until the sockets are closed
    said = sum(counts, Counter[str]())
    assert said.total() == MESSAGES
    assert said["invalid_format"] > MESSAGES / 4
    assert said["buffered"] > 100, "some of them are still valid"
    assert "internal_error" not in said, said
    found = kept_by_stream(server.home)
    assert found["good"] == list(range(1, sent + 1))
    for stream, sequences in found.items():
        assert sequences == sorted(set(sequences)), stream
    assert "Traceback" not in server.log
    assert server.get("/health")[0] == 200


# --- frames that are none --------------------------------------------------------------------------------------------


def raw_frame(first: int, payload: bytes = b"", *, length: int | None = None, is_masked: bool = True) -> bytes:
    size = len(payload) if length is None else length
    bit = 0x80 if is_masked else 0
    head = bytes([first, bit | size]) if size < 126 else bytes([first, bit | 127]) + struct.pack("!Q", size)
    return head + (b"\0\0\0\0" if is_masked else b"") + payload


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


BROKEN_FRAMES = {
    "a reserved bit": raw_frame(0xA1, b"{}"),
    "an unknown opcode": raw_frame(0x83, b"{}"),
    "no mask": raw_frame(0x81, b"{}", is_masked=False),
    "a continuation of nothing": raw_frame(0x80, b"{}"),
    "a ping in parts": raw_frame(0x09, b"x"),
    "a ping that is too long": raw_frame(0x89, b"x" * 200),
    "a length beyond all": raw_frame(0x82, length=2**63 - 1),
    "a negative length": raw_frame(0x82, length=2**64 - 1),
    "a message over the hard limit": raw_frame(0x81, length=64 * 1024 * 1024) + b"x" * 100,
    "parts that never end": raw_frame(0x01, b"{") + raw_frame(0x00, b" " * 100) * 300,
    "a new message within another": raw_frame(0x01, b"{") + raw_frame(0x81, b"{}"),
    "a goodbye of one byte": raw_frame(0x88, b"\x03"),
    "a goodbye with a code that is none": raw_frame(0x88, struct.pack("!H", 999)),
    "a goodbye that is no text": raw_frame(0x88, struct.pack("!H", 1000) + b"\xff\xfe"),
    "half a frame": raw_frame(0x81, b"{}" * 30)[:20],
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": random.Random(7).randbytes(5000),
    "a zip bomb": raw_frame(0xC1, deflated(b" " * 200 * 1024 * 1024)),
    "compression that is none": raw_frame(0xC1, b"\xff\xff\xff\xff"),
    "a list of four billion": encode_frame(b"\xdd\xff\xff\xff\xff", BINARY),
    "a deep list": encode_frame(b"\x91" * 100_000, BINARY),
    "a deep list in JSON": encode_frame(b"[" * 100_000),
    "many pings": encode_frame(b"x", PING) * 2000,
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
async def test_frames_that_are_none_cost_only_their_own_connection(server: ServerProcess, name: str) -> None:
    asyncio.get_running_loop().set_debug(False)
    async with Speaker(server.url) as other:
        status = await other.connect(f"beside {name}")
        listener = Listener()
        headers = {"Sec-WebSocket-Extensions": "permessage-deflate"} if BROKEN_FRAMES[name][0] == 0xC1 else {}
        socket = await open_raw_websocket(f"{server.url}/ws", headers, listener.hear, listener.lose)
        socket.send(BROKEN_FRAMES[name])
        for number in range(1, 4):
            last = status["lastDurableSequence"] + number
            answer = await other.ask(batch(number, [event(last)], source=f"beside {name}"))
            assert answer["status"] == "buffered", answer
        await hang_up(socket)
    await asyncio.sleep(0.01)
    assert "Traceback" not in server.log
    assert server.get("/health")[0] == 200


def test_the_server_is_no_larger_after_all_that(server: ServerProcess) -> None:
    status, memory = server.get("/v1/memory-stats")
    assert status == 200
    assert memory["inFlightBytes"] == 0
    assert memory["residentBytes"] < 600 * 1024 * 1024
