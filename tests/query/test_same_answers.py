"""Ordinary questions, asked through the guard and asked of DuckDB directly: the same rows under the same names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from dolake.query.guard import Reference, parse
from dolake.query.relation import Relation
from dolake.query.sqltext import names, quoted

HIDDEN = ("_key", "_rescued", "_operation", "_sequence", "_source", "_commit_timestamp", "_position", "_before")

TABLES = """
CREATE TABLE orders AS SELECT
    i AS id, i % 7 AS customer_id, (i * 1.5)::DECIMAL(10, 2) AS amount, i % 5 AS qty,
    ['new', 'paid', 'sent'][1 + i % 3] AS status, TIMESTAMPTZ '2024-01-01 00:00:00Z' + to_hours(i) AS created_at,
    ['t' || (i % 2), 'u' || (i % 3)] AS tags, {'city': 'c' || (i % 4), 'zip': i::VARCHAR} AS address,
    '{"a": {"b": [1, 2, ' || i || ']}, "x.y": 5}' AS payload
FROM range(40) r(i);
CREATE TABLE customers AS SELECT i AS id, 'name ' || i AS name, ['de', 'fr', NULL][1 + i % 3] AS country FROM range(9) r(i);
CREATE TABLE items AS SELECT i AS order_id, 's' || (i % 4) AS sku, i / 3.0 AS price FROM range(0, 40, 2) r(i);
CREATE TABLE prices AS SELECT 's' || (i % 4) AS sku, TIMESTAMPTZ '2024-01-01 00:00:00Z' + to_hours(i * 5) AS since, i AS price
FROM range(8) r(i);
CREATE TABLE "Odd Name" AS SELECT 1 AS "a b", 2 AS "select", 3 AS "ü";
CREATE SCHEMA shop; CREATE TABLE shop.orders AS SELECT 100 + i AS id, i AS n FROM range(3) r(i);
CREATE SCHEMA base;
"""  # noqa: E501

STATEMENTS = """
SELECT 1
SELECT 1 AS one, 'it''s', NULL, TRUE, 1.50, 1e3, -5, 12345678901234567890
SELECT * FROM orders ORDER BY id
FROM orders ORDER BY id LIMIT 3
FROM orders SELECT id, qty WHERE id < 4
SELECT COUNT(*) FROM orders
SELECT count() FROM orders
SELECT status, COUNT(*), SUM(amount), AVG(qty), MIN(id), MAX(created_at) FROM orders GROUP BY status ORDER BY status
SELECT SUM(Amount), COUNT(DISTINCT customer_id), COUNT(qty) FROM orders
SELECT COUNT(*) FILTER (WHERE qty > 2), SUM(amount) FILTER (WHERE status = 'paid') FROM orders
SELECT date_trunc('hour', created_at) AS hour, SUM(amount) AS revenue, COUNT(*) AS orders FROM orders GROUP BY 1 ORDER BY 1
SELECT date_trunc('day', created_at), DATE_TRUNC('month', created_at) FROM orders LIMIT 1
SELECT status, sum(qty) FROM orders GROUP BY ALL ORDER BY ALL
SELECT DISTINCT status FROM orders ORDER BY 1
SELECT DISTINCT ON (status) status, id FROM orders ORDER BY status, id DESC
SELECT id FROM orders WHERE amount BETWEEN 3 AND 9 AND status IN ('new', 'paid') AND NOT qty = 0 OR id = 39 ORDER BY id
SELECT id FROM orders WHERE status LIKE 'p%' AND status NOT ILIKE 'X%' AND status ~ 'pa.d' ORDER BY id
SELECT id FROM orders WHERE created_at >= TIMESTAMPTZ '2024-01-01 12:00:00Z' AND created_at < DATE '2024-01-02' ORDER BY id
SELECT id FROM orders WHERE created_at >= now() - INTERVAL '24 hours'
SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer_id = c.id WHERE c.country = 'de' ORDER BY o.id
SELECT o.id, c.name FROM orders AS o LEFT JOIN customers AS c ON c.id = o.id ORDER BY o.id
SELECT * FROM customers RIGHT JOIN (SELECT id, qty FROM orders WHERE id < 12) o USING (id) ORDER BY id
SELECT * FROM customers FULL JOIN items ON customers.id = items.order_id ORDER BY ALL
SELECT a.id, b.id FROM customers a CROSS JOIN customers b LEFT JOIN items i ON i.order_id = a.id ORDER BY ALL
SELECT a.id FROM customers a, customers b RIGHT JOIN items i ON i.order_id = b.id ORDER BY ALL
SELECT id FROM orders SEMI JOIN items ON items.order_id = orders.id ORDER BY id
SELECT id FROM orders ANTI JOIN items ON items.order_id = orders.id ORDER BY id
SELECT * FROM (SELECT id FROM customers) NATURAL JOIN (SELECT id, qty FROM orders) ORDER BY id
SELECT i.sku, p.price FROM (SELECT sku, TIMESTAMPTZ '2024-01-01 12:00:00Z' AS since FROM items) i ASOF JOIN prices p USING (sku, since) ORDER BY ALL
SELECT * FROM customers POSITIONAL JOIN items
SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.order_id = o.id AND price > 5) ORDER BY id
SELECT id FROM orders WHERE id IN (SELECT order_id FROM items) AND id NOT IN (SELECT id FROM customers) ORDER BY id
SELECT id, (SELECT MAX(price) FROM items WHERE order_id = orders.id) AS best FROM orders ORDER BY id
SELECT id FROM orders WHERE qty > ALL (SELECT 3) OR qty = ANY (SELECT 0) ORDER BY id
SELECT * FROM (SELECT status, COUNT(*) AS n FROM orders GROUP BY status) s WHERE n > 1 ORDER BY n, status
WITH big AS (SELECT * FROM orders WHERE amount > 20), top AS (SELECT status, SUM(amount) AS total FROM big GROUP BY 1) SELECT * FROM top ORDER BY total
WITH orders AS (SELECT id FROM orders WHERE id < 3) SELECT * FROM orders ORDER BY id
WITH t AS MATERIALIZED (SELECT id FROM orders) SELECT COUNT(*) FROM t a JOIN t b USING (id)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT SUM(i) FROM n
WITH RECURSIVE orders AS (SELECT id FROM orders WHERE id = 0 UNION ALL SELECT id + 1 FROM orders WHERE id < 5) SELECT * FROM orders ORDER BY id
SELECT (WITH x AS (SELECT MAX(id) AS m FROM orders) SELECT m FROM x) AS m
SELECT id FROM orders WHERE id < 3 UNION ALL SELECT id FROM customers UNION ALL SELECT order_id FROM items ORDER BY 1
SELECT status FROM orders UNION SELECT sku FROM items ORDER BY 1
SELECT id FROM orders INTERSECT SELECT order_id FROM items EXCEPT SELECT 4 ORDER BY 1
SELECT id, name FROM customers UNION ALL BY NAME SELECT id, status FROM orders WHERE id < 2 ORDER BY id, name
SELECT id, row_number() OVER (PARTITION BY status ORDER BY id DESC) AS n FROM orders ORDER BY id
SELECT id, SUM(qty) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW), lag(id, 1, 0) OVER w, first_value(status) OVER w FROM orders WINDOW w AS (ORDER BY id) ORDER BY id
SELECT id, COUNT(*) OVER (), rank() OVER (ORDER BY qty), ntile(3) OVER (ORDER BY id), percent_rank() OVER (ORDER BY id) FROM orders ORDER BY id
SELECT id, status FROM orders QUALIFY row_number() OVER (PARTITION BY status ORDER BY id DESC) = 1 ORDER BY id
SELECT status, qty, SUM(amount), grouping(status) FROM orders GROUP BY ROLLUP (status, qty) ORDER BY ALL
SELECT status, qty, SUM(amount) FROM orders GROUP BY GROUPING SETS ((status), (qty), ()) ORDER BY ALL
SELECT status, AVG(amount) FROM orders GROUP BY status HAVING COUNT(*) > 13 ORDER BY 1
SELECT median(amount), quantile_cont(amount, 0.9), percentile_cont(0.5) WITHIN GROUP (ORDER BY amount), mode() WITHIN GROUP (ORDER BY status) FROM orders
SELECT stddev(qty), var_pop(qty), corr(id, amount), approx_count_distinct(id), bool_and(qty >= 0), product(1 + qty) FROM orders
SELECT string_agg(status, ',' ORDER BY id), list(id ORDER BY id DESC), array_agg(DISTINCT status ORDER BY status), any_value(1) FROM orders
SELECT arg_max(id, amount), max(id, 3), min_by(status, id), first(id ORDER BY id), last(id ORDER BY id), histogram(status) FROM orders
SELECT upper(status), Length(status), concat(status, '-', id), status || '!', substr(status, 1, 2), left(status, 1), trim(BOTH 'n' FROM status) FROM orders ORDER BY id LIMIT 3
SELECT replace(status, 'a', 'b'), split_part('a-b-c', '-', 2), regexp_replace(status, 'a(.)', '\\1'), regexp_extract(status, '(p)(.)', 2), lpad(id::VARCHAR, 5, '0'), position('a' IN status) FROM orders ORDER BY id LIMIT 3
SELECT abs(-1), round(2.567, 2), ceil(1.2), 7 // 2, 7 / 2, 7 % 4, 2 ** 3, 2 ^ 3, sqrt(16), ln(1), greatest(1, 2), 5!, 1 << 3, ~5, @(-3)
SELECT extract(year FROM created_at), date_part('dow', created_at), dayname(created_at), epoch(created_at), epoch_ms(created_at), strftime(created_at, '%Y-%m-%d'), last_day(created_at) FROM orders ORDER BY id LIMIT 2
SELECT DATE '2024-01-31' + INTERVAL 1 MONTH, INTERVAL '1' DAY * 3, date_diff('day', DATE '2024-01-01', DATE '2024-03-01'), TIMESTAMP '2024-01-01 10:00:00' AT TIME ZONE 'UTC', age(DATE '2024-01-01', DATE '2023-01-01')
SELECT strptime('2024-02-03', '%Y-%m-%d'), make_date(2024, 1, 2), to_timestamp(0), time_bucket(INTERVAL '2 hours', created_at), CURRENT_DATE IS NOT NULL FROM orders ORDER BY id LIMIT 1
SELECT CASE WHEN qty = 0 THEN 'none' WHEN qty < 3 THEN 'few' ELSE 'many' END AS much, CASE status WHEN 'new' THEN 1 END, if(qty > 2, 'a', 'b') FROM orders ORDER BY id
SELECT coalesce(country, '?'), ifnull(country, '-'), nullif(country, 'de'), country IS NULL, country IS DISTINCT FROM 'de', country ISNULL FROM customers ORDER BY id
SELECT id::VARCHAR, CAST(amount AS DOUBLE), TRY_CAST(status AS INTEGER), qty::TINYINT, id::HUGEINT, '{"a": 1}'::JSON, 'x'::BLOB, try(1 / qty) FROM orders ORDER BY id LIMIT 6
SELECT payload -> '$.a', payload ->> '$.a.b[0]', json_extract(payload, '$.a.b'), json_extract_string(payload, '$.a.b[2]')::INT + 1, payload->'a'->'b'->>0, payload ->> 'x.y' FROM orders ORDER BY id LIMIT 2
SELECT tags[1], tags[-1], tags[1:1], len(tags), list_contains(tags, 't1'), list_transform(tags, x -> upper(x)), list_filter(tags, lambda x: x LIKE 't%'), [x || '!' FOR x IN tags IF x > 't'] FROM orders ORDER BY id LIMIT 3
SELECT list_sort([3, 1, 2]), list_reduce([1, 2, 3], (a, b) -> a + b), list_aggregate([1, 2], 'sum'), flatten([[1], [2]]), list_zip([1], [2])[1][2], range(3), generate_series(1, 3), array[1, 2]
SELECT address.city, address['zip'], (address).city, struct_pack(a := 1, b := id), {'x': status}, row(1, 2)[1], struct_extract(address, 'city') FROM orders ORDER BY id LIMIT 2
SELECT MAP {'a': 1, 'b': 2}['a'], map_keys(MAP {'k': 1}), map_entries(map(['x'], [1])), cardinality(MAP {'a': 1})
SELECT id, unnest(tags) AS tag FROM orders ORDER BY id, tag LIMIT 5
SELECT o.id, u.tag FROM orders o, unnest(o.tags) AS u(tag) ORDER BY ALL LIMIT 5
SELECT o.id, l.twice FROM orders o, LATERAL (SELECT o.id * 2 AS twice) l ORDER BY ALL LIMIT 5
SELECT * FROM range(3) t(i) JOIN customers c ON c.id = t.i ORDER BY i
SELECT * FROM generate_series(1, 10, 4)
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) v(n, t) ORDER BY n
VALUES (1, 'x'), (2, 'y')
SELECT * EXCLUDE (payload, tags) REPLACE (amount * 2 AS amount) RENAME (qty AS quantity) FROM orders ORDER BY id LIMIT 2
SELECT o.* EXCLUDE payload, c.* FROM orders o JOIN customers c ON c.id = o.customer_id ORDER BY ALL LIMIT 3
SELECT COLUMNS('^(id|qty)$') FROM orders ORDER BY id LIMIT 2
SELECT MAX(COLUMNS(* EXCLUDE (payload, tags, address))) FROM orders
SELECT COLUMNS(c -> c LIKE 'c%') FROM customers ORDER BY ALL
SELECT * LIKE 'c%' FROM orders ORDER BY created_at LIMIT 2
SELECT status: upper(status), n: id FROM o: orders ORDER BY n LIMIT 2
SELECT * FROM (SELECT status, qty, amount FROM orders) PIVOT (SUM(amount) FOR status IN ('new', 'paid')) ORDER BY qty
PIVOT orders ON status IN ('new', 'paid') USING SUM(amount) AS s, COUNT(*) GROUP BY qty ORDER BY qty
SELECT * FROM (SELECT id, qty, customer_id FROM orders) UNPIVOT (v FOR n IN (qty, customer_id)) ORDER BY ALL LIMIT 4
UNPIVOT (SELECT id, qty, customer_id FROM orders) ON COLUMNS(* EXCLUDE id) INTO NAME n VALUE v ORDER BY ALL LIMIT 4
SELECT id FROM orders ORDER BY status DESC NULLS LAST, id LIMIT 5 OFFSET 2
SELECT id FROM orders ORDER BY id LIMIT 10%
SELECT COUNT(*) FROM orders TABLESAMPLE 100%
SELECT COUNT(*) FROM orders USING SAMPLE 100%
SELECT name FROM customers ORDER BY name COLLATE NOCASE DESC LIMIT 2
SELECT "a b", "select", ü AS "Ü" FROM "Odd Name"
SELECT "odd name"."a b" FROM "Odd Name"
SELECT ORDERS.ID FROM Orders WHERE orders.Id = 5
SELECT orders.address.city, o2.tags[1] FROM orders JOIN orders o2 USING (id) ORDER BY id LIMIT 2
SELECT shop.orders.id, orders.n FROM shop.orders ORDER BY 1
SELECT s.id, o.id FROM shop.orders s JOIN orders o ON o.id = s.n WHERE s.id > 100 ORDER BY ALL
SELECT /* a /* nested */ comment */ 1 -- and one to the end
SELECT $$dollar$$, $tag$it's$tag$, E'tab\\t', 'é', '/* no comment */', '-- nor here', 'a''b', "ü" FROM "Odd Name"
SELECT status AS s, s || '!' AS t FROM orders WHERE t = 'new!' LIMIT 1
SELECT orders FROM orders WHERE id = 3
SELECT #1 FROM (SELECT id FROM orders) ORDER BY 1 LIMIT 2
SELECT COUNT(*) AS n FROM orders a JOIN orders b ON a.id = b.id + 1 WHERE a.status <> b.status
SELECT id, FROM orders ORDER BY id LIMIT 1
SELECT COUNT(*) + 1, -COUNT(*) FROM orders
SELECT (SELECT MAX(id) FROM orders), 1 + (SELECT COUNT(*) FROM items), EXISTS (FROM items WHERE price > 1000), 5
SELECT id IN (SELECT order_id FROM items), [(SELECT MIN(id) FROM orders)], (id, (SELECT 'x' FROM customers LIMIT 1)) IS DISTINCT FROM NULL FROM orders ORDER BY id
SELECT * FROM (SELECT ((SELECT MAX(id) FROM orders)), CASE WHEN (SELECT TRUE FROM customers LIMIT 1) THEN 'a"b' END)
SELECT ARRAY(SELECT id FROM customers ORDER BY id), EXISTS (FROM items), (SELECT 5) + 1
SELECT status.upper().lower(), orders.status.upper() FROM orders ORDER BY id LIMIT 1
SELECT hash(id) IS NULL, md5('a'), sha256('a'), typeof(id), format('{} {}', 1, 'a'), printf('%d', 3), to_base64('a'::BLOB) FROM orders LIMIT 1
""".strip().splitlines()  # noqa: E501
assert len(STATEMENTS) > 100


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(TABLES)
        for name in ("orders", "customers", "items", "prices", "Odd Name"):
            hidden = ", ".join(f"'{each}' || '!' AS {each}" for each in HIDDEN)
            connection.execute(f"CREATE TABLE base.{quoted(name)} AS SELECT *, {hidden} FROM {quoted(name)}")  # noqa: S608
        connection.execute("CREATE TABLE base.shop_orders AS SELECT *, 'k' AS _key FROM shop.orders")
        yield connection


def relation_of(reference: Reference, connection: duckdb.DuckDBPyConnection) -> Relation:
    name = reference.table if reference.namespace == "default" else f"{reference.namespace}_{reference.table}"
    every = [row[0] for row in connection.execute(f"DESCRIBE base.{quoted(name)}").fetchall()]
    columns = tuple(each for each in every if not each.startswith("_"))
    hidden = tuple(each for each in every if each in reference.hidden)
    sql = f"SELECT {names((*columns, *hidden))} FROM base.{quoted(name)}"  # noqa: S608
    return Relation(name, sql, columns, hidden)


def ask(sql: str, connection: duckdb.DuckDBPyConnection, params: Any = None) -> tuple[list[str], list[Any]]:
    statement = parse(sql)
    return run(statement.bind([relation_of(each, connection) for each in statement.references]), connection, params)


def run(sql: str, connection: duckdb.DuckDBPyConnection, params: Any = None) -> tuple[list[str], list[Any]]:
    answer = connection.execute(sql, params or [])
    columns = [f"{name} {type_}" for name, type_, *_ in answer.description]
    rows = list(zip(*(column.to_pylist() for column in answer.to_arrow_table().columns), strict=True))
    return columns, rows if "ORDER BY" in sql else sorted(rows, key=repr)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_an_ordinary_question_has_the_answer_that_duckdb_gives(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    columns, rows = run(sql, connection)
    assert ask(sql, connection) == ([re.sub(r"^count_star\(\) (?!FILTER)", "count ", each) for each in columns], rows)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM orders WHERE qty = $1 AND id < $2 ORDER BY id",
        "SELECT $1, id FROM orders WHERE id BETWEEN $2 - 3 AND $2 ORDER BY id LIMIT $1",
    ],
)
def test_parameters_mean_what_they_mean_in_duckdb(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    assert ask(sql, connection, [2, 20]) == run(sql, connection, [2, 20])


def test_the_three_spellings_of_parameters_have_the_same_answer(connection: duckdb.DuckDBPyConnection) -> None:
    by_mark = ask("SELECT id FROM orders WHERE qty = ? AND id < ?", connection, [2, 20])
    by_number = ask("SELECT id FROM orders WHERE qty = $1 AND id < $2", connection, [2, 20])
    by_name = ask("SELECT id FROM orders WHERE qty = :qty AND id < :Below", connection, {"qty": 2, "Below": 20})
    assert by_mark == by_number == by_name
    assert by_mark[1]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM customers ORDER BY _position", ["id", "name", "country"]),
        ("FROM customers WHERE _key = '_key!'", ["id", "name", "country"]),
        ("SELECT id FROM (FROM customers WHERE _key <> 'x') UNION ALL (FROM customers c SELECT id)", ["id"]),
        ("SELECT *, _key FROM customers", ["id", "name", "country", "_key"]),
        ("SELECT _key, * EXCLUDE (name) FROM customers", ["_key", "id", "country"]),
        ("SELECT _key, * EXCLUDE name FROM customers", ["_key", "id", "country"]),
        ("SELECT _key, c.* EXCLUDE (c.name, id) FROM customers c", ["_key", "country"]),
        ("SELECT * EXCLUDE (_key) FROM customers", ["id", "name", "country"]),
        ("SELECT * EXCLUDE (_key, name) FROM customers WHERE _key IS NOT NULL", ["id", "country"]),
        (
            "SELECT * EXCLUDE (c._key) REPLACE ('x' AS name) FROM customers c WHERE _key <> ''",
            ["id", "name", "country"],
        ),
        (
            "SELECT c.*, i.* FROM customers c JOIN items i USING (_key)",
            ["id", "name", "country", "order_id", "sku", "price"],
        ),
        ("SELECT * FROM customers c JOIN items i USING (_key)", ["id", "name", "country", "order_id", "sku", "price"]),
        ("SELECT * FROM customers c SEMI JOIN items i USING (_key)", ["id", "name", "country"]),
        (
            "SELECT * FROM customers c FULL JOIN items i ON c._key = i._key",
            ["id", "name", "country", "order_id", "sku", "price"],
        ),
        ("SELECT COLUMNS(*) FROM customers WHERE _key <> ''", ["id", "name", "country"]),
        ("SELECT COLUMNS(c.* EXCLUDE (id)) FROM customers c WHERE _key <> ''", ["name", "country"]),
        ("SELECT * LIKE 'n%' FROM customers ORDER BY _key", ["name"]),
        ("SELECT * FROM (SELECT *, _key FROM customers) x", ["id", "name", "country", "_key"]),
        (
            "WITH x AS (SELECT _key, * FROM customers) SELECT * FROM x WHERE _key <> ''",
            ["_key", "id", "name", "country"],
        ),
        ("SELECT _before, _key.upper() FROM customers", ["_before", "_key.upper()"]),
        ("SELECT (SELECT c._key FROM items LIMIT 1) AS n, * FROM customers c", ["n", "id", "name", "country"]),
        ("SELECT * FROM shop.orders WHERE shop.orders._key = 'k'", ["id", "n"]),
        ("SELECT * FROM customers WHERE _key <> '' ORDER BY ALL", ["id", "name", "country"]),
    ],
)
def test_a_star_shows_only_the_columns_of_the_user(
    sql: str, columns: list[str], connection: duckdb.DuckDBPyConnection
) -> None:
    shown, rows = ask(sql, connection)
    assert [each.rpartition(" ")[0] for each in shown] == columns
    assert rows
