"""Which changes are on their way: numbered once, sent in order, settled once. No I/O, no clock.

From conversation.py, which puts changes in, takes batches out and reports what the server answered; to the Ticket of
each caller. Promise, for any interleaving of acks, nacks and lost connections: every change is settled exactly once,
durable or failed; durable ones in the order they were put; and a change never goes out under a second sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, takewhile
from operator import attrgetter

from msgspec import Struct

from dolake.errors import Damaged, DoLakeError, InvalidSequence
from dolake.positions import Position
from dolake.wire.source_state import decode_state, merge


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of a send(): all of its changes are durable.

    `position` reads your own writes: pass it to a query. It is None when an older server did not
    tell it. `duplicate_count` says how many were durable before this send.
    """

    position: Position | None
    sequence_first: int
    sequence_last: int
    change_count: int
    duplicate_count: int


class Ticket:
    """What one caller waits for: settled when all of its changes are durable, or as soon as one of them failed."""

    def __init__(self) -> None:
        self.sequence_first = 0
        self.sequence_last = 0
        self.position: Position | None = None
        self.queued_count = 0
        self.durable_count = 0
        self.duplicate_count = 0
        self.state_count = 0
        """How many of the queued ones are states without a change."""
        self.error: DoLakeError | None = None
        self.is_closed = False

    @property
    def is_settled(self) -> bool:
        return self.error is not None or (self.is_closed and self.durable_count == self.queued_count)

    def on_settled(self) -> None:
        """Called once; whoever waits overrides it."""

    def close(self) -> None:
        """No more changes will be put under this ticket."""
        if not self.is_closed:
            self.is_closed = True
            if self.error is None and self.is_settled:
                self.on_settled()

    def add_queued(self, sequence_first: int, sequence_last: int, count: int) -> None:
        self.queued_count += count
        self.sequence_first = self.sequence_first or sequence_first
        self.sequence_last = sequence_last

    def add_queued_state(self) -> None:
        self.queued_count += 1
        self.state_count += 1

    def add_durable(self, position: Position | None, count: int, duplicate_count: int) -> None:
        self.durable_count += count
        self.duplicate_count += duplicate_count
        self.position = position
        if self.is_closed and self.error is None and self.durable_count == self.queued_count:
            self.on_settled()

    def fail(self, error: DoLakeError) -> None:
        if not self.is_settled:
            self.error = error
            self.on_settled()

    def receipt(self) -> Receipt:
        change_count = self.durable_count - self.state_count
        return Receipt(self.position, self.sequence_first, self.sequence_last, change_count, self.duplicate_count)


class Entry(Struct, eq=False, gc=False):
    """One change that is not known to be durable yet, encoded once and for all; with a state of the source, or one.

    A state without a change has no event and the sequence 0. It goes out in a batch of its own, whose number tells
    after a lost connection whether it is durable.
    """

    sequence: int
    event: bytes
    ticket: Ticket
    sent_count: int = 0
    is_in_doubt: bool = False
    """Sent, and neither acknowledged nor surely refused."""
    state: bytes = b""
    number: int = 0
    """That of the batch in which a state went out last."""
    whole: int = 0
    """Entries with the same number here go out in one batch, and nothing else with them; 0 does not care."""

    @property
    def size_bytes(self) -> int:
        return len(self.event) + len(self.state)


@dataclass(slots=True, eq=False)
class Batch:
    """Changes that went out together. `correlation_id` is new for every attempt, so that an answer to an earlier
    attempt under the same number is never taken for an answer to this one."""

    number: int
    correlation_id: str
    entries: list[Entry]
    size_bytes: int
    retry_count: int
    is_acked: bool = False
    is_duplicate: bool = False
    position: Position | None = None


class Window:
    """All changes that are not known to be durable: those in flight, in batches, and behind them those that wait."""

    def __init__(self, *, batches_max: int, events_max: int, bytes_max: int) -> None:
        self.durable_sequence = 0
        """The highest sequence that the server called durable."""
        self.state = b""
        """The durable state of the source: as the server told it, with every patch that is durable since."""
        self._batches_max = batches_max
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._flight: deque[Batch] = deque()
        self._waiting: deque[Entry] = deque()
        self._count = 0
        self._bytes = 0
        self._number_next = 1
        self._attempt_count = 0
        self._sequence_sent = 0
        self._whole_count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_room(self) -> bool:
        return self._count < self._events_max and self._bytes < self._bytes_max

    @property
    def room(self) -> int:
        """How many changes may be put before somebody must wait; the last of them may be too many bytes."""
        return self._events_max - self._count if self._bytes < self._bytes_max else 0

    def open_counts(self) -> dict[Ticket, int]:
        """Whoever has changes here, and how many of his must be durable before all that are here now are."""
        entries = chain(chain.from_iterable(batch.entries for batch in self._flight), self._waiting)
        return {ticket: ticket.queued_count for ticket in dict.fromkeys(map(_ticket_of, entries))}

    def put(
        self, ticket: Ticket, events: Sequence[tuple[int, bytes]], state: bytes = b"", *, is_whole: bool = False
    ) -> None:
        """Line up some changes, each with its sequence, and a state with the last of them. Asking for `room` before is
        the caller's part. `is_whole`: they go out in one batch, so that all of them are durable or none."""
        ticket.add_queued(events[0][0], events[-1][0], len(events))
        self._whole_count += 1
        whole = self._whole_count if is_whole else 0
        self._waiting += [Entry(sequence, event, ticket, whole=whole) for sequence, event in events]
        self._waiting[-1].state = state
        self._count += len(events)
        self._bytes += sum([len(event) for _, event in events]) + len(state)

    def put_state(self, ticket: Ticket, state: bytes) -> None:
        """Line up a state without a change."""
        ticket.add_queued_state()
        self._waiting.append(Entry(0, b"", ticket, state=state))
        self._count += 1
        self._bytes += len(state)

    def take(self, events_max: int, bytes_max: int) -> Batch | None:
        """Form the next batch from what waits; None when nothing does, or too many batches are in flight.

        A change that is larger than `bytes_max` goes alone. A caller may send old sequences again, and sequences rise
        within a batch, so a step back starts a new one. A state is that of the batch, so it ends one. Changes that
        were put as a whole are taken as a whole.
        """
        if not self._waiting or len(self._flight) >= self._batches_max:
            return None
        entries: list[Entry] = []
        size_bytes = retry_count = previous = 0
        whole = self._waiting[0].whole
        for entry in self._waiting if whole else islice(self._waiting, events_max):
            size = entry.size_bytes + 1  # the comma
            if entry.whole != whole or (entries and entry.sequence <= previous):
                break
            if entries and not whole and size_bytes + size > bytes_max:
                break
            entries.append(entry)
            size_bytes += size
            previous = entry.sequence
            if entry.sent_count > retry_count:
                retry_count = entry.sent_count
            entry.sent_count += 1
            entry.is_in_doubt = True
            if entry.state:
                entry.number = self._number_next
                break
        for _ in entries:
            self._waiting.popleft()
        self._sequence_sent = max(self._sequence_sent, previous)
        self._attempt_count += 1
        batch = Batch(self._number_next, f"b{self._attempt_count}", entries, size_bytes, retry_count)
        self._flight.append(batch)
        self._number_next += 1
        return batch

    def find(self, correlation_id: str | None, number: int) -> Batch | None:
        """The batch in flight that an answer speaks of; None when it is one that we have taken back since."""
        for batch in self._flight:
            if batch.number == number if correlation_id is None else batch.correlation_id == correlation_id:
                return batch
        return None

    def acknowledge(self, batch: Batch, *, is_duplicate: bool = False, position: Position | None = None) -> None:
        """This batch is durable. Its tickets hear of it when all batches before it are durable too."""
        batch.is_acked = True
        batch.is_duplicate = is_duplicate
        batch.position = position
        while self._flight and self._flight[0].is_acked:
            done = self._flight.popleft()
            self._complete(done.entries, done.position, is_duplicate=done.is_duplicate)

    def go_back(self, batch: Batch, expected: int | None = None, *, is_in_doubt: bool = False) -> None:
        """Take this batch and all after it out of flight, to be sent again from its number, or from `expected`.

        The server keeps nothing that comes after a batch it refused, so all of it must be sent again, in order.
        """
        first = batch.number if expected is None else min(batch.number, expected)
        while self._flight and self._flight[-1].number >= first:
            entries = self._flight.pop().entries
            for entry in entries:
                entry.is_in_doubt = is_in_doubt
            self._waiting.extendleft(reversed(entries))
        self._number_next = batch.number if expected is None else expected

    def refuse(self, batch: Batch, culprits: Sequence[Entry], error_of: Callable[[int, int], DoLakeError]) -> None:
        """Fail the tickets of these changes of the batch for good, and withdraw all that they have from here on.

        So of a failed send a beginning is durable and nothing after it: a change never goes out when one before it in
        the same send was refused. The rest of the batch is sent again. `error_of` gets the first sequence that was
        not kept, and how many were not.
        """
        self.go_back(batch)
        dropped: dict[Ticket, list[Entry]] = {entry.ticket: [] for entry in culprits}
        kept: deque[Entry] = deque()
        for entry in self._waiting:
            dropped.get(entry.ticket, kept).append(entry)
        self._waiting = kept
        for ticket, entries in dropped.items():
            self._forget(entries)
            ticket.fail(error_of(entries[0].sequence, len(entries)))

    def disconnect(self) -> None:
        """Nothing is in flight any more; what was, waits again."""
        while self._flight:
            self._waiting.extendleft(reversed(self._flight.pop().entries))

    def resume(
        self, durable_sequence: int | None, batch_number: int, position: Position | None = None, state: bytes = b""
    ) -> bool:
        """A new connection: the server has everything up to `durable_sequence` and last took batch `batch_number`.

        What was sent and has become durable since is complete, at `position` or before; True when the stream has
        moved. What the caller put under a sequence that was durable
        already is sent again all the same: only the server can tell a repetition from new content. `state` is the
        source's state as the server has it.
        """
        self.disconnect()
        self._number_next = batch_number + 1
        if durable_sequence is None:
            return False
        if durable_sequence < self.durable_sequence:
            raise Damaged(
                f"the server acknowledged changes up to sequence {self.durable_sequence}, and now has them only up to "
                f"{durable_sequence}",
                hint="it lost acknowledged changes: look at its journal before anything is sent again",
            )
        before = known = self.durable_sequence
        is_ours = durable_sequence <= max(known, self._sequence_sent)
        first = next((entry.sequence for entry in self._waiting if entry.event), 0)
        if not is_ours and known < first <= durable_sequence:
            raise InvalidSequence(
                f"somebody else wrote to this stream up to sequence {durable_sequence}",
                expected=durable_sequence + 1,
                hint="a source and shard have one writer at a time; give each writer a shard of its own",
            )
        arrived = self._arrived(known, durable_sequence, batch_number)
        if not _has_all(state, arrived):
            arrived = list(takewhile(_has_event, arrived))
        for entry in arrived:
            self._waiting.popleft()
            self._complete([entry], position, is_duplicate=False)
        self.durable_sequence, self.state = durable_sequence, state
        return durable_sequence > before

    def _arrived(self, known: int, durable_sequence: int, batch_number: int) -> list[Entry]:
        """What was sent and is durable: changes by their sequence, states without a change by their batch's number."""
        arrived: list[Entry] = []
        for entry in self._waiting:
            if not entry.sent_count:
                break
            if entry.event:
                if not known < entry.sequence <= durable_sequence:
                    break
                known = entry.sequence
            elif entry.number > batch_number:
                break
            arrived.append(entry)
        return arrived

    def fail_all(self, error_of: Callable[[Ticket, bool], DoLakeError]) -> None:
        """Fail every ticket that has changes here. `error_of` is told whether any of these may be durable after all."""
        self.disconnect()
        doubtful: dict[Ticket, bool] = {}
        for entry in self._waiting:
            doubtful[entry.ticket] = doubtful.get(entry.ticket, False) or entry.is_in_doubt
        self._waiting.clear()
        self._count = self._bytes = 0
        for ticket, is_in_doubt in doubtful.items():
            ticket.fail(error_of(ticket, is_in_doubt))

    def _complete(self, entries: Sequence[Entry], position: Position | None, *, is_duplicate: bool) -> None:
        """These are durable; their sequences rise. The server trims what it has, and acknowledges the rest as new."""
        known = self.durable_sequence
        self._forget(entries)
        self.durable_sequence = max(known, entries[-1].sequence)
        if state := entries[-1].state:
            self.state = merge(self.state, state)
        for ticket, run in groupby(entries, _ticket_of):
            of_ticket = list(run)
            sequences = [entry.sequence for entry in of_ticket if entry.event]
            duplicate_count = len(sequences) if is_duplicate else bisect_right(sequences, known)
            ticket.add_durable(position, len(of_ticket), duplicate_count)

    def _forget(self, entries: Sequence[Entry]) -> None:
        self._count -= len(entries)
        self._bytes -= sum([entry.size_bytes for entry in entries])


def _has_event(entry: Entry) -> bool:
    return bool(entry.event)


def _has_all(state: bytes, entries: Sequence[Entry]) -> bool:
    """Whether these patches have nothing to add. A number alone does not say what went out under it: after a nack that
    leaves open what was kept, other batches may have had it before."""
    after = state
    for entry in entries:
        if entry.state:
            after = merge(after, entry.state)
    return decode_state(after) == decode_state(state)


_ticket_of: Callable[[Entry], Ticket] = attrgetter("ticket")
