"""What is in each partition of a table, counted from its manifests: no data file is opened.

From rest.py, in the catalog's threads. PyIceberg reads the manifests; it is loaded when the first one asks, because it
takes a second and most servers never need it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, MissingFile


def partition_stats(document: Document) -> list[dict[str, Any]]:
    """One entry per partition of the current snapshot; an unpartitioned table has one without values."""
    from pyiceberg.table import StaticTable

    try:
        table = StaticTable.from_metadata(document.location)
        if table.current_snapshot() is None:
            return []
        return [_entry(row) for row in table.inspect.partitions().to_pylist()]
    except FileNotFoundError as error:
        raise MissingFile(f"a manifest of the table is missing: {error}", hint="restore the file") from None
    except Exception as error:  # whatever a stranger's manifests do to the library that reads them
        raise IllegalArgument(f"the table's manifests cannot be read: {type(error).__name__}: {error}") from error


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
