"""The bookkeeping of un-acknowledged changes, alone and against a model of the server."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dolake.client.window import Batch, Entry, Ticket, Window
from dolake.errors import Damaged, DoLakeError, InvalidInput, InvalidSequence, Unavailable
from dolake.wire.source_state import decode_state, merge


class CountedTicket(Ticket):
    settled_count = 0

    def on_settled(self) -> None:
        self.settled_count += 1


def window_of(*sequences: int, batches_max: int = 8) -> tuple[Window, CountedTicket]:
    """A window with these changes waiting, all under one ticket."""
    window, ticket = Window(batches_max=batches_max, events_max=1000, bytes_max=10**6), CountedTicket()
    for sequence in sequences:
        window.put(ticket, [(sequence, b"{%d}" % sequence)])
    ticket.close()
    return window, ticket


def take(window: Window, events_max: int = 1, bytes_max: int = 10**6) -> Batch:
    batch = window.take(events_max, bytes_max)
    assert batch is not None
    return batch


def sequences_of(batch: Batch) -> list[int]:
    return [entry.sequence for entry in batch.entries]


def test_a_ticket_is_settled_when_its_last_change_is_durable() -> None:
    window, ticket = window_of(1, 2)
    first, second = take(window), take(window)
    window.acknowledge(first, position=10)
    assert not ticket.is_settled
    window.acknowledge(second, position=11)
    assert ticket.settled_count == 1
    assert ticket.receipt().position == 11
    assert (ticket.receipt().sequence_first, ticket.receipt().sequence_last) == (1, 2)


def test_a_ticket_without_changes_is_settled_when_it_is_closed() -> None:
    _, ticket = window_of()
    assert ticket.settled_count == 1


def test_changes_that_are_put_as_a_whole_are_one_batch_however_small_batches_are_and_after_a_lost_connection() -> None:
    window, ticket = window_of(1)
    window.put(ticket, [(2, b"2"), (3, b"3"), (4, b"4")], b'{"at":4}', is_whole=True)
    window.put(ticket, [(5, b"5"), (6, b"6")], b'{"at":6}', is_whole=True)
    window.put(ticket, [(7, b"7"), (8, b"8")])
    for _ in range(2):
        batches = [take(window, events_max=2, bytes_max=1) for _ in range(5)]
        assert [sequences_of(batch) for batch in batches] == [[1], [2, 3, 4], [5, 6], [7], [8]]
        window.disconnect()


def test_no_more_batches_are_in_flight_than_the_window_allows() -> None:
    window, _ = window_of(1, 2, 3, batches_max=2)
    first = take(window)
    take(window)
    assert window.take(1, 100) is None
    window.acknowledge(first)
    assert sequences_of(take(window)) == [3]


def test_an_ack_that_overtakes_another_completes_nothing_out_of_order() -> None:
    window, _ = window_of(1, 2)
    first, second = take(window), take(window)
    window.acknowledge(second)
    assert (len(window), window.durable_sequence) == (2, 0)
    window.acknowledge(first)
    assert (len(window), window.durable_sequence) == (0, 2)


def test_a_refused_batch_goes_out_again_under_its_number_with_all_that_followed_it() -> None:
    window, _ = window_of(1, 2, 3)
    _, refused, follower = take(window), take(window), take(window)
    window.go_back(refused)
    again = take(window, events_max=10)
    assert (again.number, sequences_of(again), again.retry_count) == (refused.number, [2, 3], 1)
    assert window.find(follower.correlation_id, follower.number) is None


def test_an_answer_to_an_earlier_attempt_is_not_taken_for_the_present_one() -> None:
    window, _ = window_of(1, 2)
    first, second = take(window), take(window)
    window.go_back(first)
    take(window)
    assert take(window).number == second.number
    assert window.find(second.correlation_id, second.number) is None


def test_numbers_go_on_where_the_server_expects_them() -> None:
    window, _ = window_of(1, 2, 3)
    take(window), take(window)
    third = take(window)
    window.go_back(third, expected=2)
    assert sequences_of(again := take(window)) == [2]
    assert again.number == 2


def test_a_step_back_in_sequences_starts_a_new_batch() -> None:
    window, _ = window_of(4, 5, 4, 5, 6)
    assert sequences_of(take(window, events_max=10)) == [4, 5]
    assert sequences_of(take(window, events_max=10)) == [4, 5, 6]


def test_a_change_larger_than_a_batch_goes_alone() -> None:
    window, _ = window_of(1, 2, 3)
    assert [sequences_of(take(window, 10, bytes_max=1)) for _ in range(3)] == [[1], [2], [3]]


def test_what_was_durable_before_counts_as_duplicate() -> None:
    window, _ = window_of()
    window.resume(durable_sequence=5, batch_number=3)
    ticket = CountedTicket()
    for sequence in (4, 5, 6):
        window.put(ticket, [(sequence, b"{}")])
    batch = take(window, events_max=10)
    assert batch.number == 4
    window.acknowledge(batch)
    assert ticket.receipt().duplicate_count == 2


def test_what_became_durable_before_the_connection_broke_is_complete_after_it() -> None:
    window, ticket = window_of(1, 2, 3)
    take(window, events_max=2)
    window.resume(durable_sequence=2, batch_number=1)
    assert len(window) == 1
    last = take(window)
    window.acknowledge(last, position=3)
    assert (ticket.settled_count, ticket.receipt().duplicate_count) == (1, 0)


def test_a_repetition_is_left_to_the_judgement_of_the_server() -> None:
    window, _ = window_of(1, 2)
    window.acknowledge(take(window, events_max=2))
    again = CountedTicket()
    window.put(again, [(1, b"{other}")])
    take(window)
    window.resume(durable_sequence=2, batch_number=1)
    assert not again.settled_count
    assert sequences_of(take(window)) == [1]


def test_a_server_that_lost_acknowledged_changes_is_damaged() -> None:
    window, _ = window_of(1, 2)
    window.acknowledge(take(window, events_max=2))
    with pytest.raises(Damaged, match="up to sequence 2"):
        window.resume(durable_sequence=1, batch_number=1)


def test_another_writer_on_the_same_stream_is_noticed() -> None:
    window, _ = window_of(1, 2)
    take(window, events_max=2)
    with pytest.raises(InvalidSequence, match="somebody else"):
        window.resume(durable_sequence=9, batch_number=4)


def test_what_was_never_sent_is_not_called_durable_by_a_new_connection() -> None:
    window, _ = window_of(10)
    batch = take(window)
    window.refuse(batch, batch.entries, lambda sequence, count: InvalidInput("refused"))
    later = CountedTicket()
    window.put(later, [(9, b"{}")])
    window.resume(durable_sequence=10, batch_number=1)
    assert later.durable_count == 0
    assert sequences_of(take(window)) == [9]


def test_a_refusal_for_good_takes_the_rest_of_that_send_and_nothing_else() -> None:
    window, mine = window_of(1, 2, 3)
    other = CountedTicket()
    window.put(other, [(4, b"{}")])
    other.close()
    batch = take(window, events_max=2)
    window.refuse(batch, batch.entries[1:], lambda sequence, count: InvalidInput(f"{count} from {sequence}"))
    assert str(mine.error) == "3 from 1"
    again = take(window)
    assert (again.number, sequences_of(again)) == (batch.number, [4])
    window.acknowledge(again)
    assert (mine.settled_count, other.settled_count, other.error) == (1, 1, None)


def test_a_state_ends_its_batch_and_goes_alone_where_it_has_no_change() -> None:
    window, ticket = window_of()
    window.put(ticket, [(1, b"{1}"), (2, b"{2}")], b'{"at":2}')
    window.put(ticket, [(3, b"{3}")])
    window.put_state(ticket, b'{"at":3}')
    window.put_state(ticket, b'{"at":4}')
    batches = [take(window, events_max=10) for _ in range(4)]
    assert [sequences_of(batch) for batch in batches] == [[1, 2], [3], [0], [0]]
    assert [batch.entries[-1].state for batch in batches] == [b'{"at":2}', b"", b'{"at":3}', b'{"at":4}']
    for batch in batches:
        window.acknowledge(batch)
    assert (window.state, window.durable_sequence, len(window)) == (b'{"at":4}', 3, 0)


def test_a_state_that_was_durable_before_the_connection_broke_is_complete_after_it() -> None:
    window, ticket = window_of()
    for number in (1, 2, 3):
        window.put_state(ticket, b'{"at":%d}' % number)
    first, second, _ = take(window), take(window), take(window)
    window.acknowledge(first)
    window.resume(0, second.number, position=7, state=b'{"at":2}')
    assert (ticket.durable_count, window.state) == (2, b'{"at":2}')
    assert take(window).entries[0].state == b'{"at":3}'


def test_a_number_that_other_batches_had_before_does_not_make_a_state_durable() -> None:
    """After an internal error nobody knows what was kept under the numbers up to there."""
    window, ticket = window_of(1, 2)
    first, _ = take(window), take(window)
    window.go_back(first, is_in_doubt=True)
    window.put_state(ticket, b'{"at":2}')
    take(window, events_max=10)
    assert take(window).number == 2
    window.resume(2, 2, state=b"")
    assert (window.durable_sequence, window.state) == (2, b"")
    assert take(window).entries[0].state == b'{"at":2}'


def test_the_end_tells_each_ticket_whether_anything_of_it_was_sent() -> None:
    window, sent = window_of(1)
    take(window)
    waiting = CountedTicket()
    window.put(waiting, [(2, b"{}")])
    window.fail_all(lambda _, was_sent: Unavailable("sent" if was_sent else "waiting"))
    assert (str(sent.error), str(waiting.error), len(window)) == ("sent", "waiting", 0)


# --- any interleaving ------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What the model server says about one attempt."""

    batch: Batch
    kind: str
    expected: int | None = None
    is_duplicate: bool = False
    culprit: int = 0


@dataclass
class ModelServer:
    """Decision 6 in twenty lines: numbers rise by one, sequences are kept once, the same sequence has one content."""

    kept: list[tuple[int, bytes]] = field(default_factory=list)
    """Changes by their sequence; a state without a change has the sequence 0."""
    number_expected: int = 1
    state: bytes = b""
    number_last: int = 0
    """That of the last batch that was written."""

    @property
    def last(self) -> int:
        return max((sequence for sequence, _ in self.kept), default=0)

    def take(self, batch: Batch, verdict: str, culprit: int) -> Answer:
        if batch.number != self.number_expected:
            return Answer(batch, "gap", expected=self.number_expected)
        if verdict != "keep":
            return Answer(batch, verdict, culprit=culprit % len(batch.entries))
        contents, last, count = dict(self.kept), self.last, len(self.kept)
        for entry in batch.entries:
            if not entry.event:
                assert len(batch.entries) == 1, "a state without a change goes alone"
                self.kept.append((0, entry.state))
            elif entry.sequence > last:
                self.kept.append((entry.sequence, entry.event))
            else:
                assert contents[entry.sequence] == entry.event, "a change came under the sequence of another"
        if len(self.kept) > count:
            self.number_last = batch.number
            assert not any(entry.state for entry in batch.entries[:-1]), "a state ends its batch"
            if state := batch.entries[-1].state:
                self.state = merge(self.state, state)
        self.number_expected += 1
        return Answer(batch, "keep", is_duplicate=len(self.kept) == count)


class ClientAndServer(RuleBasedStateMachine):
    """Whatever happens between them, every change is kept once and in order, or its sender is told that it failed."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.server = ModelServer()
        self.to_server: list[Batch] = []
        self.to_client: list[Answer] = []
        self.put_order: list[tuple[int, bytes]] = []
        self.changes_of: dict[CountedTicket, list[tuple[int, bytes]]] = {}
        self.withdrawn: set[tuple[int, bytes]] = set()

    @initialize(batches_max=st.integers(1, 4))
    def start(self, batches_max: int) -> None:
        self.window = Window(batches_max=batches_max, events_max=10**6, bytes_max=10**9)

    @rule(target=tickets)
    def begin_send(self) -> CountedTicket:
        ticket = CountedTicket()
        self.changes_of[ticket] = []
        return ticket

    @rule(ticket=tickets, gap=st.integers(1, 3))
    def put(self, ticket: CountedTicket, gap: int) -> None:
        if not ticket.is_closed and ticket.error is None:
            sequence = max((sequence for sequence, _ in self.put_order), default=0) + gap
            change = (sequence, b"change %d" % len(self.put_order))
            self.put_order.append(change)
            self.changes_of[ticket].append(change)
            self.window.put(ticket, [change])

    @rule(ticket=tickets, is_alone=st.booleans())
    def put_with_a_state(self, ticket: CountedTicket, is_alone: bool) -> None:
        if not ticket.is_closed and ticket.error is None:
            state = b'{"%d":%d}' % (len(self.put_order) % 3, len(self.put_order))
            sequence = max((sequence for sequence, _ in self.put_order), default=0) + 1
            change = (0, state) if is_alone else (sequence, b"change with %b" % state)
            self.put_order.append(change)
            self.changes_of[ticket].append(change)
            if is_alone:
                self.window.put_state(ticket, state)
            else:
                self.window.put(ticket, [change], state)

    @rule(ticket=tickets, choice=st.integers(0))
    def put_again_what_is_durable(self, ticket: CountedTicket, choice: int) -> None:
        durable = [change for change in self.server.kept if 0 < change[0] <= self.window.durable_sequence]
        if durable and not ticket.is_closed and ticket.error is None:
            change = durable[choice % len(durable)]
            self.changes_of[ticket].append(change)
            self.window.put(ticket, [change])

    @rule(ticket=tickets)
    def end_send(self, ticket: CountedTicket) -> None:
        ticket.close()

    @rule(events_max=st.integers(1, 5), bytes_max=st.integers(1, 60))
    def send_batch(self, events_max: int, bytes_max: int) -> None:
        if batch := self.window.take(events_max, bytes_max):
            self.to_server.append(batch)

    @precondition(lambda self: self.to_server)
    @rule(verdict=st.sampled_from(["keep", "keep", "retry", "final"]), culprit=st.integers(0))
    def server_takes_batch(self, verdict: str, culprit: int) -> None:
        self.to_client.append(self.server.take(self.to_server.pop(0), verdict, culprit))

    @precondition(lambda self: self.to_client)
    @rule(choice=st.integers(0))
    def client_takes_an_answer(self, choice: int) -> None:
        """Answers may overtake each other: a nack is said at once, an ack after the sync."""
        answer = self.to_client.pop(choice % len(self.to_client))
        batch = self.window.find(answer.batch.correlation_id, answer.batch.number)
        if batch is None:
            return
        assert batch is answer.batch
        if answer.kind == "keep":
            self.window.acknowledge(batch, is_duplicate=answer.is_duplicate)
        elif answer.kind == "final":
            self._refuse(batch, answer.culprit)
        else:
            self.window.go_back(batch, answer.expected)

    def _refuse(self, batch: Batch, culprit: int) -> None:
        ticket = batch.entries[culprit].ticket
        assert isinstance(ticket, CountedTicket)
        changes = self.changes_of[ticket]

        def error_of(sequence: int, count: int) -> DoLakeError:
            assert changes[-count][0] == sequence
            self.withdrawn |= set(changes[-count:]) - set(self.server.kept)
            return InvalidInput("refused")

        self.window.refuse(batch, batch.entries[culprit : culprit + 1], error_of)

    @rule(heard_count=st.integers(0, 3), number=st.integers(0, 50))
    def connection_breaks(self, heard_count: int, number: int) -> None:
        """The server may have heard some more batches; none of its answers arrives any longer."""
        for batch in self.to_server[:heard_count]:
            self.server.take(batch, "keep", 0)
        self.to_server.clear()
        self.to_client.clear()
        # Where states without a change are on their way, their number must be the true one; else any number will do.
        number = self.server.number_last if any(not each.event for each in self._all_entries()) else number
        self.server.number_expected, self.server.number_last = number + 1, number
        self.window.resume(self.server.last, number, state=self.server.state)
        assert self.window.state == self.server.state

    @invariant()
    def the_server_keeps_each_change_once_in_the_order_it_was_put(self) -> None:
        order = iter(self.put_order)
        assert all(change in order for change in self.server.kept)

    @invariant()
    def each_state_is_kept_once(self) -> None:
        states = [change for change in self.server.kept if not change[0]]
        assert len(states) == len(set(states))

    @invariant()
    def nobody_is_told_twice_or_told_what_is_not_so(self) -> None:
        kept = set(self.server.kept)
        for ticket, changes in self.changes_of.items():
            assert ticket.settled_count == ticket.is_settled
            assert set(changes[: ticket.durable_count]) <= kept
        assert not self.withdrawn & kept

    @invariant()
    def the_window_counts_what_is_open(self) -> None:
        if hasattr(self, "window"):
            assert len(self.window) == len(self._all_entries())

    def teardown(self) -> None:
        """Left in peace, everything that did not fail becomes durable."""
        if not hasattr(self, "window"):
            return
        self.connection_breaks(0, 0)
        while batch := self.window.take(3, 100):
            self.window.acknowledge(batch, is_duplicate=self.server.take(batch, "keep", 0).is_duplicate)
        assert len(self.window) == 0
        assert decode_state(self.window.state) == decode_state(self.server.state)
        kept = set(self.server.kept)
        for ticket, changes in self.changes_of.items():
            ticket.close()
            assert ticket.settled_count == 1
            assert ticket.error is not None or set(changes) <= kept
            assert ticket.error is not None or ticket.receipt().change_count == sum(bool(each[0]) for each in changes)

    def _all_entries(self) -> list[Entry]:
        if not hasattr(self, "window"):
            return []
        flight = [entry for batch in self.window._flight for entry in batch.entries]
        return [*flight, *self.window._waiting]


TestClientAndServer = ClientAndServer.TestCase
