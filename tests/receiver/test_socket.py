"""Heartbeats are answered as they are read, and nobody could tell by the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp._websocket.reader import WebSocketReader

from dolake.receiver.socket import Inbox
from tests.support.clock import Clock
from tests.support.lake import running_lake
from tests.support.profiles import limited
from tests.support.speaker import Speaker, batch, event

_BRIEF = b"\x81\x05hello"
_LONG = b"\x81\x7e\x03\xe8" + b"x" * 1000


@asynccontextmanager
async def speaking(home: Path, source: str) -> AsyncIterator[Speaker]:
    """With a server that takes 50 messages a second, whose clock stops."""
    settings = limited(messages_per_second=50)
    async with running_lake(home, clock_ms=Clock(), settings=settings) as (_, url), Speaker(url) as speaker:
        await speaker.connect(source)
        yield speaker


def compact(message: dict[str, Any]) -> str:
    """As our clients write it."""
    return json.dumps(message, separators=(",", ":"))


def heartbeat(correlation_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "heartbeat", "sourceDoId": "shop", "correlationId": correlation_id} | more


class _Protocol:
    _reading_paused = False


def _fed(answers: bool, *frames: bytes) -> tuple[list[bytes], int]:
    """Which messages were asked for an answer, and how many wait for their turn."""
    asked: list[bytes] = []

    def answer(message: Any) -> bool:
        asked.append(message.data)
        return answers

    inbox = Inbox(_Protocol(), 2**16, loop=asyncio.get_running_loop())
    inbox.answers_at_once = answer
    reader = WebSocketReader(inbox, 10_000, compress=False, decode_text=False)
    for frame in frames:
        reader.feed_data(frame)
    return asked, len(inbox._buffer)


async def test_a_brief_message_that_is_answered_waits_for_no_turn() -> None:
    assert _fed(True, _BRIEF, _BRIEF) == ([b"hello", b"hello"], 0)


async def test_what_is_long_or_comes_behind_one_that_waits_is_not_answered_before_its_turn() -> None:
    assert _fed(True, _LONG, _BRIEF) == ([], 2)
    assert _fed(False, _BRIEF, _BRIEF) == ([b"hello"], 2)


@pytest.mark.parametrize("write", [compact, json.dumps])
async def test_a_heartbeat_gets_the_same_answer_however_it_is_written(tmp_path: Path, write: Any) -> None:
    async with speaking(tmp_path, "shop") as speaker:
        await speaker.socket.send_str(write(heartbeat("a")))
        answer = await speaker.hear()
    assert (answer["type"], answer["status"], answer["correlationId"]) == ("ack", "ok", "a")
    assert answer["details"]["bucketCapacity"] >= answer["details"]["remainingTokens"] > 0


async def test_answers_come_in_the_order_of_the_messages(tmp_path: Path) -> None:
    async with speaking(tmp_path, "order") as speaker:
        for number in range(1, 6):
            await speaker.socket.send_str(json.dumps({"type": "nonsense", "correlationId": f"n{number}"}))
            await speaker.socket.send_str(compact(heartbeat(f"h{number}", sourceDoId="order")))
        answered = [(await speaker.hear())["correlationId"] for _ in range(10)]
    assert answered == [f"{kind}{number}" for number in range(1, 6) for kind in "nh"]


async def test_a_batch_that_begins_like_a_heartbeat_is_refused_once(tmp_path: Path) -> None:
    text = compact(batch(1, [event(1)], source="twofold"))
    twofold = '{"type":"heartbeat",' + text.removeprefix("{")
    async with speaking(tmp_path, "twofold") as speaker:
        await speaker.socket.send_str(twofold)
        await speaker.socket.send_str(compact(heartbeat("last", sourceDoId="twofold")))
        first, last = [await speaker.hear() for _ in range(2)]
    assert (first["type"], first["reason"], first["sequenceNumber"]) == ("nack", "invalid_format", 1)
    assert last["correlationId"] == "last"


async def test_many_heartbeats_are_held_back_like_any_other_message(tmp_path: Path) -> None:
    async with speaking(tmp_path, "hasty") as speaker:
        for number in range(80):
            await speaker.socket.send_str(compact(heartbeat(str(number), sourceDoId="hasty")))
        answers = [await speaker.hear() for _ in range(80)]
    assert [answer["correlationId"] for answer in answers] == [str(number) for number in range(80)]
    assert {answer.get("status") or answer.get("reason") for answer in answers} == {"ok", "rate_limited"}
