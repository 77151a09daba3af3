"""Seen before? Which changes of a batch are already durable, and whether they are the same ones.

From embedded.py, which asks before it writes. Pure: points and spans in, verdicts out.
Promise: a stream's highest durable sequence is kept for ever, so a resent change is never written twice. Within the
window a resent change must be equal to what was written under its sequence; other content there is `invalid_sequence`,
never silently dropped. Nothing is hashed on the way in: a span remembers where recent changes lie, and the rare retry
reads them back and compares them, which costs the stream of new batches nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

import msgspec
from msgspec import Raw, UnsetType

from dolake.changes import Batch, StreamId
from dolake.errors import InvalidSequence
from dolake.journal.record import Record, StreamPoint
from dolake.positions import Position
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import EventMetadata, RawEvent, encode
from dolake.wire.source_state import decode_state

_SPAN_RECORDS_MAX = 256
_decode_meaning = msgspec.json.Decoder(EventMetadata | None).decode
# A float would make 1.0 of 1.0000000000000001, and with it a duplicate of something else.
_decode_exactly = msgspec.json.Decoder(float_hook=lambda text: Decimal(text).normalize()).decode
_SPANS_PER_WINDOW = 64


def reset_for_epoch(point: StreamPoint, batch: Batch) -> StreamPoint:
    """The point that counts for this batch: a newer epoch starts from nothing, an older one is over."""
    if batch.epoch == point.epoch:
        return point
    if batch.epoch < point.epoch:
        raise InvalidSequence(
            f"epoch {batch.epoch} of {batch.stream} is over; the stream is in epoch {point.epoch}",
            hint="connect with the current sourceEpoch, or a higher one after restoring the source",
        )
    return StreamPoint(epoch=batch.epoch)


def is_new(point: StreamPoint, batch: Batch) -> bool:
    """Whether every change of the batch lies beyond the point; one without changes is known by its number."""
    if not batch.change_count:
        return batch.number > reset_for_epoch(point, batch).number
    return batch.sequence_first > reset_for_epoch(point, batch).sequence


@dataclass(slots=True)
class Span:
    """A stretch of the journal that holds recent changes of one stream (and of others between them)."""

    before: int
    """The stream's highest durable sequence before this stretch: what is above it and not found here was never sent."""
    sequence_last: int
    segment: Position
    offset: int
    end: Position
    oldest_ms: int
    newest_ms: int
    record_count: int = 1


class RecentChanges:
    """Where the changes of the last window lie, per stream and epoch."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._spans: dict[tuple[StreamId, int], deque[Span]] = {}

    def add(
        self,
        stream: StreamId,
        epoch: int,
        last: int,
        *,
        before: int,
        segment: Position,
        offset: int,
        end: Position,
        now_ms: int,
    ) -> None:
        """Remember one record that became durable at `now_ms`, when the stream was at `before`."""
        spans = self._spans.setdefault((stream, epoch), deque())
        newest = spans[-1] if spans else None
        if (
            newest
            and newest.segment == segment  # a span must not go when only the first of its segments does
            and newest.record_count < _SPAN_RECORDS_MAX
            and now_ms - newest.oldest_ms <= self.window_ms // _SPANS_PER_WINDOW
        ):
            newest.sequence_last, newest.end, newest.newest_ms = last, end, now_ms
            newest.record_count += 1
        else:
            spans.append(Span(before, last, segment, offset, end, now_ms, now_ms))
        self._forget(spans, now_ms)

    def since(self, stream: StreamId, epoch: int, now_ms: int) -> list[Span]:
        """The spans still inside the window, oldest first."""
        spans = self._spans.get((stream, epoch), deque())
        self._forget(spans, now_ms)
        return list(spans)

    def drop_expired(self, now_ms: int) -> None:
        """Let go of streams that have been silent for longer than the window."""
        for key, spans in list(self._spans.items()):
            self._forget(spans, now_ms)
            if not spans:
                del self._spans[key]

    def _forget(self, spans: deque[Span], now_ms: int) -> None:
        while spans and spans[0].newest_ms < now_ms - self.window_ms:
            spans.popleft()


def check_same(batch: Batch, known_last: int, forgotten_last: int, records: Iterable[Record]) -> None:
    """Compare the changes of a resent batch with what the journal holds; raises InvalidSequence where they differ.

    Changes up to `known_last` are durable; those beyond `forgotten_last` must be found in `records`.
    """
    events = decode_raw_batch(batch.payload).events
    wanted = {event.sequence: event for event in events if forgotten_last < event.sequence <= known_last}
    last = max(wanted, default=0)
    for record in records:
        if not wanted:
            return
        if record.stream != batch.stream or record.epoch != batch.epoch:
            continue
        for kept in decode_raw_batch(record.payload).events:
            resent = wanted.pop(kept.sequence, None)
            if resent is not None and not _is_same(resent, kept):
                raise _other_content(
                    batch, kept.sequence, f"is durable with other content ({kept.table} {kept.row_id!r})"
                )
        if record.sequence_last >= last:
            break  # sequences rise along the stream: what was not found until here is not there
    if wanted:
        raise _other_content(batch, min(wanted), f"was never sent, but the stream is already at {known_last}")


def check_same_state(batch: Batch, point: StreamPoint, records: Iterable[Record]) -> None:
    """A batch without changes, under a number that was used before, must be that batch sent again."""
    found = None
    for record in records:
        if (record.stream, record.epoch, record.number) == (batch.stream, batch.epoch, batch.number):
            found = record
    if found and not found.change_count and _is_same_patch(found.source_state, batch.source_state):
        return
    what = "is not known any more" if found is None else "was sent before with other content"
    raise InvalidSequence(
        f"batch {batch.number} of {batch.stream} {what}; the stream is at batch {point.number}",
        expected=point.number + 1,
        hint="number a batch without changes behind lastBatchNumber, which the answer to connect says",
    )


def _is_same_patch(one: bytes, other: bytes) -> bool:
    return one == other or decode_state(one) == decode_state(other)


def without_known(batch: Batch, known_last: int) -> Batch | None:
    """The batch without its changes up to `known_last`; None when nothing is left."""
    if batch.sequence_last <= known_last:
        return None
    message = decode_raw_batch(batch.payload)
    message.events = [event for event in message.events if event.sequence > known_last]
    message.first_event_sequence = message.events[0].sequence
    return Batch(
        stream=batch.stream,
        epoch=batch.epoch,
        number=batch.number,
        sequence_first=message.events[0].sequence,
        sequence_last=batch.sequence_last,
        change_count=len(message.events),
        tables=tuple(sorted({event.table for event in message.events})),
        payload=encode(message),
        source_state=batch.source_state,
        idempotency_key=batch.idempotency_key,
    )


def _is_same(one: RawEvent, other: RawEvent) -> bool:
    """Whether two changes are one. Time and a source's own metadata may be stamped anew when it sends one again."""
    return (
        (one.operation, one.table, one.row_id) == (other.operation, other.table, other.row_id)
        and _is_same_image(one.before, other.before)
        and _is_same_image(one.after, other.after)
        and _meaning_of(one.metadata) == _meaning_of(other.metadata)
    )


def _meaning_of(metadata: Raw | UnsetType) -> EventMetadata | None:
    """Of the metadata only what DoLake acts upon."""
    raw = _bytes_of(metadata)
    return _decode_meaning(raw) or EventMetadata() if raw != b"null" else EventMetadata()


def _is_same_image(one: Raw | UnsetType, other: Raw | UnsetType) -> bool:
    """The bytes decide first: they are mostly equal, and only they can tell numbers that no float can hold."""
    raw, other_raw = _bytes_of(one), _bytes_of(other)
    if raw == other_raw:
        return True
    try:
        return _canonical(raw) == _canonical(other_raw)
    except msgspec.DecodeError:
        return False


def _bytes_of(image: Raw | UnsetType) -> bytes:
    return b"null" if isinstance(image, UnsetType) else bytes(image)


def _canonical(image: bytes) -> bytes:
    return msgspec.json.encode(_decode_exactly(image), order="sorted")


def _other_content(batch: Batch, sequence: int, what: str) -> InvalidSequence:
    return InvalidSequence(
        f"sequence {sequence} of {batch.stream} {what}",
        hint="a restored or re-numbered source must connect with a higher sourceEpoch",
    )
