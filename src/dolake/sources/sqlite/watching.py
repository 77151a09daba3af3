"""What has become of the tables: new ones, dropped, renamed, rebuilt ones, and columns added, renamed or dropped.

From source.py, within its writing transaction, when SQLite's schema version is another than at the last look; and from
enable_cdc, for which all tables are new. Promise: afterwards every wanted table has triggers that fit it, and
whatever the old triggers missed since is copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dolake.sources.sqlite.columns import COPYING, compare_columns, copy_anew, drop_triggers, new_triggers, our_triggers
from dolake.sources.sqlite.store import Store, TableState
from dolake.sources.sqlite.tables import PREFIX, Shape, list_tables, quoted, shape_of
from dolake.sources.sqlite.triggers import names_in_trigger, trigger_name

logger = logging.getLogger("dolake.sources.sqlite")
WITNESS_ROWID = 1000


def follow_schema(store: Store, patterns: Iterable[str]) -> None:
    """Compare the file's tables with what we know of them, and mend the difference.

    First what became of every table that we know, then every name anew: names may have changed places.
    """
    wanted, _ = list_tables(store.db, tuple(patterns))
    shapes = {name: shape for name in wanted if isinstance(shape := shape_of(store.db, name), Shape)}
    store.widen(max((2 * len(shape.columns) for shape in shapes.values()), default=1))
    triggers = our_triggers(store)
    known = store.tables()
    ever = store.names_ever()
    renamed: dict[str, TableState] = {}
    for table in known:
        found = triggers.get(trigger_name(table.shape_id, "insert"))
        now = found[0] if found else table.name
        if now not in shapes:
            _drop(store, table, is_gone=not _exists(store, now))
        elif found is None:
            logger.warning("table was made anew", extra={"table": table.name, "file": str(store.path)})
            drop_triggers(store, table.shape_id)
            store.forget(table.name)
        elif now != table.name:
            drop_triggers(store, table.shape_id)
            store.forget(table.name)
            if now in ever:  # the lake may have one of that name
                store.say(table.shape_id, {"ddl": {"action": "drop"}})
            else:
                store.say(table.shape_id, {"ddl": {"action": "rename"}, "to": now})
                renamed[now] = table
        else:
            compare_columns(store, table, shapes[now], names_in_trigger(found[1]))
    followed = {table.name for table in store.tables()}
    for name in sorted(shapes.keys() - followed):
        if name in renamed:
            _follow_renamed(store, renamed[name], shapes[name])
        else:
            _watch(store, shapes[name], empties=name in ever)
    _drop_orphans(store)
    if _was_vacuumed(store):
        _copy_rows_without_key(store)
    store.set("schema_version", store.schema_version())


def _exists(store: Store, name: str) -> bool:
    found = store.db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).fetchone()
    return bool(found)


def _watch(store: Store, shape: Shape, *, empties: bool) -> None:
    """Follow this table from here on, and copy what it has."""
    shape_id = new_triggers(store, shape)
    store.save(TableState(shape.name, shape_id, COPYING, None, None, empties, 0, 0))
    logger.info("table is followed", extra={"table": shape.name, "file": str(store.path)})


def _drop(store: Store, table: TableState, *, is_gone: bool) -> None:
    """The table is gone, or nobody wants it any more; then the lake keeps what it has."""
    drop_triggers(store, table.shape_id)
    if is_gone:
        store.say(table.shape_id, {"ddl": {"action": "drop"}})
    store.forget(table.name)
    logger.info("table is followed no longer", extra={"table": table.name, "file": str(store.path)})


def _follow_renamed(store: Store, table: TableState, shape: Shape) -> None:
    """All of it is copied again: columns may have changed with the name."""
    table.name, table.shape_id = shape.name, new_triggers(store, shape)
    copy_anew(table)
    store.save(table)


def _drop_orphans(store: Store) -> None:
    """Triggers of ours that no table of ours has."""
    ours = {str(table.shape_id) for table in store.tables()}
    for name in our_triggers(store):
        if name.removeprefix(PREFIX).partition("_")[0] not in ours:
            store.db.execute(f"DROP TRIGGER {quoted(name)}")


def _was_vacuumed(store: Store) -> bool:
    """A table without a key of its own gets new rowids from VACUUM; so does our witness."""
    return bool(store.db.execute(f"SELECT max(rowid) FROM {PREFIX}witness").fetchone()[0] != WITNESS_ROWID)


def _copy_rows_without_key(store: Store) -> None:
    for table in store.tables():
        shape = store.shape(table.shape_id)
        if shape.is_key_rowid or shape.rowid is None:
            continue
        if not shape.key or _has_null_in_key(store, shape):
            table.phase, table.cursor, table.filling, table.empties, table.copied = COPYING, None, None, True, 0
        elif table.phase == COPYING:
            table.cursor, table.copied = None, 0
        store.save(table)
    store.db.execute(
        f"UPDATE {PREFIX}witness SET rowid = ? WHERE rowid = (SELECT max(rowid) FROM {PREFIX}witness)", (WITNESS_ROWID,)
    )


def _has_null_in_key(store: Store, shape: Shape) -> bool:
    is_null = " OR ".join(f"{quoted(shape.names[index])} IS NULL" for index in shape.key)
    found = store.db.execute(f"SELECT 1 FROM {quoted(shape.name)} WHERE {is_null} LIMIT 1").fetchone()
    return bool(found)
