"""Forget a key beside the stream: no file of its table holds it any more, in no snapshot.

From maintenance.py; to holding.py in one of Spark's workers. First one commit takes the row out of the state and blanks
its changes, so that both tables always say the same. Then the files that still hold bytes of it are written anew, the
snapshots that name such files expire, and the files go. Promise: each step begins with a look at what is there, so that
after a crash at any point, or a second time, the same order does what is left; publishes wait for commits alone; a row
of the key that comes after the first commit is a new row, and stays.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dolake.crashpoints import reach
from dolake.errors import Conflict, OutcomeUnknown, Unavailable
from dolake.keyindex import Changes
from dolake.keyindex.hashes import no_hashes
from dolake.pipeline.compaction import Compactor, land
from dolake.pipeline.files import remove_files
from dolake.pipeline.garbage import Found, GarbageJob, Waiting, find_garbage, remove
from dolake.pipeline.holding import (
    Blanked,
    BlankJob,
    HeldJob,
    MovesJob,
    NamingJob,
    Wanted,
    blank,
    closed,
    find_held,
    find_keys,
    find_moves,
    find_naming,
    in_quarantine,
    in_state,
)
from dolake.pipeline.iceberg import IcebergTable, TableChange
from dolake.pipeline.link import Forget, TableForgotten
from dolake.pipeline.publish import Publisher
from dolake.pipeline.quarantine import quarantine_of
from dolake.pipeline.reading import hashes_of_keys
from dolake.pipeline.sourcetables import SourceTable
from dolake.pipeline.staging import NO_TARGET, run_jobs
from dolake.pipeline.store import store
from dolake.positions import Position
from dolake.tables.forgetting import Life, lives_of
from dolake.tables.layout import OURS

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_FILES_AT_ONCE = 64
"""That one of Spark's workers looks into before publishes get their turn with it."""
_TRIES_MAX = 5

Tell = Callable[[], None]
"""Called after each piece; raises where somebody wants the job to end."""


@dataclass(slots=True)
class Done:
    """What has been done so far."""

    position: Position = 0
    keys: int = 1
    rows: int = 0
    changes: int = 0
    tables: list[TableForgotten] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Files that hold the key and could not go yet."""

    def note(self, part: TableForgotten) -> None:
        """What was done to a table, beside what an earlier try has done to it."""
        for at, known in enumerate(self.tables):
            if known.table == part.table:
                self.tables[at] = TableForgotten(
                    part.table,
                    known.files_rewritten + part.files_rewritten,
                    known.snapshots_expired + part.snapshots_expired,
                    tuple(sorted({*known.tags_removed, *part.tags_removed})),
                    known.files_removed + part.files_removed,
                    known.bytes_removed + part.bytes_removed,
                )
                return
        self.tables.append(part)


@dataclass(slots=True)
class _Blanking:
    """The files of a table of changes that were looked at, and those that were written anew, by the old path."""

    token: str = field(default_factory=lambda: f"forgotten-{uuid.uuid4().hex[:12]}")
    seen: set[str] = field(default_factory=set)
    new: dict[str, Blanked] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(each.count for each in self.new.values())


class Forgetter:
    """Forgets keys of the tables that a publisher has."""

    def __init__(self, publisher: Publisher, compactor: Compactor, folder: Path) -> None:
        self._publisher, self._compactor, self._folder = publisher, compactor, folder

    def forget(self, order: Forget, tell: Tell) -> Done:
        """All of it; Unavailable where that did not come to an end. The same order does the rest."""
        done = Done()
        lives = self._lives(order, tell)
        done.keys = len({life.key for life in lives})
        for name in (order.table, quarantine_of(order.table)):
            wanted = Wanted(lives, order.source)
            for number in range(_TRIES_MAX):
                try:
                    self._forget_in(name, wanted, done, tell, is_patient=order.is_patient)
                    break
                except (Conflict, OutcomeUnknown) as error:
                    # Somebody was faster, or nobody knows: what is there is looked at anew, and the rest is done.
                    logger.warning("forgetting begun anew", extra={"table": name, "reason": error.message})
                    if number + 1 == _TRIES_MAX:
                        raise Unavailable(error.message, hint="ask for it again: it does what is left") from error
        return done

    def _lives(self, order: Forget, tell: Tell) -> tuple[Life, ...]:
        """The key, and those that its row had before and after."""
        source = self._source(order.table)
        paths = list(source.changes_files) if source else []
        moves = []
        for some in _groups(paths):
            moves += self._one(find_moves, MovesJob(some, order.source))
            tell()
        return lives_of(order.key, moves)

    def _forget_in(self, name: str, wanted: Wanted, done: Done, tell: Tell, *, is_patient: bool) -> None:
        """A source table, or its quarantine, which is one of its own."""
        source = self._source(name)
        if source is None:
            return
        is_quarantine = name.endswith(quarantine_of(""))
        in_changes = in_quarantine(wanted) if is_quarantine else wanted
        position = self._take_out(source, in_changes, done, tell)
        done.position = done.position or position
        # What comes from here on is a new row.
        wanted = Wanted(closed(wanted.lives, position), wanted.source)
        in_changes = in_quarantine(wanted) if is_quarantine else wanted
        of_state = in_changes if is_quarantine else in_state(wanted)
        reach("forgotten")
        state = self._holders(source.state.location, of_state, tell)
        changes = self._holders(source.changes.location, in_changes, tell)
        rewritten = self._rewrite(name, state, tell)
        for is_state, holders, count in ((True, state, rewritten), (False, changes, 0)):
            done.note(self._let_go(name, holders, done, tell, is_state=is_state, count=count, is_patient=is_patient))
        self._shake_index(name)
        tell()

    # --- out of both tables at once ----------------------------------------------------------------------------------

    def _take_out(self, source: SourceTable, wanted: Wanted, done: Done, tell: Tell) -> Position:
        """The row leaves the state and its changes become blank, by one commit; up to this position."""
        work = _Blanking()
        publisher = self._publisher
        with publisher.in_flight.one():
            try:
                with publisher.turns:
                    paths = self._unseen(source, work)
                self._blank(source, paths, wanted, work, tell)
                with publisher.turns:
                    self._blank(source, self._unseen(source, work), wanted, work)  # few: what came meanwhile
                    done.rows += self._land(source, work, wanted)
                    done.changes += work.count
                    return publisher.position
            except OutcomeUnknown:
                raise  # the files may be part of the table
            except BaseException:
                with contextlib.suppress(OSError):
                    remove_files(source.changes.location, work.token)
                    remove_files(source.state.location, work.token)
                raise
            finally:
                source.busy.difference_update(work.seen)

    def _unseen(self, source: SourceTable, work: _Blanking) -> list[str]:
        """In the caller's turn; from now on nobody else writes these files anew."""
        self._publisher.look_if_uncertain()
        if self._publisher.tables.find(source.name) is not source or source.is_altering:
            raise Conflict(f"{source.name} is changing its columns or was loaded anew", hint="it is tried again")
        paths = [path for path in source.changes_files if path not in work.seen]
        work.seen.update(paths)
        source.busy.update(paths)
        return paths

    def _blank(
        self, source: SourceTable, paths: Sequence[str], wanted: Wanted, work: _Blanking, tell: Tell | None = None
    ) -> None:
        for path in self._held(paths, wanted, tell or _quiet):
            job = BlankJob(
                path=path,
                wanted=wanted,
                schema=source.changes.schema,
                location=source.changes.location,
                options=self._publisher.options.of(source.rules.layout),
                token=work.token,
            )
            work.new[path] = self._one(blank, job)
            if tell:
                tell()

    def _land(self, source: SourceTable, work: _Blanking, wanted: Wanted) -> int:
        """Returns how many rows left the state."""
        if any(path not in source.changes_files for path in work.new):
            raise Conflict(f"files of {source.name} are not there any more", hint="it is tried again")
        keys = self._keys_in_state(source, work, wanted)
        sources = [wanted.source or ""] * len(keys) if self._publisher.tables.has_source_in_key else None
        hashes = hashes_of_keys(keys, sources) if keys else no_hashes()
        with source.trusting_index() as index:
            gone = index.positions_by_path(index.look_up(hashes))
        plan = source.deletes.plan(gone, work.token, files=source.files)
        changes = TableChange(
            source.changes,
            add_rows=[each.entry for each in work.new.values()],
            remove_rows=[source.changes_files[path] for path in work.new],
        )
        state = TableChange(
            source.state, add_deletes=list(plan.add.values()), remove_deletes=plan.remove, touched=list(plan.add)
        )
        wished = [each for each, is_due in ((state, bool(gone)), (changes, bool(work.new))) if is_due]
        if not wished:
            return 0

        def stage(snapshot_id: int) -> None:
            if gone:
                with source.trusting_index() as index:
                    index.stage(Changes((), hashes), snapshot_id)

        name, publisher = source.name, self._publisher
        land(publisher, wished, source.index if gone else None, stage, lambda: publisher.tables.forget(name))
        return sum(map(len, gone.values()))

    def _keys_in_state(self, source: SourceTable, work: _Blanking, wanted: Wanted) -> list[str]:
        """The keys of the state whose rows must go: in a quarantine they are not the ones that are forgotten."""
        if wanted.event_column is None:
            return list(dict.fromkeys(life.key for life in wanted.lives if life.is_on))
        found: list[str] = []
        for some in _groups(list(source.files)):
            found += self._one(find_keys, HeldJob(some, wanted))
        return list(dict.fromkeys(found))

    # --- out of the files --------------------------------------------------------------------------------------------

    def _holders(self, location: str, wanted: Wanted, tell: Tell) -> frozenset[str]:
        """All data files in a table's folder that hold rows of the key, whether a snapshot names them or not."""
        storage = store()
        root = storage.resolve(location)
        paths = [file.location for file in storage.list(f"{root}/data") if file.location.endswith(".parquet")]
        return frozenset(self._held(paths, wanted, tell))

    def _rewrite(self, name: str, holders: frozenset[str], tell: Tell) -> int:
        """Current files of the state, without the rows that are deleted; returns how many there were."""
        with self._publisher.turns:
            source = self._known(name)
            paths = [path for path in source.files if store().resolve(path) in holders]
        count = 0
        for path in paths:
            with contextlib.suppress(Conflict):  # a publish has merged it, and left the same rows out
                self._compactor.compact(name, [path], is_state=True, target_bytes=NO_TARGET)
                count += 1
            tell()
        with self._publisher.turns:
            if any(path in self._known(name).files for path in paths):
                raise Conflict(f"files of {name} could not be written anew", hint="it is tried again")
        return count

    def _let_go(
        self,
        name: str,
        holders: frozenset[str],
        done: Done,
        tell: Tell,
        *,
        is_state: bool,
        count: int,
        is_patient: bool,
    ) -> TableForgotten:
        """Snapshots that name such files expire, and the files are removed."""
        table = self._table(name, is_state=is_state)
        current = self._current(name, holders, is_state=is_state)
        metadata = self._metadata(table)
        naming: list[int] = self._one(find_naming, NamingJob(metadata, holders)) if holders else []
        if current or metadata.get("current-snapshot-id") in naming:
            raise Conflict(f"the current snapshot of {name} still names files of the key", hint="it is tried again")
        tags = tuple(sorted(ref for ref, each in metadata.get("refs", {}).items() if each["snapshot-id"] in naming))
        if naming:
            self._publisher.http.remove_snapshots(table.name, metadata["table-uuid"], naming)
            reach("expired")
        tell()
        removed, freed = self._remove(table, holders, done, is_patient=is_patient)
        tell()
        rewritten = count if is_state else len(holders)
        return TableForgotten(".".join(table.name), rewritten, len(naming), tags, removed, freed)

    def _current(self, name: str, holders: frozenset[str], *, is_state: bool) -> bool:
        """Whether the current snapshot names such a file; where it does as one that was removed, it is regrouped."""
        if not holders:
            return False
        for _ in range(2):
            metadata = self._metadata(self._table(name, is_state=is_state))
            newest = metadata.get("current-snapshot-id")
            only = [each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == newest]
            if not self._one(find_naming, NamingJob(metadata | {"snapshots": only}, holders)):
                return False
            self._compactor.regroup(name, is_state=is_state, manifests_max=0)
        return True

    def _remove(self, table: IcebergTable, holders: frozenset[str], done: Done, *, is_patient: bool) -> tuple[int, int]:
        """Files that hold the key, and manifests: those have the bounds of the files that they name."""
        since_s = self._publisher.in_flight.since_s
        metadata = self._metadata(table)
        if OURS not in metadata.get("properties", {}):
            return 0, 0
        found: list[Found] = self._one(find_garbage, GarbageJob(metadata["location"], metadata))
        waiting = Waiting(self._folder / f"{metadata['table-uuid']}.json")
        if is_patient:
            waiting.look(found, grace_s=float("inf"), in_flight_since_s=since_s)
            done.left += [each.path for each in found if each.path in holders]
            return 0, 0
        meant = [each for each in found if each.path in holders or each.path.endswith(".avro")]
        due = [each for each in meant if each.modified_s < since_s]
        freed = remove(due)
        reach("collected")
        waiting.forget(due)
        gone = {each.path for each in due}
        done.left += [path for path in holders if path not in gone and store().exists(path)]
        return len(due), freed

    def _shake_index(self, name: str) -> None:
        """What the key index has of keys without a row goes: a hash of a short key is soon guessed."""
        with self._publisher.turns:
            source = self._known(name)
        with source.trusting_index() as index:
            merged = index.prepare_merge(is_whole=True)
        with self._publisher.turns:
            if merged and self._publisher.tables.find(name) is source:
                source.index.finish_merge(merged)
            elif merged:
                raise Conflict(f"{name} was loaded anew meanwhile", hint="it is tried again")

    # --- asking ------------------------------------------------------------------------------------------------------

    def _source(self, name: str) -> SourceTable | None:
        with self._publisher.turns:
            self._publisher.look_if_uncertain()
            return self._publisher.tables.find(name)

    def _known(self, name: str) -> SourceTable:
        """In the caller's turn."""
        self._publisher.look_if_uncertain()
        source = self._publisher.tables.find(name)
        if source is None:
            raise Conflict(f"{name} was dropped meanwhile", hint="it is tried again")
        return source

    def _table(self, name: str, *, is_state: bool) -> IcebergTable:
        with self._publisher.turns:
            source = self._known(name)
            return source.state if is_state else source.changes

    def _metadata(self, table: IcebergTable) -> Json:
        metadata = self._publisher.http.metadata(table.name)
        if metadata is None:
            raise Conflict(f"{'.'.join(table.name)} was dropped meanwhile", hint="it is tried again")
        return metadata

    def _held(self, paths: Sequence[str], wanted: Wanted, tell: Tell) -> list[str]:
        found: list[str] = []
        for some in _groups(paths):
            found += self._one(find_held, HeldJob(some, wanted))
            tell()
        return found

    def _one(self, do: Callable[[Any], Any], job: Any) -> Any:
        """One at a time, so that one of Spark's workers is free for publishes."""
        return next(run_jobs(self._publisher.spark, do, [job]))


def _groups(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for first in range(0, len(paths), _FILES_AT_ONCE):
        yield tuple(paths[first : first + _FILES_AT_ONCE])


def _quiet() -> None:
    """While publishes wait nobody is told anything, and nothing ends early."""
