"""Rollback: a table becomes again what it was, by ordinary changes that follow all others in the journal.

From server/tables.py; the difference between now and then comes from the query process, the changes go to the journal
by the way of any other batch. So history is kept, and pipeline, key index, acks and later changes know no rollback.

First the whole difference is set aside in a file that nobody else sees, then it is appended as one transaction. What
goes wrong with the difference leaves nothing behind then, and a slow one holds no publish back, as an open transaction
would. Changes of others that become durable meanwhile stay in the history; of a row that both have changed, the
rollback's is the later change. Danger: an append that fails in the middle, by a full journal or kill -9, has done a
part of it. Asking once more does the rest, because the difference is computed anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dolake.changes import Batch, Operation, StreamId
from dolake.errors import Conflict, DoLakeError, OutcomeUnknown, QueryUnavailable, Unavailable
from dolake.journal.record import StreamPoint
from dolake.positions import Position
from dolake.receiver.endpoint import Receiver
from dolake.server.appending import BATCH_BYTES_MAX, BATCH_CHANGES_MAX, append, batch_of, check_room
from dolake.tables.layout import RESCUED, table_names
from dolake.tables.types import source_name
from dolake.wire.messages import EnvelopeBatch, RawEvent, encode

logger = logging.getLogger(__name__)

STREAM = StreamId("dolake.rollback")
"""One stream for all rollbacks of a lake, so that a part that was left open ends where the next one begins."""
_IN_MEMORY_MAX_BYTES = 4 * 1024 * 1024
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Target:
    """What a table goes back to: one of its snapshots, or what it was at a time in ms."""

    snapshot_id: int | None = None
    as_of_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """What has to be done to one key now: INSERT what is missing, DELETE what was not there then, UPDATE the others.

    Rows by the table's columns: `before` as it is now, `after` as it was then. A long is an int, also beyond 2^53, and
    a timestamp a datetime with its zone or its ISO text; nested values likewise. `_rescued` stands beside them where it
    is not null, and a row that differs only in it is different; `_key` and the like may stand there too.
    """

    operation: Operation
    key: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


Differences = Callable[[str, Target], AsyncGenerator[Difference, None]]
"""The difference of a table, by its full name, in any order; each key once."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """How far the journal is with it, and how many rows came back, went away and changed."""

    position: Position
    added: int
    removed: int
    changed: int


class Rollbacks:
    """The rollbacks of a lake: one of each table at a time."""

    def __init__(self, folder: Path) -> None:
        self.differences: Differences | None = None
        """Put here by whoever can tell the difference; None as long as nobody can."""
        self._folder = folder
        self._running: set[str] = set()
        self._door = asyncio.Lock()
        """Held while one is appended: two transactions of a stream would end each other."""

    async def roll_back(self, receiver: Receiver, table: str, target: Target) -> RolledBack:
        """Bring a table, by its source's name, back; returns when that is durable."""
        full_name = ".".join(table_names(table)[0])
        if self.differences is None:
            raise QueryUnavailable("nobody can compare tables with their past yet", hint="ask again in a moment")
        if full_name in self._running:
            raise Conflict(f"another rollback of {full_name} is under way", hint="wait for its end, then look again")
        self._running.add(full_name)
        try:
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_MAX_BYTES, dir=str(self._folder)) as file:
                pile = _Pile(file)
                await _gather(self.differences(full_name, target), pile)
                if not pile.count:
                    return RolledBack(receiver.journal.durable, 0, 0, 0)
                async with self._door:
                    position = await _append_all(receiver, table, pile)
        finally:
            self._running.discard(full_name)
        counts = pile.counts
        done = RolledBack(position, counts["INSERT"], counts["DELETE"], counts["UPDATE"])
        logger.info("table rolled back", extra={"table": full_name, "changes": pile.count, "position": position})
        return done


async def _gather(differences: AsyncGenerator[Difference, None], pile: _Pile) -> None:
    async with contextlib.aclosing(differences):
        some: list[Difference] = []
        async for each in differences:
            some.append(each)
            if len(some) >= _AT_ONCE:
                await pile.add(some)
                some = []
        await pile.add(some)


# --- from rows to images ---------------------------------------------------------------------------------------------

_split_row = msgspec.json.Decoder(dict[str, Raw]).decode


def image_of(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A row as its source would send it: by the source's own names, with the values that did not fit their columns."""
    if row is None:
        return None
    rescued: Mapping[str, Any] = _split_row(row[RESCUED]) if row.get(RESCUED) else {}
    named = ((source_name(column), value) for column, value in (*row.items(), *rescued.items()))
    return {name: value for name, value in named if name is not None and value is not None}


# --- what waits to be appended ---------------------------------------------------------------------------------------

_Line = tuple[Operation, str, Raw, Raw]
_decode_line: Callable[[bytes], _Line] = msgspec.json.Decoder(_Line).decode


class _Pile:
    """The changes of a rollback, a line each: in memory while they are few, then in a file without a name.

    Reading and writing happen in threads, because the file may be on a disk, and so that acks need not wait.
    """

    def __init__(self, file: tempfile.SpooledTemporaryFile[bytes]) -> None:
        self.counts: Counter[Operation] = Counter()
        self.byte_count = 0
        self._file = file

    @property
    def count(self) -> int:
        return self.counts.total()

    async def add(self, some: Sequence[Difference]) -> None:
        try:
            await asyncio.to_thread(self._write, some)
        except OSError as error:
            hint = "look at the room on the disk of the home folder, then ask again"
            raise Unavailable(f"the difference cannot be kept: {error.strerror}", hint=hint) from error

    def _write(self, some: Sequence[Difference]) -> None:
        for each in some:
            line = encode((each.operation, each.key, image_of(each.before), image_of(each.after))) + b"\n"
            self.byte_count += self._file.write(line)
            self.counts[each.operation] += 1

    async def batches(self) -> AsyncGenerator[list[_Line], None]:
        """All of it again in its order, at most about one batch of it in memory."""
        await asyncio.to_thread(self._file.seek, 0)
        while lines := await asyncio.to_thread(lambda: list(self._read_batch())):
            yield lines

    def _read_batch(self) -> Iterator[_Line]:
        room = BATCH_BYTES_MAX
        for _ in range(BATCH_CHANGES_MAX):
            line = self._file.readline()
            if not line:
                return
            yield _decode_line(line)
            room -= len(line)
            if room <= 0:
                return


# --- into the journal ------------------------------------------------------------------------------------------------


async def _append_all(receiver: Receiver, table: str, pile: _Pile) -> Position:
    """The whole pile as one transaction; returns where it ends."""
    await check_room(receiver, "rollback", pile.count, pile.byte_count)
    point = await receiver.journal.settled(STREAM)
    writing = _Writing(table, f"rollback-{uuid.uuid4()}", pile.count, receiver.clock_ms(), point)
    done, position = 0, receiver.journal.durable
    async with contextlib.aclosing(pile.batches()) as batches:
        async for lines in batches:
            batch, message = await asyncio.to_thread(writing.batch_of, lines)
            try:
                position = (await append(receiver, batch, message)).end
            except DoLakeError as error:
                if not done:
                    raise
                raise OutcomeUnknown(
                    f"the rollback stopped after {done} of {pile.count} changes: {error.message}",
                    hint="ask for it again: it does what is left",
                ) from error
            done += batch.change_count
    return position


class _Writing:
    """Lines become batches of the stream, each behind the one before."""

    def __init__(self, table: str, transaction: str, left: int, now_ms: int, point: StreamPoint) -> None:
        self._table, self._left, self._now_ms, self._point = table, left, now_ms, point
        self._metadata = Raw(encode({"transactionId": transaction}))
        self._metadata_last = Raw(encode({"transactionId": transaction, "transactionEnd": True}))

    def batch_of(self, lines: Sequence[_Line]) -> tuple[Batch, EnvelopeBatch]:
        events = [self._event(*line) for line in lines]
        self._left -= len(events)
        if not self._left:
            events[-1].metadata = self._metadata_last
        batch, message = batch_of(STREAM, self._point, events, self._now_ms)
        self._point = self._point.after(batch)
        return batch, message

    def _event(self, operation: Operation, key: str, before: Raw, after: Raw) -> RawEvent:
        return RawEvent(
            sequence=1,
            timestamp=self._now_ms,
            operation=operation,
            table=self._table,
            row_id=key,
            before=_present(before),
            after=_present(after),
            metadata=self._metadata,
        )


def _present(image: Raw) -> Raw | UnsetType:
    return UNSET if bytes(image) == b"null" else image
