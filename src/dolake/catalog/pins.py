"""One moment for outside engines: the warehouse `lake@<position>` or `lake@<time>` shows every table as it was then.

From rest.py, for requests with such a prefix. Pure. Promise: all tables of a pin show the same moment; of a table
that DoLake manages, the last publish that the position covers; of others, their last snapshot at that time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from dolake.catalog.base import PUBLISHED_TO
from dolake.catalog.readers import MAIN, current_snapshot_id
from dolake.catalog.values import Json
from dolake.errors import NotFound
from dolake.positions import Position

WHOLE = re.compile("[0-9]{1,18}")


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
    if WHOLE.fullmatch(moment):
        return Pin(position=int(moment))
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        hint = "write lake@<position> or lake@<time>, such as lake@1200 or lake@2026-11-15T12:00:00Z"
        raise NotFound(f"Warehouse {warehouse[:80]} does not exist", hint=hint) from None
    return Pin(time_ms=round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


def pinned(metadata: Json, position: Position | None, time_ms: int | None) -> Json:
    """The metadata as it would be if nothing had happened since the lake was at this position, at this time."""
    line = _main_line(metadata)
    snapshot = next((each for each in line if _is_covered(each, position, time_ms)), None)
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


def _is_covered(snapshot: Json, position: Position | None, time_ms: int | None) -> bool:
    """A snapshot of a publish by its position, also for a pin to a time: its own clock ran while it was written."""
    reached = str((snapshot.get("summary") or {}).get(PUBLISHED_TO, ""))
    if WHOLE.fullmatch(reached):  # anybody may write anything into a table of his own
        return position is not None and int(reached) <= position
    return time_ms is not None and int(snapshot["timestamp-ms"]) <= time_ms


def _main_line(metadata: Json) -> list[Json]:
    """The snapshots of main, newest first."""
    by_id = {each["snapshot-id"]: each for each in metadata.get("snapshots") or ()}
    line, at = [], current_snapshot_id(metadata)
    while at is not None and at in by_id:
        line.append(by_id[at])
        at = by_id[at].get("parent-snapshot-id")
    return line
