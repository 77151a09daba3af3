"""What an operator asks over HTTP: every route, its shape, its errors, and settings changed while the server runs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dolake
from dolake.settings import load_settings
from tests.support.aio import run
from tests.support.http import Answer, ask
from tests.support.kept import sequences_of
from tests.support.lake import running_lake
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, event, events

pytestmark = pytest.mark.own_lake  # its figures are those of the whole server

BASES = ["", "/lakehouse"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has received two batches, refused a third and seen a duplicate."""

    async def fill(url: str) -> None:
        async with Speaker(url) as speaker:
            await speaker.connect("shop")
            await speaker.ask(batch(1, events(1, 10), source="shop"))
            await speaker.ask(batch(2, [event(11, table="orders")], source="shop"))
            await speaker.ask(batch(2, [event(11, table="orders")], source="shop"))
            await speaker.ask(batch(9, events(12, 12), source="shop"))
            await speaker.ask(batch(3, [event(12, after={"pad": "x" * 2_000_000})], source="shop"))

    with ServerProcess(tmp_path_factory.mktemp("operations")) as process:
        run(fill(process.url))
        yield process


def configure(process: ServerProcess, **patch: Any) -> Any:
    status, body = process.get("/v1/config", method="PATCH", body=patch)
    assert status == 200, body
    return body


def setting(server: ServerProcess, key: str) -> Any:
    return server.get("/v1/settings")[1][key]


# --- the routes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_health_says_live_and_ready(server: ServerProcess, base: str, path: str) -> None:
    status, body = server.get(base + path)
    assert status == 200
    assert body == {"status": "ok", "live": True, "ready": True, "version": dolake.__version__}


@pytest.mark.parametrize("base", BASES)
def test_liveness_can_be_asked_apart(server: ServerProcess, base: str) -> None:
    assert server.get(base + "/health/live") == (200, {"status": "ok", "live": True})


@pytest.mark.parametrize("base", BASES)
def test_status_has_the_protocols_fields_and_the_operators(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/status")
    assert status == 200
    assert body["type"] == "status"
    assert body["state"] in ("idle", "receiving")
    assert body["buffer"]["batchCount"] == 2
    assert body["buffer"]["eventCount"] == 11
    assert body["buffer"]["totalSizeBytes"] > 0
    assert body["buffer"]["utilization"] >= 0
    assert body["buffer"]["newestBatchTime"] >= body["buffer"]["oldestBatchTime"] > 0
    assert body["connectedSources"] == body["connections"] == 0
    assert body["durablePosition"] == 11
    assert body["committedPosition"] == 0
    assert body["circuitBreakerState"] == "closed"
    assert body["publisherAttached"] is False
    assert (body["streams"], body["tables"]) == (1, 2)
    assert body["version"] == dolake.__version__
    assert body["uptimeMs"] > 0
    assert body["journal"]["segments"] == 1
    assert 0 < body["journal"]["usedBytes"] < body["journal"]["sizeMaxBytes"] == 8 * 1024**3
    assert body["journal"]["oldestPosition"] == 0
    assert body["journal"]["consumers"] == {"pipeline": 0}
    assert body["pipeline"] == {"state": "off"}
    assert {table: lag["changes"] for table, lag in body["lag"].items()} == {"orders": 1, "users": 10}


@pytest.mark.parametrize("base", BASES)
async def test_metrics_are_in_the_format_of_prometheus(server: ServerProcess, base: str) -> None:
    status, headers, text = await ask(server.url, base + "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    figures = {
        match[1]: float(match[2]) for match in re.finditer(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, flags=re.MULTILINE)
    }
    assert figures["dolake_ready"] == 1
    assert sum(value for name, value in figures.items() if name.startswith("dolake_state{")) == 1
    assert figures["dolake_journal_durable_position"] == 11
    assert figures["dolake_journal_changes_total"] == 11
    assert figures["dolake_journal_batches_total"] == 2
    assert figures['dolake_acks_total{status="buffered"}'] == 2
    assert figures['dolake_acks_total{status="duplicate"}'] == 1
    assert figures["dolake_duplicate_changes_total"] == 1
    assert figures["dolake_ack_seconds_count"] == 3
    assert figures["dolake_messages_received_total"] == 6


async def test_refusals_are_counted_under_the_reason_that_the_sender_was_told(server: ServerProcess) -> None:
    text = (await ask(server.url, "/metrics")).body
    assert 'dolake_nacks_total{reason="invalid_sequence"} 1.0' in text
    assert 'dolake_nacks_total{reason="event_too_large"} 1.0' in text


@pytest.mark.parametrize("base", BASES)
def test_flush_without_a_publisher_says_that_changes_wait_in_the_journal(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/flush", method="POST")
    assert status == 200
    assert body["success"] is False
    assert (body["durablePosition"], body["committedPosition"], body["eventsFlushed"]) == (11, 0, 0)
    assert "durable in the journal" in body["message"]


@pytest.mark.parametrize("base", BASES)
def test_memory_stats_have_their_shape(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/v1/memory-stats")
    assert status == 200
    assert body["residentBytes"] > 1_000_000
    assert body.keys() == {
        "residentBytes",
        "inFlightBytes",
        "maxBufferSize",
        "unpublishedEvents",
        "unpublishedBytes",
        "connections",
        "streams",
    }
    assert (body["inFlightBytes"], body["maxBufferSize"], body["unpublishedEvents"]) == (0, 128 * 1024**2, 11)


@pytest.mark.parametrize("base", BASES)
def test_write_stats_have_their_shape(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/v1/write-stats")
    assert status == 200
    assert body["publish"] == {
        "attached": False,
        "count": 0,
        "failures": 0,
        "lastFailure": "",
        "lastFlushTime": None,
    }
    journal = body["journal"]
    assert (journal["batches"], journal["events"], journal["refusedBatches"]) == (2, 11, 0)
    assert journal["syncs"] >= 1
    assert journal["bytes"] > 0
    assert journal["batchesPerSync"] >= 1
    assert journal["syncMsMean"] >= 0


@pytest.mark.parametrize("base", BASES)
def test_scaling_status_has_its_shape(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/v1/scaling/status")
    assert status == 200
    assert body["cores"] >= 1
    assert body["loadAverage"] >= 0
    assert body["backpressure"] is False
    assert 0 <= body["bufferUtilization"] < 0.8
    assert body["inFlightUtilization"] == 0
    assert (body["tables"], body["tablesMax"]) == (2, 10_000)
    assert {"connections", "connectedSources", "roles"} <= body.keys()


@pytest.mark.parametrize("base", BASES)
def test_every_setting_can_be_seen_with_its_origin(server: ServerProcess, base: str) -> None:
    status, body = server.get(base + "/v1/settings")
    assert status == 200
    default = {"value": 10_000, "origin": "default", "needsRestart": False, "afterRestart": None}
    assert body["lake.flush_threshold_events"] == default
    assert body["server.port"]["origin"] == "flag"
    assert {"rate_limit.backpressure_threshold", "compaction.auto_compact", "journal.size_max_bytes"} <= body.keys()


@pytest.mark.parametrize("path", ["/", "/lakehouse", "/lakehouse/"])
def test_the_front_door_is_a_signpost(server: ServerProcess, path: str) -> None:
    status, body = server.get(path)
    assert status == 200
    assert (body["name"], body["version"]) == ("dolake", dolake.__version__)
    assert body["routes"]["websocket"] == "/ws"
    for route, method in body["routes"].items():
        if method == "GET" and "{" not in route:
            ends = "/v1/quarantine", "/v1/subscribe", "/v1/subscriptions"
            needs_queries = route.endswith(ends)  # and this server answers none
            assert server.get(route)[0] == (409 if needs_queries else 200), route


# --- errors ----------------------------------------------------------------------------------------------------------


def check_error(answer: Answer, code: int) -> Any:
    status, headers, body = answer
    assert status == code
    assert headers["Content-Type"].startswith("application/json")
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "code", "hint"}
    assert body["error"]["code"] == code
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/lakehouse/nothing", "/v1/nothing", "/lakehouses", "/%00", "/..%2fstatus"]
)
async def test_a_path_that_does_not_exist_is_404_in_json(server: ServerProcess, path: str) -> None:
    assert "GET /" in check_error(await ask(server.url, path), 404)["hint"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/health", "GET"),
        ("DELETE", "/status", "GET"),
        ("GET", "/flush", "POST"),
        ("PUT", "/v1/config", "PATCH"),
    ],
)
async def test_a_method_that_does_not_exist_is_405_in_json_with_those_that_do(
    server: ServerProcess, method: str, path: str, allowed: str
) -> None:
    answer = await ask(server.url, path, method)
    check_error(answer, 405)
    assert allowed in answer.headers["Allow"]


@pytest.mark.parametrize("path", ["/ws", "/lakehouse/ws"])
async def test_the_socket_asked_without_an_upgrade_says_what_it_is(server: ServerProcess, path: str) -> None:
    assert "WebSocket" in check_error(await ask(server.url, path), 400)["message"]


# --- pages of other sites --------------------------------------------------------------------------------------------

FOREIGN = [
    "https://evil.example",
    "http://evil.example:8787",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://10.0.0.1",
    "http://[2001:db8::1]",
    "http://[",
    "null",
    "file://",
]
OWN = ["http://localhost", "http://localhost:3000", "http://app.localhost", "http://127.0.0.1:1", "http://[::1]:8787"]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_of_another_site_may_not_change_anything(server: ServerProcess, origin: str) -> None:
    for method, path in (("POST", "/flush"), ("PATCH", "/v1/config")):
        answer = await ask(server.url, path, method, data=b'{"maxBufferSize": 1048576}', headers={"Origin": origin})
        assert check_error(answer, 403)["type"] == "forbidden"
    assert setting(server, "lake.max_buffer_size")["origin"] == "default"


@pytest.mark.parametrize("path", ["/ws", "/", "/lakehouse", "/lakehouse/ws"])
@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_page_of_another_site_may_not_open_the_socket(server: ServerProcess, origin: str, path: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with Speaker(server.url, path=path, headers={"Origin": origin}):
            pass
    assert caught.value.status == 403


@pytest.mark.parametrize("origin", OWN)
async def test_a_page_of_this_machine_may(server: ServerProcess, origin: str) -> None:
    async with Speaker(server.url, headers={"Origin": origin}) as speaker:
        assert (await speaker.connect("page"))["type"] == "status"
    assert (await ask(server.url, "/flush", "POST", headers={"Origin": origin})).status == 200


async def test_no_page_of_another_site_can_read_an_answer(server: ServerProcess) -> None:
    status, headers, _ = await ask(server.url, "/status", headers={"Origin": "https://evil.example"})
    assert status == 200
    assert not [name for name in headers if name.lower().startswith("access-control")]


# --- settings while the server runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "object"),
        (b'"maxBufferSize"', "object"),
        (b"null", "object"),
    ],
)
async def test_a_patch_that_is_no_object_is_refused(server: ServerProcess, body: bytes, words: str) -> None:
    error = check_error(await ask(server.url, "/v1/config", "PATCH", data=body), 400)
    assert words in error["message"]


async def test_a_patch_that_is_far_too_long_is_refused(server: ServerProcess) -> None:
    check_error(await ask(server.url, "/v1/config", "PATCH", data=io.BytesIO(b" " * 3_000_000)), 413)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"maxBufferSize": 2_000_000, "maxEventSize": "large"}, ["maxEventSize", "'large'", "whole number"]),
        ({"maxBufferSize": 2_000_000, "flushThresholdEvents": 0}, ["flushThresholdEvents", "0", "from 1"]),
        ({"maxBufferSize": 2_000_000, "parquetCompression": "lzma"}, ["'lzma'", "none, snappy, gzip, zstd"]),
        ({"maxBufferSize": 2_000_000, "enableDeduplication": 1}, ["enableDeduplication", "true or false"]),
        ({"maxBufferSize": 2_000_000, "baseRetryDelayMs": 60_000}, ["at most", "max_retry_delay_ms"]),
        ({"maxBufferSize": 2_000_000, "maxBuferSize": 1}, ["maxBuferSize", "not a setting"]),
        ({"max_buffer_size": 2_000_000, "lake": {"nothing": 1}}, ["nothing", "not a setting"]),
    ],
)
async def test_a_patch_is_checked_as_a_whole_before_any_of_it_counts(
    server: ServerProcess, patch: dict[str, Any], words: list[str]
) -> None:
    before = server.get("/v1/settings")
    error = check_error(await ask(server.url, "/v1/config", "PATCH", data=json.dumps(patch).encode()), 400)
    assert error["type"] == "invalid_setting"
    for word in words:
        assert word in error["message"] + error["hint"]
    assert server.get("/v1/settings") == before
    assert not (server.home / "settings-changed.json").exists()


async def reason_for_a_large_event(url: str) -> str:
    async with Speaker(url) as speaker:
        assert (await speaker.connect())["maxEventSize"] == 1000
        return str((await speaker.ask(batch(1, [event(1, after={"pad": "x" * 1000})])))["reason"])


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """For a test that changes settings and restarts, so that no other test meets them."""
    with ServerProcess(tmp_path / "home") as process:
        yield process


async def test_a_change_counts_at_once_or_says_that_it_waits_and_survives_a_restart(own_server: ServerProcess) -> None:
    said = configure(own_server, maxEventSize=1000, max_payload_size=2000, server={"basePath": "/lake"})
    assert set(said["applied"]) == {"rate_limit.max_event_size", "rate_limit.max_payload_size"}
    assert said["needsRestart"] == ["server.base_path"]
    assert said["overruled"] == {}
    own = "changed at run time"
    applied = {"value": 1000, "origin": own, "needsRestart": False, "afterRestart": None}
    assert setting(own_server, "rate_limit.max_event_size") == applied
    waiting = {"value": "/lakehouse", "origin": "default", "needsRestart": True, "afterRestart": "/lake"}
    assert setting(own_server, "server.base_path") == waiting
    assert own_server.get("/lakehouse/health")[0] == 200
    assert own_server.get("/lake/health")[0] == 404
    assert await reason_for_a_large_event(own_server.url) == "event_too_large"
    assert own_server.stop() == 0
    own_server.start()
    assert await reason_for_a_large_event(own_server.url) == "event_too_large"
    assert setting(own_server, "rate_limit.max_event_size")["origin"] == own
    assert setting(own_server, "server.base_path")["value"] == "/lake"
    assert own_server.get("/lake/health")[0] == 200
    assert own_server.get("/lakehouse/health")[0] == 404
    taken_back = configure(own_server, maxEventSize=None, maxPayloadSize=None)
    assert taken_back["applied"] == ["rate_limit.max_event_size", "rate_limit.max_payload_size"]
    assert setting(own_server, "rate_limit.max_event_size")["origin"] == "default"


async def test_a_change_that_a_variable_overrules_says_so(tmp_path: Path) -> None:
    (tmp_path / "dolake.toml").write_text("max_payload_size = 100000\n")
    environ = {"DOLAKE_MAX_EVENT_SIZE": "5000"}
    settings = load_settings(home=tmp_path, config_file=None, environ=environ, flags={})
    async with running_lake(tmp_path, settings=settings) as (_, url):
        origins = (await ask(url, "/v1/settings")).body
        assert origins["rate_limit.max_event_size"]["origin"] == "environment DOLAKE_MAX_EVENT_SIZE"
        assert origins["rate_limit.max_payload_size"]["origin"].startswith("file ")
        said = (await ask(url, "/v1/config", "PATCH", json={"maxEventSize": 1000})).body
        assert said["applied"] == []
        assert said["overruled"] == {"rate_limit.max_event_size": "environment DOLAKE_MAX_EVENT_SIZE"}
        assert (await ask(url, "/v1/settings")).body["rate_limit.max_event_size"]["value"] == 5000


async def test_without_deduplication_a_batch_sent_twice_is_kept_twice(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        same = batch(1, events(1, 2))
        assert (await speaker.ask(same))["status"] == "buffered"
        assert (await speaker.ask(same))["status"] == "duplicate"
        assert (await ask(url, "/v1/config", "PATCH", json={"enableDeduplication": False})).body["applied"]
        assert (await speaker.ask(same))["status"] == "buffered"
        assert (await speaker.ask(batch(2, [event(1, after={"other": True})])))["status"] == "buffered"
        assert sequences_of(tmp_path) == [1, 2, 1, 2, 1]
        assert (await ask(url, "/v1/config", "PATCH", json={"enableDeduplication": True})).body["applied"]
        status = await speaker.connect()
        assert status["lastDurableSequence"] == 2, "what was written meanwhile moved nothing back"
        assert (await speaker.ask(batch(3, events(2, 3))))["status"] == "buffered"
        assert sequences_of(tmp_path) == [1, 2, 1, 2, 1, 3]


async def test_the_deduplication_window_is_a_setting(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url), Speaker(url) as speaker:
        await speaker.ask(batch(1, events(1, 2)))
        other = batch(2, [event(1, after={"other": True})])
        assert (await speaker.ask(other))["reason"] == "invalid_sequence"
        assert (await ask(url, "/v1/config", "PATCH", json={"deduplicationWindowMs": 0})).body["applied"]
        await speaker.ask(batch(2, events(3, 3)))
        assert (await speaker.ask(other))["status"] == "duplicate", "older than the window: its sequence decides"
