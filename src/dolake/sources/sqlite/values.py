"""SQLite's values as Python reads them, and keys as text. What a value is in the lake is decided in forms.py.

Pure. Promise: two rows of a table never have one key text.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from dolake.wire.messages import ROW_ID_LENGTH_MAX

_INFINITY = float("inf")
_LONG_MAX = 2**63
Value = int | float | str | bytes | None


class RawText(bytes):
    """What SQLite calls text and nobody can read as one."""


_LONG = {str, bytes, RawText}


def size_of(values: Sequence[Value]) -> int:
    """How large they are, about. Called for each row, so it is written for speed."""
    return 20 * len(values) + sum([len(value) for value in values if type(value) in _LONG])  # type: ignore[arg-type, misc]


@contextlib.contextmanager
def reading_any_text(db: sqlite3.Connection) -> Iterator[None]:
    """Somebody may have stored bytes as text that are none: meanwhile such values are read as bytes."""
    db.text_factory = _text_or_bytes
    try:
        yield
    finally:
        db.text_factory = str


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return RawText(raw)


def mark_for(value: object) -> str:
    """The placeholder by which a value is given back to SQLite as what it was."""
    return "+CAST(? AS TEXT)" if isinstance(value, RawText) else "?"


# --- keys ------------------------------------------------------------------------------------------------------------


def key_text(values: Sequence[Value], rowid: int | None, *, is_text: bool) -> str:
    """A row's key as text: itself where it is one number or text, a JSON list otherwise; never two keys in one text.

    `is_text`: the one key column holds no numbers, so that 7 and '7' cannot both be there.
    """
    if len(values) == 1:
        value = _as_integer(values[0])
        if type(value) is int:
            return str(value)
        if type(value) is str and is_text and value and value[0] not in "[{" and len(value) <= ROW_ID_LENGTH_MAX:
            return value
    if not values or None in values:
        # SQLite allows NULL in a primary key, more than once; only the rowid then tells rows apart.
        return str(rowid) if not values else f'{{"rowid":{rowid}}}'
    text = json.dumps([_in_list(value) for value in values], ensure_ascii=False, separators=(",", ":"))
    if len(text) > ROW_ID_LENGTH_MAX:
        return f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}'
    return text


def _as_integer(value: Value) -> Value:
    """To SQLite 1 and 1.0 are one key."""
    if type(value) is float and value.is_integer() and -_LONG_MAX <= value < _LONG_MAX:
        return int(value)
    return value


def _in_list(value: Value) -> Any:
    value = _as_integer(value)
    if isinstance(value, bytes):
        return {"blob": base64.b64encode(value).decode()}
    if type(value) is float and value in (_INFINITY, -_INFINITY):
        return {"real": "Infinity" if value > 0 else "-Infinity"}
    return value
