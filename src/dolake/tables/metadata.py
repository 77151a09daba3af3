"""The metadata of an Iceberg table that is new, and of a snapshot that appends to it: what stands in the JSON files.

From catalog/create.py, which checks what strangers send and numbers the columns; and for anyone who writes a table
without a server. Pure: ids, times and names come from the caller or are given out here, nothing is read or written.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Any

from dolake.tables.partitions import FIELD_ID_START, PartitionSpec

Json = dict[str, Any]
_SNAPSHOT_ID_BITS = 62


def create_table_metadata(
    location: str,
    schema: Mapping[str, Any],
    *,
    partition_spec: PartitionSpec | Mapping[str, Any] | None = None,
    sort_order: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    table_uuid: str | None = None,
    now_ms: int | None = None,
    format_version: int = 2,
) -> Json:
    """Metadata of a table without rows, as the table format wants it; a schema's ids are taken as they are."""
    spec = _spec(partition_spec, schema)
    order = dict(sort_order or {"order-id": 0, "fields": []})
    return {
        "format-version": format_version,
        "table-uuid": table_uuid or str(uuid.uuid4()),
        "location": location,
        **({"last-sequence-number": 0} if format_version > 1 else {}),
        "last-updated-ms": _now_ms() if now_ms is None else now_ms,
        "last-column-id": _highest_id(schema),
        "current-schema-id": schema.get("schema-id", 0),
        "schemas": [{"schema-id": 0, **schema}],
        "default-spec-id": spec["spec-id"],
        "partition-specs": [spec],
        "last-partition-id": max((field["field-id"] for field in spec["fields"]), default=FIELD_ID_START - 1),
        "default-sort-order-id": order["order-id"],
        "sort-orders": [order],
        "properties": dict(properties or {}),
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def create_append_snapshot(
    metadata: Mapping[str, Any],
    manifest_list: str,
    *,
    added_files: int,
    added_rows: int,
    added_bytes: int = 0,
    snapshot_id: int | None = None,
    now_ms: int | None = None,
) -> Json:
    """The snapshot that follows the table's current one and adds rows: for `add-snapshot` in a commit to the catalog.

    The manifest list must be written already, under the snapshot's id and sequence number.
    """
    parent_id = metadata.get("current-snapshot-id")
    parent = next((each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == parent_id), None)
    totals = (parent or {}).get("summary", {})
    summary = {"operation": "append"}
    for what, count in (("data-files", added_files), ("records", added_rows), ("files-size", added_bytes)):
        summary[f"added-{what}"] = str(count)
        summary[f"total-{what}"] = str(int(totals.get(f"total-{what}", 0)) + count)
    return {
        "snapshot-id": secrets.randbits(_SNAPSHOT_ID_BITS) + 1 if snapshot_id is None else snapshot_id,
        **({"parent-snapshot-id": parent_id} if parent else {}),
        "sequence-number": metadata.get("last-sequence-number", 0) + 1,
        "timestamp-ms": max(_now_ms() if now_ms is None else now_ms, metadata["last-updated-ms"]),
        "summary": summary,
        "manifest-list": manifest_list,
        "schema-id": metadata["current-schema-id"],
    }


def _spec(spec: PartitionSpec | Mapping[str, Any] | None, schema: Mapping[str, Any]) -> Json:
    if isinstance(spec, PartitionSpec):
        return spec.for_schema(schema)
    return dict(spec) if spec else {"spec-id": 0, "fields": []}


def _highest_id(type_: Any) -> int:
    """Of a schema, or of what is inside one of its columns."""
    if not isinstance(type_, Mapping):
        return 0
    own: list[int] = [type_[key] for key in ("id", "element-id", "key-id", "value-id") if key in type_]
    inside = (type_.get(key) for key in ("type", "element", "key", "value"))
    return max([0, *own, *map(_highest_id, (*type_.get("fields", ()), *inside))])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
