"""What differs between two moments of a table: rows added, removed and changed.

From worker.py, for `POST /v1/diff` and for rollbacks; both sides are relations of one view. Pure. Promise: a key comes
once, and only if its row differs in one of the user's columns or in what did not fit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dolake.errors import InvalidInput
from dolake.query.past import parse_snapshot_id
from dolake.query.relation import Relation
from dolake.query.sqltext import literal, quoted
from dolake.tables.layout import KEY, RESCUED, SOURCE

COLUMNS = ("kind", "key", "before", "after", "columns")
"""Of the answer: `kind` is added, removed or changed, `columns` has the names of those that differ."""


@dataclass(frozen=True, slots=True)
class Side:
    """A table at one moment, as a reference."""

    table: str
    namespace: str = "default"
    as_of: str | int | None = None
    snapshot_id: int | None = None
    hidden: frozenset[str] = frozenset()


def side_of(namespace: str, table: str, moment: Any) -> Side:
    """`moment` is a time, `{"snapshotId": ...}` or `{"asOf": ...}`, or None for now."""
    match moment:
        case None:
            return Side(table, namespace)
        case bool():
            pass
        case str() | int():
            return Side(table, namespace, as_of=moment)
        case {"snapshotId": (int() | str()) as id_}:
            return Side(table, namespace, snapshot_id=parse_snapshot_id(id_))
        case {"asOf": (int() | str()) as as_of}:
            return Side(table, namespace, as_of=as_of)
    hint = 'a time, such as "2026-11-15T12:00:00Z" or milliseconds since 1970, or {"snapshotId": ...}'
    raise InvalidInput(f"{str(moment)[:80]!r} is not a moment", hint=hint)


def diff_sql(before: Relation, after: Relation) -> str:
    """A SELECT with COLUMNS; rows in no order."""
    columns = list(dict.fromkeys((*before.columns, *after.columns)))
    keys = (KEY, SOURCE) if SOURCE in before.hidden else (KEY,)
    joined = " AND ".join(f"old.{quoted(key)} = new.{quoted(key)}" for key in keys)
    compared = [*columns, RESCUED]
    sides = {each: (_side("old", before, each, "new"), _side("new", after, each, "old")) for each in compared}
    differs = [f"{old} IS DISTINCT FROM {new}" for old, new in sides.values()]
    named = ", ".join(
        f"CASE WHEN {differ} THEN {literal(each)} END" for each, differ in zip(compared, differs, strict=True)
    )
    key = quoted(KEY)
    old_row, new_row = (_packed({each: pair[at] for each, pair in sides.items()}) for at in (0, 1))
    return (
        f"SELECT CASE WHEN old.{key} IS NULL THEN 'added' WHEN new.{key} IS NULL THEN 'removed' ELSE 'changed' END "  # noqa: S608
        f"AS kind, coalesce(old.{key}, new.{key}) AS key, "
        f"CASE WHEN old.{key} IS NOT NULL THEN {old_row} END AS before, "
        f"CASE WHEN new.{key} IS NOT NULL THEN {new_row} END AS after, "
        f"CASE WHEN old.{key} IS NOT NULL AND new.{key} IS NOT NULL THEN "
        f"list_filter([{named}], lambda each: each IS NOT NULL) END AS columns "
        f"FROM ({before.sql}) AS old FULL JOIN ({after.sql}) AS new ON {joined} "
        f"WHERE old.{key} IS NULL OR new.{key} IS NULL OR {' OR '.join(differs)}"
    )


def _side(side: str, relation: Relation, column: str, other: str) -> str:
    """A column of this side; where it has none, nothing, with the type that the other side has."""
    has_it = column in relation.columns or column in relation.hidden
    return f"{side}.{quoted(column)}" if has_it else f"CASE WHEN false THEN {other}.{quoted(column)} END"


def _packed(values: Mapping[str, str]) -> str:
    """The row as one value; what did not fit its columns comes with it."""
    return f"struct_pack({', '.join(f'{quoted(name)} := {value}' for name, value in values.items())})"
