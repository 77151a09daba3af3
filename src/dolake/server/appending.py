"""Changes of the server's own: ordinary ones, which go to the journal by the way of any batch from a socket.

From rollback.py and quarantine.py, which know what is to be changed; to the journal. Each has a stream of its own,
whose name no source may have. Promise: a batch is admitted and counted as others are, and durable when `append`
returns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from dolake.changes import Batch, StreamId
from dolake.errors import BufferOverflowError, Unavailable
from dolake.journal.base import Appended
from dolake.journal.record import StreamPoint
from dolake.receiver import admission
from dolake.receiver.endpoint import Receiver
from dolake.tables.layout import QUARANTINE_SUFFIX
from dolake.tables.names import problem_with_table_name
from dolake.wire.messages import EnvelopeBatch, RawBatch, RawEvent, check_events, decode_received, encode

BATCH_CHANGES_MAX, BATCH_BYTES_MAX = 1_000, 1024 * 1024
_EVENT_BYTES = 200
"""What a change takes in the journal beside its key and its images, about."""


async def check_room(receiver: Receiver, what: str, change_count: int, byte_count: int) -> None:
    """Refuse what would stop in the middle, before anything of it is appended."""
    receiver.refuse_elsewhere()
    if receiver.is_closing:
        raise Unavailable("the server is shutting down", hint="ask again when it is back")
    progress, journal = receiver.progress, receiver.journal
    admission.check_fallback(progress.breaker, progress.fallback_bytes, receiver.settings.current.lake)
    size = byte_count + change_count * _EVENT_BYTES
    if journal.used_bytes + size > journal.size_max_bytes:
        await asyncio.to_thread(journal.trim, is_pressed=True)
    if (room := journal.size_max_bytes - journal.used_bytes) < size:
        raise BufferOverflowError(
            f"the {what} needs about {size} bytes of the journal, which has {max(0, room)} left",
            hint="POST /flush, then ask again; journal.size_max_bytes says how much the journal takes",
        )


def batch_of(
    stream: StreamId,
    point: StreamPoint,
    events: Sequence[RawEvent],
    now_ms: int,
    problem_with_name: Callable[[str], str | None] = problem_with_table_name,
) -> tuple[Batch, EnvelopeBatch]:
    """The batch behind this point, and the same as the receiver reads it: by its own rules."""
    for sequence, event in enumerate(events, start=point.sequence + 1):
        event.sequence, event.timestamp = sequence, now_ms
    number = point.number + 1
    payload = encode(
        RawBatch(source_do_id=stream.source, sequence_number=number, events=list(events), timestamp=now_ms)
    )
    message = cast("EnvelopeBatch", decode_received(payload))
    batch = Batch(
        stream=stream,
        epoch=point.epoch,
        number=number,
        sequence_first=events[0].sequence,
        sequence_last=events[-1].sequence,
        change_count=len(events),
        tables=check_events(message, problem_with_name),
        payload=payload,
    )
    return batch, message


def problem_with_own_name(name: str) -> str | None:
    """What sources may not name, but a change of ours may: the quarantine of a table."""
    return problem_with_table_name(name.removesuffix(QUARANTINE_SUFFIX))


async def append(receiver: Receiver, batch: Batch, message: EnvelopeBatch) -> Appended:
    """Admitted, given its place, counted when it is durable."""
    # Quarantines come with their tables: server.tables_max is for what sources name.
    held = receiver.tables.check([name for name in batch.tables if not name.endswith(QUARANTINE_SUFFIX)], message)
    try:
        await receiver.journal.room(receiver.settings.current.lake.max_buffer_size)
        ticket = await receiver.journal.append(batch)
        receiver.last_batch_ms = receiver.clock_ms()
        appended = await ticket.wait()
    except BaseException:
        receiver.tables.release(held)
        raise
    receiver.tables.confirm(held)
    counts = Counter(event.table for event in message.events)
    receiver.progress.add_tables(counts, len(batch.payload), appended)
    return appended
