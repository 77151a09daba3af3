"""Data files written anew as fewer and larger ones, without their deleted rows: a task for one of Spark's workers.

From compaction.py. Rows keep their order, so that where a row has gone follows from arithmetic. Promise: memory follows
a row group and the number of rows, not the size of the files; what is returned is written and synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes, no_hashes
from dolake.pipeline.deletes import Positions
from dolake.pipeline.files import RowsFile, Shape, WriteOptions, fitted, new_file, shape_of
from dolake.pipeline.tasks import hashes_of
from dolake.storage.local import path_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """Write the rows of these files that are not deleted as files of about `target_bytes`."""

    schema: str
    location: str
    files: dict[str, Positions]
    """Each with its deleted rows."""
    options: WriteOptions
    target_bytes: int
    token: str
    has_keys: bool
    has_source_in_key: bool = False
    ids_before: Mapping[bytes, bytes] = field(default_factory=dict)
    """Of columns that get another type on the way."""


@dataclass(slots=True)
class Rewritten:
    """The new files in the order of the rows; of a table with keys, the hashes of theirs."""

    files: list[Json] = field(default_factory=list)
    hashes: list[Hashes] = field(default_factory=list)
    is_inexact: bool = False
    """A value would not have survived the other type of its column: nothing is written."""


def rewrite(job: RewriteJob) -> Rewritten:
    """See the module."""
    try:
        return _rewrite(job)
    except pa.ArrowInvalid:
        if not job.ids_before:
            raise
        return Rewritten(is_inexact=True)


def _rewrite(job: RewriteJob) -> Rewritten:
    shape = shape_of(job.schema)
    done = Rewritten()
    file: RowsFile | None = None
    hashes: list[Hashes] = []
    for rows in _row_groups(job, shape):
        if file is None:
            file, hashes = RowsFile(new_file(job.location, job.token), shape, job.options), []
        file.write(rows)
        if job.has_keys:
            hashes.append(hashes_of(rows, has_source_in_key=job.has_source_in_key))
        if file.size_bytes >= job.target_bytes:
            _finish(done, file, hashes)
            file = None
    if file is not None:
        _finish(done, file, hashes)
    return done


def _finish(done: Rewritten, file: RowsFile, hashes: list[Hashes]) -> None:
    done.files.append(file.close())
    done.hashes.append(_joined(hashes))


def _joined(parts: list[Hashes]) -> Hashes:
    if not parts:
        return no_hashes()
    return Hashes(np.concatenate([part.hi for part in parts]), np.concatenate([part.lo for part in parts]))


def _row_groups(job: RewriteJob, shape: Shape) -> Iterator[pa.Table]:
    """The rows that are left, as many together as one row group has."""
    waiting: list[pa.Table] = []
    count = 0
    for path, deleted in job.files.items():
        for rows in _live_groups(path, deleted, shape, job.ids_before):
            waiting.append(rows)
            count += rows.num_rows
            if count >= job.options.row_group_size:
                yield pa.concat_tables(waiting)
                waiting, count = [], 0
    if count:
        yield pa.concat_tables(waiting)


def _live_groups(path: str, deleted: Positions, shape: Shape, ids_before: Mapping[bytes, bytes]) -> Iterator[pa.Table]:
    """Row group after row group, in the columns that the table has now."""
    with pq.ParquetFile(path_of(path)) as file:
        first = 0
        for number in range(file.num_row_groups):
            found = file.read_row_group(number)
            low, high = np.searchsorted(deleted, (first, first + found.num_rows))
            yield as_now(found, deleted[low:high].astype(np.int64) - first, shape, ids_before)
            first += found.num_rows


def as_now(
    found: pa.Table, deleted: NDArray[Any], shape: Shape, ids_before: Mapping[bytes, bytes] | None = None
) -> pa.Table:
    """Rows of an older file without those that are deleted, in the columns that the table has now."""
    if len(deleted):
        is_kept = np.ones(found.num_rows, np.bool_)
        is_kept[deleted] = False
        found = found.filter(pa.array(is_kept))
    live = found.combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in live.columns]
    now = fitted(columns, list(live.schema), list(shape.arrow), live.num_rows, ids_before or {})
    return pa.table(now, schema=shape.arrow)


# --- where a row has gone --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moves:
    """From rows of the old files to rows of the new ones. `old` are the old files in order with their deleted rows."""

    old: Mapping[str, Positions]
    row_counts: Mapping[str, int]
    """How many rows each old file has, deleted ones too."""
    new: Sequence[Json]

    def of(self, gone: Mapping[str, Positions]) -> dict[str, Positions]:
        """Where these rows of the old files are now: new file by new file, positions ascending."""
        numbers = [np.empty(0, np.int64)]
        first = 0
        for path, deleted in self.old.items():
            rows = gone.get(path, np.empty(0, np.uint32)).astype(np.int64)
            numbers.append(first + rows - np.searchsorted(deleted, rows))
            first += self.row_counts[path] - len(deleted)
        moved = np.sort(np.concatenate(numbers))
        ends = np.cumsum([file["record-count"] for file in self.new])
        found: dict[str, Positions] = {}
        for file, end in zip(self.new, ends.tolist(), strict=True):
            start = end - file["record-count"]
            low, high = np.searchsorted(moved, (start, end))
            if low < high:
                found[file["file-path"]] = (moved[low:high] - start).astype(np.uint32)
        return found
