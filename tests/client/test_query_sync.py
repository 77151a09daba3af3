"""Questions without async: the same methods, open or not."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from typing import Any

import pytest
from aiohttp import web

from dolake import client, errors
from dolake.client.sync import connect
from tests.support.answering_lake import (
    THREE,
    answering_lake_in_a_thread,
    arrow_answer,
    arrow_bytes,
    numbers,
    plain_answer,
)
from tests.support.blocking import client_threads, wait_until
from tests.support.changes import order


def test_every_method_of_the_async_client_is_here_with_the_same_parameters() -> None:
    ours, theirs = connect("http://lake"), client.connect("http://lake")
    names = {name for name in dir(theirs) if not name.startswith("_")} - {"begin", "stream"}
    assert names == {name for name in dir(ours) if not name.startswith("_")}
    for name in names:
        method = getattr(ours, name)
        if callable(method) and name not in ("send", "on_persisted"):
            assert inspect.signature(method) == inspect.signature(getattr(theirs, name)), name


@pytest.mark.parametrize("is_open", [True, False])
def test_a_question_is_asked_and_answered(is_open: bool) -> None:
    with answering_lake_in_a_thread({"POST /v1/query": THREE, "GET /v1/tables": plain_answer({"tables": []})}) as lake:
        sync = connect(lake.url)
        if is_open:
            with sync:
                sync.send(order(1))
                assert sync.query("SELECT COUNT(*) FROM orders").rows[0].count == 3
                assert lake.bodies()[0]["minPosition"] == 1
            with pytest.raises(errors.InvalidInput, match="not open"):
                sync.query("SELECT 1")
        else:
            assert sync.query("SELECT COUNT(*) FROM orders").rows[0].count == 3
            assert sync.list_tables() == []
            assert not lake.sockets
    assert not client_threads()


def test_a_question_may_be_asked_where_a_loop_runs_already() -> None:
    with answering_lake_in_a_thread({"POST /v1/query": THREE}) as lake:

        async def notebook() -> Any:
            return connect(lake.url).query("SELECT COUNT(*) FROM orders").scalar()

        assert asyncio.run(notebook()) == 3


@pytest.mark.parametrize("is_open", [True, False])
def test_batches_come_one_by_one(is_open: bool) -> None:
    data = arrow_bytes(numbers(1, 2), numbers(3))
    with answering_lake_in_a_thread({"POST /v1/query": arrow_answer(data)}) as lake:
        sync = connect(lake.url)
        if is_open:
            sync.__enter__()
        assert [[row.n for row in batch] for batch in sync.query_batches("SELECT n FROM t")] == [[1, 2], [3]]
        for batch in sync.query_batches("SELECT n FROM t"):
            assert len(batch) == 2
            break
        if is_open:
            sync.__exit__(None, None, None)
    assert not client_threads()


def test_ctrl_c_ends_the_question_on_the_server_too() -> None:
    async def interrupt(request: web.Request) -> web.StreamResponse:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # the main thread waits in query()
        await asyncio.Event().wait()
        raise AssertionError

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with answering_lake_in_a_thread({"POST /v1/query": interrupt}) as lake:
            with pytest.raises(KeyboardInterrupt):
                connect(lake.url).query("SELECT 1")
            wait_until(lambda: lake.left == ["/v1/query"])
        assert not client_threads()
    finally:
        signal.signal(signal.SIGINT, before)
