"""The nouns that every room shares: a Change of one row, the Stream it belongs to, the Batch it travels in.

The client builds them, the wire speaks them, the journal keeps them and the pipeline folds them. This module imports
none of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Operation = Literal["INSERT", "UPDATE", "DELETE"]
OWN_SOURCES = "dolake."
"""What the names of DoLake's own streams begin with; no source may have such a name."""


@dataclass(frozen=True, slots=True)
class StreamId:
    """One ordered stream of changes: a source database and, where it has several, one of its shards."""

    source: str
    shard: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the server itself writes it: then its values come from tables."""
        return self.source.startswith(OWN_SOURCES)

    def __str__(self) -> str:
        return f"{self.source}/{self.shard}" if self.shard else self.source


@dataclass(frozen=True, slots=True)
class Change:
    """One row inserted, updated or deleted in somebody's database.

    `sequence` rises along the stream; 0 means «the client numbers it». `after` is the row as it is now (INSERT,
    UPDATE), `before` as it was (UPDATE, DELETE).
    """

    table: str
    operation: Operation
    row_id: str
    after: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    sequence: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one stream that are sent, made durable and acknowledged together.

    `payload` is the `cdc_batch` message as it came, already validated: the journal keeps these bytes and nobody
    encodes them twice.
    """

    stream: StreamId
    epoch: int
    number: int
    sequence_first: int
    sequence_last: int
    change_count: int
    tables: tuple[str, ...]
    payload: bytes
    source_state: bytes = b""
    """A JSON merge patch onto the state of the stream; empty where the batch has none. Such a batch may have no
    changes; then its sequences are 0, its payload is empty, and it is known by its number."""
    idempotency_key: str = ""
