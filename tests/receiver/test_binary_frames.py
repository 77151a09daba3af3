"""A real server, spoken to in MessagePack and with compression: what is kept, what is answered, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from dolake.client import connect
from dolake.client.sync import connect as connect_sync
from dolake.wire.binary import decode_raw_batch, is_binary
from dolake.wire.messages import encode
from tests.receiver.conftest import EVENT_MAX, PAYLOAD_MAX
from tests.support.aio import until
from tests.support.kept import records_of, sequences_of
from tests.support.lake import running_lake, settings_of
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event, events
from tests.wire.test_binary import in_columns

packed = msgspec.msgpack.encode


def payloads(server: ServerProcess, source: str) -> list[bytes]:
    return [record.payload for record in records_of(server.home, source)]


def events_kept(server: ServerProcess, source: str) -> list[dict[str, Any]]:
    return [each for data in payloads(server, source) for each in json.loads(encode(decode_raw_batch(data)))["events"]]


async def test_all_forms_on_one_connection_are_one_stream(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        assert (await speaker.ask(batch(1, events(1, 2), source=source)))["status"] == "buffered"
        first = speaker.is_binary
        assert (await speaker.ask_packed(batch(2, events(3, 4), source=source)))["status"] == "buffered"
        forms = [speaker.is_binary]
        in_columns_ = in_columns(batch(3, events(5, 6), source=source))
        assert (await speaker.ask_packed(in_columns_))["status"] == "buffered"
        assert (await speaker.ask(batch(4, events(7, 7), source=source)))["status"] == "buffered"
        assert [first, *forms, speaker.is_binary] == [False, True, False]
    assert events_kept(server, source) == events(1, 7)
    assert [is_binary(payload) for payload in payloads(server, source)] == [False, False, True, False]


async def test_who_asks_for_binary_in_connect_is_answered_in_binary(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        status = await speaker.connect(source, capabilities={"binaryProtocol": True})
        assert speaker.is_binary
        assert status["binaryProtocol"] is True
        await speaker.ask(batch(1, events(1, 1), source=source))
        assert speaker.is_binary


async def test_the_same_changes_in_another_form_are_duplicates(server: ServerProcess, source: str) -> None:
    message = batch(1, [event(1, after={"id": 1, "x": [1.5, None], "ü": "é"}), event(2)], source=source)
    async with Speaker(server.url) as speaker:
        assert (await speaker.ask_packed(in_columns(message)))["status"] == "buffered"
        assert (await speaker.ask(message))["status"] == "duplicate"
        assert (await speaker.ask_packed(message))["status"] == "duplicate"
        other = message | {"events": [event(1, after={"id": 2}), event(2)]}
        assert (await speaker.ask_packed(in_columns(other)))["reason"] == "invalid_sequence"
        # Of a batch that is half known the rest is kept.
        more = batch(2, events(2, 4), source=source)
        assert (await speaker.ask_packed(in_columns(more)))["status"] == "buffered"
    assert sequences_of(server.home, source) == [1, 2, 3, 4]


async def test_a_bad_value_is_refused_and_its_number_expected_again(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url) as speaker:
        nack = await speaker.ask_packed(batch(1, [event(1, after={"x": float("nan")})], source=source))
        assert (nack["reason"], nack["sequenceNumber"]) == ("invalid_format", 1)
        assert nack["details"][0]["path"] == "$.events[0].after"
        nack = await speaker.ask_packed(b"\x93\x01\x02\x03")
        assert nack["reason"] == "invalid_format"
        assert (await speaker.ask_packed(batch(2, events(1, 1), source=source)))["reason"] == "invalid_sequence"
        assert (await speaker.ask_packed(batch(1, events(1, 1), source=source)))["status"] == "buffered"
    assert events_kept(server, source) == events(1, 1)


async def test_the_limits_hold_in_every_form(server: ServerProcess, source: str) -> None:
    large = batch(1, [event(1), event(2, after={"text": "x" * EVENT_MAX})], source=source)
    huge = batch(1, [event(n, after={"text": "x" * 5000}) for n in range(1, 20)], source=source)
    async with Speaker(server.url) as speaker:
        for form in (packed, in_columns):
            nack = await speaker.ask_packed(form(large))
            assert (nack["reason"], nack["maxSize"]) == ("event_too_large", EVENT_MAX)
            assert "events[1]" in nack["errorMessage"]
            nack = await speaker.ask_packed(form(huge))
            assert (nack["reason"], nack["maxSize"]) == ("payload_too_large", PAYLOAD_MAX)
    assert events_kept(server, source) == []


async def test_the_client_speaks_binary_and_compressed(server: ServerProcess, source: str) -> None:
    changes = [
        {"table": "users", "operation": "INSERT", "rowId": str(n), "after": {"id": n, "name": "Jörg" * 20}}
        for n in range(1200)
    ]

    async with connect(server.url, source=source, binary=True, compression=True) as lake:
        receipt = await lake.send(changes)
        assert receipt.change_count == 1200
    with connect_sync(server.url, source=source, binary=True, compression=True) as plain:
        plain.send({"table": "users", "operation": "DELETE", "rowId": "7", "before": {"id": 7}})
    found = events_kept(server, source)
    assert [each["rowId"] for each in found] == [*(str(n) for n in range(1200)), "7"]
    assert found[3]["after"] == changes[3]["after"]
    assert all(map(is_binary, payloads(server, source)))


# --- compression -----------------------------------------------------------------------------------------------------


async def test_compression_is_settled_in_the_upgrade_without_memory_of_earlier_messages(
    server: ServerProcess, source: str
) -> None:
    async with Speaker(server.url, is_compressed=True) as speaker:
        agreed = speaker.socket._response.headers["Sec-WebSocket-Extensions"]
        assert "server_no_context_takeover" in agreed
        assert "client_no_context_takeover" in agreed
        for number in range(1, 4):
            answer = await speaker.ask(batch(number, events(number, number), source=source))
            assert answer["status"] == "buffered"
        assert (await speaker.ask_packed(batch(4, events(4, 4), source=source)))["status"] == "buffered"
    assert events_kept(server, source) == events(1, 4)


async def test_who_does_not_offer_compression_gets_none(server: ServerProcess) -> None:
    async with Speaker(server.url) as speaker:
        assert "Sec-WebSocket-Extensions" not in speaker.socket._response.headers


async def test_a_zip_bomb_ends_its_connection_and_no_other(server: ServerProcess, source: str) -> None:
    """A few kilobytes that would unfold to sixteen megabytes: more than the hard limit, which is what counts."""
    async with Speaker(server.url, is_compressed=True) as bomber, Speaker(server.url) as other:
        before = await other.connect(source)
        assert before["type"] == "status"
        await bomber.socket._writer.send_frame(b" " * 16 * 1024 * 1024, aiohttp.WSMsgType.TEXT)
        message = await bomber.socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert (await other.ask(batch(1, events(1, 1), source=source)))["status"] == "buffered"


async def test_a_broken_deflate_stream_ends_its_connection_and_no_other(server: ServerProcess, source: str) -> None:
    async with Speaker(server.url, is_compressed=True) as speaker, Speaker(server.url) as other:
        speaker.socket._writer._write_websocket_frame(b"\xff" * 100, aiohttp.WSMsgType.TEXT, 0x40)
        message = await speaker.socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert (await other.ask(batch(1, events(1, 1), source=source)))["status"] == "buffered"


# --- silence ---------------------------------------------------------------------------------------------------------


async def test_a_peer_that_answers_no_ping_is_dropped(tmp_path: Path) -> None:
    async with (
        running_lake(tmp_path, settings=settings_of(server__ping_ms=200)) as (lake, url),
        aiohttp.ClientSession() as session,
    ):
        dead = await session.ws_connect(url + "/ws", autoping=False)
        await dead.send_json({"type": "connect", "sourceDoId": "dead"})
        assert (await dead.receive_json())["type"] == "status"
        assert (await dead.receive()).type is aiohttp.WSMsgType.PING
        await until(lambda: lake.receiver.connection_count == 0)
        assert lake.receiver.speakers.source_count == 0
        await dead.close()
