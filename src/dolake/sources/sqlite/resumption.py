"""Where a source goes on: the lake's state is compared with the file, which may have become another.

From source.py, in its reading transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolake.sources.base import Standing
from dolake.sources.sqlite.pieces import plain
from dolake.sources.sqlite.state import FileState, OpenTransaction, Place, TableState, address_of, digest_of, read_state
from dolake.sources.sqlite.store import Former, Head, Store
from dolake.sources.sqlite.triggers import OUTBOX
from dolake.sources.sqlite.values import reading_any_text


@dataclass(frozen=True, slots=True)
class Decision:
    """The state to go on with. A `reason` means that all tables are copied again."""

    state: FileState
    reason: str = ""
    before: FileState | None = None
    """With a reason: what the lake had of this file until now."""


def decide(store: Store, head: Head, standing: Standing) -> Decision:
    """Compare the lake with the file."""
    state = read_state(standing.state)
    if state is None:
        return _without_state(store, head, standing)
    if state.identity != head.identity and (state.host, state.path) != address_of(store.path):
        return _start_over(store, "the lake has the state of another file under this name")
    if state.instance != head.instance:
        return _start_over(store, "the file was enabled anew", state)
    if head.acked > state.place.outbox:
        return _start_over(store, "the lake has lost changes that it had acknowledged", state)
    if not is_at(store, state.place) or state.place.outbox > store.last_sequence():
        reason = "the file was restored from a backup: the lake has changes that the file has not"
        return _start_over(store, reason, state)
    return Decision(state)


def _without_state(store: Store, head: Head, standing: Standing) -> Decision:
    if standing.durable_sequence and head.former and (state := _after_format_1(store, head, head.former, standing)):
        return Decision(state)
    if standing.durable_sequence:
        return _start_over(store, "the lake knows this stream already, and not this file")
    if head.former and not head.former.acked:  # nothing of the outbox was removed yet
        return Decision(FileState(tables=_tables_of(head.former)))
    if head.acked or head.former:
        return _start_over(store, "the lake has nothing of this stream, and the outbox was trimmed")
    return Decision(FileState())


def _after_format_1(store: Store, head: Head, former: Former, standing: Standing) -> FileState | None:
    """Format 1 kept its place in the file, and the stream had the outbox's numbers."""
    durable = standing.durable_sequence
    if former.epoch != standing.epoch or not former.acked <= durable <= former.sent:
        return None
    end = next((last for last in former.groups if last > durable), None)
    is_begun = durable > max((last for last in former.groups if last <= durable), default=former.acked)
    transaction = OpenTransaction(f"{former.epoch}.{end}", end) if end and is_begun else None
    return FileState(place=place_at(store, durable, transaction), tables=_tables_of(former))


def _tables_of(former: Former) -> dict[str, TableState]:
    return {name: TableState(**fields) for name, fields in former.tables.items()}


def _start_over(store: Store, reason: str, before: FileState | None = None) -> Decision:
    """Go on behind the newest event: a copy tells all that the file has."""
    return Decision(FileState(place=place_at(store, store.last_sequence())), reason, before)


def place_at(store: Store, outbox: int, transaction: OpenTransaction | None = None) -> Place:
    """The place behind this event."""
    return Place(outbox, digest_of(_event(store, outbox)), transaction) if outbox else Place()


def is_at(store: Store, place: Place) -> bool:
    """Whether the outbox has the event that we read at this place."""
    return place.outbox == 0 or digest_of(_event(store, place.outbox)) == place.digest


def _event(store: Store, outbox: int) -> tuple[object, ...] | None:
    with reading_any_text(store.db):
        row = store.db.execute(f"SELECT * FROM {OUTBOX} WHERE seq = ?", (outbox,)).fetchone()
    return plain(row) if row is not None else None
