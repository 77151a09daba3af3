"""The form of a SQLite column: which type it has in the lake, and how its values are written there.

SQLite does not enforce a declared type, so the values decide, and the declared type is a hint: what a time or a boolean
may look like, and what an empty column is. One column has one form. Where its values do not agree, it is text.

From the copy and the change reader of this folder, which show values to `Observed`. Pure. Promise: a form that was
chosen from values holds every one of them exactly; a later value that does not fit goes as it is, and the lake keeps
it in `_rescued`.
"""

from __future__ import annotations

import base64
import functools
import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dolake.sources.sqlite.times import Unit, is_within, iso_text, kind_of_text, text_of_number, unit_of_real
from dolake.tables.schema import EXACT_MAX
from dolake.tables.types import PRECISION_MAX, decimal_of, parse_type

ANY = "any"
"""No type: the lake infers one from the first values."""
Value = int | float | str | bytes | None

_TIMES = ("date", "timestamp", "timestamptz")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_BYTES = 16
_SIZE = re.compile(r"\([^)]*\)")
_DECIMAL = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_BOOLEANS = {
    "0/1": ("0", "1"),
    "f/t": ("f", "t"),
    "false/true": ("false", "true"),
    "n/y": ("n", "y"),
    "no/yes": ("no", "yes"),
}
_KIND_OF_WORD = {word: kind for kind, words in _BOOLEANS.items() for word in words}
_WORDS = {
    "integer": "integers",
    "real": "numbers with a fraction",
    "infinite": "infinity",
    "seconds": "seconds since 1970 with a fraction",
    "julian": "Julian days with a fraction",
    "text": "text",
    "number": "numbers as text",
    "date": "ISO 8601 dates",
    "local": "ISO 8601 times without a zone",
    "zoned": "ISO 8601 times with a zone",
    "uuid": "UUIDs as text",
    "blob": "blobs",
    "uuid_blob": "blobs of 16 bytes",
    "bytes": "text that is not valid UTF-8",
}
"""What the kinds of values are called in a comment; the words of booleans are their own names."""
_TEXT_KINDS = {"text", "number", "date", "local", "zoned", "uuid", *_BOOLEANS}
_COMMENTS_MAX = 200


class Observed(msgspec.Struct, omit_defaults=True):
    """What the values of one column have been so far, in a few numbers. NULL says nothing."""

    kinds: dict[str, int] = {}
    """How many values of each kind; which kinds are told apart depends on the declared type."""
    low: int | None = None
    high: int | None = None
    """The smallest and the largest integer."""
    whole: int = 0
    scale: int = 0
    """The most digits before and after the point, of numbers in a decimal column that are no integers."""

    @property
    def is_empty(self) -> bool:
        return not self.kinds

    def add(self, declared: str, values: Iterable[Value]) -> None:
        """Take in more values of a column with this declared type."""
        hint = hint_of(declared)
        parts: dict[type, list[Any]] = {}
        values = list(values)
        for kind in set(map(type, values)) - {type(None)}:
            parts[kind] = [value for value in values if type(value) is kind]
        for kind, part in parts.items():
            if kind is int:
                self._add_integers(part)
            elif kind is float:
                self._add_reals(hint, part)
            elif kind is str:
                self._count(_kinds_of_texts(hint, part))
            elif kind is bytes:
                self._count(Counter("uuid_blob" if len(value) == _UUID_BYTES else "blob" for value in part))
            else:
                self._count({"bytes": len(part)})
        if decimal_of(hint):
            self._measure([str(value) for value in parts.get(str, []) if _DECIMAL.fullmatch(value)])
            self._measure([repr(value) for value in parts.get(float, []) if math.isfinite(value)])

    def merge(self, other: Observed) -> None:
        self._count(other.kinds)
        self.low = min((each for each in (self.low, other.low) if each is not None), default=None)
        self.high = max((each for each in (self.high, other.high) if each is not None), default=None)
        self.whole, self.scale = max(self.whole, other.whole), max(self.scale, other.scale)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Observed:
        return msgspec.json.decode(text, type=cls)

    def _count(self, kinds: dict[str, int]) -> None:
        self.kinds = dict(Counter(self.kinds) + Counter(kinds))

    def _add_integers(self, values: list[int]) -> None:
        self.merge(Observed({"integer": len(values)}, min(values), max(values)))

    def _add_reals(self, hint: str, values: list[float]) -> None:
        if hint in _TIMES:
            self._count(Counter(unit_of_real(value) or _kind_of_real(value) for value in values))
        else:
            self._count(Counter(map(_kind_of_real, values)))

    def _measure(self, texts: Iterable[str]) -> None:
        for text in texts:
            whole, scale = _digits(text)
            self.whole, self.scale = max(self.whole, whole), max(self.scale, scale)


def _kind_of_real(value: float) -> str:
    return "real" if math.isfinite(value) else "infinite"


def _kinds_of_texts(hint: str, texts: list[str]) -> dict[str, int]:
    if hint in _TIMES:
        return Counter(kind_of_text(text) or "text" for text in texts)
    if hint == "boolean":
        return Counter(_KIND_OF_WORD.get(text.lower(), "text") for text in texts)
    if hint == "uuid":
        return Counter("uuid" if _UUID.fullmatch(text) else "text" for text in texts)
    if decimal_of(hint):
        return Counter("number" if _DECIMAL.fullmatch(text) else "text" for text in texts)
    return {"text": len(texts)}


def _digits(text: str) -> tuple[int, int]:
    """How many digits a number has before and after its point."""
    found = Decimal(text).as_tuple()
    exponent = int(found.exponent)
    scale = max(-exponent, 0)
    return max(len(found.digits) + exponent, 0), scale


# --- what a declared type hints at -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1_024)
def hint_of(declared: str) -> str:
    """The type that a declaration means to people; after that, by SQLite's own rules of affinity; or `any`."""
    word = " ".join(declared.lower().split())
    bare = " ".join(_SIZE.sub(" ", word).split())
    for hint, words in _DECLARED.items():
        if bare in words:
            return hint
    if bare in ("decimal", "numeric", "number", "dec"):
        return parse_type("decimal" + "".join(_SIZE.findall(word))) or ANY
    if "int" in word:
        return "long"
    if any(part in word for part in ("char", "clob", "text")):
        return "string"
    if "blob" in word:
        return "binary"
    return "double" if any(part in word for part in ("real", "floa", "doub")) else ANY


_DECLARED = {
    "boolean": ("boolean", "bool"),
    "date": ("date",),
    "timestamp": ("datetime", "datetime2", "smalldatetime", "timestamp", "timestamp without time zone"),
    "timestamptz": ("timestamptz", "timestamp with time zone", "datetimeoffset"),
    "uuid": ("uuid", "guid", "uniqueidentifier"),
    "string": ("json", "jsonb", "time"),
    "binary": ("binary", "varbinary", "bytea"),
}


# --- forms -----------------------------------------------------------------------------------------------------------


class Form(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one form of a column."""

    type: str
    """In Iceberg's word, or `any`."""
    comment: str = ""
    """For people, where the type alone does not say how the file has the values."""
    is_hint: bool = False
    """No value was seen yet, so that the declared type is all there is."""
    reading: str = ""
    """How `convert` reads a value; empty where it goes as it is."""

    def convert(self, value: Value) -> Any:
        """The value as JSON has it. One that does not fit goes as it is; a blob as SQLite writes it, `X'00FF'`."""
        return value if value is None else _plain(_CONVERTERS[self.reading](value))


def choose(declared: str, observed: Observed) -> Form:
    """The form in which all values that were observed are exact; as declared where there was none."""
    hint = hint_of(declared)
    if observed.is_empty:
        return Form(hint, is_hint=True, reading=_READING_OF_HINT.get(hint, ""))
    kinds = set(observed.kinds)
    if hint in _TIMES:
        found = _form_of_times(hint, kinds, observed)
    elif hint == "boolean":
        found = _form_of_booleans(kinds, observed)
    elif hint == "uuid":
        found = _form_of_uuids(kinds)
    elif decimal_of(hint):
        found = _form_of_decimals(declared, kinds, observed)
    else:
        found = None
    return found or _form_of_values(hint, kinds, observed)


def _form_of_times(hint: str, kinds: set[str], observed: Observed) -> Form | None:
    match sorted(kinds):
        case ["date"]:
            return Form("date", "" if hint == "date" else _WORDS["date"])
        case ["local"]:
            return Form("timestamp", "" if hint == "timestamp" else _WORDS["local"])
        case ["zoned"]:
            return Form("timestamptz", "" if hint == "timestamptz" else _WORDS["zoned"], reading="zoned")
        case ["integer"] if _are_times(observed, "milliseconds"):
            return Form("timestamptz", "epoch milliseconds", reading="milliseconds")
        case ["integer"] | ["integer", "seconds"] | ["seconds"] if _are_times(observed, "seconds"):
            return Form("timestamptz", "epoch seconds", reading="seconds")
        # Whole numbers alone are not taken for Julian days: they could be anything.
        case ["integer", "julian"] | ["julian"] if _are_times(observed, "julian"):
            return Form("timestamptz", "Julian days", reading="julian")
    return None


def _are_times(observed: Observed, unit: Unit) -> bool:
    return observed.low is None or observed.high is None or is_within(unit, observed.low, observed.high)


def _form_of_booleans(kinds: set[str], observed: Observed) -> Form | None:
    if kinds <= {"integer", "0/1"}:
        are_bits = observed.low in (0, 1, None) and observed.high in (0, 1, None)
        return Form("boolean", reading="0/1") if are_bits else None
    (kind, *others) = kinds
    return None if others or kind not in _BOOLEANS else Form("boolean", f"the text {kind}", reading=kind)


def _form_of_uuids(kinds: set[str]) -> Form | None:
    match sorted(kinds):
        case ["uuid"]:
            return Form("uuid")
        case ["uuid_blob"]:
            return Form("uuid", _WORDS["uuid_blob"], reading="uuid_blob")
    return None


def _form_of_decimals(declared: str, kinds: set[str], observed: Observed) -> Form | None:
    """Money is never rounded: the scale grows to what the values have, and the digits before the point with them."""
    precision, scale = decimal_of(hint_of(declared)) or (0, 0)
    if not kinds <= {"integer", "real", "number"}:
        return None
    integers = max(len(str(abs(each))) for each in (observed.low or 0, observed.high or 0))
    whole = max(precision - scale, observed.whole, integers)
    scale = max(scale, observed.scale)
    if whole + scale > PRECISION_MAX:
        return _text_form(kinds, observed)
    is_wider = whole + scale > precision
    return Form(f"decimal({whole + scale}, {scale})", f"wider than the declared {declared}" if is_wider else "")


def _form_of_values(hint: str, kinds: set[str], observed: Observed) -> Form:
    """By the values alone."""
    if hint == "string" or kinds == {"text"}:
        return Form("string")
    if kinds == {"integer"}:
        return Form("long")
    if kinds <= {"integer", "real", "infinite", "seconds", "julian"}:
        is_exact = (observed.low or 0) >= -EXACT_MAX and (observed.high or 0) <= EXACT_MAX
        return Form("double") if is_exact else _text_form(kinds, observed)
    if kinds <= {"blob", "uuid_blob"}:
        return Form("binary", reading="binary")
    return _text_form(kinds, observed)


def _text_form(kinds: set[str], observed: Observed) -> Form:
    """The values do not agree on anything but that all of them can be written."""
    words = [f"{_WORDS.get(kind, f'the text {kind}')} ({observed.kinds[kind]})" for kind in sorted(kinds)]
    reading = "" if kinds <= _TEXT_KINDS else "text"
    return Form("string", f"values of several kinds: {', '.join(words)}"[:_COMMENTS_MAX], reading=reading)


# --- values ----------------------------------------------------------------------------------------------------------


def row_converter(names: Sequence[str], forms: Sequence[Form]) -> Callable[[Sequence[Value]], dict[str, Any]]:
    """The function that makes a JSON object of a row's values."""
    special = [
        (name, index, _CONVERTERS[form.reading])
        for index, (name, form) in enumerate(zip(names, forms, strict=True))
        if form.reading
    ]

    def convert(values: Sequence[Value]) -> dict[str, Any]:
        made: dict[str, Any] = dict(zip(names, values, strict=True))
        for name, index, reader in special:
            if (value := values[index]) is not None:
                made[name] = reader(value)
        if not set(map(type, made.values())) <= _PLAIN_TYPES or math.inf in values or -math.inf in values:
            return {name: _plain(value) for name, value in made.items()}
        return made

    return convert


def schema_column(name: str, form: Form, *, nullable: bool, key: bool) -> dict[str, Any]:
    """The column as `metadata.schema` of a change declares it: SQLite enforces no type, so each one is a guess."""
    column: dict[str, Any] = {"name": name, "type": form.type, "nullable": nullable, "key": key}
    if form.comment:
        column["comment"] = form.comment
    if not key:
        column["isHint"] = True
    return column


_PLAIN_TYPES = {int, float, str, bool, type(None)}


def _plain(value: Any) -> Any:
    """A blob where none is expected is what SQLite itself would write for it; infinity is a word."""
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if type(value) is float and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _as_it_is(value: Value) -> Any:
    return value


def _from_number(unit: Unit, value: Value) -> Any:
    text = text_of_number(value, unit) if isinstance(value, int | float) and math.isfinite(value) else None
    return value if text is None else text


def _from_zoned(value: Value) -> Any:
    return iso_text(value) if isinstance(value, str) else value


def _from_word(kind: str, value: Value) -> Any:
    no, yes = _BOOLEANS[kind]
    if isinstance(value, str):
        return {no: False, yes: True}.get(value.lower(), value)
    return value


def _from_bit(value: Value) -> Any:
    return bool(value) if value in (0, 1) else _from_word("0/1", value)


def _from_uuid_blob(value: Value) -> Any:
    is_uuid = type(value) is bytes and len(value) == _UUID_BYTES
    return str(uuid.UUID(bytes=value)) if is_uuid else value  # type: ignore[arg-type]


def _from_bytes(value: Value) -> Any:
    """Text in a column of blobs goes as its bytes: as it is, some of it would be read as Base64."""
    if isinstance(value, str):
        value = value.encode()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _as_text(value: Value) -> Any:
    """A number with as few digits as give it back."""
    return str(value) if isinstance(value, int | float) and math.isfinite(value) else value


_CONVERTERS: dict[str, Callable[[Value], Any]] = {
    "": _as_it_is,
    "0/1": _from_bit,
    "zoned": _from_zoned,
    "uuid_blob": _from_uuid_blob,
    "binary": _from_bytes,
    "text": _as_text,
    **{unit: functools.partial(_from_number, unit) for unit in ("seconds", "milliseconds", "julian")},
    **{kind: functools.partial(_from_word, kind) for kind in _BOOLEANS if kind != "0/1"},
}
_READING_OF_HINT = {"boolean": "0/1", "timestamptz": "zoned", "uuid": "uuid_blob", "binary": "binary"}
