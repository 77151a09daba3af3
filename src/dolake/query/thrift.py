"""Thrift's compact protocol, as far as Parquet's footers and page headers use it: structs as dicts by field number.

From row_pages.py. Pure. Promise: what is read and written again is the same bytes but for the fields that were changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Struct = dict[int, "Value"]
STRUCT, LIST, BINARY, I32, I64, I16, BYTE, TRUE, FALSE, DOUBLE = 12, 9, 8, 5, 6, 4, 3, 1, 2, 7
_SET, _MAP = 10, 11


class Value(NamedTuple):
    """A field's type and what it holds: an int, bytes, a Struct, or a list of such."""

    kind: int
    value: Any
    element: int = 0
    """Of a list: the type of its elements."""


def read_struct(data: bytes | memoryview, at: int) -> tuple[Struct, int]:
    """The struct that begins here, and where it ends."""
    found: Struct = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return found, at
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            raw, at = _varint(data, at)
            number = (raw >> 1) ^ -(raw & 1)
        element = 0
        if kind == LIST:
            element = data[at] & 15
        value, at = _read(data, at, kind)
        found[number] = Value(kind, value, element)


def _read(data: bytes | memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in (I32, I64, I16):
        raw, at = _varint(data, at)
        return (raw >> 1) ^ -(raw & 1), at
    if kind == BINARY:
        size, at = _varint(data, at)
        return bytes(data[at : at + size]), at + size
    if kind == STRUCT:
        return read_struct(data, at)
    if kind == LIST:
        return _read_list(data, at)
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind == BYTE:
        return data[at], at + 1
    if kind == DOUBLE:
        return bytes(data[at : at + 8]), at + 8
    raise ValueError(f"a thrift type that Parquet does not use: {kind}")


def _read_list(data: bytes | memoryview, at: int) -> tuple[list[Any], int]:
    head = data[at]
    at += 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, at = _varint(data, at)
    found = []
    for _ in range(count):
        if kind in (TRUE, FALSE):
            value, at = data[at] == TRUE, at + 1
        else:
            value, at = _read(data, at, kind)
        found.append(value)
    return found, at


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    found, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at + 1
        shift += 7


def read_triples(data: bytes | memoryview, at: int) -> list[int]:
    """The numbers of a list of structs that have three each, none of them negative: a tenth of the time for many."""
    head = data[at]
    count, at = (head >> 4, at + 1) if head < 0xF0 else _varint(data, at + 1)
    found = []
    for _ in range(count):
        for _ in range(3):
            at += 1
            byte = data[at]
            number, shift = byte & 127, 7
            while byte > 127:
                at += 1
                byte = data[at]
                number |= (byte & 127) << shift
                shift += 7
            found.append(number >> 1)
            at += 1
        at += 1
    return found


def write_struct(struct: Struct) -> bytes:
    """Its bytes, fields in the order of their numbers."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number in sorted(struct):
        kind, value, element = struct[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - before
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            put_zigzag(out, number)
        before = number
        _write(out, kind, value, element)
    out.append(0)


def _write(out: bytearray, kind: int, value: Any, element: int) -> None:
    if kind in (I32, I64, I16):
        put_zigzag(out, value)
    elif kind == BINARY:
        put_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind == LIST:
        _write_list(out, value, element)
    elif kind == BYTE:
        out.append(value)
    elif kind == DOUBLE:
        out += value


def _write_list(out: bytearray, values: list[Any], element: int) -> None:
    if len(values) < 15:
        out.append(len(values) << 4 | element)
    else:
        out.append(15 << 4 | element)
        put_varint(out, len(values))
    for value in values:
        if element in (TRUE, FALSE):
            out.append(TRUE if value else FALSE)
        else:
            _write(out, element, value, 0)


def put_zigzag(out: bytearray, number: int) -> None:
    """A number with a sign."""
    put_varint(out, (number << 1) ^ (number >> 63))


def put_varint(out: bytearray, number: int) -> None:
    """A number without."""
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
