"""What is in each partition of a table, counted from its manifests: no data file is opened.

From rest.py, in the catalog's threads. PyIceberg reads the manifests; it is loaded when the first one asks, because it
takes a second and most servers never need it. Promise: whatever a table's metadata says, only files inside the
warehouse are read, and through our storage: PyIceberg alone would load any class that a table's properties name.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, MissingFile
from dolake.errors import NotFound
from dolake.storage.base import Storage

# What a stranger's bytes do to the library that reads them.
_BAD_FILE = (ValueError, LookupError, TypeError, ArithmeticError, EOFError, AssertionError, struct.error, zlib.error)


def partition_stats(document: Document, storage: Storage) -> list[dict[str, Any]]:
    """One entry per partition of the current snapshot; an unpartitioned table has one without values."""
    with readable_table(document, storage) as table:
        if table.current_snapshot() is None:
            return []
        return [_entry(row) for row in table.inspect.partitions().to_pylist()]


@contextlib.contextmanager
def readable_table(document: Document, storage: Storage) -> Iterator[Any]:
    """PyIceberg's view of a table; what is wrong with its files is said in our words."""
    from pyiceberg.exceptions import ResolveError, ValidationError

    try:
        yield _table(document, storage)
    except NotFound as error:
        raise MissingFile(f"a manifest of the table is missing: {error.message}", hint="restore the file") from None
    except (*_BAD_FILE, ResolveError, ValidationError) as error:
        raise IllegalArgument(f"the table's manifests cannot be read: {type(error).__name__}: {error}") from error


def _table(document: Document, storage: Storage) -> Any:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.table import StaticTable
    from pyiceberg.table.metadata import TableMetadataUtil

    from dolake.catalog.pyiceberg_files import StorageIO

    metadata = TableMetadataUtil.parse_raw(document.raw.decode())
    return StaticTable(("table",), metadata, document.location, StorageIO(storage), NoopCatalog("static"))


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in (row.get("partition") or {}).items()}
    updated = row.get("last_updated_at")
    return {
        "partition": values,
        "name": "/".join(f"{name}={value}" for name, value in values.items()),
        "specId": row.get("spec_id", 0),
        "rowCount": row["record_count"],
        "fileCount": row["file_count"],
        "byteCount": row["total_data_file_size_in_bytes"],
        "deletedRowCount": row["position_delete_record_count"] + row["equality_delete_record_count"],
        "deleteFileCount": row["position_delete_file_count"] + row["equality_delete_file_count"],
        "lastUpdatedMs": round(updated.replace(tzinfo=UTC).timestamp() * 1000) if updated else None,
        "lastUpdatedSnapshotId": row.get("last_updated_snapshot_id"),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
