"""Forget a key beside the stream: no file of its table holds it any more, in no snapshot.

From maintenance.py; to holding.py in one of Spark's workers. First one commit takes the row out of the state and blanks
its changes, so that both tables always say the same; then erasing.py sees to the files. Promise: each step begins with
a look at what is there, so that after a crash at any point, or a second time, the same order does what is left;
publishes wait for commits alone; a row of the key that comes after the first commit is a new row, and stays.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dolake.crashpoints import reach
from dolake.errors import Conflict, OutcomeUnknown, Unavailable
from dolake.keyindex import Changes
from dolake.keyindex.hashes import no_hashes
from dolake.pipeline.compaction import Compactor, land
from dolake.pipeline.erasing import Done, Eraser, Tell, groups
from dolake.pipeline.files import remove_files
from dolake.pipeline.holding import (
    Blanked,
    BlankJob,
    HeldJob,
    MovesJob,
    Wanted,
    blank,
    closed,
    find_keys,
    find_moves,
    in_quarantine,
    in_state,
)
from dolake.pipeline.iceberg import TableChange
from dolake.pipeline.link import Forget, Forgotten, TableForgotten
from dolake.pipeline.publish import Publisher
from dolake.pipeline.quarantine import quarantine_of
from dolake.pipeline.reading import hashes_of_keys
from dolake.pipeline.sourcetables import SourceTable
from dolake.pipeline.store import store
from dolake.positions import Position
from dolake.tables.forgetting import Life, Move, lives_of

logger = logging.getLogger(__name__)

_TRIES_MAX, _ROUNDS_MAX = 5, 8
_FEW_FILES = 8
"""So many are searched while publishes wait."""


@dataclass(slots=True)
class _Blanking:
    """The files of a table of changes that were looked at, and those that were written anew, by the old path."""

    token: str = field(default_factory=lambda: f"forgotten-{uuid.uuid4().hex[:12]}")
    seen: set[str] = field(default_factory=set)
    new: dict[str, Blanked] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(each.count for each in self.new.values())


@dataclass(frozen=True, slots=True)
class _Row:
    """The row that is forgotten: its lives and keys, the files that say which these are, and all that were asked."""

    lives: tuple[Life, ...]
    keys: frozenset[str]
    links: frozenset[str]
    searched: frozenset[str]


class Forgetter:
    """Forgets keys of the tables that a publisher has."""

    def __init__(self, publisher: Publisher, compactor: Compactor, folder: Path) -> None:
        self._publisher = publisher
        self._eraser = Eraser(publisher, compactor, folder)

    def forget(self, order: Forget, tell: Tell) -> Done:
        """All of it; Unavailable where that did not come to an end. The same order does the rest."""
        done = Done()
        for number in range(_TRIES_MAX):
            try:
                self._forget(order, done, tell)
                break
            except (Conflict, OutcomeUnknown) as error:
                # Somebody was faster, or nobody knows: what is there is looked at anew, and the rest is done.
                logger.warning("forgetting begun anew", extra={"table": order.table, "reason": error.message})
                if number + 1 == _TRIES_MAX:
                    raise Unavailable(error.message, hint="ask for it again: it does what is left") from error
                time.sleep(number)
        return done

    def _forget(self, order: Forget, done: Done, tell: Tell) -> None:
        done.begin()
        row = self._row(order, tell)
        done.keys = max(done.keys, len(row.keys))
        # The table itself comes last: as long as its old changes are there, its row is found under all its keys.
        for name in (quarantine_of(order.table), order.table):
            source = self._source(name)
            if source is not None:
                self._forget_in(source, row, order, done, tell)

    def _row(self, order: Forget, tell: Tell) -> _Row:
        """The key, and those that its row had before and after.

        Of all files in the folder: in those of now they are blank, where an earlier try has come so far.
        """
        source = self._source(order.table)
        paths = self._eraser.files(source.changes.location) if source else []
        found: dict[str, list[Move]] = {}
        for some in groups(paths):
            found |= self._eraser.one(find_moves, MovesJob(some, order.source))
            tell()
        lives = lives_of(order.key, {move for moves in found.values() for move in moves})
        keys = frozenset(life.key for life in lives)
        links = frozenset(path for path, moves in found.items() if any(move.key in keys for move in moves))
        return _Row(lives, keys, links, frozenset(paths))

    def _forget_in(self, source: SourceTable, row: _Row, order: Forget, done: Done, tell: Tell) -> None:
        """A source table, or its quarantine, which is one of its own."""
        is_quarantine = source.name != order.table

        def in_changes(lives: tuple[Life, ...]) -> Wanted:
            wanted = Wanted(lives, order.source)
            return in_quarantine(wanted) if is_quarantine else wanted

        position = self._take_out(source, row, in_changes(row.lives), done, tell)
        done.position = min(done.position or position, position)
        reach("forgotten")
        wanted = in_changes(closed(row.lives, position))  # what comes from here on is a new row
        of_state = wanted if is_quarantine else in_state(wanted)
        self._eraser.erase(source, of_state, wanted, row.links, done, tell, is_patient=order.is_patient)

    def _source(self, name: str) -> SourceTable | None:
        with self._publisher.turns:
            self._publisher.look_if_uncertain()
            return self._publisher.tables.find(name)

    # --- out of both tables at once ----------------------------------------------------------------------------------

    def _take_out(self, source: SourceTable, row: _Row, wanted: Wanted, done: Done, tell: Tell) -> Position:
        """The row leaves the state and its changes become blank, by one commit; up to this position."""
        work = _Blanking()
        publisher = self._publisher
        with publisher.in_flight.one():
            try:
                self._blank_most(source, wanted, work, tell)
                with publisher.turns:
                    began_s = time.monotonic()
                    self._blank(source, self._unseen(source, work), wanted, work)
                    self._stop_if_moved(work, row, wanted)
                    done.rows += self._land(source, work, wanted)
                    done.changes += work.count
                    done.note(TableForgotten(".".join(source.changes.name), files_rewritten=len(work.new)))
                    done.waited_ms = max(done.waited_ms, round((time.monotonic() - began_s) * 1000))
                    return publisher.position
            except OutcomeUnknown:
                raise  # the files may be part of the table
            except BaseException:
                with contextlib.suppress(OSError):
                    remove_files((source.changes.location, source.state.location), work.token)
                raise
            finally:
                source.busy.difference_update(work.seen)

    def _stop_if_moved(self, work: _Blanking, row: _Row, wanted: Wanted) -> None:
        """Where the row has got another key since we asked which it has."""
        late = [path for path in work.seen if store().resolve(path) not in row.searched]
        for some in groups(late) if wanted.event_column is None else ():
            moves: dict[str, list[Move]] = self._eraser.one(find_moves, MovesJob(some, wanted.source))
            if any({move.key, move.previous} & row.keys for found in moves.values() for move in found):
                raise Conflict("the row has got another key meanwhile", hint="it is tried again")

    def _blank_most(self, source: SourceTable, wanted: Wanted, work: _Blanking, tell: Tell) -> None:
        """All files but the few that come with the next publishes: for those, publishes wait."""
        for _ in range(_ROUNDS_MAX):
            with self._publisher.turns:
                paths = self._unseen(source, work)
            self._blank(source, paths, wanted, work, tell)
            if len(paths) <= _FEW_FILES:
                return

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
        for path in self._eraser.held(paths, wanted, tell or _quiet):
            job = BlankJob(
                path=path,
                wanted=wanted,
                schema=source.changes.schema,
                location=source.changes.location,
                options=self._publisher.options.of(source.rules.layout),
                token=work.token,
            )
            work.new[path] = self._eraser.one(blank, job)
            if tell:
                tell()

    def _land(self, source: SourceTable, work: _Blanking, wanted: Wanted) -> int:
        """Returns how many rows left the state."""
        if any(path not in source.changes_files for path in work.new):
            raise Conflict(f"files of {source.name} are not there any more", hint="it is tried again")
        keys = self._keys_in_state(source, wanted)
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

    def _keys_in_state(self, source: SourceTable, wanted: Wanted) -> list[str]:
        """The keys of the state whose rows must go: in a quarantine they are not the ones that are forgotten."""
        if wanted.event_column is None:
            return list(dict.fromkeys(life.key for life in wanted.lives if life.is_on))
        found: list[str] = []
        for some in groups(list(source.files)):
            found += self._eraser.one(find_keys, HeldJob(some, wanted))
        return list(dict.fromkeys(found))


def forgotten_of(done: Done, order: Forget, now_ms: int) -> Forgotten:
    """For the report, to which the server adds what became of the journal."""
    waits: list[str] = []
    last_ms: int | None = now_ms
    if done.left and order.is_patient:
        grace_ms = order.settings.maintenance.gc_grace_ms
        waits.append(f"{len(done.left)} files go with the first upkeep after {grace_ms // 1000} s")
        last_ms = now_ms + grace_ms
    elif done.left:
        waits.append(f"{len(done.left)} files may be part of a commit in doubt: forget the key again in 10 minutes")
        last_ms = None
    if done.position < order.to:
        waits.append(
            f"changes from position {done.position} on are not published, as where a transaction is open: "
            "forget the key again when they are"
        )
        last_ms = None
    return Forgotten(
        position=done.position,
        keys=done.keys,
        rows_removed=done.rows,
        changes_blanked=done.changes,
        tables=tuple(sorted(done.tables, key=lambda each: each.table)),
        last_byte_ms=last_ms,
        waits=tuple(waits),
    )


def _quiet() -> None:
    """While publishes wait nobody is told anything, and nothing ends early."""
