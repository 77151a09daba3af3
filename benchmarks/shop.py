"""A shop with tables whose changes never end: 70 % inserts, 25 % updates, 5 % deletes, nine columns a row.

From pipeline.py, freshness.py and soak.py, which send its batches and compare the tables with its books. Keys rise with
every insert; updates and deletes take any row that lives, old or new. Promise: `living` says what the state tables have
once everything handed out so far is published.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.stream import BATCH_EVENTS, KEY, KEY_FIRST, Json, Keys, Template

TABLES = ("orders", "items", "payments")
COLUMNS = 9
INSERTS, UPDATES = 0.70, 0.25
TEMPLATES = 16
_STATES = ("new", "paid", "packed", "sent", "returned")
_COUNTRIES = ("CH", "DE", "FR", "ES", "SE", "NO")


class Living:
    """The keys of one table's rows, so that any of them is found and removed in no time."""

    def __init__(self) -> None:
        self._keys: Keys = np.empty(1 << 16, np.int64)
        self.count = 0

    @property
    def key_sum(self) -> int:
        return int(self._keys[: self.count].sum())

    def add(self, keys: Keys) -> None:
        while self.count + len(keys) > len(self._keys):
            self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
        self._keys[self.count : self.count + len(keys)] = keys
        self.count += len(keys)

    def pick(self, chance: np.random.Generator, count: int) -> Keys:
        return self._keys[chance.integers(0, self.count, count)]

    def take(self, chance: np.random.Generator, count: int) -> Keys:
        """Remove so many; the last ones move to where they were."""
        at = chance.choice(self.count, count, replace=False, shuffle=False)
        keys = self._keys[at]
        for place in np.sort(at)[::-1]:
            self.count -= 1
            self._keys[place] = self._keys[self.count]
        return keys


@dataclass(frozen=True, slots=True)
class _Places:
    """Which changes of a template are of this table, by what they do."""

    inserts: Keys
    updates: Keys
    deletes: Keys


class Shop:
    """Batches of one stream, and the books that they leave behind."""

    mark_column = "id"

    def __init__(
        self, source: str, *, batch_events: int = BATCH_EVENTS, seed: int = 1, tables: Sequence[str] = TABLES
    ) -> None:
        self.tables = tables
        self.living = {table: Living() for table in tables}
        self.changes = dict.fromkeys(tables, 0)
        """How many changes of each table were handed out."""
        self._batch_events = batch_events
        chance = random.Random(seed)
        self._chance = np.random.default_rng(seed)
        self._next_key = KEY_FIRST
        first = Template(source, _changes(chance, ["INSERT"] * batch_events, tables))
        self._first = first, _places(first, tables)
        operations = [_operation(index / batch_events) for index in range(batch_events)]
        self._templates = []
        for _ in range(TEMPLATES):
            chance.shuffle(operations)
            template = Template(source, _changes(chance, operations, tables))
            self._templates.append((template, _places(template, tables)))
        self._handed_out = 0

    def next(self) -> tuple[Template, Keys]:
        """The next batch: its template and the key of each change. The first ones only insert, to have something."""
        self._handed_out += 1
        is_young = min(living.count for living in self.living.values()) < self._batch_events
        template, places = self._first if is_young else self._templates[self._handed_out % TEMPLATES]
        return template, self._fill(places)

    def next_inserts(self) -> tuple[Template, Keys]:
        """A batch of new rows alone."""
        template, places = self._first
        return template, self._fill(places)

    def begin_behind(self, key: int, rows: dict[str, int]) -> None:
        """Go on where a shop ended that has inserted so many rows of each table, the last ones just before `key`."""
        self._next_key = key
        for table, count in rows.items():
            self.living[table].add(np.arange(key - count, key))

    def marks(self, template: Template, keys: Keys) -> dict[str, int]:
        """The highest new key of each table in this batch."""
        found: dict[str, int] = {}
        for change, key in zip(template.changes, keys.tolist(), strict=True):
            if change["operation"] == "INSERT":
                found[change["table"]] = key
        return found

    def _fill(self, places: dict[str, _Places]) -> Keys:
        keys = np.empty(self._batch_events, np.int64)
        inserts = np.sort(np.concatenate([each.inserts for each in places.values()]))
        keys[inserts] = np.arange(self._next_key, self._next_key + len(inserts))
        self._next_key += len(inserts)
        for table, each in places.items():
            living = self.living[table]
            # Deletes first: a row that this batch deletes is not updated by it, wherever in the batch that stands.
            if len(each.deletes):
                keys[each.deletes] = living.take(self._chance, len(each.deletes))
            if len(each.updates):
                keys[each.updates] = living.pick(self._chance, len(each.updates))
            living.add(keys[each.inserts])
            self.changes[table] += len(each.inserts) + len(each.updates) + len(each.deletes)
        return keys


def _places(template: Template, tables: Sequence[str]) -> dict[str, _Places]:
    def where(table: str, operation: str) -> Keys:
        found = [
            index
            for index, change in enumerate(template.changes)
            if (change["table"], change["operation"]) == (table, operation)
        ]
        return np.array(found, dtype=np.int64)

    return {table: _Places(*(where(table, word) for word in ("INSERT", "UPDATE", "DELETE"))) for table in tables}


def _operation(share: float) -> str:
    return "INSERT" if share < INSERTS else "UPDATE" if share < INSERTS + UPDATES else "DELETE"


def _changes(chance: random.Random, operations: list[str], tables: Sequence[str]) -> list[Json]:
    return [_change(chance, operation, tables[index % len(tables)]) for index, operation in enumerate(operations)]


def _change(chance: random.Random, operation: str, table: str) -> Json:
    """One change, with the images that a database sends: both for an update."""
    change: Json = {"operation": operation, "table": table, "rowId": str(KEY)}
    row = _row(chance)
    if operation != "INSERT":
        change["before"] = row
    if operation != "DELETE":
        change["after"] = {**row, "status": chance.choice(_STATES), "quantity": chance.randrange(1, 100)}
    return change


def _row(chance: random.Random) -> Json:
    return {
        "id": KEY,
        "customer_id": chance.randrange(100_000),
        "status": chance.choice(_STATES),
        "amount": round(chance.uniform(1, 1_000), 2),
        "quantity": chance.randrange(1, 100),
        "note": f"parcel {KEY}",
        "country": chance.choice(_COUNTRIES),
        "created_at": f"2026-01-{chance.randrange(10, 29)}T10:15:{chance.randrange(10, 60)}.123Z",
        "is_gift": chance.random() < 0.2,
    }
