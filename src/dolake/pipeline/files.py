"""Parquet files of an Iceberg table, written with Arrow: rows, position deletes, and what a commit says of them.

From tasks.py (rows, in Spark's workers) and deletes.py (position deletes, and vectors in a Puffin file where a table is
of format 3); to iceberg.py, which commits them.
Promise: a file whose entry is returned is durable, with Iceberg's field ids and bounds.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import StringType

from dolake.pipeline.store import is_local, store
from dolake.pipeline.text_values import as_text
from dolake.tables.layout import BEFORE, KEY
from dolake.tables.rules import LayoutRules
from dolake.tables.vectors import positions_in, puffin

Json = dict[str, Any]
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
PAGE_ROWS = 4_096
"""A look-up by key decodes one page of each column. DuckDB works on 2,048 rows at a time, so these fit its steps."""
_PAGE_MAX_BYTES = 16 * 1024 * 1024
"""Rows alone decide where a page ends, so that the pages of all columns have the same ones."""
_DICTIONARY_MAX_BYTES = 64 * 1024
_NO_MARK: Mapping[str, Any] = {}


def _with_id(name: str, type_: pa.DataType, id_: int) -> pa.Field:
    return pa.field(name, type_, nullable=False, metadata={"PARQUET:field_id": str(id_)})


DELETES = pa.schema([_with_id("file_path", pa.string(), _PATH_ID), _with_id("pos", pa.int64(), _POSITION_ID)])


@dataclass(frozen=True, slots=True)
class Shape:
    """An Iceberg schema, and what is derived from it once."""

    arrow: pa.Schema
    statistics: Any
    ids: Mapping[str, int]
    repeating: list[str]
    """The columns that get a dictionary: strings but for the key. For other columns it costs more than it saves."""


@lru_cache(maxsize=256)
def shape_of(schema_json: str) -> Shape:
    schema = Schema.model_validate_json(schema_json)
    arrow = pa.schema([_small(field) for field in schema_to_pyarrow(schema)])
    statistics, ids = compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    strings = [path for path, id_ in ids.items() if isinstance(statistics[id_].iceberg_type, StringType)]
    return Shape(arrow, statistics, ids, [path for path in strings if path != KEY])


def _small(field: pa.Field) -> pa.Field:
    """PyIceberg names the types for columns of any size; ours fit the usual ones, which need no copy to get there."""
    return field.with_type(_small_type(field.type))


def _small_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_large_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([_small(part) for part in type_])
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(_small(type_.value_field))
    return type_


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. Arrow's own way does not know every type inside of a struct."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


Ids = Mapping[bytes, bytes]
"""Columns that have another type now, and so another id: the id that they had before."""
_NO_IDS: Ids = {}


def fitted(
    columns: list[pa.Array], have: list[pa.Field], want: list[pa.Field], rows: int, before: Ids = _NO_IDS
) -> list[pa.Array]:
    """Columns of an older file as the table has them now: found by id, whatever their names; null where it has none."""
    by_id = {_id_of(field): (column, field) for column, field in zip(columns, have, strict=True)}
    ids = [before.get(_id_of(field), _id_of(field)) for field in want]
    return [
        _fitted(*by_id[id_], field, before) if id_ in by_id else pa.nulls(rows, field.type)
        for id_, field in zip(ids, want, strict=True)
    ]


def _fitted(array: pa.Array, have: pa.Field, want: pa.Field, before: Ids) -> pa.Array:
    if pa.types.is_struct(want.type):
        parts = [array.field(index) for index in range(have.type.num_fields)]
        inside = fitted(parts, list(have.type), list(want.type), len(array), before)
        return pa.StructArray.from_arrays(inside, fields=list(want.type), mask=array.is_null())
    if pa.types.is_list(want.type):
        inside = _fitted(array.values, have.type.value_field, want.type.value_field, before)
        return pa.ListArray.from_arrays(array.offsets, inside, type=want.type, mask=array.is_null())
    if pa.types.is_string(want.type) and not pa.types.is_string(have.type):
        return as_text(array)
    try:
        return array.cast(want.type)
    except pa.ArrowNotImplementedError as error:
        raise pa.ArrowInvalid(str(error)) from None  # like a value that does not fit


def ids_before(old: Shape, new: Shape, names: Container[str]) -> dict[bytes, bytes]:
    """The ids that these columns had in an older schema, also inside the row before a change."""
    pairs = [(old.arrow, new.arrow)]
    if BEFORE in old.arrow.names:
        pairs.append((old.arrow.field(BEFORE).type, new.arrow.field(BEFORE).type))
    return {
        _id_of(field): _id_of(have.field(field.name)) for have, want in pairs for field in want if field.name in names
    }


def _id_of(field: pa.Field) -> bytes:
    id_: bytes = field.metadata[b"PARQUET:field_id"]
    return id_


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How Parquet files are written."""

    compression: str
    row_group_size: int

    def of(self, rules: LayoutRules) -> WriteOptions:
        """Of a table that may have its own."""
        return WriteOptions(rules.compression or self.compression, rules.row_group_size or self.row_group_size)


def new_file(location: str, token: str, folder: str = "", kind: str = "parquet") -> str:
    """A name for a data file of this table that nobody else has; `folder` is that of its partition."""
    place = f"{location}/data/{folder}" if folder else f"{location}/data"
    return f"{place}/{token}-{uuid.uuid4()}.{kind}"


def remove_file(location: str) -> None:
    store().delete(location)


def remove_files(locations: tuple[str, ...], token: str) -> None:
    """Remove what a try that failed has left: the disk may be full. A store never is, and there the upkeep does it."""
    if is_local():
        for file in (file for location in locations for file in store().list(f"{location}/data")):
            if file.location.rpartition("/")[2].startswith(f"{token}-"):
                store().delete(file.location)


class RowsFile:
    """A data file under way: write to it as often as needed, then close it for its entry in a commit."""

    def __init__(self, location: str, shape: Shape, options: WriteOptions) -> None:
        self.location, self.row_count = location, 0
        self._shape, self._options = shape, options
        self._collected: list[pq.FileMetaData] = []
        self._sink = store().open_write(location)
        self._writer = pq.ParquetWriter(
            self._sink,
            shape.arrow,
            compression=options.compression,
            store_schema=False,
            use_dictionary=shape.repeating or False,
            dictionary_pagesize_limit=_DICTIONARY_MAX_BYTES,
            write_page_index=True,
            max_rows_per_page=PAGE_ROWS,
            data_page_size=_PAGE_MAX_BYTES,
            metadata_collector=self._collected,
        )

    @property
    def size_bytes(self) -> int:
        """How much of it is written."""
        size: int = self._sink.tell()
        return size

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=self._options.row_group_size)
        self.row_count += rows.num_rows

    def close(self) -> Json:
        self._writer.close()
        size_bytes = self.size_bytes
        self._sink.close()
        shape = self._shape
        statistics = data_file_statistics_from_parquet_metadata(self._collected[0], shape.statistics, dict(shape.ids))
        found = statistics.to_serialized_dict()
        return {
            "spec-id": 0,
            "content": "data",
            "file-path": self.location,
            "file-format": "parquet",
            "partition": [],
            "file-size-in-bytes": size_bytes,
            "record-count": self.row_count,
            "column-sizes": _pairs(found["column_sizes"]),
            "value-counts": _pairs(found["value_counts"]),
            "null-value-counts": _pairs(found["null_value_counts"]),
            "nan-value-counts": _pairs(found["nan_value_counts"]),
            "lower-bounds": _hex_pairs(found["lower_bounds"]),
            "upper-bounds": _hex_pairs(found["upper_bounds"]),
            "split-offsets": found["split_offsets"],
            "sort-order-id": 0,
        }


def write_rows(rows: pa.Table, location: str, shape: Shape, options: WriteOptions) -> Json:
    """Write a data file; returns its entry for a commit."""
    file = RowsFile(location, shape, options)
    file.write(rows)
    return file.close()


def write_deletes(data_file: str, positions: NDArray[Any], location: str, mark: Mapping[str, Any] = _NO_MARK) -> Json:
    """Write a position delete file that names one data file; `positions` are sorted, `mark` is of its partition."""
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([data_file]))
    table = pa.table([paths.cast(pa.string()), pa.array(positions.astype(np.int64))], schema=DELETES)
    with store().open_write(location) as sink:
        pq.write_table(table, sink, compression="zstd", store_schema=False, use_dictionary=["file_path"])
        size_bytes = sink.tell()
    name, (low, high) = data_file.encode(), positions[[0, -1]].astype("<i8")
    return {
        "spec-id": 0,
        "content": "position-deletes",
        "file-path": location,
        "file-format": "parquet",
        "partition": [],
        "file-size-in-bytes": size_bytes,
        "record-count": len(positions),
        "lower-bounds": _hex_pairs({_PATH_ID: name, _POSITION_ID: low.tobytes()}),
        "upper-bounds": _hex_pairs({_PATH_ID: name, _POSITION_ID: high.tobytes()}),
        "referenced-data-file": data_file,
        **mark,
    }


def write_vectors(
    positions: Mapping[str, NDArray[Any]], location: str, marks: Mapping[str, Mapping[str, Any]]
) -> dict[str, Json]:
    """Write one Puffin file with a deletion vector for each of these data files; its entries by data file."""
    content, places = puffin(positions)
    with store().open_write(location) as sink:
        sink.write(content)
    return {
        path: {
            "spec-id": 0,
            "content": "position-deletes",
            "file-path": location,
            "file-format": "puffin",
            "partition": [],
            "file-size-in-bytes": len(content),
            "record-count": len(gone),
            "referenced-data-file": path,
            "content-offset": places[path].offset,
            "content-size-in-bytes": places[path].size,
            **marks[path],
        }
        for path, gone in positions.items()
    }


def read_positions(entry: Json) -> NDArray[np.uint32]:
    """The positions in a delete file, or in a vector, that names one data file."""
    if entry["file-format"].lower() == "puffin":
        with store().open_read(entry["file-path"]) as source:
            source.seek(entry["content-offset"])
            return positions_in(source.read(entry["content-size-in-bytes"]))
    column = read_columns(entry["file-path"], ["pos"]).column("pos")
    return cast("NDArray[np.uint32]", column.to_numpy().astype(np.uint32))


def read_columns(location: str, names: list[str]) -> pa.Table:
    """These columns of a data file."""
    with store().open_read(location) as source:
        return pq.read_table(source, columns=names, partitioning=None)


@contextlib.contextmanager
def parquet_file(location: str) -> Iterator[pq.ParquetFile]:
    """A data file to read from, closed at the end."""
    with store().open_read(location) as source, pq.ParquetFile(source) as file:
        yield file


def _pairs(values: dict[int, Any]) -> Json:
    return {"keys": list(values), "values": list(values.values())}


def _hex_pairs(values: dict[int, bytes]) -> Json:
    return {"keys": list(values), "values": [value.hex() for value in values.values()]}
