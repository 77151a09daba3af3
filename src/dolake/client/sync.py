"""The client for code without async: the same methods, each waiting for aio.py's on a loop in a thread of its own.

    with connect("http://localhost:8787", source="shop") as lake:
        receipt = lake.send({"table": "orders", "operation": "INSERT", "rowId": "7", "after": {"id": 7}})
        result = lake.query("SELECT COUNT(*) FROM orders")

Promise: aio.py's, from any number of threads at once. Ctrl-C ends the wait it meets; what was queued still goes out,
unless the exception leaves the `with`, which closes at once.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from dolake import errors
from dolake.changes import Change
from dolake.client import aio, subscribing
from dolake.client.conversation import PersistedCallback
from dolake.client.http import Http
from dolake.client.outgoing import ChangeLike, pieces
from dolake.client.subscribing import Batch
from dolake.client.window import Receipt
from dolake.positions import Position
from dolake.wire.messages import FlushReason

P = ParamSpec("P")
Result = TypeVar("Result")


def _waiting(
    method: Callable[Concatenate[aio.LakeClient, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Reading, P], Result]:
    """The same method with the same parameters, that returns when the other one has."""

    @functools.wraps(method)
    def wait(client: Reading, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        with client._reading_loop() as loop:
            return _result_of(method(client._lake, *args, **kwargs), loop)

    return wait


def _iterating(
    method: Callable[Concatenate[aio.LakeClient, P], AsyncGenerator[Result, None]],
) -> Callable[Concatenate[Reading, P], Iterator[Result]]:
    """The same for a method whose results come one by one. Leaving the loop early ends the work on the server."""

    @functools.wraps(method)
    def iterate(client: Reading, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Result]:
        results = method(client._lake, *args, **kwargs)

        async def next_one() -> Result | None:
            return await anext(results, None)

        with client._reading_loop() as loop:
            try:
                while (result := _result_of(next_one(), loop)) is not None:
                    yield result
            finally:
                _result_of(results.aclose(), loop)

    return iterate


def _like(
    method: Callable[Concatenate[aio.LakeClient, P], AsyncGenerator[Any, None]],
) -> Callable[[Callable[..., Iterator[Result]]], Callable[Concatenate[Reading, P], Iterator[Result]]]:
    """The parameters of another method, checked by the same types, without writing them twice."""
    return functools.wraps(method)


@dataclass(frozen=True)
class ChangeBatch(Batch):
    """A batch of a plain loop."""

    _client: Reading = field(repr=False, compare=False)
    _batch: subscribing.ChangeBatch = field(repr=False, compare=False)

    def ack(self) -> None:
        """Tell the server that this batch is done with; returns when that is on its disk. For named subscriptions."""
        with self._client._reading_loop() as loop:
            _result_of(self._batch.ack(), loop)


class Reading:
    """What a client can ask; see aio's. Outside `with` each call has a loop and a connection of its own."""

    def __init__(self, lake: aio.LakeClient) -> None:
        self._lake = lake
        self._loop: asyncio.AbstractEventLoop | None = None

    query = _waiting(aio.LakeClient.query)
    query_batches = _iterating(aio.LakeClient.query_batches)
    plan = _waiting(aio.LakeClient.plan)
    route = _waiting(aio.LakeClient.route)
    cancel = _waiting(aio.LakeClient.cancel)
    list_queries = _waiting(aio.LakeClient.list_queries)
    list_tables = _waiting(aio.LakeClient.list_tables)
    list_snapshots = _waiting(aio.LakeClient.list_snapshots)
    get_schema = _waiting(aio.LakeClient.get_schema)
    diff = _waiting(aio.LakeClient.diff)
    freshness = _waiting(aio.LakeClient.freshness)
    get = _waiting(aio.LakeClient.get)
    get_many = _waiting(aio.LakeClient.get_many)
    rollback_to = _waiting(aio.LakeClient.rollback_to)
    forget = _waiting(aio.LakeClient.forget)
    list_quarantines = _waiting(aio.LakeClient.list_quarantines)
    list_quarantine = _waiting(aio.LakeClient.list_quarantine)
    replay_quarantine = _waiting(aio.LakeClient.replay_quarantine)
    drop_quarantine = _waiting(aio.LakeClient.drop_quarantine)
    tiers = _waiting(aio.LakeClient.tiers)
    move = _waiting(aio.LakeClient.move)
    configure_storage = _waiting(aio.LakeClient.configure_storage)
    status = _waiting(aio.LakeClient.status)
    sources = _waiting(aio.LakeClient.sources)
    health = _waiting(aio.LakeClient.health)

    list_subscriptions = _waiting(aio.LakeClient.list_subscriptions)
    drop_subscription = _waiting(aio.LakeClient.drop_subscription)
    _batches = _iterating(aio.LakeClient.subscribe)

    @_like(aio.LakeClient.subscribe)
    def subscribe(self, *args: Any, **kwargs: Any) -> Iterator[ChangeBatch]:
        """Changes as they come, in a plain loop. See aio's."""
        for batch in self._batches(*args, **kwargs):
            yield ChangeBatch(batch.events, batch.token, batch.position, batch.start, self, batch)

    @property
    def storage(self) -> Storage:
        """`lake.storage.configure(l3=...)`: configure_storage() under another name."""
        return Storage(self)

    @contextmanager
    def _reading_loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        if self._loop is not None:
            yield self._loop
        else:
            loop, thread = _started_loop()
            try:
                yield loop
            finally:
                _stop_loop(loop, thread)


class Storage:
    """The lake's storage, as far as a client can change it."""

    def __init__(self, client: Reading) -> None:
        self.configure = client.configure_storage


def http_of(client: Reading) -> Http:
    """What asks the server; for commands that ask what no method of a client does."""
    return client._lake._http


def prefer_json(client: Reading) -> None:
    """Let answers come as JSON: for a command that shows a few rows, and would wait longer for pyarrow to load."""
    client._lake._has_arrow = False


class LakeClient(Reading):
    """One lake, and one stream of changes to it. Made by connect(); it sends inside `with`, and asks without it too."""

    def __init__(self, lake: aio.LakeClient) -> None:
        super().__init__(lake)
        self._thread: threading.Thread | None = None

    def send(
        self, changes: ChangeLike | Iterable[ChangeLike], *, source_state: Mapping[str, Any] | None = None
    ) -> Receipt:
        """Send one change or many, and return once ALL of them are durable. See aio.LakeClient.send."""
        # The iterable is pulled here, in the caller's thread: a database cursor works in no other.
        sending = self._lake.begin(source_state)
        is_all = isinstance(changes, Change | Mapping | list | tuple)
        try:
            for piece in pieces(changes):
                self._wait(sending.add, piece, is_all=is_all)
            return self._wait(sending.finish)
        finally:
            self._call_soon(sending.abandon)

    def send_state(self, source_state: Mapping[str, Any]) -> Receipt:
        """Send a JSON merge patch onto the state of this source, and return once it is durable."""
        return self._wait(self._lake.send_state, source_state)

    def put(self, change: ChangeLike, *, source_state: Mapping[str, Any] | None = None) -> None:
        """Queue one change; waits only for room in the queue."""
        self._wait(self._lake.put, change, source_state=source_state)

    def put_state(self, source_state: Mapping[str, Any]) -> None:
        """Queue a merge patch onto the state of this source, without a change."""
        self._wait(self._lake.put_state, source_state)

    def drain(self) -> None:
        """Wait until everything that was put is durable."""
        self._wait(self._lake.drain)

    def flush(self, reason: FlushReason = "manual") -> None:
        """Ask the server to publish now what is durable."""
        self._wait(self._lake.flush, reason)

    def on_persisted(self, callback: PersistedCallback) -> None:
        """Like aio's; the callback runs in the client's own thread and must not wait for this client."""
        self._lake.on_persisted(callback)

    @property
    def last_durable_sequence(self) -> int:
        return self._lake.last_durable_sequence

    @property
    def event_bytes_max(self) -> int | None:
        return self._lake.event_bytes_max

    @property
    def source_state(self) -> dict[str, Any] | None:
        return self._lake.source_state

    @property
    def epoch(self) -> int | None:
        return self._lake.epoch

    @property
    def last_position(self) -> Position:
        return self._lake.last_position

    @property
    def pending_count(self) -> int:
        return self._lake.pending_count

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise errors.InvalidInput("this client was used before", hint="call connect() again")
        self._loop, self._thread = _started_loop()
        try:
            self._wait(self._lake.__aenter__)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._wait(self._lake.__aexit__, kind, error, traceback)
        finally:
            self._stop()

    def _wait(self, method: Callable[P, Coroutine[Any, Any, Result]], *args: P.args, **kwargs: P.kwargs) -> Result:
        if self._loop is None:
            raise errors.InvalidInput("the client is not open", hint="use it inside `with connect(...) as lake:`")
        return _result_of(method(*args, **kwargs), self._loop)

    def _call_soon(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            _stop_loop(loop, self._thread)


def _result_of(work: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # matters for Ctrl-C, which ends the wait here and not the work there
        raise


def _started_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    ready: Future[asyncio.AbstractEventLoop] = Future()
    thread = threading.Thread(target=_run_loop, args=(ready,), name="dolake client", daemon=True)
    thread.start()
    return ready.result(), thread


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def _run_loop(ready: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:  # on the way out it cancels whatever is left
        loop = runner.get_loop()
        ready.set_result(loop)
        loop.run_forever()


def _blocking(connect_async: Callable[P, aio.LakeClient]) -> Callable[P, LakeClient]:
    """The same parameters, checked by the same types, without writing them twice."""

    @functools.wraps(connect_async)
    def connect(*args: P.args, **kwargs: P.kwargs) -> LakeClient:
        return LakeClient(connect_async(*args, **kwargs))

    return connect


connect = _blocking(aio.connect)
create_lake_client = connect
