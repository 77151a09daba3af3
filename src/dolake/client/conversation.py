"""The conversation with the server: one connection after another, a sender, a listener and a heartbeat on each.

From aio.py, which adds changes and owns the one task that runs this; bookkeeping is window.py's, speed pace.py's, the
messages words.py's and the socket transport.py's. Promise: a batch that the server did not acknowledge is sent again,
over as many connections as it takes, until it is durable, refused, or nobody wants to wait any longer; then everybody
who waits is told.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from dolake import errors
from dolake.backoff import BackOff
from dolake.changes import StreamId
from dolake.client.outgoing import PIECE_EVENTS, Body, mixed_numbering
from dolake.client.pace import Pace
from dolake.client.transport import Connection, Interrupted, Transport, error_of, interruption
from dolake.client.window import Batch, Entry, Ticket, Window
from dolake.client.words import Words
from dolake.positions import START, Position
from dolake.wire.messages import SEQUENCE_MAX, AckMessage, FlushReason, NackMessage, StatusMessage
from dolake.wire.source_state import encode_patch

logger = logging.getLogger("dolake.client")

PersistedCallback = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the client waits for what."""

    connect_ms: int
    close_ms: int
    heartbeat_ms: int
    retry_max_ms: int
    give_up_after_ms: int | None


class Conversation:
    """Everything between add() and the moment a ticket is settled."""

    def __init__(
        self,
        transport: Transport,
        stream: StreamId,
        epoch: int | None,
        window: Window,
        pace: Pace,
        batch_bytes_max: int,
        waits: Waits,
        words: Words,
    ) -> None:
        self.window = window
        self.failure: errors.DoLakeError | None = None
        """Why this conversation is over, for good."""
        self.problem: errors.DoLakeError | None = None
        """What went wrong last, and is being tried again."""
        self.last_position: Position = START
        self.event_bytes_max: int | None = None
        """The largest change that the server takes, once it has told."""
        self.keeps_states: bool | None = None
        """Whether the server keeps the state of a source, once it has told."""
        self.persisted_callbacks: list[PersistedCallback] = []
        # These three are also set when the conversation ends, so that nobody waits for what will not come.
        self.connected = asyncio.Event()
        self.room = asyncio.Event()
        self.empty = asyncio.Event()
        self.empty.set()

        self._transport = transport
        self._stream = stream
        self._words = words
        self.epoch = epoch
        self._pace = pace
        self._events_limit = pace.events_max
        self._waits = waits
        self._bytes_limit = batch_bytes_max
        self._bytes_max = batch_bytes_max

        self._order = asyncio.Lock()
        self._has_own_sequences: bool | None = None
        self._sequence_last = 0
        self._added_count = 0

        self._connection: Connection | None = None
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        self._questions: dict[str, asyncio.Future[None]] = {}
        self._redial = BackOff(waits.retry_max_ms, first_at_once=True)
        self._retry = BackOff(waits.retry_max_ms, first_at_once=False)
        self._spoken_at_s = 0.0
        self._progress_at_s = 0.0

    # --- what aio.py asks for ---------------------------------------------------------------------------------------

    async def add(self, bodies: Sequence[Body], ticket_now: Callable[[], Ticket], state: bytes = b"") -> None:
        """Line up these changes, together and in this order; waits for room. Stops when the ticket has failed.

        The ticket is asked for after the wait, because drain() may have begun a new one meanwhile. The state goes with
        the last change, or alone where there is none.
        """
        async with self._order:
            if state:
                self._check_keeps_states()
            if not bodies:
                await self._add_state(state, ticket_now)
                return
            self._check_numbering(bodies)
            is_whole = bool(state) and self._fits_one_batch(bodies, state)
            first = 0
            while first < len(bodies):
                if not self.window.has_room or self.failure is not None:
                    await self._wait_for_room()
                ticket = _sound(ticket_now())
                part = bodies if is_whole else bodies[first : first + min(self.window.room, PIECE_EVENTS)]
                first += len(part)
                self._note_work()
                self.window.put(ticket, self._numbered(part), state if first == len(bodies) else b"", is_whole=is_whole)
                self._work.set()
                self._added_count += len(part)
                if self._added_count >= PIECE_EVENTS:
                    self._added_count = 0
                    await asyncio.sleep(0)  # a caller who never has to wait would keep the sender from ever running

    def _fits_one_batch(self, bodies: Sequence[Body], state: bytes) -> bool:
        size_bytes = sum(len(body.numbered(SEQUENCE_MAX)) + 1 for body in bodies) + len(state)
        return len(bodies) <= self._events_limit and size_bytes <= self._bytes_max

    async def _add_state(self, state: bytes, ticket_now: Callable[[], Ticket]) -> None:
        if not self.window.has_room or self.failure is not None:
            await self._wait_for_room()
        ticket = _sound(ticket_now())
        self._note_work()
        self.window.put_state(ticket, state)
        self._work.set()

    def _note_work(self) -> None:
        if not self.window:
            self._progress_at_s = _now_s()
            self.empty.clear()

    def _check_keeps_states(self) -> None:
        """A server of an earlier release would say yes to a state and forget it."""
        if self.keeps_states is False:
            raise errors.InvalidInput(
                "this server keeps no state of a source", hint="use a release of DoLake that tells `sourceState`"
            )

    def _numbered(self, bodies: Sequence[Body]) -> list[tuple[int, bytes]]:
        """Each with its sequence: its own, or the next ones of the stream."""
        if bodies[0].sequence:
            self._sequence_last = max(self._sequence_last, *(body.sequence for body in bodies))
            return [(body.sequence, body.numbered(body.sequence)) for body in bodies]
        start = self._sequence_last + 1
        self._sequence_last += len(bodies)
        return [(number, b'{"sequence":%d,%b' % (number, body.rest)) for number, body in enumerate(bodies, start)]

    async def ask_flush(self, reason: FlushReason) -> None:
        """Ask for a publish, and wait for the server's yes."""
        try:
            async with asyncio.timeout(self._waits.connect_ms / 1000):
                while (connection := self._connection) is None:
                    self.raise_failure()
                    await self.connected.wait()
        except TimeoutError:
            raise errors.ConnectionError(f"not connected: {self.problem}") from None
        correlation_id, message = self._words.flush_request(reason)
        answer = self._questions[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            await connection.send(message)
            await answer  # bounded: when the connection falls silent, _connect_once fails every open question
        finally:
            self._questions.pop(correlation_id, None)

    async def settle(self) -> None:
        """Wait until everything that was added so far is durable or refused; what is added meanwhile does not count."""
        counts = self.window.open_counts()
        while self.failure is None and any(
            ticket.error is None and ticket.durable_count < count for ticket, count in counts.items()
        ):
            self._progress.clear()
            await self._progress.wait()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise copy.copy(self.failure)

    def stop(self, error: errors.DoLakeError) -> None:
        """Nothing goes out any more: whoever waits gets this error, or OutcomeUnknown where that is the truth."""
        if self.failure is None:
            self.failure = error
        self.window.fail_all(lambda _, is_in_doubt: _final_error(error, is_in_doubt))
        for event in (self.connected, self.room, self.empty, self._progress):
            event.set()

    async def run(self) -> None:
        """Talk until cancelled or until there is no sense in going on; says why in `failure`, never raises."""
        try:
            async with _together() as tasks:
                tasks.create_task(self._stay_connected())
                tasks.create_task(self._give_up_when_stalled())
        except errors.DoLakeError as error:
            self.stop(error)
        except Exception as error:
            logger.exception("client stopped by a mistake of its own")
            self.stop(errors.DoLakeError(f"the client stopped by a mistake of its own: {error!r}"))

    # --- one connection after another -------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        while True:
            wait_ms = 0.0
            try:
                await self._connect_once()
            except Interrupted as problem:
                self.problem = problem
                wait_ms = max(problem.wait_ms, self._redial.next_ms())
                logger.warning("connection lost", extra={"problem": problem.message, "wait_ms": round(wait_ms)})
            await asyncio.sleep(wait_ms / 1000)

    async def _connect_once(self) -> None:
        timeout_s = self._waits.connect_ms / 1000
        connection = await self._transport.dial(timeout_s)
        try:
            greeting = self._words.connect(self.epoch, self.window.durable_sequence)
            self._resume(await connection.greet(greeting, timeout_s))
            self._connection = connection
            self._spoken_at_s = _now_s()
            self.connected.set()
            async with _together() as tasks:
                tasks.create_task(self._send_batches(connection))
                tasks.create_task(self._listen(connection))
                tasks.create_task(self._keep_alive(connection))
        finally:
            self._connection = None
            self.connected.clear()
            self.window.disconnect()
            for answer in self._questions.values():
                if not answer.done():
                    answer.set_exception(errors.ConnectionError("the connection broke before the server answered"))
            await connection.close()

    def _resume(self, status: StatusMessage) -> None:
        """Go on where the server says that this stream stands."""
        self._words.agree(status)
        if status.source_epoch is not UNSET:
            if self.epoch is not None and status.source_epoch != self.epoch:
                raise errors.InvalidSequence(
                    f"the stream {self._stream} is in epoch {status.source_epoch}, this client in {self.epoch}",
                    hint="the source was restored and started anew: connect with the new epoch",
                )
            self.epoch = status.source_epoch
        durable = None if status.last_durable_sequence is UNSET else status.last_durable_sequence
        number = 0 if status.last_batch_number is UNSET else status.last_batch_number
        position = None if status.position is UNSET else status.position
        self.keeps_states = status.source_state is not UNSET
        state = b"" if status.source_state is UNSET else encode_patch(status.source_state)
        if self.window.resume(durable, number, position, state):
            self.last_position = max(self.last_position, position or START)
        self._sequence_last = max(self._sequence_last, self.window.durable_sequence)
        if status.max_payload_size is not UNSET:
            self.event_bytes_max = max(1, status.max_payload_size - self._words.envelope_bytes_max)
            self._bytes_max = min(self._bytes_limit, self.event_bytes_max)
        if status.max_event_size is not UNSET:
            self.event_bytes_max = min(status.max_event_size, self.event_bytes_max or status.max_event_size)
        self._moved()

    async def _give_up_when_stalled(self) -> None:
        """End it all when nothing became durable for the time that the caller is ready to wait."""
        if self._waits.give_up_after_ms is None:
            return
        patience_s = self._waits.give_up_after_ms / 1000
        while True:
            left_s = self._progress_at_s + patience_s - _now_s() if self.window else patience_s
            if left_s <= 0:
                raise self.problem or errors.Unavailable(f"nothing was acknowledged for {patience_s:g} s")
            await asyncio.sleep(left_s)

    # --- the three tasks of a connection ----------------------------------------------------------------------------

    async def _send_batches(self, connection: Connection) -> None:
        while True:
            if wait_s := self._pace.wait_s(_now_s()):
                await asyncio.sleep(wait_s)
            elif batch := self.window.take(self._pace.events_max, self._bytes_max):
                self._spoken_at_s = _now_s()
                await connection.send(self._words.batch(batch))
            else:
                self._work.clear()
                await self._work.wait()

    async def _listen(self, connection: Connection) -> None:
        silence_max_s = 2 * self._waits.heartbeat_ms / 1000
        while True:
            message = await connection.receive(silence_max_s)
            if isinstance(message, AckMessage):
                self._take_ack(message)
            elif isinstance(message, NackMessage):
                self._take_nack(message)

    async def _keep_alive(self, connection: Connection) -> None:
        heartbeat_s = self._waits.heartbeat_ms / 1000
        while True:
            left_s = self._spoken_at_s + heartbeat_s - _now_s()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            self._spoken_at_s = _now_s()
            await connection.send(self._words.heartbeat(self.window.durable_sequence, len(self.window)))

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take_ack(self, ack: AckMessage) -> None:
        self._redial.reset()
        correlation_id = None if ack.correlation_id is UNSET else ack.correlation_id
        if ack.status == "persisted":
            self._announce_persisted(ack)
        elif (answer := self._questions.get(correlation_id or "")) is not None:
            if not answer.done():
                answer.set_result(None)
        # A bare `ok` may answer a heartbeat, so it completes a batch only when it names the attempt.
        elif (correlation_id or ack.status != "ok") and (
            batch := self.window.find(correlation_id, ack.sequence_number)
        ):
            self._complete(batch, ack)

    def _complete(self, batch: Batch, ack: AckMessage) -> None:
        position = None
        if ack.details is not UNSET:
            position = None if ack.details.position is UNSET else ack.details.position
            self._pace.heed(ack.details, _now_s())
        if batch.entries[-1].event:  # no query needs to see a state
            self.last_position = max(self.last_position, position or START)
        self.window.acknowledge(batch, is_duplicate=ack.status == "duplicate", position=position)
        self._retry.reset()
        self.problem = None
        self._progress_at_s = _now_s()
        self._moved()

    def _take_nack(self, nack: NackMessage) -> None:
        correlation_id = None if nack.correlation_id is UNSET else nack.correlation_id
        if nack.reason == "shutting_down":
            raise interruption(nack)
        if nack.reason == "invalid_sequence" and not nack.should_retry:
            raise error_of(nack)
        if (answer := self._questions.get(correlation_id or "")) is not None:
            if not answer.done():
                answer.set_exception(error_of(nack))
        elif (batch := self.window.find(correlation_id, nack.sequence_number)) is not None:
            self._send_again_or_fail(batch, nack)
        elif nack.reason in ("rate_limited", "load_shedding"):
            # A heartbeat, or a batch that was taken back already: nothing is lost, but the server wants a rest.
            self._pace.pause(0 if nack.retry_delay_ms is UNSET else nack.retry_delay_ms, _now_s())
        elif correlation_id is None and nack.sequence_number == 0:
            # Some message of ours is refused and we cannot know which: begin anew, from what is durable.
            raise interruption(nack)
        # Else it speaks of a batch that we took back when one before it was refused, or of a heartbeat.

    def _send_again_or_fail(self, batch: Batch, nack: NackMessage) -> None:
        if nack.should_retry:
            self.problem = error_of(nack)
            wait_ms = self._retry.next_ms() if nack.retry_delay_ms is UNSET else float(nack.retry_delay_ms)
            expected = None if nack.expected_sequence_number is UNSET else nack.expected_sequence_number
            # After an internal error nobody knows whether the batch reached the disk.
            self.window.go_back(batch, expected, is_in_doubt=nack.reason == "internal_error")
            self._pace.pause(wait_ms, _now_s())
            logger.warning("batch refused for now", extra={"reason": nack.reason, "wait_ms": round(wait_ms)})
        elif nack.reason == "payload_too_large" and len(batch.entries) > 1:
            self._bytes_max = max(1, batch.size_bytes // 2)
            self.window.go_back(batch)
            logger.warning("batch halved", extra={"size_bytes": batch.size_bytes})
        else:
            self.window.refuse(batch, _culprits(nack, batch), lambda sequence, count: _refusal(nack, sequence, count))
        self._moved()

    def _announce_persisted(self, ack: AckMessage) -> None:
        path = "" if ack.details is UNSET or ack.details.persisted_path is UNSET else ack.details.persisted_path
        for callback in self.persisted_callbacks:
            try:
                callback(ack.sequence_number, path)
            except Exception:
                logger.exception("callback for persisted changes failed")

    # --- details ----------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        """The window changed: wake whoever may go on now."""
        self._work.set()
        self._progress.set()
        if self.window.has_room:
            self.room.set()
        if not self.window:
            self.empty.set()

    async def _wait_for_room(self) -> None:
        while not self.window.has_room and self.failure is None:
            self.room.clear()
            await self.room.wait()
        self.raise_failure()

    def _check_numbering(self, bodies: Sequence[Body]) -> None:
        own = bodies[0].sequence != 0
        if self._has_own_sequences not in (None, own):
            raise mixed_numbering()
        self._has_own_sequences = own


_EVENT_INDEX = re.compile(r"events\[(\d+)\]")


def _culprits(nack: NackMessage, batch: Batch) -> Sequence[Entry]:
    """The change that the server names, or else the whole batch: others' changes in it are not to blame."""
    path = nack.details[0].get("path", "") if nack.details else ""
    if path.startswith("$.sourceState"):
        return batch.entries[-1:]
    match = _EVENT_INDEX.search(path) or _EVENT_INDEX.search(nack.error_message)
    index = int(match[1]) if match else len(batch.entries)
    return batch.entries[index : index + 1] or batch.entries


def _sound(ticket: Ticket) -> Ticket:
    if ticket.error is not None:
        raise ticket.error
    return ticket


def _refusal(nack: NackMessage, sequence: int, count: int) -> errors.DoLakeError:
    error = error_of(nack)
    error.message = f"{count} changes from sequence {sequence} on were not kept: {error.message}"
    return error


def _final_error(error: errors.DoLakeError, is_in_doubt: bool) -> errors.DoLakeError:
    if is_in_doubt and isinstance(error, errors.Unavailable):
        return errors.OutcomeUnknown(
            f"changes were sent and never answered: {error.message}",
            hint="connect again under the same source: last_durable_sequence tells which of them are durable",
        )
    return copy.copy(error)


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises one plain error: the gravest of those that its tasks raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise max(_flat(group), key=lambda error: not isinstance(error, Interrupted)) from None


def _flat(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def _now_s() -> float:
    return time.monotonic()
