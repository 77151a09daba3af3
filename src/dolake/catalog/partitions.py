"""What is in each partition of a table, counted from its manifests: no data file is opened.

From rest.py, in the catalog's threads. PyIceberg reads the manifests; it is loaded when the first one asks, because it
takes a second and most servers never need it. Promise: whatever a table's metadata says, only files inside the
warehouse are read, and through our storage: PyIceberg alone would load any class that a table's properties name.
"""

from __future__ import annotations

import bisect
import contextlib
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, MissingFile
from dolake.errors import NotFound
from dolake.storage.base import Storage
from dolake.tables.transforms import PartitionNames, partition_name

# What a stranger's bytes do to the library that reads them; SystemError is that of a text with a negative length.
BAD_FILE = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    EOFError,
    AssertionError,
    SystemError,
    struct.error,
    zlib.error,
)


def partition_stats(document: Document, storage: Storage) -> list[dict[str, Any]]:
    """One entry per partition and spec of the current snapshot; an unpartitioned table has one without values."""
    with readable_table(document, storage) as table:
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        names = PartitionNames(document.metadata)
        found: dict[tuple[int, tuple[Any, ...]], _Figures] = {}
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file = entry.data_file
                key = manifest.partition_spec_id, tuple(file.partition)
                if key not in found:
                    found[key] = _Figures()
                found[key].add(file, entry.file_sequence_number or 0, entry.snapshot_id)
        moments = _Moments(document.metadata.get("snapshots") or ())
        return [_entry(names, *key, figures, moments) for key, figures in found.items()]


@dataclass(slots=True)
class _Figures:
    """What is counted of one partition."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    deleted_rows: int = 0
    delete_files: int = 0
    added_by: set[tuple[int, int]] = field(default_factory=set)
    """Sequence numbers and ids of snapshots; all numbers are 0 in format 1."""

    def add(self, file: Any, sequence: int, snapshot_id: int | None) -> None:
        if file.content == 0:
            self.rows += file.record_count
            self.files += 1
            self.size_bytes += file.file_size_in_bytes
        else:
            self.deleted_rows += file.record_count
            self.delete_files += 1
        if snapshot_id is not None:
            self.added_by.add((sequence, snapshot_id))


class _Moments:
    """When the snapshots were made that are kept."""

    def __init__(self, snapshots: Sequence[dict[str, Any]]) -> None:
        self._times_ms = {each["snapshot-id"]: each["timestamp-ms"] for each in snapshots}
        self._line = sorted((each.get("sequence-number", 0), each["snapshot-id"]) for each in snapshots)

    def last_of(self, added_by: Collection[tuple[int, int]]) -> tuple[int | None, int | None]:
        """The last of these snapshots and its time; where it is gone, the first that is kept of those after it."""
        newest = max((sequence for sequence, _ in added_by), default=0)
        known = [id_ for sequence, id_ in added_by if sequence == newest and id_ in self._times_ms]
        if not known and newest:
            known = [id_ for _, id_ in self._line[bisect.bisect_left(self._line, (newest, 0)) :][:1]]
        last = max(known, key=self._times_ms.__getitem__, default=None)
        return last, None if last is None else self._times_ms[last]


@contextlib.contextmanager
def readable_table(document: Document, storage: Storage) -> Iterator[Any]:
    """PyIceberg's view of a table; what is wrong with its files is said in our words."""
    from pyiceberg.exceptions import ResolveError, ValidationError

    try:
        yield _table(document, storage)
    except NotFound as error:
        raise MissingFile(f"a manifest of the table is missing: {error.message}", hint="restore the file") from None
    except (*BAD_FILE, ResolveError, ValidationError) as error:
        raise IllegalArgument(f"the table's manifests cannot be read: {type(error).__name__}: {error}") from error


def _table(document: Document, storage: Storage) -> Any:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.table import StaticTable
    from pyiceberg.table.metadata import TableMetadataUtil

    from dolake.catalog.pyiceberg_files import StorageIO

    metadata = TableMetadataUtil.parse_raw(document.raw.decode())
    return StaticTable(("table",), metadata, document.location, StorageIO(storage), NoopCatalog("static"))


def _entry(
    names: PartitionNames, spec_id: int, values: tuple[Any, ...], figures: _Figures, moments: _Moments
) -> dict[str, Any]:
    shown = names.values(spec_id, values)
    last, last_ms = moments.last_of(figures.added_by)
    return {
        "partition": shown,
        "name": partition_name(shown.items()),
        "specId": spec_id,
        "rowCount": figures.rows,
        "fileCount": figures.files,
        "byteCount": figures.size_bytes,
        "deletedRowCount": figures.deleted_rows,
        "deleteFileCount": figures.delete_files,
        "lastUpdatedMs": last_ms,
        "lastUpdatedSnapshotId": last,
    }
