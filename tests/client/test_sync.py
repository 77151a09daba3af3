"""The blocking client: the same promises, from threads."""

from __future__ import annotations

import inspect
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dolake import client, errors
from dolake.client.sync import connect, create_lake_client
from tests.support.blocking import client_threads, in_a_thread
from tests.support.changes import order, orders
from tests.support.scripted_peer import PeerSocket, scripted_peer


def test_every_method_of_the_async_client_is_here_without_async() -> None:
    answers = {"/status": (200, {"state": "idle"}), "/health": (200, {"ready": True})}

    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.ack(await peer.batch(), position=1)
        batch = await peer.batch()
        await peer.ack(batch, position=2)
        await peer.ack(await peer.expect("flush_request"), status="ok")
        await peer.ack(batch, status="persisted", persistedPath="p")

    heard = threading.Event()
    with in_a_thread(scripted_peer(script, http=answers)) as peer, connect(peer.url, source="shop") as lake:
        lake.on_persisted(lambda *_: heard.set())
        assert lake.send(order(1)).position == 1
        lake.put(order(2))
        lake.drain()
        lake.flush()
        assert heard.wait(10)
        assert lake.status() == {"state": "idle"}
        assert lake.health() == {"ready": True}
        assert (lake.last_durable_sequence, lake.last_position, lake.pending_count) == (2, 2, 0)
    assert not client_threads()


def test_connect_takes_the_same_options_as_the_async_one() -> None:
    assert inspect.signature(connect) == inspect.signature(client.connect)
    assert create_lake_client is connect


def test_the_public_methods_are_the_same_as_those_of_the_async_client() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    lake = connect("http://lake")
    assert public(client.LakeClient) - {"begin"} == public(type(lake))


def test_a_cursor_is_read_in_the_thread_it_belongs_to() -> None:
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE orders (id)")
        database.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in range(1200)])
        with in_a_thread(scripted_peer(PeerSocket.keep_all)) as peer, connect(peer.url) as lake:
            receipt = lake.send(order(number) for (number,) in database.execute("SELECT id FROM orders"))
        assert (receipt.change_count, receipt.sequence_last) == (1200, 1200)
    database.close()


def test_many_threads_share_one_client() -> None:
    with (
        in_a_thread(scripted_peer(PeerSocket.keep_all)) as peer,
        connect(peer.url) as lake,
        ThreadPoolExecutor(8) as threads,
    ):
        receipts = list(threads.map(lambda first: lake.send([order(first), order(first + 1)]), range(100)))
    spans = sorted((receipt.sequence_first, receipt.sequence_last) for receipt in receipts)
    assert spans == [(first, first + 1) for first in range(1, 200, 2)]


def test_a_bad_change_raises_in_the_caller_and_the_client_lives_on() -> None:
    with in_a_thread(scripted_peer(PeerSocket.keep_all)) as peer, connect(peer.url) as lake:
        with pytest.raises(errors.MessageValidationError):
            lake.send({"table": ""})
        assert lake.send(order(1)).change_count == 1


def test_an_iterable_that_fails_leaves_what_it_gave_to_drain() -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from orders(500)
        raise ZeroDivisionError

    with in_a_thread(scripted_peer(PeerSocket.keep_all)) as peer, connect(peer.url) as lake:
        with pytest.raises(ZeroDivisionError):
            lake.send(broken())
        lake.drain()
        assert lake.last_durable_sequence == 500


def test_ctrl_c_ends_a_wait_and_leaves_no_thread() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.batch()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # the main thread waits in send()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with in_a_thread(scripted_peer(script)) as peer:
            with pytest.raises(KeyboardInterrupt), connect(peer.url) as lake:
                lake.send(order(1))
            assert not client_threads()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_server_that_cannot_be_reached_leaves_no_thread() -> None:
    with in_a_thread(scripted_peer(PeerSocket.swallow)) as peer:
        with pytest.raises(errors.ConnectionError), connect(peer.url, connect_wait_ms=50):
            pass
        assert not client_threads()


def test_a_client_is_used_once_and_only_while_it_is_open() -> None:
    with in_a_thread(scripted_peer(PeerSocket.keep_all)) as peer:
        lake = connect(peer.url)
        with pytest.raises(errors.InvalidInput, match="not open"):
            lake.send(order(1))
        with lake:
            lake.send(order(1))
        with pytest.raises(errors.InvalidInput, match="not open"):
            lake.put(order(1))
        with pytest.raises(errors.InvalidInput, match="used before"), lake:
            pass
