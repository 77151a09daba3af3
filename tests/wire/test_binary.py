"""MessagePack: the same messages, the same rules, and what MessagePack can say that JSON cannot."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.errors import MessageValidationError
from dolake.wire.binary import decode_raw_batch, is_binary, pack, unpack_head, unpack_received, unpack_server_message
from dolake.wire.columns import ColumnBatch, EventColumns, columns_of, event_sizes
from dolake.wire.messages import (
    AckMessage,
    BatchMessage,
    ConnectMessage,
    HeartbeatMessage,
    check_events,
    decode_json_batch,
    decode_received,
    encode,
)
from tests.support.property import examples
from tests.support.speaker import batch, event, events

packed = msgspec.msgpack.encode


def in_columns(message: dict[str, Any]) -> bytes:
    """The batch as our client sends it in binary."""
    raw = decode_json_batch(json.dumps(message).encode())
    head = {name: getattr(raw, name) for name in raw.__struct_fields__ if name != "events"}
    return pack(ColumnBatch(events=columns_of(raw.events), **head))


def columns(**changed: Any) -> bytes:
    """Two valid inserts in columns, with some of them replaced."""
    message = msgspec.msgpack.decode(in_columns(batch(1, events(1, 2))))
    message["events"] |= changed
    return packed(message)


def taken(data: bytes) -> tuple[BatchMessage[Any], bytes]:
    message, payload = unpack_received(data)
    assert isinstance(message, BatchMessage)
    check_events(message)
    return message, payload


def refusal(data: bytes) -> MessageValidationError:
    with pytest.raises(MessageValidationError) as found:
        taken(data)
    return found.value


def told(payload: bytes) -> list[dict[str, Any]]:
    """The events that a reader of the journal finds."""
    found = json.loads(encode(decode_raw_batch(payload)))["events"]
    return [{name: value for name, value in event.items() if value is not None} for event in found]


images = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    found = []
    for sequence in sorted(draw(st.sets(st.integers(1, 2**60), min_size=1, max_size=6))):
        operation = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
        one = event(sequence, table=draw(st.sampled_from(["users", "shop.orders"])), operation=operation)
        del one["after"]
        if operation != "DELETE" or draw(st.booleans()):
            one["after"] = draw(images)
        if draw(st.booleans()):
            one["before"] = draw(images)
        if draw(st.booleans()):
            one["metadata"] = {"transactionId": draw(st.text(min_size=1, max_size=4)), "mine": draw(images)}
        found.append(one)
    return batch(1, found)


@given(message=batches())
@settings(max_examples=examples(60))
def test_a_batch_means_the_same_in_json_in_maps_and_in_columns(message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    expected = json.loads(encode(decode_json_batch(data)))["events"]
    tables = check_events(cast(Any, decode_received(data)))
    for binary in (packed(message), in_columns(message)):
        received, payload = taken(binary)
        assert check_events(received) == tables
        assert [each.sequence for each in received.events] == [each["sequence"] for each in expected]
        assert told(payload) == expected


def test_columns_are_kept_as_they_came_and_maps_as_the_json_they_stand_for() -> None:
    message = batch(1, events(1, 3))
    in_binary = in_columns(message)
    assert taken(in_binary)[1] is in_binary
    kept = taken(packed(message))[1]
    assert not is_binary(kept)
    assert json.loads(kept)["events"] == message["events"]


def test_other_messages_have_the_same_fields() -> None:
    message, _ = unpack_received(packed({"type": "heartbeat", "sourceDoId": "s", "correlationId": "h1", "new": 1}))
    assert isinstance(message, HeartbeatMessage)
    assert message.correlation_id == "h1"
    hello, _ = unpack_received(packed({"type": "connect", "sourceDoId": "s", "capabilities": {"binaryProtocol": True}}))
    assert isinstance(hello, ConnectMessage)
    assert hello.capabilities.binary_protocol


def test_an_answer_can_be_read_in_binary() -> None:
    ack = AckMessage(timestamp=1, sequence_number=2, status="buffered")
    assert unpack_server_message(pack(ack)) == ack
    with pytest.raises(MessageValidationError):
        unpack_server_message(b"\xc1")


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (b"\x00\xff", "AP8="),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        ({"deep": [b"a", {"x": 1.5}]}, {"deep": ["YQ==", {"x": 1.5}]}),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_a_value_that_json_writes_otherwise_is_kept_as_json_writes_it(value: Any, becomes: Any) -> None:
    _, payload = taken(packed(batch(1, [event(1, after={"id": 1, "value": value})])))
    assert told(payload)[0]["after"] == {"id": 1, "value": becomes}


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ({"x": math.nan}, "no number that JSON has"),
        ({"x": [{"y": -math.inf}]}, "no number that JSON has"),
        ({"x": msgspec.msgpack.Ext(5, b"?")}, "extension type"),
        ({1: "one"}, "the key 1 is no text"),
        ({"x": {None: 1}}, "the key None is no text"),
        ([1], "Expected `object | null`"),
        ("text", "Expected `object | null`"),
        (b'{"id":1}', "Expected `object | null`"),
    ],
)
def test_what_json_cannot_say_is_refused_where_it_stands(image: Any, words: str) -> None:
    error = refusal(packed(batch(1, [event(1), event(2, after=image)])))
    assert words in str(error)
    assert error.path.startswith("$.events[1].after")


def test_of_two_equal_keys_the_last_one_counts() -> None:
    twice = b"\x82\xa1a\x01\xa1a\x02"
    data = packed(batch(1, [event(1, after={"x": "HERE"})])).replace(packed({"x": "HERE"}), twice)
    assert told(taken(data)[1])[0]["after"] == {"a": 2}


def test_a_text_that_is_no_utf_8_is_refused() -> None:
    data = packed(batch(1, [event(1, after={"x": "HERE"})])).replace(b"HERE", b"\xff\xfe\xed\xa0")
    assert "UTF-8" in str(refusal(data))


@pytest.mark.parametrize("name", ["before", "after"])
@pytest.mark.parametrize(
    ("text", "words", "path"),
    [
        (b'[{"a":1},{"a":}]', "malformed", ""),
        (b'[{"a":1}]', "1 images for 2 events", ""),
        (b'[{"a":1},{},{}]', "3 images for 2 events", ""),
        (b'[{"a":NaN},{}]', "malformed", ""),
        (b'[{},"text"]', "Expected `object | null`", "[1]"),
        (b"[{},[]]", "Expected `object | null`", "[1]"),
        (b'[{},{"a":"\xff"}]', "invalid UTF-8", ""),
        (b"[{},{}] {}", "malformed", ""),
        (b'{"0":{}}', "Expected `array`", ""),
        (b"", "truncated", ""),
        (b"[" + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b",{}]", "too deeply", ""),
    ],
)
def test_images_in_columns_are_checked_like_any_json(name: str, text: bytes, words: str, path: str) -> None:
    error = refusal(columns(**{name: text}))
    assert words in str(error)
    assert error.path.startswith(f"$.events[{path[1]}].{name}" if path else f"$.events.{name}")


@pytest.mark.parametrize(
    ("changed", "words", "path"),
    [
        ({"sequence": [2, 1]}, "sequence 1 does not follow 2", "$.events[1].sequence"),
        ({"sequence": [1, 1]}, "sequence 1 does not follow 1", "$.events[1].sequence"),
        ({"sequence": [0, 1]}, "Expected `int` >= 1", "$.events.sequence[0]"),
        ({"sequence": [1, 2**63]}, "Expected `int` <=", "$.events.sequence[1]"),
        ({"sequence": [1, "2"]}, "Expected `int`, got `str`", "$.events.sequence[1]"),
        ({"sequence": [1]}, "2 values for 1 events", "$.events.timestamp"),
        ({"timestamp": [1, -1]}, "Expected `int` >= 0", "$.events.timestamp[1]"),
        ({"operation": "IX"}, "Invalid letter 'X'", "$.events.operation"),
        ({"operation": "I"}, "1 values for 2 events", "$.events.operation"),
        ({"operation": "IU", "after": None}, "INSERT without an after image", "$.events[0].after"),
        ({"operation": "DU", "after": b"[null,null]"}, "UPDATE without an after image", "$.events[1].after"),
        ({"table": [0, 1]}, "no table has the index 1", "$.events.table"),
        ({"table": [0, -1]}, "Expected `int` >= 0", "$.events.table[1]"),
        ({"tables": ["users__changes"]}, "table name", "$.events[0].table"),
        ({"rowId": ["a", ""]}, "length >= 1", "$.events.rowId[1]"),
        ({"rowId": ["a"]}, "1 values for 2 events", "$.events.rowId"),
        ({"metadata": b'[null,{"transactionEnd":1}]'}, "Expected `bool`", "$.events[1].metadata.transactionEnd"),
        ({"after": "[{},{}]"}, "Expected `bytes | null`, got `str`", "$.events.after"),
    ],
)
def test_columns_are_checked_like_events(changed: dict[str, Any], words: str, path: str) -> None:
    error = refusal(columns(**changed))
    assert words in str(error)
    assert error.path == path


def test_announced_sequences_must_be_those_of_the_columns() -> None:
    message = msgspec.msgpack.decode(columns())
    assert "lastEventSequence is 7" in str(refusal(packed(message | {"lastEventSequence": 7})))


def test_a_refused_message_is_still_known_by_its_number() -> None:
    head = unpack_head(packed(batch(7, [{"sequence": "x"}], correlationId="b7")))
    assert (head.sequence_number, head.correlation_id, head.is_batch) == (7, "b7", True)
    assert unpack_head(b"\xc1\xff").is_batch is False


def test_single_events_in_columns_have_their_sizes() -> None:
    message, _ = taken(in_columns(batch(1, [event(1), event(2, after={"text": "x" * 5000})])))
    assert isinstance(message.events, EventColumns)
    small, large = event_sizes(message.events.columns)
    assert small < 100
    assert 5000 < large < 5100


@given(message=batches(), at=st.integers(0, 10_000), noise=st.binary(min_size=1, max_size=4), is_plain=st.booleans())
@settings(max_examples=examples(200))
def test_whatever_gets_through_is_a_batch_in_json_too(
    message: dict[str, Any], at: int, noise: bytes, is_plain: bool
) -> None:
    data = packed(message) if is_plain else in_columns(message)
    at %= len(data)
    data = data[:at] + noise + data[at + len(noise) :]
    try:
        received, payload = taken(data)
    except MessageValidationError:
        return
    except AssertionError:  # it became another kind of message
        return
    check_events(received)
    again = encode(decode_raw_batch(payload))
    check_events(cast(Any, decode_received(again)))


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(MessageValidationError):
        unpack_received(data)
    unpack_head(data)
