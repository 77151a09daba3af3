"""Values of a column as text, for a column that becomes one of text.

From files.py, when old rows are written anew. Pure. Promise: each text says the same value as JSON would, and a null
stays null.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_encode = msgspec.json.Encoder().encode
_LAST_ZEROS, _LAST_POINT = r"(\.\d*?)0+(Z?)$", r"\.(Z?)$"


def as_text(array: pa.Array) -> pa.Array:
    """The text of each value: `true`, `12.50`, `2026-01-31`, `2026-01-31 10:00:00`, `2026-01-31T10:00:00Z`, Base64."""
    type_ = array.type
    if pa.types.is_floating(type_):
        return _by_value(array, lambda value: _encode(value).decode())
    if pa.types.is_binary(type_):
        return _by_value(array, lambda value: base64.b64encode(value).decode())
    if isinstance(type_, pa.BaseExtensionType):  # a uuid
        return _by_value(array, str)
    text = array.cast(pa.string())
    if pa.types.is_timestamp(type_):
        text = pc.replace_substring_regex(text, _LAST_ZEROS, r"\1\2")
        text = pc.replace_substring_regex(text, _LAST_POINT, r"\1")
        return text if type_.tz is None else pc.replace_substring(text, " ", "T", max_replacements=1)
    return text


def _by_value(array: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.string())
