"""What the tables must hold: a plain dictionary that applies every change, and the list of all changes.

From driver.py, which notes each change as it sends it; to checks.py, which compares. It knows nothing of DoLake: it is
issue 5's sentence «after any sequence of changes the state table equals a plain dictionary that applied them».
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    def before(self) -> Row | None:
        return self.event.get("before")

    @property
    def image(self) -> Row:
        """The row that the changes table shows: as it is now, for a DELETE as it was."""
        return (self.before if self.operation == "DELETE" else self.event["after"]) or {}


class Model:
    """All that was sent, and what it adds up to."""

    def __init__(self) -> None:
        self.sent: dict[Id, Sent] = {}

    def add(self, changes: Iterable[Sent]) -> None:
        for change in changes:
            assert change.id not in self.sent, "the test itself sent two changes under one sequence"
            self.sent[change.id] = change

    def state(self, order: Iterable[Id]) -> dict[str, dict[str, Row]]:
        """The rows of all tables by key, when the changes are applied in this order."""
        tables: dict[str, dict[str, Row]] = defaultdict(dict)
        for id_ in order:
            change = self.sent[id_]
            rows = tables[change.table]
            if change.operation == "DELETE":
                rows.pop(change.key, None)
            else:
                rows.pop(change.metadata.get("previousRowId", change.key), None)
                rows[change.key] = change.event["after"]
        return tables

    def transactions(self) -> dict[tuple[str, str], list[Id]]:
        """The changes of each transaction."""
        found: dict[tuple[str, str], list[Id]] = defaultdict(list)
        for id_, change in self.sent.items():
            if change.transaction is not None:
                found[change.source, change.transaction].append(id_)
        return found
