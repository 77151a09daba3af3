"""Changes become events: what is accepted, what is refused, and how the refusal names it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.changes import Change
from dolake.client.outgoing import PIECE_EVENTS, Body, encode_piece, pieces
from dolake.errors import InvalidInput, MessageValidationError

ROW = {"table": "orders", "operation": "INSERT", "rowId": "7", "after": {"id": 7}}


def event_of(change: Change | dict[str, Any], sequence: int = 1) -> dict[str, Any]:
    (body,) = encode_piece((change,))
    event: dict[str, Any] = json.loads(body.numbered(body.sequence or sequence))
    return event


def test_a_change_and_its_mapping_become_the_same_event() -> None:
    change = Change("orders", "UPDATE", "7", {"id": 7}, {"id": 6}, {"transactionId": "t"}, 5, 1_700_000_000_000)
    mapping = {
        "table": "orders",
        "operation": "UPDATE",
        "row_id": "7",
        "after": {"id": 7},
        "before": {"id": 6},
        "metadata": {"transactionId": "t"},
        "sequence": 5,
        "timestamp_ms": 1_700_000_000_000,
    }
    assert event_of(change) == event_of(mapping)
    assert event_of(change) == {
        "sequence": 5,
        "timestamp": 1_700_000_000_000,
        "operation": "UPDATE",
        "table": "orders",
        "rowId": "7",
        "before": {"id": 6},
        "after": {"id": 7},
        "metadata": {"transactionId": "t"},
    }


def test_a_change_without_a_time_gets_the_present_one() -> None:
    before_ms = int(datetime.now(UTC).timestamp() * 1000)
    assert event_of(ROW)["timestamp"] >= before_ms


def test_values_are_written_as_msgspec_writes_them() -> None:
    @dataclass
    class Address:
        city: str

    row = {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "id": uuid.UUID(int=1),
        "bytes": b"\x00\x01",
        "address": Address("Bern"),
    }
    assert event_of({**ROW, "after": row})["after"] == {
        "at": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "bytes": "AAE=",
        "address": {"city": "Bern"},
    }


@pytest.mark.parametrize(
    ("bad", "path", "words"),
    [
        ({**ROW, "operation": "UPSERT"}, "changes[1].operation", "UPSERT"),
        ({**ROW, "rowId": 7.5}, "changes[1].rowId", "Expected `str`"),
        ({**ROW, "rowId": ""}, "changes[1].rowId", "length >= 1"),
        ({**ROW, "after": [1]}, "changes[1].after", "Expected `object | null`"),
        ({**ROW, "after": None}, "changes[1].after", "without an after image"),
        ({**ROW, "table": "a/b"}, "changes[1].table", "cannot be part of a name"),
        ({**ROW, "metadata": {"unchanged": "x"}}, "changes[1].metadata.unchanged", "Expected `array | null`"),
        ({**ROW, "after": {"x": object()}}, "changes[1]", "cannot be written as JSON"),
        ({**ROW, "after": {"x": "\ud800"}}, "changes[1]", "cannot be written as JSON"),
        ({**ROW, "befor": {}}, "changes[1]", "unknown key 'befor'"),
        ({**ROW, "row_id": "8"}, "changes[1]", "two spellings"),
        ({**ROW, "sequence": "8"}, "changes[1].sequence", "Expected `int`"),
        ({"operation": "DELETE", "rowId": "7"}, "changes[1].table", "missing required field `table`"),
        ("orders", "changes[1]", "Expected a Change or a mapping"),
    ],
)
def test_a_bad_change_is_refused_where_it_stands(bad: Any, path: str, words: str) -> None:
    with pytest.raises(MessageValidationError, match=r".") as refusal:
        encode_piece((ROW, bad))
    assert words in refusal.value.message
    assert refusal.value.path == path
    assert not refusal.value.retryable


def test_a_key_that_is_a_whole_number_means_its_text() -> None:
    assert event_of({**ROW, "rowId": 7})["rowId"] == "7"
    assert event_of(Change("orders", "DELETE", 7))["rowId"] == "7"  # type: ignore[arg-type]


def test_a_refusal_says_which_change_it_was() -> None:
    with pytest.raises(MessageValidationError, match=r"changes\[1\]\.rowId: Expected `str`, got `float`"):
        encode_piece((ROW, {**ROW, "rowId": 7.5}))


def test_a_row_that_contains_itself_is_refused() -> None:
    row: dict[str, Any] = {}
    row["row"] = row
    with pytest.raises(MessageValidationError):
        encode_piece(({**ROW, "after": row},))


def test_a_change_over_the_limit_of_the_server_is_refused() -> None:
    with pytest.raises(MessageValidationError, match="too large") as refusal:
        encode_piece(({**ROW, "after": {"x": "y" * 1000}},), event_bytes_max=1000)
    assert refusal.value.path == "changes[0]"


def test_the_index_counts_from_the_beginning_of_the_send() -> None:
    with pytest.raises(MessageValidationError) as refusal:
        encode_piece((ROW, {**ROW, "table": ""}), offset=500)
    assert refusal.value.path == "changes[501].table"


def test_sequences_rise_along_a_send() -> None:
    with pytest.raises(MessageValidationError, match="does not follow"):
        encode_piece(({**ROW, "sequence": 5}, {**ROW, "sequence": 5}))
    with pytest.raises(MessageValidationError, match="does not follow"):
        encode_piece(({**ROW, "sequence": 5},), offset=1, previous=5)


def test_a_sequence_below_one_is_refused() -> None:
    with pytest.raises(MessageValidationError, match=">= 1"):
        encode_piece(({**ROW, "sequence": -1},))


def test_either_all_changes_have_a_sequence_or_none_has() -> None:
    with pytest.raises(InvalidInput, match="some changes"):
        encode_piece((ROW, {**ROW, "sequence": 5}))


def test_a_list_stays_together_and_an_iterator_comes_in_pieces() -> None:
    def many() -> Iterator[dict[str, Any]]:
        yield from [ROW] * (PIECE_EVENTS + 1)

    assert [len(piece) for piece in pieces(list(many()))] == [PIECE_EVENTS + 1]
    assert [len(piece) for piece in pieces(many())] == [PIECE_EVENTS, 1]
    assert [len(piece) for piece in pieces(ROW)] == [1]
    assert list(pieces(iter(()))) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(row=st.dictionaries(st.text(), json_values), sequence=st.integers(1, 2**63 - 1))
def test_any_json_row_arrives_as_it_was_whatever_its_number(row: dict[str, Any], sequence: int) -> None:
    (body,) = encode_piece(({**ROW, "after": row},))
    assert isinstance(body, Body)
    event = json.loads(body.numbered(sequence))
    assert (event["after"], event["sequence"]) == (row, sequence)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_has_not_is_refused_and_never_sent_as_null(value: float) -> None:
    for row in ({"a": value}, {"a": {"b": [1, (2, value)]}}):
        with pytest.raises(MessageValidationError, match="no number that JSON has") as refusal:
            encode_piece([Change("t", "INSERT", "1", after={"ok": None}), Change("t", "INSERT", "2", after=row)])
        assert refusal.value.path == "changes[1]"
    assert encode_piece([Change("t", "INSERT", "1", after={"ok": None, "b": [None, 1.5]})])
