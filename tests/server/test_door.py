"""What stands on every answer, what pages of browsers may do, and how much of a request is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from dolake.errors import InvalidInput
from dolake.settings import load_settings
from tests.support.http import ask
from tests.support.server import ServerProcess

FRIEND, STRANGER = "https://app.example.com", "https://evil.example.com"
SETTINGS = f'[server]\ncors_origins = ["{FRIEND}"]\n'
EXPECTED = {
    "Server": "dolake",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> Iterator[ServerProcess]:
    with default_server.configured(SETTINGS):
        yield default_server


def spoken(server: ServerProcess, data: bytes) -> bytes:
    """What comes back for these bytes, until the server hangs up."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20) as plain:
        plain.sendall(data)
        received = b""
        while more := plain.recv(65_536):
            received += more
    return received


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/health", 200),
        ("GET", "/metrics", 200),
        ("GET", "/nothing", 404),
        ("DELETE", "/health", 405),
        ("GET", "/v1/config", 200),
        ("GET", "/v1/namespaces/none", 404),
        ("GET", "/ws", 400),
        ("POST", "/v1/query", 409),
    ],
)
async def test_every_answer_has_the_security_headers(
    server: ServerProcess, method: str, path: str, status: int
) -> None:
    found, headers, _ = await ask(server.url, path, method)
    assert found == status
    assert {name: headers.get(name) for name in EXPECTED} == EXPECTED
    assert "Strict-Transport-Security" not in headers


async def test_an_upgrade_has_them_too(server: ServerProcess) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(server.url + "/ws") as opened:
        assert opened._response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["nonsense", "bad header", "long url", "long header", "many headers", "two lengths", "tls hello"],
)
def test_bytes_that_are_no_request_get_an_answer_in_our_form(server: ServerProcess, data: bytes) -> None:
    head, _, body = spoken(server, data + b"\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert b"X-Content-Type-Options: nosniff" in head
    assert json.loads(body)["error"]["type"] == "bad_request"
    assert "Traceback" not in server.log


async def test_a_page_of_a_named_site_may_ask_and_read(server: ServerProcess) -> None:
    status, headers, _ = await ask(
        server.url,
        "/v1/query",
        "OPTIONS",
        headers={
            "Origin": FRIEND,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        },
    )
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == FRIEND
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert "Access-Control-Allow-Credentials" not in headers
    status, headers, _ = await ask(server.url, "/flush", "POST", headers={"Origin": FRIEND})
    assert status != 403
    assert (headers["Access-Control-Allow-Origin"], headers["Vary"]) == (FRIEND, "Origin")


async def test_a_page_of_another_site_may_neither_change_nor_read(server: ServerProcess) -> None:
    status, headers, _ = await ask(server.url, "/flush", "POST", headers={"Origin": STRANGER})
    assert status == 403
    assert "Access-Control-Allow-Origin" not in headers
    status, headers, _ = await ask(server.url, "/status", headers={"Origin": STRANGER})
    assert (status, headers.get("Access-Control-Allow-Origin"), headers["Vary"]) == (200, None, "Origin")
    _, headers, _ = await ask(
        server.url, "/flush", "OPTIONS", headers={"Origin": STRANGER, "Access-Control-Request-Method": "POST"}
    )
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("origin", "status"), [(FRIEND, 101), (STRANGER, 403), ("null", 403), ("http://localhost", 101)]
)
async def test_sockets_open_for_named_sites_and_this_machine_alone(
    server: ServerProcess, origin: str, status: int
) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(server.url + "/ws", origin=origin):
                found = 101
        except aiohttp.WSServerHandshakeError as error:
            found = error.status
    assert found == status


@pytest.mark.parametrize("origin", ["*", "app.example.com", "https://app.example.com/", "https://A.com", "null", ""])
def test_what_is_no_origin_is_refused(tmp_path: Any, origin: str) -> None:
    environ = {"DOLAKE_SERVER_CORS_ORIGINS": json.dumps([origin])}
    with pytest.raises(InvalidInput, match="is no origin"):
        load_settings(home=tmp_path, config_file=None, environ=environ, flags={})
