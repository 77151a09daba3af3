"""SQLite's values in the lake's words: types by what a column declares, values as JSON holds them, keys as text.

Pure but for a look at some values where a declared type promises what SQLite does not enforce. To source.py. Promise:
nothing is changed on its way: what JSON cannot hold is text that says what it was, and lands in `_rescued`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dolake.tables.schema import timestamp_us
from dolake.tables.types import decimal_of, parse_type
from dolake.wire.messages import ROW_ID_LENGTH_MAX

ANY = "any"
_SAMPLE_ROWS = 1_000
_INFINITY = float("inf")
_UUID_BYTES = 16
_LONG_MAX = 2**63
Value = int | float | str | bytes | None


class RawText(bytes):
    """What SQLite calls text and nobody can read as one."""


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


# --- types -----------------------------------------------------------------------------------------------------------


def lake_type(db: sqlite3.Connection, table: str, column: str, declared: str) -> str:
    """What a column is in the lake: as it is declared, if the first rows do not say otherwise."""
    word = type_of_declaration(declared)
    if word in ("string", "long", "double"):
        return word
    seen = _kinds_in(db, table, column)
    if word == ANY:
        return "binary" if seen == {"blob"} else ANY
    if word == "binary":
        return word if seen <= {"blob", "text"} else ANY
    if word in ("date", "timestamp", "timestamptz", "uuid") and seen - {"text", "blob"}:
        return ANY  # times as numbers are as common as texts: whole numbers are better than a column of rescued values
    if word in ("timestamp", "timestamptz"):
        return _type_of_times(db, table, column, word)
    if word == "boolean" and not _are_booleans(db, table, column):
        return ANY
    if (decimal := decimal_of(word)) and not _fit_decimal(db, table, column, decimal[1]):
        return ANY
    return word


def type_of_declaration(declared: str) -> str:
    """By SQLite's own rules of affinity, after the words that mean more to people than to SQLite."""
    word = " ".join(declared.lower().split())
    bare = re.sub(r"\s*\(.*\)", "", word)
    if bare in ("boolean", "bool"):
        return "boolean"
    if bare in ("date", "timestamptz", "uuid"):
        return bare
    if bare in ("datetime", "timestamp", "timestamp without time zone"):
        return "timestamp"
    if bare == "timestamp with time zone":
        return "timestamptz"
    if bare == "guid":
        return "uuid"
    if bare in ("json", "jsonb", "time"):
        return "string"
    if bare in ("decimal", "numeric", "money"):
        return parse_type(word) if "(" in word and parse_type(word) else ANY  # type: ignore[return-value]
    if "int" in word:
        return "long"
    if any(part in word for part in ("char", "clob", "text")):
        return "string"
    if "blob" in word or bare in ("binary", "varbinary", "bytea"):
        return "binary"
    return "double" if any(part in word for part in ("real", "floa", "doub")) else ANY


def _sample(column: str, table: str) -> str:
    name, of = (part.replace('"', '""') for part in (column, table))
    return f'(SELECT "{name}" AS v FROM "{of}" LIMIT {_SAMPLE_ROWS}) WHERE v IS NOT NULL'


def _kinds_in(db: sqlite3.Connection, table: str, column: str) -> set[str]:
    return {row[0] for row in db.execute(f"SELECT DISTINCT typeof(v) FROM {_sample(column, table)}")}


def _type_of_times(db: sqlite3.Connection, table: str, column: str, word: str) -> str:
    """With a zone or without one, as the values are."""
    with reading_any_text(db):
        texts = [row[0] for row in db.execute(f"SELECT CAST(v AS TEXT) FROM {_sample(column, table)}")]
    if any(type(text) is not str for text in texts):
        return ANY
    if all(timestamp_us(text, has_zone=word == "timestamptz") is not None for text in texts):
        return word
    other = "timestamp" if word == "timestamptz" else "timestamptz"
    return other if all(timestamp_us(text, has_zone=other == "timestamptz") is not None for text in texts) else ANY


def _are_booleans(db: sqlite3.Connection, table: str, column: str) -> bool:
    return not db.execute(f"SELECT 1 FROM {_sample(column, table)} AND v NOT IN (0, 1) LIMIT 1").fetchone()


def _fit_decimal(db: sqlite3.Connection, table: str, column: str, scale: int) -> bool:
    rows = db.execute(f"SELECT v FROM {_sample(column, table)} AND typeof(v) != 'integer'")
    return all(isinstance(v, float) and len(repr(v).partition(".")[2]) <= scale and "e" not in repr(v) for (v,) in rows)


# --- values ----------------------------------------------------------------------------------------------------------

Image = Callable[[Sequence[Value]], dict[str, Any]]


def image_maker(names: Sequence[str], types: Sequence[str]) -> Image:
    """The function that makes the values of a row into a JSON object."""
    special = [
        (name, index, _CONVERTERS[type_])
        for index, (name, type_) in enumerate(zip(names, types, strict=True))
        if type_ in _CONVERTERS
    ]

    def image(values: Sequence[Value]) -> dict[str, Any]:
        made: dict[str, Any] = dict(zip(names, values, strict=True))
        for name, index, convert in special:
            made[name] = convert(values[index])
        kinds = set(map(type, made.values()))
        if bytes in kinds or RawText in kinds or (float in kinds and (_INFINITY in values or -_INFINITY in values)):
            for name, value in made.items():
                made[name] = _plain(value)
        return made

    return image


def _plain(value: Any) -> Any:
    """A blob where none is declared is what SQLite itself would write for it; infinity is a word."""
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if type(value) is float and value in (_INFINITY, -_INFINITY):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _boolean(value: Value) -> Any:
    return bool(value) if type(value) is int and value in (0, 1) else _plain(value)


def _binary(value: Value) -> Any:
    if isinstance(value, str):
        value = value.encode()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _plain(value)


def _uuid(value: Value) -> Any:
    if isinstance(value, bytes) and len(value) == _UUID_BYTES:
        return str(uuid.UUID(bytes=value))
    return _plain(value)


_CONVERTERS: dict[str, Callable[[Value], Any]] = {"boolean": _boolean, "binary": _binary, "uuid": _uuid}


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
