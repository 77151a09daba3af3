"""Requirements and updates of a commit, applied to table or view metadata: what a catalog is, as pure functions.

From rest.py, with metadata as it is in the file and updates as they came in the request; the result goes to the file
and then the pointer moves. Nothing here waits, reads a clock or touches a disk. The rules and their strictness are
those of Iceberg's Java library (TableMetadata.Builder), but a table's uuid cannot be reassigned, time never runs
backwards, a gap in row ids stays a gap, and partition fields sent without ids get ids that are free.
Promise: inputs are never changed, fields that we do not know are kept at every level, and a commit that changes
nothing returns the very object it was given, so that the caller can leave file and pointer alone.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

from dolake.catalog import layout, snapshots
from dolake.catalog.draft import FORMAT_DEFAULT, FORMAT_MAX, ROW_LINEAGE_FORMAT_MIN, Draft
from dolake.catalog.readers import current_schema, default_spec, is_view
from dolake.catalog.requirements import check_requirements
from dolake.catalog.values import (
    Json,
    as_objects,
    property_int,
    read_int,
    read_object,
    read_text,
    read_text_map,
    read_text_or_none,
    read_texts,
    refuse,
)
from dolake.catalog.view_updates import apply_view_updates

__all__ = ["apply_updates", "check_requirements"]

METADATA_LOG_MAX = "write.metadata.previous-versions-max"
METADATA_LOG_MAX_DEFAULT = 100


def apply_updates(
    metadata: Json | None,
    updates: Sequence[Json],
    *,
    now_ms: int,
    metadata_location: str | None,
    new_uuid: str | None = None,
) -> Json:
    """The metadata after these updates. None makes a new table; `new_uuid` is its id if the updates assign none.

    `metadata_location` is the file that `metadata` was read from; the metadata log remembers it. Raises InvalidInput
    for an update that cannot be right, CommitConflict for one that came too late (its numbers are behind the table's).
    """
    steps = as_objects(updates, "updates")
    if metadata is not None and is_view(metadata):
        return apply_view_updates(metadata, steps, now_ms=now_ms)
    draft = Draft(metadata, now_ms, _first_format_version(steps) if metadata is None else FORMAT_DEFAULT)
    for step in steps:
        _update_of(step)(draft, step)
    if metadata is not None and not draft.is_changed:
        return metadata
    if draft.metadata.get("table-uuid") is None and new_uuid is not None:
        draft.metadata["table-uuid"] = new_uuid
    return _settled(draft, metadata_location)


def _update_of(update: Json) -> Callable[[Draft, Json], None]:
    action = read_text(update, "action").lower()
    if action not in _UPDATES:
        refuse(f"Cannot apply update {action} to a table", hint=f"known are {', '.join(sorted(_UPDATES))}")
    return _UPDATES[action]


# --- the table itself ------------------------------------------------------------------------------------------------


def _first_format_version(updates: Sequence[Json]) -> int:
    """A new table begins in the format that it asks for first; it need not rise from another one."""
    for update in updates:
        if update.get("action") == "upgrade-format-version":
            return _supported(read_int(update, "format-version"))
    return FORMAT_DEFAULT


def _supported(format_version: int) -> int:
    if not 1 <= format_version <= FORMAT_MAX:
        refuse(f"Cannot upgrade table to unsupported format version: v{format_version} (supported: v{FORMAT_MAX})")
    return format_version


def _upgrade_format_version(draft: Draft, update: Json) -> None:
    version = _supported(read_int(update, "format-version"))
    if version < draft.format_version:
        refuse(f"Cannot downgrade v{draft.format_version} table to v{version}")
    if version > draft.format_version:
        draft.metadata["format-version"] = version
        draft.is_changed = True


def _assign_uuid(draft: Draft, update: Json) -> None:
    uuid, current = read_text(update, "uuid"), draft.metadata.get("table-uuid")
    if current is not None and uuid.lower() != current.lower():
        # Java allows it, the REST specification calls it unsafe: everything that holds a table by its id would lose it.
        refuse(f"Cannot reassign uuid: {current} to {uuid}")
    if current is None:
        draft.metadata["table-uuid"] = uuid
        draft.is_changed = True


def _set_location(draft: Draft, update: Json) -> None:
    location = without_trailing_slash(read_text(update, "location"))
    if location != draft.metadata.get("location"):
        draft.metadata["location"] = location
        draft.is_changed = True


def _set_properties(draft: Draft, update: Json) -> None:
    if updates := read_text_map(update, "updated" if "updated" in update and "updates" not in update else "updates"):
        draft.own_map("properties").update(updates)
        draft.is_changed = True


def _remove_properties(draft: Draft, update: Json) -> None:
    key = "removed" if "removed" in update and "removals" not in update else "removals"
    for name in read_texts(update, key):
        draft.own_map("properties").pop(name, None)
        draft.is_changed = True


def _add_encryption_key(draft: Draft, update: Json) -> None:
    key = checked_encryption_key(read_object(update, "encryption-key"))
    keys = draft.own_list("encryption-keys")
    if all(known["key-id"] != key["key-id"] for known in keys):
        keys.append(key)
        draft.is_changed = True


def _remove_encryption_key(draft: Draft, update: Json) -> None:
    id_, keys = read_text(update, "key-id"), draft.own_list("encryption-keys")
    kept = [key for key in keys if key["key-id"] != id_]
    if len(kept) != len(keys):
        draft.keep("encryption-keys", kept)
        draft.is_changed = True


def checked_encryption_key(key: Json) -> Json:
    read_text(key, "key-id")
    try:
        base64.b64decode(read_text(key, "encrypted-key-metadata"), validate=True)
    except binascii.Error as error:
        refuse(f"Cannot parse encrypted-key-metadata, not base64: {error}")
    read_text_or_none(key, "encrypted-by-id")
    if "properties" in key:
        read_text_map(key, "properties")
    return key


# --- the end of a commit ---------------------------------------------------------------------------------------------


def _settled(draft: Draft, metadata_location: str | None) -> Json:
    """What only the whole commit can tell: is the table complete and consistent, and what follows from its format?"""
    metadata = draft.metadata
    for key, what in (("table-uuid", "UUID"), ("location", "Table location")):
        if metadata.get(key) is None and (draft.format_version > 1 or key == "location"):
            refuse(f"{what} is required in format v{draft.format_version}")
    if draft.is_layout_changed:
        layout.check_layout(metadata, draft.columns())
    snapshots.settle_snapshot_log(draft)
    _note_previous_file(draft, metadata_location)
    metadata["last-updated-ms"] = draft.last_updated_ms
    fit_to_format(metadata)
    return metadata


def fit_to_format(metadata: Json) -> None:
    """The fields that differ between formats, as Java writes them. `metadata` is ours to change."""
    version = metadata["format-version"]
    if version == 1:
        metadata["schema"] = current_schema(metadata)
        metadata["partition-spec"] = (default_spec(metadata) or {"fields": []})["fields"]
    else:
        metadata.pop("schema", None)
        metadata.pop("partition-spec", None)
        metadata.setdefault("last-sequence-number", 0)
    if version >= ROW_LINEAGE_FORMAT_MIN:
        metadata.setdefault("next-row-id", 0)
    if metadata.get("current-snapshot-id") in (None, -1):
        metadata["current-snapshot-id"] = None if version >= ROW_LINEAGE_FORMAT_MIN else -1
    if not metadata.get("encryption-keys"):
        metadata.pop("encryption-keys", None)


def _note_previous_file(draft: Draft, metadata_location: str | None) -> None:
    if draft.base is None or metadata_location is None:
        return
    most = max(1, property_int(draft.metadata.get("properties") or {}, METADATA_LOG_MAX, METADATA_LOG_MAX_DEFAULT))
    entry = {"timestamp-ms": draft.base["last-updated-ms"], "metadata-file": metadata_location}
    log = [*(draft.base.get("metadata-log") or ()), entry][-most:]
    snapshots.check_order_of_time(log, draft.last_updated_ms, "metadata log")
    draft.keep("metadata-log", log)


def without_trailing_slash(location: str) -> str:
    """`s3://bucket/a/` is `s3://bucket/a`; what ends in `://` stays."""
    stripped = location.rstrip("/")
    if not stripped:
        refuse(f"Invalid location: {location!r}")
    return f"{stripped}//" if stripped.endswith(":") else stripped


_UPDATES: dict[str, Callable[[Draft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": layout.add_schema,
    "set-current-schema": layout.set_current_schema,
    "remove-schemas": layout.remove_schemas,
    "add-spec": layout.add_spec,
    "set-default-spec": layout.set_default_spec,
    "remove-partition-specs": layout.remove_partition_specs,
    "rename-partition-field": layout.rename_partition_field,
    "add-sort-order": layout.add_sort_order,
    "set-default-sort-order": layout.set_default_sort_order,
    "add-snapshot": snapshots.add_snapshot,
    "remove-snapshots": snapshots.remove_snapshots,
    "set-snapshot-ref": snapshots.set_snapshot_ref,
    "remove-snapshot-ref": snapshots.remove_snapshot_ref,
    "set-statistics": snapshots.set_statistics,
    "remove-statistics": snapshots.remove_statistics,
    "set-partition-statistics": snapshots.set_partition_statistics,
    "remove-partition-statistics": snapshots.remove_partition_statistics,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
}
