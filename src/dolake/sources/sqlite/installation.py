"""What is put into a user's file, and taken out again: one table and triggers, from any state of the file.

From the package's functions and the command line. Writes, and so waits until the file is free. Promise: `disable`
leaves nothing whose name begins with our prefix; `enable` makes any state a right one.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from dolake.errors import InvalidInput, NotFound
from dolake.sources.sqlite.columns import drop_triggers, new_triggers
from dolake.sources.sqlite.store import FORMAT, Former, Head, Store, our_objects
from dolake.sources.sqlite.tables import PREFIX, is_wanted, list_tables, quoted
from dolake.sources.sqlite.triggers import NOW_MS, OUTBOX
from dolake.sources.sqlite.watching import follow_schema, wanted_shapes
from dolake.suggestions import closest

logger = logging.getLogger("dolake.sources.sqlite")


def enable(
    store: Store,
    *,
    tables: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    masks: Mapping[str, str] | None = None,
    stream: str | None = None,
    as_copy: bool = False,
    is_restored: bool = False,
) -> None:
    """Follow these tables. What is not given stays as it was chosen before; at first all tables are followed."""
    with store.writing() as db:
        head = _head_for(store)
        if as_copy:
            head.identity, head.instance, head.former = _new_id(), _new_id(), None
        if is_restored:
            head.instance = _new_id()
        if stream is not None:
            head.stream = stream
        check_choice(
            db,
            tables=[each for each in tables or () if each not in head.patterns],
            exclude=[each for each in exclude or () if each not in head.excluded],
        )
        if tables is not None:
            head.patterns = list(tables)
        if exclude is not None:
            head.excluded = list(exclude)
        masked_before = head.masks
        if masks is not None:
            head.masks = dict(masks)
            head.mask_secret = head.mask_secret or secrets.token_hex(32)
        known = set(head.tables)
        follow_schema(store, head)
        for table in sorted(_masked_otherwise(masked_before, head.masks) & known & set(head.tables)):
            store.say({"do": "copy", "table": table})


def _masked_otherwise(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The tables whose values are to be kept in another way: what the lake has of them is replaced."""
    return {name.rpartition(".")[0] for name, _ in before.items() ^ after.items()}


def _head_for(store: Store) -> Head:
    """The head note of a file in any state."""
    if is_format_1(store):
        return _convert(store)
    head = store.head()
    if head is not None:
        return head
    remove(store.db)
    store.forget_shapes()
    store.create()
    return Head(FORMAT, _new_id(), _new_id())


def check_choice(db: sqlite3.Connection, *, tables: Sequence[str], exclude: Sequence[str]) -> None:
    """A new name that is no table's is a mistake, and not a wish to follow nothing.

    One that was chosen before may be of a table that the application has dropped since.
    """
    everything, left_out = list_tables(db, ["*"])
    names = [*everything, *(reason.partition(":")[0] for reason in left_out)]
    for option, patterns in (("--tables", tables), ("--exclude", exclude)):
        for pattern in patterns:
            if pattern != "*" and not any(is_wanted(name, [pattern]) for name in names):
                raise _unknown(option, pattern, names)


def _unknown(option: str, pattern: str, names: Sequence[str]) -> InvalidInput:
    close = closest(pattern, names)
    hint = f"did you mean {close!r}?" if close else f"the tables are: {', '.join(sorted(names)) or 'none'}"
    return InvalidInput(f"{option} {pattern!r} matches no table of the file", hint=hint)


def repair(store: Store, head: Head) -> None:
    """Our table was dropped by another program, and the triggers fail: make it anew, and choose what was chosen."""
    with store.writing() as db:
        if store.head() is not None:
            return
        remove(db)
        store.forget_shapes()
        store.create()
        fresh = Head(
            FORMAT, head.identity, _new_id(), head.stream, head.patterns, head.excluded, head.masks,
            head.mask_secret,
        )  # fmt: skip
        follow_schema(store, fresh)
    logger.warning("outbox was missing, and is made anew", extra={"file": str(store.path)})


def disable(store: Store) -> None:
    """Remove every trace of us. Events that no lake has acknowledged are lost."""
    with store.writing() as db:
        remove(db)


def remove(db: sqlite3.Connection) -> None:
    """Triggers, views, indexes and tables whose names begin with our prefix."""
    for kind in ("trigger", "view", "index", "table"):
        for name in our_objects(db, kind):
            db.execute(f"DROP {kind} IF EXISTS {quoted(name)}")


def has_traces(db: sqlite3.Connection) -> bool:
    return any(our_objects(db, kind) for kind in ("trigger", "table"))


def resync(store: Store, table: str) -> None:
    """Copy this table again; a running source notices, and goes on with the others meanwhile."""
    with store.writing():
        head = store.head()
        names = list(head.tables) if head else []
        found = next((name for name in names if name.casefold() == table.casefold()), None)
        if found is None:
            raise NotFound(
                f"{store.path} has no table {table!r} that is followed", hint="`dolake source status` lists them"
            )
        store.say({"do": "copy", "table": found})


def _new_id() -> str:
    return secrets.token_hex(8)


# --- format 1 --------------------------------------------------------------------------------------------------------


def _convert(store: Store) -> Head:
    """A file that an older version enabled. Its events stay; its place goes into the head note for the first resume."""
    db = store.db
    kept = dict(db.execute(f"SELECT name, value FROM {PREFIX}state").fetchall())
    if kept.get("format") != 1:
        raise InvalidInput(
            f"{store.path} was enabled by another version of DoLake (format {kept.get('format')})",
            hint="`dolake source disable` with that version, then enable it again",
        )
    for shape_id, text in db.execute(f"SELECT id, shape FROM {PREFIX}shapes").fetchall():
        db.execute(f"INSERT INTO {OUTBOX} (seq, at, op, v0) VALUES (?, {NOW_MS}, 0, ?)", (-shape_id, text))
    groups = tuple(last for (last,) in db.execute(f"SELECT last FROM {PREFIX}groups ORDER BY last").fetchall())
    head = Head(FORMAT, _new_id(), _new_id(), patterns=json.loads(kept["patterns"]), acked=0)
    is_as_known = kept.get("schema_version") == store.schema_version()
    rows = db.execute(
        f"SELECT name, shape, phase, cursor, filling, empties, copied, total FROM {PREFIX}tables"
    ).fetchall()
    states: dict[str, dict[str, Any]] = {}
    for name, shape, phase, cursor, filling, empties, copied, total in rows:
        head.tables[name] = shape
        states[name] = {
            "shape": shape, "lake": "", "phase": phase, "cursor": json.loads(cursor) if cursor else None,
            "filling": filling, "empties": bool(empties), "copied": copied, "total": total,
        }  # fmt: skip
    acked = kept.get("acked") or 0
    head.former = Former(kept.get("epoch") or 0, acked, max(acked, *groups, 0), groups, states)
    if is_as_known:
        _renew_triggers(store, head)
    for table in ("state", "shapes", "tables", "groups", "witness"):
        db.execute(f"DROP TABLE IF EXISTS {PREFIX}{table}")
    logger.info("file was converted from format 1", extra={"file": str(store.path)})
    return head


def _renew_triggers(store: Store, head: Head) -> None:
    """The triggers of today for tables that have not changed since format 1 looked at them: nothing was missed."""
    shapes = wanted_shapes(store.db, head)
    store.widen(max((2 * len(shape.columns) for shape in shapes.values()), default=1))
    for table in head.tables.keys() & shapes.keys():
        drop_triggers(store, head.tables[table])
        head.tables[table] = new_triggers(store, shapes[table])
        store.say({"do": "triggers", "table": table, "shape": head.tables[table]})


def format_1_patterns(store: Store) -> list[str] | None:
    """What was chosen for a file that an older version enabled; None for any other file."""
    if not is_format_1(store):
        return None
    row = store.db.execute(f"SELECT value FROM {PREFIX}state WHERE name = 'patterns'").fetchone()
    return list(json.loads(row[0])) if row else None


def is_format_1(store: Store) -> bool:
    return store.has_table(f"{PREFIX}state") and store.exists and store.head_text() is None
