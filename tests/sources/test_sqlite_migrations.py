"""Migrations of a SQLite file between two looks of its source: names that change places, rows that vanish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dolake.sources.sqlite import SqliteSource, enable_cdc
from tests.support.followed import Followed

LATER = "INSERT INTO {} VALUES ({}, 'later')"
T = "CREATE TABLE t (id INTEGER PRIMARY KEY, v)"


def do(app: Followed, *statements: str) -> None:
    for statement in statements:
        app.do(statement)


def assert_same(app: Followed, *tables: str) -> None:
    app.listen()
    for table in tables:
        want = [{name: value for name, value in row.items() if value is not None} for row in app.rows(table)]
        assert app.mirror.rows(table) == sorted(want, key=repr)


def assert_one_trigger_for_each(app: Followed) -> None:
    """And none that nobody knows."""
    found = app.do("SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE '%insert' ORDER BY 1")
    assert [name for (name,) in found] == sorted(app.standing.state["tables"])


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_log_that_is_rotated_again_and_again(app: Followed) -> None:
    do(app, "CREATE TABLE log (id INTEGER PRIMARY KEY, v)")
    enable_cdc(app.path)
    do(app, "INSERT INTO log VALUES (1, 'a')")
    app.listen()
    for turn in range(2, 5):
        do(
            app,
            "DROP TABLE IF EXISTS log_old",
            "ALTER TABLE log RENAME TO log_old",
            "CREATE TABLE log (id INTEGER PRIMARY KEY, v)",
            LATER.format("log", turn),
            LATER.format("log_old", turn * 10),
        )
        assert_same(app, "log", "log_old")
        assert_one_trigger_for_each(app)
        do(app, LATER.format("log", turn * 100), "UPDATE log_old SET v = v || '!'")
        assert_same(app, "log", "log_old")


def test_a_table_rebuilt_beside_itself_has_its_triggers_once(app: Followed) -> None:
    do(app, T, "INSERT INTO t VALUES (1, 1)")
    enable_cdc(app.path)
    app.listen()
    do(app, "CREATE TABLE t_new (id INTEGER PRIMARY KEY, v, w)", "INSERT INTO t_new SELECT id, v, 9 FROM t")
    app.listen()
    do(app, "DROP TABLE t", "ALTER TABLE t_new RENAME TO t")
    assert_same(app, "t")
    assert_one_trigger_for_each(app)
    do(app, "ALTER TABLE t ADD COLUMN z", "UPDATE t SET z = 8")
    assert_same(app, "t")
    do(app, "INSERT INTO t VALUES (5, 5, 5, 5)")
    assert len(app.listen()) == 1
    assert_same(app, "t")


@pytest.mark.parametrize(
    "renames",
    [[("a", "x"), ("b", "a"), ("x", "b")], [("b", "c"), ("a", "b")], [("a", "z"), ("b", "a")]],
    ids=["swap", "chain", "chain the other way"],
)
def test_tables_that_take_each_others_names(app: Followed, renames: Sequence[tuple[str, str]]) -> None:
    for name, number in (("a", 1), ("b", 2)):
        do(app, f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v)", LATER.format(name, number))
    enable_cdc(app.path)
    app.listen()
    do(app, *(f"ALTER TABLE {old} RENAME TO {new}" for old, new in renames))
    tables = [
        row[0] for row in app.do("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB '_*[_]*'")
    ]
    assert len(tables) == 2
    assert_same(app, *tables)
    assert_one_trigger_for_each(app)
    for table in tables:
        do(app, LATER.format(table, 10))
    assert_same(app, *tables)


def test_a_table_that_is_followed_again_loses_the_rows_that_were_deleted_meanwhile(app: Followed) -> None:
    do(app, T, "CREATE TABLE u (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    enable_cdc(app.path)
    app.listen()
    enable_cdc(app.path, "u")
    app.listen()
    do(app, "DELETE FROM t WHERE id = 1")
    enable_cdc(app.path, "*")
    assert_same(app, "t")


# --- columns ---------------------------------------------------------------------------------------------------------

COLUMNS = {
    "swap": ["RENAME COLUMN a TO x", "RENAME COLUMN b TO a", "RENAME COLUMN x TO b"],
    "chain": ["RENAME COLUMN b TO y", "RENAME COLUMN a TO b"],
    "chain of three": ["RENAME COLUMN c TO d", "RENAME COLUMN b TO c", "RENAME COLUMN a TO b"],
    "dropped, and its name taken": ["DROP COLUMN b", "RENAME COLUMN a TO b"],
    "dropped, and its name taken from behind": ["DROP COLUMN a", "RENAME COLUMN b TO a"],
    "renamed, and its name made anew": ["RENAME COLUMN a TO x", "ADD COLUMN a"],
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("is_changed_meanwhile", [False, True])
def test_columns_that_take_each_others_names(app: Followed, kind: str, is_changed_meanwhile: bool) -> None:
    do(app, "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)", "INSERT INTO t VALUES (1, 'a', 'b', 'c')")
    enable_cdc(app.path)
    app.listen()
    for words in COLUMNS[kind]:
        do(app, f"ALTER TABLE t {words}")
        if is_changed_meanwhile:
            do(app, "UPDATE t SET id = id + 1", "INSERT INTO t (id) VALUES (100 + (SELECT max(id) FROM t))")
    assert_same(app, "t")
    do(app, "INSERT INTO t (id, b) VALUES (77, 'later')" if "behind" not in kind else "INSERT INTO t (id) VALUES (77)")
    assert_same(app, "t")


def test_a_second_new_column_while_the_first_is_copied_loses_no_value(app: Followed) -> None:
    do(app, T, "BEGIN")
    app.db.executemany("INSERT INTO t VALUES (?, 1)", [(number,) for number in range(1, 3001)])
    do(app, "COMMIT")
    enable_cdc(app.path)
    app.listen()
    do(app, "ALTER TABLE t ADD COLUMN a", "UPDATE t SET a = 1 WHERE id = 3000")
    source = SqliteSource(app.path)
    source.resume(app.standing)
    while piece := source.look():
        app.take(piece)
        if piece.changes:
            break
    source.close()
    do(app, "ALTER TABLE t ADD COLUMN b", "UPDATE t SET b = 5 WHERE id = 10")
    assert_same(app, "t")


def test_a_new_column_and_a_new_name_while_the_table_is_copied_lose_no_value(app: Followed) -> None:
    do(app, T, "BEGIN")
    app.db.executemany("INSERT INTO t VALUES (?, 1)", [(number,) for number in range(1, 3001)])
    do(app, "COMMIT")
    enable_cdc(app.path)
    source = SqliteSource(app.path)
    source.resume(app.standing)
    while piece := source.look():
        app.take(piece)
        if piece.changes:
            break
    source.close()
    do(app, "ALTER TABLE t ADD COLUMN n", "UPDATE t SET n = 5 WHERE id = 1", "ALTER TABLE t RENAME TO u")
    assert_same(app, "u")


# --- what REPLACE may have deleted -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", " WITHOUT ROWID"])
def test_a_row_that_may_be_gone_is_looked_for_under_the_new_name_of_its_key(app: Followed, suffix: str) -> None:
    do(app, f"CREATE TABLE t (id TEXT PRIMARY KEY, email UNIQUE){suffix}", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    enable_cdc(app.path)
    app.listen()
    do(app, "INSERT OR IGNORE INTO t VALUES (9, 'a')", "INSERT OR REPLACE INTO t VALUES (8, 'b')")
    do(app, "ALTER TABLE t RENAME COLUMN id TO pk")
    assert_same(app, "t")


def test_rows_replaced_by_a_unique_index_that_is_new(app: Followed) -> None:
    do(app, "CREATE TABLE t (id INTEGER PRIMARY KEY, email)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    enable_cdc(app.path)
    app.listen()
    do(app, "CREATE UNIQUE INDEX u ON t (email)", "INSERT OR REPLACE INTO t VALUES (3, 'a')")
    assert_same(app, "t")


REPLACED = {
    "a key that ignores case": (
        "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v) WITHOUT ROWID",
        "INSERT INTO t VALUES ('A', 1), ('b', 1)",
        "REPLACE INTO t VALUES ('a', 2)",
    ),
    "an index of some rows": (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b); CREATE UNIQUE INDEX u ON t (a) WHERE b = 1",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'a', 0)",
        "UPDATE OR REPLACE t SET b = 1 WHERE id = 2",
    ),
    "a generated column": (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b AS (a * 2) STORED UNIQUE)",
        "INSERT INTO t (id, a) VALUES (1, 1), (2, 2)",
        "UPDATE OR REPLACE t SET a = 1 WHERE id = 2",
    ),
    "a rowid that is named": (
        "CREATE TABLE t (id TEXT PRIMARY KEY, v)",
        "INSERT INTO t VALUES ('a', 1), ('b', 2)",
        "INSERT OR REPLACE INTO t (rowid, id, v) VALUES (1, 'c', 3)",
    ),
    "a rowid that is moved to": (
        "CREATE TABLE t (id TEXT PRIMARY KEY, v)",
        "INSERT INTO t VALUES ('a', 1), ('b', 2)",
        "UPDATE OR REPLACE t SET rowid = 1 WHERE id = 'b'",
    ),
    "1 and 1.0": (
        "CREATE TABLE t (k PRIMARY KEY, v)",
        "INSERT INTO t VALUES (1, 1), (1152921504606846976, 1), (3, 1)",
        "REPLACE INTO t VALUES (1.0, 2), (1152921504606846976.0, 2)",
    ),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_rows_that_replace_deletes_are_seen_by(app: Followed, kind: str) -> None:
    tables, rows, replacing = REPLACED[kind]
    do(app, *tables.split(";"))
    enable_cdc(app.path)
    do(app, rows)
    assert_same(app, "t")
    do(app, replacing)
    assert_same(app, "t")
