"""What has become of the tables: new ones, dropped, renamed, rebuilt ones, and columns added, renamed or dropped.

From source.py when SQLite's schema version is another than the head note says; and from installation.py, for which all
tables are new. Runs in a transaction that writes. What follows for the copy is put into the outbox as a note, at its
place among the changes. Promise: afterwards every wanted table has triggers that fit it, and whatever the old triggers
missed is copied again.
"""

from __future__ import annotations

import logging
import sqlite3

from dolake.sources.sqlite.columns import (
    compare_columns,
    drop_triggers,
    keep_masks,
    new_triggers,
    our_triggers,
    replace_triggers,
)
from dolake.sources.sqlite.store import Head, Store
from dolake.sources.sqlite.tables import PREFIX, Shape, list_tables, quoted, shape_of
from dolake.sources.sqlite.triggers import names_in_trigger, trigger_name, triggers_of

logger = logging.getLogger("dolake.sources.sqlite")


def follow_schema(store: Store, head: Head) -> None:
    """Compare the file's tables with what the head note says, mend the difference, and save the head note.

    First what became of every table that we know, then every name anew: names may have changed places.
    """
    shapes = wanted_shapes(store.db, head)
    store.widen(max((2 * len(shape.columns) for shape in shapes.values()), default=1))
    triggers = our_triggers(store)
    ever = store.names_ever()
    known = dict(head.tables)
    renamed: dict[str, str] = {}
    for table, shape_id in known.items():
        found = triggers.get(trigger_name(shape_id, "insert"))
        now = found[0] if found else table
        if now not in shapes:
            _drop(store, head, table, is_gone=not store.has_table(now))
        elif found is None:
            _table_made_anew(store, head, table, shapes[table])
        elif now != table:
            keep_masks(store, head, table, names_in_trigger(found[1]), now=now)
            drop_triggers(store, shape_id)
            del head.tables[table]
            renamed[now] = table
        elif _was_vacuumed(store, shape_id, shapes[now]):
            _follow_vacuumed(store, head, table, shapes[now])
        else:
            keep_masks(store, head, table, names_in_trigger(found[1]), now=table)
            compare_columns(store, head, table, shapes[now], names_in_trigger(found[1]))
            _mend_triggers(store, head, table, shapes[now])
    for now, old in renamed.items():
        if now in ever:  # the lake may have one of that name
            store.say({"do": "unfollow", "table": old, "isGone": True})
        else:
            head.tables[now] = new_triggers(store, shapes[now])
            store.say({"do": "rename", "table": old, "to": now, "shape": head.tables[now]})
    for name in sorted(shapes.keys() - head.tables.keys()):
        _watch(store, head, shapes[name], empties=name in ever)
    _drop_orphans(store, head)
    head.schema_version = store.schema_version()
    store.save_head(head)


def wanted_shapes(db: sqlite3.Connection, head: Head) -> dict[str, Shape]:
    """The tables that are to be followed, each as it is now."""
    wanted, _ = list_tables(db, head.patterns, head.excluded)
    return {name: shape for name in wanted if isinstance(shape := shape_of(db, name), Shape)}


def _watch(store: Store, head: Head, shape: Shape, *, empties: bool) -> None:
    """Follow this table from here on, and copy what it has."""
    head.tables[shape.name] = new_triggers(store, shape)
    store.say({"do": "follow", "table": shape.name, "shape": head.tables[shape.name], "empties": empties})
    logger.info("table is followed", extra={"table": shape.name, "file": str(store.path)})


def _table_made_anew(store: Store, head: Head, table: str, shape: Shape) -> None:
    """Our triggers are gone: the table was dropped and made again, or somebody dropped the triggers."""
    logger.warning("table was made anew", extra={"table": table, "file": str(store.path)})
    before = store.shape(head.tables[table])
    lost = [name for name in before.names if name not in shape.names] if before else []
    drop_triggers(store, head.tables[table])
    head.tables[table] = new_triggers(store, shape)
    ddl = [{"action": "drop_column", "column": name} for name in lost]
    store.say({"do": "follow", "table": table, "shape": head.tables[table], "empties": True, "ddl": ddl})


def _drop(store: Store, head: Head, table: str, *, is_gone: bool) -> None:
    """The table is gone, or nobody wants it any more; then the lake keeps what it has."""
    drop_triggers(store, head.tables.pop(table))
    store.say({"do": "unfollow", "table": table, "isGone": is_gone})
    logger.info("table is followed no longer", extra={"table": table, "file": str(store.path)})


def _mend_triggers(store: Store, head: Head, table: str, shape: Shape) -> None:
    """Where one of several triggers of a table is missing, changes were missed."""
    shape_id = head.tables[table]
    have = sum(name.startswith(trigger_name(shape_id, "")) for name in our_triggers(store))
    if have != sum(1 for _ in triggers_of(shape_id, shape)):
        logger.warning("triggers were missing", extra={"table": table, "file": str(store.path)})
        replace_triggers(store, head, table, shape)


def _drop_orphans(store: Store, head: Head) -> None:
    """Triggers of ours that no table of ours has."""
    ours = {str(shape_id) for shape_id in head.tables.values()}
    for name in our_triggers(store):
        if name.removeprefix(PREFIX).partition("_")[0] not in ours:
            store.db.execute(f"DROP TRIGGER {quoted(name)}")


# --- VACUUM ----------------------------------------------------------------------------------------------------------


def _was_vacuumed(store: Store, shape_id: int, shape: Shape) -> bool:
    """Rows without a key get new rowids from VACUUM, and SQLite's list of triggers loses the gap that we made in it."""
    if not shape.has_rowid_in_key:
        return False
    rows = store.db.execute(
        "SELECT rowid FROM sqlite_schema WHERE type = 'trigger' AND name IN (?, ?) ORDER BY rowid",
        (trigger_name(shape_id, "insert"), trigger_name(shape_id, "update")),
    ).fetchall()
    return len(rows) == 2 and rows[1][0] - rows[0][0] == 1


def _follow_vacuumed(store: Store, head: Head, table: str, shape: Shape) -> None:
    if _has_changed_keys(store, shape):
        replace_triggers(store, head, table, shape)
        return
    drop_triggers(store, head.tables[table])
    head.tables[table] = new_triggers(store, shape)
    store.say({"do": "renumbered", "table": table, "shape": head.tables[table]})


def _has_changed_keys(store: Store, shape: Shape) -> bool:
    """Whether rows have other keys now. Without a key all of them may; else those with NULL in it."""
    if not shape.key:
        return True
    is_null = " OR ".join(f"{quoted(shape.names[index])} IS NULL" for index in shape.key)
    found = store.db.execute(f"SELECT 1 FROM {quoted(shape.name)} WHERE {is_null} LIMIT 1").fetchone()
    return bool(found)
