"""A SQLite file as a source: every odd thing that SQLite allows, told so that the lake has the same rows."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dolake.errors import InvalidInput, NotFound
from dolake.sources.sqlite import SqliteSource, disable_cdc, enable_cdc, resync, status
from dolake.sources.sqlite.naming import lake_name
from tests.support.followed import Followed

# --- whoever writes --------------------------------------------------------------------------------------------------


def test_the_sqlite_command_line_and_other_processes_are_followed_too(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    enable_cdc(app.path)
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('INSERT INTO t VALUES (1, 2)'); c.commit()"
    )
    subprocess.run([sys.executable, "-c", program, str(app.path)], check=True, timeout=240)
    app.assert_same("t")
    assert len(app.rows("t")) == 1


def test_a_file_without_wal_is_followed_too(tmp_path: Path) -> None:
    app = Followed(tmp_path)
    app.do("PRAGMA journal_mode = DELETE")
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    enable_cdc(app.path)
    app.do("INSERT INTO t VALUES (1, 2)")
    app.assert_same("t")
    app.db.close()


def test_a_write_through_another_database_is_followed(app: Followed, tmp_path: Path) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    enable_cdc(app.path)
    other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    other.execute("ATTACH ? AS app", (str(app.path),))
    other.execute("CREATE TEMP TABLE t (a, b, c)")
    other.execute("INSERT INTO app.t VALUES (1, 2)")
    other.close()
    app.assert_same("t")


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = {
    "number": "id INTEGER PRIMARY KEY, a",
    "int, not the rowid": "id INT PRIMARY KEY, a",
    "descending": "id INTEGER PRIMARY KEY DESC, a",
    "text": "id TEXT PRIMARY KEY, a",
    "of two": "id INTEGER, a, PRIMARY KEY (id, a)",
    "none": "id INTEGER, a",
    "without rowid": "id INTEGER, a, PRIMARY KEY (a, id)",
    "blob": "id BLOB PRIMARY KEY, a",
    "hidden rowid": "rowid TEXT, oid TEXT, id INTEGER, a",
    "strict": "id INTEGER PRIMARY KEY, a ANY",
}


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_known_by_any_kind_of_key(app: Followed, kind: str) -> None:
    suffix = {"without rowid": " WITHOUT ROWID", "strict": " STRICT"}.get(kind, "")
    app.do(f"CREATE TABLE t ({KEYS[kind]}){suffix}")
    app.do("INSERT INTO t (id, a) VALUES (1, 'copied'), (2, 'copied'), (3, 'copied')")
    enable_cdc(app.path)
    app.do("INSERT INTO t (id, a) VALUES (4, 'x'), (5, 'y'), (6, 'z')")
    app.do("UPDATE t SET a = 'changed' WHERE id IN (1, 4)")
    app.assert_same("t")
    app.do("UPDATE t SET id = id + 10 WHERE id > 4")
    app.do("DELETE FROM t WHERE id IN (2, 15)")
    app.assert_same("t")
    assert len({event["rowId"] for event in app.events}) >= 6


def test_null_in_a_primary_key_keeps_rows_apart(app: Followed) -> None:
    app.do("CREATE TABLE t (id TEXT PRIMARY KEY, a)")
    app.do("INSERT INTO t VALUES (NULL, 1), (NULL, 2)")
    enable_cdc(app.path)
    app.do("INSERT INTO t VALUES (NULL, 3)")
    app.do("UPDATE t SET a = 20 WHERE a = 2")
    app.do("UPDATE t SET id = 'named' WHERE a = 1")
    app.assert_same("t")


def test_keys_that_look_alike_are_told_apart(app: Followed) -> None:
    app.do("CREATE TABLE t (id PRIMARY KEY, a)")
    enable_cdc(app.path)
    app.do(
        "INSERT INTO t VALUES (7, 'number'), ('7', 'text'), (x'37', 'blob'), "
        "(7.5, 'real'), ('', 'empty'), ('[7]', 'list')"
    )
    app.do("INSERT INTO t VALUES (?, 'long')", "x" * 5_000)
    app.do("INSERT INTO t VALUES (?, 'other long')", "x" * 5_001)
    app.listen()
    assert len(app.mirror.tables["t"]) == 8
    assert max(len(key) for key in app.mirror.tables["t"]) <= 4_096


def test_vacuum_gives_rows_without_a_key_new_numbers_and_they_are_copied_again(app: Followed) -> None:
    app.do("CREATE TABLE t (a)")
    app.do("INSERT INTO t VALUES (1), (2), (3), (4)")
    enable_cdc(app.path)
    app.do("DELETE FROM t WHERE a IN (1, 3)")
    app.assert_same("t")
    app.do("VACUUM")
    app.do("UPDATE t SET a = 40 WHERE a = 4")
    app.do("INSERT INTO t VALUES (5)")
    app.assert_same("t")
    count = len(app.events)
    app.do("CREATE INDEX i ON t (a)")
    app.listen()
    assert len(app.events) == count, "an index alone copies nothing"


# --- REPLACE and upserts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_recursive", [False, True])
@pytest.mark.parametrize("suffix", ["", " WITHOUT ROWID"])
def test_rows_that_replace_deletes_without_a_word_vanish(app: Followed, is_recursive: bool, suffix: str) -> None:
    app.do(f"CREATE TABLE t (id INTEGER PRIMARY KEY, email TEXT UNIQUE, a, b, UNIQUE (a, b)){suffix}")
    app.do(f"PRAGMA recursive_triggers = {int(is_recursive)}")
    app.do("INSERT INTO t VALUES (1, 'one', 1, 1), (2, 'two', 2, 2), (3, 'three', 3, 3), (4, 'four', NULL, 4)")
    enable_cdc(app.path)
    app.listen()
    app.do("INSERT OR REPLACE INTO t VALUES (9, 'one', 2, 2)")  # takes the place of two rows
    app.do("UPDATE OR REPLACE t SET email = 'three' WHERE id = 4")
    app.do("REPLACE INTO t VALUES (9, 'nine', 9, 9)")
    app.do("INSERT OR IGNORE INTO t VALUES (10, 'nine', 10, 10)")
    app.assert_same("t")
    assert [row["id"] for row in app.rows("t")] == [4, 9]


def test_replace_by_a_key_that_ignores_case(app: Followed) -> None:
    app.do("CREATE TABLE t (name TEXT COLLATE NOCASE PRIMARY KEY, a)")
    app.do("INSERT INTO t VALUES ('Anna', 1)")
    enable_cdc(app.path)
    app.listen()
    app.do("REPLACE INTO t VALUES ('ANNA', 2)")
    app.assert_same("t")


def test_upserts_and_cascades(app: Followed) -> None:
    app.do("PRAGMA foreign_keys = ON")
    app.do("CREATE TABLE parent (id INTEGER PRIMARY KEY, n UNIQUE)")
    app.do("CREATE TABLE child (id INTEGER PRIMARY KEY, p REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)")
    enable_cdc(app.path)
    app.do("INSERT INTO parent VALUES (1, 'a'), (2, 'b')")
    app.do("INSERT INTO child VALUES (10, 1), (11, 1), (12, 2)")
    app.do("INSERT INTO parent VALUES (3, 'b') ON CONFLICT (n) DO UPDATE SET n = 'bb'")
    app.do("UPDATE parent SET id = 20 WHERE id = 2")
    app.do("DELETE FROM parent WHERE id = 1")
    app.assert_same("parent")
    app.assert_same("child")


def test_triggers_of_the_user_that_change_the_row_again(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a, touched DEFAULT 0)")
    app.do(
        "CREATE TRIGGER early AFTER UPDATE OF a ON t BEGIN UPDATE t SET touched = touched + 1 WHERE id = new.id; END"
    )
    app.do(
        "CREATE TRIGGER moves AFTER INSERT ON t WHEN new.a = 'move' "
        "BEGIN UPDATE t SET id = id + 100 WHERE id = new.id; END"
    )
    enable_cdc(app.path)
    app.do(
        "CREATE TRIGGER late AFTER UPDATE OF a ON t BEGIN UPDATE t SET touched = touched + 10 WHERE id = new.id; END"
    )
    app.do("CREATE TRIGGER away AFTER UPDATE OF id ON t WHEN new.a = 'away' BEGIN DELETE FROM t WHERE id = new.id; END")
    app.do("INSERT INTO t VALUES (1, 'x', 0), (2, 'move', 0), (3, 'away', 0)")
    app.do("UPDATE t SET a = 'y' WHERE id = 1")
    app.listen()
    app.do("UPDATE t SET id = 4 WHERE id = 3")
    app.assert_same("t")


# --- values ----------------------------------------------------------------------------------------------------------


def test_values_are_what_they_were_and_types_are_declared(app: Followed) -> None:
    app.do(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, big BIGINT, r REAL, s VARCHAR(20), b BLOB, ok BOOLEAN, d DATE, "
        "at DATETIME, z TIMESTAMPTZ, j JSON, m DECIMAL(10, 2), u UUID, n, "
        "g INTEGER AS (id * 2), st TEXT AS (upper(s)) STORED)"
    )
    enable_cdc(app.path)
    app.listen()
    row = (
        1, 2**63 - 1, 0.1 + 0.2, "it's \"ä\"\n\0", b"\x00\xff", 1, "2026-01-31",
        "2026-01-31 10:00:00", "2026-01-31T10:00:00Z", '{"a": [1]}', 12.5, "00112233-4455-6677-8899-aabbccddeeff", None,
    )  # fmt: skip
    app.do("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
    (event,) = app.listen()
    assert event["after"] == {
        "id": 1, "big": 2**63 - 1, "r": 0.30000000000000004, "s": "it's \"ä\"\n\0", "b": "AP8=", "ok": True,
        "d": "2026-01-31",
        "at": "2026-01-31 10:00:00", "z": "2026-01-31T10:00:00Z", "j": '{"a": [1]}', "m": 12.5,
        "u": "00112233-4455-6677-8899-aabbccddeeff", "n": None, "g": 2, "st": "IT'S \"ä\"\n\0",
    }  # fmt: skip
    assert app.mirror.types["t"] == {
        "id": "long", "big": "long", "r": "double", "s": "string", "b": "binary", "ok": "boolean", "d": "date",
        "at": "timestamp", "z": "timestamptz", "j": "string", "m": "decimal(10, 2)", "u": "uuid", "n": "any",
        "g": "long", "st": "string",
    }  # fmt: skip


def test_values_that_sqlite_lets_into_any_column_lose_nothing(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, i INTEGER, s TEXT, r REAL, b BLOB, ok BOOLEAN)")
    enable_cdc(app.path)
    app.listen()
    app.do("INSERT INTO t VALUES (1, 'no number', x'00ff', 9e999, 'text', 'maybe')")
    app.do("INSERT INTO t VALUES (2, 1.5, 7, -9e999, 7, 2)")
    app.do("INSERT INTO t VALUES (3, x'01', CAST(x'ff41' AS TEXT), NULL, NULL, NULL)")
    first, second, third = (event["after"] for event in app.listen())
    assert first == {"id": 1, "i": "no number", "s": "X'00FF'", "r": "Infinity", "b": "text", "ok": "maybe"}
    assert second == {"id": 2, "i": "1.5", "s": "7", "r": "-Infinity", "b": "7", "ok": "2"}
    assert third == {"id": 3, "i": "X'01'", "s": "X'FF41'", "r": None, "b": None, "ok": None}
    assert app.mirror.types["t"] == {
        "id": "long", "i": "string", "s": "string", "r": "double", "b": "string", "ok": "string",
    }  # fmt: skip


def test_a_table_without_rows_is_made_in_the_lake_with_its_columns(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME, n)")
    enable_cdc(app.path)
    (event,) = app.listen()
    assert event["metadata"]["ddl"] == {"action": "create"}
    assert [(each["name"], each["type"], each.get("isHint")) for each in event["metadata"]["schema"]] == [
        ("id", "long", None), ("at", "timestamp", True), ("n", "any", True),
    ]  # fmt: skip
    app.do("INSERT INTO t VALUES (1, '2026-01-01T10:00:00Z', 5)")
    (event,) = app.listen()
    assert [(each["name"], each["type"]) for each in event["metadata"]["schema"]] == [
        ("id", "long"), ("at", "timestamptz"), ("n", "long"),
    ]  # fmt: skip


def test_what_the_rows_hold_decides_where_a_declared_type_is_only_a_word(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME, zoned TIMESTAMP, ok BOOLEAN, m DECIMAL(10, 2), raw)")
    app.do("INSERT INTO t VALUES (1, 1700000000, '2026-01-01T00:00:00+01:00', 5, 0.125, x'00')")
    enable_cdc(app.path)
    app.listen()
    found = app.mirror.types["t"]
    assert (found["at"], found["zoned"], found["ok"], found["m"], found["raw"]) == (
        "timestamptz", "timestamptz", "long", "decimal(11, 3)", "binary",
    )  # fmt: skip


# --- tables ----------------------------------------------------------------------------------------------------------


def test_tables_and_columns_with_odd_names_are_followed(app: Followed) -> None:
    name = "odd \"name\" 'x'; DROP.TABLE"
    quoted = '"' + name.replace('"', '""') + '"'
    app.do(f'CREATE TABLE {quoted} ("select" INTEGER PRIMARY KEY, "a ""b"" c" TEXT, "ünï" TEXT, old, new)')
    app.do("CREATE TABLE new (id INTEGER PRIMARY KEY, old)")
    app.do("CREATE TABLE old (id TEXT PRIMARY KEY, new) WITHOUT ROWID")
    enable_cdc(app.path)
    for table in (quoted, "new", "old"):
        width = len(app.do(f"PRAGMA table_info({table})"))
        app.do(f"INSERT INTO {table} VALUES (1{', 2' * (width - 1)})")  # noqa: S608
    app.do(f'UPDATE {quoted} SET "a ""b"" c" = 5')  # noqa: S608
    app.do("UPDATE new SET old = 5")
    app.do("UPDATE old SET new = 5")
    app.listen()
    assert list(app.mirror.tables[lake_name(name)].values()) == app.rows(name.replace('"', '""'))
    app.assert_same("new")
    app.assert_same("old")


def test_what_cannot_be_followed_is_left_out_with_a_word(app: Followed) -> None:
    app.do("CREATE VIRTUAL TABLE words USING fts5 (text)")
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    app.do("CREATE VIEW v AS SELECT * FROM t")
    app.do("CREATE TABLE hidden (rowid, oid, _rowid_)")
    app.do("CREATE TEMP TABLE passing (a)")
    found = enable_cdc(app.path)
    assert [table.table for table in found.tables] == ["t"]
    left_out = "\n".join(found.left_out)
    for word in ("words: triggers cannot", "words_data: it belongs", "v: a view", "hidden: "):
        assert word in left_out
    app.do("INSERT INTO words VALUES ('hello')")


def test_of_two_tables_with_one_name_in_the_lake_the_second_is_left_out(app: Followed) -> None:
    for name in ("a.b", "a_b", "a/b"):
        app.do(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY, v)')
        app.do(f'INSERT INTO "{name}" VALUES (1, ?)', name)  # noqa: S608
    found = enable_cdc(app.path)
    assert [table.table for table in found.tables] == ["a_b"]
    assert [words.partition(":")[0] for words in found.left_out] == ["a.b", "a/b"]
    app.assert_same("a_b")


def test_only_the_tables_that_are_named_are_followed(app: Followed) -> None:
    for name in ("orders", "order_lines", "secrets"):
        app.do(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)")
        app.do(f"INSERT INTO {name} VALUES (1)")  # noqa: S608
    enable_cdc(app.path, ["ORDER*"])
    app.listen()
    assert set(app.mirror.tables) == {"orders", "order_lines"}
    app.do("CREATE TABLE order_new (id INTEGER PRIMARY KEY)")
    app.do("INSERT INTO order_new VALUES (1)")
    enable_cdc(app.path, ["order_*"])
    app.do("INSERT INTO orders VALUES (2)")
    app.assert_same("order_new")
    assert len(app.mirror.tables["orders"]) == 1, "followed no longer, and the lake keeps what it has"


def test_a_wide_table_is_followed(app: Followed) -> None:
    app.do(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {', '.join(f'c{number}' for number in range(450))})")
    enable_cdc(app.path)
    app.do("INSERT INTO t (id, c0, c449) VALUES (1, 2, 3)")
    app.do("UPDATE t SET c449 = 4")
    app.assert_same("t")


def test_names_become_names_that_the_lake_takes() -> None:
    assert lake_name("orders") == "orders"
    assert lake_name("a.b/c") == "a_b_c"
    assert lake_name("orders__changes") == "orders__changes_"
    assert lake_name(" \n") == "_"
    assert len(lake_name("ä" * 200).encode()) <= 128


# --- tables that several files share ----------------------------------------------------------------------------------


def test_a_shard_that_is_copied_again_deletes_only_rows_of_its_own(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    app.do("INSERT INTO t VALUES (1), (2)")
    enable_cdc(app.path)
    app.listen()
    resync(app.path, "t")
    source = SqliteSource(app.path, is_shared=True)
    source.resume(app.standing)
    told = changes_of(source)
    assert told == [], "nothing is copied before the lake's keys are known"
    assert source.table_to_compare() == "t"
    source.compare("t", ["1", "2", "3"])
    assert source.table_to_compare() is None
    told = changes_of(source)
    source.close()
    assert told == [("DELETE", "3"), ("INSERT", "1"), ("INSERT", "2")]


def changes_of(source: SqliteSource) -> list[tuple[str, str]]:
    """All that it tells now."""
    told: list[tuple[str, str]] = []
    while source.has_work():
        if piece := source.look():
            told += [(change.operation, change.row_id) for change in piece.changes]
    return told


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_said_in_words(tmp_path: Path, app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    (tmp_path / "text.db").write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(NotFound, match="is no file"):
        enable_cdc(tmp_path / "missing.db")
    with pytest.raises(InvalidInput, match="is no SQLite file"):
        enable_cdc(tmp_path / "text.db")
    for call in (lambda: status(app.path), lambda: SqliteSource(app.path), lambda: resync(app.path, "t")):
        with pytest.raises(NotFound, match="is not followed"):
            call()
    enable_cdc(app.path)
    with pytest.raises(NotFound, match="has no table"):
        resync(app.path, "other")
    disable_cdc(app.path)
    disable_cdc(app.path)


def test_an_empty_table_is_in_the_lake_with_its_columns(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME)")
    enable_cdc(app.path)
    app.listen()
    assert app.mirror.types == {"t": {"id": "long", "at": "timestamp"}}
    app.do("ALTER TABLE t ADD COLUMN city TEXT")
    app.listen()
    assert app.mirror.types["t"]["city"] == "string"
    app.do("INSERT INTO t VALUES (1, NULL, 'Oslo')")
    app.assert_same("t")
