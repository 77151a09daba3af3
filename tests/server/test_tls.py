"""TLS: a real server with a certificate, which is replaced while it runs; clients that trust it, and that do not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.client import connect
from dolake.client.sync import connect as connect_sync
from dolake.errors import InvalidInput
from dolake.server.tls import Certificate, certificate_of
from dolake.settings import ServerSettings
from tests.support.aio import until
from tests.support.certificates import (
    CERTIFICATE_TWO,
    KEY_ONE,
    KEY_TWO,
    TLS_SETTINGS,
    write_certificate,
)
from tests.support.command import invoke
from tests.support.server import ServerProcess, wait_for

CHANGE = {"table": "users", "operation": "INSERT", "rowId": "1", "after": {"id": 1}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The last of its tests replaces the certificate and stops it."""
    home = tmp_path_factory.mktemp("tls")
    write_certificate(home)
    with ServerProcess(home, settings=TLS_SETTINGS) as process:
        yield process


def served_by(server: ServerProcess) -> str:
    """The common name of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(server.home / "ca.pem"))
    port = int(server.url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found: Any = secure.getpeercert()
        return str(found["subject"][0][0][1])


def test_whom_the_client_trusts(server: ServerProcess) -> None:
    with connect_sync(server.url, source="a", ca_file=server.home / "ca.pem", binary=True, compression=True) as lake:
        lake.send(CHANGE)
        assert lake.status()["state"] in ("idle", "receiving")
    with pytest.raises(InvalidInput, match="not trusted"), connect_sync(server.url):
        pass
    with pytest.raises(InvalidInput, match="not trusted"):
        connect_sync(server.url).status()
    sha256 = json.loads((server.home / "server.json").read_text())["certificateSha256"]
    assert connect_sync(server.url, certificate_sha256=sha256).health()
    with pytest.raises(InvalidInput, match="not trusted"):
        connect_sync(server.url, certificate_sha256="00" * 32).health()


def test_the_command_line_knows_its_own_server_and_others_by_their_authority(server: ServerProcess) -> None:
    def tables(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dolake.cli", "tables", *options]
        return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=120)

    assert tables("--home", str(server.home)).returncode == 0
    refused = tables("--url", server.url)
    assert refused.returncode == 1
    assert "not trusted" in refused.stderr
    assert tables("--url", server.url, DOLAKE_CA_FILE=str(server.home / "ca.pem")).returncode == 0


def test_a_source_of_the_server_reaches_it_without_its_certificate(server: ServerProcess, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "app.db").execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").connection.close()
    assert "is followed as app" in invoke("sources", "add", tmp_path / "app.db", "--home", server.home).output

    def is_following() -> bool:
        (source,) = json.loads(invoke("sources", "--json", "--home", server.home).output)["sources"]
        return bool(source["state"] == "following")

    wait_for(is_following, "the source is connected")
    assert "is removed" in invoke("sources", "remove", "app", "--home", server.home).output


def test_old_tls_and_plain_http_are_refused(server: ServerProcess) -> None:
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain.recv(1000)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(server.home / "ca.pem"))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.own_lake
async def test_a_new_certificate_is_served_without_a_restart_and_open_connections_live_on(
    server: ServerProcess,
) -> None:
    assert server.url.startswith("https://")
    async with connect(server.url, source="shop", ca_file=server.home / "ca.pem") as lake:
        first = (await lake.send(CHANGE)).position
        assert first
        assert served_by(server) == "one"
        write_certificate(server.home, CERTIFICATE_TWO, KEY_TWO)
        os.kill(server.pid, signal.SIGHUP)
        while await asyncio.to_thread(served_by, server) != "two":
            pass
        assert (await lake.send(CHANGE)).position == first + 1
        # A key that belongs to another certificate: the old pair goes on, and the log says why.
        write_certificate(server.home, CERTIFICATE_TWO, KEY_ONE)
        os.kill(server.pid, signal.SIGHUP)
        await until(lambda: "certificate not reloaded" in server.log)
        assert served_by(server) == "two"
        assert (await lake.send(CHANGE)).position == first + 2
        assert "connection lost" not in server.log
    assert server.stop() == 0


async def test_a_file_that_changes_is_noticed_without_a_signal(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    certificate = Certificate(tmp_path / "server.pem", tmp_path / "server.key")
    first, reloaded = certificate.sha256, asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(certificate.watch(reloaded.set, every_s=0.02))
        write_certificate(tmp_path, CERTIFICATE_TWO, KEY_TWO)
        await reloaded.wait()
        assert certificate.sha256 != first
        watching.cancel()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ServerSettings(tls_certificate="server.pem"), "go together"),
        (ServerSettings(tls_key="server.key"), "go together"),
        (ServerSettings(tls_certificate="none.pem", tls_key="server.key"), "No such file"),
        (ServerSettings(tls_certificate="server.key", tls_key="server.key"), "cannot be used"),
    ],
)
async def test_a_certificate_that_cannot_be_used_is_named_at_the_start(
    tmp_path: Path, settings: ServerSettings, words: str
) -> None:
    write_certificate(tmp_path)
    with pytest.raises(InvalidInput, match=words):
        certificate_of(settings, tmp_path)


def test_a_ca_file_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="cannot be read as certificates"):
        connect("https://localhost:1", ca_file=__file__)
    with pytest.raises(InvalidInput, match="no SHA-256"):
        connect("https://localhost:1", certificate_sha256="xyz")
