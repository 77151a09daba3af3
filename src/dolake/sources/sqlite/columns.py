"""What has become of a table's columns: added, renamed, dropped ones; and the triggers that fit them.

From watching.py, within its transaction, for a table that still has its name. SQLite rewrites names in triggers when a
column is renamed: so the old trigger says what each column that it knew is called by now.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dolake.sources.sqlite.store import Head, Store
from dolake.sources.sqlite.tables import PREFIX, Shape, quoted
from dolake.sources.sqlite.triggers import INSERT, OUTBOX, SUSPECT, UPDATE, UPDATE_FULL, statements_for, trigger_name

logger = logging.getLogger("dolake.sources.sqlite")
Names = Sequence[str | None]


def our_triggers(store: Store) -> dict[str, tuple[str, str]]:
    """Name to table and text."""
    rows = store.db.execute(
        "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
        (len(PREFIX), PREFIX),
    )
    return {name: (table, sql) for name, table, sql in rows.fetchall()}


def new_triggers(store: Store, shape: Shape) -> int:
    shape_id = store.add_shape(shape)
    for statement in statements_for(shape_id, shape):
        store.db.execute(statement)
    return shape_id


def drop_triggers(store: Store, shape_id: int) -> None:
    for name in our_triggers(store):
        if name.startswith(trigger_name(shape_id, "")):
            store.db.execute(f"DROP TRIGGER {quoted(name)}")


def compare_columns(store: Store, head: Head, table: str, shape: Shape, now: Sequence[str]) -> None:
    """`now` says what the columns of our trigger are called by now."""
    shape_id = head.tables[table]
    before = store.shape(shape_id)
    if before is None or len(before.columns) != len(now):
        replace_triggers(store, head, table, shape)
        return
    names = _survivors(before, now)
    kept = _kept(before, shape, names)
    if _is_same(before, shape):
        return
    renames = {
        column.name: name
        for column, name in zip(before.columns, names, strict=True)
        if name is not None and name in kept and name != column.name
    }
    ddl: list[dict[str, Any]] = [
        {"action": "drop_column", "column": column.name}
        for column, name in zip(before.columns, names, strict=True)
        if name not in kept
    ]
    ordered, circle = _in_order(renames)
    ddl += [{"action": "rename_column", "column": old, "to": new} for old, new in ordered]
    must_empty = _has_unseen_ends(store, shape_id, before, shape, renames)
    is_doubtful = must_empty or bool(circle) or None in names or _has_lost_keys(store, shape_id, before, renames)
    added = [name for name in shape.names if name not in kept]
    drop_triggers(store, shape_id)
    head.tables[table] = new_triggers(store, shape)
    words: dict[str, Any] = {"do": "columns", "table": table, "was": shape_id, "shape": head.tables[table], "ddl": ddl}
    if is_doubtful:
        words |= {"again": True, "empties": must_empty}
    elif added:
        # Changes since the ALTER went through a trigger that did not know the column; a row without a value lacks none.
        words["filling"] = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in added)
    store.say(words)
    logger.info("columns changed", extra={"table": table, "added": added, "file": str(store.path)})


def keep_masks(store: Store, head: Head, table: str, names: Sequence[str], *, now: str) -> None:
    """A column that is renamed stays masked, and one of a table that is renamed. The old names stay masked, too."""
    before = store.shape(head.tables[table])
    if before is None or len(before.columns) != len(names):
        return
    masks = {name.casefold(): mask for name, mask in head.masks.items()}
    for column, name in zip(before.columns, names, strict=True):
        mask = masks.get(f"{table}.{column.name}".casefold())
        if mask and f"{now}.{name}".casefold() not in masks:
            head.masks = {**head.masks, f"{now}.{name}": mask}


def replace_triggers(store: Store, head: Head, table: str, shape: Shape, *, empties: bool = True) -> None:
    """New triggers for a table of which nothing is known but its name; all of it is copied again."""
    drop_triggers(store, head.tables[table])
    head.tables[table] = new_triggers(store, shape)
    store.say({"do": "follow", "table": table, "shape": head.tables[table], "empties": empties})


def _is_same(before: Shape, shape: Shape) -> bool:
    """Whether the triggers fit. Types that format 1 kept do not matter."""
    plain = [msgspec.structs.replace(column, type="") for column in before.columns]
    return msgspec.structs.replace(before, columns=tuple(plain)) == shape


def _survivors(before: Shape, now: Sequence[str]) -> list[str | None]:
    """Where two have one name by now, the one that always had it was dropped before the other got it."""
    return [
        None if now.count(name) > 1 and name.casefold() == column.name.casefold() else name
        for column, name in zip(before.columns, now, strict=True)
    ]


def _kept(before: Shape, shape: Shape, now: Names) -> set[str]:
    """The columns that are still the same: a new one comes at the end, so one that overtakes others is new, too."""
    places = {column.name: (index, column.declared) for index, column in enumerate(shape.columns)}
    kept: set[str] = set()
    lowest = len(shape.columns)
    for column, name in reversed(list(zip(before.columns, now, strict=True))):
        index, declared = places.get(name or "", (lowest, ""))
        if name is not None and index < lowest and declared == column.declared:
            kept.add(name)
            lowest = index
    return kept


def _in_order(renames: dict[str, str]) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The renames so that each new name is free when its turn comes; and those that go in a circle. Pure."""
    left, ordered = dict(renames), []
    while free := [old for old, new in left.items() if new not in left]:
        ordered += [(old, left.pop(old)) for old in free]
    return ordered, left


def _has_lost_keys(store: Store, shape_id: int, before: Shape, renames: dict[str, str]) -> bool:
    """Whether rows will be looked for by names that the key's columns no longer have."""
    is_renamed = any(before.names[index] in renames for index in before.key)
    return is_renamed and _has_events(store, shape_id, SUSPECT)


def _has_unseen_ends(store: Store, shape_id: int, before: Shape, shape: Shape, renames: dict[str, str]) -> bool:
    """Whether a REPLACE may have deleted rows by a unique index that our triggers did not know."""
    had = {tuple((renames.get(name, name), collation) for name, collation in unique) for unique in before.uniques}
    return bool(set(shape.uniques) - had) and _has_events(store, shape_id, INSERT, UPDATE, UPDATE_FULL)


def _has_events(store: Store, shape_id: int, *operations: int) -> bool:
    marks = ", ".join("?" * len(operations))
    statement = f"SELECT 1 FROM {OUTBOX} WHERE seq > 0 AND shape = ? AND op IN ({marks}) LIMIT 1"
    return bool(store.db.execute(statement, (shape_id, *operations)).fetchone())
