"""What the journal of a home keeps, as a reader finds it."""

from __future__ import annotations

from pathlib import Path

from dolake.changes import StreamId
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.wire.binary import decode_raw_batch


def records_of(home: Path, source: str | None = None, shard: str = "") -> list[Record]:
    """All records in their order, or those of one stream."""
    with JournalReader(home / "journal") as reader:
        return [each for each in reader.read() if source is None or each.stream == StreamId(source, shard)]


def sequences_of(home: Path, source: str | None = None, shard: str = "") -> list[int]:
    """The sequences of all changes, or of those of one stream."""
    records = records_of(home, source, shard)
    return [change.sequence for record in records for change in decode_raw_batch(record.payload).events]
