"""SHOW and DESCRIBE as a SELECT: which statements they are, and that everything else stays as it was."""

from __future__ import annotations

import pytest

from dolake.errors import ForbiddenSql
from dolake.query.guard import parse
from dolake.query.show_statements import as_select


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "show tables;",
        "-- all of them\nSHOW /* my */ TABLES ; ",
        "SHOW TABLES FROM shop",
        'show tables in "a.b"',
        "SHOW NAMESPACES",
        "SHOW SCHEMAS;",
    ],
)
def test_show_reads_the_information_schema_alone(sql: str) -> None:
    assert {(each.namespace, each.table) for each in parse(sql).references} <= {
        ("information_schema", "tables"),
        ("information_schema", "schemata"),
    }


@pytest.mark.parametrize(
    ("sql", "namespace", "table"),
    [
        ("DESCRIBE orders", "default", "orders"),
        ("DESC shop.orders;", "shop", "orders"),
        ("describe table lake.shop.orders", "shop", "orders"),
        ('DESCRIBE "a.b"."the ""odd"" one"', "a.b", 'the "odd" one'),
        ("SHOW COLUMNS FROM orders", "default", "orders"),
    ],
)
def test_describe_names_the_table_itself_so_that_an_unknown_one_is_refused(
    sql: str, namespace: str, table: str
) -> None:
    assert {(each.namespace, each.table) for each in parse(sql).references} == {
        ("information_schema", "columns"),
        (namespace, table),
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW ALL TABLES",
        "SHOW DATABASES",
        "SHOW orders",
        "DESCRIBE SELECT 1",
        "DESCRIBE orders; DROP TABLE orders",
        "SUMMARIZE orders",
        "SELECT * FROM (SHOW TABLES)",
        "SELECT * FROM (DESCRIBE orders)",
    ],
)
def test_other_forms_are_refused_as_before(sql: str) -> None:
    assert as_select(sql, "default") == sql
    with pytest.raises(ForbiddenSql):
        parse(sql)


@pytest.mark.parametrize("name", ["o'rders", "x') OR true --", "a\\' OR true"])
def test_a_name_cannot_end_the_text_that_it_stands_in(name: str) -> None:
    quoted = '"' + name + '"'
    assert {(each.namespace, each.table) for each in parse(f"DESCRIBE {quoted}").references} == {
        ("information_schema", "columns"),
        ("default", name),
    }


@pytest.mark.parametrize("sql", ["SELECT description FROM t", "SELECT 1", "  ", "SHOW", "DESCRIBE", "/* SHOW TABLES"])
def test_what_is_no_such_statement_stays_as_it_is(sql: str) -> None:
    assert as_select(sql, "default") == sql
