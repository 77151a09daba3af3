"""One connection: its messages are checked, given their place in the journal, and answered when they are durable.

From endpoint.py, which opens it for a socket; to the journal. Promise: `buffered` is said after the batch's fdatasync,
never before; a batch that was not kept gets a nack that says why, and its number is expected again.
docs/reference/protocol.md has the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import WSCloseCode, WSMessage, WSMsgType
from msgspec import UNSET, UnsetType

from dolake.changes import Batch, StreamId
from dolake.errors import (
    Conflict,
    DoLakeError,
    InvalidSequence,
    MessageValidationError,
    OutcomeUnknown,
    RateLimited,
    Unavailable,
)
from dolake.identity.grants import Grant
from dolake.journal import dedup
from dolake.journal.base import Appended
from dolake.positions import Position
from dolake.receiver import admission
from dolake.receiver.answers import reason_of
from dolake.receiver.limiter import retry_delay_ms
from dolake.receiver.outbox import Flag, Outbox
from dolake.receiver.socket import Socket
from dolake.settings import RateLimitConfig
from dolake.wire.binary import unpack_head, unpack_received
from dolake.wire.columns import EventColumns
from dolake.wire.messages import (
    PROTOCOL_VERSION,
    BatchMessage,
    ConnectMessage,
    EnvelopeBatch,
    FlushRequestMessage,
    HeartbeatMessage,
    check_events,
    decode_head,
    read_received,
    stream_of,
)
from dolake.wire.session import Session
from dolake.wire.source_state import decode_state, encode_patch

if TYPE_CHECKING:
    from dolake.receiver.endpoint import Receiver

logger = logging.getLogger(__name__)
_OUTBOX_WAIT_S = 30.0
_END_WAIT_S = 1.0
_PERSISTED_MAX = 1024
_PAUSE_MAX_S = 1.0
_STRIKES_MAX = 64
_SILENCE_S = 0.01
_TURN_S = 0.001
"""How long one connection's messages are taken before the others have their turn."""
_LARGE_BYTES = 65_536
_HEARTBEAT = b'{"type":"heartbeat"'
"""How our clients begin one; one that is written otherwise takes the common way."""
_QUIET_S = 1.0


class Connection:
    """One socket: a loop that reads, and one that sends what has been answered."""

    __slots__ = (
        "_heartbeat_s",
        "_is_ended",
        "_is_known",
        "_outbox",
        "_pause_s",
        "_pending_count",
        "_prefers_binary",
        "_receiver",
        "_refusals_in_row",
        "_shard",
        "_socket",
        "_strikes",
        "_transport",
        "_unpersisted",
        "grant",
        "is_ended",
        "is_listening",
        "session",
    )

    def __init__(
        self,
        receiver: Receiver,
        socket: Socket,
        *,
        shard: str,
        grant: Grant,
        transport: asyncio.Transport | None = None,
    ) -> None:
        self.session = Session()
        self.grant = grant
        self.is_ended = False
        """Its token is not valid any more: nothing that it says is heard."""
        self._receiver, self._socket, self._shard = receiver, socket, shard
        self._transport = transport
        self._outbox = Outbox(socket)
        self._is_ended = Flag()
        self._is_ended.clear()
        self.is_listening = Flag()
        """Set while no message of this connection is being worked on."""
        self._prefers_binary = False
        self._pending_count = 0
        self._refusals_in_row = 0
        self._pause_s = 0.0
        self._heartbeat_s = 0.0
        self._strikes = 0
        """Refusals for its rate since this connection last had nothing to say."""
        self._is_known = False
        """Whether a batch of this stream was ever kept: when there is too much to do, strangers give way first."""
        self._unpersisted: deque[tuple[Position, int]] | None = None
        """Made with the first batch: most connections of a crowd send nothing for long."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._outbox.open(tasks)
            self._socket.answer_at_once(self._answers_at_once)
            try:
                turn_at_s = taken_at_s = time.monotonic()
                async for message in self._socket:
                    if self.is_ended:
                        continue  # until it says goodbye, or is cut off
                    if (began_s := time.monotonic()) - taken_at_s > _SILENCE_S:
                        self._strikes, turn_at_s = 0, began_s
                    if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
                        await self._take(message.data, is_binary=message.type is WSMsgType.BINARY)
                    elif message.type in (WSMsgType.PING, WSMsgType.PONG):
                        await self._take_ping(message.type, message.data)
                    del message  # an idle connection would keep its last one
                    if self._pause_s and not await self._pause():
                        break
                    if (taken_at_s := time.monotonic()) - turn_at_s > _TURN_S:
                        await asyncio.sleep(0)  # messages that lie here already would else be taken before all others
                        turn_at_s = taken_at_s = time.monotonic()
                    if self._outbox.is_full and not await self._wait_for_reader():
                        break
            finally:
                self._outbox.close()
                self._is_ended.set()

    async def close(self) -> None:
        """Say that the server stops, answer everything, say goodbye, and wait until the client does too."""
        expected = self.session.expected
        error = Unavailable("the server is shutting down", hint="reconnect and send again what is not acknowledged")
        self._nack(0 if expected is None else expected, error)
        while (self._pending_count or self._outbox) and not self._outbox.is_gone:
            await self._outbox.drained()
        await self._outbox.say_goodbye()
        await self._is_ended.wait()

    def end(self) -> None:
        """The token is not valid any more: say so in closing; a peer that does not listen is cut off."""
        if self.is_ended:
            return
        self.is_ended = True
        self._outbox.dismiss()
        asyncio.get_running_loop().call_later(_END_WAIT_S, self._cut_off)

    def _cut_off(self) -> None:
        if not self._is_ended.is_set and self._transport:
            self._transport.abort()

    async def _pause(self) -> bool:
        """Who is too fast is not read from for a while: what it goes on sending waits in its own machine.

        Who never falls silent in between does not listen, and is let go: its end would lie behind all that it sent.
        """
        pause_s, self._pause_s = self._pause_s, 0.0
        await asyncio.sleep(pause_s)
        self._strikes += 1
        if self._strikes < _STRIKES_MAX:
            return True
        logger.warning("client closed that does not slow down", extra={"stream": str(self.session.stream)})
        await self._hang_up(WSCloseCode.POLICY_VIOLATION, b"rate_limited")
        return False

    async def _hang_up(self, code: WSCloseCode, reason: bytes) -> None:
        """Say goodbye and wait for no answer: `close` would read on until there is one, and keep everybody waiting."""
        with contextlib.suppress(ConnectionError):
            await self._socket.send_frame(code.to_bytes(2) + reason, WSMsgType.CLOSE)
        if self._transport:
            self._transport.close()
        await asyncio.sleep(0)  # from now on nothing more is read

    async def _wait_for_reader(self) -> bool:
        """A client that does not read its answers is not read from either; after a while it is let go."""
        try:
            async with asyncio.timeout(_OUTBOX_WAIT_S):
                await self._outbox.drained()
        except TimeoutError:
            logger.warning("client does not read its answers", extra={"stream": str(self.session.stream)})
            return False
        return True

    def tell_taken_over(self) -> None:
        error = InvalidSequence(f"a newer connection speaks for {self.session.stream} now", hint="close this one")
        self._nack(self.session.expected or 0, error)

    def tell_persisted(self, position: Position, path: str) -> None:
        number = None
        while self._unpersisted and self._unpersisted[0][0] <= position:
            _, kept = self._unpersisted.popleft()
            number = kept if number is None else max(number, kept)  # a retry may have come after its successors
        if number is not None:
            self._receiver.stats.count_ack("persisted")
            self._outbox.post(self._receiver.answers.persisted(number, path, self._limits))

    # --- what a client says ------------------------------------------------------------------------------------------

    async def _take(self, data: bytes, *, is_binary: bool) -> None:
        if len(data) < _LARGE_BYTES or self._receiver.limiter.is_free(self.session):
            await self._take_now(data, is_binary=is_binary)
        else:
            await self._take_in_turn(data, is_binary=is_binary)

    async def _take_in_turn(self, data: bytes, *, is_binary: bool) -> None:
        """Large messages of limited clients come one after the other, with as much time between them as each took.

        Each takes up to tens of milliseconds on the event loop; twenty at once kept everybody waiting for a second.
        Who waits for its turn is listening: a connection that takes its stream over has the turn and waits for that.
        """
        async with self._receiver.large_messages:
            began_s = time.thread_time()
            await self._take_now(data, is_binary=is_binary)
            await asyncio.sleep(time.thread_time() - began_s)

    async def _take_now(self, data: bytes, *, is_binary: bool) -> None:
        self.is_listening.clear()
        try:
            await self._take_message(data, is_binary=is_binary)
        finally:
            self.is_listening.set()

    def _answers_at_once(self, message: WSMessage) -> bool:
        """Whether this was a heartbeat after a silence, and has its answer: nobody need be woken for it.

        Only after a silence, so that who sends many is held back like others.
        """
        data = message.data
        if message.type is not WSMsgType.TEXT or not data.startswith(_HEARTBEAT):
            return False
        now_s = time.monotonic()
        is_quiet = now_s - self._heartbeat_s > _QUIET_S and self.is_listening.is_set and not self.is_ended
        self._heartbeat_s = now_s
        return is_quiet and self._hear(data, is_binary=False) is None

    async def _take_message(self, data: bytes, *, is_binary: bool) -> None:
        if (heard := self._hear(data, is_binary=is_binary)) is None:
            return
        message, data = heard
        if isinstance(message, BatchMessage):
            await self._take_batch(message, data)
        else:
            await self._take_connect(message)

    def _hear(self, data: bytes, *, is_binary: bool) -> tuple[ConnectMessage | EnvelopeBatch, bytes] | None:
        """Answer what can be answered now, and return what has to wait for others, with the bytes to keep of it."""
        self._receiver.stats.count_message(len(data))
        self._outbox.is_binary = is_binary or self._prefers_binary
        try:
            self._admit(len(data))
            admission.check_fits_journal(data, self._receiver.settings.current.journal)
            message, kept = unpack_received(data) if is_binary else read_received(data)
        except DoLakeError as error:
            head = unpack_head(data) if is_binary else decode_head(data)
            if head.is_batch:
                self.session.refuse(head.sequence_number)
            self._nack(head.sequence_number, error, head.correlation_id)
            return None
        if isinstance(message, HeartbeatMessage):
            self._take_heartbeat(message)
        elif isinstance(message, FlushRequestMessage):
            self._receiver.progress.request_flush()
            self._ack_ok(message.correlation_id)
        else:
            return message, kept
        return None

    def _admit(self, size_bytes: int) -> None:
        """Ask the limiter before anything else is done with a message."""
        limiter = self._receiver.limiter
        result = limiter.admit_message(self.session, size_bytes)
        if result.reason == "rate_limited":
            self._pause_s = min(_PAUSE_MAX_S, (result.retry_delay_ms or 0) / 1000)
        admission.raise_if_refused(result)
        if size_bytes >= _LARGE_BYTES:  # what is small is cheap to read, and may be a heartbeat, which is always heard
            self._refuse_under_load()

    def _refuse_under_load(self) -> None:
        receiver = self._receiver
        result = receiver.limiter.admit_under_load(self.session, receiver.pressure.load, is_known=self._is_known)
        admission.raise_if_refused(result)

    async def _take_ping(self, kind: WSMsgType, data: bytes) -> None:
        """Pings cost a token like any message: answered without one, a flood of them would keep all others waiting."""
        result = self._receiver.limiter.admit_message(self.session)
        if not result.allowed:
            self._pause_s = min(_PAUSE_MAX_S, (result.retry_delay_ms or 0) / 1000)
        elif kind is WSMsgType.PING:
            with contextlib.suppress(ConnectionError):
                await self._socket.pong(data)

    async def _take_batch(self, message: EnvelopeBatch, data: bytes) -> None:
        """Give the batch its place in the journal; the answer follows when it is durable."""
        receiver, number, started = self._receiver, message.sequence_number, time.perf_counter()
        try:
            self._refuse_if_closing()
            await self._bind(stream_of(message, self._shard))
            self._refuse_under_load()
            is_next = self.session.expect(number)
        except DoLakeError as error:
            self._nack(number, error, message.correlation_id)
            return
        held_tables: list[str] = []
        try:
            tables = check_events(message)
            if not message.events and message.source_state is UNSET:
                self._ack_ok(message.correlation_id, number)
                return
            admission.check_event_sizes(data, self._limits, message.events)
            if self.grant.namespaces is not None:
                admission.check_namespaces(tables, message, self.grant)
            held_tables = receiver.tables.check(tables, message)
            lake = receiver.settings.current.lake
            admission.check_fallback(receiver.progress.breaker, receiver.progress.fallback_bytes, lake)
            await receiver.journal.room(lake.max_buffer_size)
            batch = self._as_batch(message, tables, data)
            self._refuse_reused_number(batch, is_next=is_next)
            ticket = await receiver.journal.append(batch)
        except DoLakeError as error:
            receiver.tables.release(held_tables)
            self._refuse(number, error, message.correlation_id, is_lost=is_next or self._has_new(message))
            return
        receiver.last_batch_ms = receiver.clock_ms()
        self._pending_count += 1
        note = functools.partial(
            receiver.progress.add_tables,
            _counts_by_table(tables, message),
            len(data),
            stream=batch.stream,
            sequence=batch.sequence_last,
        )
        answer = functools.partial(self._answer, number, message.correlation_id, started, held_tables, note)
        ticket.done.add_done_callback(answer)

    def _refuse_reused_number(self, batch: Batch, *, is_next: bool) -> None:
        """A number that was used before is a retry, whatever its borders; only new changes under it are a mistake."""
        if not is_next and dedup.is_new(self._receiver.journal.admitted(batch.stream), batch):
            what = f"batch {batch.number} was sent before, and now has other changes"
            raise InvalidSequence(what, expected=self.session.expected, hint="send them under the expected number")

    def _as_batch(self, message: EnvelopeBatch, tables: tuple[str, ...], data: bytes) -> Batch:
        if self.session.is_taken_over:
            raise InvalidSequence(f"a newer connection speaks for {self.session.stream} now")
        stream = stream_of(message, self._shard)
        epoch = self.session.epoch
        return Batch(
            stream=stream,
            epoch=self._receiver.journal.admitted(stream).epoch if epoch is None else epoch,
            number=message.sequence_number,
            sequence_first=message.events[0].sequence if message.events else 0,
            sequence_last=message.events[-1].sequence if message.events else 0,
            change_count=len(message.events),
            tables=tables,
            payload=data if message.events else b"",
            source_state=b"" if message.source_state is UNSET else encode_patch(message.source_state),
        )

    async def _take_connect(self, message: ConnectMessage) -> None:
        receiver = self._receiver
        try:
            self._refuse_if_closing()
            if message.protocol_version != PROTOCOL_VERSION:
                raise MessageValidationError(
                    f"protocolVersion {message.protocol_version} is not spoken here",
                    path="$.protocolVersion",
                    hint=f"this server speaks version {PROTOCOL_VERSION}",
                )
            stream = stream_of(message, self._shard)
            await self._bind(stream)
            self._shard = stream.shard  # holds for later messages that name none
            point = await receiver.journal.settled(stream)
            if message.source_epoch is not None and message.source_epoch < point.epoch:
                what = f"epoch {message.source_epoch} of {stream} is over; the stream is in epoch {point.epoch}"
                raise InvalidSequence(what, hint="connect with this sourceEpoch, or a higher one after a restore")
        except DoLakeError as error:
            self._nack(0, error, message.correlation_id)
            return
        is_new_epoch = message.source_epoch is not None and message.source_epoch > point.epoch
        epoch = max(point.epoch, message.source_epoch or 0)
        self.session.epoch = epoch
        if message.last_ack_sequence > point.sequence and not is_new_epoch:
            logger.warning(
                "source remembers more than this journal holds",
                extra={"stream": str(stream), "source": message.last_ack_sequence, "durable": point.sequence},
            )
        status = receiver.answers.status(receiver.state, receiver.speakers.count_known(self.grant.knows_source))
        status.correlation_id = message.correlation_id
        status.last_durable_sequence = 0 if is_new_epoch else point.sequence
        status.last_batch_number = point.number
        status.source_epoch = epoch
        status.position = receiver.journal.durable
        status.max_payload_size = self._limits.max_payload_size
        status.max_event_size = self._limits.max_event_size
        status.binary_protocol = True
        status.source_state = {} if is_new_epoch else decode_state(point.state)
        self._prefers_binary = self._outbox.is_binary = message.capabilities.binary_protocol
        self._outbox.post(status)

    def _take_heartbeat(self, message: HeartbeatMessage) -> None:
        stream = self.session.stream or stream_of(message, self._shard)
        try:
            admission.check_speaker(stream, self.grant)
        except DoLakeError as error:
            self._nack(0, error, message.correlation_id)
            return
        self._ack_ok(message.correlation_id, self._receiver.journal.point(stream).number)

    async def _bind(self, stream: StreamId) -> None:
        admission.check_source(stream)
        admission.check_speaker(stream, self.grant)
        if self.session.stream is None:
            admission.raise_if_refused(self._receiver.admit_source(stream, self.session))
        if self.session.bind(stream):
            self._is_known = self._receiver.journal.point(stream).sequence > 0
            await self._receiver.take_over(stream, self.session)

    def _refuse_if_closing(self) -> None:
        self._receiver.refuse_elsewhere()
        if self._receiver.is_closing:
            raise Unavailable("the server is shutting down", hint="reconnect and send again")

    # --- what we answer ----------------------------------------------------------------------------------------------

    def _answer(
        self,
        number: int,
        correlation_id: str | UnsetType,
        started: float,
        held_tables: list[str],
        note: Callable[[Appended], None],
        done: asyncio.Future[Appended],
    ) -> None:
        """The batch is durable, or could not be made so."""
        self._pending_count -= 1
        error = done.exception()
        if error:
            self._receiver.tables.release(held_tables)
            known = error if isinstance(error, DoLakeError) else OutcomeUnknown(f"writing failed: {error}")
            self._refuse(number, known, correlation_id, is_lost=True)
            return
        appended = done.result()
        receiver = self._receiver
        receiver.tables.confirm(held_tables)
        note(appended)
        self._refusals_in_row = 0
        self._is_known = True
        if self._unpersisted is None:
            self._unpersisted = deque(maxlen=_PERSISTED_MAX)
        self._unpersisted.append((appended.end, number))
        receiver.stats.duplicate_change_count += appended.duplicate_count
        is_fallback = receiver.progress.breaker != "closed"
        status = "duplicate" if appended.is_duplicate else "fallback" if is_fallback else "buffered"
        receiver.stats.count_ack(status)
        receiver.stats.time_ack(time.perf_counter() - started)
        budget = receiver.limiter.budget(self.session)
        self._outbox.post(receiver.answers.ack(number, appended, correlation_id, self._limits, budget))

    def _ack_ok(self, correlation_id: str | UnsetType, number: int | None = None) -> None:
        if number is None:
            number = self._receiver.journal.point(self.session.stream).number if self.session.stream else 0
        self._receiver.stats.count_ack("ok")
        budget = self._receiver.limiter.budget(self.session)
        self._outbox.post(self._receiver.answers.ack(number, None, correlation_id, self._limits, budget))

    def _has_new(self, message: EnvelopeBatch) -> bool:
        """Whether something in this batch was never taken, so that nothing may be taken before it."""
        stream = self.session.stream
        is_known = (
            stream is not None
            and message.events[-1:]
            and (message.events[-1].sequence <= self._receiver.journal.admitted(stream).sequence)
        )
        return not is_known

    def _refuse(self, number: int, error: DoLakeError, correlation_id: str | UnsetType, *, is_lost: bool) -> None:
        """The batch was not kept; with something new in it, its number is expected again before any other."""
        if isinstance(error, InvalidSequence) and error.expected is not None:
            self.session.expected = error.expected
        elif is_lost:
            self.session.refuse(number)
        self._nack(number, error, correlation_id)

    def _nack(self, number: int, error: DoLakeError, correlation_id: str | UnsetType = UNSET) -> None:
        delay_ms = retry_delay_ms(self._refusals_in_row, self._limits)
        if isinstance(error, RateLimited):
            delay_ms = max(delay_ms, error.retry_after_ms)
        # The batches behind a refused one are refused with it; that is one refusal, not eight.
        if number == self.session.expected and not isinstance(error, Conflict):
            self._refusals_in_row += 1
        self._receiver.stats.count_nack(reason_of(error, is_closing=self._receiver.is_closing))
        self._outbox.post(
            self._receiver.answers.nack(
                number, error, correlation_id, retry_delay_ms=delay_ms, is_closing=self._receiver.is_closing
            )
        )

    @property
    def _limits(self) -> RateLimitConfig:
        return self._receiver.settings.current.rate_limit


def _counts_by_table(tables: tuple[str, ...], message: EnvelopeBatch) -> Mapping[str, int]:
    if len(tables) == 1:
        return {tables[0]: len(message.events)}
    if isinstance(message.events, EventColumns):
        return message.events.table_counts()
    return Counter([event.table for event in message.events])
