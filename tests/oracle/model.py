"""What the tables must hold: a plain dictionary that applies every change, and the list of all changes.

From driver.py, which notes each change as it sends it; to checks.py, which compares. It knows nothing of DoLake: it is
issue 5's sentence «after any sequence of changes the state table equals a plain dictionary that applied them».
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.changes import LEFT_OUT, MASKED

Row = Mapping[str, Any]
Id = tuple[str, int]
"""A change for ever: its stream and its sequence there."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One change, as it was sent."""

    source: str
    event: Mapping[str, Any]

    @property
    def id(self) -> Id:
        return self.source, self.event["sequence"]

    @property
    def table(self) -> str:
        return str(self.event["table"])

    @property
    def key(self) -> str:
        return str(self.event["rowId"])

    @property
    def operation(self) -> str:
        return str(self.event["operation"])

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.event.get("metadata") or {}

    @property
    def transaction(self) -> str | None:
        return None if "transactionId" not in self.metadata else str(self.metadata["transactionId"])

    @property
    def is_ddl(self) -> bool:
        return "ddl" in self.metadata

    @property
    def before(self) -> Row | None:
        return None if self.is_ddl or "before" not in self.event else kept(self.event["before"])

    @property
    def after(self) -> Row:
        return kept(self.event.get("after") or {})

    @property
    def image(self) -> Row:
        """The row that the changes table shows: as it is now, for a DELETE as it was."""
        return (self.before if self.operation == "DELETE" else self.after) or {}


def kept(row: Row) -> Row:
    """What the lake keeps of a row, by driver.py's settings."""
    masked = {MASKED: row[MASKED][:2]} if row.get(MASKED) is not None else {}
    return {name: value for name, value in row.items() if name != LEFT_OUT} | masked


@dataclass(slots=True)
class State:
    """The rows of all tables by key; the rows of changes that did not send all of theirs; and those set aside."""

    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))
    images: dict[Id, Row] = field(default_factory=dict)
    set_aside: set[Id] = field(default_factory=set)


class Model:
    """All that was sent, and what it adds up to."""

    def __init__(self) -> None:
        self.sent: dict[Id, Sent] = {}

    def add(self, changes: Iterable[Sent]) -> None:
        for change in changes:
            assert change.id not in self.sent, "the test itself sent two changes under one sequence"
            self.sent[change.id] = change

    def state(self, order: Iterable[Id]) -> State:
        """What all tables hold, when the changes are applied in this order."""
        state = State()
        for id_ in order:
            change = self.sent[id_]
            rows = state.tables[change.table]
            if change.is_ddl:
                rows.clear()
            elif change.operation == "DELETE":
                rows.pop(change.key, None)
            else:
                self._put(change, rows, state)
        return state

    def _put(self, change: Sent, rows: dict[str, Row], state: State) -> None:
        """A row that lacks columns gets them from the row before it; where nobody knows that one, it is set aside."""
        old_key = change.metadata.get("previousRowId", change.key)
        missing = [name for name in change.metadata.get("unchanged", ()) if name not in change.after]
        untold = [name for name in missing if change.before is None or name not in change.before]
        if untold and old_key not in rows:
            state.set_aside.add(change.id)
            return
        told = {name: change.before[name] for name in missing if change.before and name in change.before}
        old = {name: rows[old_key][name] for name in untold if name in rows.get(old_key, {})}
        rows.pop(old_key, None)
        rows[change.key] = state.images[change.id] = {**change.after, **told, **old}

    def transactions(self) -> dict[tuple[str, str], list[Id]]:
        """The changes of each transaction."""
        found: dict[tuple[str, str], list[Id]] = defaultdict(list)
        for id_, change in self.sent.items():
            if change.transaction is not None:
                found[change.source, change.transaction].append(id_)
        return found
