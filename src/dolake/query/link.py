"""The words between the server and its query process: one JSON line each, in by stdin, out by stdout.

From server/query_process.py; to __main__.py. The child ends when its stdin does, so it cannot outlive its server.
Questions and answers go another way, over a Unix socket: see worker.py.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from dolake.settings import CatalogSettings, DoLakeConfig, PipelineSettings, QuerySettings, Settings, StorageSettings


class Sections(Struct, frozen=True):
    """The settings that the query process follows."""

    query: QuerySettings
    lake: DoLakeConfig
    catalog: CatalogSettings
    pipeline: PipelineSettings = PipelineSettings()
    storage: StorageSettings = StorageSettings()

    @classmethod
    def of(cls, settings: Settings) -> Sections:
        return cls(settings.query, settings.lake, settings.catalog, settings.pipeline, settings.storage)


class Start(Struct, frozen=True, tag="start"):
    """The first word: all that it needs to know."""

    home: str
    socket: str
    settings: Sections
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"


class Follow(Struct, frozen=True, tag="follow"):
    """The settings of now."""

    settings: Sections


class LetGo(Struct, frozen=True, tag="let_go"):
    """A key was forgotten: rows that are kept in memory for the next who asks may be of it."""


class Ready(Struct, frozen=True, tag="ready"):
    """It listens."""

    start_ms: int


class Figures(Struct, frozen=True, tag="figures"):
    """What it is doing; said when that has changed."""

    running: int
    queued: int
    memory_bytes: int


Word = Start | Follow | LetGo
Report = Ready | Figures

_encode = msgspec.json.Encoder().encode
decode_word: Any = msgspec.json.Decoder(Word).decode
decode_report: Any = msgspec.json.Decoder(Report).decode


def to_line(word: Word | Report) -> bytes:
    return _encode(word) + b"\n"
