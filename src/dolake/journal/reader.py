"""Follow the journal by position, from this process or any other, without the writer noticing.

From a directory that embedded.py fills; to the pipeline, the query process, dedup and `dolake journal dump`.
Promise: yields each durable batch once, in order, checked by its CRC, and never a byte beyond the last sync.

A batch that carries only a state of its source has a position and no change. Who reads changes does not see it: his
next position is behind it all the same, as behind a gap. `with_states` yields such batches too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dolake.errors import NotFound
from dolake.journal import segment
from dolake.journal.mark import Mark, MarkFile
from dolake.journal.record import Kind, Record, decode_batch
from dolake.positions import START, Position


class Place(NamedTuple):
    """Where a record begins: a segment by its first position, and a byte in it."""

    segment: Position
    offset: int


class JournalReader:
    """Reads one journal directory. Cheap to open; keeps one small mapping and at most one file open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = MarkFile(directory, writable=False)

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._mark.close()

    def durable(self) -> Position:
        """How many changes are durable now."""
        return mark.position if (mark := self._mark.read()) else START

    def oldest(self) -> Position:
        """The first position that is still kept."""
        bases = segment.list_bases(self._directory)
        return bases[0] if bases else START

    def read(
        self, start: Position = START, end: Position | None = None, *, with_states: bool = False
    ) -> Iterator[Record]:
        """Every durable batch with a change in [start, end), as of now. The first one may begin before `start`."""
        for _, record in self.walk(start, end, with_states=with_states):
            yield record

    def read_at(self, base: Position, offset: int, end: Position, *, with_states: bool = False) -> Iterator[Record]:
        """Like `read`, from a known byte of a known segment: the quick way back to a place seen before."""
        for _, record in self.walk(base, end, Place(base, offset), with_states=with_states):
            yield record

    def walk(
        self, start: Position, end: Position | None = None, place: Place | None = None, *, with_states: bool = False
    ) -> Iterator[tuple[Place, Record]]:
        """Like `read`, with the place of each record; from a place seen before, so that nothing ahead of it is read."""
        mark = self._mark.read()
        if mark is None or start >= (end_position := mark.position if end is None else min(end, mark.position)):
            return
        is_kept = place is not None and segment.path_of(self._directory, place.segment).exists()
        first = place if place is not None and is_kept else Place(start, segment.HEADER_SIZE)
        for base in self._bases_from(first.segment, mark):
            offset = first.offset if base == first.segment and is_kept else segment.HEADER_SIZE
            for at, record in self._read_segment(base, mark, offset):
                if record.position >= end_position:
                    return
                if record.end > start and (record.change_count or with_states):
                    yield Place(base, at), record

    def follow(
        self,
        start: Position = START,
        *,
        poll_ms: int = 5,
        is_stopped: Callable[[], bool] = lambda: False,
        with_states: bool = False,
    ) -> Iterator[Record]:
        """`read` without an end: waits for what comes next until `is_stopped` says so."""
        position = start
        while not is_stopped():
            durable = self.durable()
            if durable <= position:
                time.sleep(poll_ms / 1000)
                continue
            yield from self.read(position, durable, with_states=with_states)
            position = durable  # also where the last of it is a gap or a state, which yields nothing

    def _bases_from(self, start: Position, mark: Mark) -> list[Position]:
        if start == mark.segment and segment.path_of(self._directory, start).exists():
            return [start]  # who follows closely is in the newest file, and need not look at the folder each time
        bases = [base for base in segment.list_bases(self._directory) if base <= mark.segment]
        first = max((base for base in bases if base <= start), default=None)
        if first is None:
            oldest = bases[0] if bases else mark.position
            raise NotFound(
                f"position {start} is no longer in the journal; the oldest kept is {oldest}",
                hint="older changes are in the Iceberg tables; read on from the oldest position",
            )
        return [base for base in bases if base >= first]

    def _read_segment(self, base: Position, mark: Mark, offset: int) -> Iterator[tuple[int, Record]]:
        path = segment.path_of(self._directory, base)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _removed(path) from None
        try:
            limit = mark.offset if base == mark.segment else None
            scan = segment.Scan(descriptor, offset=offset, limit=limit)
            position = None
            for at, header, body in scan:
                position = header.end
                if header.kind is Kind.BATCH:
                    yield at, decode_batch(header, body)
            self._check_end(path, scan.offset, position, limit)
        finally:
            os.close(descriptor)

    def _check_end(self, path: Path, offset: int, position: Position | None, limit: int | None) -> None:
        """The walk must end where the data does; anything earlier is damage, and silence would be loss."""
        if limit is not None:
            if offset < limit:
                raise segment.damaged(path, offset, "a record's checksum is wrong")
            return
        bases = segment.list_bases(self._directory)
        following = next((base for base in bases if base > int(path.stem)), None)
        if position is not None and position == following:
            return
        # Segments go oldest first: if one behind this file is gone by right, then so is this file.
        if not path.exists():
            raise _removed(path)
        end = "nothing of it can be read" if position is None else f"its records end at position {position}"
        raise segment.damaged(path, offset, f"{end}, the next file begins at {following}")


def _removed(path: Path) -> NotFound:
    return NotFound(
        f"{path.name} was removed while it was read",
        hint="this reader fell behind what is kept; register it as a consumer to hold the journal",
    )
