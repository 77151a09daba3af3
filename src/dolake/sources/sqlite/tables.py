"""What a SQLite file says about its tables: columns, keys, unique indexes; and which tables cannot be followed.

From SQLite's own pragmas; to triggers.py and values.py as a Shape, which is kept in the file under a number: events
name that number, so that each is read by the columns that its table had.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from dolake.sources.sqlite.naming import lake_name

PREFIX = "_dolake_"
COLUMNS_MAX = 990
"""Two images of a row and what surrounds them fit into SQLite's 2,000 columns of a table."""
_SHADOWS = (
    "data", "idx", "content", "docsize", "config", "segments", "segdir", "stat", "node", "parent", "rowid"
)  # fmt: skip
"""How the tables end that SQLite's own virtual tables keep their data in."""


class Column(msgspec.Struct, frozen=True):
    """A column as it is declared. What it is in the lake is chosen from its values (forms.py)."""

    name: str
    type: str = ""
    """Format 1 kept the lake's type here."""
    nullable: bool = True
    is_text: bool = False
    """Whether SQLite makes numbers into texts here, so that 7 and '7' cannot both be keys."""
    declared: str = ""
    """Its type, constraint and default as declared: where these differ, it is another column under the same name."""
    declared_type: str = ""


class Shape(msgspec.Struct, frozen=True):
    """A table as it was at some time."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    """Which columns are the primary key, in its order; none where rows are known by their rowid."""
    rowid: str | None
    """The name by which the rowid can be asked for; None where the table has none."""
    is_key_rowid: bool = False
    """The one key column is the rowid itself (INTEGER PRIMARY KEY): then VACUUM does not change it."""
    uniques: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Other unique indexes, each as columns with their collations: REPLACE deletes rows by them, without a trigger."""

    is_unique_by_others: bool = False
    """Whether a row can become unique's victim or rival by columns that no unique index names: partial, generated."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def has_rowid_in_key(self) -> bool:
        """Whether a row's rowid may be its key: always, or where a part of the primary key is NULL."""
        return self.rowid is not None and not self.is_key_rowid


_ONLY_BY_NAME = {
    "alembic_version": "a migration of Alembic writes it after it has dropped our table, and would fail; "
    "choose it by its name to follow it",
}
"""Tables that a pattern does not choose, each with why."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def list_tables(
    db: sqlite3.Connection, patterns: Sequence[str], excluded: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The tables that can be followed and are wanted, and of the others those that a person may ask about, with why."""
    rows = db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema WHERE type IN ('table', 'view')")
    found, left_out, virtual = [], [], []
    for kind, name, sql in rows.fetchall():
        if name.startswith(("sqlite_", PREFIX)):
            continue
        if not is_wanted(name, patterns) or is_wanted(name, excluded):
            continue
        if kind == "view":
            left_out.append(f"{name}: a view has no rows of its own")
        elif reason := _ONLY_BY_NAME.get(name.casefold()) if name not in patterns else None:
            left_out.append(f"{name}: {reason}")
        elif re.match(r"create\s+virtual", sql, re.IGNORECASE):
            virtual.append(name)
            left_out.append(f"{name}: triggers cannot watch a virtual table")
        else:
            found.append(name)
    shadows = {name for name in found if _is_shadow(name, virtual)}
    left_out += [f"{name}: it belongs to a virtual table" for name in sorted(shadows)]
    chosen, taken = _of_own_name(set(found) - shadows)
    return chosen, left_out + taken


def _of_own_name(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """One table for each name in the lake, whoever has it as its own first; and in words the others."""
    owners: dict[str, str] = {}
    left_out = []
    for name in sorted(names, key=lambda each: (each != lake_name(each), each)):
        owner = owners.setdefault(lake_name(name).casefold(), name)
        if owner != name:
            left_out.append(f"{name}: in the lake it would be {lake_name(name)}, as {owner} is already")
    return sorted(owners.values()), left_out


def is_wanted(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def _is_shadow(name: str, virtual: Iterable[str]) -> bool:
    return any(name.casefold() in {f"{each}_{suffix}".casefold() for suffix in _SHADOWS} for each in virtual)


def shape_of(db: sqlite3.Connection, table: str) -> Shape | str:
    """The table as it is now, or in words why it cannot be followed."""
    try:
        shape = _shape_of(db, table)
        if isinstance(shape, Shape):
            db.execute(f"EXPLAIN {copy_statement(shape)}", [1]).fetchall()
            for name in (shape.names[index] for index in shape.key):
                db.execute(f"EXPLAIN SELECT 1 FROM {quoted(shape.name)} WHERE {quoted(name)} = ?", [1]).fetchall()
    except sqlite3.OperationalError as error:
        # A collation or a module that only the application has: that is this table's problem alone.
        return f"{table}: it cannot be read here: {error}"
    return shape


def copy_statement(shape: Shape, *, after: str = "", filling: str | None = None) -> str:
    """The statement that reads rows in the order of their key: key, rowid or NULL, whether it is wanted, columns."""
    key = ", ".join(key_names(shape))
    columns = ", ".join(quoted(name) for name in shape.names)
    where = f"WHERE {after} " if after else ""
    return (
        f"SELECT {key}, {shape.rowid or 'NULL'}, {f'({filling})' if filling else '1'}, {columns} "
        f"FROM {quoted(shape.name)} {where}ORDER BY {key} LIMIT ?"
    )


def key_names(shape: Shape) -> list[str]:
    """By what rows are ordered for a copy: the rowid where there is one."""
    return [shape.rowid] if shape.rowid else [quoted(shape.names[index]) for index in shape.key]


def _shape_of(db: sqlite3.Connection, table: str) -> Shape | str:
    rows = db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    rows = [row for row in rows if row[6] != 1]
    if len(rows) > COLUMNS_MAX:
        return f"{table}: {len(rows)} columns are more than {COLUMNS_MAX}"
    key = tuple(index for index, row in sorted(enumerate(rows), key=lambda each: each[1][5]) if row[5])
    rowid = _rowid_name(db, table, {row[1].casefold() for row in rows})
    if rowid is None and not key:
        return f"{table}: it has no primary key, and its columns hide the rowid"
    is_key_rowid = rowid is not None and len(key) == 1 and _is_rowid(db, table, rows[key[0]])
    columns = tuple(
        Column(
            row[1],
            "",
            not row[3] and not row[5],
            _is_text(row[2]),
            f"{row[2]} {row[3]} {row[4]}",
            row[2],
        )
        for row in rows
    )
    if rowid is None and _has_rowid(db, table):
        return f"{table}: its columns hide the rowid"
    generated = {row[1] for row in rows if row[6]}
    uniques, is_partial = _uniques(db, table)
    is_by_others = is_partial or any(name in generated for unique in uniques for name, _ in unique)
    return Shape(table, columns, key, rowid, is_key_rowid, uniques, is_by_others)


def _has_rowid(db: sqlite3.Connection, table: str) -> bool:
    indexes = db.execute(f"PRAGMA index_list({quoted(table)})").fetchall()
    for index in (each[1] for each in indexes if each[3] == "pk"):
        # The index of a WITHOUT ROWID table is the table: it has no entry of its own among the schema's pages.
        return bool(db.execute("SELECT 1 FROM sqlite_schema WHERE name = ? AND type = 'index'", (index,)).fetchone())
    return True


def _rowid_name(db: sqlite3.Connection, table: str, taken: set[str]) -> str | None:
    if not _has_rowid(db, table):
        return None
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)


def _is_rowid(db: sqlite3.Connection, table: str, row: tuple[object, ...]) -> bool:
    """`INTEGER PRIMARY KEY`, to the letter, is the rowid; it then has no index of its own."""
    indexes = db.execute(f"PRAGMA index_list({quoted(table)})").fetchall()
    return str(row[2]).casefold() == "integer" and not any(each[3] == "pk" for each in indexes)


def _is_text(declared: str) -> bool:
    word = declared.upper()
    return "INT" not in word and any(part in word for part in ("CHAR", "CLOB", "TEXT"))


def _uniques(db: sqlite3.Connection, table: str) -> tuple[tuple[tuple[tuple[str, str], ...], ...], bool]:
    """The unique indexes, and whether one of them has only some of the rows."""
    found, is_partial = [], False
    for index in db.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if not index[2]:
            continue
        parts = [row for row in db.execute(f"PRAGMA index_xinfo({quoted(index[1])})").fetchall() if row[5]]
        if index[3] == "pk" and all(row[4].upper() == "BINARY" for row in parts):
            continue  # a row that is replaced by its primary key has the same key afterwards, unless case is ignored
        if all(row[1] >= 0 for row in parts):  # an expression has no column, and NEW cannot be asked for it
            found.append(tuple((row[2], row[4]) for row in parts))
            is_partial = is_partial or bool(index[4])
    return tuple(sorted(found)), is_partial
