"""Quarantined changes: seen, sent again, let go; the latter two by ordinary changes that follow all others.

From quarantine_rest.py; entries are read by the query process, changes go to the journal by the way of any other batch,
under a stream of our own. A replay is one transaction per entry: the change itself, as its source sent it, and the
DELETE of its row in the quarantine. So the row leaves the quarantine exactly when its change is in the journal again;
where that still cannot be written, it comes back under its new position. Promise: entries are replayed in the order of
their positions and only once: one replay or drop of a table at a time, on what includes everything durable.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Raw

from dolake.catalog.base import Name
from dolake.changes import StreamId
from dolake.errors import (
    Conflict,
    DoLakeError,
    InvalidInput,
    MessageValidationError,
    NotFound,
    OutcomeUnknown,
    UnknownTable,
)
from dolake.journal.record import StreamPoint
from dolake.positions import Position
from dolake.query.sqltext import quoted
from dolake.server.appending import (
    BATCH_BYTES_MAX,
    BATCH_CHANGES_MAX,
    append,
    batch_of,
    check_room,
    problem_with_own_name,
)
from dolake.server.differences import ask_now
from dolake.server.lake import Lake
from dolake.settings.tables import lake_rules
from dolake.tables.layout import QUARANTINE_SUFFIX
from dolake.tables.names import plain_table_name, split_table_name
from dolake.wire.messages import RawEvent, encode

logger = logging.getLogger(__name__)

STREAM = StreamId("dolake.quarantine")
_COLUMNS = ("position", "reason", "operation", "key", "sequence", "source", "event")
_PAGE_BYTES_MAX = 8 * 1024 * 1024
_TRANSACTION = ("transactionId", "transactionEnd")
_decode_event = msgspec.json.Decoder(RawEvent).decode
_split = msgspec.json.Decoder(dict[str, Raw] | None).decode
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A change that could not be written; `event` is its JSON text."""

    position: Position
    reason: str
    operation: str
    key: str
    sequence: int
    source: str
    event: str


@dataclass(slots=True)
class Done:
    """How far the journal is with it, how many entries left the quarantine, and why others did not."""

    position: Position
    count: int = 0
    refused: dict[Position, str] = field(default_factory=dict)


class Quarantines:
    """Those of all tables of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.replayed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        """By table, since the server started."""
        self._running: set[Name] = set()
        self._door = asyncio.Lock()
        """Held while a batch is appended: it follows the one before it in the stream."""

    # --- looking ------------------------------------------------------------------------------------------------------

    async def counts(self, is_seen: Callable[[Name], bool]) -> dict[Name, int]:
        """How many entries each table has that has any, of those that the asker sees."""
        found: dict[Name, int] = {}
        for table in sorted(filter(is_seen, await self._lake.catalog.run(self._candidates)), key=str):
            for row in (await self._ask(table, "count(*) AS entries", ""))["rows"]:
                found |= {table: int(row["entries"])} if int(row["entries"]) else {}
        return found

    async def page(self, table: Name, after: Position, limit: int) -> tuple[list[Entry], Position | None]:
        """The first entries behind a position, and after which one to go on if there are more."""
        await self._lake.catalog.run(self._check_known, table)
        sizes = await self._sizes(table, f"position > {after:d}", limit + 1)
        chosen = next(_groups(sizes[:limit], limit, _PAGE_BYTES_MAX), [])
        has_more = len(chosen) < len(sizes)
        return await self._entries(table, chosen), chosen[-1] if has_more and chosen else None

    def _candidates(self) -> set[Name]:
        """The tables that have a quarantine, and those of which nobody knows yet whether their tail has some."""
        lake = self._lake
        pointers = lake.catalog.store.pointers(is_managed=True)
        found = {each.name for each in pointers if each.name.name.endswith(QUARANTINE_SUFFIX)}
        lags = lake.progress.tables.lags(lake.clock_ms())
        # After a start it is not known which tables the rest of the journal is about.
        is_known = sum(lag.changes for lag in lags.values()) >= lake.progress.tail.change_count
        found |= {
            Name(*split_table_name(plain_table_name(each))) for each in (lags if is_known else lake.journal.tables)
        }
        return {Name(each.namespace, each.name.removesuffix(QUARANTINE_SUFFIX)) for each in found}

    def _check_known(self, table: Name) -> None:
        names = {plain_table_name(each) for each in self._lake.journal.tables}
        if plain_table_name(str(table)) not in names:
            found, _ = self._lake.catalog.store.snapshot([table, _quarantine_of(table)], skips_missing=True)
            if not found:
                raise UnknownTable(
                    f"Table does not exist: {table}",
                    table=plain_table_name(str(table)),
                    hint="GET /v1/quarantine lists those with entries",
                )

    # --- replay and drop ----------------------------------------------------------------------------------------------

    async def replay(self, table: Name, positions: Sequence[Position] | None) -> Done:
        """Send entries again, or all that there are; returns when that is durable."""
        source = plain_table_name(str(table))
        if not lake_rules(self._lake.settings.current.lake).takes(source):
            raise Conflict(f"the settings leave {source} out", hint="look at include_tables and exclude_tables")
        done = await self._work(table, positions, lambda entry: _sent_again(entry, source), self.replayed)
        logger.info("quarantine replayed", extra={"table": source, "entries": done.count, "position": done.position})
        return done

    async def drop(self, table: Name, positions: Sequence[Position] | None) -> Done:
        """Let entries go for good, or all that there are; returns when that is durable."""
        source = plain_table_name(str(table))
        done = await self._work(table, positions, lambda entry: [_leaving(entry, source)], self.dropped)
        logger.info("quarantine dropped", extra={"table": source, "entries": done.count, "position": done.position})
        return done

    async def _work(
        self,
        table: Name,
        positions: Sequence[Position] | None,
        events_of: Callable[[Entry], list[RawEvent]],
        counter: Counter[str],
    ) -> Done:
        if self._lake.settings.current.lake.key_scope == "source":
            raise InvalidInput(
                "with key_scope = source each source owns its rows, and what leaves a quarantine is none of them",
                hint="send the change again from the source itself",
            )
        if table in self._running:
            raise Conflict(f"the quarantine of {table} is being replayed or dropped", hint="wait for its end")
        self._running.add(table)
        try:
            await self._lake.catalog.run(self._check_known, table)
            await self._lake.journal.settled(STREAM)  # one that was given up may still be on its way
            return await self._do(table, positions, events_of, counter)
        finally:
            self._running.discard(table)

    async def _do(
        self,
        table: Name,
        positions: Sequence[Position] | None,
        events_of: Callable[[Entry], list[RawEvent]],
        counter: Counter[str],
    ) -> Done:
        done = Done(self._lake.journal.durable)
        sizes = await self._sizes(table, "true" if positions is None else _is_one_of(positions))
        here = {position for position, _ in sizes}
        done.refused = dict.fromkeys(sorted({*(positions or ())} - here), "is not in the quarantine")
        await check_room(self._lake.receiver, "replay", 2 * len(sizes), sum(size for _, size in sizes))
        for group in _groups(sizes, BATCH_CHANGES_MAX // 2, BATCH_BYTES_MAX):
            before = done.count
            try:
                await self._append(await self._entries(table, group), events_of, done)
            except DoLakeError as error:
                if not before:
                    raise
                raise OutcomeUnknown(
                    f"it stopped after {before} of {len(sizes)} entries: {error.message}",
                    hint="ask for it again: it does what is left",
                ) from error
            counter[plain_table_name(str(table))] += done.count - before
        return done

    async def _append(self, entries: list[Entry], events_of: Callable[[Entry], list[RawEvent]], done: Done) -> None:
        events: list[RawEvent] = []
        count = 0
        for entry in entries:
            try:
                own = events_of(entry)
                batch_of(STREAM, StreamPoint(), own, 0, problem_with_own_name)  # by the rules that hold for sources
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                done.refused[entry.position] = f"its event is no JSON that could be sent again: {error}"
            except MessageValidationError as error:
                done.refused[entry.position] = f"its event cannot be sent again: {error.message}"
            else:
                count += 1
                events += own
        if events:
            receiver = self._lake.receiver
            async with self._door:
                point = await receiver.journal.settled(STREAM)
                batch, message = batch_of(STREAM, point, events, receiver.clock_ms(), problem_with_own_name)
                done.position = (await append(receiver, batch, message)).end
            done.count += count

    # --- asking the query process -------------------------------------------------------------------------------------

    async def _sizes(self, table: Name, condition: str, limit: int | None = None) -> list[tuple[Position, int]]:
        """Where entries are, in order, and how large each is."""
        rows = await self._rows(table, 'position, length("event") AS size', condition, limit)
        return [(int(row["position"]), int(row["size"])) for row in rows]

    async def _entries(self, table: Name, positions: Iterable[Position]) -> list[Entry]:
        rows = await self._rows(table, ", ".join(map(quoted, _COLUMNS)), _is_one_of(positions))
        return [Entry(**row | {"position": int(row["position"]), "sequence": int(row["sequence"])}) for row in rows]

    async def _rows(self, table: Name, columns: str, condition: str, limit: int | None = None) -> list[Json]:
        """In the order of their positions; an answer that is cut is gone on with."""
        found: list[Json] = []
        after = -1
        while True:
            order = "ORDER BY position" + ("" if limit is None else f" LIMIT {limit - len(found):d}")
            answer = await self._ask(table, columns, f"WHERE position > {after:d} AND {condition} {order}")
            found += answer["rows"]
            if not answer["truncated"] or not answer["rows"]:
                return found
            after = int(found[-1]["position"])

    async def _ask(self, table: Name, columns: str, rest: str) -> Json:
        """Of the quarantine with everything that is durable; nothing where there is no such table yet."""
        quarantine = _quarantine_of(table)
        named = f"{quoted('.'.join(quarantine.namespace))}.{quoted(quarantine.name)}"
        sql = f"SELECT {columns} FROM {named} {rest}"  # noqa: S608 - quoted
        body = {"sql": sql, "minPosition": self._lake.journal.durable}
        try:
            return await ask_now(self._lake.query_process(), body)
        except NotFound:
            return {"rows": [], "truncated": False}


def _quarantine_of(table: Name) -> Name:
    return Name(table.namespace, table.name + QUARANTINE_SUFFIX)


def _is_one_of(positions: Iterable[Position]) -> str:
    return f"position IN ({', '.join(f'{each:d}' for each in (-1, *positions))})"


def _groups(sizes: Iterable[tuple[Position, int]], count_max: int, bytes_max: int) -> Iterator[list[Position]]:
    """Positions in their order, as many together as these limits allow; at least one."""
    group: list[Position] = []
    room = bytes_max
    for position, size in sizes:
        if group and (len(group) == count_max or size > room):
            yield group
            group, room = [], bytes_max
        group.append(position)
        room -= size
    if group:
        yield group


# --- from entries to changes -----------------------------------------------------------------------------------------


def _sent_again(entry: Entry, table: str) -> list[RawEvent]:
    """The change as its source sent it, but for its transaction, which is another one now; and the end of the entry."""
    event = _decode_event(entry.event)
    metadata = {} if event.metadata is UNSET else _split(event.metadata) or {}
    transaction = f"quarantine-{uuid.uuid4()}"
    kept = {name: value for name, value in metadata.items() if name not in _TRANSACTION}
    event.table, event.metadata = table, Raw(encode(kept | {"transactionId": transaction}))
    return [event, _leaving(entry, table, {"transactionId": transaction, "transactionEnd": True})]


def _leaving(entry: Entry, table: str, metadata: Json | None = None) -> RawEvent:
    """The end of an entry."""
    return RawEvent(
        sequence=1,
        timestamp=0,
        operation="DELETE",
        table=table + QUARANTINE_SUFFIX,
        row_id=str(entry.position),
        metadata=UNSET if metadata is None else Raw(encode(metadata)),
    )


_OF_LAKES: WeakKeyDictionary[Lake, Quarantines] = WeakKeyDictionary()


def quarantines_of(lake: Lake) -> Quarantines:
    """Those of a running server."""
    return _OF_LAKES.setdefault(lake, Quarantines(lake))
