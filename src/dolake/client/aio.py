"""The client as callers see it: connect, send, put, drain, query. The one implementation; sync.py only wraps it.

    async with connect("http://localhost:8787", source="shop") as lake:
        receipt = await lake.send({"table": "orders", "operation": "INSERT", "rowId": "7", "after": {"id": 7}})
        result = await lake.query("SELECT COUNT(*) FROM orders")

From whoever has changes or questions; to conversation.py, which brings changes to the server, and reading.py, which
asks. Promise: when send() returns, its changes are on the server's disk, once and in order, and every later question
sees them. When it raises, `retryable` says whether the same call may help later.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dolake import errors
from dolake.changes import Change, StreamId
from dolake.client.conversation import Conversation, PersistedCallback, Waits
from dolake.client.http import Http
from dolake.client.outgoing import PIECE_EVENTS, Body, ChangeLike, encode_piece, pieces
from dolake.client.pace import Pace
from dolake.client.reading import Reading
from dolake.client.transport import Address, Transport, trust_of
from dolake.client.window import Receipt, Ticket, Window
from dolake.client.words import Words
from dolake.positions import Position
from dolake.wire.messages import FlushReason
from dolake.wire.source_state import decode_state, encode_patch

NAME_LENGTH_MAX = 256


def connect(
    url: str,
    *,
    source: str | None = None,
    shard: str = "",
    epoch: int | None = None,
    token: str | None = None,
    ca_file: str | Path | None = None,
    certificate_sha256: str | None = None,
    binary: bool = False,
    compression: bool = False,
    window: int = 8,
    batch_events_max: int = 500,
    batch_bytes_max: int = 1_000_000,
    queue_events_max: int = 50_000,
    queue_bytes_max: int = 64_000_000,
    retry_wait_max_ms: int = 30_000,
    give_up_after_ms: int | None = None,
    connect_wait_ms: int = 10_000,
    close_wait_ms: int = 30_000,
    heartbeat_ms: int = 15_000,
    read_your_writes: bool = True,
) -> LakeClient:
    """A client for one lake: it asks, and it sends one stream of changes.

    async with connect("http://localhost:8787", source="shop") as lake:
        await lake.send(changes)
    lake = connect("http://localhost:8787")  # questions alone need no `async with`
    result = await lake.query("SELECT COUNT(*) FROM orders")

    url: http(s):// or ws(s)://host:port[/base]; the socket is at {base}/ws.
    source, shard: the stream, which has one writer at a time. Name your source to resume after a restart; without a
        name it is a new random one each time.
    epoch: a higher one starts the stream anew, when the source itself was restored from a backup.
    token: what the server knows this client by; the variable DOLAKE_TOKEN otherwise.
    ca_file: certificates of the authorities that are trusted for https and wss, instead of the machine's own.
    certificate_sha256: trust this one certificate alone, whoever signed it and for whatever name.
    binary: batches go out in MessagePack, which costs the server less; in JSON where the server does not know it.
    compression: batches go out compressed where the server agrees: an eighth of the bytes or so, for more work here.
    window: how many batches may be un-acknowledged at a time.
    batch_events_max, batch_bytes_max: the largest batch; the server's own limits may lower it.
    queue_events_max, queue_bytes_max: how much may be un-acknowledged before put() and send() wait.
    retry_wait_max_ms: the longest wait between tries, unless the server asks for more.
    give_up_after_ms: fail everything when nothing was acknowledged for so long; None tries for ever.
    connect_wait_ms: how long the first connection may take before `async with` raises ConnectionError.
    close_wait_ms: how long leaving `async with` waits for acknowledgements before it raises OutcomeUnknown.
    heartbeat_ms: after so long without a word we send a heartbeat, after twice that without an answer we reconnect.
    read_your_writes: a question waits until everything sent before it is acknowledged, and its answer includes that.
    """
    for name, count in {
        "window": window,
        "batch_events_max": batch_events_max,
        "batch_bytes_max": batch_bytes_max,
        "queue_events_max": queue_events_max,
        "queue_bytes_max": queue_bytes_max,
        "heartbeat_ms": heartbeat_ms,
    }.items():
        if count < 1:
            raise errors.InvalidInput(f"{name} is {count}, and must be at least 1")
    stream = StreamId(
        _checked_name("source", source or f"client-{secrets.token_hex(8)}"), _checked_name("shard", shard)
    )
    conversation = Conversation(
        transport := Transport(
            Address.parse(url),
            stream,
            token or os.environ.get("DOLAKE_TOKEN") or None,
            trust_of(ca_file, certificate_sha256),
            is_compressed=compression,
        ),
        stream,
        epoch,
        Window(batches_max=window, events_max=queue_events_max, bytes_max=queue_bytes_max),
        Pace(batch_events_max),
        batch_bytes_max,
        waits := Waits(connect_wait_ms, close_wait_ms, heartbeat_ms, retry_wait_max_ms, give_up_after_ms),
        Words(stream, wants_binary=binary, is_compressed=compression),
    )
    return LakeClient(stream, transport, conversation, waits, read_your_writes=read_your_writes)


class LakeClient(Reading):
    """One lake, and one stream of changes to it. Made by connect(); its methods may be called from many tasks at once.

    It sends inside `async with`, which opens the stream. It answers questions before that too, but not afterwards.
    """

    def __init__(
        self,
        stream: StreamId,
        transport: Transport,
        conversation: Conversation,
        waits: Waits,
        *,
        read_your_writes: bool,
    ) -> None:
        super().__init__(Http(transport), read_your_writes=read_your_writes)
        self.stream = stream
        self._transport = transport
        self._conversation = conversation
        self._waits = waits
        self._task: asyncio.Task[None] | None = None
        self._is_open = False
        self._puts = self._new_ticket()
        self._unreported: dict[_Awaited, None] = {}

    # --- changes ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        changes: ChangeLike | Iterable[ChangeLike] | AsyncIterable[ChangeLike],
        *,
        source_state: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Send one change or many, and return once ALL of them are durable.

        A list or tuple is checked as a whole before any of it is sent, and stays together. Other iterables, also
        asynchronous ones, may be endless: they are checked and sent as they come. When this call is cancelled, what
        it has queued still goes out, and drain() waits for it.

        source_state: a JSON merge patch (RFC 7386) onto the state that the server keeps for this source. It becomes
            durable together with the last change of a list or tuple, and right after the last one of any other
            iterable; without changes, alone. A list that fits into one batch is sent as one batch: all of it is
            durable with the state, or none of it.
        """
        sending = self.begin(source_state)
        try:
            if isinstance(changes, AsyncIterable):
                async for change in changes:
                    await sending.add((change,))
            else:
                for piece in pieces(changes):
                    await sending.add(piece, is_all=isinstance(changes, Change | Mapping | list | tuple))
            return await sending.finish()
        finally:
            sending.abandon()

    async def send_state(self, source_state: Mapping[str, Any]) -> Receipt:
        """Send a JSON merge patch onto the state of this source, and return once it is durable."""
        return await self.send((), source_state=source_state)

    async def put(self, change: ChangeLike, *, source_state: Mapping[str, Any] | None = None) -> None:
        """Queue one change; waits only for room in the queue. drain() tells when it is durable.

        When a change that was put earlier has failed since, this raises its error, and this change is not queued.
        source_state: a merge patch that becomes durable together with this change.
        """
        self._check_open()
        bodies = encode_piece((change,), event_bytes_max=self._conversation.event_bytes_max)
        await self._put(bodies, b"" if source_state is None else encode_patch(source_state))

    async def put_state(self, source_state: Mapping[str, Any]) -> None:
        """Queue a merge patch onto the state of this source, without a change. drain() tells when it is durable."""
        self._check_open()
        await self._put([], encode_patch(source_state))

    async def _put(self, bodies: Sequence[Body], state: bytes) -> None:
        try:
            await self._conversation.add(bodies, lambda: self._puts, state)
        except errors.DoLakeError as error:
            if error is self._puts.error:
                self._puts = self._new_ticket()
            raise

    async def drain(self) -> None:
        """Wait until everything that was put is durable; raises the error of a change that failed."""
        puts, self._puts = self._puts, self._new_ticket()
        self._adopt(puts)
        for ticket in list(self._unreported):
            await ticket.settled.wait()
            self._unreported.pop(ticket, None)
            if ticket.error is not None:
                raise ticket.error

    async def flush(self, reason: FlushReason = "manual") -> None:
        """Ask the server to publish now what is durable. It answers when it has understood, not when it is done."""
        self._check_open()
        await self._conversation.ask_flush(reason)

    # --- what the server said -----------------------------------------------------------------------------------------

    def on_persisted(self, callback: PersistedCallback) -> None:
        """Call `callback(sequence_number, persisted_path)` when a publish covers everything up to that number."""
        self._conversation.persisted_callbacks.append(callback)

    @property
    def last_durable_sequence(self) -> int:
        """The highest sequence of this stream that the server called durable."""
        return self._conversation.window.durable_sequence

    @property
    def epoch(self) -> int | None:
        """The stream's epoch, once the server has told it."""
        return self._conversation.epoch

    @property
    def source_state(self) -> dict[str, Any] | None:
        """The durable state of this source: as the server told it at the last connection, with every patch that was
        acknowledged since. None before the first connection, and where the server is of a release without states."""
        return decode_state(self._conversation.window.state) if self._conversation.keeps_states else None

    @property
    def event_bytes_max(self) -> int | None:
        """The largest change that the server takes, once it has told."""
        return self._conversation.event_bytes_max

    @property
    def last_position(self) -> Position:
        """The journal's position after the last acknowledged batch. Questions of this client include it by themselves;
        give it to another one as min_position, and that one's do too."""
        return self._conversation.last_position

    @property
    def pending_count(self) -> int:
        """How many changes are queued or sent, and not known to be durable."""
        return len(self._conversation.window)

    # --- open and close -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise errors.InvalidInput("this client was used before", hint="call connect() again")
        self._transport.open()
        # Not a TaskGroup, because that would wrap the errors of the caller's own body; _close() awaits this task.
        self._task = asyncio.create_task(self._conversation.run(), name=f"dolake client {self.stream}")
        try:
            async with asyncio.timeout(self._waits.connect_ms / 1000):
                await self._conversation.connected.wait()
            self._conversation.raise_failure()
        except TimeoutError:
            await self._close()
            raise errors.ConnectionError(
                f"no connection to {self._transport.address.socket} within {self._waits.connect_ms / 1000:g} s: "
                f"{self._conversation.problem or 'no answer'}",
                hint="is `dolake serve` running there, and are host, port and base path right?",
            ) from None
        except BaseException:
            await self._close()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            if kind is None:
                await self._finish()
        finally:
            await self._close()

    async def _finish(self) -> None:
        """Wait for the last acknowledgements, as long as the caller allows."""
        try:
            async with asyncio.timeout(self._waits.close_ms / 1000):
                await self._conversation.empty.wait()
                await self.drain()
        except TimeoutError:
            problem = self._conversation.problem
            raise errors.OutcomeUnknown(
                f"{self.pending_count} changes are un-acknowledged after {self._waits.close_ms / 1000:g} s"
                + (f"; last problem: {problem}" if problem else ""),
                hint="connect again under the same source: last_durable_sequence tells which of them are durable",
            ) from None

    async def _close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            await asyncio.wait([self._task])
        finally:
            self._conversation.stop(errors.ConnectionError("the client was closed"))
            await self._transport.close()

    # --- tickets ------------------------------------------------------------------------------------------------------

    def begin(self, source_state: Mapping[str, Any] | None = None) -> Sending:
        """A send() in steps, for callers that must pull the changes themselves; sync.py is one."""
        return Sending(self, self._new_ticket(), b"" if source_state is None else encode_patch(source_state))

    def _new_ticket(self) -> _Awaited:
        return _Awaited(self._forget)

    def _forget(self, ticket: _Awaited) -> None:
        """A settled ticket that nobody waits for matters only if it failed."""
        if ticket.error is None:
            self._unreported.pop(ticket, None)

    def _adopt(self, ticket: _Awaited) -> None:
        """From here on drain() waits for this ticket."""
        ticket.close()
        if ticket.error is not None or not ticket.is_settled:
            self._unreported[ticket] = None

    def _check_usable(self) -> None:
        if self._task is not None and not self._is_open:
            raise _not_open()

    async def _settled_position(self) -> Position:
        await self._conversation.settle()
        return self._conversation.last_position

    def _check_open(self) -> None:
        if not self._is_open:
            raise _not_open()
        self._conversation.raise_failure()


class Sending:
    """One send() under way: add changes piece by piece, then finish(); abandon() leaves the rest to drain()."""

    def __init__(self, client: LakeClient, ticket: _Awaited, state: bytes = b"") -> None:
        self._client = client
        self._ticket = ticket
        self._state = state
        """What finish() has to send: empty once a change has taken it along."""
        self._taken_count = 0
        self._sequence_last = 0

    async def add(self, changes: Sequence[ChangeLike], *, is_all: bool = False) -> None:
        """Check all of these, then queue all of these; the state goes with the last change where these are all."""
        self._client._check_open()
        bodies = []
        for start in range(0, len(changes), PIECE_EVENTS):
            if start:
                await asyncio.sleep(0)  # a long list must not keep the heartbeat waiting
            part = changes[start : start + PIECE_EVENTS]
            bodies += encode_piece(
                part,
                offset=self._taken_count + start,
                previous=self._sequence_last,
                event_bytes_max=self._client._conversation.event_bytes_max,
            )
            self._sequence_last = bodies[-1].sequence
        self._taken_count += len(changes)
        if bodies:
            state = self._state if is_all else b""
            await self._client._conversation.add(bodies, lambda: self._ticket, state)
            self._state = b"" if is_all else self._state

    async def finish(self) -> Receipt:
        if self._state:
            self._client._check_open()
            await self._client._conversation.add([], lambda: self._ticket, self._state)
        self._ticket.close()
        await self._ticket.settled.wait()
        if self._ticket.error is not None:
            raise self._ticket.error
        return self._ticket.receipt()

    def abandon(self) -> None:
        """Nobody waits here any more; does nothing when all is settled."""
        if not self._ticket.is_settled:
            self._client._adopt(self._ticket)


class _Awaited(Ticket):
    """A ticket that a task can wait for."""

    def __init__(self, forget: Callable[[_Awaited], None]) -> None:
        super().__init__()
        self.settled = asyncio.Event()
        self._forget = forget

    def on_settled(self) -> None:
        self.settled.set()
        self._forget(self)


def _not_open() -> errors.InvalidInput:
    return errors.InvalidInput("the client is not open", hint="use it inside `async with connect(...) as lake:`")


def _checked_name(what: str, name: str) -> str:
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise errors.InvalidInput(
            f"{what} {name[:80]!r} cannot be a name", hint=f"use at most {NAME_LENGTH_MAX} printable characters"
        )
    return name
