"""The state of a source, kept by the lake beside the stream's changes: a JSON object, changed by merge patches.

From the client and the receiver, which check a patch; to the journal, which keeps the state of each stream. Pure.
Promise: `merge` does what RFC 7386 says for objects: a null removes a key, an object is merged, all else replaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dolake.errors import MessageValidationError

STATE_MAX_BYTES = 256 * 1024
"""The largest state of one stream, as JSON without spaces."""
STATE_DEPTH_MAX = 32
"""How many objects and arrays may lie in one another, the state itself included."""
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
_PATH = "$.sourceState"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def encode_patch(patch: object) -> bytes:
    """The patch as JSON; raises MessageValidationError for what is no JSON object, too deep or too large."""
    if not isinstance(patch, Mapping):
        found = type(patch).__name__
        raise MessageValidationError(f"Expected `object`, got `{found}`", path=_PATH, hint="send a JSON object")
    _check(patch, STATE_DEPTH_MAX)
    try:
        encoded = _encode(patch)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageValidationError(f"cannot be written as JSON: {error}", path=_PATH) from None
    check_size(encoded)
    return encoded


def check_size(state: bytes) -> None:
    """Refuse a patch, or a state that a patch would lead to, that is too large to keep."""
    if len(state) > STATE_MAX_BYTES:
        raise MessageValidationError(
            f"a state of {len(state)} bytes is too large",
            path=_PATH,
            hint=f"a stream's state takes at most {STATE_MAX_BYTES} bytes as JSON; remove keys with null",
        )


def decode_state(state: bytes) -> dict[str, Any]:
    """The state as an object; empty bytes are the state of a stream that has none."""
    return _decode(state) if state else {}


def merge(state: bytes, patch: bytes) -> bytes:
    """The state after this patch."""
    return _encode(_merged(decode_state(state), decode_state(patch)))


def _merged(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    found = dict(target)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            former = found.get(key)
            found[key] = _merged(former if isinstance(former, dict) else {}, value)
        else:
            found[key] = value
    return found


def _check(value: object, depth_left: int) -> None:
    """Refuse what could not be read back as it was: in JSON, in MessagePack, or by any reader with 64-bit numbers."""
    if isinstance(value, Mapping | list | tuple):
        if not depth_left:
            raise MessageValidationError(
                f"nested deeper than {STATE_DEPTH_MAX} levels", path=_PATH, hint="flatten the state"
            )
        if isinstance(value, Mapping):
            for key in value:
                if type(key) is not str:
                    raise MessageValidationError(f"the key {key!r} is no text", path=_PATH, hint="name keys with texts")
        for each in value.values() if isinstance(value, Mapping) else value:
            _check(each, depth_left - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise MessageValidationError(f"{value} is no number that JSON has", path=_PATH, hint="send it as a text")
    elif type(value) is int and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        raise MessageValidationError(f"the number {value} has more than 64 bits", path=_PATH, hint="send it as a text")
