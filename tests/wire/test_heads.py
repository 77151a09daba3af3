"""Which rows a batch touches: the same as its events say, in either form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dolake.wire.binary import decode_raw_batch, pack
from dolake.wire.columns import ColumnBatch, columns_of
from dolake.wire.heads import decode_heads
from dolake.wire.messages import BatchHead

EVENTS: list[dict[str, Any]] = [
    {"operation": "INSERT", "table": "a", "rowId": "1", "after": {"rowId": "not this", "table": "b", "metadata": 1}},
    {"operation": "UPDATE", "table": "b", "rowId": "ü\u2028", "before": {}, "after": {"x": [1, {"y": None}]}},
    {"operation": "DELETE", "table": "a", "rowId": '"\\', "before": {"n": 1}},
]


def batch(events: list[dict[str, Any]]) -> bytes:
    numbered = [{"sequence": at, "timestamp": 0, **event} for at, event in enumerate(events, 1)]
    return msgspec.json.encode({"type": "cdc_batch", "sourceDoId": "s", "sequenceNumber": 1, "events": numbered})


def in_columns(payload: bytes) -> bytes:
    raw = decode_raw_batch(payload)
    head = {name: getattr(raw, name) for name in BatchHead.__struct_fields__}
    return pack(ColumnBatch(events=columns_of(raw.events), **head))


@pytest.mark.parametrize("is_binary", [False, True])
def test_heads_are_those_of_the_events(is_binary: bool) -> None:
    payload = in_columns(batch(EVENTS)) if is_binary else batch(EVENTS)
    heads, events = decode_heads(payload), decode_raw_batch(payload).events
    assert [(event.table, event.row_id) for event in events] == list(zip(heads.tables, heads.all_row_ids, strict=True))
    assert heads.row_ids("a") == ["1", '"\\']
    assert heads.row_ids("a", first=1) == ['"\\']
    assert not heads.has_metadata


@pytest.mark.parametrize("is_binary", [False, True])
def test_heads_say_whether_a_change_has_metadata(is_binary: bool) -> None:
    payload = batch([*EVENTS, EVENTS[0] | {"metadata": {"transactionId": "t"}}])
    assert decode_heads(in_columns(payload) if is_binary else payload).has_metadata


def test_a_name_that_is_written_with_escapes_is_the_same_name() -> None:
    plain = batch([EVENTS[0] | {"metadata": {"transactionId": "t"}}])
    written = plain.replace(b'"metadata":{', b'"\\u006detadata":{').replace(b'"rowId":"1"', b'"row\\u0049d":"\\u0031"')
    assert written != plain
    heads = decode_heads(written)
    assert heads.has_metadata
    assert heads.row_ids("a") == ["1"]
