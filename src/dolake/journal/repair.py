"""The way out of a damaged journal: say exactly what is lost, set it aside, keep the rest.

From cli/journal.py, with the server stopped. Promise: nothing is thrown away. Every file that is changed is first
copied to `damaged/`, intact records keep their positions, and what is lost becomes a gap record, so that readers go
on and positions never shift.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dolake.errors import DoLakeError
from dolake.journal import record, segment
from dolake.journal.disk import Disk
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.mark import MarkFile
from dolake.journal.record import Header, Kind
from dolake.positions import Position

ASIDE = "damaged"


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
class _Survey:
    """One file: its intact records, and whether bytes between or behind them are broken."""

    base: Position
    path: Path
    head: bytes
    pieces: list[_Piece]
    broken: list[tuple[int, int]]


def check_journal(directory: Path) -> JournalReport:
    """Read every byte and list what is wrong."""
    report = JournalReport()
    position: Position | None = None
    for survey in _survey_all(directory):
        report.segment_count += 1
        report.byte_count += survey.path.stat().st_size
        for start, end in survey.broken:
            report.problems.append(f"{survey.path.name} bytes {start} to {end}")
        for piece in survey.pieces:
            if position is not None and piece.header.position != position:
                report.problems.append(f"{survey.path.name}: changes {position} to {piece.header.position} are missing")
            position = piece.header.end
            if piece.header.kind is Kind.BATCH:
                report.record_count += 1
                report.change_count += piece.header.change_count
    if position is not None and (missing := _durable_position(directory) - position) > 0:
        report.problems.append(f"changes {position} to {position + missing} were durable and are missing at the end")
    return report


def repair_journal(directory: Path, *, is_dry_run: bool) -> Iterator[str]:
    """Rewrite each damaged file from its intact records; yields a line for each thing done."""
    disk = Disk()
    surveys = list(_survey_all(directory))
    if not surveys:
        yield "there is no journal here"
        return
    is_changed = False
    for index, survey in enumerate(surveys):
        following = surveys[index + 1].base if index + 1 < len(surveys) else None
        gaps = _gaps_of(survey, following)
        if not survey.broken and not gaps:
            continue
        if not survey.head or not survey.pieces:
            yield f"{survey.path.name} has no readable beginning: nothing of it can be kept where it is; see the docs"
            continue
        is_changed = True
        lost = ", ".join(f"changes {start} to {end}" for start, end in gaps) or "no whole change"
        yield f"{survey.path.name}: {len(survey.pieces)} records kept, lost: {lost}"
        if not is_dry_run:
            _set_aside(directory, survey.path)
            _rewrite(disk, survey, gaps)
    if not is_dry_run and (directory / MARK_FILE).exists():
        _set_aside(directory, directory / MARK_FILE)
        (directory / MARK_FILE).unlink()
        disk.sync_directory(directory)
    yield "done" if is_changed else "no damaged record was found"


def _survey_all(directory: Path) -> Iterator[_Survey]:
    bases = segment.list_bases(directory)
    for base in bases:
        yield _survey(segment.path_of(directory, base), base, is_last=base == bases[-1])


def _survey(path: Path, base: Position, *, is_last: bool) -> _Survey:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        found = _Survey(base, path, b"", [], [])
        try:
            segment.read_header(descriptor, path)
            found.head = os.pread(descriptor, segment.HEADER_SIZE, 0)
        except DoLakeError:
            found.broken.append((0, segment.HEADER_SIZE))
        offset = segment.HEADER_SIZE
        while offset < size:
            scan = segment.Scan(descriptor, offset=offset)
            found.pieces += [_Piece(header, bytes(body)) for _, header, body in scan]
            offset = _next_record(descriptor, scan.offset, size)
            rest = os.pread(descriptor, offset - scan.offset, scan.offset)
            # Behind the last record of the newest file lies reserved space, or a torn write that recovery cuts off.
            is_end = offset >= size and (is_last or not rest.strip(b"\0"))
            if rest and not (is_end and segment.find_damage(descriptor, scan.offset, 0) is None):
                found.broken.append((scan.offset, offset))
        return found
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


def _gaps_of(survey: _Survey, following: Position | None) -> list[tuple[Position, Position]]:
    gaps, position = [], survey.base
    for piece in survey.pieces:
        if piece.header.position > position:
            gaps.append((position, piece.header.position))
        position = piece.header.end
    if following is not None and following > position:
        gaps.append((position, following))
    return gaps


def _rewrite(disk: Disk, survey: _Survey, gaps: list[tuple[Position, Position]]) -> None:
    """The intact records in order, with a gap record wherever positions are missing."""
    waiting = list(gaps)
    buffers, size, timestamp = [survey.head], segment.HEADER_SIZE, 0
    for piece in [*survey.pieces, None]:
        if waiting and (piece is None or piece.header.position > waiting[0][0]):
            start, end = waiting.pop(0)
            buffers += _encode(Kind.GAP, b"", b"", start, end - start, timestamp, size)
            size = sum(map(len, buffers))
        if piece is not None:
            header, meta = piece.header, piece.body[: piece.header.meta_length]
            payload = piece.body[piece.header.meta_length :]
            timestamp = header.commit_timestamp_ms
            buffers += _encode(header.kind, meta, payload, header.position, header.change_count, timestamp, size)
            size = sum(map(len, buffers))
    temporary = survey.path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(descriptor, buffers, 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(survey.path)
    disk.sync_directory(survey.path.parent)


def _encode(
    kind: Kind, meta: bytes, payload: bytes, position: Position, count: int, timestamp: int, synced: int
) -> tuple[bytes, ...]:
    return record.encode(
        kind, meta, payload, position=position, change_count=count, commit_timestamp_ms=timestamp, synced=synced
    )


def _set_aside(directory: Path, path: Path) -> None:
    aside = directory / ASIDE
    aside.mkdir(exist_ok=True)
    number = len(list(aside.iterdir()))
    shutil.copy2(path, aside / f"{number:03d}-{path.name}")


def _durable_position(directory: Path) -> Position:
    if not (directory / MARK_FILE).exists():
        return 0
    mark_file = MarkFile(directory, writable=False)
    try:
        mark = mark_file.read()
    finally:
        mark_file.close()
    return mark.position if mark else 0
