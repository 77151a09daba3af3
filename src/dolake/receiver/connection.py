"""One connection: its messages are checked, given their place in the journal, and answered when they are durable.

From endpoint.py, which opens it for a socket; to the journal. Promise: `buffered` is said after the batch's fdatasync,
never before; a batch that was not kept gets a nack that says why, and its number is expected again.
docs/reference/protocol.md has the messages.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web
from msgspec import UNSET, UnsetType

from dolake.changes import Batch, StreamId
from dolake.errors import (
    Conflict,
    DoLakeError,
    InvalidSequence,
    MessageValidationError,
    OutcomeUnknown,
    Unavailable,
)
from dolake.journal import dedup
from dolake.journal.base import Appended
from dolake.positions import Position
from dolake.receiver import admission
from dolake.receiver.answers import reason_of, retry_delay_ms
from dolake.receiver.outbox import Outbox
from dolake.settings import RateLimitConfig
from dolake.wire.messages import (
    PROTOCOL_VERSION,
    BatchMessage,
    ConnectMessage,
    EnvelopeBatch,
    FlushRequestMessage,
    HeartbeatMessage,
    check_events,
    decode_head,
    decode_received,
    encode,
    stream_of,
)
from dolake.wire.session import Session

if TYPE_CHECKING:
    from dolake.receiver.endpoint import Receiver

logger = logging.getLogger(__name__)
_OUTBOX_WAIT_S = 30.0
_PERSISTED_MAX = 1024


class Connection:
    """One socket: a loop that reads, and one that sends what has been answered."""

    def __init__(self, receiver: Receiver, socket: web.WebSocketResponse, *, shard: str) -> None:
        self.session = Session()
        self._receiver, self._socket, self._shard = receiver, socket, shard
        self._outbox = Outbox(socket)
        self._is_ended = asyncio.Event()
        self.is_listening = asyncio.Event()
        """Set while no message of this connection is being worked on."""
        self.is_listening.set()
        self._pending_count = 0
        self._refusals_in_row = 0
        self._unpersisted: deque[tuple[Position, int]] = deque(maxlen=_PERSISTED_MAX)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(self._outbox.send())
            try:
                async for message in self._socket:
                    if message.type is WSMsgType.TEXT:
                        await self._take(message.data)
                    elif message.type is WSMsgType.BINARY:
                        self._refuse_binary()
                    if self._outbox.is_full and not await self._wait_for_reader():
                        break
            finally:
                sender.cancel()
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

    async def _take(self, data: bytes) -> None:
        self.is_listening.clear()
        try:
            await self._take_message(data)
        finally:
            self.is_listening.set()

    async def _take_message(self, data: bytes) -> None:
        self._receiver.stats.count_message(len(data))
        try:
            admission.check_payload_size(data, self._limits, self._receiver.settings.current.journal)
            message = decode_received(data)
        except DoLakeError as error:
            head = decode_head(data)
            if head.is_batch:
                self.session.refuse(head.sequence_number)
            self._nack(head.sequence_number, error, head.correlation_id)
            return
        match message:
            case BatchMessage():
                await self._take_batch(message, data)
            case ConnectMessage():
                await self._take_connect(message)
            case HeartbeatMessage():
                self._take_heartbeat(message)
            case FlushRequestMessage():
                self._receiver.progress.request_flush()
                self._ack_ok(message.correlation_id)

    async def _take_batch(self, message: EnvelopeBatch, data: bytes) -> None:
        """Give the batch its place in the journal; the answer follows when it is durable."""
        receiver, number, started = self._receiver, message.sequence_number, time.perf_counter()
        try:
            self._refuse_if_closing()
            await self._bind(stream_of(message, self._shard))
            is_next = self.session.expect(number)
        except DoLakeError as error:
            self._nack(number, error, message.correlation_id)
            return
        held_tables: list[str] = []
        try:
            tables = check_events(message)
            if not message.events:
                self._ack_ok(message.correlation_id, number)
                return
            admission.check_event_sizes(data, self._limits)
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
        note = functools.partial(receiver.progress.add_tables, _counts_by_table(tables, message), len(data))
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
            sequence_first=message.events[0].sequence,
            sequence_last=message.events[-1].sequence,
            change_count=len(message.events),
            tables=tables,
            payload=data,
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
        status = receiver.answers.status(receiver.state, receiver.speakers.source_count)
        status.correlation_id = message.correlation_id
        status.last_durable_sequence = 0 if is_new_epoch else point.sequence
        status.last_batch_number = point.number
        status.source_epoch = epoch
        status.position = receiver.journal.durable
        status.max_payload_size = self._limits.max_payload_size
        status.max_event_size = self._limits.max_event_size
        self._outbox.post(encode(status))

    def _take_heartbeat(self, message: HeartbeatMessage) -> None:
        stream = self.session.stream or stream_of(message, self._shard)
        self._ack_ok(message.correlation_id, self._receiver.journal.point(stream).number)

    async def _bind(self, stream: StreamId) -> None:
        admission.check_source(stream)
        if self.session.bind(stream):
            await self._receiver.take_over(stream, self.session)

    def _refuse_if_closing(self) -> None:
        if self._receiver.is_closing:
            raise Unavailable("the server is shutting down", hint="reconnect and send again")

    def _refuse_binary(self) -> None:
        hint = "send JSON in text frames; binaryProtocol is not offered"
        self._nack(0, MessageValidationError("binary frames are not spoken here", hint=hint))

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
        self._unpersisted.append((appended.end, number))
        receiver.stats.duplicate_change_count += appended.duplicate_count
        is_fallback = receiver.progress.breaker != "closed"
        status = "duplicate" if not appended.change_count else "fallback" if is_fallback else "buffered"
        receiver.stats.count_ack(status)
        receiver.stats.time_ack(time.perf_counter() - started)
        self._outbox.post(receiver.answers.ack(number, appended, correlation_id, self._limits))

    def _ack_ok(self, correlation_id: str | UnsetType, number: int | None = None) -> None:
        if number is None:
            number = self._receiver.journal.point(self.session.stream).number if self.session.stream else 0
        self._receiver.stats.count_ack("ok")
        self._outbox.post(self._receiver.answers.ack(number, None, correlation_id, self._limits))

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
        if is_lost:
            self.session.refuse(number)
        self._nack(number, error, correlation_id)

    def _nack(self, number: int, error: DoLakeError, correlation_id: str | UnsetType = UNSET) -> None:
        delay_ms = retry_delay_ms(self._refusals_in_row, self._limits)
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
    return Counter([event.table for event in message.events])
