"""The state of a source: what a merge patch does to it, and which patches are refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.errors import MessageValidationError
from dolake.wire.source_state import (
    STATE_DEPTH_MAX,
    STATE_MAX_BYTES,
    check_size,
    decode_state,
    encode_patch,
    merge,
)
from tests.support.property import examples


def merged(state: dict[str, Any], *patches: dict[str, Any]) -> dict[str, Any]:
    found = encode_patch(state)
    for patch in patches:
        found = merge(found, encode_patch(patch))
    return decode_state(found)


@pytest.mark.parametrize(
    ("state", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, {}, {"a": "foo"}),
        ({"e": None}, {"a": 1}, {"a": 1, "e": None}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 1}, {"a": {"b": None, "c": 2}}, {"a": {"c": 2}}),
    ],
)
def test_a_patch_does_what_rfc_7386_says(
    state: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert decode_state(merge(json.dumps(state).encode(), encode_patch(patch))) == expected


def test_a_stream_without_a_state_has_an_empty_one() -> None:
    assert decode_state(b"") == {}
    assert merge(b"", b'{"a":{"b":1,"c":null}}') == b'{"a":{"b":1}}'


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
patches = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@settings(max_examples=examples(200))
@given(history=st.lists(patches, max_size=6), first=st.integers(0, 6))
def test_patches_that_are_sent_again_in_their_order_change_nothing(history: list[dict[str, Any]], first: int) -> None:
    assert merged({}, *history, *history[first:]) == merged({}, *history)


@settings(max_examples=examples(200))
@given(history=st.lists(patches, max_size=6))
def test_a_state_is_the_same_after_json_and_after_messagepack(history: list[dict[str, Any]]) -> None:
    state = merged({}, *history)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state)) == state
    assert decode_state(encode_patch(state)) == state


def nested(depth: int) -> dict[str, Any]:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return dict(found)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ([1], "Expected `object`, got `list`"),
        (nested(STATE_DEPTH_MAX + 1), f"nested deeper than {STATE_DEPTH_MAX} levels"),
        ({"a": float("nan")}, "nan is no number that JSON has"),
        ({"a": [2**64]}, "has more than 64 bits"),
        ({"a": {1: 2}}, "the key 1 is no text"),
        ({"a": object()}, "cannot be written as JSON"),
        ({"a": "x" * STATE_MAX_BYTES}, "a state of 262152 bytes is too large"),
    ],
)
def test_what_cannot_be_a_state_is_refused_in_words(patch: Any, message: str) -> None:
    with pytest.raises(MessageValidationError, match=message) as refusal:
        encode_patch(patch)
    assert refusal.value.path == "$.sourceState"


def test_the_deepest_and_the_largest_state_are_taken() -> None:
    assert decode_state(encode_patch(nested(STATE_DEPTH_MAX))) == nested(STATE_DEPTH_MAX)
    check_size(encode_patch({"a": "x" * (STATE_MAX_BYTES - 8)}))
