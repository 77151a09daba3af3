"""Columns whose type a source has only guessed: what a table keeps of them, and when a guess is given up.

From sourcetables.py and publish.py; retyping.py gives a column its other type. A table of changes has them in a
property: by name, and whether the column has a value yet. Promise: a column that is said to have none has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from dolake.pipeline.iceberg import Iceberg, IcebergTable
from dolake.pipeline.rows import Contradiction
from dolake.tables.declaration import type_for_both
from dolake.tables.layout import BEFORE, RESCUED_COLUMNS

Json = dict[str, Any]
_SHARE_MAX = 0.001
"""Of a large table's rows: when more values than this contradict a guess, the column becomes text beside the stream."""


def guesses_text(guesses: Mapping[str, bool]) -> str:
    return json.dumps(dict(sorted(guesses.items())))


def rescued_property(known: str | None, *, more: Iterable[str] = (), gone: Iterable[str] = ()) -> dict[str, str]:
    """What a state says from now on of columns with rescued values; nothing where that is what it says already."""
    names = set(json.loads(known)) if known else set[str]()
    now = (names | set(more)) - set(gone)
    return {RESCUED_COLUMNS: json.dumps(sorted(now))} if now != names else {}


@lru_cache(maxsize=256)
def comments_of(schema: str) -> dict[str, str]:
    """The comments of a table's columns."""
    return {field["name"]: field["doc"] for field in json.loads(schema)["fields"] if field.get("doc")}


@lru_cache(maxsize=256)
def _ids(schema: str) -> dict[str, tuple[int, ...]]:
    """Of each column the field's id, and that of the same column in the row before a change."""
    found: dict[str, tuple[int, ...]] = {}
    for field in json.loads(schema)["fields"]:
        inside = field["type"]["fields"] if field["name"] == BEFORE else [field]
        for each in inside:
            found[each["name"]] = (*found.get(each["name"], ()), each["id"])
    return found


def with_values(schema: str, files: Iterable[Json], columns: Iterable[str]) -> frozenset[str]:
    """Those of these columns of which one of these data files has a value; files without counts may have any."""
    ids, found = _ids(schema), set[str]()
    wanted = set(columns)
    for entry in files:
        if not wanted - found:
            break
        values, nulls = _counts(entry, "value-counts"), _counts(entry, "null-value-counts")
        if not values and entry["record-count"]:
            return frozenset(wanted)
        found |= {
            name for name in wanted - found if any(values.get(id_, 0) > nulls.get(id_, 0) for id_ in ids.get(name, ()))
        }
    return frozenset(found)


def columns_with_values(iceberg: Iceberg, tables: Iterable[IcebergTable], columns: frozenset[str]) -> frozenset[str]:
    """Those of these columns of which one of these tables has a value; nothing is read where no column is asked for."""
    found: frozenset[str] = frozenset()
    for table in tables if columns else ():
        files = (data for data, _ in iceberg.files(table, has_counts=True))
        found |= with_values(table.schema, files, columns)
    return found


def _counts(entry: Json, name: str) -> dict[int, int]:
    found = entry.get(name) or {"keys": (), "values": ()}
    return dict(zip(found["keys"], found["values"], strict=True))


class RetypesWanted:
    """Which columns should get other types beside the stream, by table, and what led to that."""

    def __init__(self) -> None:
        self._types: dict[str, dict[str, str]] = {}
        self._contradicted: dict[tuple[str, str], Contradiction] = {}

    def add(self, table: str, types: Mapping[str, str]) -> None:
        own = self._types.setdefault(table, {})
        for column, type_ in types.items():
            own[column] = type_for_both(own.get(column, type_), type_)

    def of(self, table: str) -> dict[str, str]:
        return dict(self._types.get(table, {}))

    def remove(self, table: str, columns: Iterable[str]) -> None:
        """They have other types now, or never will."""
        for column in columns:
            self._types.get(table, {}).pop(column, None)
            self._contradicted.pop((table, column), None)

    def note(self, table: str, rows: int, parts: Iterable[Mapping[str, Contradiction]]) -> None:
        """A publish has values that do not fit guessed types; when they are many, the columns are added."""
        for part in parts:
            for column, found in part.items():
                known = self._contradicted.get((table, column))
                self._contradicted[table, column] = total = known + found if known else found
                if total.count > _SHARE_MAX * rows:
                    self.add(table, {column: total.type})
