"""The journal as a copy: held against removal from the moment it is opened, cut where durable bytes end.

From take.py: opened before the catalog is copied, written after it. So the copy begins no later than the copied
catalog's position and ends no earlier, however far publishes and retention go meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dolake.backup.copying import Meter, copy_bytes
from dolake.backup.manifest import StreamEnd
from dolake.changes import StreamId
from dolake.errors import Damaged, NotFound, Unavailable
from dolake.journal import retention, segment
from dolake.journal.mark import MarkFile
from dolake.journal.record import Kind, StreamPoint, decode_checkpoint, decode_meta
from dolake.positions import Position

_PIPELINE = "pipeline"
_CHUNK_BYTES = 1 << 20
_PADDING_MAX_BYTES = 4096


class HeldJournal:
    """All segments of a journal, open: what is removed now can still be read here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors: dict[Position, int] = {}
        self._mark = MarkFile(directory, writable=False)
        self._hold()
        self._consumers = _consumers(directory)

    def close(self) -> None:
        self._mark.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def copy(self, target: Path, published: Position, meter: Meter) -> Position:
        """Write the copy; returns how many changes it holds."""
        target.mkdir(parents=True, exist_ok=True)
        with _lock_of_a_stopped_server(self._directory.parent) as is_stopped:
            mark = self._mark.read()
            if mark is None:
                raise NotFound(f"the journal in {self._directory} was never written", hint="start the server once")
            self._hold()  # those that were begun since
            bases = [base for base in sorted(self._descriptors) if base <= mark.segment]
            if not bases or bases[-1] != mark.segment or bases[0] > published:
                raise Unavailable("the journal moved on while it was looked at", hint="try again")
            lengths = {base: os.fstat(self._descriptors[base]).st_size for base in bases}
            # Behind the mark a running server is writing, and a copy of that could look like damage. Of one that is
            # not running the mark may be old: after a power failure durable bytes lie behind it, which recovery finds.
            lengths[mark.segment] = _written_end(self._descriptors[mark.segment]) if is_stopped else mark.offset
            meter.begin("journal", sum(lengths.values()))
            for base in bases:
                path = segment.path_of(target, base)
                copied = copy_bytes(self._descriptors[base], lengths[base], path, meter)
                if copied.size < lengths[base]:
                    raise Damaged(f"{path.name} became shorter while it was copied", hint="try again")
        places = {name: max(place, bases[0]) for name, place in self._consumers.items()}
        if _PIPELINE in places:
            places[_PIPELINE] = max(published, bases[0])  # what the restored catalog has is what was published
        (target / retention.FILE_NAME).write_bytes(msgspec.json.encode(places))
        copy_of_mark = MarkFile(target, writable=True)
        copy_of_mark.write(mark)
        copy_of_mark.close()
        return mark.position

    def _hold(self) -> None:
        for base in segment.list_bases(self._directory):
            if base not in self._descriptors:
                with contextlib.suppress(FileNotFoundError):  # removed by right since the list was made
                    path = segment.path_of(self._directory, base)
                    self._descriptors[base] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def stream_ends(directory: Path) -> list[StreamEnd]:
    """Where each stream of this journal stands."""
    bases = segment.list_bases(directory)
    if not bases:
        return []
    path = segment.path_of(directory, bases[-1])
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offset, header, body = segment.first_checkpoint(path, descriptor)
        streams, _ = decode_checkpoint(header, body)
        for _, header, body in segment.Scan(descriptor, offset=offset):
            if header.kind is Kind.BATCH:
                meta = decode_meta(header, body)
                stream = StreamId(meta.source, meta.shard)
                streams[stream] = streams.get(stream, StreamPoint()).after(meta)
    finally:
        os.close(descriptor)
    ends = [StreamEnd(str(stream), point.epoch, point.sequence) for stream, point in streams.items()]
    return sorted(ends, key=lambda end: end.stream)


def _consumers(directory: Path) -> dict[str, Position]:
    try:
        return msgspec.json.decode((directory / retention.FILE_NAME).read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}


def _written_end(descriptor: int) -> int:
    """Where the last byte that is not zero lies: the rest of a segment is reserved, not written."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - start, start).rstrip(b"\0")
        if found:
            # A record is padded with zeros, and its own last bytes may be some.
            return min(os.fstat(descriptor).st_size, start + len(found) + _PADDING_MAX_BYTES)
        end = start
    return 0


@contextlib.contextmanager
def _lock_of_a_stopped_server(home: Path) -> Iterator[bool]:
    """Whether no server runs on this home; then none can start until this ends."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
