"""The limits as a client meets them: every reason for a refusal, and that nothing is lost by any of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest

from dolake.client import connect
from dolake.server.lake import Lake
from dolake.settings import SettingsStore
from dolake.wire.messages import NackReason
from tests.support.aio import until
from tests.support.clock import Clock
from tests.support.disk import FailingDisk
from tests.support.http import ask
from tests.support.kept import sequences_of
from tests.support.lake import running_lake
from tests.support.profiles import limited
from tests.support.speaker import Speaker, batch, event, events

Said = dict[str, Any]
Scene = Callable[[Lake, str, Speaker], Awaitable[Said]]
SCENES: dict[str, tuple[SettingsStore, Scene]] = {}


def scene(**limits: Any) -> Callable[[Scene], Scene]:
    def note(story: Scene) -> Scene:
        SCENES[story.__name__] = (limited(**limits), story)
        return story

    return note


async def until_refused(speaker: Speaker, first: int = 1) -> Said:
    for number in range(first, first + 200):
        answer = await speaker.ask(batch(number, [event(number)]))
        if answer["type"] == "nack":
            return answer
    raise AssertionError("nothing was refused")


@scene(burst_capacity=5, refill_rate=1)
async def rate_limited(_: Lake, __: str, speaker: Speaker) -> Said:
    answer = await until_refused(speaker)
    assert answer["sequenceNumber"] == 6
    assert 100 <= answer["retryDelayMs"] <= 1000
    return answer


@scene(max_connections_per_source=1)
async def connection_limit(_: Lake, url: str, speaker: Speaker) -> Said:
    await speaker.connect("shop", sourceShardName="one")
    async with Speaker(url) as second:
        return await second.connect("shop", sourceShardName="two")


@scene(max_connections_per_ip=1)
async def ip_limit(_: Lake, url: str, speaker: Speaker) -> Said:
    async with Speaker(url) as second:
        answer = await second.connect()
        closed = await second.socket.receive()
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1013)
    await speaker.connect()  # the first one goes on
    return answer


@scene(load_shedding_lag_ms=1)
async def load_shedding(lake: Lake, _: str, speaker: Speaker) -> Said:
    lake.receiver.pressure._due_s -= 0.5  # as if the loop had been held up for half a second
    await until(lambda: lake.receiver.pressure.lag_ms > 100)
    heartbeat = await speaker.ask({"type": "heartbeat", "sourceDoId": "shop"})
    assert heartbeat["status"] == "ok", "small words are always heard"
    return await speaker.ask(batch(1, [event(1)]))


@scene(max_payload_size=1000, max_event_size=1000)
async def payload_too_large(_: Lake, __: str, speaker: Speaker) -> Said:
    answer = await speaker.ask(batch(1, [event(1)], padding="x" * 1000))
    assert answer["maxSize"] == 1000
    return answer


@scene(max_payload_size=5000, max_event_size=1000)
async def event_too_large(_: Lake, __: str, speaker: Speaker) -> Said:
    answer = await speaker.ask(batch(1, [event(1, after={"id": "x" * 1000})]))
    assert answer["maxSize"] == 1000
    return answer


@scene()
async def invalid_format(_: Lake, __: str, speaker: Speaker) -> Said:
    return await speaker.ask("{")


@scene()
async def invalid_sequence(_: Lake, __: str, speaker: Speaker) -> Said:
    await speaker.ask(batch(1, [event(1)]))
    return await speaker.ask(batch(3, [event(3)]))


@scene(lake__enable_fallback=False)
async def buffer_full(lake: Lake, __: str, speaker: Speaker) -> Said:
    lake.progress.publish_started()
    for _ in range(3):
        lake.progress.publish_failed("no storage")
    return await speaker.ask(batch(1, [event(1)]))


@scene()
async def shutting_down(lake: Lake, _: str, speaker: Speaker) -> Said:
    await speaker.connect()
    closing = asyncio.ensure_future(lake.close())
    answer = await speaker.hear()
    await speaker.socket.close()
    await closing
    return answer


@scene()
async def internal_error(lake: Lake, _: str, speaker: Speaker) -> Said:
    disk: FailingDisk = lake.journal._disk  # type: ignore[assignment]  # every journal of these tests has one
    disk.is_sync_failing = True
    return await speaker.ask(batch(1, [event(1)]))


@pytest.mark.parametrize("reason", get_args(NackReason))
async def test_each_reason_for_a_refusal_can_be_met_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr("dolake.journal.embedded.Disk", FailingDisk)
    settings, story = SCENES[reason]
    async with running_lake(tmp_path, settings=settings) as (lake, url), Speaker(url) as speaker:
        answer = await story(lake, url, speaker)
        assert answer["type"] == "nack"
        assert answer["reason"] == reason
        assert answer["errorMessage"]
        is_final = reason in ("invalid_format", "payload_too_large", "event_too_large")
        assert answer["shouldRetry"] is not is_final
        assert ("retryDelayMs" in answer) is (answer["shouldRetry"] and reason != "invalid_sequence")


# --- messages --------------------------------------------------------------------------------------------------------


async def test_acks_tell_the_budget_and_a_refused_batch_can_be_sent_again(tmp_path: Path) -> None:
    clock = Clock()
    settings = limited(burst_capacity=3, refill_rate=20)
    async with running_lake(tmp_path, clock_ms=clock, settings=settings) as (_, url), Speaker(url) as speaker:
        answer = await speaker.ask(batch(1, [event(1)]))
        assert answer["details"]["bucketCapacity"] == 3
        assert answer["details"]["remainingTokens"] == 2
        assert answer["rateLimit"]["limit"] == 100
        assert answer["rateLimit"]["remaining"] == 2
        assert answer["rateLimit"]["resetAt"] == clock.now_ms // 1000 + 1
        refused = await until_refused(speaker, 2)
        assert refused["reason"] == "rate_limited"
        number = refused["sequenceNumber"]
        clock.move(refused["retryDelayMs"])
        assert (await speaker.ask(batch(number, [event(number)])))["status"] == "buffered"


async def test_a_whitelisted_client_hears_nothing_of_a_budget(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        for number in range(1, 60):
            answer = await speaker.ask(batch(number, [event(number)]))
            assert answer["status"] == "buffered"
            assert "rateLimit" not in answer
            assert "remainingTokens" not in answer["details"]


async def test_delays_double_while_a_sender_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    settings = limited(burst_capacity=1, refill_rate=100, base_retry_delay_ms=20)
    async with running_lake(tmp_path, clock_ms=clock, settings=settings) as (_, url), Speaker(url) as speaker:
        assert (await speaker.ask(batch(1, [event(1)])))["status"] == "buffered"
        delays = [(await speaker.ask(batch(2, [event(2)])))["retryDelayMs"] for _ in range(4)]
        assert delays == [20, 40, 80, 160]
        clock.move(10)
        assert (await speaker.ask(batch(2, [event(2)])))["status"] == "buffered"
        assert (await speaker.ask(batch(3, [event(3)])))["retryDelayMs"] == 20


async def test_a_flood_of_pings_is_answered_no_faster_than_messages(tmp_path: Path) -> None:
    settings = limited(burst_capacity=5, refill_rate=100)
    async with (
        running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url),
        aiohttp.ClientSession() as session,
        session.ws_connect(url + "/ws", autoping=False) as socket,
        Speaker(url) as other,
    ):
        for number in range(500):
            await socket.ping(b"%d" % number)
        pongs = [(await socket.receive()).data for _ in range(5)]
        assert pongs == [b"0", b"1", b"2", b"3", b"4"]
        assert (await other.ask(batch(1, [event(1)])))["status"] == "buffered"
        closed = await socket.receive()
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_who_goes_on_through_every_refusal_is_let_go_and_others_notice_nothing(tmp_path: Path) -> None:
    settings = limited(burst_capacity=5, refill_rate=200)
    clock = Clock()
    async with (
        running_lake(tmp_path, clock_ms=clock, settings=settings) as (lake, url),
        Speaker(url) as deaf,
        Speaker(url) as other,
    ):
        for number in range(1, 400):
            await deaf.say(batch(number, [event(number)], source="deaf"))
        said: Counter[str] = Counter()
        while (message := await deaf.socket.receive()).type is aiohttp.WSMsgType.TEXT:
            answer = json.loads(message.data)
            said[answer.get("reason") or answer["status"]] += 1
        assert message.data == 1008
        assert said.keys() == {"buffered", "rate_limited"}
        assert said["buffered"] == 5
        assert said["rate_limited"] >= 64
        assert (await other.ask(batch(1, [event(1)])))["status"] == "buffered"
        await until(lambda: lake.receiver.connection_count == 1)


async def test_who_waits_for_the_turn_of_a_large_message_is_listening(tmp_path: Path) -> None:
    """Who takes its stream over has the turn and waits for that: else both would wait for ever."""
    large = batch(1, [event(number, after={"text": "x" * 1_000}) for number in range(1, 101)])
    async with (
        running_lake(tmp_path, clock_ms=Clock(), settings=limited()) as (lake, url),
        Speaker(url) as speaker,
        asyncio.TaskGroup() as tasks,
    ):
        turn = lake.receiver.large_messages
        async with turn:
            asked = tasks.create_task(speaker.ask(large))
            await until(lambda: "waiters:1" in repr(turn))
            (connection,) = lake.receiver._connections.values()
            assert connection.is_listening.is_set
        assert (await asked)["status"] == "buffered"


async def test_settings_change_the_limits_of_open_connections(tmp_path: Path) -> None:
    clock = Clock()
    settings = limited(burst_capacity=2, refill_rate=1)
    async with running_lake(tmp_path, clock_ms=clock, settings=settings) as (_, url), Speaker(url) as speaker:
        assert (await speaker.ask(batch(1, [event(1)])))["details"]["bucketCapacity"] == 2
        patch = {"rateLimit": {"maxConnectionsPerIp": 1, "messagesPerSecond": 1}}
        applied = (await ask(url, "/v1/config", "PATCH", json=patch)).body["applied"]
        assert applied == ["rate_limit.max_connections_per_ip", "rate_limit.messages_per_second"]
        async with Speaker(url) as second:
            assert (await second.connect())["reason"] == "ip_limit"
        assert (await speaker.ask(batch(2, [event(2)])))["rateLimit"] == {
            "limit": 1,
            "remaining": 0,
            "resetAt": clock.now_ms // 1000 + 2,  # two tokens at one a second
        }
        assert (await speaker.ask(batch(3, [event(3)])))["reason"] == "rate_limited"


# --- connections -----------------------------------------------------------------------------------------------------


async def test_a_source_that_comes_back_is_not_locked_out_by_its_own_dead_connection(tmp_path: Path) -> None:
    settings = limited(max_connections_per_source=1)
    async with running_lake(tmp_path, settings=settings) as (_, url), Speaker(url) as dead:
        await dead.connect("shop")
        for _ in range(3):
            async with Speaker(url) as alive:
                assert (await alive.connect("shop"))["type"] == "status"


async def test_a_flood_of_upgrades_is_refused_before_the_upgrade(tmp_path: Path) -> None:
    settings = limited(connections_per_second=3)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (lake, url):
        for _ in range(3):
            async with Speaker(url):
                pass
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await Speaker(url).__aenter__()
        assert refusal.value.status == 429
        assert refusal.value.headers is not None
        assert int(refusal.value.headers["Retry-After"]) >= 1
        assert lake.limiter.refused_counts == {"connections": 1}


async def test_places_are_free_again_when_connections_end(tmp_path: Path) -> None:
    settings = limited(max_connections_per_ip=2, connections_per_second=1000)
    async with running_lake(tmp_path, settings=settings) as (lake, url):
        for _ in range(3):
            async with Speaker(url) as one, Speaker(url) as two:
                assert (await one.connect("one"))["type"] == "status"
                assert (await two.connect("two"))["type"] == "status"
            await until(lambda: lake.receiver.connection_count == 0)
            await until(lambda: lake.limiter.limited_connection_count == 0)


# --- our client ------------------------------------------------------------------------------------------------------


def order(row_id: str) -> dict[str, Any]:
    return {"operation": "INSERT", "table": "orders", "rowId": row_id, "after": {"id": row_id}}


async def send_one(url: str) -> None:
    async with connect(url, source="shop") as client:
        await client.send(order("row-1"))


async def test_the_client_waits_as_it_is_told_and_loses_nothing(tmp_path: Path) -> None:
    settings = limited(burst_capacity=3, refill_rate=50, base_retry_delay_ms=10)
    async with running_lake(tmp_path, settings=settings) as (lake, url):
        async with connect(url, source="shop", batch_events_max=10) as client:
            for number in range(200):
                await client.put(order(f"row-{number}"))
            await client.drain()
        assert lake.receiver.stats.nack_counts["rate_limited"] > 0
        assert lake.receiver.stats.connection_count == 1, "it need not connect again"
    assert sequences_of(tmp_path) == list(range(1, 201))


async def test_the_client_comes_back_when_there_is_a_place_for_it(tmp_path: Path) -> None:
    settings = limited(max_connections_per_ip=1, base_retry_delay_ms=10)
    async with running_lake(tmp_path, settings=settings) as (lake, url):
        async with Speaker(url) as first:
            await first.connect("first")
            sending = asyncio.ensure_future(send_one(url))
            await until(lambda: lake.receiver.stats.nack_counts.get("ip_limit", 0) > 1)
            assert not sending.done()
        await sending
    assert sequences_of(tmp_path) == [1]


async def test_a_batch_of_many_senders_is_kept_in_order_under_limits(tmp_path: Path) -> None:
    async def send(url: str, source: str) -> None:
        async with connect(url, source=source, batch_events_max=5) as client:
            for number in range(60):
                await client.put(order(f"{source}-{number}"))

    settings = limited(burst_capacity=2, refill_rate=40, base_retry_delay_ms=10)
    async with running_lake(tmp_path, settings=settings) as (_, url):
        await asyncio.gather(*(send(url, f"s{index}") for index in range(3)))
    assert sorted(sequences_of(tmp_path)) == sorted(list(range(1, 61)) * 3)


async def test_events_of_a_refused_batch_are_not_in_the_journal(tmp_path: Path) -> None:
    settings = limited(burst_capacity=2, refill_rate=1)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url), Speaker(url) as speaker:
        for number in range(1, 4):
            await speaker.say(batch(number, events(number * 10, number * 10 + 1)))
        answers = [await speaker.hear() for _ in range(3)]
        reasons = [answer.get("reason") or answer["status"] for answer in answers]
        assert sorted(reasons) == ["buffered", "buffered", "rate_limited"]
    assert sequences_of(tmp_path) == [10, 11, 20, 21]
