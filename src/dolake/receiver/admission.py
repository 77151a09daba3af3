"""Who may write what: checks that need more than the message itself, before a batch goes to the journal.

From receiver/connection.py. Pure but for the set of known tables. Promise: what is refused here was not kept, and the
refusal says what is allowed. Rates and numbers of connections are limiter.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dolake.changes import OWN_SOURCES, StreamId
from dolake.errors import BufferOverflowError, InvalidInput, MessageValidationError, RateLimited
from dolake.identity.grants import Grant
from dolake.positions import CircuitBreakerState
from dolake.receiver.limiter import RateLimitResult
from dolake.settings import DoLakeConfig, JournalSettings, RateLimitConfig
from dolake.tables.names import split_table_name
from dolake.wire.columns import EventColumns, event_sizes
from dolake.wire.messages import BatchMessage, EventEnvelope


class TooLarge(InvalidInput):
    """A message or one event of it is over its limit."""

    def __init__(self, message: str, *, size_max: int, is_event: bool) -> None:
        super().__init__(message, hint="split the batch" if not is_event else "store large values elsewhere")
        self.size_max = size_max
        self.is_event = is_event


class Refused(RateLimited):
    """The limiter's no, with its own word for the nack."""

    def __init__(self, result: RateLimitResult) -> None:
        hint = "wait, then send again" if result.reason != "connection_limit" else "close one of them first"
        super().__init__(result.message, retry_after_ms=result.retry_delay_ms or 0, hint=hint)
        self.result = result


def raise_if_refused(result: RateLimitResult) -> None:
    if result.allowed:
        return
    if result.max_size is not None:
        raise TooLarge(result.message, size_max=result.max_size, is_event=False)
    raise Refused(result)


class _EventBytes(msgspec.Struct):
    events: list[msgspec.Raw]


_decode_event_bytes = msgspec.json.Decoder(_EventBytes).decode


def check_fits_journal(data: bytes, journal: JournalSettings) -> None:
    """Refuse what could never fit into the journal, however empty that is."""
    if len(data) > (fitting := journal.size_max_bytes // 2):
        what = f"the message has {len(data)} bytes, more than half of journal.size_max_bytes {journal.size_max_bytes}"
        raise TooLarge(what, size_max=fitting, is_event=False)


def check_event_sizes(data: bytes, limits: RateLimitConfig, events: Sequence[EventEnvelope] = ()) -> None:
    """Look at single events only where one of them could be too large."""
    if len(data) <= limits.max_event_size:
        return
    sizes = event_sizes(events.columns) if isinstance(events, EventColumns) else _event_sizes(data)
    for index, size in enumerate(sizes):
        if size > limits.max_event_size:
            what = f"events[{index}] has {size} bytes, more than max_event_size {limits.max_event_size}"
            raise TooLarge(what, size_max=limits.max_event_size, is_event=True)


def _event_sizes(data: bytes) -> Iterator[int]:
    return (len(memoryview(event)) for event in _decode_event_bytes(data).events)


def check_source(stream: StreamId) -> None:
    """Streams that begin so are DoLake's own: a rollback writes to one."""
    if stream.is_own:
        what = f"the source {stream.source!r} begins with {OWN_SOURCES}, which is kept for DoLake itself"
        raise MessageValidationError(what, path="$.sourceDoId", hint="choose another name for the source")


def check_speaker(stream: StreamId, grant: Grant) -> None:
    """Only who may speak for a source can send its changes, or take its stream over."""
    if not grant.speaks_as(stream.source):
        what = f"this token may not speak as the source {stream.source[:80]!r}"
        raise MessageValidationError(what, path="$.sourceDoId", hint="`dolake token create --source` names those")


def check_namespaces(tables: Iterable[str], batch: BatchMessage[EventEnvelope], grant: Grant) -> None:
    """Refuse a batch with a table outside of what the token sees; whether there is such a table, nobody learns."""
    for name in tables:
        if not grant.sees_table(name):
            raise _at(batch, name, "is in no namespace of this token")


def check_fallback(breaker: CircuitBreakerState, fallback_bytes: int, lake: DoLakeConfig) -> None:
    """While publishing fails the journal takes changes in its place, as far as the settings allow that."""
    if breaker == "closed":
        return
    if not lake.enable_fallback:
        hint = "it heals by itself when publishing works again; enable_fallback=true would keep taking changes"
        raise BufferOverflowError("publishing fails and enable_fallback is false", hint=hint)
    if fallback_bytes >= lake.max_fallback_size:
        hint = "it heals by itself when publishing works again; max_fallback_size says how much is taken until then"
        raise BufferOverflowError(f"publishing fails and {fallback_bytes} bytes were taken since", hint=hint)


class TableRegistry:
    """Every table name seen so far. Two names that differ only in case would be one table for half of the engines.

    A name belongs to the lake once a batch with it is durable. Until then it is held by the batches that brought it,
    and goes with the last of them if none is kept.
    """

    def __init__(self, names: Iterable[str], tables_max: int) -> None:
        self.tables_max = tables_max
        self._known: set[str] = set()
        self._held: Counter[str] = Counter()
        self._tables: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        self._spellings: Counter[str] = Counter()
        for name in names:
            self._add(name)
        self.confirm(self._held)

    def __len__(self) -> int:
        return len(self._tables)

    def check(self, tables: Iterable[str], batch: BatchMessage[EventEnvelope]) -> list[str]:
        """Refuse a batch with a name that collides; returns those that it now holds, for `confirm` or `release`."""
        unsure = [name for name in tables if name not in self._known]
        fresh: dict[str, str] = {}
        fresh_namespaces: dict[str, str] = {}
        for name in unsure:
            namespaces, full = _parts_of(name)
            for namespace in namespaces:
                present = _first_spelling(namespace, self._namespaces, fresh_namespaces)
                if present != namespace:
                    raise _at(batch, name, f"is in a namespace that differs only in case from {present!r}")
            present = _first_spelling(full, self._tables, fresh)
            if present != full:
                raise _at(batch, name, f"differs only in case from {present!r}, which is already a table")
            if (count := len(self) + len(fresh)) > self.tables_max and full.casefold() in fresh:
                raise _at(batch, name, f"would be table number {count}; server.tables_max is {self.tables_max}")
        for name in unsure:
            self._add(name)
        return unsure

    def confirm(self, names: Iterable[str]) -> None:
        """A batch with these names is durable."""
        for name in list(names):
            self._known.add(name)
            self._held.pop(name, None)

    def release(self, names: Iterable[str]) -> None:
        """A batch with these names was not kept."""
        for name in names:
            if name not in self._held:
                continue  # another batch made it durable
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self._remove(name)

    def _add(self, name: str) -> None:
        self._held[name] += 1
        if self._held[name] > 1:
            return
        namespaces, full = _parts_of(name)
        for spelling, names in ((full, self._tables), *((each, self._namespaces) for each in namespaces)):
            names[spelling.casefold()] = spelling
            self._spellings[spelling] += 1

    def _remove(self, name: str) -> None:
        namespaces, full = _parts_of(name)
        for spelling, names in ((full, self._tables), *((each, self._namespaces) for each in namespaces)):
            self._spellings[spelling] -= 1
            if not self._spellings[spelling]:
                del self._spellings[spelling], names[spelling.casefold()]


def _parts_of(name: str) -> tuple[list[str], str]:
    """Its namespace and all above it, and its full name."""
    namespace, table = split_table_name(name)
    return [".".join(namespace[:depth]) for depth in range(1, len(namespace) + 1)], ".".join((*namespace, table))


def _first_spelling(name: str, known: dict[str, str], fresh: dict[str, str]) -> str:
    return known.get(name.casefold()) or fresh.setdefault(name.casefold(), name)


def _at(batch: BatchMessage[EventEnvelope], name: str, problem: str) -> MessageValidationError:
    index = next(i for i, event in enumerate(batch.events) if event.table == name)
    return MessageValidationError(f"table name {name[:80]!r} {problem}", path=f"$.events[{index}].table")
