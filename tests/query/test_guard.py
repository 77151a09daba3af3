"""What the guard finds in a statement: tables, moments, hidden columns, parameters, filters; and what it binds."""

# ruff: noqa: S608
from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from dolake.errors import ForbiddenSql, InvalidSql
from dolake.query.functions import FUNCTIONS, TABLE_FUNCTIONS, TYPES
from dolake.query.guard import Filter, ParameterRef, Parameters, Reference, parse
from dolake.query.relation import Relation
from dolake.tables.types import OUR_NAMES


def only(sql: str, namespace: str = "default") -> Reference:
    (reference,) = parse(sql, namespace).references
    return reference


def tables(sql: str, namespace: str = "default") -> list[str]:
    return [f"{each.namespace}/{each.table}" for each in parse(sql, namespace).references]


def hidden(sql: str) -> dict[str, list[str]]:
    return {each.alias: sorted(each.hidden) for each in parse(sql).references}


def bound(sql: str, *columns: str, **more: tuple[str, ...]) -> str:
    """With relations that have these columns, and what is named of the hidden ones."""
    statement = parse(sql)
    return statement.bind(
        [
            Relation(each.table, f"FROM r{each.number}", columns, more.get("hidden", tuple(sorted(each.hidden))))
            for each in statement.references
        ]
    )


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM orders", ["default/orders"]),
        ("SELECT * FROM shop.orders", ["shop/orders"]),
        ("SELECT * FROM default.orders", ["default/orders"]),
        ("SELECT * FROM dolake.default.orders", ["default/orders"]),
        ("SELECT * FROM lake.shop.orders", ["shop/orders"]),
        ("SELECT * FROM a.b.orders", ["a.b/orders"]),
        ('SELECT * FROM "a.b.c".orders', ["a.b.c/orders"]),
        ("SELECT * FROM orders__changes", ["default/orders__changes"]),
        ('SELECT * FROM "Odd Name"', ["default/Odd Name"]),
        ("SELECT * FROM a, b JOIN c ON true", ["default/a", "default/b", "default/c"]),
        (
            "SELECT * FROM a UNION SELECT * FROM b ORDER BY (SELECT max(x) FROM c)",
            ["default/a", "default/b", "default/c"],
        ),
        ("SELECT (SELECT max(x) FROM a) FROM b WHERE EXISTS (FROM c)", ["default/a", "default/b", "default/c"]),
        ("FROM range(3), unnest([1]) u, (VALUES (1)) v, orders", ["default/orders"]),
        ("SELECT * FROM orders PIVOT (sum(x) FOR y IN (1, 2))", ["default/orders"]),
        ("SELECT * FROM (((SELECT * FROM a)))", ["default/a"]),
    ],
)
def test_tables_are_found_in_the_order_of_the_text(sql: str, found: list[str]) -> None:
    assert tables(sql) == found
    assert [each.number for each in parse(sql).references] == list(range(len(found)))


def test_bare_names_live_in_the_namespace_that_is_given() -> None:
    assert tables("SELECT * FROM orders, shop.items", "eu.north") == ["eu.north/orders", "shop/items"]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("WITH x AS (SELECT * FROM orders) SELECT * FROM x, X y", ["default/orders"]),
        ("WITH orders AS (SELECT * FROM orders) SELECT * FROM orders", ["default/orders"]),
        ("WITH a AS (FROM b), b AS (FROM c) SELECT * FROM a, b", ["default/b", "default/c"]),
        ("WITH x AS (SELECT 1) SELECT * FROM shop.x", ["shop/x"]),
        ("SELECT * FROM (WITH x AS (SELECT 1) FROM x), x", ["default/x"]),
        ("WITH x AS (SELECT 1) SELECT * FROM a WHERE EXISTS (SELECT * FROM x WHERE i IN (FROM x))", ["default/a"]),
        ("WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t WHERE i < 5) SELECT * FROM t", []),
        ("WITH RECURSIVE t AS (SELECT i FROM t UNION ALL SELECT i FROM t) SELECT * FROM t", ["default/t"]),
        ("WITH RECURSIVE t(a) USING KEY (a) AS (SELECT 1 UNION FROM recurring.t) SELECT * FROM t", []),
    ],
)
def test_a_name_that_a_with_in_sight_has_is_no_table(sql: str, found: list[str]) -> None:
    assert tables(sql) == found


# --- hidden columns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT * FROM orders", {"orders": []}),
        ("SELECT _KEY, _Position FROM orders", {"orders": ["_key", "_position"]}),
        ("SELECT * FROM orders ORDER BY _commit_timestamp", {"orders": ["_commit_timestamp"]}),
        ("SELECT id FROM orders o GROUP BY id, o._operation", {"o": ["_operation"]}),
        ("SELECT _before.qty, orders._before.qty FROM orders", {"orders": ["_before"]}),
        ("SELECT _key.lower() FROM orders", {"orders": ["_key"]}),
        (
            "SELECT sum(x) OVER (PARTITION BY _source) FROM orders QUALIFY max(_sequence) OVER () > 1",
            {"orders": ["_sequence", "_source"]},
        ),
        ("SELECT a._key FROM a JOIN b ON a.id = b.id", {"a": ["_key"], "b": []}),
        ("SELECT * FROM a JOIN b USING (_key)", {"a": ["_key"], "b": ["_key"]}),
        ("SELECT _key FROM a JOIN b USING (_key) JOIN c USING (_key)", {"a": ["_key"], "b": ["_key"], "c": ["_key"]}),
        ("SELECT shop.orders._key FROM shop.orders, items", {"orders": ["_key"], "items": []}),
        ("SELECT default.orders._key FROM orders", {"orders": ["_key"]}),
        ("SELECT * EXCLUDE (_key) FROM orders", {"orders": []}),
        ("SELECT * REPLACE (upper(_key) AS id) FROM orders", {"orders": ["_key"]}),
        ("SELECT _key FROM (SELECT id AS _key FROM orders)", {"orders": []}),
        ("SELECT _key FROM (SELECT _key FROM orders) x, items", {"orders": ["_key"], "items": []}),
        (
            "WITH x AS (SELECT _key, id FROM orders) SELECT _key FROM x JOIN items USING (id)",
            {"orders": ["_key"], "items": []},
        ),
        ("WITH x(_key) AS (SELECT id FROM orders) SELECT _key FROM x, items", {"orders": [], "items": []}),
        ("SELECT x._key FROM (SELECT * FROM orders) x", {"orders": []}),
        ("SELECT 1 AS _position FROM orders ORDER BY _position", {"orders": []}),
        ("FROM a WHERE EXISTS (FROM b WHERE b.id = a._position)", {"a": ["_position"], "b": []}),
        ("FROM a WHERE EXISTS (FROM b WHERE b.id = a.id AND _position > 1)", {"a": [], "b": ["_position"]}),
        ("FROM a WHERE id IN (SELECT max(_position))", {"a": ["_position"]}),
        ("SELECT * FROM a, LATERAL (SELECT a._key AS k)", {"a": ["_key"]}),
        ("SELECT * FROM a, (SELECT _key AS k) l", {"a": ["_key"]}),
        ("SELECT _key FROM a SEMI JOIN b USING (id)", {"a": ["_key"], "b": []}),
        (
            "PIVOT orders ON _operation IN ('INSERT') USING count(*) GROUP BY _source",
            {"orders": ["_operation", "_source"]},
        ),
        ("SELECT list_transform([1], x -> x + _position) FROM orders", {"orders": ["_position"]}),
        ("SELECT a.x, address._key FROM orders a", {"a": []}),
    ],
)
def test_a_hidden_column_belongs_to_the_table_that_it_means(sql: str, found: dict[str, list[str]]) -> None:
    assert hidden(sql) == found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT _key FROM a JOIN b ON a.id = b.id",
        "SELECT a.id FROM a, b ORDER BY _commit_timestamp",
        "SELECT * FROM a JOIN b ON true JOIN c USING (_key)",
    ],
)
def test_a_hidden_column_of_several_tables_needs_the_name_of_one(sql: str) -> None:
    with pytest.raises(InvalidSql, match=r"several tables .*(a\._key|a\._commit_timestamp)"):
        parse(sql)


@pytest.mark.parametrize("sql", ["SELECT a._key FROM a NATURAL JOIN b", "SELECT COLUMNS('a.*') FROM a WHERE _key = ''"])
def test_joins_and_columns_that_choose_by_name_do_not_go_with_hidden_columns(sql: str) -> None:
    with pytest.raises(InvalidSql, match="hidden columns"):
        parse(sql)


def test_every_hidden_column_of_the_tables_can_be_named() -> None:
    assert only(f"SELECT {', '.join(OUR_NAMES)} FROM orders").hidden == frozenset(OUR_NAMES)


# --- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "as_of"),
    [
        ("FOR SYSTEM_TIME AS OF TIMESTAMP '2025-01-14 00:00:00'", "2025-01-14 00:00:00"),
        ("FOR SYSTEM_TIME AS OF '2025-01-14T00:00:00Z'", "2025-01-14T00:00:00Z"),
        ("for timestamp as of '2025-01-14'", "2025-01-14"),
        ("FOR TIMESTAMP AS OF TIMESTAMP WITH TIME ZONE '2025-01-14 00:00:00+01:00'", "2025-01-14 00:00:00+01:00"),
        ("FOR SYSTEM_TIME AS OF DATE '2025-01-14'", "2025-01-14"),
        ("FOR SYSTEM_TIME AS OF 1736812800000", 1736812800000),
        ("FOR SYSTEM_TIME AS OF '2025-01-14'::TIMESTAMPTZ", "2025-01-14"),
        ("AT (TIMESTAMP => '2025-01-14')", "2025-01-14"),
        ("AT (timestamp => TIMESTAMP '2025-01-14 10:00:00')", "2025-01-14 10:00:00"),
    ],
)
@pytest.mark.parametrize("alias", ["", " o", " AS o", ' "o"'])
def test_a_table_can_be_asked_about_as_of_a_moment(clause: str, as_of: str | int, alias: str) -> None:
    before = only(f"SELECT * FROM orders {clause}{alias} WHERE id = 5")
    after = only(f"SELECT * FROM orders{alias} {clause} WHERE id = 5")
    assert before == after
    assert (before.as_of, before.as_of_sql, before.snapshot_id) == (as_of, None, None)
    assert before.alias == ("o" if alias else "orders")
    assert "AT (" not in bound(f"SELECT * FROM orders {clause}{alias} WHERE id = 5")


@pytest.mark.parametrize(
    ("clause", "id_"),
    [
        ("FOR VERSION AS OF 7345", 7345),
        ("FOR SYSTEM_VERSION AS OF 7345", 7345),
        ("AT (VERSION => 7345123456789012345)", 7345123456789012345),
        ("FOR VERSION AS OF '7345'", 7345),
        ("FOR VERSION AS OF 'snap-7345'", 7345),
    ],
)
def test_a_table_can_be_asked_about_at_a_snapshot(clause: str, id_: int) -> None:
    reference = only(f"SELECT o.id FROM shop.orders {clause} AS o (id, b) WHERE o.id = 5")
    assert (reference.snapshot_id, reference.as_of) == (id_, None)


@pytest.mark.parametrize(
    ("clause", "sql"),
    [
        ("FOR SYSTEM_TIME AS OF NOW() - INTERVAL '1 hour'", "NOW() - INTERVAL '1 hour'"),
        ("FOR SYSTEM_TIME AS OF CURRENT_TIMESTAMP - INTERVAL 3 DAY", "CURRENT_TIMESTAMP - INTERVAL 3 DAY"),
        ("FOR TIMESTAMP AS OF (now() - to_hours(1))", "(now() - to_hours(1))"),
        (
            "AT (TIMESTAMP => date_trunc('day', now()) - INTERVAL '1' DAY)",
            "date_trunc('day', now()) - INTERVAL '1' DAY",
        ),
    ],
)
def test_a_moment_can_be_computed(clause: str, sql: str) -> None:
    reference = only(f"SELECT * FROM orders {clause} o")
    assert (reference.as_of, reference.as_of_sql) == (None, sql)
    assert duckdb.sql(f"SELECT CAST(({sql}) AS TIMESTAMPTZ) IS NOT NULL").fetchall() == [(True,)]


def test_each_table_has_a_moment_of_its_own() -> None:
    old, new = parse(
        "SELECT * FROM orders FOR SYSTEM_TIME AS OF '2024-01-01' old FULL JOIN orders new ON old.id = new.id"
    ).references
    assert (old.alias, old.as_of, new.alias, new.as_of) == ("old", "2024-01-01", "new", None)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "parameters", "text"),
    [
        ("SELECT 1", Parameters(), "SELECT 1"),
        ("SELECT ?, ?", Parameters("positional", 2), "SELECT $1, $2"),
        ("SELECT '?', ? -- ?", Parameters("positional", 1), "SELECT '?', $1"),
        ("SELECT $2, $1, $1", Parameters("positional", 2), "SELECT $2, $1, $1"),
        ("SELECT $a, $B, $A", Parameters("named", 2, ("a", "B")), "SELECT $a, $B, $a"),
        ("SELECT :a + :b LIMIT :n", Parameters("named", 3, ("a", "b", "n")), "SELECT $a + $b LIMIT $n"),
        (
            "SELECT 1::int, [1,2][1:x], l[:x], {'a':x}, y:1",
            Parameters(),
            "SELECT 1::int, [1,2][1:x], l[:x], {'a':x}, y:1",
        ),
        ("SELECT [:a, :b][:c]", Parameters("named", 2, ("a", "b")), "SELECT [$a, $b][:c]"),
        ("SELECT list_transform(l, lambda x:x)", Parameters(), "SELECT list_transform(l, lambda x:x)"),
        (
            "SELECT 1 WHERE 1 BETWEEN :lo AND :hi",
            Parameters("named", 2, ("lo", "hi")),
            "SELECT 1 WHERE 1 BETWEEN $lo AND $hi",
        ),
    ],
)
def test_parameters_are_counted_or_named(sql: str, parameters: Parameters, text: str) -> None:
    statement = parse(sql)
    assert (statement.parameters, statement.bind([])) == (parameters, text)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "filters"),
    [
        ("id = 5", [Filter("id", "=", (5,))]),
        ("5 < id AND 7 >= Id", [Filter("id", ">", (5,)), Filter("Id", "<=", (7,))]),
        ("o.id BETWEEN 1 AND 2.50", [Filter("id", ">=", (1,)), Filter("id", "<=", (Decimal("2.50"),))]),
        ("id IN (1, -2, 3)", [Filter("id", "in", (1, -2, 3))]),
        ("id = ? AND x > ?", [Filter("id", "=", (ParameterRef("1"),)), Filter("x", ">", (ParameterRef("2"),))]),
        ("id = :id", [Filter("id", "=", (ParameterRef("id"),))]),
        ("a IS NULL AND b IS NOT NULL", [Filter("a", "is_null"), Filter("b", "not_null")]),
        ("d >= DATE '2024-01-31'", [Filter("d", ">=", (date(2024, 1, 31),))]),
        ("t < TIMESTAMP '2024-01-31 10:00:00.5'", [Filter("t", "<", (datetime(2024, 1, 31, 10, 0, 0, 500_000),))]),  # noqa: DTZ001
        ("t < '2024-01-31 10:00:00Z'::TIMESTAMPTZ", [Filter("t", "<", (datetime(2024, 1, 31, 10, tzinfo=UTC),))]),
        (
            "s = 'x' AND f > 1.5e3 AND b = TRUE",
            [Filter("s", "=", ("x",)), Filter("f", ">", (1500.0,)), Filter("b", "=", (True,))],
        ),
        (
            "i = 12345678901234567890 AND k = 5::BIGINT",
            [Filter("i", "=", (12345678901234567890,)), Filter("k", "=", (5,))],
        ),
        ("_key = 'k'", [Filter("_key", "=", ("k",))]),
        ("(a = 1 AND (b = 2 AND c = 3))", [Filter("a", "=", (1,)), Filter("b", "=", (2,)), Filter("c", "=", (3,))]),
        ("a = 1 OR b = 2", []),
        ("NOT a = 1 AND a <> 2 AND a NOT IN (1) AND a NOT BETWEEN 1 AND 2", []),
        ("a = NULL AND b IN (1, NULL) AND a = b AND a + 1 = 2 AND upper(s) = 'X' AND s LIKE 'a%'", []),
        ("a::INT = 5 AND 5::VARCHAR = a AND t > TIMESTAMP '2024-01-31 10:00:00.1234567'", []),
        ("a.b = 5 AND x IS DISTINCT FROM 3", []),
        ("t >= now() - INTERVAL '1 day'", []),
        ("a IN (SELECT 1) AND EXISTS (FROM range(3) r(b) WHERE b = 5)", []),
    ],
)
def test_simple_conditions_are_told_for_leaving_out_files(where: str, filters: list[Filter]) -> None:
    assert list(only(f"SELECT * FROM orders o WHERE {where}").filters) == filters


@pytest.mark.parametrize(
    ("sql", "filters"),
    [
        ("FROM a JOIN b ON true WHERE a.x = 1 AND b.y = 2 AND z = 3", {"a": ["x"], "b": ["y"]}),
        ("FROM a, b WHERE a.x = 1 AND b.y = 2", {"a": ["x"], "b": ["y"]}),
        ("FROM a LEFT JOIN b ON true WHERE a.x = 1 AND b.y IS NULL", {"a": ["x"], "b": []}),
        ("FROM a RIGHT JOIN b ON true WHERE a.x = 1 AND b.y = 2", {"a": [], "b": ["y"]}),
        ("FROM a FULL JOIN b ON true WHERE a.x = 1 AND b.y = 2", {"a": [], "b": []}),
        ("FROM a JOIN b ON true LEFT JOIN c ON true WHERE a.x = 1 AND c.y = 2", {"a": ["x"], "b": [], "c": []}),
        ("FROM a ASOF JOIN b ON a.t >= b.t WHERE a.x = 1 AND b.y = 2", {"a": ["x"], "b": []}),
        ("FROM a POSITIONAL JOIN b WHERE a.x = 1 AND b.y = 2", {"a": [], "b": []}),
        ("FROM a SEMI JOIN b USING (id) WHERE a.x = 1", {"a": ["x"], "b": []}),
        ("FROM a TABLESAMPLE 10% WHERE x = 1", {"a": []}),
        ("FROM a WHERE x = 1 USING SAMPLE 5", {"a": []}),
        ("FROM a AS a(x, y) WHERE x = 1", {"a": []}),
        ("FROM a, range(3) r WHERE x = 1 AND a.y = 2", {"a": ["y"]}),
        ("FROM a WHERE x = 1 AND EXISTS (FROM b WHERE y = 2 AND a.z = 3)", {"a": ["x"], "b": ["y"]}),
        ("SELECT * FROM (SELECT * FROM a WHERE x = 1) WHERE y = 2", {"a": ["x"]}),
        ("FROM a WHERE x = 1 UNION ALL FROM b WHERE y = 2", {"a": ["x"], "b": ["y"]}),
        ("SELECT x FROM a GROUP BY x HAVING x = 1", {"a": []}),
        ("FROM shop.a WHERE shop.a.x = 1", {"a": ["x"]}),
    ],
)
def test_a_filter_is_told_only_where_a_row_that_fails_it_is_not_missed(sql: str, filters: dict[str, list[str]]) -> None:
    found = {each.alias: [each.column for each in each.filters] for each in parse(sql).references}
    assert found == filters


# --- binding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT id FROM orders", 'SELECT id FROM (FROM r0) AS "orders"'),
        ("SELECT o.id FROM shop.orders o, items", 'SELECT o.id FROM (FROM r0) o, (FROM r1) AS "items"'),
        ('SELECT 1 FROM "a""b"', 'SELECT 1 FROM (FROM r0) AS "a""b"'),
        ("SELECT shop.orders.id FROM shop.orders", 'SELECT orders.id FROM (FROM r0) AS "orders"'),
        ("SELECT Default.Orders.id FROM orders", 'SELECT Orders.id FROM (FROM r0) AS "orders"'),
        ("SELECT COUNT(*) FROM orders", 'SELECT COUNT(*) AS count FROM (FROM r0) AS "orders"'),
        ("SELECT count(), COUNT(*) n FROM orders", 'SELECT count() AS count, COUNT(*) n FROM (FROM r0) AS "orders"'),
        (
            "SELECT count, COUNT(*) FROM orders GROUP BY 1",
            'SELECT count, COUNT(*) FROM (FROM r0) AS "orders" GROUP BY 1',
        ),
        ("SELECT * FROM orders /* all */ -- of them", 'SELECT * FROM (FROM r0) AS "orders"'),
        ("SELECT *, _key FROM orders", 'SELECT * EXCLUDE ("orders"."_key"), _key FROM (FROM r0) AS "orders"'),
        ("SELECT * EXCLUDE (id, _key) FROM orders", 'SELECT * EXCLUDE ("id") FROM (FROM r0) AS "orders"'),
        ("SELECT * EXCLUDE (_key) FROM orders", 'SELECT * FROM (FROM r0) AS "orders"'),
    ],
)
def test_relations_stand_where_the_tables_stood(sql: str, text: str) -> None:
    assert bound(sql, "id") == text


def test_hidden_columns_that_nobody_named_stay_outside() -> None:
    text = bound("SELECT _key FROM orders", "id", hidden=("_key", "_position"))
    assert text == 'SELECT _key FROM (SELECT "id", "_key" FROM (FROM r0)) AS "orders"'


def test_a_column_of_the_users_own_is_left_out_only_if_he_says_so() -> None:
    statement = parse("SELECT * EXCLUDE (_key) FROM orders")
    own = Relation("orders", "FROM r", ("id", "_key"))
    assert statement.bind([own]) == 'SELECT * EXCLUDE ("orders"."_key") FROM (FROM r) AS "orders"'


def test_a_statement_can_be_bound_again_and_is_read_once() -> None:
    statement = parse("SELECT * FROM orders WHERE id = ?")
    assert parse("SELECT * FROM orders WHERE id = ?") is statement
    relations = [Relation("orders", "FROM a", ("id",)), Relation("orders", "FROM b", ("id",))]
    assert [statement.bind([each]).count("FROM a") for each in relations] == [1, 0]


def test_a_with_cannot_stand_in_for_what_a_relation_reads() -> None:
    statement = parse("WITH Tail_1 AS (SELECT 1) SELECT * FROM orders")
    with pytest.raises(InvalidSql, match="something else"):
        statement.bind([Relation("orders", "FROM tail_1", ("id",), arrow={"tail_1": pa.table({"id": [1]})})])


def test_a_text_that_looks_like_a_mark_is_left_alone() -> None:
    text = bound("SELECT 'dolake_0_t0_', '(SELECT dolake_0_t0_)' FROM orders", "id")
    assert text.startswith("SELECT 'dolake_0_t0_', '(SELECT dolake_0_t0_)' FROM (FROM r0)")


def test_the_name_of_a_column_does_not_tell_how_its_table_is_read() -> None:
    text = bound("SELECT (SELECT max(id) FROM orders), EXISTS (FROM items)", "id")
    assert 'AS "(SELECT max(id) FROM orders)"' in text
    assert 'AS "EXISTS(SELECT * FROM items)"' in text


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT *\nFROM orders\n  WHERE FROM", 'syntax error at or near "FROM", line 3, column 9'),
        ("SELECT /* é */ ? 5 'x'", "line 1, column 18"),
        ("SELECT 'é' ,, 1", "line 1, column 13"),
        ("SELECT 'open", "' at line 1, column 8 is not closed"),
        ("SELECT\n/* open", r"/\* at line 2, column 1 is not closed"),
        ("", "there is no statement"),
        ("SELECT * FROM a.b.c.d", "too many parts .*quotes"),
        ("SELECT ?, $1", "mixed"),
        ("SELECT $2", "without a gap"),
        ("SELECT * FROM orders FOR SYSTEM_TIME AS OF", "no moment behind AS OF at line 1, column 22"),
        ("SELECT * FROM orders FOR SYSTEM_TIME AS OF id", "must be a constant"),
        ("SELECT * FROM orders FOR SYSTEM_TIME AS OF ?", "cannot be a parameter"),
        ("TABLE orders", "a table cannot stand here"),
        ("SELECT \ud800", "no text"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(sql: str, message: str) -> None:
    with pytest.raises(InvalidSql, match=message):
        parse(sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1,\n  getenv('HOME')", r"function getenv cannot be used, line 2, column 3"),
        (
            "SELECT * FROM read_csv('x')",
            r"function read_csv cannot be used as a table, line 1, column 15 \(behind FROM",
        ),
        ("DELETE FROM orders", "only a single SELECT can be asked"),
        ("SELECT 1; SELECT 2", "there are 2 statements"),
        ("SUMMARIZE orders", "this form of SHOW, DESCRIBE or SUMMARIZE .*SHOW TABLES"),
        ("SELECT current_user", "say of which table: o.current_user"),
        ("SELECT x::regclass", "the type REGCLASS"),
        ("FROM information_schema.views", "cannot be queried .*information_schema.tables"),
        ("FROM pg_catalog.pg_tables", "is no table of the lake .*SHOW TABLES"),
        ("WITH pg_x AS (SELECT 1) FROM pg_x", "choose a plain name"),
    ],
)
def test_what_is_forbidden_says_what_can_be_done_instead(sql: str, message: str) -> None:
    with pytest.raises(ForbiddenSql, match=message):
        parse(sql)


def test_every_function_and_type_that_is_allowed_is_one_of_duckdbs() -> None:
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT lower(function_name) FROM duckdb_functions()").fetchall()
        types = connection.execute("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()
    by_the_parser = {"!", "->", "unnest"}
    assert not FUNCTIONS - {name for (name,) in rows} - by_the_parser
    assert not TABLE_FUNCTIONS - {name for (name,) in rows}
    assert not TYPES - {name for (name,) in types} - {"ARRAY", "CHAR", "JSON"}
