"""DuckDB and Spark asked the same over one lake: the same rows, the same names, the same types, and the reason told.

One real server: tables published by its pipeline, with deleted and changed rows, and changes that are not published.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dolake.client.sync import connect
from tests.support.blocking import wait_until
from tests.support.server import ServerProcess

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 600_000
flush_interval_ms = 600_000
flush_threshold_ms = 600_000
flush_threshold_events = 1_000_000

[tables."default.purchases"]
columns = {amount = "decimal(12,2)", day = "date"}
"""
_ROWS = 300

STATEMENTS = """
SELECT count(*) FROM purchases
SELECT * FROM purchases ORDER BY id
SELECT id, qty FROM purchases WHERE id < 20 ORDER BY id
SELECT status, COUNT(*), SUM(amount), AVG(qty), MIN(id), MAX(created_at) FROM purchases GROUP BY status ORDER BY status
SELECT status, sum(qty) AS n FROM purchases GROUP BY ALL ORDER BY n DESC, status
SELECT SUM(Amount), COUNT(DISTINCT customer_id), COUNT(note) FROM purchases
SELECT COUNT(*) FILTER (WHERE qty > 2), SUM(amount) FILTER (WHERE status = 'paid') FROM purchases
SELECT date_trunc('hour', created_at) AS hour, SUM(amount) AS revenue, COUNT(*) AS n_orders FROM purchases GROUP BY 1 ORDER BY 1
SELECT date_trunc('day', created_at) AS d, count(*) FROM purchases GROUP BY 1 ORDER BY 1
SELECT count(*) FROM purchases WHERE created_at >= TIMESTAMPTZ '2024-01-01 12:00:00Z' AND created_at < TIMESTAMP '2024-01-03'
SELECT count(*) FROM purchases WHERE created_at < now() - INTERVAL '24 hours'
SELECT count(*) FROM purchases WHERE day = DATE '2024-01-02' OR day > '2024-01-05'
SELECT DISTINCT status FROM purchases ORDER BY 1
SELECT id FROM purchases WHERE amount BETWEEN 3 AND 90 AND status IN ('new', 'paid') AND NOT qty = 0 OR id = 39 ORDER BY id
SELECT id FROM purchases WHERE status LIKE 'p%' AND status NOT ILIKE 'X%' ORDER BY id DESC LIMIT 7 OFFSET 3
SELECT id, note FROM purchases ORDER BY note, id LIMIT 10
SELECT id, note FROM purchases ORDER BY note DESC, id LIMIT 10
SELECT id, note FROM purchases ORDER BY note NULLS FIRST, id LIMIT 10
SELECT o.id, c.name FROM purchases o JOIN buyers c ON o.customer_id = c.id WHERE c.country = 'de' ORDER BY o.id
SELECT o.id, c.name FROM purchases AS o LEFT JOIN buyers AS c ON c.id = o.id ORDER BY o.id
SELECT id, name, qty FROM buyers RIGHT JOIN (SELECT id, qty FROM purchases WHERE id < 12) o USING (id) ORDER BY id
SELECT c.id, o.id FROM buyers c FULL JOIN purchases o ON c.id = o.id AND o.id < 5 ORDER BY 1, 2
SELECT count(*) FROM buyers a, buyers b WHERE a.id < b.id
SELECT id FROM purchases SEMI JOIN buyers ON buyers.id = purchases.id ORDER BY id
SELECT id FROM purchases ANTI JOIN buyers ON buyers.id = purchases.id ORDER BY id
SELECT id FROM purchases o WHERE EXISTS (SELECT 1 FROM buyers c WHERE c.id = o.id) ORDER BY id
SELECT id FROM purchases WHERE id IN (SELECT id FROM buyers) AND id NOT IN (SELECT 3) ORDER BY id
SELECT (SELECT max(amount) FROM purchases) AS best, count(*) AS n FROM buyers
SELECT * FROM (SELECT status, COUNT(*) AS n FROM purchases GROUP BY status) s WHERE n > 1 ORDER BY n, status
WITH big AS (SELECT * FROM purchases WHERE amount > 20), top AS (SELECT status, SUM(amount) AS total FROM big GROUP BY 1) SELECT * FROM top ORDER BY total
WITH t AS MATERIALIZED (SELECT id FROM purchases) SELECT COUNT(*) FROM t a JOIN t b USING (id)
SELECT id FROM purchases WHERE id < 3 UNION ALL SELECT id FROM buyers ORDER BY 1
SELECT status FROM purchases UNION SELECT name FROM buyers ORDER BY 1
SELECT id FROM purchases INTERSECT SELECT id FROM buyers ORDER BY 1
SELECT id FROM buyers EXCEPT SELECT id FROM purchases WHERE qty > 2 ORDER BY 1
SELECT id, row_number() OVER (PARTITION BY status ORDER BY id DESC) AS n FROM purchases ORDER BY id
SELECT id, rank() OVER (ORDER BY qty) AS r, dense_rank() OVER (ORDER BY qty) AS d, count(*) OVER () AS n FROM purchases ORDER BY id
SELECT id, sum(qty) OVER (PARTITION BY status ORDER BY id) AS running FROM purchases ORDER BY id
SELECT status, AVG(amount) FROM purchases GROUP BY status HAVING COUNT(*) > 13 ORDER BY 1
SELECT stddev(qty), var_pop(qty), bool_and(qty >= 0), median(qty) FROM purchases
SELECT length(status), substr(status, 1, 2), trim('  x ') || upper('ß'), replace(status, 'a', 'b') FROM purchases ORDER BY id LIMIT 3
SELECT starts_with(status, 'p'), contains(status, 'ai'), ends_with(status, 'd'), greatest(qty, 2), least(qty, 2), abs(-qty) FROM purchases ORDER BY id LIMIT 9
SELECT year(created_at), month(created_at), day(created_at), hour(created_at), quarter(created_at), extract(minute FROM created_at) FROM purchases ORDER BY id LIMIT 5
SELECT CASE WHEN qty = 0 THEN 'none' WHEN qty < 3 THEN 'few' ELSE 'many' END AS much, count(*) FROM purchases GROUP BY 1 ORDER BY 1
SELECT coalesce(note, '?') AS n, nullif(status, 'new') AS s, note IS NULL, note IS DISTINCT FROM 'x' FROM purchases ORDER BY id
SELECT id + 1, id * 2 - 3, -id, qty / 2, amount / qty, (amount * qty)::DOUBLE FROM purchases ORDER BY id
SELECT SUM(amount) / COUNT(*) AS mean, CAST(sum(qty) AS DOUBLE) FROM purchases
SELECT address.city, count(*) FROM purchases GROUP BY 1 ORDER BY 1
SELECT purchases.address.zip AS zip FROM purchases ORDER BY id LIMIT 3
SELECT CAST(created_at AS DATE) AS d, count(*) FROM purchases GROUP BY d ORDER BY d
SELECT * EXCLUDE (note, address, tags) FROM purchases ORDER BY id LIMIT 4
SELECT tags FROM purchases ORDER BY id LIMIT 4
SELECT _key, id FROM purchases ORDER BY id LIMIT 4
SELECT "a b", "sel`ect", "it's", "ü" FROM "Odd Name" ORDER BY 1
SELECT 'it''s \\ ${spark.app.name} -- ; /*' AS t, count(*) FROM purchases WHERE status <> '${x}' AND status <> '\\'
SELECT count(*) FROM purchases WHERE note LIKE '%\\%' OR note LIKE '100%'
SELECT _operation, count(*) FROM purchases GROUP BY 1 ORDER BY 1
SELECT count(*), sum(qty) FROM purchases__changes WHERE _operation = 'UPDATE'
""".strip().splitlines()  # noqa: E501
assert len(STATEMENTS) >= 50


def _order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "customer_id": number % 7,
        "amount": f"{number * 1.5:.2f}",
        "qty": number % 5,
        "status": ("new", "paid", "sent")[number % 3],
        "created_at": f"2024-01-{1 + number // 24 % 28:02}T{number % 24:02}:{number % 60:02}:00Z",
        "day": f"2024-01-{1 + number % 9:02}",
        "note": None if number % 4 else f"note {number} 100% \\",
        "address": {"city": f"c{number % 4}", "zip": str(number)},
        "tags": [f"t{number % 2}", f"u{number % 3}"],
    } | more


def _change(table: str, operation: str, number: int, row: dict[str, Any] | None) -> dict[str, Any]:
    return {"table": table, "operation": operation, "rowId": str(number), "after": row}


@pytest.fixture(scope="module")
def lake(lake: ServerProcess) -> ServerProcess:
    """Tables with deleted and changed rows, and changes that are not published."""
    odd: list[dict[str, Any]] = [
        {"a b": 1, "sel`ect": 2, "it's": 3, "ü": "ß"},
        {"a b": 2, "sel`ect": None, "it's": 4, "ü": "$"},
    ]
    countries = ["de", "fr", None]
    buyers = [{"id": each, "name": f"n{each}", "country": countries[each % 3]} for each in range(9)]
    with connect(lake.url, source="shop") as client:
        client.send([_change("purchases", "INSERT", number, _order(number)) for number in range(_ROWS)])
        client.send([_change("buyers", "INSERT", at, row) for at, row in enumerate(buyers)])
        client.send([_change("Odd Name", "INSERT", at, row) for at, row in enumerate(odd)])
        lake.flush()
        client.send([_change("purchases", "UPDATE", each, _order(each, qty=4)) for each in range(0, 60, 3)])
        client.send([_change("purchases", "DELETE", each, None) for each in range(100, 120)])
        lake.flush()
        client.send([_change("purchases", "UPDATE", each, _order(each, status="paid")) for each in range(0, 40, 2)])
        client.send([_change("purchases", "DELETE", each, None) for each in range(200, 210)])
        client.send([_change("purchases", "INSERT", each, _order(each)) for each in range(_ROWS, _ROWS + 15)])
    return lake


def ask(lake: ServerProcess, sql: str, engine: str, **more: Any) -> Any:
    status, body = lake.get(
        "/v1/query", method="POST", body={"sql": sql, "engine": engine, "timeoutMs": 300_000, **more}
    )
    assert status == 200, body
    return body


def _near(one: Any, other: Any) -> bool:
    """Sums of fractions are added in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-12, nan_ok=True)
    return type(one) is type(other) and one == other


def _rounded(row: list[Any]) -> str:
    """To sort by: a fraction that differs in its last digit stays where it is."""
    return repr([f"{value:.9g}" if isinstance(value, float) else value for value in row])


@pytest.mark.parametrize("sql", STATEMENTS)
def test_both_engines_give_the_same_answer(lake: ServerProcess, sql: str) -> None:
    by_duckdb, by_spark = ask(lake, sql, "duckdb"), ask(lake, sql, "spark")
    assert by_spark["freshness"]["engine"] == "spark"
    assert by_spark["columns"] == by_duckdb["columns"]
    rows, others = ([list(row.values()) for row in body["rows"]] for body in (by_duckdb, by_spark))
    if "ORDER BY" not in sql:
        rows, others = sorted(rows, key=_rounded), sorted(others, key=_rounded)
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        assert all(map(_near, row, other)), (row, other)


def test_the_past_is_the_same_in_both_engines(lake: ServerProcess) -> None:
    history = ask(lake, "SELECT _commit_timestamp AS t, _position AS p FROM purchases ORDER BY _position", "duckdb")
    moment = history["rows"][_ROWS + 5]["t"]
    answers = [
        ask(lake, "SELECT status, count(*) AS n, sum(qty) AS q FROM purchases GROUP BY 1 ORDER BY 1", each, asOf=moment)
        for each in ("duckdb", "auto")
    ]
    assert answers[0]["rows"] == answers[1]["rows"]


def test_parameters_are_the_same_in_both_engines(lake: ServerProcess) -> None:
    for sql, params in (
        ("SELECT id FROM purchases WHERE qty = ? AND status = ? AND id < ? ORDER BY id LIMIT ?", [2, "paid", 90.5, 5]),
        (
            "SELECT id, :text AS t FROM purchases WHERE status = :status ORDER BY id",
            {"status": "new", "text": "`'\"\\${x}"},
        ),
    ):
        by_duckdb, by_spark = (ask(lake, sql, each, params=params) for each in ("duckdb", "spark"))
        assert by_duckdb["rows"]
        assert by_spark["rows"] == by_duckdb["rows"]


def test_a_large_question_goes_to_spark_and_says_why(lake: ServerProcess) -> None:
    sql = "SELECT status, count(*) AS n FROM purchases GROUP BY 1 ORDER BY 1"
    assert ask(lake, sql, "auto")["freshness"]["engine"] == "duckdb"
    assert lake.get("/v1/config", method="PATCH", body={"query": {"sparkScanBytes": 1}})[0] == 200
    try:
        answer = ask(lake, sql, "auto")
        give_up_s = time.monotonic() + 60
        while answer["freshness"]["engine"] != "spark" and time.monotonic() < give_up_s:
            answer = ask(lake, sql, "auto")  # the query process hears of a setting a moment later
        assert answer["freshness"]["engine"] == "spark", answer["freshness"]
        assert "bytes of data files to read" in answer["freshness"]["engineReason"]
        odd = ask(lake, "SELECT string_agg(status, ',' ORDER BY id) FROM purchases", "auto")
        assert odd["freshness"]["engine"] == "duckdb"
        assert "string_agg" in odd["freshness"]["engineReason"]
        status, route = lake.get("/v1/query/route", method="POST", body={"sql": sql})
        assert (status, route["engine"], route["tables"][0]["table"]) == (200, "spark", "default.purchases")
    finally:
        lake.get("/v1/config", method="PATCH", body={"query": {"sparkScanBytes": 2**34}})


def test_who_asks_for_spark_by_name_is_told_what_it_cannot_do(lake: ServerProcess) -> None:
    body = {"sql": "SELECT round(qty, 1) FROM purchases", "engine": "spark"}
    status, answer = lake.get("/v1/query", method="POST", body=body)
    assert (status, answer["error"]["type"]) == (400, "invalid_sql")
    assert "round" in answer["error"]["message"]


def test_an_answer_of_spark_is_cut_like_any_other(lake: ServerProcess) -> None:
    answer = ask(lake, "SELECT id FROM purchases ORDER BY id", "spark", limit=3)
    assert ([row["id"] for row in answer["rows"]], answer["truncated"]) == ([0, 1, 2], True)


def test_a_question_that_spark_works_at_shows_its_progress_and_can_be_cancelled(lake: ServerProcess) -> None:
    four = "purchases a, purchases b, purchases c, purchases d"
    sql = f"SELECT count(*) FROM {four} WHERE a.qty + b.qty + c.qty + d.qty < 0"  # noqa: S608
    answers: list[Any] = []

    def long() -> None:
        body = {"sql": sql, "engine": "spark", "timeoutMs": 300_000}
        answers.append(lake.get("/v1/query", method="POST", body=body, headers={"X-DoLake-Query-Id": "long"}))

    thread = threading.Thread(target=long)
    thread.start()
    try:
        wait_until(lambda: any(each.get("progress") for each in lake.get("/v1/queries")[1]["queries"]), 60)
    finally:
        assert lake.get("/v1/query/long", method="DELETE")[0] == 204
        thread.join()
    assert answers[0][1]["error"]["type"] == "query_cancelled"
    assert ask(lake, "SELECT count(*) AS n FROM buyers", "spark")["rows"] == [{"n": 9}]
