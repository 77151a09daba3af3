"""The client's half of a source's state, against a real lake and against servers that are of another release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.client import connect
from dolake.client.sync import connect as connect_blocking
from dolake.errors import InvalidInput, MessageValidationError
from dolake.journal.reader import JournalReader
from dolake.wire.source_state import STATE_MAX_BYTES
from tests.support.aio import until
from tests.support.changes import order, orders
from tests.support.cutting_proxy import CuttingProxy
from tests.support.journals import GatedDisk
from tests.support.lake import running_lake
from tests.support.scripted_peer import PeerSocket, scripted_peer


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with running_lake(tmp_path) as (_, url):
        yield url


def kept_in(home: Path) -> list[tuple[int, bytes]]:
    """How many changes each record has, and its state."""
    with JournalReader(home / "journal") as reader:
        return [(each.change_count, each.source_state) for each in reader.read(with_states=True)]


@pytest.mark.parametrize("binary", [False, True])
async def test_a_state_is_kept_with_the_last_change_of_a_list_and_alone_without_changes(
    binary: bool, url: str, tmp_path: Path
) -> None:
    async with connect(url, source="shop", binary=binary) as lake:
        assert lake.source_state == {}
        receipt = await lake.send(orders(3), source_state={"place": 3, "x": {"y": None}})
        assert (receipt.position, receipt.change_count, receipt.sequence_last) == (3, 3, 3)
        receipt = await lake.send_state({"x": {"z": [1]}})
        assert (receipt.position, receipt.change_count, receipt.duplicate_count) == (4, 0, 0)
        assert lake.source_state == {"place": 3, "x": {"z": [1]}}
        assert (lake.last_position, lake.last_durable_sequence, lake.pending_count) == (3, 3, 0)
    assert kept_in(tmp_path) == [(3, b'{"place":3,"x":{"y":null}}'), (0, b'{"x":{"z":[1]}}')]
    async with connect(url, source="shop") as lake:
        assert lake.source_state == {"place": 3, "x": {"z": [1]}}
    async with connect(url, source="shop", epoch=1) as lake:
        assert lake.source_state == {}


async def test_what_is_put_keeps_its_order_with_states(url: str, tmp_path: Path) -> None:
    async with connect(url, source="shop") as lake:
        await lake.put_state({"at": 0})
        await lake.put(order(1))
        await lake.put(order(2), source_state={"at": 2})
        await lake.put_state({"at": None})
        await lake.drain()
        assert (lake.source_state, lake.last_durable_sequence) == ({}, 2)
    assert [state for _, state in kept_in(tmp_path) if state] == [b'{"at":0}', b'{"at":2}', b'{"at":null}']


async def test_a_list_larger_than_a_batch_has_its_state_in_the_last_one(url: str, tmp_path: Path) -> None:
    async with connect(url, source="shop", batch_events_max=10) as lake:
        await lake.send(orders(25), source_state={"at": 25})
    assert kept_in(tmp_path) == [(10, b""), (10, b""), (5, b'{"at":25}')]


async def test_the_state_of_an_endless_send_comes_behind_its_last_change(url: str, tmp_path: Path) -> None:
    def some() -> Iterator[dict[str, Any]]:
        yield from orders(3)

    async def some_later() -> AsyncIterator[dict[str, Any]]:
        for change in orders(3):
            yield change

    async with connect(url, source="shop") as lake:
        assert (await lake.send(some(), source_state={"at": 3})).change_count == 3
        assert (await lake.send(some_later(), source_state={"at": 6})).change_count == 3
    states = [pair for pair in kept_in(tmp_path) if pair[1]]
    assert states == [(0, b'{"at":3}'), (0, b'{"at":6}')]


async def test_a_state_that_is_none_is_refused_before_anything_is_sent(url: str, tmp_path: Path) -> None:
    async with connect(url, source="shop") as lake:
        for state in ([1], {"a": float("nan")}, {"a": "x" * STATE_MAX_BYTES}):
            with pytest.raises(MessageValidationError, match=r"object|number|large"):
                await lake.send(orders(3), source_state=state)  # type: ignore[arg-type]
    assert kept_in(tmp_path) == []


async def test_a_state_that_the_server_refuses_fails_its_send_and_no_other(url: str, tmp_path: Path) -> None:
    half = "x" * (STATE_MAX_BYTES // 2)
    async with connect(url, source="shop") as lake:
        await lake.send_state({"a": half})
        await lake.put(order(1))
        with pytest.raises(MessageValidationError, match="is too large"):
            await lake.send(order(2), source_state={"b": half})
        await lake.drain()
        assert (await lake.send(order(3))).change_count == 1
        assert list(lake.source_state or {}) == ["a"]
    assert sum(count for count, _ in kept_in(tmp_path)) == 2


async def test_a_state_on_its_way_when_the_connection_breaks_is_kept_once(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with running_lake(tmp_path) as (journal_lake, url):
        journal_lake.journal._writer._disk = disk
        with CuttingProxy(int(url.rpartition(":")[2])) as network:
            async with connect(f"http://127.0.0.1:{network.port}", source="shop", retry_wait_max_ms=50) as lake:
                await lake.send_state({"at": 1})
                disk.hold()
                sending = asyncio.create_task(lake.send_state({"at": 2}))
                await until(lambda: disk.arrived_count == 1)
                network.cut_all()  # it will be durable, and its sender does not hear of it
                disk.let_go()
                assert (await sending).change_count == 0
                network.refuse()
                await until(lambda: not lake._conversation.connected.is_set())
                sending = asyncio.create_task(lake.send_state({"at": 3}))
                network.refuse(False)
                await sending
                assert lake.source_state == {"at": 3}
    assert kept_in(tmp_path) == [(0, b'{"at":1}'), (0, b'{"at":2}'), (0, b'{"at":3}')]


async def test_a_server_that_keeps_no_states_is_not_sent_any() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url, source="shop") as lake:
        assert lake.source_state is None
        with pytest.raises(InvalidInput, match="keeps no state"):
            await lake.send(orders(2), source_state={"at": 1})
        with pytest.raises(InvalidInput, match="keeps no state"):
            await lake.put_state({"at": 1})
        await lake.send(orders(2))
        assert ["sourceState" in batch for batch in peer.batches()] == [False]


async def test_the_client_without_async_has_the_same(url: str, tmp_path: Path) -> None:
    def story() -> None:
        with connect_blocking(url, source="shop") as lake:
            assert lake.source_state == {}
            lake.send(orders(2), source_state={"a": 1})
            lake.send(iter(orders(2)), source_state={"b": 1})
            lake.send_state({"c": 1})
            lake.put(order(9), source_state={"d": 1})
            lake.put_state({"e": 1})
            lake.drain()
            assert lake.source_state == dict.fromkeys("abcde", 1)

    await asyncio.to_thread(story)
    assert [state for _, state in kept_in(tmp_path) if state] == [b'{"%b":1}' % name.encode() for name in "abcde"]
