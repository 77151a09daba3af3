"""Answers as Arrow streams: cut into whole messages as bytes arrive, then columns as Python has them.

From reading.py, which imports this only when a first question is asked and pyarrow is there; to results.py. Promise: a
batch is given out as soon as all of it has arrived, so nothing waits for the end of a long answer; a stream that has no
end was cut off, and is never taken for a whole one.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from dolake.client.results import Column, Notes, QueryResult
from dolake.client.values import Reader, interval_from, mapping_of
from dolake.errors import QueryUnavailable

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
NOTES = b"dolake"
"""Under this name the schema carries what else there is to say, as JSON; so may the last batch."""

_CONTINUES = b"\xff\xff\xff\xff"
_HEAD_BYTES = 8
_IS_BATCH = 3
_HUGE_DIGITS = 38


async def results_in(chunks: AsyncIterable[bytes]) -> AsyncIterator[QueryResult]:
    """An answer as its batches: at least one, so that the columns are known."""
    stream = _Stream()
    notes: Notes | None = None
    async for data in chunks:
        for batch in stream.add(data):
            if notes is None:
                notes = _notes_in(stream)
            yield QueryResult(notes, table=pa.Table.from_batches([batch]))
    if not stream.is_complete or stream.schema is None:
        raise QueryUnavailable("the answer was cut off", hint="ask again; the server's log says why")
    if notes is None or stream.last_notes:
        last = _decoded(stream.last_notes)
        notes = msgspec.structs.replace(
            notes or _notes_in(stream), truncated=last.truncated, elapsed_ms=last.elapsed_ms
        )
        yield QueryResult(notes, table=stream.schema.empty_table())


def _notes_in(stream: _Stream) -> Notes:
    notes = _decoded(stream.notes)
    if notes.columns:
        return notes
    columns = [Column(field.name, type_name(field.type), field.nullable) for field in stream.schema or ()]
    return msgspec.structs.replace(notes, columns=columns)


def _decoded(data: bytes) -> Notes:
    try:
        return msgspec.json.decode(data or b"{}", type=Notes)
    except msgspec.DecodeError as error:
        raise QueryUnavailable(f"the answer is not what was agreed: {error}") from None


class _Stream:
    """Bytes in, record batches out. pyarrow alone would wait for bytes, and takes a cut for the end."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self.notes = b""
        self.last_notes = b""
        self.is_complete = False
        self._arrived = bytearray()
        self._feed = _Feed()
        self._reader: Any = None

    def add(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """All batches that these bytes complete."""
        self._arrived += data
        while not self.is_complete and (message := self._next_message()) is not None:
            kind, content = message
            self._feed.put(content)
            if self._reader is None:
                self._open()
            elif kind == _IS_BATCH:
                yield from self._read_batch()

    def _next_message(self) -> tuple[int, bytes] | None:
        """Kind and bytes of a message that is here as a whole. Its length stands in three places: how long its
        description is, in that how long its body is, and a description of no length is the end."""
        arrived = self._arrived
        if len(arrived) < _HEAD_BYTES:
            return None
        if arrived[:4] != _CONTINUES:
            raise QueryUnavailable("the answer is not an Arrow stream")
        (described,) = struct.unpack_from("<i", arrived, 4)
        if described == 0:
            self.is_complete = True
            return None
        if len(arrived) < _HEAD_BYTES + described:
            return None
        kind, body = _description(bytes(arrived[_HEAD_BYTES : _HEAD_BYTES + described]))
        size = _HEAD_BYTES + described + body
        if len(arrived) < size:
            return None
        content = bytes(memoryview(arrived)[:size])
        del arrived[:size]
        return kind, content

    def _open(self) -> None:
        self._reader = pa.ipc.open_stream(pa.PythonFile(self._feed, mode="r"))
        self.notes = (self._reader.schema.metadata or {}).get(NOTES, b"")
        self.schema = self._reader.schema.remove_metadata()

    def _read_batch(self) -> Iterator[pa.RecordBatch]:
        batch, notes = self._reader.read_next_batch_with_custom_metadata()
        if notes is not None:
            self.last_notes = dict(notes).get(NOTES, b"")
        if batch.num_rows:
            yield batch.replace_schema_metadata(None)


class _Feed:
    """A file that has only whole messages in it, so that pyarrow never meets half of one."""

    closed = False

    def __init__(self) -> None:
        self._content = memoryview(b"")

    def put(self, content: bytes) -> None:
        self._content = memoryview(bytes(self._content) + content) if self._content else memoryview(content)

    def read(self, size: int = -1) -> memoryview:
        size = len(self._content) if size < 0 else size
        found, self._content = self._content[:size], self._content[size:]
        return found

    def readable(self) -> bool:
        return True


def _description(table: bytes) -> tuple[int, int]:
    """Kind and body length, from the FlatBuffers table that describes a message (Message.fbs of Arrow)."""
    try:
        (root,) = struct.unpack_from("<I", table, 0)
        (back,) = struct.unpack_from("<i", table, root)
        fields = root - back
        (size,) = struct.unpack_from("<H", table, fields)
        kind_at, body_at = (
            struct.unpack_from("<H", table, fields + place)[0] if place < size else 0 for place in (6, 10)
        )
        kind = table[root + kind_at] if kind_at else 0
        body = struct.unpack_from("<q", table, root + body_at)[0] if body_at else 0
    except (struct.error, IndexError):
        raise QueryUnavailable("the answer is not an Arrow stream") from None
    return kind, body


# --- values -----------------------------------------------------------------------------------------------------------


def type_name(kind: pa.DataType) -> str:
    """The SQL type of an Arrow column, where the answer itself does not tell."""
    types = pa.types
    if types.is_decimal(kind):
        is_huge = kind.precision == _HUGE_DIGITS and kind.scale == 0
        return "HUGEINT" if is_huge else f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if types.is_map(kind):
        return f"MAP({type_name(kind.key_type)}, {type_name(kind.item_type)})"
    if types.is_struct(kind):
        return f"STRUCT({', '.join(f'{_quoted(field.name)} {type_name(field.type)}' for field in kind)})"
    if types.is_fixed_size_list(kind):
        return f"{type_name(kind.value_type)}[{kind.list_size}]"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"{type_name(kind.value_type)}[]"
    if types.is_dictionary(kind):
        return type_name(kind.value_type)
    return _TYPE_NAMES.get(str(kind), str(kind).upper())


_TYPE_NAMES = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "date32[day]": "DATE",
    "time64[us]": "TIME",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "extension<arrow.uuid>": "UUID",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "binary_view": "BLOB",
    "month_day_nano_interval": "INTERVAL",
    "extension<arrow.json>": "JSON",
    "extension<arrow.bool8>": "BOOLEAN",
    "null": '"NULL"',
}


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """A column's values, equal to those that values.py reads from JSON."""
    wanted = _in_microseconds(column.type)
    if wanted != column.type:
        column = column.cast(wanted, safe=False)
    read = _reader_of(column.type)
    try:
        values: list[Any] = column.to_pylist()
        return values if read is None else [None if value is None else read(value) for value in values]
    except (ValueError, OverflowError):  # a moment that Python's calendar does not have
        return [_read_or_text(read, scalar) for scalar in column]


def _read_or_text(read: Reader | None, scalar: pa.Scalar) -> Any:
    try:
        return _read(read, scalar.as_py())
    except (ValueError, OverflowError):
        return _INFINITE.get(getattr(scalar, "value", None)) or str(scalar)


_INFINITE = {sign * (2**bits - 1): text for bits in (31, 63) for sign, text in ((1, "infinity"), (-1, "-infinity"))}


def with_durations(table: pa.Table) -> pa.Table:
    """INTERVAL columns as lengths of time, for readers that have no months."""
    for index, field in enumerate(table.schema):
        if pa.types.is_interval(field.type):
            values = pa.array(python_values(table[index]), pa.duration("us"))
            table = table.set_column(index, field.name, values)
    return table


def _reader_of(kind: pa.DataType) -> Reader | None:
    types = pa.types
    if types.is_decimal(kind) and kind.precision == _HUGE_DIGITS and kind.scale == 0:
        return int  # a sum of integers is a HUGEINT in SQL, for which Arrow has no other type
    if types.is_float32(kind):
        return _shortest
    if types.is_timestamp(kind) and kind.tz:
        return _in_utc
    if types.is_interval(kind):
        return lambda parts: interval_from(*parts)
    if types.is_map(kind):
        key, value = _reader_of(kind.key_type), _reader_of(kind.item_type)
        return lambda pairs: mapping_of([(_read(key, each), _read(value, other)) for each, other in pairs])
    if types.is_struct(kind):
        return _struct_reader(kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _reader_of(kind.value_type)
        return None if item is None else lambda values: [_read(item, value) for value in values]
    if str(kind) == "extension<arrow.uuid>":
        return str
    return None


def _struct_reader(kind: pa.StructType) -> Reader | None:
    readers = {field.name: read for field in kind if (read := _reader_of(field.type)) is not None}
    if not readers:
        return None
    return lambda found: found | {name: _read(read, found[name]) for name, read in readers.items()}


def _read(read: Reader | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _shortest(value: float) -> float:
    """1.1 in 32 bits as 1.1, and not with the digits that 64 bits have for the same number."""
    exact = struct.pack("f", value)
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next((float(text) for text in texts if struct.pack("f", float(text)) == exact), value)


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The same type without nanoseconds, which Python's datetime does not have."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", tz=kind.tz)
    if types.is_struct(kind):
        fields = [field.with_type(_in_microseconds(field.type)) for field in kind]
        return kind if fields == list(kind) else pa.struct(fields)
    if types.is_map(kind):
        parts = [_in_microseconds(kind.key_type), _in_microseconds(kind.item_type)]
        return kind if parts == [kind.key_type, kind.item_type] else pa.map_(*parts)
    if types.is_list(kind):
        item = _in_microseconds(kind.value_type)
        return kind if item == kind.value_type else pa.list_(kind.value_field.with_type(item))
    return kind


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
