"""All checks of a lake, in the order in which one needs what another found.

From cli/verify.py and from tests. Promise: nothing is changed; everything is compared at one position, however the
lake moves on meanwhile; where the files of that moment go, all begins again with a later one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dolake.errors import Unavailable
from dolake.tables.rules import LakeRules
from dolake.verify.base import Check, Report, TableSize
from dolake.verify.database import workshop
from dolake.verify.files import DataFile, files_of
from dolake.verify.folding import find_suspects, name_suspects
from dolake.verify.history import check_history, new_history
from dolake.verify.index import check_index
from dolake.verify.journal import Kept, check_journal, load_journal
from dolake.verify.loading import Shapes, load_changes, load_state, shapes_of
from dolake.verify.moment import IcebergTable, LakeFiles, Moment, Moved, SourceTable
from dolake.verify.moves import excuse_moved
from dolake.verify.rows import name_columns

if TYPE_CHECKING:
    import duckdb

_MOMENTS_MAX = 3
_USUAL = LakeRules()

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many rows are done, and how many there are as far as is known."""


def verify(
    lake: LakeFiles,
    *,
    only: str | None = None,
    scratch: Path | None = None,
    is_deduplicating: bool = True,
    rules: LakeRules = _USUAL,
    progress: Progress = lambda _what, _done, _total: None,
) -> Report:
    """Compare journal, changes, state and index of all tables, or of one."""
    for _ in range(_MOMENTS_MAX):
        started = time.monotonic()
        moment = lake.take_moment(only)
        with workshop(scratch, lake.storage) as connection:
            run = _Run(
                lake, moment, connection, progress, rules, is_whole=only is None, is_deduplicating=is_deduplicating
            )
            try:
                run.check_all()
            except Moved:
                continue
        return Report(moment.position, run.sizes, run.checks, round((time.monotonic() - started) * 1000))
    raise Unavailable("files went while they were read, again and again", hint="try again when less is cleaned up")


class _Run:
    """One verification of one moment."""

    def __init__(
        self,
        lake: LakeFiles,
        moment: Moment,
        connection: duckdb.DuckDBPyConnection,
        progress: Progress,
        rules: LakeRules,
        *,
        is_whole: bool,
        is_deduplicating: bool,
    ) -> None:
        self._lake, self._moment, self._connection, self._progress = lake, moment, connection, progress
        self._is_whole, self._is_deduplicating, self._rules = is_whole, is_deduplicating, rules
        self._names = [table.name for table in moment.tables]
        self._what, self._done, self._total = "", 0, 0
        self.checks: list[Check] = []
        self.sizes: list[TableSize] = []

    def check_all(self) -> None:
        planned = [self._plan(table) for table in self._moment.tables]
        journal = self._new_check("" if self._is_whole else self._names[0], "journal")
        kept = self._load_journal(journal)
        for table, (state_files, changes_files) in zip(self._moment.tables, planned, strict=True):
            self._check_table(table, state_files, changes_files, kept)
        self._begin("positions and sequences")
        history = new_history(journal.table)
        self.checks += history.all()
        if not self._rules.takes_all:
            history.positions.note("the settings leave tables out, so positions that are in no table are no difference")
        check_history(
            self._connection,
            self._names,
            self._moment.position,
            kept,
            history,
            self._advance,
            is_whole=self._is_whole and self._rules.takes_all,
        )
        check_journal(self._connection, self._names, self._moment.position, kept, journal)
        self.checks.sort(key=lambda check: (not check.table, check.table))  # table by table, the whole lake last

    def _plan(self, table: SourceTable) -> tuple[list[DataFile], list[DataFile]]:
        """The data files of both tables. They must be there for as long as the table has this snapshot."""
        self._begin(f"{table.name}: files")
        check = self._new_check(table.name, "files")
        found = []
        for iceberg in (table.state, table.changes):
            files = [] if iceberg is None else files_of(iceberg, self._lake.storage, check)
            if iceberg is not None and check.difference_count:
                self._stop_if_over(iceberg)
            found.append(files)
            check.compared += len(files)
            self._total += sum(file.data.rows for file in files)
        state, changes = found
        self._total += sum(file.data.rows for file in (*state, *changes))  # each is looked at once more
        for missing, other in ((table.state, table.changes), (table.changes, table.state)):
            if missing is None and other is not None and other.snapshot_id is not None:
                check.differ(f"{other.pointer.name} is alone: the other of the two tables is missing")
        return state, changes

    def _check_table(
        self, table: SourceTable, state_files: list[DataFile], changes_files: list[DataFile], kept: Kept
    ) -> None:
        if table.state is None or table.changes is None:
            return
        earlier = table.changes.metadata.get("schemas", ())
        shapes = shapes_of(table.state.schema, table.changes.schema, earlier)
        read = self._new_check(table.name, "rows")
        self._begin(f"{table.name}: changes")
        changes = load_changes(self._connection, table.number, shapes, changes_files, read, self._advance)
        self._begin(f"{table.name}: state")
        rows = load_state(self._connection, table.number, shapes, state_files, read, self._advance)
        read.compared = changes.rows + rows.rows
        if read.difference_count:
            for iceberg in (table.state, table.changes):
                self._stop_if_over(iceberg)
        self.sizes.append(TableSize(table.name, changes.rows, rows.rows))
        self._check_state(table, shapes, state_files, changes.files, kept)
        self._check_index(table, state_files)

    def _check_state(
        self,
        table: SourceTable,
        shapes: Shapes,
        state_files: list[DataFile],
        changes_files: list[DataFile],
        kept: Kept,
    ) -> None:
        self._begin(f"{table.name}: state against changes")
        check = self._new_check(table.name, "state")
        for name in shapes.conflicts:
            check.differ(f"column {name} has one type in the state and another in the changes")
        if find_suspects(self._connection, table.number, has_scope=shapes.has_scope, check=check):
            excuse_moved(self._connection, table.number, shapes, changes_files, kept.oldest)
            if found := name_suspects(self._connection, check):
                name_columns(self._connection, shapes, state_files, changes_files, found, check)

    def _check_index(self, table: SourceTable, state_files: list[DataFile]) -> None:
        self._begin(f"{table.name}: key index")
        check = self._new_check(table.name, "index")
        if table.is_index_awaited:
            check.note(f"the home was recovered without it; it is built when {table.name} is next written")
        elif table.index_problem:
            check.differ(table.index_problem)
        if table.index is not None:
            check_index(self._connection, table.number, table.index, state_files, check, self._advance)

    def _load_journal(self, check: Check) -> Kept:
        self._begin("journal")
        return load_journal(
            self._connection,
            self._lake.journal,
            self._moment.position,
            {name: number for number, name in enumerate(self._names)},
            check,
            lambda _rows: None,
            is_deduplicating=self._is_deduplicating,
            is_whole=self._is_whole,
            takes=self._rules.takes,
        )

    def _stop_if_over(self, table: IcebergTable) -> None:
        """What is wrong with files of a snapshot that the table no longer has is nobody's fault."""
        if not self._lake.is_kept(table):
            raise Moved

    def _new_check(self, table: str, name: str) -> Check:
        check = Check(table, name)
        self.checks.append(check)
        return check

    def _begin(self, what: str) -> None:
        self._what = what
        self._progress(what, self._done, self._total)

    def _advance(self, rows: int) -> None:
        self._done += rows
        self._progress(self._what, self._done, self._total)
