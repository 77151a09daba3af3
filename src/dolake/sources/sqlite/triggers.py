"""The words that SQLite runs with every change: our tables in the file, and the triggers of one table.

From watching.py, which decides when; run by whoever writes to the file, with whatever SQLite it brings. So a trigger
uses nothing that an old SQLite lacks, keeps every value as it is (no JSON, which has no blobs and rounds fractions),
and stays valid when its table changes: this is the one part of DoLake that could break somebody else's program.

Two oddities carry that:

- `FROM t AS _r NATURAL LEFT JOIN (SELECT NULL AS "a", NULL AS "b")`: a name that the table has is the table's; one that
  was dropped since is NULL, instead of an error that would make `ALTER TABLE t DROP COLUMN` fail. `(SELECT old."a")`
  with the same list as `old` does it for the row as it was. RENAME COLUMN rewrites the names, as in any trigger.
- The new image is the row as it is in the table, not NEW: a trigger of the user's that fires before ours may have
  changed it since, and its event is already behind us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dolake.sources.sqlite.tables import PREFIX, Shape, quoted

INSERT, UPDATE_FULL, DELETE, COPY, SUSPECT, CONTROL, GONE = range(1, 8)
UPDATE = 10
"""What an event is. UPDATE has the old value only of columns that changed. SUSPECT: a REPLACE may have deleted this
row. CONTROL: JSON about a table. UPDATE_FULL, COPY and GONE were written by format 1, and are still read."""

WAS_NULL = bytes.fromhex("5f646f6c616b655f6e756c6c")
"""In an UPDATE the old value that was NULL; NULL itself says that the column did not change."""

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"
OUTBOX = f"{PREFIX}outbox"
OUTBOX_HEAD = ("seq", "at", "shape", "op", "k", "j")
_WIDE = 400
"""Above so many columns a trigger names them directly: SQLite bounds how deep an expression is."""


def outbox_table(width: int) -> str:
    """Our one table. Values have no declared type, so that SQLite keeps each as it is.

    seq > 0: the events, in the order of their transactions. seq = 0: the head note; seq = -n: shape n, as JSON in v0.


    Not AUTOINCREMENT, which writes one page more with every transaction: the newest row is never deleted instead, and
    SQLite numbers the next one after it.
    """
    values = "".join(f", v{index}" for index in range(width))
    return f"CREATE TABLE {OUTBOX} (seq INTEGER PRIMARY KEY, at INTEGER, shape INTEGER, op INTEGER, k, j{values})"


def value_columns(start: int, end: int) -> str:
    return ", ".join(f"v{index}" for index in range(start, end))


def trigger_name(shape_id: int, event: str) -> str:
    return f"{PREFIX}{shape_id}_{event}"


def statements_for(shape_id: int, shape: Shape) -> Iterator[str]:
    """All statements that make the triggers of a table.

    VACUUM gives new rowids to rows without a key. It also writes SQLite's list of triggers anew, without gaps: so a gap
    between our first two triggers shows whether there was a VACUUM since (see watching.was_vacuumed).
    """
    first, *others = triggers_of(shape_id, shape)
    yield first
    gap = f"{PREFIX}{shape_id}_gap"
    if shape.has_rowid_in_key:
        yield f"CREATE TRIGGER {gap} AFTER DELETE ON {quoted(shape.name)} BEGIN SELECT 1; END"
    for index, statement in enumerate(others):
        yield statement
        if index == 0 and shape.has_rowid_in_key:
            yield f"DROP TRIGGER {gap}"


def triggers_of(shape_id: int, shape: Shape) -> Iterator[str]:
    """The CREATE TRIGGER statements for a table."""
    width = len(shape.columns)
    table = quoted(shape.name)
    is_wide = width > _WIDE
    blanks = ", ".join(f"NULL AS {quoted(name)}" for name in shape.names)
    row = f"{table} AS _r" if is_wide else f"{table} AS _r NATURAL LEFT JOIN (SELECT {blanks}) AS old"
    new = _numbered([f"_r.{quoted(name)}" if is_wide else quoted(name) for name in shape.names])
    old = ", ".join(f"old.{quoted(name)}" if is_wide else f"(SELECT old.{quoted(name)})" for name in shape.names)
    has_k = shape.has_rowid_in_key
    k, k_new, k_old = (", k", f", new.{shape.rowid}", f", old.{shape.rowid}") if has_k else ("", "", "")
    if has_k and not is_wide:
        k_old = f", (SELECT old.{shape.rowid})"
    values = f"at, shape, op{k}, {value_columns(0, width)}"

    def head(event: str, when: str, condition: str = "") -> str:
        return f"CREATE TRIGGER {trigger_name(shape_id, event)} {when} ON {table} {condition} BEGIN\n"

    yield (
        f"{head('insert', 'AFTER INSERT')}  INSERT INTO {OUTBOX} ({values})\n"
        f"  SELECT {NOW_MS}, {shape_id}, {INSERT}{k_new}, {new}\n  FROM {row} WHERE {_same_row(shape)};\nEND"
    )
    j, j_old = (", j", k_old) if has_k else ("", "")
    was = ", ".join(_changed(name, is_wide=is_wide) for name in shape.names)
    yield (
        f"{head('update', 'AFTER UPDATE')}  INSERT INTO {OUTBOX} (at, shape, op{k}{j}, {value_columns(0, 2 * width)})\n"
        f"  SELECT {NOW_MS}, {shape_id}, {UPDATE}{k_new}{j_old}, {new}, {was}\n  FROM {row} WHERE {_same_row(shape)};\n"
        f"{_moved(shape_id, shape, values, k_old, old, blanks)}END"
    )
    source = "" if is_wide else f" FROM (SELECT {blanks}) AS old"
    yield (
        f"{head('delete', 'AFTER DELETE')}  INSERT INTO {OUTBOX} ({values})\n"
        f"  SELECT {NOW_MS}, {shape_id}, {DELETE}{k_old}, {old}{source};\nEND"
    )
    if shape.uniques:
        yield f"{head('before_insert', 'BEFORE INSERT')}{_suspects(shape_id, shape)}END"
        named = ", ".join(dict.fromkeys(quoted(name) for unique in shape.uniques for name, _ in unique))
        of = "" if shape.is_unique_by_others else f" OF {named}"
        yield f"{head('before_update', f'BEFORE UPDATE{of}')}{_suspects(shape_id, shape)}END"
    if shape.key and has_k:
        # Whoever names a rowid replaces the row that has it, whatever that row's key is. Nobody does but by hand.
        rowid = shape.rowid
        yield f"{head('before_rowid', 'BEFORE INSERT', f'WHEN new.{rowid} <> -1')}{_with_rowid(shape_id, shape)}END"
        moved = f"WHEN new.{rowid} <> old.{rowid}"
        yield f"{head('before_move', 'BEFORE UPDATE', moved)}{_with_rowid(shape_id, shape)}END"


def _changed(name: str, *, is_wide: bool) -> str:
    """The old value if it was another, NULL if not. A large text that stays is not written a second time."""
    old, new = (
        (f"old.{quoted(name)}", f"_r.{quoted(name)}") if is_wide else (f"(SELECT old.{quoted(name)})", quoted(name))
    )
    mark = f"x'{WAS_NULL.hex()}'"
    return f"nullif(ifnull({old}, {mark}), ifnull({new}, {mark}))"


def _same_row(shape: Shape) -> str:
    if shape.rowid:
        return f"_r.{shape.rowid} = new.{shape.rowid}"
    return " AND ".join(f"_r.{quoted(shape.names[index])} = new.{quoted(shape.names[index])}" for index in shape.key)


def _moved(shape_id: int, shape: Shape, values: str, k_old: str, old: str, blanks: str) -> str:
    """Where a trigger of the user's has taken the row away under its new key already, the old key is free, too."""
    keys = [quoted(shape.names[index]) for index in shape.key] or [str(shape.rowid)]
    has_moved = " OR ".join(f"(SELECT old.{key}) IS NOT new.{key}" for key in keys)
    source = "" if len(shape.columns) > _WIDE else f" FROM (SELECT {blanks}) AS old"
    return (
        f"  INSERT INTO {OUTBOX} ({values})\n  SELECT {NOW_MS}, {shape_id}, {SUSPECT}{k_old}, {old}{source}\n"
        f"  WHERE ({has_moved}) AND NOT EXISTS (SELECT 1 FROM {quoted(shape.name)} AS _r WHERE {_same_row(shape)});\n"
    )


def _suspects(shape_id: int, shape: Shape) -> str:
    """Rows that a REPLACE would delete without a word, because they have what is unique in the new one."""
    statements = []
    has_k = shape.has_rowid_in_key
    k, k_row = (", k", f", _r.{shape.rowid}") if has_k else ("", "")
    keys = [shape.rowid] if shape.rowid else [quoted(shape.names[index]) for index in shape.key]
    own = " AND ".join(
        f"_r.{key} = (SELECT new.{key}) COLLATE BINARY" for key in keys
    )  # a key in other case is another
    for unique in shape.uniques:
        blanks = ", ".join(f"NULL AS {quoted(name)}" for name, _ in unique)
        same = " AND ".join(
            f"{quoted(name)} = (SELECT new.{quoted(name)}) COLLATE {quoted(coll)}" for name, coll in unique
        )
        key = "".join(f", _r.{quoted(shape.names[index])}" for index in shape.key)
        places = "".join(f", v{index}" for index in shape.key)
        statements.append(
            f"  INSERT INTO {OUTBOX} (at, shape, op{k}{places})\n  SELECT {NOW_MS}, {shape_id}, {SUSPECT}{k_row}{key}\n"
            f"  FROM {quoted(shape.name)} AS _r NATURAL LEFT JOIN (SELECT {blanks}) AS new\n"
            f"  WHERE {same} AND NOT ({own});\n"
        )
    return "".join(statements)


def _with_rowid(shape_id: int, shape: Shape) -> str:
    """The row that has the new one's rowid now."""
    key = "".join(f", _r.{quoted(shape.names[index])}" for index in shape.key)
    places = "".join(f", v{index}" for index in shape.key)
    return (
        f"  INSERT INTO {OUTBOX} (at, shape, op, k{places})\n"
        f"  SELECT {NOW_MS}, {shape_id}, {SUSPECT}, _r.{shape.rowid}{key}\n"
        f"  FROM {quoted(shape.name)} AS _r WHERE _r.{shape.rowid} = new.{shape.rowid};\n"
    )


# --- which columns a trigger reads now -------------------------------------------------------------------------------

_NAMED = re.compile(r'/\*(\d+)\*/ (?:_r\.)?("(?:[^"]|"")*"|[^\s,]+)')


def _numbered(names: Sequence[str]) -> str:
    return ", ".join(f"/*{index}*/ {name}" for index, name in enumerate(names))


def names_in_trigger(sql: str) -> list[str]:
    """What the columns of an insert trigger are called by now: SQLite has rewritten those that were renamed."""
    found = {int(index): name for index, name in _NAMED.findall(sql)}
    return [_unquoted(found[index]) for index in sorted(found)]


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
