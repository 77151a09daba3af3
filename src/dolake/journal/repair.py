"""The way out of a damaged journal: say exactly what is lost, set it aside, keep the rest.

From cli/journal.py, with the server stopped. Promise: nothing is thrown away. Every file that is changed is first
copied to `damaged/`, intact records keep their positions, and what is lost becomes a gap record, so that readers go
on, positions never shift and none is given twice. A torn write, which nobody was promised, is left to recovery.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dolake.changes import StreamId
from dolake.errors import DoLakeError
from dolake.journal import record, segment
from dolake.journal.disk import Disk
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Header, Kind, StreamPoint
from dolake.journal.recovery import new_journal_id
from dolake.journal.segment import SegmentHeader
from dolake.positions import START, Position

ASIDE = "damaged"
_GAP_CHANGES_MAX = 2**32 - 1


@dataclass(slots=True)
class JournalReport:
    """What a check found."""

    segment_count: int = 0
    record_count: int = 0
    change_count: int = 0
    byte_count: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Piece:
    """An intact record as it lies in a file."""

    header: Header
    body: bytes


@dataclass(slots=True)
class _File:
    """One file as it was found: its intact records, and which bytes between or behind them are broken."""

    path: Path
    base: Position
    end: Position = START
    """Where its records must end: at the next file, or for the newest one where the mark says."""
    is_missing: bool = False
    head: SegmentHeader | None = None
    pieces: list[_Piece] = field(default_factory=list)
    broken: list[tuple[int, int]] = field(default_factory=list)

    @property
    def has_checkpoint(self) -> bool:
        return bool(self.pieces) and self.pieces[0].header.kind is Kind.CHECKPOINT

    @property
    def is_damaged(self) -> bool:
        return self.is_missing or bool(self.broken) or not self.has_checkpoint or bool(self.gaps())

    def gaps(self) -> list[tuple[Position, Position]]:
        """The changes that are not here and should be."""
        gaps, position = [], self.base
        for piece in self.pieces:
            if piece.header.position > position:
                gaps.append((position, piece.header.position))
            position = piece.header.end
        if self.end > position:
            gaps.append((position, self.end))
        return gaps


@dataclass(slots=True)
class _Memory:
    """What the journal knows at a place in it; a lost checkpoint is made again from this."""

    streams: dict[StreamId, StreamPoint] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    timestamp: int = 0

    def add(self, piece: _Piece) -> None:
        header, body = piece.header, memoryview(piece.body)
        self.timestamp = max(self.timestamp, header.commit_timestamp_ms)
        if header.kind is Kind.CHECKPOINT:
            self.streams, self.tables = record.decode_checkpoint(header, body)
        elif header.kind is Kind.BATCH:
            meta = record.decode_meta(header, body)
            self.streams[StreamId(meta.source, meta.shard)] = StreamPoint(meta.epoch, meta.sequence_last, meta.number)
            self.tables.update(meta.tables)

    def as_checkpoint(self, base: Position) -> _Piece:
        meta = record.encode_checkpoint(self.streams, self.tables)
        return _Piece(Header(Kind.CHECKPOINT, base, 0, self.timestamp, 0, len(meta), len(meta), 0), meta)


def check_journal(directory: Path) -> JournalReport:
    """Read every byte and list what is wrong."""
    report = JournalReport()
    for file in _files(directory, _read_mark(directory)):
        report.segment_count += not file.is_missing
        report.byte_count += 0 if file.is_missing else file.path.stat().st_size
        if file.is_missing:
            report.problems.append(f"{file.path.name} is missing")
        report.problems += [f"{file.path.name} bytes {start} to {end}" for start, end in file.broken]
        report.problems += [f"{file.path.name}: changes {start} to {end} are missing" for start, end in file.gaps()]
        batches = [piece.header for piece in file.pieces if piece.header.kind is Kind.BATCH]
        report.record_count += len(batches)
        report.change_count += sum(header.change_count for header in batches)
    return report


def repair_journal(directory: Path, *, is_dry_run: bool) -> Iterator[str]:
    """Write each damaged file anew from its intact records; yields a line for each thing done."""
    mark, memory = _read_mark(directory), _Memory()
    journal_id = _journal_id(directory) or (mark.journal_id if mark else new_journal_id())
    is_there = is_changed = False
    for file in _files(directory, mark):
        is_there = True
        if file.is_damaged:
            is_changed = True
            yield from _describe(file, is_first=not memory.streams)
        if not file.has_checkpoint:
            file.pieces.insert(0, memory.as_checkpoint(file.base))
            file.broken = file.broken or [(0, segment.HEADER_SIZE)]
        for piece in file.pieces:
            memory.add(piece)
        if file.is_damaged and not is_dry_run:
            head = file.head or SegmentHeader(file.base, memory.timestamp, journal_id)
            _set_aside(directory, file.path)
            size = _rewrite(file, head)
            if mark and file.base == mark.segment:
                _set_aside(directory, directory / MARK_FILE)
                _replace_mark(directory, Mark(file.end, file.base, size, memory.timestamp, head.journal_id))
    if not is_there:
        yield "there is no journal here"
    else:
        yield "done" if is_changed else "no damaged record was found"


def _describe(file: _File, *, is_first: bool) -> Iterator[str]:
    lost = ", ".join(f"changes {start} to {end}" for start, end in file.gaps()) or "no whole change"
    yield f"{file.path.name}: {len(file.pieces)} records kept, lost: {lost}"
    if not file.has_checkpoint and is_first and file.base > START:
        yield f"{file.path.name}: its checkpoint is lost; streams that sent nothing since begin anew at what comes next"


# --- what is there ---------------------------------------------------------------------------------------------------


def _read_mark(directory: Path) -> Mark | None:
    """The mark, if it is one of this journal."""
    if not (directory / MARK_FILE).exists():
        return None
    mark_file = MarkFile(directory, writable=False)
    try:
        mark = mark_file.read()
    finally:
        mark_file.close()
    own = _journal_id(directory)
    return mark if mark and own in (None, mark.journal_id) else None


def _journal_id(directory: Path) -> bytes | None:
    """As the first readable header says."""
    for base in segment.list_bases(directory):
        if head := _read_head(segment.path_of(directory, base)):
            return head.journal_id
    return None


def _read_head(path: Path) -> SegmentHeader | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        segment.check_version(os.pread(descriptor, segment.HEADER_SIZE, 0), path)
        return segment.read_header(descriptor, path)
    except segment.UnknownFormat:
        raise  # it may be sound: only a release that knows this format can tell
    except DoLakeError:
        return None
    finally:
        os.close(descriptor)


def _files(directory: Path, mark: Mark | None) -> Iterator[_File]:
    """Every file that is there, and the newest one also if it should be."""
    bases = segment.list_bases(directory)
    if mark and mark.segment not in bases and (not bases or mark.position > mark.segment > bases[-1]):
        bases.append(mark.segment)
    for index, base in enumerate(bases):
        following = bases[index + 1] if index + 1 < len(bases) else None
        path = segment.path_of(directory, base)
        if not path.exists():
            yield _File(path, base, end=mark.position if mark else base, is_missing=True)
        else:
            yield _survey(path, base, following, mark)


def _survey(path: Path, base: Position, following: Position | None, mark: Mark | None) -> _File:
    found = _File(path, base, head=_read_head(path))
    if found.head is None:
        found.broken.append((0, segment.HEADER_SIZE))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, offset, position = os.fstat(descriptor).st_size, segment.HEADER_SIZE, base
        durable = mark.offset if mark and mark.segment == base else 0
        while offset < max(size, durable):
            scan = segment.Scan(descriptor, offset=offset)
            for _, header, body in scan:
                found.pieces.append(_Piece(header, bytes(body)))
                position = header.end
            offset = _next_record(descriptor, scan.offset, size, position)
            if offset >= size and _is_end(descriptor, scan.offset, position, following, durable):
                break
            found.broken.append((scan.offset, offset))
    finally:
        os.close(descriptor)
    is_newest = mark is not None and mark.segment == base
    found.end = following if following is not None else max(position, mark.position if mark and is_newest else START)
    return found
