"""What a lake knows about streams and their tables, before a source begins: `GET /v1/sources`. Pure.

From the command line and sources/__main__.py, which ask; to attachment.py, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dolake.changes import StreamId
from dolake.sources.sqlite.state import FileState, read_state


@dataclass(frozen=True, slots=True)
class KnownStream:
    """One stream of the lake. `state` is None where it is not of a file, or was written by an older source."""

    stream: StreamId
    is_connected: bool
    state: FileState | None = None

    @property
    def tables(self) -> frozenset[str]:
        """The lake's tables that it writes to."""
        return frozenset(table.lake for table in self.state.tables.values()) if self.state else frozenset()


@dataclass(frozen=True, slots=True)
class LakeView:
    """All streams of a lake."""

    streams: Mapping[StreamId, KnownStream] = field(default_factory=dict)

    def of_identity(self, identity: str) -> Sequence[KnownStream]:
        """Streams of the file that carries this identity, or of its copies."""
        return [each for each in self.streams.values() if each.state and each.state.identity == identity]

    def owners(self, table: str) -> Sequence[KnownStream]:
        """Who writes to this table of the lake."""
        return [each for each in self.streams.values() if table in each.tables]


def read_view(answer: Mapping[str, Any]) -> LakeView:
    """The answer of the route."""
    found = {}
    for each in answer.get("streams", ()):
        stream = StreamId(each["source"], each["shard"])
        found[stream] = KnownStream(stream, bool(each.get("connected")), read_state(each.get("state")))
    return LakeView(found)
