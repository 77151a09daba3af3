"""The changes against what the journal still keeps, and what the journal knows of gaps, epochs and moved keys.

From run.py: `load_journal` first, because history.py and folding.py ask what it found; `check_journal` when the changes
are in the workshop. Promise: each change that the journal keeps and the lake has published is in its table of changes
at its position, with the same key, operation, sequence, stream and commit time; whatever is not is named. The journal
is trimmed while we read: what goes meanwhile is not compared.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import UNSET

from dolake.errors import Damaged, NotFound
from dolake.journal import record as records
from dolake.journal import segment
from dolake.journal.reader import JournalReader
from dolake.journal.record import Kind, Record, decode_checkpoint
from dolake.journal.repair import ASIDE
from dolake.pipeline.cut import may_say
from dolake.positions import Position
from dolake.tables.layout import DDL_OPERATIONS, FORGOTTEN, NO_KEY, QUARANTINE_SUFFIX, table_names
from dolake.verify.base import NAMED_MAX, Advance, Check, short
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import Ddl, EventMetadata, RawEvent

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE = 100_000
_TRIES_MAX = 20
_PREVIOUS, _DDL = b'"previousRowId"', b'"ddl"'
_decode_metadata = msgspec.json.Decoder(EventMetadata).decode
_SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("position", pa.int64()),
        ("source", pa.string()),
        ("epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("committed_us", pa.int64()),
        ("key", pa.string()),
        ("operation", pa.string()),
        ("previous", pa.string()),
    ]
)
Row = tuple[int, int, str, int, int, int, str, str, str | None]
Stretch = tuple[Position, Position]
Takes = Callable[[str], bool]
"""Whether the lake takes changes of this table."""


def _takes_all(_table: str) -> bool:
    return True


def _takes_none(_table: str) -> bool:
    return False


@dataclass(slots=True)
class Kept:
    """What the journal knows of positions from `oldest` to `end`; of older ones only what a repair set aside."""

    oldest: Position
    end: Position
    is_deduplicating: bool = True
    batches: list[Stretch] = field(default_factory=list)
    """The stretches of which it has the changes; what lies between two of them is a gap that a repair has left."""
    epochs: dict[str, int] = field(default_factory=dict)
    """By stream, its epoch where the journal begins."""
    set_aside: list[list[Stretch]] = field(default_factory=list)
    """By file that a repair replaced: which changes of it were intact."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Tables that do not exist under this name, and the numbers, below zero, that their changes have."""
    takes: Takes = _takes_all

    def missing_in(self, start: Position, end: Position) -> tuple[list[Stretch], list[tuple[Position, Position, str]]]:
        """Of a stretch that is in no table: what should be there, and what was lost, with the reason."""
        missing: list[Stretch] = []
        excused: list[tuple[Position, Position, str]] = []
        if start < self.oldest:
            old = start, min(end, self.oldest)
            if any(_is_lost(*old, intact) for intact in self.set_aside):
                excused.append((*old, "a repair of the journal set aside what was damaged there"))
            else:
                missing.append(old)
        at, known = max(start, self.oldest), min(end, self.end)
        for first, last in [*self._batches_in(at, known), (known, known)]:
            if first > at:
                excused.append((at, first, "the journal has a gap there, from a repair"))
            if last > first:
                missing.append((max(first, at), min(last, known)))
            at = max(at, min(last, known))
        if at < end:
            missing.append((at, end))
        return missing, excused

    def has(self, position: Position) -> bool:
        """Whether the journal keeps the change at this position."""
        return bool(self._batches_in(position, position + 1))

    def add(self, start: Position, end: Position) -> None:
        if self.batches and self.batches[-1][1] == start:
            self.batches[-1] = self.batches[-1][0], end
        else:
            self.batches.append((start, end))

    def _batches_in(self, start: Position, end: Position) -> list[Stretch]:
        at = max(bisect_right(self.batches, (start, end)) - 1, 0)
        return [each for each in self.batches[at:] if each[1] > start and each[0] < end]


def _is_lost(start: Position, end: Position, intact: Sequence[Stretch]) -> bool:
    """Whether a file that had these intact changes can have lost that stretch: it begins inside it or at its end."""
    is_inside = bool(intact) and intact[0][0] <= start <= intact[-1][1]
    return is_inside and not any(first < end and last > start for first, last in intact)


# --- reading ---------------------------------------------------------------------------------------------------------


def load_journal(
    connection: duckdb.DuckDBPyConnection,
    directory: Path,
    published: Position,
    numbers: Mapping[str, int],
    check: Check,
    advance: Advance,
    *,
    is_deduplicating: bool,
    is_whole: bool,
    takes: Takes = _takes_all,
) -> Kept:
    """Every published change that the journal keeps, of these tables, into the workshop."""
    for _ in range(_TRIES_MAX):
        try:
            with JournalReader(directory) as reader:
                kept = Kept(reader.oldest(), published, is_deduplicating, takes=takes if is_whole else _takes_none)
                kept.epochs = _epochs_at(directory, kept.oldest)
                kept.set_aside = list(_set_aside(directory))
                if reader.durable() < published:
                    what = f"the tables are published up to {published}, but the journal ends at {reader.durable()}"
                    check.differ(what)
                    kept.end = reader.durable()
                _load(connection, reader, kept, published, numbers, check, advance, is_whole=is_whole)
                return kept
        except Damaged as error:
            check.differ(error.message)
            kept.end = kept.batches[-1][1] if kept.batches else kept.oldest
            return kept
        except (NotFound, FileNotFoundError) as error:
            if not directory.is_dir() or not segment.list_bases(directory):
                check.note(f"there is no journal to compare with: {error}")
                return Kept(published, published, is_deduplicating)
    check.note("the journal is trimmed faster than it can be read: nothing of it was compared")
    return Kept(published, published, is_deduplicating)


def _load(
    connection: duckdb.DuckDBPyConnection,
    reader: JournalReader,
    kept: Kept,
    published: Position,
    numbers: Mapping[str, int],
    check: Check,
    advance: Advance,
    *,
    is_whole: bool,
) -> None:
    connection.execute("DELETE FROM journal")
    check.compared = 0
    rows: list[Row] = []
    try:
        for record in reader.read(kept.oldest, published):
            end = min(record.end, published)
            kept.add(record.position, end)
            rows += _rows_of(record, end, numbers, kept, is_whole=is_whole)
            if len(rows) >= _ROWS_AT_ONCE:
                check.compared += _insert(connection, rows)
                rows = []
            advance(end - record.position)
    finally:  # what comes before a damaged record is good
        check.compared += _insert(connection, rows)


def _rows_of(record: Record, end: Position, numbers: Mapping[str, int], kept: Kept, *, is_whole: bool) -> Iterator[Row]:
    full_names = {name: ".".join(table_names(name)[0]) for name in record.tables}
    if not is_whole and not any(name in numbers for name in full_names.values()):
        return
    source, committed_us = str(record.stream), record.commit_timestamp_ms * 1000
    events = decode_raw_batch(record.payload).events[: end - record.position]
    for position, event in enumerate(events, record.position):
        number = numbers.get(full_names[event.table])
        if number is None and kept.takes(event.table):
            number = kept.unknown.setdefault(full_names[event.table], -1 - len(kept.unknown))
        ddl = _ddl_of(event)
        if number is not None:
            yield (
                number,
                position,
                source,
                record.epoch,
                event.sequence,
                committed_us,
                event.row_id if ddl is None else NO_KEY,
                event.operation if ddl is None else DDL_OPERATIONS[ddl.action],
                _previous_of(event) if ddl is None else None,
            )


def _ddl_of(event: RawEvent) -> Ddl | None:
    """What was done to the table itself."""
    if event.metadata is UNSET or not may_say(_DDL, bytes(event.metadata)):
        return None
    ddl: Ddl | None = _decode_metadata(event.metadata).ddl
    return ddl


def _previous_of(event: RawEvent) -> str | None:
    """The key that an update moved its row away from."""
    metadata = event.metadata
    if metadata is UNSET or event.operation != "UPDATE" or _PREVIOUS not in bytes(metadata):
        return None
    previous: str | None = _decode_metadata(metadata).previous_row_id
    return previous


def _insert(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> int:
    if rows:
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
        connection.register("piece", pa.table(columns, schema=_SCHEMA))
        connection.execute("INSERT INTO journal FROM piece")
        connection.unregister("piece")
    return len(rows)


def _epochs_at(directory: Path, base: Position) -> dict[str, int]:
    """Each stream's epoch where this segment begins: its checkpoint says it."""
    path = segment.path_of(directory, base)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, header, body = segment.first_checkpoint(path, descriptor)
    finally:
        os.close(descriptor)
    return {str(stream): point.epoch for stream, point in decode_checkpoint(header, body)[0].items()}


def _set_aside(directory: Path) -> Iterator[list[Stretch]]:
    """Of each segment that a repair has replaced, which changes were intact in it."""
    for path in sorted((directory / ASIDE).glob(f"*{segment.SUFFIX}")):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            base = int(path.stem.rpartition("-")[2])
            found = [(base, base)]
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            found += _intact(data)
        finally:
            os.close(descriptor)
        yield sorted(found)


def _intact(data: bytes) -> Iterator[Stretch]:
    """The changes of every intact batch in these bytes, wherever it stands: between them are damaged ones."""
    at = data.find(records.MAGIC_BYTES)
    while at >= 0:
        header = records.decode_header(data, at)
        if header is not None and header.kind is Kind.BATCH and records.is_intact(data, header, at):
            yield header.position, header.end
        at = data.find(records.MAGIC_BYTES, at + 1)


# --- comparing -------------------------------------------------------------------------------------------------------

_COMPARE = """
SELECT coalesce(j.position, c.position) AS position, j.position IS NOT NULL, c.position IS NOT NULL,
    j.number, c.number, j.key, c.key, j.operation, c.operation, j.sequence, c.sequence, j.source, c.source,
    j.committed_us, c.committed_us
FROM journal AS j FULL JOIN (FROM changes WHERE position >= $oldest AND position < $published) AS c
    ON j.position = c.position
WHERE (j.number, j.key, j.operation, j.sequence, j.source, j.committed_us)
    IS DISTINCT FROM (c.number, c.key, c.operation, c.sequence, c.source, c.committed_us)
ORDER BY ALL
"""
_WORDS = ("table", "key", "operation", "sequence", "stream", "commit time")


# A table's earlier changes are under its old name in the journal; those in quarantine are in another table.
_RENAMES = "SELECT position, number FROM changes WHERE operation = 'RENAME' ORDER BY position"
_RENAME = """
UPDATE journal SET number = $number
WHERE position <= $position AND number = (SELECT number FROM journal WHERE position = $position)
"""
_SET_ASIDE = """
DELETE FROM {table} WHERE position IN (
    SELECT position FROM changes WHERE operation = 'INSERT' AND number IN (SELECT unnest($quarantines)))
"""
# What was forgotten has kept its place in the tables, and may be in the journal for a while.
_FORGOTTEN = """
DELETE FROM {table} WHERE position IN (SELECT position FROM changes WHERE operation = $operation)
"""
_UNKNOWN = "SELECT count(*) FROM journal WHERE number = $number"


def check_journal(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], published: Position, kept: Kept, check: Check
) -> None:
    for position, number in connection.execute(_RENAMES).fetchall():
        connection.execute(_RENAME, {"position": position, "number": number})
    quarantines = [number for number, name in enumerate(names) if name.endswith(QUARANTINE_SUFFIX)]
    if quarantines:
        for table in ("journal", "changes"):  # the journal first: it is told by the changes
            connection.execute(_SET_ASIDE.format(table=table), {"quarantines": quarantines})
    for table in ("journal", "changes"):
        connection.execute(_FORGOTTEN.format(table=table), {"operation": FORGOTTEN})
    for table, number in sorted(kept.unknown.items()):
        counted = connection.execute(_UNKNOWN, {"number": number}).fetchone()
        if count := counted[0] if counted else 0:
            check.differ(f"the journal has {count} published changes of {table}, and there is no such table", count)
    connection.execute("DELETE FROM journal WHERE number < 0")
    found = connection.execute(_COMPARE, {"oldest": kept.oldest, "published": published})
    named: list[str] = []
    count = 0
    while rows := found.fetchmany(NAMED_MAX * 100):
        for position, is_kept, is_published, *pairs in rows:
            if not is_kept and not kept.has(position):
                continue  # the journal was damaged there after the change was published
            count += 1
            if len(named) < NAMED_MAX:
                named.append(_sentence(position, is_kept, is_published, pairs, names))
    check.differ_all(named, count)


def _sentence(position: Position, is_kept: bool, is_published: bool, pairs: list[Any], names: Sequence[str]) -> str:
    if not is_published:
        number, key, operation, sequence, *_ = pairs[::2]
        what = f"{operation} of {short(key)}, sequence {sequence}"
        return f"position {position} is in the journal, and not in {names[number]}: {what}"
    if not is_kept:
        return f"position {position} is in {names[pairs[1]]}, and the journal has a change of another table there"
    kept, found = pairs[::2], pairs[1::2]
    kept[0], found[0] = names[kept[0]], names[found[0]]
    parts = [
        f"{word} {short(theirs)}, in the journal {short(ours)}"
        for word, ours, theirs in zip(_WORDS, kept, found, strict=True)
        if ours != theirs
    ]
    return f"position {position} in {found[0]}: {'; '.join(parts)}"
