"""Data files written anew as fewer and larger ones, without their deleted rows: a task for one of Spark's workers.

From compaction.py. Rows keep their order, so that where a row has gone follows from arithmetic; where the table has a
sort order they get that one, and say how. Promise: memory follows a row group and the number of rows, not the size of
the files (while it sorts, a bound); what is returned is written and synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes, no_hashes
from dolake.pipeline.arranging import sorted_rows
from dolake.pipeline.deletes import Positions
from dolake.pipeline.files import RowsFile, Shape, WriteOptions, fitted, new_file, parquet_file, shape_of
from dolake.pipeline.lifting import lifted
from dolake.pipeline.origins import Origin, traced, with_origins
from dolake.pipeline.tasks import hashes_of
from dolake.tables.ordering import SortKey

Json = dict[str, Any]
_SORTED_BYTES_MAX = 256 * 1024 * 1024


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
    lifted: Mapping[str, str] = field(default_factory=dict)
    """Columns whose values may have waited in `_rescued` for the type that they have now."""
    folder: str = ""
    mark: Json = field(default_factory=dict)
    """Of the partition that all these files are in: what a commit says of the new ones."""
    sort: tuple[SortKey, ...] = ()
    sort_order_id: int = 0
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Of each file's rows, where the table is of a format that keeps this."""


@dataclass(slots=True)
class Rewritten:
    """The new files in the order of the rows; of a table with keys, the hashes of theirs."""

    files: list[Json] = field(default_factory=list)
    hashes: list[Hashes] = field(default_factory=list)
    is_inexact: bool = False
    """A value would not have survived the other type of its column: nothing is written."""
    order: NDArray[np.int64] | None = None
    """Where the rows were sorted: for each new row its number among the old ones that are left."""


def rewrite(job: RewriteJob) -> Rewritten:
    """See the module."""
    try:
        return _rewrite(job)
    except pa.ArrowInvalid:
        if not job.ids_before:
            raise
        return Rewritten(is_inexact=True)


def _rewrite(job: RewriteJob) -> Rewritten:
    shape = shape_of(with_origins(job.schema) if job.origins else job.schema)
    done = Rewritten()
    mark = dict(job.mark)
    groups = _row_groups(job, shape)
    if job.sort and _can_be_sorted(job):
        groups, done.order = _sorted(groups, job)
        mark["sort-order-id"] = job.sort_order_id
    file: RowsFile | None = None
    hashes: list[Hashes] = []
    for rows in groups:
        if file is None:
            file, hashes = RowsFile(new_file(job.location, job.token, job.folder), shape, job.options), []
        file.write(rows)
        if job.has_keys:
            hashes.append(hashes_of(rows, has_source_in_key=job.has_source_in_key))
        if file.size_bytes >= job.target_bytes:
            _finish(done, file, hashes, mark)
            file = None
    if file is not None:
        _finish(done, file, hashes, mark)
    return done


def _finish(done: Rewritten, file: RowsFile, hashes: list[Hashes], mark: Json) -> None:
    done.files.append(file.close() | mark)
    done.hashes.append(_joined(hashes))


def _can_be_sorted(job: RewriteJob) -> bool:
    """All rows are in memory at once for it: files that are too large together keep the order that they have."""
    size = 0
    for path in job.files:
        with parquet_file(path) as file:
            size += sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    return size <= _SORTED_BYTES_MAX


def _sorted(groups: Iterator[pa.Table], job: RewriteJob) -> tuple[Iterator[pa.Table], NDArray[np.int64] | None]:
    """All rows in the table's order, as many together as one row group has; and where each of them was."""
    found = list(groups)
    if not found:
        return iter(()), None
    rows = pa.concat_tables(found)
    order = sorted_rows(rows, job.sort)
    rows = rows.take(pa.array(order)).combine_chunks()
    size = job.options.row_group_size
    return (rows.slice(first, size) for first in range(0, len(order), size)), order


def _joined(parts: list[Hashes]) -> Hashes:
    if not parts:
        return no_hashes()
    return Hashes(np.concatenate([part.hi for part in parts]), np.concatenate([part.lo for part in parts]))


def _row_groups(job: RewriteJob, shape: Shape) -> Iterator[pa.Table]:
    """The rows that are left, as many together as one row group has."""
    waiting: list[pa.Table] = []
    count = 0
    for path, deleted in job.files.items():
        for rows in _live_groups(path, deleted, shape, job):
            waiting.append(rows)
            count += rows.num_rows
            if count >= job.options.row_group_size:
                yield pa.concat_tables(waiting)
                waiting, count = [], 0
    if count:
        yield pa.concat_tables(waiting)


def _live_groups(path: str, deleted: Positions, shape: Shape, job: RewriteJob) -> Iterator[pa.Table]:
    """Row group after row group, in the columns that the table has now."""
    with parquet_file(path) as file:
        first = 0
        for number in range(file.num_row_groups):
            found = file.read_row_group(number)
            if job.origins:
                found = traced(found, job.origins[path], first)
            low, high = np.searchsorted(deleted, (first, first + found.num_rows))
            rows = as_now(found, deleted[low:high].astype(np.int64) - first, shape, job.ids_before)
            yield lifted(rows, job.lifted) if job.lifted else rows
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
    order: NDArray[np.int64] | None = None
    """See Rewritten."""

    def of(self, gone: Mapping[str, Positions]) -> dict[str, Positions]:
        """Where these rows of the old files are now: new file by new file, positions ascending."""
        numbers = [np.empty(0, np.int64)]
        first = 0
        for path, deleted in self.old.items():
            rows = gone.get(path, np.empty(0, np.uint32)).astype(np.int64)
            numbers.append(first + rows - np.searchsorted(deleted, rows))
            first += self.row_counts[path] - len(deleted)
        moved = np.sort(self._now(np.concatenate(numbers)))
        ends = np.cumsum([file["record-count"] for file in self.new])
        found: dict[str, Positions] = {}
        for file, end in zip(self.new, ends.tolist(), strict=True):
            start = end - file["record-count"]
            low, high = np.searchsorted(moved, (start, end))
            if low < high:
                found[file["file-path"]] = (moved[low:high] - start).astype(np.uint32)
        return found

    def _now(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """From numbers among the old rows that are left to numbers among the new rows."""
        if self.order is None:
            return numbers
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return place[numbers]
