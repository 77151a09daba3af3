"""What a statement might try: files, the network, other catalogs, settings, the server's memory and stack.

Each is refused before DuckDB is asked to run anything, or is shown to name nothing but a table of the lake, which is
looked up there and nowhere else.
"""

# ruff: noqa: S608
from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.errors import ForbiddenSql, InvalidSql
from dolake.query.functions import FUNCTIONS, TABLE_FUNCTIONS, words
from dolake.query.guard import Statement, parse
from dolake.query.relation import Relation
from dolake.query.spelling import LENGTH_MAX
from tests.support.property import examples

PLAIN = duckdb.connect()

FILES = r"""
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('/etc/*')
SELECT * FROM read_json('x.json')
SELECT * FROM read_json_objects('x.json')
SELECT * FROM read_ndjson('x.json')
SELECT * FROM read_parquet('/warehouse/other/orders/data/*.parquet')
SELECT * FROM parquet_scan('/warehouse/**')
SELECT * FROM parquet_metadata('/warehouse/a.parquet')
SELECT * FROM parquet_schema('/warehouse/a.parquet')
SELECT * FROM parquet_file_metadata('/warehouse/a.parquet')
SELECT * FROM parquet_kv_metadata('/warehouse/a.parquet')
SELECT * FROM parquet_bloom_probe('a.parquet', 'id', 1)
SELECT * FROM iceberg_scan('/warehouse/default/orders')
SELECT * FROM iceberg_metadata('/warehouse/default/orders')
SELECT * FROM iceberg_snapshots('/warehouse/default/orders')
SELECT * FROM delta_scan('/tmp/x')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM glob('/etc/*')
SELECT * FROM read_duckdb('/tmp/x.db')
SELECT * FROM st_read('/etc/passwd')
SELECT * FROM read_xlsx('/tmp/x.xlsx')
SELECT read_text('/etc/passwd')
SELECT content FROM orders, read_text('/etc/' || orders.name)
SELECT (SELECT content FROM read_text('/etc/passwd'))
SELECT id FROM orders WHERE id IN (SELECT length(content) FROM read_text('/etc/passwd'))
WITH x AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM x
SELECT * FROM (FROM read_text('/etc/passwd'))
FROM read_text('/etc/passwd')
SELECT * FROM orders UNION ALL SELECT content FROM read_text('/etc/passwd')
SELECT * FROM orders JOIN LATERAL (SELECT * FROM read_text('/etc/passwd')) t ON true
SELECT CASE WHEN true THEN (FROM glob('/*')) END
SELECT list_transform([1], x -> (SELECT max(file) FROM glob('/*')))
SELECT [x FOR x IN (SELECT list(file) FROM glob('/*'))]
SELECT * FROM orders ORDER BY (SELECT count(*) FROM glob('/*'))
SELECT * FROM orders LIMIT (SELECT count(*) FROM glob('/*'))
SELECT * FROM orders QUALIFY row_number() OVER (ORDER BY (SELECT count(*) FROM glob('/*'))) = 1
SELECT sum(id) FILTER (WHERE (SELECT true FROM glob('/*'))) FROM orders
SELECT * REPLACE ((SELECT max(file) FROM glob('/*')) AS id) FROM orders
SELECT * FROM orders AT (TIMESTAMP => (SELECT max(file) FROM glob('/*')))
SELECT * FROM orders FOR SYSTEM_TIME AS OF (SELECT content FROM read_text('/etc/passwd'))
PIVOT (FROM read_csv('/etc/passwd')) ON a IN (1) USING count(*)
"""

NETWORK = """
SELECT * FROM read_csv('http://169.254.169.254/latest/meta-data/')
SELECT * FROM read_parquet('s3://bucket/x.parquet')
SELECT * FROM iceberg_scan('s3://bucket/table')
SELECT * FROM postgres_scan('host=localhost', 'public', 'users')
SELECT * FROM mysql_query('x', 'SELECT 1')
SELECT * FROM sqlite_scan('/var/x.db', 'users')
SELECT * FROM http_get('http://localhost')
SELECT http_get('http://localhost')
"""

OTHER_STATEMENTS = """
ATTACH '/tmp/x.db' AS x
ATTACH 'x.db' (TYPE sqlite)
DETACH x
USE memory
COPY orders TO '/tmp/x.csv'
COPY (SELECT * FROM orders) TO '/tmp/x.parquet'
COPY orders FROM '/etc/passwd'
COPY FROM DATABASE a TO b
EXPORT DATABASE '/tmp/x'
IMPORT DATABASE '/tmp/x'
INSTALL httpfs
INSTALL x FROM 'http://localhost/x'
FORCE INSTALL httpfs
LOAD httpfs
LOAD '/tmp/evil.so'
UPDATE EXTENSIONS
PRAGMA database_list
PRAGMA table_info('orders')
PRAGMA enable_profiling
SET enable_external_access = true
SET VARIABLE x = 5
RESET lock_configuration
CALL pragma_version()
CALL duckdb_settings()
CREATE TABLE x (i INT)
CREATE TABLE x AS SELECT * FROM orders
CREATE VIEW x AS SELECT 1
CREATE MACRO f(x) AS (SELECT 1)
CREATE FUNCTION f() AS TABLE SELECT * FROM orders
CREATE SECRET s (TYPE s3)
CREATE TYPE mood AS ENUM ('a')
CREATE SEQUENCE s
CREATE INDEX i ON orders (id)
CREATE SCHEMA x
DROP TABLE orders
ALTER TABLE orders ADD COLUMN x INT
INSERT INTO orders VALUES (1)
INSERT INTO orders SELECT * FROM orders RETURNING *
UPDATE orders SET id = 1
DELETE FROM orders
TRUNCATE orders
MERGE INTO orders USING items ON (true) WHEN MATCHED THEN DELETE
VACUUM
ANALYZE
CHECKPOINT
BEGIN
COMMIT
PREPARE p AS SELECT 1
EXECUTE p
EXECUTE p(1)
DEALLOCATE p
EXPLAIN SELECT 1
EXPLAIN ANALYZE SELECT * FROM orders
DESCRIBE SELECT * FROM orders
SHOW ALL TABLES
SHOW DATABASES
SUMMARIZE orders
COMMENT ON TABLE orders IS 'x'
SELECT * FROM (DESCRIBE orders)
SELECT * FROM (SHOW TABLES)
SELECT * FROM (SHOW ALL TABLES)
SELECT * FROM (SUMMARIZE orders)
SELECT 1 INTO x
SELECT * INTO x FROM orders
SELECT * FROM orders FOR UPDATE
SELECT * FROM orders FOR SHARE
WITH x AS (INSERT INTO orders VALUES (1) RETURNING *) SELECT * FROM x
WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x
PIVOT orders ON status USING sum(amount)
PIVOT orders ON status IN (SELECT status FROM items) USING sum(amount)
SELECT * FROM (PIVOT orders ON status USING sum(amount))
"""

METADATA = """
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_functions()
SELECT * FROM duckdb_columns()
SELECT * FROM duckdb_extensions()
SELECT * FROM duckdb_logs()
SELECT * FROM duckdb_memory()
SELECT * FROM duckdb_temporary_files()
SELECT * FROM duckdb_external_file_cache()
SELECT * FROM duckdb_prepared_statements()
SELECT * FROM pragma_table_info('orders')
SELECT * FROM pragma_database_size()
SELECT * FROM pragma_storage_info('orders')
SELECT * FROM which_secret('x', 's3')
SELECT * FROM information_schema.views
SELECT * FROM "information_schema"."table_constraints"
SELECT * FROM information_schema.tables AT (VERSION => 1)
SELECT * FROM system.information_schema.tables
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM lake.pg_catalog.pg_class
SELECT * FROM sqlite_master
SELECT * FROM test_all_types()
SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')
SELECT * FROM query_table('orders')
SELECT * FROM query_table(['orders', 'secrets'])
SELECT * FROM json_execute_serialized_sql('{}')
SELECT * FROM seq_scan('orders')
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM pandas_scan(140000000)
SELECT * FROM python_map_function(1)
SELECT * FROM enable_logging()
SELECT * FROM force_checkpoint()
SELECT * FROM histogram('orders', 'id')
SELECT * FROM summary((SELECT 1))
SELECT * FROM repeat_row(1, 2, num_rows = 1000000000000)
SELECT getenv('HOME')
SELECT GetEnv('AWS_SECRET_ACCESS_KEY')
SELECT current_setting('home_directory')
SELECT getvariable('x')
SELECT nextval('s')
SELECT currval('s')
SELECT current_query()
SELECT current_database(), current_schema(), current_schemas(true)
SELECT current_user
SELECT session_user, current_role
SELECT current_catalog, current_schema
SELECT version()
SELECT txid_current()
SELECT write_log('x')
SELECT error('x')
SELECT sleep_ms(100000)
SELECT pg_sleep(100)
SELECT setseed(0.5)
SELECT stats(id) FROM orders
SELECT json_serialize_sql('SELECT 1')
SELECT json_deserialize_sql('{}')
SELECT has_table_privilege('orders', 'SELECT')
SELECT pg_get_viewdef(1)
SELECT in_search_path('a', 'b')
SELECT orders::regclass FROM orders
SELECT 'orders'::regclass
SELECT CAST(1 AS my_enum)
SELECT CAST(1 AS main.my_enum)
SELECT CAST(1 AS other.main.my_enum)
SELECT system.main.getenv('HOME')
SELECT main."getenv"('HOME')
SELECT "getenv"('HOME')
SELECT 'HOME'.getenv()
SELECT id.getenv() FROM orders
SELECT list_transform(['HOME'], x -> getenv(x))
SELECT list_transform(['HOME'], lambda x: getenv(x))
SELECT COLUMNS(c -> getenv(c) IS NULL) FROM orders
SELECT x.getenv() FROM (SELECT 'HOME' AS x)
SELECT no_such_function(1)
SELECT __internal_decompress_string(1)
"""

SEVERAL_OR_NONE = """
SELECT 1; SELECT 2
SELECT 1; DROP TABLE orders
SELECT 1;; ATTACH 'x'
;
--
/* nothing */
SELECT 1 /* ; */ ; /* */ SELECT 2
SELECT 1 FROM orders; COPY orders TO 'x'
SELECT 1; PRAGMA database_list; SELECT 2
"""

TRICKS = r"""
SELECT * FROM /* comment */ read_text /* more */ ('/etc/passwd')
SELECT * FROM READ_TEXT('/etc/passwd')
SELECT * FROM "read_text"('/etc/passwd')
SELECT * FROM "READ_text" ( '/etc/passwd' )
SELECT * FROM main.read_text('/etc/passwd')
SELECT * FROM system.main.read_text('/etc/passwd')
SELECT * FROM t: read_text('/etc/passwd')
SELECT * FROM ｒｅａｄ_ｔｅｘｔ('/etc/passwd')
SELECT * FROM reаd_text('/etc/passwd')
SELECT * FROM read_text($$/etc/passwd$$)
SELECT * FROM read_text(E'\x2fetc/passwd')
SELECT E'\' , (FROM read_text('/etc/passwd')) --'
SELECT $a$ $a$, (FROM read_text('/etc/passwd')), $a$ $a$
SELECT "a"" FROM orders", (FROM read_text('/etc/passwd')) AS "b"
SELECT 1 WHERE 'a' = 'a' OR (FROM read_text('/etc/passwd')) IS NULL
SELECT * FROM orders WHERE id = 1 UNION SELECT content FROM read_text('/etc/passwd') --
WITH RECURSIVE duckdb_tables AS (SELECT * FROM duckdb_tables UNION ALL SELECT * FROM duckdb_tables) SELECT 1
WITH pg_class AS (SELECT 1) SELECT * FROM pg_class
WITH "/etc/passwd" AS (SELECT 1) SELECT * FROM "/etc/passwd"
WITH RECURSIVE "x.csv" AS (SELECT * FROM "x.csv" UNION ALL SELECT * FROM "x.csv") SELECT * FROM "x.csv"
WITH x AS (SELECT 1) SELECT * FROM x AT (VERSION => 1)
SELECT * FROM orders FOR SYSTEM_TIME AS OF
SELECT * FROM orders FOR SYSTEM_TIME AS OF id
SELECT * FROM orders FOR SYSTEM_TIME AS OF now() - (SELECT INTERVAL '1 hour')
SELECT * FROM orders FOR SYSTEM_TIME AS OF getenv('HOME')
SELECT * FROM orders FOR SYSTEM_TIME AS OF (now()), (FROM read_text('/etc/passwd'))
SELECT * FROM orders AT (TIMESTAMP => now()), read_text('/etc/passwd')
SELECT * FROM orders AT (TIMESTAMP => now() || (FROM read_text('/etc/passwd')))
SELECT * FROM orders FOR VERSION AS OF 'main'
SELECT * FROM orders FOR VERSION AS OF 1.5
SELECT * FROM orders FOR VERSION AS OF 99999999999999999999
SELECT * FROM orders FOR SYSTEM_TIME AS OF ?
SELECT * FROM a.b.c.d.orders
SELECT ?, $1
SELECT :a, ?
SELECT $1, $3
SELECT 'open
SELECT "open
SELECT /* open
SELECT $$open
SELEC 1
SELECT
SELECT * FROM
SELECT (1
SELECT 1)
"""

REFUSED = [
    line
    for group in (FILES, NETWORK, OTHER_STATEMENTS, METADATA, SEVERAL_OR_NONE, TRICKS)
    for line in group.strip().splitlines()
]

HARMLESS = {
    "SELECT * FROM '/etc/passwd'": ["default./etc/passwd"],
    'SELECT * FROM "/etc/passwd"': ["default./etc/passwd"],
    "SELECT * FROM 'x.csv'": ["default.x.csv"],
    'SELECT * FROM "x.parquet"': ["default.x.parquet"],
    "FROM 'https://localhost/x.parquet'": ["default.https://localhost/x.parquet"],
    "FROM 's3://bucket/*.parquet'": ["default.s3://bucket/*.parquet"],
    'SELECT * FROM "../../secret"."x.csv"': ["../../secret.x.csv"],
    "SELECT (FROM 'x.csv') IS NULL": ["default.x.csv"],
    "SELECT 1 WHERE EXISTS (FROM 'x.csv')": ["default.x.csv"],
    "WITH y AS (FROM 'x.csv') SELECT * FROM y": ["default.x.csv"],
    "PIVOT 'x.csv' ON a IN (1) USING count(*)": ["default.x.csv"],
    "SELECT * FROM duckdb_tables": ["default.duckdb_tables"],
    "SELECT * FROM pg_class": ["default.pg_class"],
    "SELECT * FROM memory.main.orders": ["memory.main.orders"],
    "SELECT * FROM temp.orders": ["temp.orders"],
    "SELECT * FROM other.orders": ["other.orders"],
    "WITH RECURSIVE t AS (FROM t UNION ALL FROM t) FROM t": ["default.t"],
    "SELECT 'SELECT * FROM read_text(''/etc/passwd'')' -- ; ATTACH 'x'": [],
    "SELECT 1 /* ; ATTACH 'x' */": [],
    "SELECT /* /* */ 1 FROM read_text('/etc/passwd') -- */ 2": [],
    "SELECT 'a' -- ' FROM orders; ATTACH 'x": [],
    "SELECT * FROM read_text --": ["default.read_text"],
    "SELECT '''; ATTACH ''x'": [],
    "SELECT $$'; ATTACH 'x'$$": [],
    "SELECT 1 AS \"read_text('/etc/passwd')\"": [],
    "SELECT read_text FROM orders": ["default.orders"],
    "SELECT any_value(id), user FROM orders": ["default.orders"],
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n": [],
    "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b": [],
}


def test_there_are_more_than_two_hundred_attacks() -> None:
    assert len(REFUSED) + len(HARMLESS) > 200


@pytest.mark.parametrize("sql", REFUSED)
def test_an_attack_is_refused(sql: str) -> None:
    with pytest.raises((ForbiddenSql, InvalidSql)):
        parse(sql)


@pytest.mark.parametrize(("sql", "tables"), HARMLESS.items())
def test_what_is_not_refused_names_only_tables_of_the_lake(sql: str, tables: list[str]) -> None:
    statement = parse(sql)
    assert [f"{each.namespace}.{each.table}" for each in statement.references] == tables
    assert tables_in(bound(statement)) <= statement.common_names


def bound(statement: Statement) -> str:
    return statement.bind([Relation(each.table, "SELECT 1 AS a", ("a",)) for each in statement.references])


def tables_in(sql: str) -> set[str]:
    """What DuckDB would look up, or take for a file: tables, and functions that are not allowed."""
    (answer,) = PLAIN.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchone() or ("",)
    tree = json.loads(answer)
    assert not tree["error"], sql
    assert len(tree["statements"]) == 1
    return set(_names_in(tree))


def _names_in(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            yield tree["table_name"].lower()
        if (name := tree.get("function_name", "").lower()) not in FUNCTIONS | TABLE_FUNCTIONS | {""}:
            yield f"{name}()"
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _names_in(each)


def test_nothing_that_is_allowed_has_an_effect_or_looks_around() -> None:
    suspicious = words("read scan glob secret setting pragma duckdb env query attach copy sleep pg_ variable schema")
    looks_so = {name for name in FUNCTIONS | TABLE_FUNCTIONS for word in suspicious if word in name}
    assert looks_so == {"formatreadablesize", "formatreadabledecimalsize"}


def test_a_semicolon_at_the_end_and_comments_are_fine() -> None:
    assert parse("SELECT 1; -- the end").bind([]) == "SELECT 1;"


# --- too much of it ---------------------------------------------------------------------------------------------------

N = 12_000
DEEP = {
    "parentheses": f"SELECT {'(' * N}1{')' * N}",
    "open parentheses": f"SELECT {'(' * N}",
    "sums": f"SELECT 1{' + 1' * N}",
    "negations": f"SELECT {'NOT ' * N}true",
    "minus": f"SELECT {'- ' * N}1",
    "functions": f"SELECT {'abs(' * N}1{')' * N}",
    "queries": f"SELECT * FROM {'(SELECT * FROM ' * N}orders{')' * N}",
    "scalar queries": f"SELECT {'(SELECT ' * N}1{')' * N}",
    "cases": f"SELECT {'CASE WHEN true THEN ' * N}1{' END' * N}",
    "lists": f"SELECT {'[' * N}1{']' * N}",
    "structs": "SELECT " + "{'a': " * N + "1" + "}" * N,
    "casts": f"SELECT 1{'::INT' * N}",
    "list types": f"SELECT x::INT{'[]' * N}",
    "struct types": f"SELECT x::{'STRUCT(a ' * N}INT{')' * N}",
    "joins": f"SELECT * FROM a{' JOIN b ON true' * N}",
    "nested joins": f"SELECT * FROM {'(' * N}a{' JOIN b ON true)' * N}",
    "commas": f"SELECT * FROM a{', b' * N}",
    "WITH in WITH": f"{'WITH a AS (' * N}SELECT 1{') SELECT 1' * N}",
    "lambdas": f"SELECT list_transform([1], {'x -> ' * N}1)",
    "indexes": f"SELECT a{'[1]' * N}",
    "texts put together": f"SELECT a{' || a' * N}",
    "intersections": f"SELECT 1{' INTERSECT SELECT 1' * N}",
}
LARGE = {
    "open comments": f"SELECT {'/*' * 100_000}",
    "quotes": f"SELECT {chr(39) * 100_001}",
    "double quotes": f"SELECT {chr(34) * 100_001}",
    "dollars": f"SELECT {'$$' * 50_001}",
    "open dollars": f"SELECT {'$a$ $b$ ' * 20_001}",
    "conditions": f"SELECT 1 WHERE true{' AND x = 1' * 100_000}",
    "alternatives": f"SELECT 1 WHERE true{' OR x' * 100_000}",
    "values": f"SELECT x IN (1{', 1' * 300_000})",
    "letters": f"SELECT '{'x' * LENGTH_MAX}'",
    "dots": f"SELECT a{'.a' * 200_000}",
    "parameters": f"SELECT 1{', ?' * 20_000}",
    "far parameters": "SELECT $99999999999999999999",
    "colons": f"SELECT {'[' * 20_000}:a",
    "moments": f"FROM orders {'FOR SYSTEM_TIME AS OF now() ' * 5_000}",
    "open moments": f"FROM orders FOR SYSTEM_TIME AS OF now{'(' * 40_000}",
}


@pytest.mark.parametrize("sql", (DEEP | LARGE).values(), ids=DEEP | LARGE)
def test_what_is_too_deep_or_too_large_is_refused_soon(sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidSql):
        parse(sql)
    assert time.monotonic() - started < 10


def test_comments_in_comments_cost_nothing() -> None:
    started = time.monotonic()
    assert parse(f"SELECT {'/*' * 100_000}{'*/' * 100_000} 1").bind([]) == "SELECT 1"
    assert time.monotonic() - started < 10


def test_a_stack_that_is_almost_full_ends_in_an_error_of_ours() -> None:
    sql = f"SELECT {'(SELECT ' * 40}1{')' * 40} FROM orders{' JOIN items ON true' * 60}"

    def fall(depth: int, sql: str) -> Statement:
        return fall(depth - 1, sql) if depth else parse(sql)

    assert fall(0, sql).references
    with pytest.raises(InvalidSql, match="too deeply"):
        fall(sys.getrecursionlimit() - len(inspect.stack()) - 40, f"{sql};")


def test_long_lists_and_many_unions_are_fine() -> None:
    assert parse(f"SELECT id FROM orders WHERE id IN (1{', 1' * 20_000})").references
    assert len(parse("SELECT id FROM orders" + " UNION ALL SELECT id FROM orders" * 300).references) == 301


def test_many_threads_can_read_at_once() -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda number: parse(f"SELECT {number} FROM orders LIMIT {number}"), range(64)))
    assert [bound(each).split()[1] for each in texts] == [str(number) for number in range(64)]


# --- anything at all --------------------------------------------------------------------------------------------------

WORDS = sorted(
    words(
        r"""SELECT * FROM orders o WHERE ( ) , ; . : :: => -> ? $1 $a :a = + - [ ] { } ' " $$ /* */ -- AND OR NOT IN AS
        FOR SYSTEM_TIME AS OF AT (TIMESTAMP VERSION INTERVAL '1 hour' now() _key o._key o.* COLUMNS EXCLUDE JOIN USING
        WITH RECURSIVE UNION ALL GROUP BY ORDER LIMIT 1 'x' 1.5 NULL CASE WHEN THEN END COUNT(*) read_text PIVOT ON
        LATERAL VALUES DISTINCT default lambda default. shop.orders E'\' \ é ｘ x.csv 'x.csv' "x.csv" (FROM"""
    )
    | {"\n", "\t", "\0", "\u200b", "\u00a0", "\ud800", "\u202e"}
)


@settings(max_examples=examples(500))
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused_with_an_error_of_ours(text: str) -> None:
    try:
        statement = parse(text)
    except (InvalidSql, ForbiddenSql):
        return
    assert bound(statement)


@settings(max_examples=examples(500))
@given(st.sampled_from([*REFUSED, *HARMLESS]), st.data())
def test_a_changed_attack_reaches_no_file_either(sql: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sql)))
    end = data.draw(st.integers(start, min(len(sql), start + 8)))
    try:
        statement = parse(sql[:start] + data.draw(st.sampled_from(["", *WORDS])) + sql[end:])
    except (InvalidSql, ForbiddenSql):
        return
    assert tables_in(bound(statement)) <= statement.common_names
