"""A batch in columns: the form of `cdc_batch` in MessagePack that costs a server least, on the socket and as kept.

From the client, which builds it, and the journal, which keeps it as it came; to the receiver, which checks it, and to
every reader of the journal, to whom it is a list of events like any other. Promise: what passes `columns_batch` and
`check_events` obeys every rule that holds for the same changes in JSON. docs/decisions/0023 says why it looks so.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast, overload

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from dolake.changes import Operation
from dolake.errors import MessageValidationError
from dolake.wire.messages import (
    EVENTS_MAX,
    BatchHead,
    Count,
    EnvelopeBatch,
    EventEnvelope,
    EventMetadata,
    Image,
    RawBatch,
    RawEvent,
    RowId,
    Sequence_,
    as_validation_error,
)

OPERATIONS: dict[str, Operation] = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}
LETTERS = {word: letter for letter, word in OPERATIONS.items()}
_ALL_LETTERS = frozenset(OPERATIONS)


class Columns(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The events of a batch, field by field; the images are JSON arrays, as text, with an object or null per event."""

    sequence: Annotated[list[Sequence_], Meta(max_length=EVENTS_MAX)]
    timestamp: Annotated[list[Count], Meta(max_length=EVENTS_MAX)]
    operation: Annotated[str, Meta(max_length=EVENTS_MAX)]
    """A letter for each event: I, U or D."""
    tables: Annotated[list[str], Meta(max_length=EVENTS_MAX)]
    table: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=EVENTS_MAX)]
    """For each event the index of its name in `tables`."""
    row_id: Annotated[list[RowId], Meta(max_length=EVENTS_MAX)]
    before: bytes | None = None
    after: bytes | None = None
    metadata: bytes | None = None


class ColumnBatch(BatchHead, tag="cdc_batch", omit_defaults=True):
    """A `cdc_batch` whose events are columns."""

    events: Columns


class EventColumns(Sequence[EventEnvelope]):
    """Columns that were checked, read like a list of events; each is made only when somebody asks for it."""

    def __init__(self, columns: Columns, afters: Sequence[Image | None]) -> None:
        self.columns, self.afters = columns, afters

    def __len__(self) -> int:
        return len(self.columns.sequence)

    @overload
    def __getitem__(self, index: int) -> EventEnvelope: ...
    @overload
    def __getitem__(self, index: slice) -> list[EventEnvelope]: ...
    def __getitem__(self, index: int | slice) -> EventEnvelope | list[EventEnvelope]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        columns = self.columns
        return EventEnvelope(
            sequence=columns.sequence[index],
            timestamp=columns.timestamp[index],
            operation=OPERATIONS[columns.operation[index]],
            table=columns.tables[columns.table[index]],
            row_id=columns.row_id[index],
            after=self.afters[index],
        )

    @functools.cached_property
    def _table_counts(self) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for index, count in Counter(self.columns.table).items():
            counts[self.columns.tables[index]] += count
        return counts

    def table_counts(self) -> Mapping[str, int]:
        """How many events each table has here."""
        return self._table_counts

    def check_order(self) -> None:
        """Sequences rise, and only a DELETE has no `after`; in C where all is well, which is nearly always."""
        columns = self.columns
        sequences = columns.sequence
        if not all(map(operator.lt, sequences, sequences[1:])):
            index = next(at for at in range(1, len(sequences)) if sequences[at] <= sequences[at - 1])
            raise MessageValidationError(
                f"sequence {sequences[index]} does not follow {sequences[index - 1]}",
                path=f"$.events[{index}].sequence",
                hint="sequences rise along a batch, without repeats",
            )
        for index in [at for at, image in enumerate(self.afters) if image is None]:
            if columns.operation[index] != "D":
                raise MessageValidationError(
                    f"{OPERATIONS[columns.operation[index]]} without an after image",
                    path=f"$.events[{index}].after",
                    hint="INSERT and UPDATE carry the whole row in `after`",
                )


# --- the receiver: check ---------------------------------------------------------------------------------------------

_decode_images = msgspec.json.Decoder(list[Image | None]).decode
_decode_metadata = msgspec.json.Decoder(list[EventMetadata | None]).decode
_AT_EVENT = re.compile(r"^\$\[(\d+)\]")


def columns_batch(batch: ColumnBatch) -> EnvelopeBatch:
    """The batch as the receiver reads every other; raises MessageValidationError."""
    columns = batch.events
    count = len(columns.sequence)
    for name in ("timestamp", "operation", "table", "row_id"):
        if (found := len(getattr(columns, name))) != count:
            raise _problem(f"{found} values for {count} events", "rowId" if name == "row_id" else name)
    if strange := set(columns.operation) - _ALL_LETTERS:
        raise _problem(f"Invalid letter {min(strange)!r}", "operation", "allowed: I, U or D for each event")
    if columns.table and max(columns.table) >= len(columns.tables):
        raise _problem(f"no table has the index {max(columns.table)}", "table")
    afters = _images(columns.after, "after", count, _decode_images)
    _images(columns.before, "before", count, _decode_images)
    _images(columns.metadata, "metadata", count, _decode_metadata)
    head = {name: getattr(batch, name) for name in BatchHead.__struct_fields__}
    return EnvelopeBatch(events=cast(list[EventEnvelope], EventColumns(columns, afters)), **head)


def event_sizes(columns: Columns) -> Iterator[int]:
    """About the bytes of each event: its row id and its images."""
    sizes = [len(row_id.encode()) for row_id in columns.row_id]
    for text in (columns.before, columns.after, columns.metadata):
        for index, image in enumerate(_raws(text, len(sizes))):
            sizes[index] += 0 if isinstance(image, UnsetType) else len(memoryview(image))
    return iter(sizes)


def _images(text: bytes | None, name: str, count: int, decode: Any) -> Sequence[Any]:
    if text is None:
        return (None,) * count
    try:
        # msgspec does not look at the bytes inside an image that nobody reads, so invalid UTF-8 would pass unseen.
        if not text.isascii():
            text.decode()
        found: list[Any] = decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _renamed(as_validation_error(error), name) from None
    if len(found) != count:
        raise _problem(f"{len(found)} images for {count} events", name)
    return found


def _renamed(error: MessageValidationError, name: str) -> MessageValidationError:
    path = _AT_EVENT.sub(rf"$.events[\1].{name}", error.path)
    return MessageValidationError(
        error.message, path=f"$.events.{name}" if path == "$" else path, hint=error.hint.replace("text frames", "JSON")
    )


def _problem(what: str, column: str, hint: str = "") -> MessageValidationError:
    return MessageValidationError(what, path=f"$.events.{column}", hint=hint)


# --- readers and the client ------------------------------------------------------------------------------------------

_decode_raws = msgspec.json.Decoder(list[Raw]).decode


def raw_batch(batch: ColumnBatch) -> RawBatch:
    """The batch as readers of the journal know every other."""
    columns = batch.events
    count = len(columns.sequence)
    rows = zip(
        columns.sequence,
        columns.timestamp,
        columns.operation,
        columns.table,
        columns.row_id,
        _raws(columns.before, count),
        _raws(columns.after, count),
        _raws(columns.metadata, count),
        strict=True,
    )
    tables = columns.tables
    events = [
        RawEvent(
            sequence=sequence,
            timestamp=timestamp,
            operation=OPERATIONS[letter],
            table=tables[table],
            row_id=row_id,
            before=before,
            after=after,
            metadata=metadata,
        )
        for sequence, timestamp, letter, table, row_id, before, after, metadata in rows
    ]
    head = {name: getattr(batch, name) for name in BatchHead.__struct_fields__}
    return RawBatch(events=events, **head)


def columns_of(events: Sequence[RawEvent]) -> Columns:
    """Events in columns."""
    indices: dict[str, int] = {}
    return Columns(
        sequence=[event.sequence for event in events],
        timestamp=[event.timestamp for event in events],
        operation="".join([LETTERS[event.operation] for event in events]),
        table=[indices.setdefault(event.table, len(indices)) for event in events],
        tables=list(indices),
        row_id=[event.row_id for event in events],
        before=_text([event.before for event in events]),
        after=_text([event.after for event in events]),
        metadata=_text([event.metadata for event in events]),
    )


def _raws(text: bytes | None, count: int) -> Sequence[Raw | UnsetType]:
    return (UNSET,) * count if text is None else _decode_raws(text)


def _text(images: Sequence[Raw | UnsetType]) -> bytes | None:
    if all(image is UNSET for image in images):
        return None
    return b"[%b]" % b",".join([b"null" if isinstance(image, UnsetType) else image for image in images])
