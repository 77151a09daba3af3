"""An answer as bytes: JSON, CSV or Arrow, in pieces, while the rows still come.

From answer.py, which has the batches; to worker.py, which sends each piece before it asks for the next. Promise: what
is held in memory is one batch and one piece, however long the answer is; the first piece comes with the first rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from dolake.query.values import json_values

PIECE_BYTES = 256 * 1024
_encode = msgspec.json.Encoder().encode


@dataclass
class Answer:
    """What is told beside the rows."""

    query_id: str
    columns: Sequence[tuple[str, str]]
    """Name and DuckDB's type."""
    freshness: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    started_s: float = field(default_factory=time.monotonic)
    row_count: int = 0
    """Counted while the rows are taken, as is whether there were more."""
    is_truncated: bool = False

    @functools.cached_property
    def names(self) -> list[str]:
        return unique([name for name, _ in self.columns])

    @property
    def described(self) -> list[dict[str, Any]]:
        """The columns for programs."""
        pairs = zip(self.names, self.columns, strict=True)
        return [{"name": name, "type": kind, "nullable": True} for name, (_, kind) in pairs]

    def cut(self, batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
        """The first rows, in batches that are small enough to be turned into text, with the names of the answer."""
        for batch in batches:
            room = rows_max - self.row_count
            self.is_truncated = batch.num_rows > room
            kept = batch.slice(0, room) if self.is_truncated else batch
            self.row_count += kept.num_rows
            yield from _portions(kept.rename_columns(self.names))
            if self.is_truncated:
                return

    @property
    def elapsed_ms(self) -> int:
        return round(1000 * (time.monotonic() - self.started_s))


def json_pieces(answer: Answer, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """One object; the counts come behind the rows, because only then they are known."""
    return _joined(_json_parts(answer, batches))


def _json_parts(answer: Answer, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    yield _encode({"queryId": answer.query_id, "columns": answer.described})[:-1] + b',"rows":['
    make_row = _row_maker(answer.names)
    comma = b""
    for batch in batches:
        if batch.num_rows:
            rows = list(map(make_row, *map(json_values, batch.columns)))
            yield comma + _encode(rows)[1:-1]
            comma = b","
    tail = {
        "rowCount": answer.row_count,
        "truncated": answer.is_truncated,
        "warnings": answer.warnings,
        "freshness": answer.freshness,
        "elapsedMs": answer.elapsed_ms,
    }
    yield b"]," + _encode(tail)[1:]


def csv_pieces(answer: Answer, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """RFC 4180. Text is quoted, so that an empty one differs from none at all."""
    return _joined(_csv_parts(answer, batches))


def _csv_parts(answer: Answer, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    yield (",".join(map(_csv_name, answer.names)) + "\r\n").encode()
    options = pyarrow.csv.WriteOptions(include_header=False, eol="\r\n", quoting_style="needed")
    for batch in batches:
        table = pa.table(list(map(_csv_column, batch.columns)), names=answer.names)
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(table, sink, options)
        yield sink.getvalue().to_pybytes()


def _csv_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\r\n') or not name else name


def _csv_column(array: pa.Array) -> pa.Array:
    """What Arrow writes as we do stays; all else becomes the text that JSON has, and what is nested becomes JSON."""
    kind, types = array.type, pa.types
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind):
        return array
    if types.is_floating(kind) and not array.null_count and pc.all(pc.is_finite(array)).as_py():
        return array
    values = json_values(array)
    return pa.array(values if _is_text(kind) else map(_text, values), pa.string())


def _is_text(kind: pa.DataType) -> bool:
    """Whether JSON has text for every value of this type."""
    return pa.types.is_decimal(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _encode(value).decode()


def arrow_pieces(answer: Answer, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[bytes]:
    """An IPC stream; the schema says what JSON has beside the rows, the last batch, which is empty, the counts."""
    return _joined(_arrow_parts(answer, batches, schema))


def _arrow_parts(answer: Answer, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[bytes]:
    told = {
        "queryId": answer.query_id,
        "columns": answer.described,
        "warnings": answer.warnings,
        "freshness": answer.freshness,
    }
    fields = [each.with_name(name) for each, name in zip(schema, answer.names, strict=True)]
    named = pa.schema(fields, {b"dolake": _encode(told)})
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), named) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
        counts = {"rowCount": answer.row_count, "truncated": answer.is_truncated, "elapsedMs": answer.elapsed_ms}
        last = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in named], schema=named)
        writer.write_batch(last, custom_metadata={b"dolake": _encode(counts)})
    yield sink.take()


class _Sink:
    """What the writer has written since the last look."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are worth sending."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield b"".join(waiting)


def _portions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows with long values a few at a time."""
    rows = max(1, batch.num_rows * 4 * PIECE_BYTES // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        yield batch
        return
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def unique(names: Sequence[str]) -> list[str]:
    """A name that comes again gets `_1`, `_2` and so on, whichever is free."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, own = 0, name
        while own in taken or (number and own in names):
            number += 1
            own = f"{name}_{number}"
        taken.add(own)
        found.append(own)
    return found


def _row_maker(names: Sequence[str]) -> Callable[..., Any]:
    """Rows as Structs: a fifth of the time that dictionaries take."""
    fields = [f"c{number}" for number in range(len(names))]
    try:
        return msgspec.defstruct("Row", fields, rename=dict(zip(fields, names, strict=True)))
    except ValueError:  # a name with a quote or a line break
        return lambda *values: dict(zip(names, values, strict=True))
