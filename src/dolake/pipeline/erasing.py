"""Bytes of a forgotten key leave the files: written anew, expired, removed.

From forgetting.py, when the row has left the tables and only files hold what is left of it: deleted rows, files of
older snapshots and of no snapshot at all. Through holding.py in one of Spark's workers. Promise: what a file holds is
looked for in the file, whatever the tables say of it; what a commit under way may need stays, and is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dolake.crashpoints import reach
from dolake.errors import Conflict
from dolake.pipeline.compaction import Compactor
from dolake.pipeline.garbage import Found, GarbageJob, Waiting, find_garbage, remove
from dolake.pipeline.holding import HeldJob, NamingJob, Wanted, find_held, find_naming
from dolake.pipeline.iceberg import IcebergTable
from dolake.pipeline.link import TableForgotten
from dolake.pipeline.publish import Publisher
from dolake.pipeline.sourcetables import SourceTable
from dolake.pipeline.staging import NO_TARGET, run_jobs
from dolake.pipeline.store import store
from dolake.positions import Position
from dolake.tables.layout import OURS

Json = dict[str, Any]
_FILES_AT_ONCE = 64
"""That one of Spark's workers looks into before publishes get their turn with it."""

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
    waited_ms: int = 0
    """How long publishes waited, at most in one piece."""
    left: list[str] = field(default_factory=list)
    """Files that hold the key and could not go yet."""

    def begin(self) -> None:
        """Another try: what was done stays done, and how far it has come shows anew."""
        self.position = 0
        self.left.clear()

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


class Eraser:
    """Erases keys from the files of the tables that a publisher has."""

    def __init__(self, publisher: Publisher, compactor: Compactor, folder: Path) -> None:
        self._publisher, self._compactor, self._folder = publisher, compactor, folder

    def erase(
        self,
        source: SourceTable,
        in_state: Wanted,
        in_changes: Wanted,
        links: frozenset[str],
        done: Done,
        tell: Tell,
        *,
        is_patient: bool,
    ) -> None:
        """Conflict where somebody was faster: begin anew. `links` are files without which the rest is not found."""
        state = self._holders(source.state.location, in_state, tell)
        changes = self._holders(source.changes.location, in_changes, tell)
        self._rewrite(source.name, state, done, tell)
        self._shake_index(source.name)
        tell()
        for is_state, holders in ((True, state), (False, changes)):
            table = self._table(source.name, is_state=is_state)
            self._expire(source.name, table, holders, done, is_state=is_state)
            tell()
            self._remove(table, holders, links, done, is_patient=is_patient)
            tell()

    def files(self, location: str) -> list[str]:
        """All data files in a table's folders, warm and cold, whether a snapshot names them or not."""
        storage = store()
        folders = map(storage.resolve, self._publisher.tables.tiers.folders(location))
        found = (file for folder in folders for file in storage.list(f"{folder}/data"))
        return [file.location for file in found if file.location.endswith(".parquet")]

    def held(self, paths: Sequence[str], wanted: Wanted, tell: Tell) -> list[str]:
        """Which of these data files hold such rows."""
        found: list[str] = []
        for some in groups(paths):
            found += self.one(find_held, HeldJob(some, wanted))
            tell()
        return found

    def one(self, do: Callable[[Any], Any], job: Any) -> Any:
        """One at a time, so that one of Spark's workers is free for publishes."""
        return next(run_jobs(self._publisher.spark, do, [job]))

    def _holders(self, location: str, wanted: Wanted, tell: Tell) -> frozenset[str]:
        return frozenset(self.held(self.files(location), wanted, tell))

    def _rewrite(self, name: str, holders: frozenset[str], done: Done, tell: Tell) -> None:
        """Current files of the state, without the rows that are deleted."""
        with self._publisher.turns:
            source = self._known(name)
            paths = [path for path in source.files if store().resolve(path) in holders]
        for path in paths:
            with contextlib.suppress(Conflict):  # a publish has merged it, and left the same rows out
                compacted = self._compactor.compact(name, [path], is_state=True, target_bytes=NO_TARGET)
                done.waited_ms = max(done.waited_ms, compacted.waited_ms)
                done.note(TableForgotten(".".join(source.state.name), files_rewritten=1))
            tell()
        with self._publisher.turns:
            if any(path in self._known(name).files for path in paths):
                raise Conflict(f"files of {name} could not be written anew", hint="it is tried again")

    def _expire(self, name: str, table: IcebergTable, holders: frozenset[str], done: Done, *, is_state: bool) -> None:
        """Snapshots that name such files, also where a tag keeps them."""
        is_current = self._is_current(name, holders, is_state=is_state)
        metadata = self._metadata(table)
        naming: list[int] = self.one(find_naming, NamingJob(metadata, holders)) if holders else []
        if is_current or metadata.get("current-snapshot-id") in naming:
            raise Conflict(f"the current snapshot of {name} still names files of the key", hint="it is tried again")
        tags = sorted(ref for ref, each in metadata.get("refs", {}).items() if each["snapshot-id"] in naming)
        if naming:
            self._publisher.http.remove_snapshots(table.name, metadata["table-uuid"], naming)
            reach("expired")
        done.note(TableForgotten(".".join(table.name), snapshots_expired=len(naming), tags_removed=tuple(tags)))

    def _is_current(self, name: str, holders: frozenset[str], *, is_state: bool) -> bool:
        """Whether the current snapshot names such a file; where it does as one that was removed, it is regrouped."""
        if not holders:
            return False
        for _ in range(2):
            metadata = self._metadata(self._table(name, is_state=is_state))
            newest = metadata.get("current-snapshot-id")
            only = [each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == newest]
            if not self.one(find_naming, NamingJob(metadata | {"snapshots": only}, holders)):
                return False
            self._compactor.regroup(name, is_state=is_state, manifests_max=0)
        return True

    def _remove(
        self, table: IcebergTable, holders: frozenset[str], links: frozenset[str], done: Done, *, is_patient: bool
    ) -> None:
        """Files that hold the key, and manifests: those have the bounds of the files that they name."""
        since_s = self._publisher.in_flight.since_s
        metadata = self._metadata(table)
        if OURS not in metadata.get("properties", {}):
            return  # in the folder of a table that somebody else made there may be files of others
        folders = self._publisher.tables.tiers.folders(metadata["location"])
        found: list[Found] = self.one(find_garbage, GarbageJob(*folders, metadata))
        waiting = Waiting(self._folder / f"{metadata['table-uuid']}.json")
        if is_patient:
            waiting.look(found, grace_s=float("inf"), in_flight_since_s=since_s)
            done.left += [each.path for each in found if each.path in holders]
            return
        meant = [each for each in found if each.path in holders or each.path.endswith(".avro")]
        due = [each for each in meant if each.modified_s < since_s]
        freed = remove([each for each in due if each.path not in links])
        reach("collected")
        freed += remove([each for each in due if each.path in links])
        waiting.forget(due)
        gone = {each.path for each in due}
        done.left += [path for path in holders if path not in gone and store().exists(path)]
        done.note(TableForgotten(".".join(table.name), files_removed=len(due), bytes_removed=freed))

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

    # --- what there is now -------------------------------------------------------------------------------------------

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


def groups(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """As many paths at once as a worker looks into."""
    for first in range(0, len(paths), _FILES_AT_ONCE):
        yield tuple(paths[first : first + _FILES_AT_ONCE])
