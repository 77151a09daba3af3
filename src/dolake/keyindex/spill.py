"""Entries that come in any order and any number become one sorted run, in bounded memory.

From rebuild.py for a whole table; from index.py for compaction. Promise: memory does not grow with the number of
entries, and a key that comes twice is refused.
"""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

from dolake.errors import Damaged
from dolake.keyindex.disk import Disk
from dolake.keyindex.format import Run, open_run, write_run
from dolake.keyindex.merging import write_merged
from dolake.keyindex.runs import Entries, concatenate, sort_entries

PART = ".part"


class Spill:
    """Sorted parts on disk and one part in memory. `finish` merges them, `close` removes what is left of them."""

    def __init__(self, folder: Path, rows_in_memory: int, disk: Disk) -> None:
        self.rows = 0
        self._folder = folder
        self._rows_in_memory = rows_in_memory
        self._disk = disk
        self._waiting: list[Entries] = []
        self._waiting_rows = 0
        self._parts: list[Run] = []
        self._numbers = itertools.count()
        self._token = uuid.uuid4().hex[:12]

    def add(self, entries: Entries) -> None:
        """Take entries in any order; a large block is cut, so that it is never sorted as a whole."""
        start = 0
        while start < len(entries):
            end = start + self._rows_in_memory - self._waiting_rows
            self._wait(entries.take(slice(start, end)))
            start = end

    def finish(self, path: Path) -> Run | None:
        """Write everything as one run; None when there was nothing. Damaged when a key came twice."""
        if not self.rows:
            return None
        self._write_part()
        rows = self._rows_in_memory
        run = write_merged(path, self._parts, drop_tombstones=False, rows_in_memory=rows, disk=self._disk)
        if len(run.entries) != self.rows:
            path.unlink()
            count = self.rows - len(run.entries)
            raise Damaged(f"{count} rows have a key that another row has too", hint="a key may have one row only")
        return run

    def close(self) -> None:
        for part in self._parts:
            (self._folder / part.name).unlink(missing_ok=True)

    def _wait(self, entries: Entries) -> None:
        self._waiting.append(entries)
        self._waiting_rows += len(entries)
        self.rows += len(entries)
        if self._waiting_rows >= self._rows_in_memory:
            self._write_part()

    def _write_part(self) -> None:
        if not self._waiting:
            return
        path = self._folder / f"spill-{self._token}-{next(self._numbers):06d}{PART}"
        entries = sort_entries(concatenate(self._waiting))
        write_run(path, [entries], len(entries), self._disk, is_durable=False)
        self._parts.append(open_run(path))
        self._waiting, self._waiting_rows = [], 0
