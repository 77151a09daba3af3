"""Rows as JSON become typed Arrow columns: fast where a value is plain, careful where it is not, and never with loss.

From tasks.py, in Spark's Python workers, which hands over images as the journal keeps them and writes the columns to
files. Promise: each value of a row is in its column exactly, or its JSON text is in `rescued`, or the answer says which
columns the table lacks. tables/schema.py has the rules.

There are two ways to the same answer. The slow one is the meaning: msgspec takes a row apart into names and JSON texts,
and each text is fitted to its column. The fast one takes thousands of rows apart at once (split.py) and lets Arrow
convert the plain texts of a column together; a text that is not plain is fitted alone, as above. Where the fast way
doubts, the rows are halved, and the last few go slowly: one odd row makes only its neighbours slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolake.pipeline.split import Bools, Bytes, Doubt, Ints, Names, Split, find_columns, names_of, split
from dolake.tables.declaration import type_for, type_for_both
from dolake.tables.fitting import Misfit, NewField, decode_written, fitter
from dolake.tables.schema import (
    EXACT_MAX,
    LEAVES_MAX,
    LONG_MIN,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
    Seen,
    infer,
    wider_type,
)
from dolake.tables.types import (
    Columns,
    Field,
    ListType,
    StructType,
    Type,
    can_be_added,
    column_name,
    count_leaves,
    decimal_of,
    source_name,
)

CHUNK_ROWS = 8_192
"""Half as many cost a tenth more each, because numpy is called more often; more do not fit the processor's cache."""
_SLOW_ROWS = 64
"""Halving fewer rows than this costs more than reading them slowly."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What became of the images, row by row in their order.

    `columns` has exactly the known columns, absent values null. It is None when `unknown` has fields: then the table
    must grow (tables/schema.py) and the rows be read again. `rescued` has a JSON object of the values that do not fit,
    or null. `unreadable` are the rows whose image is no JSON object: their columns are null, the caller keeps them.
    """

    columns: pa.RecordBatch | None
    rescued: pa.StringArray
    unknown: Seen
    unreadable: list[int]
    contradicted: dict[str, Contradiction] = field(default_factory=dict)
    """Columns with a guessed type that some of their values do not fit; these values are in `rescued`."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Values that do not fit the guessed type of a column: the type that they ask for, and how many they are."""

    type: str
    count: int = 1

    def __add__(self, other: Contradiction) -> Contradiction:
        return Contradiction(type_for_both(self.type, other.type), self.count + other.count)


_NOTHING: frozenset[str] = frozenset()


def read_rows(
    images: Sequence[bytes],
    columns: Columns,
    leaves_max: int = LEAVES_MAX,
    rebuildable: frozenset[str] = _NOTHING,
    guesses: frozenset[str] = _NOTHING,
) -> Rows:
    """Turn images (JSON objects; `null` or nothing for a row without one) into the columns of a table.

    A value that does not fit asks for a wider column where there can be one: see tables/schema.py. In a column whose
    type is a guess it is counted beside.
    """
    reading = _Reading(_plan(columns, leaves_max, rebuildable, guesses))
    chunks = range(0, len(images), CHUNK_ROWS)
    parts = [part for at in chunks for part in _read_chunk(images[at : at + CHUNK_ROWS], at, reading)]
    return _rows(len(images), parts, reading)


def read_rows_slowly(
    images: Sequence[bytes],
    columns: Columns,
    leaves_max: int = LEAVES_MAX,
    rebuildable: frozenset[str] = _NOTHING,
    guesses: frozenset[str] = _NOTHING,
) -> Rows:
    """The same answer, row by row: what `read_rows` means."""
    reading = _Reading(_plan(columns, leaves_max, rebuildable, guesses))
    return _rows(len(images), [_read_slowly(images, 0, reading)], reading)


def _rows(row_count: int, parts: list[list[pa.Array]], reading: _Reading) -> Rows:
    batch = None
    if not reading.unknown.fields:
        schema = reading.plan.schema
        empty = [pa.nulls(0, type_) for type_ in schema.types]
        arrays = [pa.concat_arrays(pieces) for pieces in zip(empty, *parts, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    rescued = reading.rescued_texts(row_count)
    return Rows(batch, rescued, reading.unknown, reading.unreadable, reading.contradicted)


def _read_chunk(images: Sequence[bytes], first: int, reading: _Reading, is_tidy: bool = False) -> list[list[pa.Array]]:
    """Read fast; else fast without the spaces between names and values; else in halves; else slowly."""
    attempt = _Reading(reading.plan)
    try:
        parts = [_read_fast(images, first, attempt)]
    except Doubt:
        if not is_tidy:
            return _read_chunk([_tidy(image) for image in images], first, reading, is_tidy=True)
        if len(images) > _SLOW_ROWS:
            half = len(images) // 2
            halves = (images[:half], first), (images[half:], first + half)
            return [part for rows, at in halves for part in _read_chunk(rows, at, reading, is_tidy=True)]
        attempt = _Reading(reading.plan)
        parts = [_read_slowly(images, first, attempt)]
    reading.absorb(attempt)
    return parts


def _tidy(text: bytes) -> bytes:
    """The same JSON, every name, number and string as it was written, without the spaces between them."""
    try:
        return msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return text


# --- what the columns ask for ----------------------------------------------------------------------------------------

_decode = msgspec.json.Decoder().decode
_split_row = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_check_one = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True, slots=True)
class _Plan:
    """The known columns, prepared: how to find each by the source's name and how to fit a JSON text to it."""

    columns: Columns
    types: list[Type]
    schema: pa.Schema
    sources: list[str]
    names: Names
    fits: list[Callable[[bytes], Any]]
    taken: frozenset[str]
    is_full: bool
    rebuildable: frozenset[str]
    guesses: frozenset[str]


@lru_cache(maxsize=64)
def _plan(columns: Columns, leaves_max: int, rebuildable: frozenset[str], guesses: frozenset[str]) -> _Plan:
    is_full = count_leaves(columns) >= leaves_max
    sources = [source_name(column.name) for column in columns]
    return _Plan(
        columns=columns,
        types=[column.type for column in columns],
        schema=pa.schema([_arrow_field(column) for column in columns]),
        sources=[source or "" for source in sources],
        names=names_of({source: number for number, source in enumerate(sources) if source is not None}),
        fits=[_fit_of_text(column.type, is_full) for column in columns],
        taken=frozenset(column.name.casefold() for column in columns),
        is_full=is_full,
        rebuildable=rebuildable,
        guesses=guesses,
    )


def _arrow_field(column: Field) -> pa.Field:
    return pa.field(column.name, _arrow_type(column.type))


_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "uuid": pa.uuid(),
    "binary": pa.binary(),
}


def _arrow_type(type_: Type) -> pa.DataType:
    match type_:
        case StructType():
            return pa.struct([_arrow_field(part) for part in type_.fields])
        case ListType():
            return pa.list_(pa.field("element", _arrow_type(type_.element)))
        case _:
            decimal = decimal_of(type_)
            return pa.decimal128(*decimal) if decimal else _ARROW[type_]


def _fit_of_text(type_: Type, is_full: bool) -> Callable[[bytes], Any]:
    if type_ == "string":
        return _as_string
    fit = fitter(type_, is_full=is_full)

    def fit_text(text: bytes) -> Any:
        try:
            return fit(decode_written(text))
        except RecursionError:
            raise Misfit from None

    return fit_text


def _as_string(text: bytes) -> str:
    string: str = _decode(text) if text.startswith(b'"') else _tidy(text).decode()
    return string


# --- one value -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """What is found beside the columns while reading: by row number, or for all rows together."""

    plan: _Plan
    rescued: dict[int, dict[str, bytes]] = field(default_factory=dict)
    unknown: Seen = field(default_factory=Seen)
    unreadable: list[int] = field(default_factory=list)
    contradicted: dict[str, Contradiction] = field(default_factory=dict)
    can_be_added: dict[str, bool] = field(default_factory=dict)

    def fit(self, row: int, column: int, text: bytes) -> Any:
        """The value for its column; None when it is null, rescued, or has a field that the table lacks."""
        if text == b"null":
            return None
        try:
            return self.plan.fits[column](text)
        except NewField:
            self.unknown.fields.setdefault(self.plan.sources[column], Seen()).add(decode_written(text))
        except Misfit:
            value = _decode_if_possible(text)
            seen = Seen().add(value)
            if self._can_be_widened(column, seen):
                self.unknown.fields.setdefault(self.plan.sources[column], Seen()).merge(seen)
            else:
                self.rescue(row, self.plan.sources[column], text)
                self._contradict(self.plan.columns[column], value)
        return None

    def _contradict(self, column: Field, value: Any) -> None:
        is_fraction = column.type in ("int", "long") and isinstance(
            value, float
        )  # for which there is a type of its own
        if column.name in self.plan.guesses and not is_fraction:
            found = Contradiction(type_for(column.type, value))
            known = self.contradicted.get(column.name)
            self.contradicted[column.name] = known + found if known else found

    def _can_be_widened(self, column: int, seen: Seen) -> bool:
        return wider_type(self.plan.columns[column], seen.kinds, None, self.plan.rebuildable) is not None

    def meet(self, row: int, name: str, text: bytes) -> None:
        """A column that the table does not have: note it when it can be added, else keep its value."""
        if text == b"null":
            return
        if name not in self.can_be_added:
            self.can_be_added[name] = not self.plan.is_full and can_be_added(column_name(name), self.plan.taken)
        value = _decode_if_possible(text)
        is_nested = type(value) is dict or type(value) is list
        if not self.can_be_added[name] or (is_nested and infer(value) is None):
            self.rescue(row, name, text)
        elif name in self.unknown.fields:
            self.unknown.fields[name].add(value)
        else:
            self.unknown.fields[name] = Seen().add(value)

    def rescue(self, row: int, name: str, text: bytes) -> None:
        """Under the name that its column would have: a source's `_before` is not the row before."""
        self.rescued.setdefault(row, {})[column_name(name)] = _tidy(text)

    def rescued_texts(self, row_count: int) -> pa.StringArray:
        if not self.rescued:
            return pa.nulls(row_count, pa.string())
        return pa.array(map(self._rescued_text, range(row_count)), pa.string())

    def _rescued_text(self, row: int) -> str | None:
        if row not in self.rescued:
            return None
        pairs = sorted(self.rescued[row].items())
        return "{" + ",".join(f"{msgspec.json.encode(name).decode()}:{text.decode()}" for name, text in pairs) + "}"

    def absorb(self, other: _Reading) -> None:
        self.rescued |= other.rescued
        self.unknown.merge(other.unknown)
        self.unreadable += other.unreadable
        for name, found in other.contradicted.items():
            known = self.contradicted.get(name)
            self.contradicted[name] = known + found if known else found


def _decode_if_possible(text: bytes) -> Any:
    """The value; where only its text can hold it (a thousand brackets), an integer that fits no type either."""
    try:
        return decode_written(text)
    except RecursionError:
        return 2**64


# --- slowly ----------------------------------------------------------------------------------------------------------


def _read_slowly(images: Sequence[bytes], first: int, reading: _Reading) -> list[pa.Array]:
    numbers = reading.plan.names.numbers
    values: list[list[Any]] = [[None] * len(images) for _ in reading.plan.types]
    for offset, image in enumerate(images):
        if image in (b"", b"null"):
            continue
        try:
            _ = image.isascii() or image.decode()  # msgspec does not look at bytes that it leaves as they are
            texts = _split_row(image)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reading.unreadable.append(first + offset)
            continue
        for name, raw in texts.items():
            column = numbers.get(name)
            if column is None:
                reading.meet(first + offset, name, bytes(raw))
            else:
                values[column][offset] = reading.fit(first + offset, column, bytes(raw))
    return [pa.array(column, type_) for column, type_ in zip(values, reading.plan.schema.types, strict=True)]


# --- fast ------------------------------------------------------------------------------------------------------------

_NULL, _TRUE, _FALSE, _MINUS, _ZERO, _QUOTE, _COLON = np.frombuffer(b'ntf-0":', np.uint8)
_DATE_MIN_DAYS = (date.min - date(1970, 1, 1)).days
_PLAIN_LONG = "^-?[0-9]{1,18}$"
_PLAIN_TIMESTAMP = (  # each of them exists: the days that not every month has are left to the careful way
    "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?"
    "(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?$"
)


def _read_fast(images: Sequence[bytes], first: int, reading: _Reading) -> list[pa.Array]:
    row_count = len(images)
    found = _split_present(images)
    columns, strangers = find_columns(found, reading.plan.names, len(reading.plan.types))
    # A dict, because a name may come twice in a row: then its last value counts.
    met = {(found.rows[key], _decode(found.name(key))): key for key in strangers}
    for (row, name), key in met.items():
        if name in reading.plan.names.numbers:
            raise Doubt
        reading.meet(first + int(row), name, found.text(key))
    return [_convert(found, keys, column, first, row_count, reading) for column, keys in enumerate(columns)]


def _split_present(images: Sequence[bytes]) -> Split:
    """Split the rows that have a value; looking for those that have none is worth it only where there is a doubt."""
    try:
        return split(images, np.arange(len(images)))
    except Doubt:
        rows = [row for row, image in enumerate(images) if image not in (b"", b"null", b"{}")]
        if not 0 < len(rows) < len(images):
            raise
        return split([images[row] for row in rows], np.array(rows))


def _convert(split: Split, keys: Ints, column: int, first: int, row_count: int, reading: _Reading) -> pa.Array:
    """One column of all rows: plain values by Arrow, the others one by one, as `_read_slowly` does it."""
    type_, arrow_type = reading.plan.types[column], reading.plan.schema.types[column]
    rows = np.arange(row_count) if len(keys) == row_count else split.rows[keys]
    kinds = split.kinds[keys]
    is_plain = _is_plain(split, type_, keys, kinds)
    is_odd = ~is_plain & (kinds != _NULL)
    if is_plain.all():
        array, is_doubtful = _plain_values(split, type_, keys, rows, row_count)
    else:
        array, is_doubtful = _plain_values(split, type_, keys[is_plain], rows[is_plain], row_count)
    if is_doubtful is not None and is_doubtful.any():
        is_odd |= is_plain & is_doubtful[rows]
    if not is_odd.any():
        return array
    odd = rows[is_odd].tolist()
    values = [reading.fit(first + row, column, split.text(key)) for row, key in zip(odd, keys[is_odd], strict=True)]
    if not is_plain.any():  # Arrow cannot replace inside nested types, of which none is plain
        by_row = dict(zip(odd, values, strict=True))
        return pa.array(map(by_row.get, range(row_count)), arrow_type)
    mask = np.zeros(row_count, np.bool_)
    mask[odd] = True
    return pc.replace_with_mask(array, pa.array(mask), pa.array(values, arrow_type))


def _is_plain(split: Split, type_: Type, keys: Ints, kinds: Bytes) -> Bools:
    """Which values look as their column wants them: what a value begins with says what it is, because it is JSON."""
    is_plain: Bools
    match type_:
        case "int" | "long" | "double":
            is_plain = (kinds == _MINUS) | (kinds - _ZERO < 10)  # bytes wrap around, so this is 0 to 9 and no other
        case "boolean":
            sizes = split.stops[keys] - split.starts[keys]
            is_plain = ((kinds == _TRUE) & (sizes == len("true"))) | ((kinds == _FALSE) & (sizes == len("false")))
        case "string" | "date":
            is_plain = kinds == _QUOTE
        case "timestamptz":  # Arrow would take an hour without minutes
            after_hour = split.starts[keys] + len('"2026-01-01T00')
            is_plain = (kinds == _QUOTE) & (np.frombuffer(split.body, np.uint8)[after_hour] == _COLON)
        case _:
            return np.zeros(len(keys), np.bool_)
    return is_plain if split.is_escaped is None else is_plain & ~split.is_escaped[keys]


def _plain_values(split: Split, type_: Type, keys: Ints, rows: Ints, row_count: int) -> tuple[pa.Array, Bools | None]:
    """An array of all rows with these plain values in it, and in which rows Arrow may see another value than we do."""
    match type_:
        case "string":
            return _texts(split, keys, rows, row_count), None
        case "long":
            return _longs(_texts(split, keys, rows, row_count))
        case "int":
            return _ints(_texts(split, keys, rows, row_count))
        case "date":
            return _dates(_texts(split, keys, rows, row_count))
        case "double":
            return _doubles(_texts(split, keys, rows, row_count))
        case "timestamptz":
            return _timestamps(_texts(split, keys, rows, row_count))
        case "boolean":
            is_true, is_null = np.zeros(row_count, np.bool_), np.ones(row_count, np.bool_)
            is_true[rows], is_null[rows] = split.kinds[keys] == _TRUE, False
            return pa.array(is_true, mask=is_null), None
        case _:
            return pa.nulls(row_count, _arrow_type(type_)), None


def _texts(split: Split, keys: Ints, rows: Ints, row_count: int) -> pa.StringArray:
    if len(keys) == row_count:
        return pc.take(split.spans, pa.array(2 * keys), boundscheck=False)
    indices, is_null = np.zeros(row_count, np.int64), np.ones(row_count, np.bool_)
    indices[rows], is_null[rows] = 2 * keys, False
    return pc.take(split.spans, pa.array(indices, mask=is_null), boundscheck=False)


def _ints(texts: pa.StringArray) -> tuple[pa.Array, Bools | None]:
    """All of them at once; where one is none of this type, they are looked at one by one."""
    array = _cast(texts, pa.int32())
    if array is None:
        return pa.nulls(len(texts), pa.int32()), np.ones(len(texts), np.bool_)
    return array, None


def _dates(texts: pa.StringArray) -> tuple[pa.Array, Bools | None]:
    """The same; Arrow knows a year 0, which others do not."""
    array = _cast(texts, pa.date32())
    if array is None:
        return pa.nulls(len(texts), pa.date32()), np.ones(len(texts), np.bool_)
    return array, np.frombuffer(array.buffers()[1], np.int32, len(array)) < _DATE_MIN_DAYS


def _longs(texts: pa.StringArray) -> tuple[pa.Array, Bools | None]:
    try:
        return texts.cast(pa.int64()), None
    except pa.ArrowInvalid:
        is_sure = pc.match_substring_regex(texts, _PLAIN_LONG).fill_null(False)
        return pc.if_else(is_sure, texts, None).cast(pa.int64()), ~is_sure.to_numpy(zero_copy_only=False)


def _doubles(texts: pa.StringArray) -> tuple[pa.Array, Bools | None]:
    """Arrow rounds a large integer, reads 1e999 as infinity, and sees a minus zero in the integer -0."""
    try:
        array = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return pa.nulls(len(texts), pa.float64()), np.ones(len(texts), np.bool_)
    numbers = np.frombuffer(array.buffers()[1], np.float64, len(array))
    return array, ~(np.abs(numbers) < EXACT_MAX) | (numbers.view(np.int64) == LONG_MIN)


def _timestamps(texts: pa.StringArray) -> tuple[pa.Array, Bools]:
    """Arrow wants a zone in all of them or in none, has no digits below the microsecond, and knows a year 0."""
    is_sure = None
    array = _cast(texts, _ARROW["timestamptz"])
    if array is None:
        array = _cast(texts, pa.timestamp("us"))
    if array is None:
        is_sure = pc.match_substring_regex(texts, _PLAIN_TIMESTAMP).fill_null(False)
        has_zone = pc.match_substring_regex(texts, "(Z|[+-][0-9:]+)$")
        zoned = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
        array = pc.if_else(is_sure, zoned, None)
    array = array.cast(_ARROW["timestamptz"])
    moments = np.frombuffer(array.buffers()[1], np.int64, len(array))
    is_doubtful = (moments < TIMESTAMP_MIN_US) | (moments > TIMESTAMP_MAX_US)
    return array, is_doubtful if is_sure is None else is_doubtful | ~is_sure.to_numpy(zero_copy_only=False)


def _cast(texts: pa.StringArray, type_: pa.DataType) -> pa.Array | None:
    """None where a text is none of this type. The first is tried alone: to fail for each of them takes long."""
    try:
        texts[:1].cast(type_)
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return None
