"""Which transactions are whole at a position: an answer shows all of a transaction or nothing of it.

From tail.py, with each record as it is read; to tail.py, which leaves out what is held. The rules are those of
pipeline/cut.py: a transaction ends where its source says so, or with the stream's next change that is not of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dolake.changes import StreamId
from dolake.journal.record import Flag, Record
from dolake.pipeline.cut import metadata_of
from dolake.positions import Position
from dolake.wire.messages import RawEvent


@dataclass(slots=True)
class _Transaction:
    """`whole_from` is the first position that includes its end; None while that was not seen."""

    id: str
    stream: StreamId
    start: Position
    whole_from: Position | None = None


@dataclass(slots=True)
class Transactions:
    """Those of the tail."""

    _seen: list[_Transaction] = field(default_factory=list)
    _open: dict[StreamId, _Transaction] = field(default_factory=dict)

    def follow(self, record: Record, events: list[RawEvent]) -> None:
        """Note what this record begins and ends. Without `events`: one whose changes say nothing of transactions."""
        if not events or Flag.TRANSACTION not in record.flags:
            self._end(record.stream, record.position + 1)
            return
        for at, event in enumerate(events, record.position):
            metadata = metadata_of(event)
            if metadata is None or metadata.transaction_id is None:
                self._end(record.stream, at + 1)
                continue
            found, id_ = self._open.get(record.stream), str(metadata.transaction_id)
            if found is None or found.id != id_:
                self._end(record.stream, at + 1)
                found = self._open[record.stream] = _Transaction(id_, record.stream, at)
                self._seen.append(found)
            if metadata.transaction_end:
                self._end(record.stream, at + 1)

    def held(self, position: Position) -> Mapping[StreamId, Position]:
        """For each stream that is inside a transaction here: where that begins."""
        return {
            each.stream: each.start
            for each in self._seen
            if each.start < position and (each.whole_from is None or each.whole_from > position)
        }

    def forget(self, position: Position) -> None:
        """What ended before this position is of no interest any more."""
        self._seen = [each for each in self._seen if each.whole_from is None or each.whole_from > position]

    def _end(self, stream: StreamId, whole_from: Position) -> None:
        found = self._open.pop(stream, None)
        if found is not None:
            found.whole_from = whole_from
