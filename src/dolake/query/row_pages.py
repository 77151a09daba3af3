"""Single rows of Parquet data files: of each column the one page that has the row is read, and nothing else.

From lookup.py, which has a file and a row's position from the key index. Arrow reads whole row groups only, so the
pages that are wanted are put together as a Parquet file of their own, in memory, and Arrow reads that: no value is
decoded here. Files say where their pages begin (the offset index, which the pipeline writes); where one does not, the
row group is read. Promise: a file is opened once for as long as it is asked for, and those files are bounded in number.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from dolake.errors import Damaged
from dolake.query.thrift import STRUCT, Struct, put_varint, put_zigzag, read_struct, read_triples, write_struct
from dolake.storage.base import Storage
from dolake.storage.local import path_of

_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
_FILES_MAX = 512
_PLAIN = 0
_KEPT = (1, 2, 3, 4)
"""Of a column's metadata what stays as it is: type, encodings, path, codec."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of one row group."""

    head: bytes
    """The constant part of its metadata."""
    firsts: list[int]
    """The first row of each page, within the row group."""
    offsets: list[int]
    sizes: list[int]
    dictionary: tuple[int, int] | None
    """Where that is, and how long."""
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class _Group:
    row_count: int
    columns: list[_Column] | None
    """None where the file does not say where its pages are."""


class RowFiles:
    """Data files that rows are read from. Any thread may ask."""

    def __init__(self, files_max: int = _FILES_MAX, storage: Storage | None = None) -> None:
        self._storage = storage
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._files_max = files_max
        self._lock = threading.Lock()

    def row(self, location: str, position: int) -> tuple[list[pa.Array], list[pa.Field]]:
        """The row at this position of a data file, as columns of one value, and the file's fields."""
        return self._file(location).row(position)

    def _file(self, location: str) -> _File:
        with self._lock:
            found = self._files.get(location)
            if found is not None:
                self._files.move_to_end(location)
                return found
        opened = _File(_pieces_of(location, self._storage))
        with self._lock:
            self._files[location] = opened
            if len(self._files) > self._files_max:
                self._files.popitem(last=False)  # closed when nobody reads it any more
        return opened

    def close(self) -> None:
        with self._lock:
            self._files.clear()


class Pieces(Protocol):
    """A data file that can be read anywhere, by many threads."""

    name: str
    size: int

    def read(self, count: int, start: int) -> bytes: ...

    def source(self) -> Any:
        """What Arrow opens."""


class _LocalPieces:
    def __init__(self, path: Path) -> None:
        self._path, self.name = path, path.name
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, count: int, start: int) -> bytes:
        return os.pread(self._descriptor, count, start)

    def source(self) -> Any:
        return self._path

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class _StoredPieces:
    """Of a store: each read that is not in memory is a request, so pages come with what lies behind them."""

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage, self._location, self.name = storage, location, location.rpartition("/")[2]
        self._lock = threading.Lock()
        self._file = storage.open_read(location)
        self.size = int(self._file.size())

    def read(self, count: int, start: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            data: bytes = self._file.read(count)
            return data

    def source(self) -> Any:
        return self._storage.open_read(self._location)


def _pieces_of(location: str, storage: Storage | None) -> Pieces:
    if storage is None or storage.root.startswith("file:"):
        return _LocalPieces(path_of(location))
    return _StoredPieces(storage, location)


class _File:
    """A data file, open, with what its footer says. Data files never change."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        footer = self._footer()
        shape = pq.ParquetFile(pieces.source())
        self._fields = _fields_of(shape.schema_arrow)
        leaves = range(len(shape.schema.names))
        self._repeated = [shape.schema.column(leaf).max_repetition_level > 0 for leaf in leaves]
        shape.close()
        self._head = write_struct({1: footer[1], 2: footer[2]})[:-1]
        self._raw_groups: list[Struct] = footer[4].value
        self._ends = list(accumulate(group[3].value for group in self._raw_groups))
        self._groups: dict[int, _Group] = {}

    def row(self, position: int) -> tuple[list[pa.Array], list[pa.Field]]:
        number = bisect_right(self._ends, position)
        if number == len(self._ends):
            raise Damaged(f"{self._pieces.name} has no row {position}", hint="look with `dolake verify`")
        inside = position - (self._ends[number - 1] if number else 0)
        if number not in self._groups:
            self._groups[number] = self._group(self._raw_groups[number])
        group = self._groups[number]
        if group.columns is None:
            with pq.ParquetFile(self._pieces.source()) as file:
                whole = file.read_row_group(number)
            return [_single(whole, name, inside) for name in range(whole.num_columns)], self._fields
        return self._row_of(group, group.columns, inside), self._fields

    def _row_of(self, group: _Group, columns: list[_Column], row: int) -> list[pa.Array]:
        """Columns whose pages have the same rows are read together; mostly these are all of them."""
        pages = [bisect_right(column.firsts, row) - 1 for column in columns]
        by_rows: dict[tuple[int, int], list[int]] = {}
        for at, (column, page) in enumerate(zip(columns, pages, strict=True)):
            first = column.firsts[page]
            end = column.firsts[page + 1] if page + 1 < len(column.firsts) else group.row_count
            by_rows.setdefault((first, end), []).append(at)
        if len(by_rows) == 1:
            ((first, end),) = by_rows
            table = _read(self._file_of(columns, pages, end - first))
            return [_single(table, at, row - first) for at in range(table.num_columns)]
        return self._row_of_several(columns, pages, by_rows, row)

    def _row_of_several(
        self, columns: list[_Column], pages: list[int], by_rows: dict[tuple[int, int], list[int]], row: int
    ) -> list[pa.Array]:
        """A Parquet file has as many rows in each column: so one for each range, read for the columns that have it."""
        found: dict[int, pa.Array] = {}
        leaves = self._leaves()
        for (first, end), which in by_rows.items():
            wanted = [top for top, own in enumerate(leaves) if set(own) <= set(which)]
            if wanted:
                table = _read(
                    self._file_of(columns, pages, end - first), [leaf for top in wanted for leaf in leaves[top]]
                )
                found |= {top: _single(table, at, row - first) for at, top in enumerate(wanted)}
        for top, own in enumerate(leaves):
            if top not in found:  # a struct whose parts have pages of different lengths
                found[top] = self._from_group(own, row, columns)
        return [found[top] for top in range(len(leaves))]

    def _from_group(self, leaves: Sequence[int], row: int, columns: list[_Column]) -> pa.Array:
        number = next(number for number, group in self._groups.items() if group.columns is columns)
        with pq.ParquetFile(self._pieces.source()) as file:
            names = [file.metadata.row_group(number).column(leaf).path_in_schema for leaf in leaves]
            whole = file.read_row_group(number, columns=names)
        return _single(whole, 0, row)

    def _leaves(self) -> list[list[int]]:
        """For each column the leaves that it is stored as."""
        counts = [_leaf_count(field.type) for field in self._fields]
        ends = list(accumulate(counts))
        return [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]

    def _file_of(self, columns: list[_Column], pages: list[int], row_count: int) -> pa.Buffer:
        """A Parquet file of one page for each column."""
        out, chunks = bytearray(_MAGIC), bytearray()
        for column, page in zip(columns, pages, strict=True):
            data = self._pieces.read(column.sizes[page], column.offsets[page])
            values = row_count
            dictionary = column.dictionary
            if column.is_repeated or dictionary:
                said = read_struct(data, 0)[0]
                header = (said.get(5) or said[8]).value
                values = header[1].value
                if said.get(5) and header[2].value == _PLAIN:
                    dictionary = None  # the page began after the dictionary was full
            start = len(out)
            if dictionary:
                out += self._pieces.read(dictionary[1], dictionary[0])
            _put_chunk(chunks, column.head, start, len(out), len(out) + len(data), values, bool(dictionary))
            out += data
        size = len(out) - len(_MAGIC)
        begin = len(out)
        out += self._head
        out.append(0x16)  # field 3: number of rows
        put_zigzag(out, row_count)
        out.append(0x19)  # field 4: one row group
        out.append(0x1C)
        out.append(0x19)  # its field 1: the columns
        if len(columns) < 15:
            out.append(len(columns) << 4 | STRUCT)
        else:
            out.append(0xF0 | STRUCT)
            put_varint(out, len(columns))
        out += chunks
        for number in (size, row_count):  # its fields 2 and 3
            out.append(0x16)
            put_zigzag(out, number)
        out += b"\0\0"
        out += (len(out) - begin).to_bytes(4, "little") + _MAGIC
        return pa.py_buffer(out)

    def _footer(self) -> Struct:
        size = self._pieces.size
        tail = self._pieces.read(_TAIL_BYTES, max(0, size - _TAIL_BYTES))
        if tail[-4:] != _MAGIC:
            raise Damaged(f"{self._pieces.name} is no Parquet file", hint="look with `dolake verify`")
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            tail = self._pieces.read(length, size - length)
        return read_struct(tail, len(tail) - length)[0]

    def _group(self, group: Struct) -> _Group:
        chunks: list[Struct] = group[1].value
        rows = int(group[3].value)
        if any(4 not in chunk for chunk in chunks):
            return _Group(rows, None)
        begin = min(chunk[4].value for chunk in chunks)
        end = max(chunk[4].value + chunk[5].value for chunk in chunks)
        indexes = self._pieces.read(end - begin, begin)
        pairs = zip(chunks, self._repeated, strict=True)
        return _Group(rows, [_column(chunk, indexes, chunk[4].value - begin, each) for chunk, each in pairs])


def _column(chunk: Struct, indexes: bytes, at: int, is_repeated: bool) -> _Column:
    metadata: Struct = chunk[3].value
    pages = read_triples(indexes, at + 1)  # behind the one byte that says: field 1, a list
    offsets = pages[::3]
    begins = metadata[11].value if 11 in metadata else 0
    return _Column(
        write_struct({number: metadata[number] for number in _KEPT})[:-1],
        pages[2::3],
        offsets,
        pages[1::3],
        (begins, offsets[0] - begins) if begins else None,
        is_repeated,
    )


def _put_chunk(
    out: bytearray, head: bytes, dictionary: int, start: int, end: int, values: int, has_dictionary: bool
) -> None:
    """One column of the row group: field 2 says where it is, field 3 what it is."""
    out.append(0x26)
    put_zigzag(out, dictionary)
    out.append(0x1C)
    out += head
    size = end - dictionary
    for number in (values, size, size):  # fields 5 to 7
        out.append(0x16)
        put_zigzag(out, number)
    out.append(0x26)  # field 9
    put_zigzag(out, start)
    if has_dictionary:
        out.append(0x26)  # field 11
        put_zigzag(out, dictionary)
    out += b"\0\0"


def _read(file: pa.Buffer, leaves: list[int] | None = None) -> pa.Table:
    reader = ParquetReader()  # what pq.ParquetFile wraps; that one takes as long as the pages
    reader.open(pa.BufferReader(file))
    return reader.read_row_group(0, column_indices=leaves, use_threads=False)


def _single(table: pa.Table, column: int, row: int) -> pa.Array:
    """One value."""
    found = table.column(column)
    return found.chunk(0).slice(row, 1) if found.num_chunks == 1 else found.slice(row, 1).combine_chunks()


_FIELDS: dict[bytes, list[pa.Field]] = {}


def _fields_of(schema: pa.Schema) -> list[pa.Field]:
    """One list for all files of a schema, so that who has seen it knows it."""
    key = schema.serialize().to_pybytes()
    if len(_FIELDS) > _FILES_MAX:
        _FIELDS.clear()
    return _FIELDS.setdefault(key, list(schema))


def _leaf_count(type_: Any) -> int:
    if pa.types.is_struct(type_):
        return sum(_leaf_count(part.type) for part in type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _leaf_count(type_.value_type)
    return 1
