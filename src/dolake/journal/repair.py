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
from dolake.errors import Damaged, NotFound
from dolake.journal import record, segment
from dolake.journal.disk import Disk
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Header, Kind, StreamPoint
from dolake.journal.recovery import new_journal_id
from dolake.journal.retention import Consumers, missing_beginning
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
    def found_end(self) -> Position:
        return self.pieces[-1].header.end if self.pieces else self.base

    @property
    def has_checkpoint(self) -> bool:
        return bool(self.pieces) and self.pieces[0].header.kind is Kind.CHECKPOINT

    @property
    def is_damaged(self) -> bool:
        return self.is_missing or bool(self.broken) or not self.has_checkpoint or bool(self.gaps())

    @property
    def is_misplaced(self) -> bool:
        """Whether records lie here that belong before this file's place, or twice: the file has another one's name."""
        position = self.base
        for piece in self.pieces:
            if piece.header.position < position:
                return True
            position = piece.header.end
        return False

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
            stream = StreamId(meta.source, meta.shard)
            self.streams[stream] = self.streams.get(stream, StreamPoint()).after(meta)
            self.tables.update(meta.tables)

    def as_checkpoint(self, base: Position) -> _Piece:
        meta = record.encode_checkpoint(self.streams, self.tables)
        return _Piece(Header(Kind.CHECKPOINT, base, 0, self.timestamp, 0, len(meta), len(meta), 0), meta)


def check_journal(directory: Path) -> JournalReport:
    """Read every byte and list what is wrong."""
    report = JournalReport()
    bases = segment.list_bases(directory)
    released = Consumers(directory, Disk()).released()
    if bases and (problem := missing_beginning(bases[0], released)):
        report.problems.append(problem)
    for file in _files(directory, _read_mark(directory)):
        report.segment_count += not file.is_missing
        if file.is_misplaced:
            report.problems.append(f"{file.path.name} holds records of another place: it has another file's name")
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
    for file in _files(directory, mark):
        if file.is_misplaced:
            raise segment.damaged(file.path, 0, "it has another file's name; put the names right by hand")
    journal_id = journal_id_of(directory) or (mark.journal_id if mark else new_journal_id())
    file_count = damaged_count = 0
    for file in _files(directory, mark):
        file_count += 1
        is_damaged = file.is_damaged
        damaged_count += is_damaged
        if is_damaged:
            yield from _describe(file, is_first=file_count == 1)
        if not file.has_checkpoint:
            file.pieces.insert(0, memory.as_checkpoint(file.base))
        for piece in file.pieces:
            memory.add(piece)
        if is_damaged and not is_dry_run:
            head = file.head or SegmentHeader(file.base, memory.timestamp, journal_id)
            _set_aside(directory, file.path)
            size = _rewrite(file, head)
            if mark and mark.segment == file.base:
                _set_aside(directory, directory / MARK_FILE)
                _write_mark(directory, Mark(file.end, file.base, size, memory.timestamp, journal_id))
    if not file_count:
        yield "there is no journal here"
    elif not damaged_count:
        yield "no damaged record was found"
    elif not is_dry_run:
        yield "done"


def _describe(file: _File, *, is_first: bool) -> Iterator[str]:
    lost = ", ".join(f"changes {start} to {end}" for start, end in file.gaps()) or "no whole change"
    yield f"{file.path.name}: {len(file.pieces)} records kept, lost: {lost}"
    if is_first and file.base > START and not file.has_checkpoint:
        yield f"{file.path.name}: its checkpoint is lost, and with it where streams were that have no batch here"


# --- what is there ---------------------------------------------------------------------------------------------------


def _read_mark(directory: Path) -> Mark | None:
    """The mark, if it is one of this journal."""
    if not (directory / MARK_FILE).exists():
        return None
    try:
        mark_file = MarkFile(directory, writable=False)
    except NotFound:  # empty: a server was killed while it made the file
        return None
    try:
        mark = mark_file.read()
    finally:
        mark_file.close()
    own = journal_id_of(directory)
    return mark if mark and own in (None, mark.journal_id) else None


def journal_id_of(directory: Path) -> bytes | None:
    """As the first readable header says."""
    for base in segment.list_bases(directory):
        if head := _read_head(segment.path_of(directory, base)):
            return head.journal_id
    return None


def _read_head(path: Path) -> SegmentHeader | None:
    """None where it is broken. One of another format may be sound: only a release that knows the format can tell."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return segment.read_header(descriptor, path)
    except Damaged:
        raw = os.pread(descriptor, segment.HEADER_SIZE, 0)
        if raw[:8] == segment.MAGIC and int.from_bytes(raw[8:12], "little") not in segment.FORMATS_READ:
            raise
        return None
    finally:
        os.close(descriptor)


def _files(directory: Path, mark: Mark | None) -> Iterator[_File]:
    """Every file that is there, one in memory at a time; and the newest one also if it should be there."""
    bases = segment.list_bases(directory)
    if mark and mark.segment not in bases and (not bases or mark.position > mark.segment > bases[-1]):
        bases.append(mark.segment)
    for index, base in enumerate(bases):
        is_newest = index == len(bases) - 1
        own_mark = mark if mark and mark.segment == base else None
        file = _survey(segment.path_of(directory, base), base, own_mark, is_newest=is_newest)
        file.end = file.found_end if is_newest else bases[index + 1]
        if own_mark:
            file.end = max(file.end, own_mark.position)
        yield file


def _survey(path: Path, base: Position, mark: Mark | None, *, is_newest: bool) -> _File:
    if not path.exists():
        return _File(path, base, is_missing=True)
    file = _File(path, base, head=_read_head(path))
    if file.head is None:
        file.broken.append((0, segment.HEADER_SIZE))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, offset = os.fstat(descriptor).st_size, segment.HEADER_SIZE
        while offset < size:
            scan = segment.Scan(descriptor, offset=offset)
            file.pieces += [_Piece(header, bytes(body)) for _, header, body in scan]
            is_promised = mark is not None and scan.offset < mark.offset
            if is_newest and not is_promised and not segment.find_damage(descriptor, scan.offset, file.found_end):
                break  # reserved space, or a torn write
            offset = _next_record(descriptor, scan.offset, size)
            if offset < size or os.pread(descriptor, size, scan.offset).strip(b"\0"):
                file.broken.append((scan.offset, offset))
        return file
    finally:
        os.close(descriptor)


def _next_record(descriptor: int, offset: int, size: int) -> int:
    """Where the next intact record begins; the end of the file when there is none."""
    rest = os.pread(descriptor, size - offset, offset)
    at = rest.find(record.MAGIC_BYTES, 1)
    while at >= 0:
        header = record.decode_header(rest, at)
        if header is not None and record.is_intact(rest, header, at):
            return offset + at
        at = rest.find(record.MAGIC_BYTES, at + 1)
    return size


# --- what becomes of it ----------------------------------------------------------------------------------------------


def _rewrite(file: _File, head: SegmentHeader) -> int:
    """The intact records in order, with a gap record wherever positions are missing; returns the new size."""
    disk, buffers, size, position, timestamp = Disk(), [head.encode()], segment.HEADER_SIZE, file.base, 0
    for piece in [*file.pieces, None]:
        start = file.end if piece is None else piece.header.position
        while position < start:
            count = min(start - position, _GAP_CHANGES_MAX)
            gap = _Piece(Header(Kind.GAP, position, count, timestamp, 0, 0, 0, 0), b"")
            buffers += (encoded := _encode(gap, synced=size))
            size += sum(map(len, encoded))
            position += count
        if piece is not None:
            buffers += (encoded := _encode(piece, synced=size))
            size += sum(map(len, encoded))
            position, timestamp = piece.header.end, piece.header.commit_timestamp_ms
    temporary = file.path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(descriptor, buffers, 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(file.path)
    disk.sync_directory(file.path.parent)
    return size


def _encode(piece: _Piece, *, synced: int) -> tuple[bytes, ...]:
    header, meta_length = piece.header, piece.header.meta_length
    return record.encode(
        header.kind,
        piece.body[:meta_length],
        piece.body[meta_length:],
        position=header.position,
        change_count=header.change_count,
        commit_timestamp_ms=header.commit_timestamp_ms,
        synced=synced,
        form=header.form,
        flags=header.flags,
    )


def _write_mark(directory: Path, mark: Mark) -> None:
    """In place, not in a new file: readers in other processes have this one mapped."""
    mark_file = MarkFile(directory, writable=True)
    try:
        mark_file.write(mark)
    finally:
        mark_file.close()


def _set_aside(directory: Path, path: Path) -> None:
    if not path.exists():
        return
    aside = directory / ASIDE
    aside.mkdir(exist_ok=True)
    number = len(list(aside.iterdir()))
    shutil.copy2(path, aside / f"{number:03d}-{path.name}")
