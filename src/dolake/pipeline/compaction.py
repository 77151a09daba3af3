"""Compact some data files of a table beside a running stream: read and write without hurry, land in an instant.

From maintenance.py, piece by piece; to rewriting.py in one of Spark's workers. A move to another tier is the same with
another place for the new files. Promise: a piece always lands, however
busy the table: what publishes deleted meanwhile is deleted in the new files by the same commit. Publishes wait for the
landing alone, which costs what has changed and not what was compacted. After a crash at any point the table is as it
was, or as it should be.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dolake.catalog.base import PUBLISHED_TO
from dolake.crashpoints import reach
from dolake.errors import Conflict, OutcomeUnknown
from dolake.keyindex import Block, Changes, Hashes, KeyIndex, Moved
from dolake.pipeline.arranging import partition_of
from dolake.pipeline.deletes import DeletePlan, Positions
from dolake.pipeline.files import remove_files
from dolake.pipeline.iceberg import TableChange
from dolake.pipeline.origins import Origin
from dolake.pipeline.publish import Publisher, sync_manifests
from dolake.pipeline.rewriting import Moves, RewriteJob, Rewritten, rewrite
from dolake.pipeline.sourcetables import SourceTable, brief
from dolake.pipeline.staging import run_jobs
from dolake.pipeline.store import store
from dolake.tables.tiers import Tier

Json = dict[str, Any]
_NONE: Positions = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a piece did, and how long publishes had to wait for it."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows_dropped: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The files of a piece as they were when it began."""

    source: SourceTable
    is_state: bool
    location: str
    """Where the new files go."""
    token: str
    old: dict[str, Positions]
    entries: list[Json]
    origins: dict[str, Origin]


class Compactor:
    """Compacts files of the tables that a publisher has."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def compact(
        self, name: str, paths: Iterable[str], *, is_state: bool, target_bytes: int, to: Tier | None = None
    ) -> Compacted:
        """Write these data files of a source's state, or of its changes, as few as the target allows.

        They stay in their tier, or go to another one. Conflict when the files are not there any more: somebody else was
        faster, and nothing has happened.
        """
        with self._publisher.in_flight.one():
            return self._compact(name, list(paths), is_state=is_state, target_bytes=target_bytes, to=to)

    def _compact(self, name: str, paths: list[str], *, is_state: bool, target_bytes: int, to: Tier | None) -> Compacted:
        publisher = self._publisher
        with publisher.turns:
            piece = self._begin(name, paths, is_state=is_state, to=to)
        moved: Moved | None = None
        try:
            store().make_folder(f"{piece.location}/data")
            job = self._job(piece, target_bytes)
            rewritten: Rewritten = next(run_jobs(publisher.spark, rewrite, [job]))
            reach("rewritten")
            if is_state:
                moved = piece.source.index.prepare_move(_blocks(rewritten))
            with publisher.turns:
                began_s = time.monotonic()
                done = self._land(piece, rewritten, moved)
                waited_ms = round((time.monotonic() - began_s) * 1000)
        except OutcomeUnknown:
            raise  # the files may be part of the table
        except BaseException:
            self._remove(piece)
            if moved:
                piece.source.index.forget_move(moved)
            raise
        finally:
            piece.source.busy.difference_update(piece.old)
        before, after = piece.entries, rewritten.files
        return Compacted(
            files_before=len(before),
            files_after=len(after),
            bytes_before=sum(each["file-size-in-bytes"] for each in before),
            bytes_after=sum(each["file-size-in-bytes"] for each in after),
            rows_dropped=_row_count(before) - _row_count(after) + done,
            waited_ms=waited_ms,
        )

    def regroup(self, name: str, *, is_state: bool, manifests_max: int) -> bool:
        """Write the manifests of a table anew if there are more than that; says whether there were."""
        publisher = self._publisher
        with publisher.in_flight.one(), publisher.turns:
            publisher.look_if_uncertain()
            source = publisher.tables.find(name)
            if source is None or source.is_altering:
                return False
            table = source.state if is_state else source.changes
            if publisher.iceberg.manifest_count(table) <= manifests_max:
                return False
            index = source.index if is_state else None
            change = TableChange(table, is_regrouping=True)
            after = partial(self._refresh, source, is_state=is_state)
            land(publisher, [change], index, partial(_relabel, index), after)
            return True

    def _begin(self, name: str, paths: list[str], *, is_state: bool, to: Tier | None) -> _Piece:
        self._publisher.look_if_uncertain()
        source = self._publisher.tables.find(name)
        files = {} if source is None else source.files if is_state else source.changes_files
        is_altering = source is not None and source.is_altering
        if source is None or is_altering or any(path not in files or path in source.busy for path in paths):
            raise Conflict(f"files of {name} are not there any more", hint="they were merged or removed meanwhile")
        assert len({partition_of(files[path]) for path in paths}) == 1, "files of one partition become one"
        table = source.state if is_state else source.changes
        location = source.tiers.folder(table.location, to or source.tiers.of(paths[0]))
        old = {path: source.deletes.of(path) if is_state else _NONE for path in paths}
        token = f"{'moved' if to else 'compacted'}-{uuid.uuid4().hex[:12]}"
        origins = self._publisher.tables.origins(source, paths) if is_state else {}
        source.busy.update(paths)  # last: what fails before that leaves no file busy
        return _Piece(source, is_state, location, token, old, [files[path] for path in paths], origins)

    def _job(self, piece: _Piece, target_bytes: int) -> RewriteJob:
        table = piece.source.state if piece.is_state else piece.source.changes
        return RewriteJob(
            schema=table.schema,
            location=piece.location,
            files=piece.old,
            options=self._publisher.options.of(piece.source.rules.layout),
            target_bytes=target_bytes,
            token=piece.token,
            has_keys=piece.is_state,
            has_source_in_key=self._publisher.tables.has_source_in_key,
            origins=piece.origins,
            **(piece.source.place_of(piece.entries[0]["file-path"]) if piece.is_state else {}),
        )

    def _land(self, piece: _Piece, rewritten: Rewritten, moved: Moved | None) -> int:
        """Put the new files in place of the old ones; returns how many of their rows are deleted already."""
        publisher, source = self._publisher, piece.source
        publisher.look_if_uncertain()
        if publisher.tables.find(source.name) is not source or source.is_altering:
            raise Conflict(f"{source.name} was loaded anew meanwhile", hint="the next look starts again")
        plan, outdated = self._rebased(piece, rewritten)
        change = TableChange(
            source.state if piece.is_state else source.changes,
            add_rows=rewritten.files,
            remove_rows=piece.entries,
            add_deletes=list(plan.add.values()),
            remove_deletes=plan.remove,
            is_rewrite=True,
            place=piece.location,
        )
        index = source.index if moved else None

        def stage(snapshot_id: int) -> None:
            if moved:
                with source.trusting_index() as key_index:
                    key_index.stage_move(moved, piece.old, outdated, snapshot_id)

        land(publisher, [change], index, stage, lambda: self._apply(piece, rewritten, plan))
        return sum(len(block.positions) for block in outdated)

    def _rebased(self, piece: _Piece, rewritten: Rewritten) -> tuple[DeletePlan, list[Block]]:
        """What was deleted in the old files since the piece began, as positions in the new ones."""
        if not piece.is_state:
            return DeletePlan({}, [], {}), []
        deletes = piece.source.deletes
        gone = {path: np.setdiff1d(deletes.of(path), then) for path, then in piece.old.items()}
        row_counts = {entry["file-path"]: entry["record-count"] for entry in piece.entries}
        late = Moves(piece.old, row_counts, rewritten.files, rewritten.order).of(gone)
        hashes = {file["file-path"]: part for file, part in zip(rewritten.files, rewritten.hashes, strict=True)}
        outdated = [Block(path, _taken(hashes[path], positions), positions) for path, positions in late.items()]
        files = {file["file-path"]: file for file in rewritten.files}
        return deletes.plan(late, piece.token, list(piece.old), files), outdated

    def _apply(self, piece: _Piece, rewritten: Rewritten, plan: DeletePlan) -> None:
        source = piece.source
        files = source.files if piece.is_state else source.changes_files
        for path in piece.old:
            del files[path]
        files |= {file["file-path"]: brief(file) for file in rewritten.files}
        if piece.is_state:
            source.deletes.apply(plan)
        self._refresh(source, is_state=piece.is_state)

    def _refresh(self, source: SourceTable, *, is_state: bool) -> None:
        if is_state:
            self._publisher.tables.refresh_state(source)
        else:
            source.changes = self._publisher.iceberg.refresh(source.changes)

    def _remove(self, piece: _Piece) -> None:
        table = piece.source.state if piece.is_state else piece.source.changes
        with contextlib.suppress(OSError):
            remove_files(piece.source.tiers.folders(table.location), piece.token)


def land(
    publisher: Publisher,
    changes: Sequence[TableChange],
    index: KeyIndex | None,
    stage: Callable[[int], None],
    after: Callable[[], None],
) -> None:
    """Commit what upkeep does to tables, all at once; publishes wait meanwhile.

    Table and key index move together: the index is staged under the snapshot that the first of the commits makes.
    """
    summary = {PUBLISHED_TO: str(publisher.position)}
    commits = [publisher.iceberg.stage(change, summary) for change in changes]
    sync_manifests(commits)
    stage(commits[0].snapshot_id)
    reach("before_rewrite")
    try:
        publisher.iceberg.commit(commits)
    except Conflict:
        if index:
            index.discard()
        publisher.doubt()  # somebody has moved the table, and we do not know it
        raise
    except Exception as error:
        raise _doubt(publisher, error) from error
    reach("landed")
    try:
        if index:
            index.promote()
        after()
    except Exception as error:
        raise _doubt(publisher, error) from error


def _doubt(publisher: Publisher, error: Exception) -> OutcomeUnknown:
    """It has landed, or may have: nothing of it may be removed, and what we know of the table is void."""
    publisher.doubt()
    return OutcomeUnknown(f"nobody knows how the landing ended: {error}", hint="the table is loaded anew")


def _relabel(index: KeyIndex | None, snapshot_id: int) -> None:
    """The same index for the table's next snapshot."""
    if index:
        index.stage(Changes(), snapshot_id)


def _blocks(rewritten: Rewritten) -> list[Block]:
    return [
        Block(file["file-path"], hashes, np.arange(len(hashes.hi)))
        for file, hashes in zip(rewritten.files, rewritten.hashes, strict=True)
    ]


def _taken(hashes: Hashes, positions: Positions) -> Hashes:
    return Hashes(hashes.hi[positions], hashes.lo[positions])


def _row_count(entries: Sequence[Json]) -> int:
    return sum(entry["record-count"] for entry in entries)
