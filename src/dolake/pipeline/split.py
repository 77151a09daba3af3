"""Where the names and values of thousands of JSON rows are, found by numpy from the positions of their quotes.

From rows.py, which has the rows; back to rows.py, which converts the values column by column. Needs rows that are JSON
objects, as wire/messages.py lets them in. Promise: a value is found under its name and with its exact text, or `Doubt`
says that these rows are written in a way that only a real parser follows (more than one space, a name twice, ...).

Why it is right: inside a string a quote is always escaped, so once escaped quotes are masked, quotes come in pairs,
each pair is a string, and a string before a colon is a name. A value is all that stands between a name's colon and the
comma before the next name of the same object, or the brace that ends the row.

pyarrow.json was tried first. It took two thirds more time, and has ideas of its own: it rounds integers in a column of
doubles, sees timestamps in strings, and one value that it cannot convert fails the whole block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SIZE_MAX_BYTES = 1 << 28
_PADDING = bytes(16)  # names are read eight bytes at a time, also where fewer follow
_QUOTE, _COMMA, _COLON, _SPACE, _OPENING, _CLOSING, _NULL = b'",: {}n'
_check_one = msgspec.json.Decoder(msgspec.Raw).decode

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


class Doubt(Exception):
    """These rows may be odd: split fewer of them at once, or read them slowly."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows side by side in one `body`, and where in it the names and values of the rows' own keys are, in their order.

    `firsts` are the keys that begin a row and `rows` is each key's row. `opens` and `closes` are a name's quotes.
    `starts` and `stops` enclose a value, the quotes of a string included, `kinds` is its first byte, and `is_escaped`
    says that there are backslashes in it. `spans` has the values as every second element, a string without its quotes.
    """

    body: bytes
    words: Words
    firsts: Ints
    rows: Ints
    opens: Ints
    closes: Ints
    starts: Ints
    stops: Ints
    kinds: Bytes
    is_escaped: Bools | None
    spans: pa.StringArray

    def name(self, key: int) -> bytes:
        """The name as it is written, with its quotes."""
        return self.body[self.opens[key] : self.closes[key] + 1]

    def text(self, key: int) -> bytes:
        """The value's JSON text, checked: a name that was overlooked would leave more than one value here."""
        text = self.body[self.starts[key] : self.stops[key]].strip()
        try:
            _check_one(text)
        except (msgspec.DecodeError, RecursionError):
            raise Doubt from None
        return text


def split(images: Sequence[bytes], rows: Ints) -> Split:
    """Find the values of these images, each of them an object with at least one. `rows` are their numbers."""
    body = b"".join([*images, _PADDING])
    if len(body) > SIZE_MAX_BYTES or not _is_utf8(body):
        raise Doubt
    has_escapes = b"\\" in body
    # Pairs of backslashes go first: they escape each other, and a quote behind them is a real one.
    masked = body.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0") if has_escapes else body
    bytes_ = np.frombuffer(masked, np.uint8)
    quotes = np.flatnonzero(bytes_ == _QUOTE)
    if len(quotes) % 2:
        raise Doubt
    all_opens, all_closes = quotes[0::2], quotes[1::2]
    keys = np.flatnonzero(bytes_[all_closes + 1] == _COLON)
    if b"[" in body or np.count_nonzero(bytes_ == _OPENING) != len(images):
        keys = keys[_is_outermost(bytes_, quotes, all_opens[keys])]
    opens, closes = all_opens[keys], all_closes[keys]
    firsts = np.flatnonzero(bytes_[opens - 1] == _OPENING)
    if len(firsts) != len(images):
        raise Doubt
    starts, stops = _values(bytes_, opens, closes, firsts)
    kinds = bytes_[starts]
    is_string = kinds == _QUOTE
    # The next string after a name is its value, and nothing follows it: else a name was overlooked.
    if (is_string & (all_closes.take(keys + 1, mode="clip") != stops - 1)).any():
        raise Doubt
    nulls = np.flatnonzero(kinds == _NULL)
    if (stops[nulls] - starts[nulls] != len("null")).any():
        raise Doubt
    return Split(
        body=body,
        words=_words(masked),
        firsts=firsts,
        rows=np.repeat(rows, np.diff(firsts, append=len(keys))),
        opens=opens,
        closes=closes,
        starts=starts,
        stops=stops,
        kinds=kinds,
        is_escaped=_has_backslash(body, starts, stops) if has_escapes else None,
        spans=_spans(body, starts + is_string, stops - is_string),
    )


def _is_utf8(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def _is_outermost(bytes_: Bytes, quotes: Ints, opens: Ints) -> Bools:
    """Which of these keys belong to the row itself, not to an object inside it."""
    folded = bytes_ | 0x20  # makes [ and ] look like { and }
    brackets = np.flatnonzero((folded == _OPENING) | (folded == _CLOSING))
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]  # those outside of strings
    if not len(brackets):
        raise Doubt  # nothing of it is a row
    depths = np.cumsum(np.where(folded[brackets] == _OPENING, 1, -1))
    is_outermost: Bools = depths[np.searchsorted(brackets, opens) - 1] == 1
    return is_outermost


def _values(bytes_: Bytes, opens: Ints, closes: Ints, firsts: Ints) -> tuple[Ints, Ints]:
    """Where each value starts and stops. One space is allowed behind colon and comma, as Python's json writes it."""
    starts = closes + 2
    starts += bytes_[starts] == _SPACE
    stops = np.append(opens[1:], len(bytes_) - len(_PADDING) + 1) - 1
    stops -= bytes_[stops] == _SPACE
    lasts = np.append(firsts[1:], len(opens)) - 1
    stops[lasts] -= 1  # this far it was the next row's brace
    separators = bytes_[stops]
    has_odd_end = (separators[lasts] != _CLOSING).any() or opens[0] != 1
    if has_odd_end or np.count_nonzero(separators == _COMMA) != len(opens) - len(firsts):
        raise Doubt
    return starts, stops


def _has_backslash(body: bytes, starts: Ints, stops: Ints) -> Bools:
    backslashes = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\\"))
    has_one: Bools = np.searchsorted(backslashes, starts) != np.searchsorted(backslashes, stops)
    return has_one


def _spans(body: bytes, starts: Ints, stops: Ints) -> pa.StringArray:
    """Values and the gaps between them in turn, as an Arrow array over the body: copied only when they are taken."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, stops
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)])


# --- which column a key names ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Names:
    """The names to look for, each with its column's number, and a fingerprint of each, sorted."""

    numbers: dict[str, int]
    prints: Words
    by_print: Ints


def names_of(numbers: dict[str, int]) -> Names:
    findable = [name for name in numbers if "\\" not in name]  # in a row's bytes a backslash begins an escape
    prints = _prints_of(findable)
    order = np.argsort(prints)
    return Names(numbers, prints[order], np.array([numbers[name] for name in findable], np.int64)[order])


def find_columns(split: Split, names: Names, column_count: int) -> tuple[list[Ints], list[int]]:
    """The keys of each column in the order of rows, and the keys that name none of them or are written with escapes."""
    return _in_equal_rows(split, names, column_count) or _by_print(split, names, column_count)


def _in_equal_rows(split: Split, names: Names, column_count: int) -> tuple[list[Ints], list[int]] | None:
    """The usual case: every row has the same names in the same order, so one row's names are looked up."""
    key_count = len(split.opens)
    width = key_count // len(split.firsts)
    if not np.array_equal(split.firsts, np.arange(0, key_count, width)):
        return None
    found = [split.name(key)[1:-1] for key in range(width)]
    heads = split.words[split.opens + 1].reshape(-1, width)
    masks, wanted = np.array([_word(name + b'"') for name in found], np.uint64).T
    if (heads & masks != wanted).any():
        return None
    if not all(_is_name(split, split.opens[slot::width], name, 8) for slot, name in enumerate(found)):
        return None
    columns = [np.empty(0, np.int64)] * column_count
    strangers: list[int] = []
    for slot, name in enumerate(found):
        column = None if b"\\" in name else names.numbers.get(name.decode())
        keys = np.arange(slot, key_count, width)
        if column is None:
            strangers += keys.tolist()
        elif len(columns[column]):
            raise Doubt
        else:
            columns[column] = keys
    return columns, sorted(strangers)


def _by_print(split: Split, names: Names, column_count: int) -> tuple[list[Ints], list[int]]:
    """Rows that differ: the fingerprint of a name finds the column that it may be, then the bytes are compared."""
    if not len(names.prints):
        return [np.empty(0, np.int64)] * column_count, list(range(len(split.opens)))
    prints = _prints(split.words, split.opens, split.closes)
    at = np.searchsorted(names.prints, prints).clip(max=len(names.prints) - 1)
    columns = np.where(names.prints[at] == prints, names.by_print[at], -1)
    columns = columns.astype(np.min_scalar_type(-column_count - 1))  # sorting small numbers takes one pass
    order = np.argsort(columns, kind="stable")
    bounds = np.searchsorted(columns[order], np.arange(column_count + 1))
    found = [order[low:high] for low, high in pairwise(bounds)]
    for name, column in names.numbers.items():
        keys = found[column]
        if not _is_name(split, split.opens[keys], name.encode()) or (np.diff(split.rows[keys]) == 0).any():
            raise Doubt  # another name with the same fingerprint, or the same name twice in a row
    return found, order[: bounds[0]].tolist()


def _is_name(split: Split, opens: Ints, name: bytes, first: int = 0) -> bool:
    """Is this the name behind each of these quotes? Compared eight bytes at a time, the closing quote included."""
    quoted = name + b'"'
    for at in range(first, len(quoted), 8):
        mask, wanted = _word(quoted[at:])
        if (split.words[opens + (at + 1)] & mask != wanted).any():
            return False
    return True


def _word(text: bytes) -> tuple[np.uint64, np.uint64]:
    """The first eight bytes as a number, behind a mask that hides what they lack of eight."""
    part = text[:8]
    return _MASKS[len(part)], np.uint64(int.from_bytes(part, "little"))


_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
_MIX_HEAD, _MIX_TAIL = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def _prints(words: Words, opens: Ints, closes: Ints) -> Words:
    """A number for each name, of its first and last eight bytes and its length."""
    lengths = closes - opens - 1
    some = np.minimum(lengths, 8)
    heads, tails = words[opens + 1] & _MASKS[some], words[closes - some] & _MASKS[some]
    prints: Words = heads * _MIX_HEAD ^ tails * _MIX_TAIL ^ lengths.astype(np.uint64)
    return prints


def _prints_of(names: Sequence[str]) -> Words:
    quoted = [b'"%b"' % name.encode() for name in names]
    sizes = np.array([len(name) for name in quoted], np.int64)
    closes = np.cumsum(sizes) - 1
    return _prints(_words(b"".join([*quoted, _PADDING])), closes - sizes + 1, closes)


def _words(body: bytes) -> Words:
    """The eight bytes from each position on, as a number."""
    return np.ndarray((len(body) - 8,), np.dtype("<u8"), body, 0, (1,))
