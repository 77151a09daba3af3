"""Changes that cannot be rows: each becomes a row of the table's quarantine, with the reason and the raw event.

From tasks.py, and from query/tail.py, which must come to the same rows. `ns.orders__quarantine` is a table like any
other, with a history of its own, whose rows come from here instead of a source: so publishes, queries and upkeep know
nothing new. A row leaves it by an ordinary change, see server/quarantine.py. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from dolake.pipeline.gather import Gathered
from dolake.tables.layout import QUARANTINE_SUFFIX
from dolake.wire.messages import RawEvent

_encode = msgspec.json.Encoder().encode


def quarantine_of(table: str) -> str:
    """The source's name of the table that takes what this one cannot."""
    return table + QUARANTINE_SUFFIX


def sort_out(changes: Gathered, problems: Mapping[int, str], table: str) -> tuple[Gathered, Gathered]:
    """The changes without those that have a problem; and those, as rows of the quarantine."""
    good, bad = Gathered(), Gathered()
    record_of = changes.record_of.tolist()
    for at, (event, position) in enumerate(zip(changes.events, changes.positions, strict=True)):
        record = changes.records[record_of[at]]
        if at in problems:
            row = _row(event, position, str(record.stream), problems[at], table)
            kept = RawEvent(
                sequence=event.sequence,
                timestamp=event.timestamp,
                operation="INSERT",
                table=quarantine_of(table),
                row_id=str(position),
                after=Raw(_encode(row)),
            )
            bad.add(kept, position, record)
        else:
            good.add(event, position, record)
    return good, bad


def _row(event: RawEvent, position: int, source: str, reason: str, table: str) -> dict[str, Any]:
    """By the columns of tables/rules.py's QUARANTINE_COLUMNS."""
    return {
        "position": position,
        "reason": reason,
        "table": table,
        "operation": event.operation,
        "key": event.row_id,
        "sequence": event.sequence,
        "source": source,
        "event": _text_of(event),
    }


def _text_of(event: RawEvent) -> str:
    """The event as JSON. Bytes that are no text, which nothing could hold, stand there as escapes."""
    parts: dict[str, Any] = {"operation": event.operation, "table": event.table, "rowId": event.row_id}
    parts |= {"sequence": event.sequence, "timestamp": event.timestamp}
    text = _encode(parts).decode()[:-1]
    for name in ("before", "after", "metadata"):
        image = getattr(event, name)
        if image is not UNSET:
            text += f',"{name}":{bytes(image).decode(errors="backslashreplace")}'
    return text + "}"
