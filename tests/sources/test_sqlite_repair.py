"""What other programs do to a followed file: VACUUM, dropped triggers and tables, their own collations and modules."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress

import pytest

from dolake.errors import Unavailable
from dolake.sources.sqlite import SqliteSource, copying, disable_cdc, enable_cdc, has_traces
from dolake.sources.sqlite import source as source_module
from tests.support.followed import Followed

KINDS = {
    "integer key": "id INTEGER PRIMARY KEY, a",
    "text key": "id TEXT PRIMARY KEY, a",
    "key with null": "id TEXT PRIMARY KEY, a",
    "no key": "id, a",
    "without rowid": "id INTEGER PRIMARY KEY, a",
}


def make(app: Followed, kind: str, rows: int = 40) -> None:
    app.do(f"CREATE TABLE t ({KINDS[kind]}){' WITHOUT ROWID' if kind == 'without rowid' else ''}")
    for number in range(rows):
        app.do("INSERT INTO t VALUES (?, ?)", None if kind == "key with null" and number % 2 else number, number)
    app.do("DELETE FROM t WHERE a < 5")


def by_value(rows: list[dict[str, object]]) -> list[str]:
    return sorted(repr((row["id"], row["a"])) for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_vacuum_while_a_table_is_copied(app: Followed, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_ROWS_MAX", 5)
    monkeypatch.setattr(source_module, "CHUNK_TIME_MAX_S", 0)
    make(app, kind)
    enable_cdc(app.path)
    for _ in range(3):
        source = SqliteSource(app.path)
        source.resume(app.standing)
        for turn in range(4):
            if turn == 2:
                app.do("VACUUM")
                app.do("UPDATE t SET a = a + 1000 WHERE a % 7 = 1")
            if source.has_work() and (piece := source.look()):
                app.take(piece)
        source.close()
    app.assert_same("t")
    app.do("VACUUM")
    app.do("DELETE FROM t WHERE a % 3 = 0")
    app.do("UPDATE t SET a = -a WHERE a % 2 = 0")
    app.assert_same("t")


@pytest.mark.parametrize("kind", KINDS)
def test_vacuum_copies_only_tables_whose_keys_it_changes(app: Followed, kind: str) -> None:
    make(app, kind)
    enable_cdc(app.path)
    app.listen()
    count = len(app.events)
    app.do("VACUUM")
    app.listen()
    is_copied = kind in ("no key", "key with null")
    assert (len(app.events) > count) == is_copied


@pytest.mark.parametrize("pattern", ["%insert", "%update", "%delete", "%before%", "%"])
def test_dropped_triggers_are_put_back_and_what_was_missed_is_copied(app: Followed, pattern: str) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    app.do("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    enable_cdc(app.path)
    app.listen()
    for (name,) in app.do("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE ?", pattern):
        app.do(f"DROP TRIGGER {name}")
    app.do("INSERT INTO t VALUES (4, 4)")
    app.do("DELETE FROM t WHERE id = 1")
    app.do("REPLACE INTO t VALUES (5, 2)")
    app.do("UPDATE t SET a = 30 WHERE id = 3")
    app.assert_same("t")
    app.do("DELETE FROM t WHERE id = 4")
    app.assert_same("t")


def drop_outbox(app: Followed) -> None:
    app.do("DROP TABLE _dolake_outbox")


def empty_outbox(app: Followed) -> None:
    app.do("DELETE FROM _dolake_outbox")


def drop_half_of_the_triggers(app: Followed) -> None:
    for (name,) in app.do("SELECT name FROM sqlite_schema WHERE type = 'trigger'")[::2]:
        app.do(f"DROP TRIGGER {name}")


def drop_outbox_and_triggers(app: Followed) -> None:
    drop_outbox(app)
    for (name,) in app.do("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
        app.do(f"DROP TRIGGER {name}")


def damage_the_head(app: Followed) -> None:
    app.do("UPDATE _dolake_outbox SET v0 = 'no JSON' WHERE seq = 0")


def drop_the_shapes(app: Followed) -> None:
    app.do("DELETE FROM _dolake_outbox WHERE seq < 0")


def another_outbox(app: Followed) -> None:
    drop_outbox(app)
    app.do("CREATE TABLE _dolake_outbox (something)")


def a_view_over_it(app: Followed) -> None:
    app.do("CREATE VIEW _dolake_view AS SELECT * FROM _dolake_outbox")
    app.do("CREATE INDEX _dolake_index ON _dolake_outbox (at)")


BROKEN = [
    drop_outbox, empty_outbox, drop_half_of_the_triggers, drop_outbox_and_triggers, damage_the_head, drop_the_shapes,
    another_outbox, a_view_over_it,
]  # fmt: skip


@pytest.mark.parametrize("break_it", BROKEN)
def test_every_trace_goes_from_any_state(app: Followed, break_it: Callable[[Followed], None]) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    before = app.do("SELECT name, sql FROM sqlite_schema ORDER BY name")
    enable_cdc(app.path)
    break_it(app)
    assert has_traces(app.path) == (break_it is not drop_outbox_and_triggers)
    disable_cdc(app.path)
    assert not has_traces(app.path)
    assert app.do("SELECT name, sql FROM sqlite_schema ORDER BY name") == before
    app.do("INSERT INTO t VALUES (1, 1)")


@pytest.mark.parametrize("break_it", BROKEN)
def test_enabling_makes_any_state_a_right_one(app: Followed, break_it: Callable[[Followed], None]) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    app.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    enable_cdc(app.path)
    app.listen()
    break_it(app)
    enable_cdc(app.path)
    app.do("SELECT count(*) FROM t")
    app.do("INSERT INTO t VALUES (3, 3)")
    app.do("DELETE FROM t WHERE id = 1")
    app.assert_same("t")


@pytest.mark.parametrize("break_it", [drop_outbox, empty_outbox, drop_half_of_the_triggers, damage_the_head])
def test_a_running_source_mends_the_file(app: Followed, break_it: Callable[[Followed], None]) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    app.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    enable_cdc(app.path, ["t"])
    app.do("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    app.listen()
    source = SqliteSource(app.path)
    source.resume(app.standing)
    while source.has_work() and (piece := source.look()):
        app.take(piece)
    break_it(app)
    with suppress(Unavailable):  # the source is opened again
        while source.has_work() and (piece := source.look()):
            app.take(piece)
    source.close()
    app.do("SELECT count(*) FROM t")
    app.do("INSERT INTO t VALUES (3, 3)")
    app.do("UPDATE t SET a = 10 WHERE id = 1")
    app.assert_same("t")
    assert set(app.mirror.tables) == {"t"}, "what was chosen stays chosen"


# --- what only the application has -----------------------------------------------------------------------------------


def with_collation(app: Followed) -> None:
    app.db.create_collation("unicase", lambda one, two: (one.lower() > two.lower()) - (one.lower() < two.lower()))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE odd (id INTEGER PRIMARY KEY, name TEXT COLLATE unicase UNIQUE)",
        "CREATE TABLE odd (name TEXT COLLATE unicase PRIMARY KEY, a) WITHOUT ROWID",
        "CREATE TABLE odd (name TEXT COLLATE unicase PRIMARY KEY, a)",
    ],
)
def test_a_collation_of_the_application_costs_at_most_its_table(app: Followed, statement: str) -> None:
    with_collation(app)
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do(statement)
    found = enable_cdc(app.path)
    assert "t" in [each.table for each in found.tables]
    app.do("INSERT INTO t VALUES (1, 1)")
    app.do("INSERT INTO odd VALUES (1, 'x')")
    app.do("REPLACE INTO odd VALUES (1, 'X')")
    app.assert_same("t")
    app.do("ALTER TABLE t ADD COLUMN b")
    app.do("UPDATE t SET b = 2")
    app.assert_same("t")
    if "odd" in [each.table for each in found.tables]:
        app.assert_same("odd")
    else:
        assert any(words.startswith("odd: ") for words in found.left_out)
    disable_cdc(app.path)


def test_a_table_that_gets_a_collation_later_costs_only_itself(app: Followed) -> None:
    with_collation(app)
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do("CREATE TABLE odd (id INTEGER PRIMARY KEY, a)")
    enable_cdc(app.path)
    app.listen()
    app.do("DROP TABLE odd")
    app.do("CREATE TABLE odd (name TEXT COLLATE unicase PRIMARY KEY, a) WITHOUT ROWID")
    app.do("INSERT INTO odd VALUES ('a', 1)")
    app.do("INSERT INTO t VALUES (1, 1)")
    app.assert_same("t")


def test_an_expression_index_on_a_function_of_the_application_costs_at_most_its_table(app: Followed) -> None:
    app.db.create_function("fold", 1, lambda value: str(value).lower(), deterministic=True)
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do("CREATE TABLE odd (id INTEGER PRIMARY KEY, a, g AS (fold(a)))")
    app.do("CREATE INDEX i ON odd (fold(a))")
    enable_cdc(app.path)
    app.do("INSERT INTO t VALUES (1, 1)")
    app.do("INSERT INTO odd (id, a) VALUES (1, 'X')")
    app.assert_same("t")
    app.do("ALTER TABLE t RENAME COLUMN a TO b")
    app.do("INSERT INTO t VALUES (2, 2)")
    app.assert_same("t")
    disable_cdc(app.path)
    app.do("INSERT INTO odd (id, a) VALUES (2, 'X')")


def test_a_virtual_table_of_a_module_that_is_not_here_costs_only_itself(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do("PRAGMA writable_schema = ON")
    app.do(
        "INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) "
        "VALUES ('table', 'vectors', 'vectors', 0, 'CREATE VIRTUAL TABLE vectors USING vec0 (a)')"
    )
    app.do("PRAGMA writable_schema = RESET")
    app.db.close()
    app.db = sqlite3.connect(app.path, isolation_level=None)
    found = enable_cdc(app.path)
    assert [each.table for each in found.tables] == ["t"]
    app.do("INSERT INTO t VALUES (1, 1)")
    app.assert_same("t")
    app.do("ALTER TABLE t ADD COLUMN b")
    app.do("UPDATE t SET b = 2")
    app.assert_same("t")
    disable_cdc(app.path)


def test_a_trigger_of_the_application_that_is_broken_costs_nothing(app: Followed) -> None:
    """SQLite refuses to rename anything while a trigger names what is not there."""
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    app.do("CREATE TABLE log (a)")
    app.do("CREATE TRIGGER mine AFTER INSERT ON log BEGIN INSERT INTO missing VALUES (1); END")
    enable_cdc(app.path)
    app.do("INSERT INTO t VALUES (1, 1)")
    app.assert_same("t")
    app.do("ALTER TABLE t ADD COLUMN b")
    app.do(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {', '.join(f'c{number}' for number in range(30))})")
    app.do("INSERT INTO wide (id, c29) VALUES (1, 2)")
    app.assert_same("wide")
    disable_cdc(app.path)
