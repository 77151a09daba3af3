"""The load generator's frames are what a real client would send."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from benchmarks.load import SEQUENCE_FIRST, TABLES, BatchLayout, Encoding, Frame
from dolake.wire.binary import decode_raw_batch, unpack_received
from dolake.wire.messages import BatchMessage, CDCBatchMessage, check_events, validate_cdc_batch_message
from tools.raw_websocket import MASKED


def read_by_the_server(frame: Frame, layout: BatchLayout) -> CDCBatchMessage:
    """Take the mask off and check the batch as strictly as the receiver does."""
    return validate_cdc_batch_message(bytes(frame.encoded[-len(layout.payload) :]).translate(MASKED))


@pytest.mark.parametrize("events", [1, 7, 500])
def test_every_frame_is_a_valid_batch_that_goes_on_where_the_last_one_ended(events: int) -> None:
    layout = BatchLayout("bench", events=events)
    frame = Frame(layout)
    carry = 100_000 // events
    for number in (1, 2, 3, carry, carry + 1, carry + 2, 5_000_000, 1):
        frame.become(number)
        batch = read_by_the_server(frame, layout)
        first = SEQUENCE_FIRST + (number - 1) * events
        assert batch.sequence_number == number
        assert (batch.first_event_sequence, batch.last_event_sequence) == (first, first + events - 1)
        assert [event.sequence for event in batch.events] == list(range(first, first + events))


@pytest.mark.parametrize("encoding", ["msgpack", "msgpack-maps"])
@pytest.mark.parametrize("events", [1, 7, 500])
def test_binary_frames_are_the_same_batches(events: int, encoding: Encoding) -> None:
    layout = BatchLayout("bench", events=events, encoding=encoding)
    frame = Frame(layout)
    for number in (1, 2, 5_000_000):
        frame.become(number)
        message, payload = unpack_received(bytes(frame.encoded[-len(layout.payload) :]).translate(MASKED))
        assert isinstance(message, BatchMessage)
        check_events(message)
        first = SEQUENCE_FIRST + (number - 1) * events
        assert message.sequence_number == number
        assert [event.sequence for event in decode_raw_batch(payload).events] == list(range(first, first + events))


def test_a_batch_has_the_size_and_the_mix_that_the_report_speaks_of() -> None:
    layout = BatchLayout("bench", events=500)
    frame = Frame(layout)
    frame.become(1)
    events = read_by_the_server(frame, layout).events
    operations = Counter(event.operation for event in events)
    assert 330 <= len(layout.payload) / 500 <= 350
    assert 0.25 <= operations["UPDATE"] / 500 <= 0.35
    assert 0.02 <= operations["DELETE"] / 500 <= 0.08
    assert {event.table for event in events} == set(TABLES)
    assert all(event.before is not None for event in events if event.operation != "INSERT")
    assert not layout.payload.isascii()
    assert len(msgspec.json.decode(layout.payload)["events"][0]["after"]) == 9
