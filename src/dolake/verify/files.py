"""The data files of a table's snapshot, and the files that say which of their rows are deleted.

From run.py; to loading.py. PyIceberg reads the manifests, as any other engine would. Promise: a file that is returned
is there and as long as the table says; each one that is not was named as a difference.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from dolake.catalog.readers import snapshot_by_id
from dolake.errors import DoLakeError, NotFound
from dolake.storage.base import Storage
from dolake.storage.local import path_of
from dolake.tables.vectors import vectors_in
from dolake.verify.base import Check
from dolake.verify.moment import IcebergTable

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.snapshots import Snapshot

_VECTORS_FORMAT_MIN = 3
# What bytes that are not a manifest do to the library that reads them.
_BAD_FILE = (ValueError, LookupError, TypeError, ArithmeticError, EOFError, AssertionError, struct.error, zlib.error)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A data file, or a file of position deletes: where it is, and what the table says of it."""

    location: str
    size_bytes: int
    rows: int
    is_vector: bool = False

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
    vector: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32), compare=False)
    """What the table's deletion vector of it says, where it has one; `deletes` are the others."""


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
    whole = [
        DataFile(file.data, tuple(each for each in file.deletes if _is_whole(each, storage, check, named)))
        for file in planned
        if _is_whole(file.data, storage, check, named)
    ]
    puffins = dict[str, dict[str, NDArray[np.uint32]]]()
    return [_with_vector(file, storage, check, puffins) for file in whole]


def _with_vector(
    file: DataFile, storage: Storage, check: Check, puffins: dict[str, dict[str, NDArray[np.uint32]]]
) -> DataFile:
    """A file of vectors has those of many data files: each is read once, and what is wrong with it is named."""
    (vector, *_) = file.deletes or (None,)
    if vector is None or not vector.is_vector:
        return file
    if vector.location not in puffins:
        try:
            puffins[vector.location] = vectors_in(storage.read(vector.location))
        except ValueError as error:
            check.differ(f"{vector.location}: {error}")
            puffins[vector.location] = {}
    found = puffins[vector.location].get(file.data.location, np.empty(0, np.uint32))
    if len(found) != vector.rows:
        what = f"deletes {len(found)} rows of {file.data.location}; the table says {vector.rows}"
        check.differ(f"{vector.location} {what}")
    return DataFile(file.data, (), found)


def _planned(table: IcebergTable, storage: Storage) -> list[DataFile]:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.manifest import FileFormat
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
    vectors = _vectors(static.current_snapshot(), static.io) if metadata.format_version >= _VECTORS_FORMAT_MIN else {}

    def deletes(task: FileScanTask) -> tuple[StoredRows, ...]:
        """A vector stands for all deletes of its data file; PyIceberg names those of its neighbours, too."""
        if vector := vectors.get(task.file.file_path):
            return (vector,)
        return tuple(stored(each) for each in task.delete_files if each.file_format != FileFormat.PUFFIN)

    return [DataFile(stored(task.file), deletes(task)) for task in tasks]


def _vectors(snapshot: Snapshot | None, io: FileIO) -> dict[str, StoredRows]:
    """The deletion vectors of a snapshot by the data files that they are about."""
    from pyiceberg.manifest import FileFormat, ManifestContent

    from dolake.catalog.manifests import REFERENCED, read_entries

    manifests = snapshot.manifests(io) if snapshot else []
    paths = [each.manifest_path for each in manifests if each.content == ManifestContent.DELETES]
    files = [entry.data_file for path in paths for entry in read_entries(io.new_input(path))]
    return {
        file[REFERENCED]: StoredRows(file.file_path, file.file_size_in_bytes, file.record_count, is_vector=True)
        for file in files
        if file.file_format == FileFormat.PUFFIN
    }


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
