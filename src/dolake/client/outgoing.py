"""Changes as callers write them become events as the wire wants them: checked by the server's own rules, encoded once.

From aio.py; to conversation.py, which gives out the sequences. Promise: what passes here is refused by no server of
this version for its form, and nothing of a piece with a bad change in it goes on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from msgspec import UNSET, Struct
from msgspec.json import Encoder

from dolake.changes import Change
from dolake.errors import InvalidInput, MessageValidationError
from dolake.wire.messages import SEQUENCE_MAX, EnvelopeBatch, check_events, decode_received, encode

ChangeLike = Change | Mapping[str, Any]
PIECE_EVENTS = 500
"""How many changes are encoded without letting other tasks run."""


class Body(Struct, frozen=True, gc=False):
    """One valid event without its sequence: 0 means that the client gives it one when it lines up."""

    sequence: int
    rest: bytes

    def numbered(self, sequence: int) -> bytes:
        return b'{"sequence":%d,%b' % (sequence, self.rest)


def pieces(changes: ChangeLike | Iterable[ChangeLike]) -> Iterator[Sequence[ChangeLike]]:
    """What is in memory already stays together; anything else is taken a piece at a time."""
    if isinstance(changes, Change | Mapping):
        yield (changes,)
    elif isinstance(changes, list | tuple):
        yield changes
    else:
        iterator = iter(changes)
        while piece := tuple(islice(iterator, PIECE_EVENTS)):
            yield piece


def encode_piece(
    changes: Sequence[ChangeLike], *, offset: int = 0, previous: int = 0, event_bytes_max: int | None = None
) -> list[Body]:
    """Check and encode changes that follow `offset` others of the same send, the last of them with sequence `previous`.

    Errors name the change by its index in the send.
    """
    now_ms = time.time_ns() // 1_000_000
    events = [_event_of(change, index, now_ms) for index, change in enumerate(changes, offset)]
    bodies = _encode_events(events, offset)
    _check_numbering(bodies)
    if event_bytes_max is not None:
        _check_sizes(bodies, offset, event_bytes_max)
    own = bodies[0].sequence
    if 0 < own <= previous:
        raise MessageValidationError(
            f"sequence {own} does not follow {previous}",
            path=f"changes[{offset}].sequence",
            hint="sequences rise along a send, without repeats",
        )
    joined = b",".join([b'{"sequence":%d,%b' % (each.sequence or at, each.rest) for at, each in enumerate(bodies, 1)])
    try:
        message = decode_received(b'{"type":"cdc_batch","sourceDoId":"-","sequenceNumber":0,"events":[%b]}' % joined)
        check_events(cast(EnvelopeBatch, message))
    except MessageValidationError as error:
        raise MessageValidationError(error.message, path=_path_in_send(error.path, offset), hint=error.hint) from None
    return bodies


class _Event(Struct, rename="camel", omit_defaults=True, gc=False):
    """Everything of an event but its sequence. Anything goes in; decode_received says what is wrong with it."""

    timestamp: Any
    operation: Any
    table: Any
    row_id: Any
    before: Any = None
    after: Any = None
    metadata: Any = None


_encode_lines = Encoder().encode_lines
_SPELLINGS = (("rowId", "row_id"), ("timestamp", "timestamp_ms"))
_KEYS = frozenset(("table", "operation", "before", "after", "metadata", "sequence")).union(*_SPELLINGS)


def _event_of(change: ChangeLike, index: int, now_ms: int) -> tuple[int, _Event]:
    sequence, event = _from_change(change, now_ms) if type(change) is Change else _from_mapping(change, index, now_ms)
    if type(sequence) is not int:
        raise MessageValidationError(
            f"Expected `int`, got `{type(sequence).__name__}`", path=f"changes[{index}].sequence"
        )
    return sequence, event


def _encode_events(events: list[tuple[int, _Event]], offset: int) -> list[Body]:
    """All in one call, which is faster; where that fails, one by one, to say which it was."""
    try:
        whole = _encode_lines([event for _, event in events])
        lines = whole.split(b"\n")
        lines.pop()  # behind the last line there is nothing
        has_null = b"null" in whole
    except (TypeError, ValueError, OverflowError, RecursionError):
        lines = []
    if len(lines) != len(events):
        lines = [_encode_one(event, index) for index, (_, event) in enumerate(events, offset)]
        has_null = True
    if has_null:  # what no JSON number can say is written as null, and the value would be lost
        for index, ((_, event), line) in enumerate(zip(events, lines, strict=True), offset):
            if b"null" in line:
                _refuse_not_finite((event.before, event.after, event.metadata), index)
    return [Body(sequence, line[1:]) for (sequence, _), line in zip(events, lines, strict=True)]


def _encode_one(event: _Event, index: int) -> bytes:
    try:
        return encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageValidationError(
            f"cannot be written as JSON: {error}",
            path=f"changes[{index}]",
            hint="use what msgspec can encode: JSON's own types, datetime, date, Decimal, UUID, bytes, dataclasses",
        ) from None


def _refuse_not_finite(value: object, index: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageValidationError(
            f"{value} is no number that JSON has", path=f"changes[{index}]", hint="send null, or the word as a string"
        )
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _refuse_not_finite(each, index)


def _from_change(change: Change, now_ms: int) -> tuple[Any, _Event]:
    return change.sequence, _Event(
        change.timestamp_ms or now_ms,
        change.operation,
        change.table,
        _key_of(change.row_id),
        change.before,
        change.after,
        change.metadata,
    )


def _from_mapping(mapping: object, index: int, now_ms: int) -> tuple[Any, _Event]:
    """A missing key stays missing in the event, so that the message about it is the same as the server's."""
    if type(mapping) is not dict and not isinstance(mapping, Mapping):
        raise MessageValidationError(
            f"Expected a Change or a mapping, got `{type(mapping).__name__}`", path=f"changes[{index}]"
        )
    get = mapping.get
    if problem := _problem_with_keys(mapping):
        raise MessageValidationError(
            problem, path=f"changes[{index}]", hint=f"a change has the keys {', '.join(sorted(_KEYS))}"
        )
    return get("sequence") or 0, _Event(
        get("timestamp") or get("timestamp_ms") or now_ms,
        get("operation", UNSET),
        get("table", UNSET),
        _key_of(get("rowId", get("row_id", UNSET))),
        get("before"),
        get("after"),
        get("metadata"),
    )


def _key_of(row_id: Any) -> Any:
    """A whole number means its text. What else is no text stays, and is refused with its place."""
    return str(row_id) if type(row_id) is int else row_id


def _problem_with_keys(mapping: Mapping[Any, Any]) -> str | None:
    if not mapping.keys() <= _KEYS:
        return f"unknown key {next(key for key in mapping if key not in _KEYS)!r}"
    if "row_id" in mapping or "timestamp_ms" in mapping:
        for ours, pythons in _SPELLINGS:
            if ours in mapping and pythons in mapping:
                return f"{ours!r} and {pythons!r} are two spellings of the same key"
    return None


def _check_sizes(bodies: list[Body], offset: int, event_bytes_max: int) -> None:
    rest_max = event_bytes_max - len(Body(0, b"").numbered(SEQUENCE_MAX))
    if max([len(body.rest) for body in bodies]) <= rest_max:
        return
    for index, body in enumerate(bodies, offset):
        size = len(body.numbered(body.sequence or SEQUENCE_MAX))
        if size > event_bytes_max:
            raise MessageValidationError(
                f"a change of {size} bytes is too large",
                path=f"changes[{index}]",
                hint=f"the server takes {event_bytes_max} bytes",
            )


def _check_numbering(bodies: list[Body]) -> None:
    if len({body.sequence == 0 for body in bodies}) > 1:
        raise mixed_numbering()


def mixed_numbering() -> InvalidInput:
    return InvalidInput(
        "some changes of this stream carry a sequence and others do not",
        hint="give every change its own sequence, or leave all of them to the client",
    )


_EVENT_INDEX = re.compile(r"^\$\.events\[(\d+)\]")


def _path_in_send(path: str, offset: int) -> str:
    return _EVENT_INDEX.sub(lambda match: f"changes[{int(match[1]) + offset}]", path)
