"""What others ask of metadata that is already known to be good: the current schema, the current snapshot, its refs.

From rest.py and the rooms behind it. Nothing here checks anything or copies more than it must.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dolake.catalog.values import Json

MAIN = "main"
WHOLE = re.compile("[0-9]{1,18}")
PROTECTED_PROPERTIES = ("dolake.", "schema.name-mapping.default")

_LEAVES_DATA_ALONE = frozenset(
    {
        "set-properties",
        "remove-properties",
        "set-statistics",
        "remove-statistics",
        "set-partition-statistics",
        "remove-partition-statistics",
        "add-sort-order",
        "set-default-sort-order",
    }
)


def is_view(metadata: Mapping[str, Any]) -> bool:
    return "view-uuid" in metadata


def uuid_of(metadata: Mapping[str, Any]) -> str | None:
    """A table's or a view's. Only tables of format 1 may have none."""
    return metadata.get("view-uuid") or metadata.get("table-uuid")


def current_schema(metadata: Mapping[str, Any]) -> Json | None:
    """Of a table, or of a view's current version."""
    if is_view(metadata):
        version = current_view_version(metadata)
        return _by_id(metadata["schemas"], "schema-id", version["schema-id"]) if version else None
    return _by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])


def current_view_version(metadata: Mapping[str, Any]) -> Json | None:
    return _by_id(metadata["versions"], "version-id", metadata["current-version-id"])


def default_spec(metadata: Mapping[str, Any]) -> Json | None:
    return _by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])


def default_sort_order(metadata: Mapping[str, Any]) -> Json | None:
    return _by_id(metadata["sort-orders"], "order-id", metadata["default-sort-order-id"])


def current_snapshot_id(metadata: Mapping[str, Any]) -> int | None:
    """None where the table has no data yet; files say that as null, as -1 or not at all."""
    found = metadata.get("current-snapshot-id")
    return None if found in (None, -1) else int(found)


def current_snapshot(metadata: Mapping[str, Any]) -> Json | None:
    return snapshot_by_id(metadata, current_snapshot_id(metadata))


def snapshot_by_id(metadata: Mapping[str, Any], snapshot_id: int | None) -> Json | None:
    """The newest are last and asked for most, so look from the end."""
    for snapshot in reversed(metadata.get("snapshots") or ()):
        if snapshot["snapshot-id"] == snapshot_id:
            found: Json = snapshot
            return found
    return None


def whole_of(snapshot: Mapping[str, Any], key: str) -> int | None:
    """A number in its summary. Anybody may write anything into a table of his own: what is no number is None."""
    text = str((snapshot.get("summary") or {}).get(key, ""))
    return int(text) if WHOLE.fullmatch(text) else None


def refs_of(metadata: Mapping[str, Any]) -> dict[str, Json]:
    """Branches and tags by name. Files from before there were any mean a `main` at the current snapshot."""
    refs = metadata.get("refs")
    if refs is not None:
        return dict(refs)
    current = current_snapshot_id(metadata)
    return {} if current is None else {MAIN: {"snapshot-id": current, "type": "branch"}}


def only_refs(metadata: Json) -> Json:
    """What a load with `snapshots=refs` gets: the snapshots that a branch or tag points at, and their statistics."""
    wanted = {ref["snapshot-id"] for ref in refs_of(metadata).values()}
    shown = dict(metadata)
    for key in ("snapshots", "statistics", "partition-statistics"):
        if key in metadata:
            shown[key] = [entry for entry in metadata[key] or () if entry["snapshot-id"] in wanted]
    return shown


def changes_data(updates: Iterable[Mapping[str, Any]], refs: Mapping[str, Json]) -> bool:
    """Would these updates change what a reader sees, or how the pipeline writes, or lift the guard itself?

    Whatever is not known to be harmless counts as a change, so that an update added to the specification later does
    not slip past the guard of managed tables. `refs` are the branches and tags that the table has.
    """
    return any(not _leaves_data_alone(update, refs) or _touches_protected(update) for update in updates)


def _leaves_data_alone(update: Mapping[str, Any], refs: Mapping[str, Json]) -> bool:
    """A tag keeps a snapshot, and readers of the table see nothing of it; a branch could be written to."""
    action, name = str(update.get("action")).lower(), str(update.get("ref-name"))
    known = refs.get(name, {}).get("type")
    if action == "set-snapshot-ref":
        return name != MAIN and str(update.get("type")).lower() == "tag" and known in (None, "tag")
    if action == "remove-snapshot-ref":
        return name != MAIN and known == "tag"
    return action in _LEAVES_DATA_ALONE


def _touches_protected(update: Mapping[str, Any]) -> bool:
    named = (update.get(key) or () for key in ("updates", "updated", "removals", "removed"))
    return any(str(name).startswith(PROTECTED_PROPERTIES) for names in named for name in names)


def _by_id(items: Iterable[Json], key: str, id_: int) -> Json | None:
    return next((item for item in items if item.get(key, 0) == id_), None)
