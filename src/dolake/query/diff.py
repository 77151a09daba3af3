"""What differs between two moments of a table: rows added, removed and changed.

From worker.py, for `POST /v1/diff` and for rollbacks; both sides are relations of one view. Pure. Promise: a key comes
once, and only if its row differs in one of the user's columns or in what did not fit them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dolake.errors import InvalidInput
from dolake.query.reader import parse_snapshot_id
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
    differs = [f"{_side('old', before, each)} IS DISTINCT FROM {_side('new', after, each)}" for each in compared]
    named = ", ".join(
        f"CASE WHEN {differ} THEN {literal(each)} END" for each, differ in zip(compared, differs, strict=True)
    )
    key = quoted(KEY)
    return (
        f"SELECT CASE WHEN old.{key} IS NULL THEN 'added' WHEN new.{key} IS NULL THEN 'removed' ELSE 'changed' END "  # noqa: S608
        f"AS kind, coalesce(old.{key}, new.{key}) AS key, "
        f"CASE WHEN old.{key} IS NOT NULL THEN {_packed('old', before, columns)} END AS before, "
        f"CASE WHEN new.{key} IS NOT NULL THEN {_packed('new', after, columns)} END AS after, "
        f"CASE WHEN old.{key} IS NOT NULL AND new.{key} IS NOT NULL THEN "
        f"list_filter([{named}], lambda each: each IS NOT NULL) END AS columns "
        f"FROM ({before.sql}) AS old FULL JOIN ({after.sql}) AS new ON {joined} "
        f"WHERE old.{key} IS NULL OR new.{key} IS NULL OR {' OR '.join(differs)}"
    )


def _side(side: str, relation: Relation, column: str) -> str:
    has_it = column in relation.columns or column in relation.hidden
    return f"{side}.{quoted(column)}" if has_it else "NULL"


def _packed(side: str, relation: Relation, columns: list[str]) -> str:
    """The row as one value; what did not fit its columns comes with it."""
    parts = [f"{quoted(each)} := {_side(side, relation, each)}" for each in (*columns, RESCUED)]
    return f"struct_pack({', '.join(parts)})"
