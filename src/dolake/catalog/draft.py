"""A table's metadata while a commit is applied to it: a shallow copy, and what this commit has added so far.

From commit.py, which makes one per commit and hands it from update to update.
Promise: the metadata it began with is never changed, and only the lists and maps that an update touches are copied,
one level deep. A commit to a table with thousands of snapshots costs a copy of the list, never of the snapshots.
"""

from __future__ import annotations

from typing import Any

from dolake.catalog.readers import current_schema, current_snapshot_id, refs_of
from dolake.catalog.schemas import Columns
from dolake.catalog.values import Json, refuse

LAST_ADDED = -1
FORMAT_DEFAULT = 2
FORMAT_MAX = 3
ROW_LINEAGE_FORMAT_MIN = 3


class Draft:
    """Mutable, and gone when the commit is done."""

    def __init__(self, base: Json | None, now_ms: int, format_version: int = FORMAT_DEFAULT) -> None:
        self.base = base
        self.metadata: Json = _empty(format_version) if base is None else dict(base)
        self.now_ms = now_ms
        # Two servers, or one whose clock was set back, must not make time run backwards: Java refuses to read a table
        # whose logs do so by more than a minute.
        self.last_updated_ms = now_ms if base is None else max(now_ms, base["last-updated-ms"])
        self.is_changed = False
        self.is_layout_changed = base is None
        self.last_added: dict[str, int | None] = {"schema": None, "spec": None, "order": None}
        self.added: dict[str, set[int]] = {"schema": set(), "spec": set(), "order": set(), "snapshot": set()}
        self.mains_in_passing: set[int] = set()
        self.has_removed_snapshots = False
        self.is_sequence_lowered = False
        self._owned: set[str] = set()
        self._snapshots: dict[int, Json] | None = None
        self._columns: tuple[Json, Columns] | None = None

    @property
    def format_version(self) -> int:
        return int(self.metadata["format-version"])

    @property
    def snapshots(self) -> dict[int, Json]:
        """By id. Made on the first question; an update that changes the list keeps both in step."""
        if self._snapshots is None:
            self._snapshots = {entry["snapshot-id"]: entry for entry in self.metadata.get("snapshots") or ()}
        return self._snapshots

    @property
    def current_snapshot_id(self) -> int | None:
        return current_snapshot_id(self.metadata)

    def columns(self) -> Columns:
        """Those of the current schema."""
        schema = current_schema(self.metadata)
        if schema is None:
            refuse(f"Cannot find schema with current-schema-id={self.metadata['current-schema-id']} from schemas")
        if self._columns is None or self._columns[0] is not schema:
            self._columns = schema, Columns(schema)
        return self._columns[1]

    def own_list(self, key: str) -> list[Any]:
        """The list under this key, as one that may be changed."""
        if key not in self._owned:
            self.metadata[key] = list(self.metadata.get(key) or ())
            self._owned.add(key)
        owned: list[Any] = self.metadata[key]
        return owned

    def own_map(self, key: str) -> Json:
        if key not in self._owned:
            self.metadata[key] = refs_of(self.metadata) if key == "refs" else dict(self.metadata.get(key) or {})
            self._owned.add(key)
        owned: Json = self.metadata[key]
        return owned

    def keep(self, key: str, entries: list[Any]) -> None:
        """Put a list that was made here in this place."""
        self.metadata[key] = entries
        self._owned.add(key)


def _empty(format_version: int) -> Json:
    """What a table is before its first update; the order of the keys is the one in which files are read by people."""
    return {
        "format-version": format_version,
        "table-uuid": None,
        "location": None,
        **({"last-sequence-number": 0} if format_version > 1 else {}),
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": 0,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
