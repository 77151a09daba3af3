"""What a client asks to be planned, and the words for the pages of its answer.

From scan_rest.py; to scan_planner.py. Pure, and without PyIceberg. Promise: a request names one snapshot and one schema
from here on, so planning it again gives the same pages in the same order; a plan task says all that this takes, so it
is good for as long as the snapshot's files are, also after a restart and on another server.
"""

from __future__ import annotations

import base64
import binascii
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dolake.catalog.errors import IllegalArgument, NoSuchPlanTask
from dolake.catalog.readers import current_snapshot_id, snapshot_by_id
from dolake.catalog.values import Json, read_bool, read_long_or_none, read_texts

_FILTER_MAX_BYTES = 1024 * 1024
_TASK_MAX_BYTES = 4 * _FILTER_MAX_BYTES
_FIELDS_MAX = 20_000
_DEPTH_MAX = 600
"""Engines send long chains of `or`, each one inside of the last."""


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """A scan of one snapshot, or of what was appended after `start_id` up to it."""

    snapshot_id: int | None
    """None where the table has no data yet."""
    schema_id: int
    """The schema in which the filter's names are meant."""
    start_id: int | None = None
    filter: Any = True
    is_case_sensitive: bool = True
    select: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    rows_min: int | None = None
    """A hint: files that surely hold this many rows are enough."""


class PlanTask(msgspec.Struct, frozen=True, array_like=True):
    """One page of a plan."""

    plan_id: str
    page: int
    scan: Scan

    def encoded(self) -> str:
        return base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(self), 1)).decode().rstrip("=")


def read_scan(body: Json, metadata: Mapping[str, Any]) -> Scan:
    """The request's body, with what it leaves out."""
    snapshot_id, start_id = _range(body, metadata)
    rows_min = read_long_or_none(body, "min-rows-requested")
    if rows_min is not None and rows_min < 0:
        raise IllegalArgument(f"min-rows-requested {rows_min} is less than nothing")
    return Scan(
        snapshot_id=snapshot_id,
        schema_id=_schema_id(metadata, snapshot_id if _flag(body, "use-snapshot-schema") else None),
        start_id=start_id,
        filter=_filter(body),
        is_case_sensitive=_flag(body, "case-sensitive", default=True),
        select=_names(body, "select"),
        stats=_names(body, "stats-fields"),
        rows_min=rows_min,
    )


def read_task(token: str) -> PlanTask:
    """What `encoded` wrote; anything else never was a plan task."""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        raw = zlib.decompressobj().decompress(packed, _TASK_MAX_BYTES)
        task = msgspec.json.decode(raw, type=PlanTask)
        uuid.UUID(task.plan_id)
        if not _is_too_deep(task.scan.filter):
            return task
    except (binascii.Error, ValueError, zlib.error, msgspec.DecodeError, RecursionError):
        pass
    raise NoSuchPlanTask("this plan task does not exist", hint="plan the scan again")


def snapshots_between(metadata: Mapping[str, Any], start_id: int, end_id: int) -> list[Json] | None:
    """The snapshots after the one up to the other, newest first; None where the first is not before the second."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    found: list[Json] = []
    at: int | None = end_id
    while at != start_id:
        snapshot = by_id.pop(at, None)  # gone when it was seen: whoever writes a circle of parents does not hold us
        if snapshot is None:
            return None
        found.append(snapshot)
        at = snapshot.get("parent-snapshot-id")
    return found


def _range(body: Json, metadata: Mapping[str, Any]) -> tuple[int | None, int | None]:
    start_id, end_id = read_long_or_none(body, "start-snapshot-id"), read_long_or_none(body, "end-snapshot-id")
    snapshot_id = read_long_or_none(body, "snapshot-id")
    if start_id is None and end_id is None:
        if snapshot_id is None:
            return current_snapshot_id(metadata), None
        return _known(metadata, snapshot_id), None
    if start_id is None or end_id is None:
        raise IllegalArgument("start-snapshot-id and end-snapshot-id go together", hint="send both of them, or neither")
    if snapshot_id is not None:
        hint = "snapshot-id is for a scan of one moment, the other two for what was appended between two"
        raise IllegalArgument("snapshot-id does not go with start-snapshot-id and end-snapshot-id", hint=hint)
    if snapshots_between(metadata, start_id, _known(metadata, end_id)) is None:
        raise IllegalArgument(f"snapshot {start_id} is not an ancestor of snapshot {end_id}")
    return end_id, start_id


def _known(metadata: Mapping[str, Any], snapshot_id: int) -> int:
    if snapshot_by_id(metadata, snapshot_id) is None:
        raise IllegalArgument(f"Cannot find snapshot with ID {snapshot_id}", hint="it was never made, or has expired")
    return snapshot_id


def _schema_id(metadata: Mapping[str, Any], snapshot_id: int | None) -> int:
    snapshot = snapshot_by_id(metadata, snapshot_id) or {}
    known = {schema.get("schema-id", 0) for schema in metadata["schemas"]}
    found = snapshot.get("schema-id")
    return int(found) if found in known and found is not None else int(metadata["current-schema-id"])


def _filter(body: Json) -> object:
    if "filter" not in body:
        return True
    if _is_too_deep(body["filter"]):
        raise IllegalArgument(f"the filter is nested more than {_DEPTH_MAX} deep")
    if len(msgspec.json.encode(body["filter"])) > _FILTER_MAX_BYTES:
        raise IllegalArgument(
            f"the filter has more than {_FILTER_MAX_BYTES} bytes", hint="plan this scan in the client"
        )
    return body["filter"]


def _is_too_deep(node: object) -> bool:
    """Level by level, because what goes down by calling itself is what a deep one would break."""
    level = [node]
    for _ in range(_DEPTH_MAX):
        level = [each for part in level if isinstance(part, dict | list) for each in _parts(part)]
        if not level:
            return False
    return True


def _parts(node: Json | list[Any]) -> Iterable[object]:
    return node.values() if isinstance(node, dict) else node


def _flag(body: Json, key: str, *, default: bool = False) -> bool:
    return default if body.get(key) is None else read_bool(body, key)


def _names(body: Json, key: str) -> tuple[str, ...]:
    names = tuple(read_texts(body, key)) if body.get(key) is not None else ()
    if len(names) > _FIELDS_MAX:
        raise IllegalArgument(f"{key} names more than {_FIELDS_MAX} fields")
    return names
