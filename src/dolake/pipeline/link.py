"""The words between the server and its pipeline process: orders one way, reports the other, one JSON line each.

From server/spark_process.py, which writes orders to the child's stdin and reads reports from its stdout; to
__main__.py, which does the opposite. The child ends when its stdin does, so it cannot outlive its server.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from dolake.positions import Position
from dolake.settings import DoLakeConfig, PipelineSettings


class Start(Struct, frozen=True, tag="start"):
    """The first order: all that the pipeline needs to know."""

    home: str
    journal: str
    catalog_uri: str
    secret: str
    generation: int
    published: Position
    pipeline: PipelineSettings
    lake: DoLakeConfig
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"


class Publish(Struct, frozen=True, tag="publish"):
    """Publish everything before this position, with the settings of now."""

    to: Position
    pipeline: PipelineSettings
    lake: DoLakeConfig


Order = Start | Publish


class Ready(Struct, frozen=True, tag="ready"):
    """Spark is up."""

    spark_version: str
    start_ms: int


class TableReport(Struct, frozen=True):
    """What a publish did to one source table."""

    table: str
    changes: int
    rows_written: int
    rows_deleted: int
    files_written: int
    bytes_written: int
    index_rows: int
    index_bytes: int


class Published(Struct, frozen=True, tag="published"):
    """One publish, visible now."""

    position: Position
    tables: list[TableReport]
    took_ms: int
    steps_ms: dict[str, int]
    memory_bytes: int


class Reached(Struct, frozen=True, tag="reached"):
    """The order is done, as far as it could be: open transactions may hold back what comes after them."""

    position: Position
    waiting_since_ms: int | None = None


class Failed(Struct, frozen=True, tag="failed"):
    """A publish failed; nothing of it is visible, everything of it is in the journal."""

    reason: str


Report = Ready | Published | Reached | Failed

_encode = msgspec.json.Encoder().encode
decode_order: Any = msgspec.json.Decoder(Order).decode
decode_report: Any = msgspec.json.Decoder(Report).decode


def to_line(word: Order | Report) -> bytes:
    return _encode(word) + b"\n"
