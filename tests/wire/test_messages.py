"""Every message of the protocol, both ways, and everything that a bad one is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dolake import wire
from dolake.errors import MessageValidationError
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import (
    EVENTS_MAX,
    AckMessage,
    BatchMessage,
    CDCBatchMessage,
    ConnectMessage,
    FlushRequestMessage,
    HeartbeatMessage,
    NackMessage,
    StatusMessage,
    check_events,
    decode_head,
    decode_received,
    decode_server_message,
    encode,
    read_received,
    stream_of,
    validate_cdc_batch_message,
    validate_client_message,
)
from tests.support.property import examples
from tests.support.speaker import batch, event

Message = dict[str, Any]

CONNECT: Message = {
    "type": "connect",
    "timestamp": 1_763_000_000_000,
    "correlationId": "c-1",
    "sourceDoId": "dosql-shard-1",
    "sourceShardName": "users-shard-1",
    "sourceEpoch": 3,
    "lastAckSequence": 7,
    "protocolVersion": 1,
    "capabilities": {
        "binaryProtocol": True,
        "compression": True,
        "batching": False,
        "maxBatchSize": 500,
        "maxMessageSize": 1_048_576,
    },
}
CDC_BATCH: Message = {
    "type": "cdc_batch",
    "timestamp": 1_763_000_000_001,
    "correlationId": "c-2",
    "sourceDoId": "dosql-shard-1",
    "sourceShardName": "users-shard-1",
    "events": [
        {
            "sequence": 41,
            "timestamp": 1_763_000_000_000,
            "operation": "UPDATE",
            "table": "users",
            "rowId": "user-123",
            "before": {"id": "user-123", "name": "Alice"},
            "after": {"id": "user-123", "name": "Zoë", "tags": [1, 2.5, None, True], "deep": {"a": {}}},
            "metadata": {"transactionId": "tx-9", "transactionEnd": True, "anything": ["of", "their", "own"]},
        },
        {"sequence": 43, "timestamp": 0, "operation": "DELETE", "table": "shop.orders", "rowId": "o-1"},
    ],
    "sequenceNumber": 12,
    "firstEventSequence": 41,
    "lastEventSequence": 43,
    "sizeBytes": 256,
    "isRetry": True,
    "retryCount": 2,
}
HEARTBEAT: Message = {
    "type": "heartbeat",
    "timestamp": 1_763_000_000_002,
    "correlationId": "c-3",
    "sourceDoId": "dosql-shard-1",
    "lastAckSequence": 12,
    "pendingEvents": 3,
}
FLUSH_REQUEST: Message = {
    "type": "flush_request",
    "timestamp": 1_763_000_000_003,
    "correlationId": "c-4",
    "sourceDoId": "dosql-shard-1",
    "reason": "shutdown",
}
ACK: Message = {
    "type": "ack",
    "timestamp": 1,
    "correlationId": "c-2",
    "sequenceNumber": 12,
    "status": "persisted",
    "batchId": "b-1",
    "details": {
        "eventsProcessed": 2,
        "bufferUtilization": 0.25,
        "timeUntilFlush": 1500,
        "persistedPath": "warehouse/default/users",
        "remainingTokens": 45,
        "bucketCapacity": 50,
        "suggestedDelayMs": 100,
        "circuitBreakerState": "half-open",
        "position": 43,
    },
    "rateLimit": {"limit": 100, "remaining": 45, "resetAt": 1_704_067_200},
}
NACK: Message = {
    "type": "nack",
    "timestamp": 1,
    "correlationId": "c-2",
    "sequenceNumber": 12,
    "reason": "payload_too_large",
    "errorMessage": "too large",
    "shouldRetry": True,
    "retryDelayMs": 100,
    "maxSize": 4_194_304,
    "expectedSequenceNumber": 11,
    "details": [{"path": "$", "message": "too large", "hint": ""}],
}
STATUS: Message = {
    "type": "status",
    "timestamp": 1,
    "correlationId": "c-1",
    "state": "receiving",
    "buffer": {
        "batchCount": 1,
        "eventCount": 2,
        "totalSizeBytes": 3,
        "utilization": 0.5,
        "oldestBatchTime": 4,
        "newestBatchTime": 5,
    },
    "connectedSources": 6,
    "lastFlushTime": 7,
    "nextFlushTime": 8,
    "lastDurableSequence": 9,
    "lastBatchNumber": 10,
    "sourceEpoch": 11,
    "maxPayloadSize": 4_194_304,
    "maxEventSize": 1_048_576,
}
CLIENT_MESSAGES = [CONNECT, CDC_BATCH, HEARTBEAT, FLUSH_REQUEST]
SERVER_MESSAGES = [ACK, NACK, STATUS]
NACK_REASONS = [
    "buffer_full",
    "rate_limited",
    "invalid_sequence",
    "invalid_format",
    "internal_error",
    "shutting_down",
    "payload_too_large",
    "event_too_large",
    "load_shedding",
    "connection_limit",
    "ip_limit",
]


def kind_of(message: Message) -> str:
    return str(message["type"])


def as_bytes(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


def received(data: bytes) -> Any:
    """What the receiver does with the bytes of a frame."""
    message, _ = read_received(data)
    if isinstance(message, BatchMessage):
        check_events(message)
    return message


def refusal_of(message: Any) -> dict[str, str]:
    """The one problem that the receiver and the public function both see, and the same one."""
    data = message if isinstance(message, bytes) else as_bytes(message)
    with pytest.raises(wire.MessageValidationError) as by_receiver:
        received(data)
    with pytest.raises(wire.MessageValidationError) as by_validator:
        validate_client_message(data)
    problems = by_validator.value.error_details()
    assert problems == by_receiver.value.error_details()
    (problem,) = problems
    assert problem.keys() == {"path", "message", "hint"}
    return problem


# --- every field of the seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=kind_of)
def test_a_client_message_keeps_every_field_of_the_protocol(message: Message) -> None:
    assert json.loads(encode(validate_client_message(as_bytes(message)))) == message


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=kind_of)
def test_a_server_message_keeps_every_field_of_the_protocol(message: Message) -> None:
    assert json.loads(encode(decode_server_message(as_bytes(message)))) == message


@pytest.mark.parametrize(
    ("message", "required"),
    [
        (
            ConnectMessage(source_do_id="s"),
            {"timestamp": 0, "lastAckSequence": 0, "protocolVersion": 1, "capabilities": {"batching": True}},
        ),
        (
            CDCBatchMessage(source_do_id="s", sequence_number=1, events=[]),
            {"timestamp": 0, "sizeBytes": 0, "isRetry": False, "retryCount": 0},
        ),
        (HeartbeatMessage(source_do_id="s"), {"timestamp": 0, "lastAckSequence": 0, "pendingEvents": 0}),
        (FlushRequestMessage(source_do_id="s"), {"timestamp": 0, "reason": "manual"}),
    ],
    ids=["connect", "cdc_batch", "heartbeat", "flush_request"],
)
def test_what_our_client_says_has_the_fields_that_other_servers_require(message: Any, required: Message) -> None:
    said = json.loads(encode(message))
    said["capabilities"] = {"batching": said.get("capabilities", {}).get("batching")}
    assert required.items() <= said.items()


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=kind_of)
def test_a_server_message_is_also_read_from_text(message: Message) -> None:
    assert decode_server_message(json.dumps(message)) == decode_server_message(as_bytes(message))


def test_fields_are_camel_case_on_the_wire_and_snake_case_in_python() -> None:
    message = validate_client_message(CONNECT)
    assert isinstance(message, ConnectMessage)
    assert message.source_do_id == "dosql-shard-1"
    assert message.last_ack_sequence == 7
    assert message.capabilities.max_message_size == 1_048_576
    snake = {key: value for key, value in CONNECT.items() if key != "sourceDoId"} | {"source_do_id": "x"}
    assert refusal_of(snake)["path"] == "$.sourceDoId"


@pytest.mark.parametrize("message", CLIENT_MESSAGES, ids=kind_of)
def test_unknown_fields_of_a_newer_client_are_ignored(message: Message) -> None:
    newer = message | {"invented": {"later": [1, 2]}}
    assert validate_client_message(newer) == validate_client_message(message)
    assert received(as_bytes(newer)) == received(as_bytes(message))


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=kind_of)
def test_unknown_fields_of_a_newer_server_are_ignored(message: Message) -> None:
    assert decode_server_message(as_bytes(message | {"invented": 1})) == decode_server_message(as_bytes(message))


def test_unknown_fields_of_an_event_are_ignored() -> None:
    assert validate_client_message(batch(1, [event(1, invented={"a": 1})])) == validate_client_message(
        batch(1, [event(1)])
    )


@pytest.mark.parametrize(
    "message",
    [
        {"type": "connect", "sourceDoId": "s"},
        {"type": "cdc_batch", "sourceDoId": "s", "sequenceNumber": 0, "events": []},
        {"type": "heartbeat", "sourceDoId": "s"},
        {"type": "flush_request", "sourceDoId": "s"},
    ],
    ids=kind_of,
)
def test_optional_fields_may_be_left_out(message: Message) -> None:
    validate_client_message(message)
    received(as_bytes(message))


@pytest.mark.parametrize("status", ["ok", "buffered", "persisted", "duplicate", "fallback"])
def test_every_ack_status_of_the_seeds_is_understood(status: str) -> None:
    message = decode_server_message(as_bytes(ACK | {"status": status}))
    assert isinstance(message, AckMessage)
    assert message.status == status


@pytest.mark.parametrize("reason", NACK_REASONS)
def test_every_nack_reason_of_the_seeds_is_understood(reason: str) -> None:
    message = decode_server_message(as_bytes(NACK | {"reason": reason}))
    assert isinstance(message, NackMessage)
    assert message.reason == reason


@pytest.mark.parametrize("state", ["idle", "receiving", "flushing", "recovering", "error"])
def test_every_server_state_of_the_seeds_is_understood(state: str) -> None:
    message = decode_server_message(as_bytes(STATUS | {"state": state}))
    assert isinstance(message, StatusMessage)
    assert message.state == state


@pytest.mark.parametrize("reason", ["manual", "shutdown", "buffer_full", "time_threshold"])
def test_every_flush_reason_of_the_seeds_is_understood(reason: str) -> None:
    message = validate_client_message(FLUSH_REQUEST | {"reason": reason})
    assert isinstance(message, FlushRequestMessage)
    assert message.reason == reason


def test_an_ack_without_optional_fields_leaves_them_out() -> None:
    sent = AckMessage(timestamp=1, sequence_number=2, status="ok")
    assert json.loads(encode(sent)) == {"type": "ack", "timestamp": 1, "sequenceNumber": 2, "status": "ok"}


def test_a_server_message_that_makes_no_sense_is_a_validation_error() -> None:
    for data in (b"", b"[]", b'{"type":"ack"}', b'{"type":"shout"}', b"\xff", b'{"type":"nack","reason":"mood"}'):
        with pytest.raises(wire.MessageValidationError) as caught:
            decode_server_message(data)
        assert caught.value.hint in ("", "send text frames in UTF-8"), "what a client may say is no hint here"


def test_the_public_names_are_in_dolake_wire() -> None:
    assert wire.validate_client_message is validate_client_message
    assert wire.validate_cdc_batch_message is validate_cdc_batch_message
    assert wire.CDCBatchMessage is CDCBatchMessage
    assert issubclass(wire.MessageValidationError, Exception)


# --- the public functions --------------------------------------------------------------------------------------------


def test_a_message_is_validated_from_bytes_text_and_a_mapping_alike() -> None:
    expected = validate_client_message(as_bytes(CDC_BATCH))
    assert validate_client_message(json.dumps(CDC_BATCH)) == expected
    assert validate_client_message(CDC_BATCH) == expected


def test_each_type_of_message_becomes_its_own_class() -> None:
    found = [type(validate_client_message(message)) for message in CLIENT_MESSAGES]
    assert found == [ConnectMessage, type(validate_cdc_batch_message(CDC_BATCH)), HeartbeatMessage, FlushRequestMessage]


def test_validate_cdc_batch_message_gives_the_rows_as_dictionaries() -> None:
    message = validate_cdc_batch_message(CDC_BATCH)
    assert [change.sequence for change in message.events] == [41, 43]
    assert message.events[0].after == CDC_BATCH["events"][0]["after"]
    assert message.events[0].metadata == CDC_BATCH["events"][0]["metadata"]
    assert message.events[1].before is None


@pytest.mark.parametrize("message", [CONNECT, HEARTBEAT, FLUSH_REQUEST], ids=kind_of)
def test_validate_cdc_batch_message_refuses_any_other_message(message: Message) -> None:
    with pytest.raises(wire.MessageValidationError, match=str(message["type"])) as caught:
        validate_cdc_batch_message(message)
    assert caught.value.error_details()[0]["path"] == "$.type"


def test_an_unknown_type_is_refused_with_what_is_allowed() -> None:
    problem = refusal_of({"type": "shout", "sourceDoId": "s"})
    assert problem["path"] == "$.type"
    assert "shout" in problem["message"]
    assert "connect, cdc_batch, heartbeat or flush_request" in problem["hint"]


@pytest.mark.parametrize(
    "data",
    [
        "\ud800",
        '{"type":"heartbeat","sourceDoId":"\ud800"}',
        {"type": "heartbeat", "sourceDoId": "\ud800"},
        {"type": "heartbeat", "sourceDoId": object()},
        {"type": "heartbeat", "sourceDoId": {1, 2}},
        {"type": "heartbeat", ("a", "b"): 1},
    ],
    ids=["a lone surrogate", "one inside", "one in a mapping", "an object", "a set", "a key that is no text"],
)
def test_python_values_that_cannot_be_json_are_a_validation_error_too(data: Any) -> None:
    with pytest.raises(wire.MessageValidationError):
        validate_client_message(data)


def test_a_mapping_that_holds_itself_is_a_validation_error() -> None:
    endless: Message = {"type": "heartbeat", "sourceDoId": "s"}
    endless["again"] = endless
    with pytest.raises(wire.MessageValidationError, match="nested too deeply"):
        validate_client_message(endless)


# --- one bad event ---------------------------------------------------------------------------------------------------

BAD_FIELDS: list[tuple[str, str, Any, str]] = [
    ("a sequence that is text", "sequence", "2", "int"),
    ("a sequence with a fraction", "sequence", 2.5, "int"),
    ("a sequence of nothing", "sequence", None, "int"),
    ("a sequence of zero", "sequence", 0, ">= 1"),
    ("a negative sequence", "sequence", -1, ">= 1"),
    ("a sequence beyond 63 bits", "sequence", 2**63, "<= 9223372036854775807"),
    ("a sequence beyond 64 bits", "sequence", 2**70, ""),
    ("a sequence that repeats", "sequence", 1, "does not follow"),
    ("a timestamp that is text", "timestamp", "now", "int"),
    ("a negative timestamp", "timestamp", -1, ">= 0"),
    ("a timestamp of nothing", "timestamp", None, "int"),
    ("an operation in small letters", "operation", "insert", "insert"),
    ("an unknown operation", "operation", "TRUNCATE", "TRUNCATE"),
    ("an operation that is a number", "operation", 1, "str"),
    ("a table that is a number", "table", 7, "str"),
    ("an empty table name", "table", "", "empty"),
    ("a table name that climbs", "table", "../etc", "empty"),
    ("a table name with a slash", "table", "a/b", "'/'"),
    ("a table name with a control character", "table", "a\x00b", "'\\x00'"),
    ("a table name of DoLake's own", "table", "orders__changes", "__changes"),
    ("a table name that is too long", "table", "x" * 200, "longer than"),
    ("an empty rowId", "rowId", "", ">= 1"),
    ("a rowId that is a fraction", "rowId", 5.5, "float"),
    ("a rowId that is a truth", "rowId", True, "bool"),
    ("a rowId of nothing", "rowId", None, "str"),
    ("a rowId that is far too long", "rowId", "x" * 5000, "<= 4096"),
    ("an after image that is a list", "after", [1], "array"),
    ("an after image that is text", "after", "{}", "str"),
    ("an after image that is a number", "after", 1, "int"),
    ("an after image that is a truth", "after", True, "bool"),
    ("an INSERT without an after image", "after", None, "without an after image"),
    ("a before image that is a list", "before", [], "array"),
    ("a before image that is text", "before", "x", "str"),
    ("metadata that is a list", "metadata", [], "array"),
    ("metadata that is text", "metadata", "x", "str"),
]


@pytest.mark.parametrize(("field", "value", "problem"), [bad[1:] for bad in BAD_FIELDS], ids=[b[0] for b in BAD_FIELDS])
@pytest.mark.parametrize("index", [1, 2])
def test_a_bad_field_is_named_with_the_index_of_its_event(index: int, field: str, value: Any, problem: str) -> None:
    good = [event(1), event(2, table="orders"), event(3)]
    good[index] = good[index] | {field: value}
    if field == "sequence" and value == 1:
        problem = f"1 does not follow {index}"
    found = refusal_of(batch(1, good))
    assert found["path"] == f"$.events[{index}].{field}"
    assert problem in found["message"]


@pytest.mark.parametrize("key", [7, 0, -3, 2**70])
def test_a_key_that_is_a_whole_number_means_its_text_and_is_kept_as_text(key: int) -> None:
    changed = {"rowId": key, "metadata": {"previousRowId": key, "price": 1.10}, "before": {"id": key}}
    sent = batch(1, [event(1, rowId="a"), event(2) | changed]) | {"isRetry": True}
    message, kept = read_received(as_bytes(sent))
    assert isinstance(message, BatchMessage)
    check_events(message)
    assert [each.row_id for each in message.events] == ["a", str(key)]
    assert json.loads(kept)["isRetry"] is True
    assert decode_raw_batch(kept).events[1].row_id == str(key)
    stored = json.loads(kept)["events"][1]
    assert stored["before"] == {"id": key}, "images stay as they were sent"
    assert stored["metadata"] == {"previousRowId": str(key), "price": 1.1}
    validated = validate_cdc_batch_message(sent)
    assert [each.row_id for each in validated.events] == ["a", str(key)]


def test_what_else_is_wrong_beside_a_whole_number_is_still_told_with_its_place() -> None:
    found = refusal_of(batch(1, [event(1) | {"rowId": 1}, event(2) | {"rowId": 2, "operation": "UPSERT"}]))
    assert found["path"] == "$.events[1].operation"


def test_the_text_of_a_refusal_names_the_event() -> None:
    with pytest.raises(MessageValidationError, match=r"^events\[1\]\.rowId: Expected"):
        validate_client_message(batch(1, [event(1), event(2) | {"rowId": None}]))


@pytest.mark.parametrize("field", ["sequence", "timestamp", "operation", "table", "rowId"])
def test_a_missing_field_is_named_with_the_index_of_its_event(field: str) -> None:
    events = [event(1), event(2)]
    del events[1][field]
    found = refusal_of(batch(1, events))
    assert found["path"] == f"$.events[1].{field}"
    assert "missing" in found["message"]


@pytest.mark.parametrize("operation", ["INSERT", "UPDATE"])
def test_an_insert_or_update_needs_the_row_as_it_is_now(operation: str) -> None:
    without = event(1, operation=operation)
    del without["after"]
    found = refusal_of(batch(1, [without]))
    assert found["path"] == "$.events[0].after"
    assert operation in found["message"]
    assert "after" in found["hint"]


def test_a_delete_needs_no_image_and_may_have_one() -> None:
    bare = event(1, operation="DELETE")
    del bare["after"]
    received(as_bytes(batch(1, [bare, bare | {"sequence": 2, "before": {"id": 1}}, event(3, operation="DELETE")])))


def test_an_image_of_null_is_no_image() -> None:
    received(as_bytes(batch(1, [event(1, before=None, metadata=None), event(2, operation="DELETE", after=None)])))


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"transactionId": ""}, "transactionId"),
        ({"transactionId": {}}, "transactionId"),
        ({"transactionEnd": "yes"}, "transactionEnd"),
        ({"previousRowId": ""}, "previousRowId"),
        ({"previousRowId": 5.5}, "previousRowId"),
        ({"unchanged": "name"}, "unchanged"),
        ({"unchanged": [1]}, "unchanged[0]"),
    ],
)
def test_metadata_that_means_something_to_dolake_is_checked(metadata: Message, field: str) -> None:
    assert refusal_of(batch(1, [event(1), event(2, metadata=metadata)]))["path"] == f"$.events[1].metadata.{field}"


def test_metadata_of_a_sources_own_may_be_anything() -> None:
    own = {"transactionId": 17, "unchanged": ["bio"], "lsn": "0/16B3748", "nested": {"a": [1, None]}}
    received(as_bytes(batch(1, [event(1, metadata=own)])))
    assert validate_cdc_batch_message(batch(1, [event(1, metadata=own)])).events[0].metadata == own


def test_an_operation_that_is_refused_says_which_are_allowed() -> None:
    assert refusal_of(batch(1, [event(1, operation="UPSERT")]))["hint"] == "allowed: INSERT, UPDATE or DELETE"


@pytest.mark.parametrize(("sequences", "index"), [([1, 1], 1), ([1, 3, 2], 2), ([5, 4], 1), ([1, 2, 3, 3], 3)])
def test_sequences_rise_along_a_batch(sequences: list[int], index: int) -> None:
    found = refusal_of(batch(1, [event(sequence) for sequence in sequences]))
    assert found["path"] == f"$.events[{index}].sequence"
    assert str(sequences[index]) in found["message"]


def test_sequences_may_have_gaps() -> None:
    received(as_bytes(batch(1, [event(1), event(5), event(2**63 - 1, timestamp=0)])))


@pytest.mark.parametrize("value", ["events", {}, None, 1])
def test_events_must_be_a_list(value: Any) -> None:
    assert refusal_of(batch(1, []) | {"events": value})["path"] == "$.events"


def test_an_event_that_is_no_object_is_named_by_its_index() -> None:
    assert refusal_of(batch(1, [event(1)]) | {"events": [event(1), "two"]})["path"] == "$.events[1]"


def test_a_batch_has_a_longest_length() -> None:
    minimal = '{"sequence":%d,"timestamp":0,"operation":"DELETE","table":"t","rowId":"r"}'
    many = ",".join(minimal % number for number in range(1, EVENTS_MAX + 2))
    data = b'{"type":"cdc_batch","sourceDoId":"s","sequenceNumber":1,"events":[' + many.encode() + b"]}"
    assert refusal_of(data)["path"] == "$.events"


# --- the batch around the events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sourceDoId", ""),
        ("sourceDoId", "x" * 257),
        ("sourceDoId", 5),
        ("sourceDoId", None),
        ("sourceShardName", "x" * 257),
        ("sourceShardName", 5),
        ("sequenceNumber", -1),
        ("sequenceNumber", "1"),
        ("sequenceNumber", 1.5),
        ("sequenceNumber", 2**63),
        ("correlationId", 5),
        ("correlationId", "x" * 257),
        ("timestamp", "now"),
        ("isRetry", "no"),
        ("retryCount", -1),
        ("sizeBytes", -1),
        ("firstEventSequence", -1),
        ("lastEventSequence", "2"),
    ],
)
def test_a_bad_field_of_the_batch_is_named(field: str, value: Any) -> None:
    assert refusal_of(CDC_BATCH | {field: value})["path"] == f"$.{field}"


@pytest.mark.parametrize("field", ["sourceDoId", "sequenceNumber", "events"])
def test_a_missing_field_of_the_batch_is_named(field: str) -> None:
    found = refusal_of({key: value for key, value in CDC_BATCH.items() if key != field})
    assert found["path"] == f"$.{field}"
    assert "missing" in found["message"]


@pytest.mark.parametrize(("field", "value"), [("firstEventSequence", 40), ("lastEventSequence", 44)])
def test_announced_sequences_must_be_those_of_the_events(field: str, value: int) -> None:
    found = refusal_of(CDC_BATCH | {field: value})
    assert found["path"] == f"$.{field}"
    assert str(value) in found["message"]


def test_an_empty_batch_announces_nothing() -> None:
    received(as_bytes(batch(1, [], firstEventSequence=0, lastEventSequence=0)))


@pytest.mark.parametrize(
    "message",
    [CONNECT | {"capabilities": {"maxBatchSize": -1}}, CONNECT | {"capabilities": []}, CONNECT | {"sourceEpoch": -1}],
)
def test_a_bad_connect_is_refused(message: Message) -> None:
    assert refusal_of(message)["path"].startswith(("$.capabilities", "$.sourceEpoch"))


def test_check_events_tells_which_tables_a_batch_touches() -> None:
    message = decode_received(as_bytes(batch(1, [event(1, table="b"), event(2, table="a"), event(3, table="b")])))
    assert isinstance(message, BatchMessage)
    assert check_events(message) == ("a", "b")


# --- which stream a message speaks for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_message", "in_header", "expected"),
    [(None, "", ""), (None, "from-header", "from-header"), ("own", "from-header", "own"), ("", "from-header", "")],
)
def test_a_shard_named_in_the_message_counts_before_the_header(
    in_message: str | None, in_header: str, expected: str
) -> None:
    message = decode_received(as_bytes({"type": "connect", "sourceDoId": "s", "sourceShardName": in_message}))
    stream = stream_of(message, in_header)
    assert (stream.source, stream.shard) == ("s", expected)


# --- bytes -----------------------------------------------------------------------------------------------------------


def with_image(image: bytes, place: bytes = b"after") -> bytes:
    head = b'{"type":"cdc_batch","sourceDoId":"s","sequenceNumber":1,"events":[{"sequence":1,"timestamp":1,'
    return head + b'"operation":"DELETE","table":"t","rowId":"r","' + place + b'":' + image + b"}]}"


@pytest.mark.parametrize("place", [b"before", b"after", b"metadata"])
@pytest.mark.parametrize(
    "image",
    [
        b'{"a":"\xff"}',
        b'{"a":"\xc3"}',
        b'{"\xed\xa0\x80":1}',
        b'{"a":"\xf5\x80\x80\x80"}',
        b'{"a":"\xc0\xaf"}',
    ],
)
def test_an_image_in_invalid_utf_8_is_refused_with_the_place(image: bytes, place: bytes) -> None:
    data = with_image(image, place)
    found = refusal_of(data)
    assert "UTF-8" in found["message"]
    assert str(data.index(image) + min(i for i, byte in enumerate(image) if byte >= 0x80)) in found["message"]


@pytest.mark.parametrize(
    "image",
    [
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1,}',
        b'{"a":[1,]}',
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":1.}',
        b'{"a":1e}',
        b'{"a":tru}',
        b'{"a":"\\q"}',
        b'{"a":"\\ud800 "}',
        b'{"a":"\n"}',
        b"{'a':1}",
        b"{a:1}",
        b'{"a" 1}',
        b'{"a":1',
    ],
)
def test_an_image_that_is_no_json_is_refused(image: bytes) -> None:
    refusal_of(with_image(image))


@pytest.mark.parametrize(
    "image", ['{"a":"Zoë 漢字 🦆"}', '{"a":"\\u0000\\ud83e\\udd86"}', '{"a":-0.0,"b":1E+2}', '{"":{}}', '{"a":1,"a":2}']
)
def test_an_unusual_image_is_an_image(image: str) -> None:
    data = with_image(image.encode())
    received(data)
    validate_client_message(data)
    (change,) = decode_raw_batch(data).events
    assert bytes(change.after) == image.encode()  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**70), 10**400])
def test_a_whole_number_of_any_size_keeps_every_digit(number: int) -> None:
    data = as_bytes(batch(1, [event(1, after={"n": number})]))
    received(data)
    assert validate_cdc_batch_message(data).events[0].after == {"n": number}
    (change,) = decode_raw_batch(data).events
    assert json.loads(bytes(change.after)) == {"n": number}  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"1e-999"])
def test_a_number_beyond_what_a_float_holds_is_still_json(number: bytes) -> None:
    data = with_image(b'{"n":' + number + b"}")
    received(data)
    validate_client_message(data)


@pytest.mark.parametrize("brackets", [(b'{"a":', b"1", b"}"), (b"[", b"", b"]")], ids=["objects", "lists"])
def test_deep_nesting_is_refused_and_not_a_crash(brackets: tuple[bytes, bytes, bytes]) -> None:
    opening, inside, closing = brackets
    found = refusal_of(with_image(b'{"deep":' + opening * 100_000 + inside + closing * 100_000 + b"}"))
    assert "nested too deeply" in found["message"]
    assert "flatten" in found["hint"]


@pytest.mark.parametrize("data", [b"", b" ", b"null", b"[]", b'"connect"', b"1", b"{}", b"{", b'{"type":1}', b"\x00"])
def test_what_is_no_message_at_all_is_refused(data: bytes) -> None:
    refusal_of(data)


# --- what can still be read of a message that was refused ------------------------------------------------------------


def test_a_refused_message_can_still_be_answered_by_number_and_correlation_id() -> None:
    head = decode_head(as_bytes({"type": "cdc_batch", "sequenceNumber": 9, "correlationId": "c", "events": "no"}))
    assert (head.sequence_number, head.correlation_id, head.is_batch) == (9, "c", True)


@pytest.mark.parametrize("number", ["9", -1, 2**63, 2**70, 1.5, None, True, []])
def test_a_number_that_makes_no_sense_is_no_number_but_the_correlation_id_is_kept(number: Any) -> None:
    head = decode_head(as_bytes({"type": "cdc_batch", "sequenceNumber": number, "correlationId": "c"}))
    assert (head.sequence_number, head.correlation_id, head.is_batch) == (0, "c", False)


@pytest.mark.parametrize("correlation_id", [5, None, [], "x" * 257])
def test_a_correlation_id_that_makes_no_sense_is_not_echoed(correlation_id: Any) -> None:
    head = decode_head(as_bytes({"type": "connect", "sequenceNumber": 3, "correlationId": correlation_id}))
    assert (head.sequence_number, head.correlation_id, head.is_batch) == (3, msgspec.UNSET, False)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"sequenceNumber":', b"[" * 100_000])
def test_what_cannot_be_read_is_answered_without_a_number(data: bytes) -> None:
    head = decode_head(data)
    assert (head.sequence_number, head.correlation_id, head.is_batch) == (0, msgspec.UNSET, False)


# --- whatever comes --------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    sorted({name for message in [*CLIENT_MESSAGES, CDC_BATCH["events"][0], {"unchanged": 1}] for name in message})
)


@st.composite
def nearly_valid(draw: st.DrawFn) -> Message:
    """A valid message with a few of its values replaced, at any depth."""
    message: Message = json.loads(json.dumps(draw(st.sampled_from(CLIENT_MESSAGES))))
    for _ in range(draw(st.integers(0, 2))):
        place: Any = message
        while isinstance(place, dict | list) and place and draw(st.booleans()):
            inner = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[inner], dict | list):
                break
            place = place[inner]
        value = draw(json_values)
        if isinstance(place, dict):
            place[draw(st.sampled_from(sorted(place)) | field_names if place else field_names)] = value
        elif isinstance(place, list):
            place.insert(draw(st.integers(0, len(place))), value)
    return message


def verdict(check: Callable[[bytes], Any], data: bytes) -> list[dict[str, str]] | None:
    """None when the message is valid; anything else than a MessageValidationError ends the test."""
    try:
        check(data)
    except wire.MessageValidationError as error:
        return error.error_details()
    return None


@settings(max_examples=examples(150))
@given(data=st.binary(max_size=200))
@example(data=b'{"type":"\xff"}')
@example(data=b'\xef\xbb\xbf{"type":"heartbeat","sourceDoId":"s"}')
def test_any_bytes_are_valid_or_a_validation_error(data: bytes) -> None:
    for check in (received, validate_client_message, decode_server_message):
        verdict(check, data)
    decode_head(data)


@settings(max_examples=examples(150))
@given(value=json_values)
def test_any_json_is_valid_or_a_validation_error(value: Any) -> None:
    for check in (received, validate_client_message, decode_server_message):
        verdict(check, as_bytes(value))
    decode_head(as_bytes(value))


@settings(max_examples=examples(300))
@given(message=nearly_valid())
def test_the_receiver_and_the_public_function_agree_on_what_is_valid(message: Message) -> None:
    data = as_bytes(message)
    assert (verdict(received, data) is None) == (verdict(validate_client_message, data) is None)


@settings(max_examples=examples(300))
@given(message=nearly_valid())
def test_what_the_receiver_takes_the_readers_of_the_journal_can_read(message: Message) -> None:
    data = as_bytes(message)
    if verdict(received, data) is not None or message["type"] != "cdc_batch":
        return
    kept = decode_raw_batch(data)
    assert [change.sequence for change in kept.events] == [change["sequence"] for change in message["events"]]
    for change, sent in zip(kept.events, message["events"], strict=True):
        for image, name in ((change.before, "before"), (change.after, "after"), (change.metadata, "metadata")):
            assert (json.loads(bytes(image)) if isinstance(image, msgspec.Raw) else None) == sent.get(name)


@settings(max_examples=examples(150))
@given(message=nearly_valid(), cut=st.integers(0, 600), noise=st.binary(max_size=3))
def test_a_damaged_message_is_valid_or_a_validation_error(message: Message, cut: int, noise: bytes) -> None:
    data = as_bytes(message)
    data = data[:cut] + noise + data[cut + len(noise) :]
    assert (verdict(received, data) is None) == (verdict(validate_client_message, data) is None)


# --- what a source says of its tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"schema": [{"name": "id"}]}, "type"),
        ({"schema": [{"name": "", "type": "int"}]}, "length"),
        ({"ddl": "TRUNCATE TABLE users"}, "object"),
        ({"ddl": {"action": "explode"}}, "explode"),
        ({"ddl": {"action": "rename"}}, "`to`"),
        ({"ddl": {"action": "rename", "to": "a__changes"}}, "new name"),
        ({"ddl": {"action": "drop_column"}}, "`column`"),
        ({"schema": [{"name": "id", "type": "int", "isHint": "yes"}]}, "bool"),
        ({"schema": [{"name": "id", "type": "int", "comment": "x" * 1_025}]}, "length"),
        ({"rescued": {"body": {"size": 7, "reason": "large"}}}, "sha256"),
        ({"rescued": {"body": {"size": 7, "reason": "large", "sha256": "abc"}}}, "regex"),
    ],
)
def test_what_is_said_of_a_table_is_refused_where_it_says_nothing(metadata: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageValidationError, match=problem):
        validate_client_message(cdc_batch(metadata))


def test_a_source_may_create_a_table_guess_its_types_and_name_values_that_it_could_not_send() -> None:
    column = {"name": "at", "type": "timestamp", "nullable": True, "key": False, "comment": "as text", "isHint": True}
    validate_client_message(cdc_batch({"ddl": {"action": "create"}, "schema": [column]}))
    absent = {"size": 1_200_164, "sha256": "0" * 64, "reason": "larger than max_event_size"}
    validate_client_message(cdc_batch({"rescued": {"body": absent}}))


@pytest.mark.parametrize("schema", ["public", 7, {"name": "public"}, None, []])
def test_a_schema_of_the_sources_own_means_nothing(schema: Any) -> None:
    validate_client_message(cdc_batch({"schema": schema}))


def cdc_batch(metadata: dict[str, Any]) -> dict[str, Any]:
    event = {"sequence": 1, "timestamp": 1, "operation": "INSERT", "table": "users", "rowId": "1", "after": {}}
    return {"type": "cdc_batch", "sourceDoId": "s", "sequenceNumber": 1, "events": [event | {"metadata": metadata}]}
