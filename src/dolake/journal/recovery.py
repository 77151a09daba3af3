"""Find the journal's true end after any kind of stop, and everything that must be remembered from it.

From embedded.py, before the first append. Promise: each record that was reported durable is found, or recovery stops
with `Damaged`; a torn last write, which nobody was promised, is cut off. Every checksum is verified. A journal of an
earlier format has this one's afterwards.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dolake.changes import StreamId
from dolake.journal import segment
from dolake.journal.dedup import RecentChanges
from dolake.journal.disk import CACHED_SEGMENTS, Disk
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Header, Kind, StreamPoint, decode_checkpoint, decode_meta
from dolake.journal.retention import SealedSegment
from dolake.positions import START, Position

logger = logging.getLogger(__name__)
_REWRITE_BYTES = 1 << 22


@dataclass(slots=True)
class Recovered:
    """The journal as it was found."""

    journal_id: bytes
    recent: RecentChanges
    streams: dict[StreamId, StreamPoint] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    sealed: list[SealedSegment] = field(default_factory=list)
    base: Position = START
    format: int = segment.FORMAT_VERSION
    """That of the last file."""
    offset: int = 0
    position: Position = START
    oldest_timestamp_ms: int = 0
    commit_timestamp_ms: int = 0
    record_count: int = 0
    torn_bytes: int = 0


def recover(
    directory: Path,
    disk: Disk,
    mark_file: MarkFile,
    *,
    window_ms: int,
    on_progress: Callable[[int, int], None] = lambda _d, _t: None,
) -> Recovered | None:
    """Read every segment in order; None when there is no journal yet."""
    for leftover in directory.glob("*.tmp"):
        leftover.unlink()
    bases = segment.list_bases(directory)
    mark = mark_file.read()
    if not bases:
        if mark:
            raise segment.damaged(segment.path_of(directory, mark.segment), 0, "the file is missing")
        return None
    found = Recovered(journal_id=b"", recent=RecentChanges(window_ms))
    for index, base in enumerate(bases):
        path = segment.path_of(directory, base)
        is_last = index == len(bases) - 1
        descriptor = os.open(path, (os.O_RDWR if is_last else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            _recover_segment(found, path, descriptor, is_first=index == 0)
            if is_last:
                _settle_end(found, path, descriptor, disk, mark)
                if found.format < segment.FORMAT_VERSION:
                    segment.raise_format(descriptor, disk)
            else:
                _seal(found, path, descriptor, bases[index + 1])
        finally:
            os.close(descriptor)
        if index < len(bases) - CACHED_SEGMENTS:
            disk.forget_cached(path)
        on_progress(index + 1, len(bases))
    return found


def new_journal_id() -> bytes:
    return uuid.uuid4().bytes


def _recover_segment(found: Recovered, path: Path, descriptor: int, *, is_first: bool) -> None:
    head = segment.read_header(descriptor, path)
    if is_first:
        found.journal_id, found.position = head.journal_id, head.base
    if head.journal_id != found.journal_id:
        raise segment.damaged(path, 0, "it belongs to another journal")
    found.base, found.format = head.base, head.version
    found.offset, checkpoint, body = segment.first_checkpoint(path, descriptor)
    # Each checkpoint is the whole truth at its place, also where a repair left a gap before it.
    found.streams, found.tables = decode_checkpoint(checkpoint, body)
    found.commit_timestamp_ms = max(found.commit_timestamp_ms, checkpoint.commit_timestamp_ms)
    scan = segment.Scan(descriptor, offset=found.offset)
    for offset, header, record_body in scan:
        if header.position != found.position:
            raise segment.damaged(
                path, offset, f"a record says position {header.position} where {found.position} follows"
            )
        _remember(found, offset, header, record_body)
    found.offset = scan.offset


def _remember(found: Recovered, offset: int, header: Header, body: memoryview) -> None:
    found.position = header.end
    found.commit_timestamp_ms = max(found.commit_timestamp_ms, header.commit_timestamp_ms)
    if header.kind is not Kind.BATCH:
        return
    meta = decode_meta(header, body)
    stream = StreamId(meta.source, meta.shard)
    found.record_count += 1
    found.oldest_timestamp_ms = found.oldest_timestamp_ms or header.commit_timestamp_ms
    known = found.streams.get(stream, StreamPoint())
    point = found.streams[stream] = known.after(meta)
    found.tables.update(meta.tables)
    found.recent.add(
        stream,
        meta.epoch,
        point.sequence,
        before=known.reached(meta.epoch),
        segment=found.base,
        offset=offset,
        end=header.end,
        now_ms=header.commit_timestamp_ms,
    )


def _seal(found: Recovered, path: Path, descriptor: int, next_base: Position) -> None:
    """A segment that has a successor was synced to its end before the successor began."""
    if found.position != next_base:
        what = f"its intact records end at position {found.position}, the next file begins at {next_base}"
        raise segment.damaged(path, found.offset, what)
    size = os.fstat(descriptor).st_size
    found.sealed.append(SealedSegment(found.base, next_base, size, found.commit_timestamp_ms))


def _settle_end(found: Recovered, path: Path, descriptor: int, disk: Disk, mark: Mark | None) -> None:
    """Decide where the last segment ends, cut off what is torn, and make what is kept durable."""
    if mark and mark.journal_id == found.journal_id and mark.position > found.position:
        what = f"records up to position {mark.position} were durable, intact ones end at {found.position}"
        raise segment.damaged(path, found.offset, what)
    if (later := segment.find_damage(descriptor, found.offset, found.position)) is not None:
        raise segment.damaged(path, found.offset, f"a record written after it was durable follows at byte {later}")
    found.torn_bytes = _count_torn(descriptor, found.offset)
    os.ftruncate(descriptor, found.offset)
    # The last process may have died between write and sync, or after a failed sync that left pages marked clean.
    # Writing the same bytes again is the one way to be sure that the sync below covers them.
    start = mark.offset if mark and mark.segment == found.base else segment.HEADER_SIZE
    for offset in range(min(start, found.offset), found.offset, _REWRITE_BYTES):
        piece = os.pread(descriptor, min(_REWRITE_BYTES, found.offset - offset), offset)
        disk.write(descriptor, [piece], offset)
    disk.sync(descriptor)
    if found.torn_bytes:
        logger.warning("torn write cut off", extra={"segment": path.name, "bytes": found.torn_bytes})


def _count_torn(descriptor: int, offset: int) -> int:
    size = os.fstat(descriptor).st_size
    return len(os.pread(descriptor, size - offset, offset).rstrip(b"\0"))
