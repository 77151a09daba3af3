"""What a table's metadata tells of the table and its past: rows, snapshots, and the versions of its columns.

From server/tables.py, in the catalog's threads. Pure: Iceberg's metadata goes in, answers come out as JSON, in the
shapes of docs/reference/http.md. Nothing is read beside the metadata, so what it does not say is None.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dolake.catalog.base import PUBLISHED_TO, Name
from dolake.catalog.readers import WHOLE, current_schema, current_snapshot, current_snapshot_id
from dolake.catalog.values import Json
from dolake.tables.layout import MANAGED, RESCUED_COLUMNS
from dolake.tables.types import source_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe_table(name: Name, metadata: Mapping[str, Any]) -> Json:
    """One line of a listing."""
    snapshot = current_snapshot(metadata)
    changed_ms = snapshot["timestamp-ms"] if snapshot else metadata["last-updated-ms"]
    is_managed = _is_managed(metadata)
    rescued = _rescued_columns(metadata) if is_managed else []
    return {
        "namespace": ".".join(name.namespace),
        "name": name.name,
        "managed": is_managed,
        "snapshotId": str(snapshot["snapshot-id"]) if snapshot else None,
        "updatedAt": time_text(changed_ms),
        "rows": _rows(snapshot.get("summary") or {}, is_managed=is_managed) if snapshot else 0,
    } | ({"rescued": dict.fromkeys(rescued)} if rescued else {})


def describe_lost_table(name: Name, *, is_managed: bool) -> Json:
    """The same for a table whose metadata file is gone: all that is known is that it should be there."""
    known = {"namespace": ".".join(name.namespace), "name": name.name, "managed": is_managed}
    return known | dict.fromkeys(("snapshotId", "updatedAt", "rows"))


def _rescued_columns(metadata: Mapping[str, Any]) -> list[str]:
    """Columns of which values did not fit; how many they are is known to who reads the rows."""
    text = (metadata.get("properties") or {}).get(RESCUED_COLUMNS, "[]")
    return [str(name) for name in msgspec.json.decode(text)]


# --- snapshots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One of a table's snapshots, as the metadata has it."""

    table: Name
    json: Json
    is_current: bool
    is_managed: bool

    @property
    def age(self) -> tuple[int, int]:
        """To sort those of many tables by: the time, and within a millisecond the position."""
        position = _whole(self.json.get("summary") or {}, PUBLISHED_TO)
        return self.json["timestamp-ms"], -1 if position is None else position

    def describe(self) -> Json:
        summary = self.json.get("summary") or {}
        return {
            "snapshotId": str(self.json["snapshot-id"]),
            "table": str(self.table),
            "timestamp": time_text(self.json["timestamp-ms"]),
            "operation": summary.get("operation"),
            "position": _whole(summary, PUBLISHED_TO),
            "addedRecords": _whole_or_zero(summary, "added-records", "total-records"),
            "deletedRecords": _whole_or_zero(summary, "deleted-records", "total-records"),
            "totalRecords": _whole(summary, "total-records"),
            "rows": _rows(summary, is_managed=self.is_managed),
            "addedFiles": _whole_or_zero(summary, "added-data-files", "total-data-files"),
            "totalFiles": _whole(summary, "total-data-files"),
            "isCurrent": self.is_current,
        }


def snapshots_of(name: Name, metadata: Mapping[str, Any]) -> list[Snapshot]:
    """All that are kept, the last one first."""
    current, is_managed = current_snapshot_id(metadata), _is_managed(metadata)
    found = metadata.get("snapshots") or ()
    return [Snapshot(name, each, each["snapshot-id"] == current, is_managed) for each in reversed(found)]


def newest(snapshots: Iterable[Snapshot], limit: int) -> list[Snapshot]:
    """The newest first; of those that are equally new, the first first."""
    return heapq.nlargest(limit, snapshots, key=lambda each: each.age)


def time_text(time_ms: int) -> str | None:
    """ISO 8601 with milliseconds, in UTC; None for a time that no calendar has."""
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:  # anybody may write anything into a table of his own
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rows(summary: Mapping[str, str], *, is_managed: bool) -> int | None:
    """How many rows a reader finds, where the summary tells.

    Iceberg counts the rows of data files, deleted ones too. The pipeline's deletes name each row once and leave with
    its file, so they can be subtracted; what deletes of others take away is known to who reads them alone.
    """
    total, deleted = _whole(summary, "total-records"), _whole(summary, "total-position-deletes")
    if total is None or deleted is None or _whole(summary, "total-equality-deletes"):
        return None
    return total - deleted if is_managed or not deleted else None


def _whole(summary: Mapping[str, str], key: str) -> int | None:
    value = str(summary.get(key, ""))
    return int(value) if WHOLE.fullmatch(value) else None


def _whole_or_zero(summary: Mapping[str, str], key: str, beside: str) -> int | None:
    """Writers leave out what is zero, but never the total that stands beside it."""
    return 0 if key not in summary and beside in summary else _whole(summary, key)


# --- columns ---------------------------------------------------------------------------------------------------------


_TYPES = {
    "VARCHAR": "string",
    "BIGINT": "long",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
}


def describe_new_schema(name: Name, columns: Sequence[tuple[str, str]]) -> Json:
    """The same for a table that is not published yet: its columns as DuckDB calls them, without ids of their own."""
    fields = [
        {"id": None, "name": column, "type": _TYPES.get(type_, type_), "required": False} for column, type_ in columns
    ]
    first = {"version": 1, "since": None, "fields": fields}
    return {"table": str(name), "version": 1, "fields": fields, "versions": [first]}


def describe_schema(name: Name, metadata: Mapping[str, Any]) -> Json:
    """The user's columns as they are and as they were.

    Schemas that differ in our own columns or in comments alone are one version. Only the columns of now have comments.
    """
    versions: list[tuple[list[Json], set[int]]] = []
    for schema in metadata["schemas"]:
        fields = _fields(schema, metadata)
        known = next((ids for each, ids in versions if each == fields), None)
        if known is None:
            versions.append((fields, {schema.get("schema-id", 0)}))
        else:
            known.add(schema.get("schema-id", 0))
    told = [
        {"version": number, "since": _since(metadata, ids), "fields": fields}
        for number, (fields, ids) in enumerate(versions, start=1)
    ]
    schema = current_schema(metadata) or {"fields": []}
    fields = _fields(schema, metadata)
    now = next((each["version"] for each in told if each["fields"] == fields), len(told))
    comments = {field["id"]: {"comment": field["doc"]} for field in schema["fields"] if field.get("doc")}
    fields = [field | comments.get(field["id"], {}) for field in fields]
    return {"table": str(name), "version": now, "fields": fields, "versions": told}


def _fields(schema: Json, metadata: Mapping[str, Any]) -> list[Json]:
    is_managed = _is_managed(metadata)
    return [
        {"id": field["id"], "name": field["name"], "type": field["type"], "required": field["required"]}
        for field in schema["fields"]
        if not is_managed or source_name(field["name"]) is not None
    ]


def _since(metadata: Mapping[str, Any], schema_ids: Collection[int]) -> str | None:
    """When the first snapshot with one of these schemas was made; None where an earlier one may have expired."""
    snapshots = metadata.get("snapshots") or ()
    kept = {each["snapshot-id"] for each in snapshots}
    own = (each for each in snapshots if each.get("schema-id") in schema_ids)
    first = min(own, key=lambda each: (each["timestamp-ms"], each.get("sequence-number", 0)), default=None)
    if first is None or first.get("parent-snapshot-id") not in (None, *kept):
        return None
    return time_text(first["timestamp-ms"])


def _is_managed(metadata: Mapping[str, Any]) -> bool:
    return str((metadata.get("properties") or {}).get(MANAGED, "")).lower() == "true"
