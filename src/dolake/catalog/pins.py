"""One moment for outside engines: the warehouse `lake@<position>` or `lake@<time>` shows every table as it was then.

From rest.py, for requests with such a prefix. Pure. Promise: all tables of a pin show the same moment; of a table
that DoLake manages, the last publish that the position covers; of others, their last snapshot at that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dolake.catalog.readers import MAIN, current_snapshot_id
from dolake.catalog.values import Json
from dolake.errors import NotFound
from dolake.positions import Position

PUBLISHED_TO = "dolake.published-to"


@dataclass(frozen=True, slots=True)
class Pin:
    """A moment: a position of the journal, or a time in ms."""

    position: Position | None = None
    time_ms: int | None = None


def parse_pin(warehouse: str) -> Pin | None:
    """`lake@1200`, `lake@2026-11-15T12:00:00Z`; None for a warehouse without a pin."""
    _, at, moment = warehouse.partition("@")
    if not at:
        return None
    if moment.isdecimal():
        return Pin(position=int(moment))
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        hint = "write lake@<position> or lake@<time>, such as lake@1200 or lake@2026-11-15T12:00:00Z"
        raise NotFound(f"Warehouse {warehouse[:80]} does not exist", hint=hint) from None
    return Pin(time_ms=round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


def pinned(metadata: Json, pin: Pin, time_ms: int | None) -> Json:
    """The metadata as it would be if nothing had happened since; `time_ms` is when the lake reached the position."""
    line = _main_line(metadata)
    snapshot = next((each for each in line if _is_covered(each, pin, time_ms)), None)
    kept = [] if snapshot is None else line[line.index(snapshot) :]
    ids = {each["snapshot-id"] for each in kept}
    shown = dict(metadata)
    shown["snapshots"] = [each for each in metadata.get("snapshots") or () if each["snapshot-id"] in ids]
    shown["snapshot-log"] = [each for each in metadata.get("snapshot-log") or () if each["snapshot-id"] in ids]
    if snapshot is None:
        shown["refs"] = {}
        shown["current-snapshot-id"] = -1
        return shown
    shown["refs"] = {MAIN: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
    shown["current-snapshot-id"] = snapshot["snapshot-id"]
    if snapshot.get("schema-id") is not None:
        shown["current-schema-id"] = snapshot["schema-id"]
    return shown


def _is_covered(snapshot: Json, pin: Pin, time_ms: int | None) -> bool:
    reached = (snapshot.get("summary") or {}).get(PUBLISHED_TO)
    if pin.position is not None and reached is not None:
        return int(reached) <= pin.position
    moment = pin.time_ms if pin.position is None else time_ms
    return moment is not None and int(snapshot["timestamp-ms"]) <= moment


def _main_line(metadata: Json) -> list[Json]:
    """The snapshots of main, newest first."""
    by_id = {each["snapshot-id"]: each for each in metadata.get("snapshots") or ()}
    line, at = [], current_snapshot_id(metadata)
    while at is not None and at in by_id:
        line.append(by_id[at])
        at = by_id[at].get("parent-snapshot-id")
    return line
