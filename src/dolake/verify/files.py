"""The data files of a table's snapshot, and the files that say which of their rows are deleted.

From run.py; to loading.py. PyIceberg reads the manifests, as any other engine would. Promise: a file that is returned
is there and as long as the table says; each one that is not was named as a difference.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import msgspec

from dolake.catalog.readers import snapshot_by_id
from dolake.errors import DoLakeError, NotFound
from dolake.storage.base import Storage
from dolake.storage.local import path_of
from dolake.verify.base import Check
from dolake.verify.moment import IcebergTable

# What bytes that are not a manifest do to the library that reads them.
_BAD_FILE = (ValueError, LookupError, TypeError, ArithmeticError, EOFError, AssertionError, struct.error, zlib.error)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A data file, or a file of position deletes: where it is, and what the table says of it."""

    location: str
    size_bytes: int
    rows: int

    @property
    def path(self) -> str:
        """As DuckDB takes it."""
        return (
            self.location
            if "://" in self.location and not self.location.startswith("file:")
            else str(path_of(self.location))
        )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file with the delete files that apply to it."""

    data: StoredRows
    deletes: tuple[StoredRows, ...]


def files_of(table: IcebergTable, storage: Storage, check: Check) -> list[DataFile]:
    """Every data file of the snapshot that can be read, without those whose absence was named."""
    if table.snapshot_id is None:
        return []
    try:
        planned = _planned(table, storage)
    except (*_BAD_FILE, NotFound) as error:
        message = error.message if isinstance(error, DoLakeError) else f"{type(error).__name__}: {error}"
        check.differ(f"the manifests of {table.pointer.name} cannot be read: {message}")
        return []
    named: dict[StoredRows, bool] = {}
    return [
        DataFile(file.data, tuple(each for each in file.deletes if _is_whole(each, storage, check, named)))
        for file in planned
        if _is_whole(file.data, storage, check, named)
    ]


def _planned(table: IcebergTable, storage: Storage) -> list[DataFile]:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.table import StaticTable
    from pyiceberg.table.metadata import TableMetadataUtil

    from dolake.catalog.pyiceberg_files import StorageIO

    def stored(entry: Entry) -> StoredRows:
        return StoredRows(entry.file_path, entry.file_size_in_bytes, entry.record_count)

    # The other snapshots are of no interest, and PyIceberg takes long to look at thousands of them.
    only = table.metadata | {"snapshots": [snapshot_by_id(table.metadata, table.snapshot_id)], "snapshot-log": []}
    metadata = TableMetadataUtil.parse_raw(msgspec.json.encode(only).decode())
    location = table.pointer.metadata_location
    static = StaticTable(("table",), metadata, location, StorageIO(storage), NoopCatalog("static"))
    tasks = static.scan().plan_files()
    return [DataFile(stored(task.file), tuple(map(stored, task.delete_files))) for task in tasks]


def _is_whole(file: StoredRows, storage: Storage, check: Check, named: dict[StoredRows, bool]) -> bool:
    """Whether the file is there in its full length; a delete file may come with many data files, and is named once."""
    if file not in named:
        problem = _problem_with(file, storage)
        named[file] = problem is None
        if problem:
            check.differ(f"{file.location} {problem}")
    return named[file]


def _problem_with(file: StoredRows, storage: Storage) -> str | None:
    try:
        size = storage.size(file.location)
    except NotFound:
        return f"is missing, and with it {file.rows} rows"
    return None if size == file.size_bytes else f"has {size} bytes; the table says {file.size_bytes}"
