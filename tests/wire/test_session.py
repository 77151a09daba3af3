"""Who may say what, and when: one stream per connection, one speaker per stream, numbers that rise by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.changes import StreamId
from dolake.errors import InvalidSequence, MessageValidationError
from dolake.wire.session import Session, Speakers

ORDERS = StreamId("shop", "orders")
USERS = StreamId("shop", "users")


def speaking_for(stream: StreamId) -> Session:
    session = Session()
    session.bind(stream)
    return session


# --- one stream per connection ---------------------------------------------------------------------------------------


def test_a_connection_speaks_for_the_stream_that_it_names_first() -> None:
    session = Session()
    assert session.bind(ORDERS)
    assert not session.bind(ORDERS), "the second time it is no news"
    assert session.stream == ORDERS


@pytest.mark.parametrize("other", [USERS, StreamId("warehouse", "orders"), StreamId("shop")])
def test_a_connection_cannot_speak_for_a_second_stream(other: StreamId) -> None:
    session = speaking_for(ORDERS)
    with pytest.raises(MessageValidationError, match="shop/orders") as caught:
        session.bind(other)
    assert caught.value.path == "$.sourceDoId"
    assert "one connection per stream" in caught.value.hint
    assert session.stream == ORDERS


# --- batch numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 7, 2**63 - 1])
def test_the_first_batch_says_where_a_connection_begins(first: int) -> None:
    session = Session()
    assert session.expect(first)
    assert session.expected == first + 1


def test_numbers_rise_by_one() -> None:
    session = Session()
    assert [session.expect(number) for number in (4, 5, 6)] == [True, True, True]


@pytest.mark.parametrize("jump", [2, 3, 1000])
def test_a_gap_is_refused_with_the_number_that_was_expected(jump: int) -> None:
    session = Session()
    session.expect(4)
    with pytest.raises(InvalidSequence) as caught:
        session.expect(4 + jump)
    assert caught.value.expected == 5
    assert session.expect(5), "the expected one is still welcome"


def test_a_lower_number_is_a_retry_and_moves_nothing() -> None:
    session = Session()
    for number in (4, 5, 6):
        session.expect(number)
    assert not session.expect(5)
    assert not session.expect(2), "also from before this connection"
    assert session.expected == 7


def test_a_refused_number_is_expected_again_so_that_no_later_batch_overtakes_it() -> None:
    session = Session()
    session.expect(4)
    session.expect(5)
    session.refuse(5)
    with pytest.raises(InvalidSequence) as caught:
        session.expect(6)
    assert caught.value.expected == 5
    assert session.expect(5)


def test_of_several_refused_numbers_the_lowest_is_expected() -> None:
    session = Session()
    for number in (4, 5, 6):
        session.expect(number)
    for number in (6, 4, 5):
        session.refuse(number)
    assert session.expected == 4


def test_a_refused_first_batch_is_expected_too() -> None:
    session = Session()
    session.refuse(3)
    with pytest.raises(InvalidSequence) as caught:
        session.expect(4)
    assert caught.value.expected == 3


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40))
def test_whatever_is_sent_no_number_is_taken_before_the_one_below_it(batches: list[tuple[int, bool]]) -> None:
    session, kept = Session(), set[int]()
    first: int | None = None
    for number, is_kept in batches:
        try:
            is_next = session.expect(number)
        except InvalidSequence:
            continue
        first = number if first is None else first
        if is_kept:
            kept.add(number)
        elif is_next:
            session.refuse(number)
        if is_kept and number > first:
            assert number - 1 in kept


# --- one speaker per stream ------------------------------------------------------------------------------------------


def test_the_first_speaker_takes_a_stream_from_nobody() -> None:
    assert Speakers().take(ORDERS, speaking_for(ORDERS)) is None


def test_the_newest_connection_takes_the_stream_over() -> None:
    speakers, older, newer = Speakers(), speaking_for(ORDERS), speaking_for(ORDERS)
    speakers.take(ORDERS, older)
    assert speakers.take(ORDERS, newer) is older
    assert older.is_taken_over
    assert not newer.is_taken_over


def test_who_lost_the_stream_is_refused_and_not_told_to_send_again() -> None:
    speakers, older = Speakers(), speaking_for(ORDERS)
    speakers.take(ORDERS, older)
    older.expect(1)
    speakers.take(ORDERS, speaking_for(ORDERS))
    for number in (1, 2, 9):
        with pytest.raises(InvalidSequence, match="newer connection") as caught:
            older.expect(number)
        assert caught.value.expected is None


def test_who_lost_the_stream_cannot_speak_for_it_or_any_other_again() -> None:
    speakers, older = Speakers(), speaking_for(ORDERS)
    speakers.take(ORDERS, older)
    speakers.take(ORDERS, speaking_for(ORDERS))
    for stream in (ORDERS, USERS):
        with pytest.raises(InvalidSequence, match="newer connection"):
            older.bind(stream)


def test_taking_ones_own_stream_again_changes_nothing() -> None:
    speakers, session = Speakers(), speaking_for(ORDERS)
    speakers.take(ORDERS, session)
    assert speakers.take(ORDERS, session) is None
    assert not session.is_taken_over


def test_shards_of_one_source_are_streams_of_their_own() -> None:
    speakers, orders, users = Speakers(), speaking_for(ORDERS), speaking_for(USERS)
    speakers.take(ORDERS, orders)
    assert speakers.take(USERS, users) is None
    assert not orders.is_taken_over
    assert len(speakers) == 2
    assert speakers.source_count == 1


def test_a_connection_that_left_is_taken_over_by_nobody() -> None:
    speakers, session = Speakers(), speaking_for(ORDERS)
    speakers.take(ORDERS, session)
    speakers.leave(session)
    assert len(speakers) == 0
    assert speakers.take(ORDERS, speaking_for(ORDERS)) is None


def test_an_older_connection_that_leaves_late_does_not_silence_the_newer_one() -> None:
    speakers, older, newer = Speakers(), speaking_for(ORDERS), speaking_for(ORDERS)
    speakers.take(ORDERS, older)
    speakers.take(ORDERS, newer)
    speakers.leave(older)
    assert len(speakers) == 1
    assert speakers.take(ORDERS, speaking_for(ORDERS)) is newer


def test_a_connection_that_never_said_who_it_is_may_leave() -> None:
    speakers = Speakers()
    speakers.leave(Session())
    assert speakers.source_count == 0
