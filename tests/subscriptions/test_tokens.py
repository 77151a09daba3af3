"""Subscriptions where tokens are needed: `read` is, a tenant hears of its own tables, revocation ends what is open."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dolake import errors
from dolake.client import connect
from dolake.identity import tokens
from dolake.identity.store import TokenFile
from tests.support.changes import insert
from tests.support.server import ServerProcess


@pytest.mark.own_lake
async def test_a_tenant_hears_of_its_own_tables_until_its_token_is_revoked(tmp_path: Path) -> None:
    book = TokenFile(tmp_path)

    def minted(name: str, scope: str, *namespaces: str) -> str:
        token, text = tokens.mint(name, [scope], namespaces, [], now_ms=_now_ms(), expires_ms=None)
        book.add(token)
        return text

    admin, reader, sender = minted("admin", "admin"), minted("a", "read", "a"), minted("sender", "ingest")
    with ServerProcess(tmp_path, settings="[subscriptions]\nheartbeat_ms = 200\n", has_queries=True) as server:
        mine, all_ = connect(server.url, token=reader), connect(server.url, token=admin)
        with pytest.raises(errors.DoLakeError, match="HTTP 401"):
            await anext(connect(server.url).subscribe("a.orders"))
        with pytest.raises(errors.DoLakeError, match="HTTP 403"):
            await anext(connect(server.url, token=sender).subscribe("a.orders"))
        with pytest.raises(errors.UnknownTable):
            await anext(mine.subscribe("b.orders"))
        async with connect(server.url, token=sender) as lake:
            await lake.send([insert("a.orders", 1), insert("b.orders", 2)])
        theirs = all_.subscribe("b.orders", name="theirs", since="beginning")
        assert [event.row_id for event in (await anext(theirs)).events] == ["2"]
        with pytest.raises(errors.Conflict):
            await anext(mine.subscribe("a.orders", name="theirs"))
        assert await mine.list_subscriptions() == []
        with pytest.raises(errors.NotFound):
            await mine.drop_subscription("theirs")
        heard = mine.subscribe("a.orders", since="beginning")
        assert [event.row_id for event in (await anext(heard)).events] == ["1"]
        await asyncio.to_thread(book.revoke, "a", _now_ms())
        with pytest.raises(errors.DoLakeError, match="token"):
            await anext(heard)
        await theirs.aclose()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
