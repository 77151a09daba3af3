"""Metadata that somebody else wrote, before we call it ours: check it as Iceberg's own parser would.

From rest.py, for `register`: the one way by which a file enters the catalog that no commit of ours has made.
Promise: what comes out has every list that the other modules rely on, also where an old writer of format 1 left one
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dolake.catalog.commit import checked_encryption_key
from dolake.catalog.draft import FORMAT_MAX
from dolake.catalog.layout import check_layout
from dolake.catalog.readers import MAIN, current_schema, current_snapshot_id, current_view_version, refs_of
from dolake.catalog.schemas import Columns, checked_schema
from dolake.catalog.snapshots import (
    check_order_of_time,
    check_sequence_numbers,
    checked_partition_statistics,
    checked_ref,
    checked_snapshot,
    checked_statistics,
)
from dolake.catalog.specs import checked_order, checked_spec, highest_field_id, numbered_spec, unsorted
from dolake.catalog.values import (
    Json,
    as_object,
    read_int,
    read_long,
    read_object,
    read_objects,
    read_text,
    read_text_map,
    refuse,
)
from dolake.catalog.view_updates import FORMAT_MAX as VIEW_FORMAT_MAX
from dolake.catalog.view_updates import checked_version


def registered_table_metadata(document: object) -> Json:
    """A table's metadata file as we keep it, or InvalidInput that says what is wrong with it."""
    metadata = _with_all_lists(as_object(document, "table metadata"))
    version = metadata["format-version"]
    if version > 1:
        read_text(metadata, "table-uuid")
        read_long(metadata, "last-sequence-number")
    if version > 2:
        read_long(metadata, "next-row-id")
    read_text(metadata, "location")
    for key in ("last-column-id", "last-partition-id"):
        read_int(metadata, key)
    read_long(metadata, "last-updated-ms")
    check_layout(metadata, _columns(metadata))
    _check_snapshots(metadata)
    _check_logs(metadata)
    for secret in read_objects(metadata, "encryption-keys") if "encryption-keys" in metadata else ():
        checked_encryption_key(secret)
    return metadata


def registered_view_metadata(document: object) -> Json:
    """A view's metadata file as we keep it, or InvalidInput that says what is wrong with it."""
    metadata = dict(as_object(document, "view metadata"))
    read_text(metadata, "view-uuid")
    read_text(metadata, "location")
    if not 1 <= read_int(metadata, "format-version") <= VIEW_FORMAT_MAX:
        refuse(f"Unsupported format version: {metadata['format-version']}")
    metadata["properties"] = read_text_map(metadata, "properties") if "properties" in metadata else {}
    for schema in read_objects(metadata, "schemas"):
        checked_schema(schema)
    for version in read_objects(metadata, "versions"):
        checked_version(version)
    for entry in read_objects(metadata, "version-log"):
        read_long(entry, "timestamp-ms")
        read_int(entry, "version-id")
    read_int(metadata, "current-version-id")
    if current_view_version(metadata) is None or current_schema(metadata) is None:
        refuse(f"Cannot find current version {metadata['current-version-id']} and its schema in view metadata")
    return metadata


def _with_all_lists(document: Json) -> Json:
    """Format 1 began with one schema and one spec; later files have lists of them and keep the one for old readers."""
    metadata = dict(document)
    version = read_int(metadata, "format-version")
    if not 1 <= version <= FORMAT_MAX:
        refuse(f"Cannot read unsupported version {version}", hint=f"formats 1 to {FORMAT_MAX} are supported")
    if version == 1:
        _fill_in(metadata)
    metadata["properties"] = read_text_map(metadata, "properties") if "properties" in metadata else {}
    for key in ("snapshots", "statistics", "partition-statistics", "snapshot-log", "metadata-log"):
        metadata[key] = read_objects(metadata, key) if metadata.get(key) is not None else []
    metadata["schemas"] = [{**schema, "schema-id": schema.get("schema-id", 0)} for schema in _list(metadata, "schemas")]
    for schema in metadata["schemas"]:
        checked_schema(schema)
    specs: list[Json] = [checked_spec(spec) for spec in _list(metadata, "partition-specs")]
    metadata["partition-specs"] = [numbered_spec(spec, specs, 0, 1) for spec in specs]
    for order in _list(metadata, "sort-orders"):
        checked_order(order)
    for key in ("current-schema-id", "default-spec-id", "default-sort-order-id"):
        read_int(metadata, key)
    if version == 1:
        metadata.setdefault("last-partition-id", max(map(highest_field_id, metadata["partition-specs"])))
    return metadata


def _fill_in(metadata: Json) -> None:
    if "schemas" not in metadata:
        schema, _ = checked_schema(metadata.get("schema"))
        metadata |= {"schemas": [schema], "current-schema-id": schema["schema-id"]}
    if "partition-specs" not in metadata:
        spec = checked_spec({"spec-id": 0, "fields": metadata.get("partition-spec")})
        metadata |= {"partition-specs": [spec], "default-spec-id": 0}
    if "sort-orders" not in metadata:
        metadata |= {"sort-orders": [unsorted()], "default-sort-order-id": 0}


def _list(metadata: Json, key: str) -> list[Json]:
    if not metadata.get(key):
        refuse(f"{key} must exist in format v{metadata['format-version']}")
    return read_objects(metadata, key)


def _columns(metadata: Mapping[str, Any]) -> Columns:
    schema = current_schema(metadata)
    if schema is None:
        refuse(f"Cannot find schema with current-schema-id={metadata['current-schema-id']} from schemas")
    return checked_schema(schema)[1]


def _check_snapshots(metadata: Json) -> None:
    known = {checked_snapshot(snapshot)["snapshot-id"] for snapshot in metadata["snapshots"]}
    if len(known) != len(metadata["snapshots"]):
        refuse("Invalid table metadata: two snapshots have the same id")
    check_sequence_numbers(metadata)
    for file in metadata["statistics"]:
        checked_statistics(file)
    for file in metadata["partition-statistics"]:
        checked_partition_statistics(file)
    if metadata.get("current-snapshot-id") is not None:
        read_long(metadata, "current-snapshot-id")
    current = current_snapshot_id(metadata)
    if current is not None and current not in known:
        refuse("Invalid table metadata: Cannot find current version")
    if metadata.get("refs") is not None:
        read_object(metadata, "refs")
    metadata["refs"] = {name: checked_ref(as_object(ref, f"ref {name}")) for name, ref in refs_of(metadata).items()}
    for name, ref in metadata["refs"].items():
        if ref["snapshot-id"] not in known:
            refuse(f"Snapshot for reference {name} does not exist in the existing snapshots list")
    if MAIN in metadata["refs"] and metadata["refs"][MAIN]["snapshot-id"] != current:
        main = metadata["refs"][MAIN]["snapshot-id"]
        refuse(f"Current snapshot ID does not match main branch ({current} != {main})")


def _check_logs(metadata: Json) -> None:
    for entry in metadata["snapshot-log"]:
        read_long(entry, "timestamp-ms")
        read_long(entry, "snapshot-id")
    for entry in metadata["metadata-log"]:
        read_long(entry, "timestamp-ms")
        read_text(entry, "metadata-file")
    check_order_of_time(metadata["snapshot-log"], metadata["last-updated-ms"], "snapshot log")
    check_order_of_time(metadata["metadata-log"], metadata["last-updated-ms"], "metadata log")
