"""The words between the query process and the Spark that answers large questions: one JSON line each way.

From query/spark_engine.py, by stdin; to sql.py, which answers on stdout. Light: it is imported where pyspark is not.
The child ends when its stdin does, so it outlives neither the query process nor the server.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from dolake.settings import PipelineSettings


class Start(Struct, frozen=True, tag="start"):
    """The first word."""

    scratch: str
    settings: PipelineSettings
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"


class Scan(Struct, frozen=True):
    """A table: its Iceberg metadata file, and a Parquet file of the rows that are left out, or none."""

    metadata: str
    deletes: str


class Ask(Struct, frozen=True, tag="ask"):
    """Run a statement, and put its rows into a file as an Arrow stream."""

    id: str
    sql: str
    scans: dict[str, Scan]
    """By the name of their view, as `tables`."""
    tables: dict[str, str]
    """Parquet files."""
    rows_max: int
    out: str


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for this any more."""

    id: str


class Ready(Struct, frozen=True, tag="ready"):
    """Spark is up."""

    version: str


class Progress(Struct, frozen=True, tag="progress"):
    """Tasks of a question that are done, of those that are known."""

    id: str
    done: int
    total: int


class Answered(Struct, frozen=True, tag="answered"):
    """The file is whole."""

    id: str


class Failed(Struct, frozen=True, tag="failed"):
    """There is no answer; without an id, Spark itself could not be started."""

    id: str
    reason: str


Word = Start | Ask | Cancel
Report = Ready | Progress | Answered | Failed

decode_word: Any = msgspec.json.Decoder(Word).decode
decode_report: Any = msgspec.json.Decoder(Report).decode
_encode = msgspec.json.Encoder().encode


def to_line(word: Word | Report) -> bytes:
    return _encode(word) + b"\n"
