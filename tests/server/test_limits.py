"""Limits on HTTP: what every answer tells, who is meant by them, and peers that do not come to the point."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from dolake import errors
from dolake.catalog.base import PIPELINE_HEADER
from dolake.client import connect
from dolake.server.app import ROUTES
from tests.support.aio import until
from tests.support.clock import Clock
from tests.support.http import ask
from tests.support.lake import running_lake, settings_of
from tests.support.profiles import limited
from tests.support.speaker import Speaker, batch, event


async def test_every_route_tells_what_is_left(tmp_path: Path) -> None:
    settings = limited(http_requests_per_second=1000)
    async with running_lake(tmp_path, settings=settings) as (_, url), aiohttp.ClientSession() as session:
        extra = [("GET", "/"), ("GET", "/ws"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("PUT", "/status")]
        catalog = [("GET", "/v1/namespaces"), ("GET", "/lakehouse/v1/config"), ("POST", "/v1/nothing")]
        for method, path in [*((method, path) for method, path, _ in ROUTES), *extra, *catalog]:
            async with session.request(method, url + path) as answer:
                assert answer.status != 429
                assert answer.headers["X-RateLimit-Limit"] == "1000", (method, path)
                assert 0 <= int(answer.headers["X-RateLimit-Remaining"]) < 1000
                assert int(answer.headers["X-RateLimit-Reset"]) > 1_700_000_000
        async with session.ws_connect(url + "/ws") as socket:
            assert "X-RateLimit-Limit" in socket._response.headers


async def test_who_asks_too_often_gets_429_in_the_shape_of_all_errors(tmp_path: Path) -> None:
    settings = limited(http_requests_per_second=3)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url):
        answers = [await ask(url, "/health") for _ in range(4)]
        assert [answer[0] for answer in answers] == [200, 200, 200, 429]
        status, headers, body = answers[3]
        assert body["error"]["type"] == "rate_limited"
        assert body["error"]["code"] == status
        assert "3 requests a second" in body["error"]["message"]
        assert headers["X-RateLimit-Remaining"] == "0"
        assert int(headers["Retry-After"]) >= 1


async def test_whitelisted_addresses_are_told_the_limit_and_never_refused(tmp_path: Path) -> None:
    settings = settings_of(rate_limit__http_requests_per_second=1)
    async with running_lake(tmp_path, settings=settings) as (_, url):
        for _ in range(10):
            status, headers, _ = await ask(url, "/health/live")
            assert (status, headers["X-RateLimit-Remaining"]) == (200, "1")


async def test_the_pipeline_is_not_limited(tmp_path: Path) -> None:
    settings = limited(http_requests_per_second=1)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (lake, url):
        ours = {PIPELINE_HEADER: lake.catalog.pipeline_secret}
        for _ in range(10):
            assert (await ask(url, "/v1/published", headers=ours)).status == 200
        guesses = [(await ask(url, "/v1/published", headers={PIPELINE_HEADER: "guess"})).status for _ in range(10)]
        assert 429 in guesses


async def test_behind_a_trusted_proxy_each_client_has_a_budget_of_its_own(tmp_path: Path) -> None:
    settings = limited(http_requests_per_second=3, server__trusted_proxies=["127.0.0.1"])
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url):

        async def asked(forwarded: str) -> int:
            return (await ask(url, "/health/live", headers={"X-Forwarded-For": forwarded})).status

        one = [await asked(f"198.51.100.{n}, 203.0.113.5") for n in range(10)]
        assert 429 in one, "what a client adds itself gives it no other name"
        assert await asked("203.0.113.6") == 200


async def test_without_trusted_proxies_nobody_can_choose_a_name(tmp_path: Path) -> None:
    settings = limited(http_requests_per_second=3)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url):
        headers = [{"X-Forwarded-For": f"203.0.113.{n}"} for n in range(10)]
        assert 429 in [(await ask(url, "/health/live", headers=each)).status for each in headers]


async def test_sockets_behind_a_trusted_proxy_are_counted_by_their_clients(tmp_path: Path) -> None:
    settings = limited(max_connections_per_ip=1, server__trusted_proxies=["127.0.0.0/8"])
    async with running_lake(tmp_path, settings=settings) as (_, url):
        one, two = {"X-Forwarded-For": "203.0.113.5"}, {"X-Forwarded-For": "[2001:db8::1]:443"}
        async with Speaker(url, headers=one) as first, Speaker(url, headers=two) as second:
            assert (await first.connect("first"))["type"] == "status"
            assert (await second.connect("second"))["type"] == "status"
            async with Speaker(url, headers=one) as third:
                assert (await third.connect("third"))["reason"] == "ip_limit"


async def test_subscribers_count_among_the_connections_of_their_address(tmp_path: Path) -> None:
    settings = limited(max_connections_per_ip=1)
    async with running_lake(tmp_path, settings=settings) as (_, url):
        assert (await ask(url, "/v1/subscribe?tables=orders")).status == 409  # queries are off: it has left again
        async with aiohttp.ClientSession() as session, session.ws_connect(url + "/ws"):
            status, _, body = await ask(url, "/v1/subscribe?tables=orders")
            assert (status, body["error"]["type"]) == (429, "rate_limited")
            assert "as many as it may" in body["error"]["message"]


async def test_the_client_asks_again_when_it_was_too_fast(tmp_path: Path) -> None:
    clock = Clock()
    settings = limited(http_requests_per_second=1)
    async with running_lake(tmp_path, clock_ms=clock, settings=settings) as (lake, url):
        client = connect(url)
        await client.status()
        second = asyncio.ensure_future(client.status())
        await until(lambda: lake.limiter.refused_counts.get("requests") == 1)
        clock.move(1000)
        assert (await second)["type"] == "status"


async def test_the_client_gives_up_after_some_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolake.client.http._TRIES_MAX", 2)
    settings = limited(http_requests_per_second=1)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (lake, url):
        client = connect(url)
        await client.status()
        with pytest.raises(errors.RateLimited) as refusal:
            await client.status()
        assert refusal.value.retryable
        assert lake.limiter.refused_counts["requests"] == 2


async def test_status_and_metrics_show_the_limits_at_work(tmp_path: Path) -> None:
    settings = limited(burst_capacity=1, refill_rate=1)
    async with running_lake(tmp_path, clock_ms=Clock(), settings=settings) as (_, url), Speaker(url) as speaker:
        for number in (1, 2):
            await speaker.ask(batch(number, [event(number)]))
        _, _, status = await ask(url, "/status")
        assert status["limits"]["limitedConnections"] == 1
        assert status["limits"]["refused"] == {"messages": 1}
        assert status["limits"]["addresses"] == 1
        _, _, text = await ask(url, "/metrics")
        assert 'dolake_limited_total{what="messages"} 1.0' in text
        assert 'dolake_nacks_total{reason="rate_limited"} 1.0' in text


# --- peers that do not come to the point -----------------------------------------------------------------------------


async def raw(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("said", [b"", b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: webso"])
async def test_a_head_that_does_not_come_is_not_waited_for(tmp_path: Path, said: bytes) -> None:
    settings = limited(server__request_wait_max_ms=200)
    async with running_lake(tmp_path, settings=settings) as (_, url):
        reader, writer = await raw(url)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(tmp_path: Path) -> None:
    settings = limited(server__request_wait_max_ms=300)
    async with running_lake(tmp_path, settings=settings) as (_, url):
        reader, writer = await raw(url)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"X")
            await asyncio.sleep(0.02)
        writer.close()


@pytest.mark.parametrize("path", ["/v1/config", "/v1/namespaces", "/v1/query"])
async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, path: str) -> None:
    settings = limited(server__request_wait_max_ms=200)
    async with running_lake(tmp_path, settings=settings) as (lake, url):
        reader, writer = await raw(url)
        method = "PATCH" if path == "/v1/config" else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"namespace":')
        answer = await reader.readuntil(b"}}")
        assert b" 408 " in answer or (path == "/v1/query" and b" 409 " in answer), answer
        writer.close()
        assert lake.is_ready


async def test_a_peer_without_a_sign_of_life_is_dropped(tmp_path: Path) -> None:
    settings = limited(server__ping_ms=1000)
    async with running_lake(tmp_path, settings=settings) as (lake, url):
        reader, writer = await raw(url)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await until(lambda: lake.receiver.connection_count == 1)
        async with Speaker(url) as alive:
            await alive.connect("alive")
            answering = asyncio.ensure_future(alive.socket.receive())  # it answers pings while it listens
            await until(lambda: lake.receiver.connection_count == 1)
            assert await reader.read() != b"never", "our side was closed"
            assert not answering.done()
            answering.cancel()
        await until(lambda: lake.limiter.limited_connection_count == 0)
        writer.close()
