"""What the server and a source that it runs say to each other: lines of JSON, one object each. Pure.

The server writes one StartSource to the child's standard input and keeps it open: its end is the end of the child. The
child writes the other lines to its standard output; its log goes to standard error, as JSON too. From
server/sources.py and sources/__main__.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

SourceKind = Literal["sqlite"]
OUTBOX_MAX_BYTES = 256 * 1024 * 1024
"""How large the outbox of a file may become before it is trimmed although its application is at work."""


class StartSource(Struct, frozen=True, kw_only=True, rename="camel"):
    """What to follow, and where the lake is."""

    name: str
    kind: SourceKind
    path: str
    tables: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    mask: dict[str, str] = {}
    namespace: str = ""
    source: str = ""
    """The stream's name; empty is the one of the file."""
    outbox_max_bytes: int = OUTBOX_MAX_BYTES
    url: str
    token: str
    log_level: str = "info"


class TableLine(Struct, frozen=True, rename="camel"):
    """How far the copy of one table is."""

    table: str
    is_complete: bool
    copied: int
    total: int


class StateLine(Struct, frozen=True, kw_only=True, tag="state", rename="camel"):
    """A stream that is connected: how far behind it is, and its tables."""

    stream: str
    pending: int
    lag_ms: int
    tables: tuple[TableLine, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def is_copying(self) -> bool:
        return not all(table.is_complete for table in self.tables)


class WarningLine(Struct, frozen=True, kw_only=True, tag="warning", rename="camel"):
    """Something that the source copes with, and an operator may want to know."""

    message: str
    stream: str = ""


class ErrorLine(Struct, frozen=True, kw_only=True, tag="error", rename="camel"):
    """Why a stream ended, and what to do. The others go on; the child ends when none is left."""

    message: str
    hint: str = ""
    stream: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


SourceLine = StateLine | WarningLine | ErrorLine

_encoder = msgspec.json.Encoder()
_start = msgspec.json.Decoder(StartSource)
_line: msgspec.json.Decoder[SourceLine] = msgspec.json.Decoder(SourceLine)


def to_line(said: StartSource | SourceLine) -> bytes:
    return _encoder.encode(said) + b"\n"


def decode_start(line: bytes) -> StartSource:
    return _start.decode(line)


def decode_line(line: bytes) -> SourceLine:
    """Raises msgspec.DecodeError for a line that is none of these."""
    return _line.decode(line)
