"""One moment for outside engines: the warehouse `lake@<position>` or `lake@<time>` shows every table as it was then.

From rest.py, for requests with such a prefix. Pure. Promise: all tables of a pin show the same moment; of a table
that DoLake manages, the last publish that the position covers, or a refusal where that is gone; of others, their last
snapshot at that time that is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from dolake.catalog.base import PUBLISHED_TO, REPLACED_AT
from dolake.catalog.errors import IllegalArgument
from dolake.catalog.readers import MAIN, WHOLE, current_snapshot_id, whole_of
from dolake.catalog.values import Json
from dolake.errors import NotFound
from dolake.positions import Position
from dolake.tables.layout import MANAGED


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
    line, log = _main_line(metadata), _known_log(metadata)
    at = next((at for at, (made_ms, each) in enumerate(line) if _is_covered(each, made_ms, position, time_ms)), None)
    shown = dict(metadata)
    if at is None:
        if line and line[-1][1].get("parent-snapshot-id") is not None:
            _refuse_gone(line[-1][1], "the first that is kept of this table is")
        return shown | {"snapshots": [], "snapshot-log": [], "refs": {}, "current-snapshot-id": -1}
    snapshot = line[at][1]
    replaced_at = whole_of(snapshot, REPLACED_AT) if _is_managed(metadata) else None
    if replaced_at is not None and position is not None and replaced_at <= position:
        _refuse_gone(snapshot, "the last before it that is kept of this table is")
    ids = {each["snapshot-id"] for _, each in line[at:]}
    shown["snapshots"] = [each for each in metadata.get("snapshots") or () if each["snapshot-id"] in ids]
    shown["snapshot-log"] = log[: max(0, len(log) - at)]
    shown["refs"] = {MAIN: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
    shown["current-snapshot-id"] = snapshot["snapshot-id"]
    if snapshot.get("schema-id") is not None:
        shown["current-schema-id"] = snapshot["schema-id"]
    return shown


def _refuse_gone(near: Json, what: str) -> NoReturn:
    position = whole_of(near, PUBLISHED_TO)
    place = f"of {near['timestamp-ms']} ms" if position is None else f"lake@{position}"
    raise IllegalArgument(
        f"The table has no snapshot of this moment any more; {what} {place}",
        hint="full minutes, hours and days are kept longer than what lies between; DoLake's own SQL knows every moment",
    )


def _is_covered(snapshot: Json, made_ms: int, position: Position | None, time_ms: int | None) -> bool:
    """A snapshot of a publish by its position, also for a pin to a time: its own clock ran while it was written."""
    reached = whole_of(snapshot, PUBLISHED_TO)
    if reached is not None:
        return position is not None and reached <= position
    return time_ms is not None and made_ms <= time_ms


def _main_line(metadata: Json) -> list[tuple[int, Json]]:
    """What was current, newest first, and since when; before the log begins, by the snapshots' parents."""
    by_id = {each["snapshot-id"]: each for each in metadata.get("snapshots") or ()}
    log = _known_log(metadata)
    line = [(int(entry["timestamp-ms"]), by_id[entry["snapshot-id"]]) for entry in reversed(log)]
    at = line[-1][1].get("parent-snapshot-id") if line else current_snapshot_id(metadata)
    while at is not None and at in by_id:
        line.append((int(by_id[at]["timestamp-ms"]), by_id[at]))
        at = by_id[at].get("parent-snapshot-id")
    return line


def _known_log(metadata: Json) -> list[Json]:
    ids = {each["snapshot-id"] for each in metadata.get("snapshots") or ()}
    return [each for each in metadata.get("snapshot-log") or () if each["snapshot-id"] in ids]


def _is_managed(metadata: Json) -> bool:
    return str((metadata.get("properties") or {}).get(MANAGED, "")).lower() == "true"
