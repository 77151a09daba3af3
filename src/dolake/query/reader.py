"""What a question sees: all its tables at one moment, as relations for DuckDB.

From worker.py, one view per question; to live.py, time_travel.py and history.py. Promise: a change is visible as soon
as it is durable; all tables of a view are at the same position; nothing of a transaction that is not whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dolake.catalog.base import Name
from dolake.catalog.pyiceberg_files import StorageIO
from dolake.catalog.tenants import check_paths, check_places
from dolake.errors import InvalidInput, NoSuchMoment, NoSuchSnapshot, NotFound, TooStale, Unavailable
from dolake.identity.grants import EVERYTHING, Grant
from dolake.positions import Position
from dolake.query import information_schema
from dolake.query.following import Follower
from dolake.query.guessed_types import guessed_types
from dolake.query.history import scan_history
from dolake.query.key_tail import KeyTail
from dolake.query.lake import Json, LakeFiles, LakeMoment, LakeTable, position_of
from dolake.query.live import LiveTables, Scan
from dolake.query.lookup import Lookup
from dolake.query.overlay import Overlay, Overlays
from dolake.query.past import Past, parse_moment, parse_snapshot_id
from dolake.query.plan import Condition, Manifests, PlannedFile, planned
from dolake.query.relation import Relation
from dolake.query.rescued import RescuedCounts
from dolake.query.rescued import Run as RunBeside
from dolake.query.rows_question import unknown_table
from dolake.query.sqltext import iso, literal, names, quoted
from dolake.query.table_tail import Cut, TableTail
from dolake.query.tail import Tail
from dolake.query.time_travel import begun_sql, oldest_sql, position_sql, scan_past
from dolake.tables.layout import CHANGES_SUFFIX, KEY, QUARANTINE_SUFFIX, RESCUED
from dolake.tables.names import plain_table_name
from dolake.tables.rules import LakeRules
from dolake.tables.schema import EXACT_MAX
from dolake.tables.types import OUR_NAMES, source_name

_TRIES = 5
_TRY_AGAIN_S = 0.02
_STATE_NAMES = frozenset((KEY, RESCUED))
CHANGE_NAMES = frozenset(OUR_NAMES) - _STATE_NAMES
"""Who names one of these asks for every version of a row."""

Run = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a statement of ours and gives its rows."""


class Reference(Protocol):
    """A table as a statement names it: what guard.py finds."""

    @property
    def namespace(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def hidden(self) -> frozenset[str]: ...
    @property
    def as_of(self) -> str | int | None: ...
    @property
    def snapshot_id(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """When a question is about, as its options say."""

    as_of: str | int | None = None
    snapshot_id: int | str | None = None
    min_position: Position | None = None
    timeout_s: float = 10.0
    grant: Grant = EVERYTHING
    max_age_ms: int | None = None
    """How long a change may have been durable that the answer does not have."""


class LakeReader:
    """Follows the journal and opens views. Any thread may ask."""

    def __init__(
        self, files: LakeFiles, tail: Tail, live: LiveTables, lookup: Lookup, *, transaction_wait_max_ms: int
    ) -> None:
        self.files, self.tail, self.live, self.lookup = files, tail, live, lookup
        self.transaction_wait_max_ms = transaction_wait_max_ms
        self.manifests = Manifests(StorageIO(files.storage))
        self._followers: list[Follower] = []
        self.rescued = RescuedCounts(self.manifests)

    def start(self) -> None:
        """Follow the journal from now on, so that a question finds most of the tail already read.

        Look-ups have a thread of their own for that: a statement may hold the lock of its tail for a second.
        """
        self._followers = [
            Follower("tail", self.files.published, self.tail.durable, self._follow_tail),
            Follower("keys", self.files.published, self.tail.durable, self.lookup.follow),
        ]

    def close(self) -> None:
        for follower in self._followers:
            follower.close()
        self.lookup.close()
        self.tail.close()
        self.files.close()

    def open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View:
        """The tables that these name, at one moment that is as fresh as was asked for."""
        if asked.max_age_ms is not None and (asked.as_of is not None or asked.snapshot_id is not None):
            raise InvalidInput("maxAgeMs is for questions about now", hint="leave it out, or asOf and snapshotId")
        give_up_at = time.monotonic() + asked.timeout_s
        while True:
            view = self._open(references, asked, run)
            age_ms = 0 if asked.max_age_ms is None else view.held_ms()
            if asked.max_age_ms is None or age_ms <= asked.max_age_ms:
                return view
            view.close()
            if time.monotonic() > give_up_at:
                raise TooStale(
                    f"a transaction that is {age_ms} ms old is not whole, and {asked.max_age_ms} ms were asked for",
                    hint="ask again, or for less; lake.transaction_wait_max_ms ends the wait for a transaction",
                )
            time.sleep(_TRY_AGAIN_S)

    def _open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View:
        for each in references:  # before anything is looked at: what is not seen takes as long as what is not there
            if each.namespace != information_schema.NAMESPACE and not asked.grant.sees(
                tuple(each.namespace.split("."))
            ):
                raise unknown_table(Name(tuple(each.namespace.split(".")), each.table))
        self._wait_for(asked)
        wanted = [name for each in references for name in _names_of(each)]
        for attempt in range(_TRIES):
            durable = self.tail.durable()
            moment = self.files.moment(wanted)
            end = max(durable, moment.position)
            if self.tail.pin(moment.position):
                try:
                    self.tail.follow(moment.position, end)
                    return View(self, moment, end, self.tail.cut(moment.position, end), asked, run)
                except NotFound:  # published and trimmed meanwhile
                    self.tail.unpin(moment.position)
                    if attempt == _TRIES - 1:
                        raise
                except BaseException:
                    self.tail.unpin(moment.position)
                    raise
            time.sleep(_TRY_AGAIN_S)
        raise Unavailable("the lake is published faster than it can be looked at", hint="ask again")

    def tables_seen(self, grant: Grant) -> list[str]:
        """The plain names of all tables that this grant sees, published or not."""
        return [plain_table_name(str(each)) for each in information_schema.tables_seen(self, grant)]

    def check_files(self, table: LakeTable, snapshot: Json, grant: Grant) -> None:
        """Refuse a table of somebody's own whose files are not all his."""
        check_places(self.files.storage, grant, {"location": table.metadata["location"]})
        check_paths(self.files.storage, grant, self.manifests.paths(snapshot))

    def _wait_for(self, asked: Asked) -> None:
        """Until the position that the asker has seen is durable; it is at once, unless he asks the wrong lake."""
        give_up_at = time.monotonic() + asked.timeout_s
        while asked.min_position is not None and self.tail.durable() < asked.min_position:
            if time.monotonic() > give_up_at:
                durable = self.tail.durable()
                raise Unavailable(
                    f"position {asked.min_position} is not durable; the journal ends at {durable}",
                    hint="is it a position of this lake?",
                )
            time.sleep(_TRY_AGAIN_S)

    def _follow_tail(self, published: Position, durable: Position) -> None:
        self.tail.follow(published, durable)
        self.tail.prepare()


@dataclass
class View:
    """One question's sight of the lake. Keep it until the answer is whole: its files go with it.

    Until `release` it holds the tail, so that a publish meanwhile takes nothing away from it.
    """

    reader: LakeReader
    moment: LakeMoment
    position: Position
    cut: Cut
    asked: Asked
    run: Run
    warnings: list[str] = field(default_factory=list)
    _scans: list[Scan] = field(default_factory=list)
    _snapshots: dict[str, int | None] = field(default_factory=dict)
    _begun: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    _is_holding: bool = True
    _shown: Position | None = None
    _shown_ms: int | None = None
    """Where the answer is about the past: what it shows, as far as that is known."""
    too_early: NoSuchMoment | None = None
    """Why a table is shown empty: its first change came after the time that the query is about."""

    def relation(self, reference: Reference) -> Relation:
        """The rows that this reference means."""
        name = Name(tuple(reference.namespace.split(".")), reference.table)
        if reference.namespace == information_schema.NAMESPACE:
            self._scans.append(Scan("", (), {}, ()))
            return information_schema.relation_of(self.reader, self.asked.grant, reference.table)
        table = self.moment.tables.get(name)
        if table is not None and not table.is_ours and not table.is_waiting:
            return self._foreign(table, reference)
        is_changes = name.name.endswith(CHANGES_SUFFIX)
        name_of_state = Name(name.namespace, name.name.removesuffix(CHANGES_SUFFIX))
        state, changes = self.moment.state_and_changes(name_of_state)
        plain = plain_table_name(str(name_of_state))
        self.overlays.fetch(state.snapshot if state else None)
        with self.reader.tail.lock:
            if plain.endswith(QUARANTINE_SUFFIX):
                self._sort_out(name_of_state, plain)
            tail = self._prepared(plain, state, changes)
            if state is None and tail is None:
                raise unknown_table(name)
            snapshot_id = self._snapshot_id(reference, state if not is_changes else changes)
            named = self._named(reference, state, tail)
            if snapshot_id is not None:
                is_history = is_changes or self._means_history(named)
                found = state.find_snapshot(snapshot_id) if state and is_history and not is_changes else None
                if found is not None:
                    return self._history_up_to(name, changes, found, reference)
                return self._at_snapshot(name, changes if is_changes else state, reference, snapshot_id)
            if is_changes or self._means_history(named):
                return self._history(name, changes, plain, reference, shows_all=is_changes)
            return self._state(name, state, changes, plain, reference)

    def tail_of(self, name: Name) -> TableTail | None:
        """The tail of a table, ready to be read; under the tail's lock."""
        return self._prepared(plain_table_name(str(name)), *self.moment.state_and_changes(name))

    def _prepared(self, plain: str, state: LakeTable | None, changes: LakeTable | None) -> TableTail | None:
        tail = self.reader.tail.table(plain)
        self.reader.live.give_rows(tail, state)
        if tail is not None:
            rows_max = self.reader.tail.rebuild_rows_max(plain)
            tail.can_rebuild = partial(self._can_rebuild, state, changes, rows_max)
            tail.guessed = guessed_types(state, changes, rows_max)
        return tail

    def _can_rebuild(self, state: LakeTable | None, changes: LakeTable | None, rows_max: int, column: str) -> bool:
        """Whether the pipeline will make whole numbers fractions, by what it looks at: size, use, and exactness."""
        snapshot = changes.snapshot if changes else None
        if state is None or changes is None or snapshot is None:
            return True
        rows = int((snapshot.get("summary") or {}).get("total-records", 0))
        if rows > rows_max or column in state.pinned_columns:
            return False
        bounds = (Condition(column, ">", (EXACT_MAX,)), Condition(column, "<", (-EXACT_MAX,)))
        return not any(
            file.reason is None for each in bounds for file in planned(self.reader.manifests, changes, snapshot, [each])
        )

    def _sort_out(self, quarantine: Name, plain: str) -> None:
        """Changes that belong into a quarantine are found when those of its table are read."""
        table = self.moment.tables.get(Name(quarantine.namespace, quarantine.name.removesuffix(QUARANTINE_SUFFIX)))
        tail = self.reader.tail.table(plain.removesuffix(QUARANTINE_SUFFIX))
        if tail is not None:
            self.reader.live.give_rows(tail, table)
            tail.columns(table.columns if table else ())

    def planned(self, number: int, conditions: Sequence[Condition]) -> list[PlannedFile]:
        """The data files of the relation that was made as the `number`th, beginning with 0."""
        reads = self._scans[number].reads
        return [file for read in reads for file in planned(self.reader.manifests, *read, conditions)]

    def rescued(self, number: int, relation: Relation, run: RunBeside) -> dict[str, int]:
        """How many rows of this relation, the `number`th, have a value that did not fit, by column."""
        return self.reader.rescued.of(relation, self._scans[number].reads, self.position, run)

    def files(self, conditions: Sequence[Sequence[Condition]]) -> dict[str, int]:
        """How many data files are read and how many need not be; `conditions` of each relation in order."""
        kept = pruned = 0
        for number, scan in enumerate(self._scans):
            wanted = conditions[number] if number < len(conditions) else ()
            counts = [_file_count(snapshot) for _, snapshot in scan.reads]
            if wanted or None in counts:
                found = self.planned(number, wanted)
                pruned += sum(file.reason is not None for file in found)
                kept += sum(file.reason is None for file in found)
            else:
                kept += sum(count or 0 for count in counts)
        return {"read": kept, "pruned": pruned}

    def freshness(self) -> dict[str, Any]:
        """What the answer includes."""
        now_ms = time.time_ns() // 1_000_000
        return {
            "position": self.position if self._shown is None else self._shown,
            "ageMs": max(0, now_ms - self._shown_ms) if self._shown_ms is not None else self._held_ms(now_ms),
            "sources": {
                source: {"sequence": each}
                for source, each in self.reader.tail.reached().items()
                if self.asked.grant.knows_source(source)
            },
            "snapshots": {name: None if id_ is None else str(id_) for name, id_ in self._snapshots.items()},
            "engine": "duckdb",
            "asOf": iso(self._shown_ms) if self._shown_ms is not None else None,
            "tailRows": sum(scan.tail_rows for scan in self._scans),
        }

    def hold(self, overlay: Overlay) -> None:
        """Until this is closed."""
        self._scans.append(Scan("", (), {}, (overlay,)))

    @property
    def overlays(self) -> Overlays:
        """Who makes the metadata files of its relations."""
        return self.reader.live.overlays

    def release(self) -> None:
        """All relations are made, and have what they need of the tail."""
        if self._is_holding:
            self._is_holding = False
            self.reader.tail.unpin(self.moment.position)

    def close(self) -> None:
        self.release()
        self._scans.clear()

    # --- the kinds of relations ---------------------------------------------------------------------------------------

    def _state(
        self, name: Name, state: LakeTable | None, changes: LakeTable | None, plain: str, reference: Reference
    ) -> Relation:
        time_ms = self._time_of(reference)
        cut, tail = self._cut_at(time_ms), self.reader.tail.table(plain)
        snapshot = state.snapshot if state else None
        if time_ms is not None and self._is_before_first(name, state, changes, plain, time_ms, cut):
            columns = state.columns if state else ()
            scan, snapshot = self.reader.live.empty(tail.columns(columns) if tail else columns), None
        elif cut is not None:
            scan = self.reader.live.scan(state, tail, cut)
        else:
            assert time_ms is not None
            assert state is not None
            assert changes is not None
            scan, snapshot = scan_past(self.reader.live, state, changes, self._past(time_ms))
        return self._related(name, scan, snapshot, self.reader.live.hidden, reference)

    def _history(
        self, name: Name, changes: LakeTable | None, plain: str, reference: Reference, *, shows_all: bool
    ) -> Relation:
        time_ms = self._time_of(reference)
        cut = self._cut_at(time_ms)
        tail = self.reader.tail.table(plain)
        live = self.reader.live
        if cut is None:
            assert time_ms is not None
            scan = scan_history(live, changes, None, self.cut, where=self._past(time_ms).condition)
        else:
            scan = scan_history(live, changes, tail, cut)
        hidden, shown = ((), scan.own) if shows_all else (scan.own, ())
        return self._related(name, scan, changes.snapshot if changes else None, hidden, reference, shown=shown)

    def _history_up_to(self, name: Name, changes: LakeTable | None, snapshot: Json, reference: Reference) -> Relation:
        """Every version that this snapshot of the state has seen."""
        self._shown, self._shown_ms = position_of(snapshot), int(snapshot["timestamp-ms"])
        scan = scan_history(self.reader.live, changes, None, self.cut, where=f"_position < {self._shown}")
        return self._related(name, scan, changes.snapshot if changes else None, scan.own, reference)

    def _foreign(self, table: LakeTable, reference: Reference) -> Relation:
        """A table that somebody else writes: as it is, or as its snapshots have it."""
        id_, time_ms = self._snapshot_id(reference, table), self._time_of(reference)
        if id_ is not None:
            snapshot = table.find_snapshot(id_)
        elif time_ms is not None:
            snapshot = table.snapshot_at(time_ms)
            if snapshot is None:
                raise _too_early(table.name, time_ms, _first_ms(table))
        else:
            snapshot = table.snapshot
        if snapshot is None:
            columns = names(table.names)
            empty = ", ".join(f"NULL AS {quoted(each)}" for each in table.names)
            sql = f"SELECT {columns} FROM (SELECT {empty}) WHERE false"  # noqa: S608
            return Relation(str(table.name), sql, table.names)
        if not self.asked.grant.is_lake_wide:  # what its owner entered as his files must be his
            self.reader.check_files(table, snapshot, self.asked.grant)
        overlay = self.reader.live.overlays.plain(table.metadata, snapshot)
        self._scans.append(Scan("", (), {}, (overlay,), reads=((table, snapshot),)))
        self._snapshots[str(table.name)] = snapshot["snapshot-id"]
        sql = f"SELECT {names(table.names)} FROM iceberg_scan({literal(overlay.path)})"  # noqa: S608
        return Relation(str(table.name), sql, table.names, snapshot_id=snapshot["snapshot-id"])

    def _at_snapshot(self, name: Name, table: LakeTable | None, reference: Reference, id_: int) -> Relation:
        snapshot = table.find_snapshot(id_) if table else None
        if table is None or snapshot is None:
            raise _no_snapshot(name, id_)
        scan = self.reader.live.at_snapshot(table, snapshot)
        self._shown_ms = int(snapshot["timestamp-ms"])
        self._shown = position_of(snapshot)
        return self._related(name, scan, snapshot, self.reader.live.hidden, reference)

    def _related(
        self,
        name: Name,
        scan: Scan,
        snapshot: Json | None,
        hidden: tuple[str, ...],
        reference: Reference,
        *,
        shown: tuple[str, ...] = (),
    ) -> Relation:
        self._scans.append(scan)
        id_ = None if snapshot is None else int(snapshot["snapshot-id"])
        self._snapshots[str(name)] = id_
        columns = tuple(each.name for each in scan.columns)
        sql, more = self._with_own_names(scan.sql, columns, hidden, reference)
        return Relation(
            str(name),
            sql,
            (*columns, *shown),
            (*(each for each in hidden if each not in more), *more),
            scan.arrow,
            id_,
            scan.tail_rows,
        )

    def _with_own_names(
        self, sql: str, columns: tuple[str, ...], hidden: tuple[str, ...], reference: Reference
    ) -> tuple[str, tuple[str, ...]]:
        """A source's column `_operation` is stored as `_operation_`; who names it as the source does gets it."""
        mine = {source: each for each in columns if (source := source_name(each)) not in (None, each)}
        asked = [source for source in mine if source in reference.hidden]
        if not asked:
            return sql, ()
        kept = names((*columns, *(each for each in hidden if each not in asked)))
        named = ", ".join(f"{quoted(mine[each])} AS {quoted(each)}" for each in asked)
        return f"SELECT {kept}, {named} FROM ({sql})", tuple(asked)  # noqa: S608

    def _named(self, reference: Reference, state: LakeTable | None, tail: TableTail | None) -> frozenset[str]:
        """The hidden columns that are named and are not the source's own."""
        columns = state.columns if state else ()
        if tail and reference.hidden:
            columns = tail.columns(columns)
        mine = {source_name(each.name) for each in columns} & reference.hidden & frozenset(OUR_NAMES)
        for each in sorted(name for name in mine if name):
            self.warnings.append(
                f"{reference.table} has a column {each} of its own, stored as {each}_: that one was read, no history"
            )
        return frozenset(reference.hidden) - frozenset(name for name in mine if name)

    def _means_history(self, named: frozenset[str]) -> bool:
        """A state can have `_source`, too: where that is a part of the key."""
        return bool(named & CHANGE_NAMES - frozenset(self.reader.live.hidden))

    # --- moments ------------------------------------------------------------------------------------------------------

    def _time_of(self, reference: Reference) -> int | None:
        as_of = reference.as_of if reference.as_of is not None else self.asked.as_of
        if as_of is None and getattr(reference, "as_of_sql", None) is not None:
            rows = self.run(f"SELECT epoch_ms(CAST(({reference.as_of_sql}) AS TIMESTAMPTZ))")  # type: ignore[attr-defined]
            as_of = int(rows[0][0])
        if as_of is None:
            return self._time_of_snapshot()
        time_ms = parse_moment(as_of)
        self._shown_ms = time_ms
        return time_ms

    def _time_of_snapshot(self) -> int | None:
        """Where the question is about a snapshot of one of its tables, the others are shown at its time."""
        id_ = parse_snapshot_id(self.asked.snapshot_id)
        found = [snapshot for each in self.moment.tables.values() if (snapshot := each.find_snapshot(id_))]
        return int(found[0]["timestamp-ms"]) if found and id_ is not None else None

    def _snapshot_id(self, reference: Reference, table: LakeTable | None) -> int | None:
        if reference.snapshot_id is not None:
            return reference.snapshot_id
        id_ = parse_snapshot_id(self.asked.snapshot_id)
        if id_ is None:
            return None
        if not any(each.find_snapshot(id_) for each in self.moment.tables.values()):
            raise _no_snapshot(Name(tuple(reference.namespace.split(".")), reference.table), id_)
        return id_ if table is not None and table.find_snapshot(id_) else None

    def _cut_at(self, time_ms: int | None) -> Cut | None:
        """The part of the tail that shows this time; None where it is before the tail."""
        if time_ms is None:
            return self.cut
        position = self.reader.tail.position_at(time_ms)
        if position is None or position < self.moment.position:
            return None
        end = self._shown = min(position, self.position)
        return self.reader.tail.cut(self.moment.position, end)

    def _past(self, time_ms: int) -> Past:
        """With the transactions that were under way then; asked once for all tables of the question."""
        if time_ms not in self._begun:
            found = [
                (each, self.reader.live.plain(each, snapshot))
                for each in self.moment.tables.values()
                if each.is_ours and each.name.name.endswith(CHANGES_SUFFIX) and (snapshot := each.snapshot)
            ]
            wait_ms = self.reader.transaction_wait_max_ms
            rows = self.run(begun_sql([overlay for _, overlay in found], time_ms, wait_ms)) if found else []
            self._begun[time_ms] = tuple((str(source), str(id_)) for source, id_ in rows)
            starts = [position_of(each.snapshot_at(time_ms) or {}) for each, _ in found]
            asked = [position_sql(each[1], start, time_ms) for each, start in zip(found, starts, strict=True)]
            self._shown = max((int(self.run(sql)[0][0]) for sql in asked), default=0)
        return Past(time_ms, self._begun[time_ms])

    def _is_before_first(
        self, name: Name, state: LakeTable | None, changes: LakeTable | None, plain: str, time_ms: int, cut: Cut | None
    ) -> bool:
        """Whether the table had no change yet, and the answer says so. Changes are read only if no snapshot tells."""
        snapshot = changes.snapshot if changes else None
        if changes is None or snapshot is None or (state is None and cut is None):
            oldest = self._oldest_of(plain)
            is_before = cut is None or (oldest is not None and time_ms < oldest)
        elif changes.snapshot_at(time_ms) is not None:
            return False
        else:
            oldest = self.run(oldest_sql(self.reader.live.plain(changes, snapshot)))[0][0]
            is_before = oldest is not None and time_ms < oldest
        if is_before:
            self.too_early = _too_early(name, time_ms, oldest)
            self._shown = self._shown or 0
            self.warnings.append(f"{self.too_early.message}, so it is empty; {self.too_early.hint}")
        return is_before

    def _oldest_of(self, plain: str) -> int | None:
        tail = self.reader.tail.table(plain)
        return tail.first_ms() if tail else None

    def held_ms(self) -> int:
        """How old the answer is: how long what it leaves out has been durable."""
        return self._held_ms(time.time_ns() // 1_000_000)

    def _held_ms(self, now_ms: int) -> int:
        """How long the oldest transaction waits that is left out; 0 where the answer has all that is durable."""
        held = self.cut.held
        since = [self.reader.tail.time_of(start + 1) for _, start in held]
        return max((now_ms - each for each in since if each is not None), default=0)


def open_reader(
    home: Path, files: LakeFiles, rules: LakeRules, *, has_source_in_key: bool, tail_max_bytes: int, wait_max_ms: int
) -> LakeReader:
    """A reader of the lake in this home. Its scratch folder is emptied."""
    scratch = home / "query" / "overlays"
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.iterdir():
        left.unlink()
    overlays = Overlays(scratch, StorageIO(files.storage), is_quick=files.storage.is_quick)
    live = LiveTables(home / "keyindex", overlays, has_source_in_key=has_source_in_key)
    tail = Tail(home / "journal", has_source_in_key=has_source_in_key, bytes_max=tail_max_bytes, rules=rules)
    keys = KeyTail(home / "journal", has_source_in_key=has_source_in_key, bytes_max=tail_max_bytes)
    lookup = Lookup(files, keys, home / "keyindex", rules, has_source_in_key=has_source_in_key)
    return LakeReader(files, tail, live, lookup, transaction_wait_max_ms=wait_max_ms)


def _names_of(reference: Reference) -> tuple[Name, ...]:
    """The tables that a reference may need: the one it names, and its changes."""
    name = Name(tuple(reference.namespace.split(".")), reference.table)
    plain = name.name.removesuffix(CHANGES_SUFFIX)
    pair = Name(name.namespace, plain), Name(name.namespace, plain + CHANGES_SUFFIX)
    if not plain.endswith(QUARANTINE_SUFFIX):
        return pair
    return *pair, Name(name.namespace, plain.removesuffix(QUARANTINE_SUFFIX))


def _file_count(snapshot: Json) -> int | None:
    """What the snapshot says itself; earlier ones keep it no more."""
    count = (snapshot.get("summary") or {}).get("total-data-files")
    return None if count is None else int(count)


def _first_ms(table: LakeTable) -> int | None:
    return min((int(each["timestamp-ms"]) for each in table.metadata.get("snapshots") or ()), default=None)


def _too_early(name: Name, time_ms: int, oldest_ms: int | None) -> NoSuchMoment:
    hint = f"its first change came at {iso(int(oldest_ms))}" if oldest_ms is not None else "it has no change yet"
    return NoSuchMoment(f"the table {name} did not exist at {iso(time_ms)}", hint=hint)


def _no_snapshot(name: Name, id_: int) -> NoSuchSnapshot:
    hint = f"GET /v1/tables/{'.'.join(name.namespace)}/{name.name}/snapshots lists them; asOf works without one"
    return NoSuchSnapshot(f"{name} has no snapshot {id_}, or it has expired", hint=hint)
