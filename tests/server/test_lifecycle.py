"""Start and stop: who may start, what is seen meanwhile, and what a stop leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket as sockets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dolake.errors import InvalidInput
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.server.home import Home
from dolake.server.lake import Lake
from dolake.server.lifecycle import refuse_open_doors
from tests.support.aio import until
from tests.support.command import dolake
from tests.support.http import ask
from tests.support.journals import GatedDisk
from tests.support.kept import sequences_of
from tests.support.lake import running_lake, serving, settings_of
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, events


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "home") as process:
        yield process


async def send_some(url: str, count: int = 3, *, source: str = "source-1") -> None:
    async with Speaker(url) as speaker:
        for number in range(1, count + 1):
            assert (await speaker.ask(batch(number, events(number, number), source=source)))["status"] == "buffered"


# --- who may start ---------------------------------------------------------------------------------------------------


async def test_a_second_server_on_the_same_home_is_refused_and_the_first_one_is_not_harmed(
    default_server: ServerProcess,
) -> None:
    server = default_server
    second = dolake("serve", "--home", server.home, "--port", 0)
    assert second.returncode == 1
    assert f"another server (process {server.pid}) is using {server.home}" in second.stderr
    assert "--home" in second.stderr
    assert "Traceback" not in second.stderr
    await send_some(server.url, source="second-server")
    assert json.loads((server.home / "server.json").read_text())["pid"] == server.pid


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "example.com", "localhost.example.com", "*"]
)
def test_an_address_that_others_can_reach_is_refused_with_the_reason(host: str) -> None:
    with pytest.raises(InvalidInput, match="not a loopback address") as caught:
        refuse_open_doors(host, has_tokens=False)
    assert host in caught.value.message
    assert "dolake token create" in caught.value.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_with_a_token_others_may_reach_it(host: str) -> None:
    refuse_open_doors(host, has_tokens=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_of_this_machine_is_fine(host: str) -> None:
    refuse_open_doors(host, has_tokens=False)


def test_the_command_refuses_such_an_address_too_and_leaves_no_lock(tmp_path: Path) -> None:
    answer = dolake("serve", "--home", tmp_path / "home", "--host", "0.0.0.0", "--port", 0)
    assert answer.returncode == 1
    assert "not a loopback address" in answer.stderr
    assert "dolake token create" in answer.stderr
    assert "Traceback" not in answer.stderr
    with Home(tmp_path / "home"):
        pass


def test_a_port_in_use_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = dolake("serve", "--home", tmp_path / "home", "--port", port)
    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in answer.stderr
    assert "--port" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.own_lake
async def test_a_damaged_journal_stops_the_start_with_the_place_and_the_way_out(server: ServerProcess) -> None:
    await send_some(server.url, 20)
    assert server.stop() == 0
    (segment,) = (server.home / "journal").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    server.start(wait=False)
    assert server.wait_exit() == 1
    assert f"the journal is damaged in {segment.name} at byte" in server.log
    assert "dolake journal check" in server.log
    assert "Traceback" not in server.log
    assert segment.read_bytes() == bytes(data), "nothing was changed"
    assert not (server.home / "server.json").exists()


@pytest.mark.own_lake
async def test_a_server_that_was_killed_starts_again_with_everything_acknowledged(server: ServerProcess) -> None:
    await send_some(server.url, 5)
    server.kill()
    assert (server.home / "server.json").exists(), "it had no time to clean up"
    server.start()
    async with Speaker(server.url) as speaker:
        status = await speaker.connect()
        assert (status["lastDurableSequence"], status["lastBatchNumber"]) == (5, 5)
        assert (await speaker.ask(batch(5, events(5, 5))))["status"] == "duplicate"
    assert sequences_of(server.home) == [1, 2, 3, 4, 5]


@pytest.mark.own_lake
def test_logs_can_be_json_lines_and_the_address_is_there_as_long_as_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", environ={"DOLAKE_SERVER_LOG_FORMAT": "json"}) as server:
        address = json.loads((server.home / "server.json").read_text())
        assert (address["url"], address["pid"]) == (server.url, server.pid)
        os.kill(server.pid, signal.SIGINT)
        assert server.wait_exit() == 0, "Ctrl-C is a stop like any other"
        assert not (server.home / "server.json").exists()
        lines = [json.loads(line) for line in server.log.splitlines()]
    messages = [line["message"] for line in lines]
    assert messages[0] == "server started"
    assert messages[-1] == "server stopped"
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert lines[0]["url"] == server.url


# --- while the journal is recovered ----------------------------------------------------------------------------------


class SlowRecovery:
    """open_journal that does not begin before it is told to."""

    def __init__(self) -> None:
        self.begin = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> EmbeddedJournal:
        options["on_progress"](1, 4)
        assert self.begin.wait(30)
        return open_journal(*arguments, **options)


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> SlowRecovery:
    slow = SlowRecovery()
    monkeypatch.setattr("dolake.server.lake.open_journal", slow)
    return slow


async def test_while_the_journal_is_recovered_the_server_is_live_and_not_ready(
    tmp_path: Path, recovery: SlowRecovery
) -> None:
    with Home(tmp_path) as home:
        lake = Lake(home, settings_of())
        async with serving(lake) as url:
            opening = asyncio.ensure_future(lake.open())
            await until(lambda: lake.recovery_total > 0)
            states = [lake.state]
            status, _, health = await ask(url, "/health")
            assert status == 503
            assert (health["status"], health["live"], health["ready"]) == ("recovering", True, False)
            assert "1 of 4 segments" in health["reason"]
            assert (await ask(url, "/health/ready")).status == 503
            assert (await ask(url, "/health/live")).status == 200
            status, _, body = await ask(url, "/status")
            assert (status, body["state"]) == (200, "recovering")
            assert body["recovery"] == {"segmentsDone": 1, "segmentsTotal": 4}
            status, _, text = await ask(url, "/metrics")
            assert status == 200
            assert 'dolake_state{state="recovering"} 1.0' in text
            assert "dolake_ready 0.0" in text
            status, headers, body = await ask(url, "/v1/write-stats")
            assert status == 503
            assert headers["Retry-After"] == "1"
            assert "recovered" in body["error"]["message"]
            assert (await ask(url, "/"))[2]["state"] == "recovering"
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with Speaker(url):
                    pass
            assert caught.value.status == 503
            recovery.begin.set()
            await opening
            states.append(lake.state)
            assert states == ["recovering", "idle"]
            assert (await ask(url, "/health")).status == 200
            await send_some(url)
            await lake.close()


async def test_a_setting_changed_while_the_journal_is_recovered_counts(tmp_path: Path, recovery: SlowRecovery) -> None:
    with Home(tmp_path) as home:
        lake = Lake(home, settings_of(tmp_path))
        async with serving(lake) as url:
            opening = asyncio.ensure_future(lake.open())
            await until(lambda: lake.recovery_total > 0)
            patch = {"journalSizeMaxBytes": 1_073_741_824, "enableDeduplication": False}
            assert (await ask(url, "/v1/config", "PATCH", json=patch)).status == 200
            recovery.begin.set()
            await opening
            assert (await ask(url, "/status"))[2]["journal"]["sizeMaxBytes"] == 1_073_741_824
            async with Speaker(url) as speaker:
                for _ in range(2):
                    assert (await speaker.ask(batch(1, events(1, 1))))["status"] == "buffered"
            await lake.close()


# --- how it stops ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.own_lake
async def test_batches_in_flight_are_acknowledged_or_told_to_come_again_and_nothing_acknowledged_is_lost(
    server: ServerProcess,
) -> None:
    acked: list[int] = []
    refused: list[dict[str, Any]] = []

    async def keep_sending(speaker: Speaker) -> None:
        for sequence in itertools.count(1):
            await speaker.say(batch(sequence, events(sequence, sequence)))
            await asyncio.sleep(0)

    async with Speaker(server.url) as speaker:
        sending = asyncio.ensure_future(keep_sending(speaker))
        while (message := await speaker.socket.receive()).type is aiohttp.WSMsgType.TEXT:
            answer = json.loads(message.data)
            if answer["type"] == "nack":
                refused.append(answer)
                continue
            acked.append(answer["sequenceNumber"])
            if len(acked) == 50:
                os.kill(server.pid, signal.SIGTERM)
        assert speaker.socket.close_code == 1001
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await sending
    assert server.wait_exit() == 0
    assert refused, "the client was never told"
    assert {(nack["reason"], nack["shouldRetry"]) for nack in refused} == {("shutting_down", True)}
    assert acked == list(range(1, len(acked) + 1))
    found = sequences_of(server.home)
    assert found == list(range(1, len(found) + 1))
    assert set(acked) <= set(found)
    server.start()
    async with Speaker(server.url) as speaker:
        assert (await speaker.connect())["lastDurableSequence"] == len(found) >= len(acked)


@pytest.mark.own_lake
async def test_an_idle_client_is_told_and_its_connection_closed(server: ServerProcess) -> None:
    async with Speaker(server.url) as idle, Speaker(server.url) as silent:
        await idle.connect("idle")
        os.kill(server.pid, signal.SIGTERM)
        for speaker in (idle, silent):
            told = await speaker.hear()
            assert (told["type"], told["reason"], told["shouldRetry"]) == ("nack", "shutting_down", True)
            assert told["retryDelayMs"] > 0
            assert (await speaker.socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert server.wait_exit() == 0


@pytest.mark.slow
@pytest.mark.own_lake
def test_a_client_that_never_reads_cannot_keep_the_server_from_stopping(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", settings="[server]\nshutdown_wait_ms = 200\n") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with sockets.create_connection((host, int(port))) as deaf:
            deaf.sendall(
                b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert b" 101 " in deaf.recv(100)
            assert server.stop() == 0


async def test_a_batch_on_its_way_is_acknowledged_and_a_later_one_is_not_taken(tmp_path: Path, disk: GatedDisk) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        disk.hold()
        await speaker.say(batch(1, events(1, 1)))
        await until(lambda: lake.journal.in_flight_bytes > 0)
        closing = asyncio.ensure_future(lake.close())
        told = await speaker.hear()
        assert (told["reason"], told["sequenceNumber"]) == ("shutting_down", 2)
        later = await speaker.ask(batch(2, events(2, 2), correlationId="late"))
        assert (later["reason"], later["correlationId"]) == ("shutting_down", "late")
        refused = await speaker.ask({"type": "connect", "sourceDoId": "source-1"})
        assert (refused["type"], refused["reason"]) == ("nack", "shutting_down")
        status, _, health = await ask(url, "/health")
        assert (status, health["ready"], health["reason"]) == (503, False, "the server is shutting down")
        disk.let_go()
        ack = await speaker.hear()
        assert (ack["type"], ack["status"], ack["sequenceNumber"]) == ("ack", "buffered", 1)
        assert (await speaker.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        await closing
    assert sequences_of(tmp_path) == [1]


async def test_answers_reach_a_client_that_is_still_sending_while_the_server_stops(
    tmp_path: Path, disk: GatedDisk
) -> None:
    async with running_lake(tmp_path) as (lake, url), Speaker(url) as speaker:
        disk.hold()
        await speaker.say(batch(1, events(1, 1)))
        await until(lambda: lake.journal.in_flight_bytes > 0)
        closing = asyncio.ensure_future(lake.close())
        disk.let_go()
        for number in range(2, 500):
            await speaker.say(batch(number, events(number, number)))
        await until(lambda: lake.journal.in_flight_bytes == 0)
        answers = []
        while (message := await speaker.socket.receive()).type is aiohttp.WSMsgType.TEXT:
            answers.append(json.loads(message.data))
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
        assert [answer["sequenceNumber"] for answer in answers if answer["type"] == "ack"] == [1]
        assert {answer["reason"] for answer in answers if answer["type"] == "nack"} == {"shutting_down"}
        await closing
    assert sequences_of(tmp_path) == [1]


async def test_a_client_that_leaves_when_it_is_told_is_not_waited_for(tmp_path: Path, disk: GatedDisk) -> None:
    forever = settings_of(server__shutdown_wait_ms=3_600_000)
    async with running_lake(tmp_path, settings=forever) as (lake, url):
        async with Speaker(url) as speaker:
            disk.hold()
            await speaker.say(batch(1, events(1, 1)))
            await until(lambda: lake.journal.in_flight_bytes > 0)
            closing = asyncio.ensure_future(lake.close())
            assert (await speaker.hear())["reason"] == "shutting_down"
        await until(lambda: lake.receiver.connection_count == 0)
        disk.let_go()
        await closing
    assert sequences_of(tmp_path) == [1], "it was on its way, so it was kept"
