"""Tokens on a running server: who gets in, what is said to who does not, and how open connections end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dolake.client import LakeClient, connect
from dolake.errors import Forbidden, Unauthorized
from dolake.server.lake import Lake
from tests.support.command import invoke
from tests.support.http import ask
from tests.support.lake import running_lake
from tests.support.speaker import Speaker, batch, event


def command(home: Path, *words: str) -> str:
    answer = invoke("token", *words, "--home", home)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def token(home: Path, name: str, *options: str) -> str:
    text: str = json.loads(command(home, "create", "--name", name, "--json", *options))["token"]
    return text


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@asynccontextmanager
async def watched(home: Path) -> AsyncIterator[tuple[Lake, str]]:
    """A lake that looks for changed tokens, as a server does."""
    stopping = asyncio.Event()
    async with running_lake(home) as (lake, url), asyncio.TaskGroup() as tasks:
        tasks.create_task(lake.doorkeeper.watch(stopping))
        try:
            yield lake, url
        finally:
            stopping.set()


async def until_closed(speaker: Speaker) -> int | None:
    async with asyncio.timeout(20):
        while (await speaker.socket.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
    return speaker.socket.close_code


async def test_without_tokens_everybody_may_and_with_the_first_one_nobody_without(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, url), Speaker(url) as early:
        assert (await ask(url, "/status")).status == 200
        assert (await early.connect())["type"] == "status"
        text = await asyncio.to_thread(token, tmp_path, "me", "--scope", "admin")
        assert await until_closed(early) == 1008
        status, _, body = await ask(url, "/status")
        assert (status, body["error"]["type"]) == (401, "unauthorized")
        assert (await ask(url, "/status", headers=bearer(text))).status == 200
        for headers in ({"Authorization": f"Basic {text}"}, {"Authorization": text}, {}):
            assert (await ask(url, f"/status?token={text}", headers=headers)).status == 401


async def say_for_long(speaker: Speaker) -> None:
    async with asyncio.timeout(20):
        for number in range(1, 10**6):
            await speaker.say(batch(number, [event(number)], source="deaf"))
            await asyncio.sleep(0.01)


async def test_a_revoked_token_ends_open_connections_also_idle_ones_and_those_that_do_not_listen(
    tmp_path: Path,
) -> None:
    text, kept = (token(tmp_path, name, "--scope", "ingest") for name in ("old", "kept"))
    async with (
        watched(tmp_path) as (lake, url),
        Speaker(url, headers=bearer(text)) as idle,
        Speaker(url, headers=bearer(text)) as deaf,
        Speaker(url, headers=bearer(kept)) as other,
    ):
        await deaf.connect("deaf")
        await asyncio.to_thread(command, tmp_path, "revoke", "old")
        assert await until_closed(idle) == 1008
        # One that never reads its close frame goes on sending: nothing of it is kept.
        with pytest.raises((ConnectionError, aiohttp.ClientError, TimeoutError)):
            await say_for_long(deaf)
        assert lake.journal.durable == 0
        assert (await other.connect("kept"))["type"] == "status"
        assert (await ask(url, "/flush", "POST", headers=bearer(text))).status == 401


async def test_a_connection_ends_when_its_token_expires(tmp_path: Path) -> None:
    text = token(tmp_path, "short", "--scope", "ingest")
    path = tmp_path / "tokens.json"
    kept = json.loads(path.read_bytes())
    kept["tokens"][0]["expiresMs"] = time.time_ns() // 1_000_000 + 1_500
    path.write_text(json.dumps(kept))
    async with watched(tmp_path) as (_, url), Speaker(url, headers=bearer(text)) as speaker:
        assert (await speaker.connect())["type"] == "status"
        assert await until_closed(speaker) == 1008


async def send_for_long(lake: LakeClient) -> None:
    for number in range(2, 2000):
        await lake.send({"table": "orders", "operation": "INSERT", "rowId": str(number), "after": {"id": number}})
        await asyncio.sleep(0.02)


async def test_the_client_sends_its_token_and_learns_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reader = (token(tmp_path, scope, "--scope", scope) for scope in ("ingest", "read"))
    async with watched(tmp_path) as (_, url):
        with pytest.raises(Unauthorized):
            async with connect(url, source="s"):
                pass
        with pytest.raises(Forbidden):
            async with connect(url, source="s", token=reader):
                pass
        monkeypatch.setenv("DOLAKE_TOKEN", text)
        async with connect(url, source="s") as lake:
            await lake.send({"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1}})
            await asyncio.to_thread(command, tmp_path, "revoke", "ingest")
            with pytest.raises(Unauthorized):
                await send_for_long(lake)


async def test_failed_log_ins_are_counted_slowed_and_not_logged_with_what_was_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = token(tmp_path, "me", "--scope", "admin")
    wrong = text[:-4] + "AAAA"

    caplog.set_level("DEBUG")
    async with watched(tmp_path) as (_, url):
        for _ in range(3):
            status, _, body = await ask(url, "/status", headers=bearer(wrong))
            assert status == 401
            assert wrong not in json.dumps(body)
        assert (await ask(url, "/status")).status == 401
        _, _, raw = await ask(url, "/metrics", headers=bearer(text))
        assert 'dolake_logins_failed_total{reason="invalid"} 3.0' in raw
        assert 'dolake_logins_failed_total{reason="missing"} 1.0' in raw
    secrets = [each.split("_", 2)[2] for each in (text, wrong)]
    assert not [record for record in caplog.records if any(each in str(vars(record)) for each in secrets)]


async def test_administrative_acts_are_in_the_audit_log_also_refused_ones_and_without_secrets(tmp_path: Path) -> None:
    admin = token(tmp_path, "boss", "--scope", "admin")
    reader = token(tmp_path, "guest", "--scope", "read")
    async with watched(tmp_path) as (_, url):
        for text, expected in ((admin, 200), (reader, 403)):
            answer = await ask(url, "/v1/config", "PATCH", data=b"{}", headers=bearer(text))
            assert answer[0] == expected
        await ask(url, "/status", headers=bearer(reader))
    command(tmp_path, "revoke", "guest")
    raw = (tmp_path / "audit.log").read_text()
    acts = [(each["what"], each["outcome"]) for each in map(json.loads, raw.splitlines())]
    assert acts == [
        ("token.create", "ok"),
        ("token.create", "ok"),
        ("PATCH /v1/config", "200"),
        ("PATCH /v1/config", "forbidden"),
        ("token.revoke", "ok"),
    ]
    assert "boss" in raw
    assert all(text.split("_", 2)[2] not in raw for text in (admin, reader))


async def test_oauth_gives_an_hour_for_a_credential_and_no_more_than_it_has(tmp_path: Path) -> None:
    text = token(tmp_path, "spark", "--scope", "write", "--namespace", "a")
    _, id_, secret = text.split("_", 2)
    async with watched(tmp_path) as (_, url):
        form = {"grant_type": "client_credentials", "client_id": id_, "client_secret": secret, "scope": "read"}
        status, _, given = await ask(url, "/v1/oauth/tokens", "POST", data=form)
        assert (status, given["token_type"], given["expires_in"]) == (200, "bearer", 3600)
        access = given["access_token"]
        made = {"json": {"namespace": ["a"]}}
        assert (await ask(url, "/v1/namespaces", headers=bearer(access))).status == 200
        assert (await ask(url, "/v1/namespaces", "POST", headers=bearer(access), **made)).status == 403
        assert (await ask(url, "/v1/namespaces", "POST", headers=bearer(text), **made)).status == 200
        renewal = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": access}
        status, _, renewed = await ask(url, "/v1/oauth/tokens", "POST", data=renewal | {"scope": "admin write"})
        assert status == 200
        again = bearer(renewed["access_token"])
        assert (await ask(url, "/v1/namespaces", "POST", headers=again, **made)).status == 403
        for wrong in ({"client_secret": "x"}, {"client_id": "y"}, {"grant_type": "password"}):
            status, _, said = await ask(url, "/v1/oauth/tokens", "POST", data=form | wrong)
            assert status in (400, 401)
            assert said["error"] in ("invalid_client", "unsupported_grant_type")
            assert secret not in json.dumps(said)
        await asyncio.to_thread(command, tmp_path, "revoke", "spark")
        give_up_s = time.monotonic() + 20
        while (await ask(url, "/v1/namespaces", headers=bearer(access))).status != 401:
            assert time.monotonic() < give_up_s


def test_tokens_are_listed_without_their_secrets(tmp_path: Path) -> None:
    text = token(tmp_path, "me", "--scope", "read", "--namespace", "a", "--source", "s-*", "--expires", "90d")
    for options in ([], ["--json"]):
        shown = command(tmp_path, "list", *options)
        assert "me" in shown
        assert text.split("_", 2)[2] not in shown
    (row,) = json.loads(command(tmp_path, "list", "--json"))
    assert (row["namespaces"], row["sources"], row["state"]) == (["a"], ["s-*"], "active")


async def test_a_tenant_places_tables_in_his_own_folders_only(tmp_path: Path) -> None:
    mine = token(tmp_path, "a", "--scope", "write", "--namespace", "a")
    lake_wide = token(tmp_path, "boss", "--scope", "admin")
    columns = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    async with watched(tmp_path) as (lake, url):
        root = lake.catalog.storage.root
        for ns in ("a", "b"):
            await ask(url, "/v1/namespaces", "POST", headers=bearer(lake_wide), json={"namespace": [ns]})
        b_table = {"name": "t", "schema": columns}
        _, _, theirs = await ask(url, "/v1/namespaces/b/tables", "POST", headers=bearer(lake_wide), json=b_table)
        location = theirs["metadata-location"]

        async def post(path: str, body: dict[str, Any]) -> int:
            return (await ask(url, path, "POST", headers=bearer(mine), json=body)).status

        assert await post("/v1/namespaces/a/tables", b_table) == 200
        new = b_table | {"name": "n"}
        for wrong in (f"{root}/b/n", root, f"{root}/a/../b/n", f"{root}/ab/n", 5):
            assert await post("/v1/namespaces/a/tables", new | {"location": wrong}) in (400, 403)
        paths = {"write.data.path": f"{root}/b/t/data"}
        assert await post("/v1/namespaces/a/tables", new | {"properties": paths}) == 403
        update = {"action": "set-properties", "updates": paths}
        assert await post("/v1/namespaces/a/tables/t", {"updates": [update]}) == 403
        stolen = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": f"{root}/b/t/x.avro"}
        add = {"action": "add-snapshot", "snapshot": stolen | {"summary": {"operation": "append"}}}
        assert await post("/v1/namespaces/a/tables/t", {"updates": [add]}) == 403
        register = {"name": "stolen", "metadata-location": location}
        assert await post("/v1/namespaces/a/register", register) == 403
        copied = Path(root.removeprefix("file://")) / "a" / "copied" / "00000-x.metadata.json"
        copied.parent.mkdir(parents=True)
        copied.write_bytes(Path(location.removeprefix("file://")).read_bytes())
        register["metadata-location"] = f"file://{copied}"
        assert await post("/v1/namespaces/a/register", register) == 403
