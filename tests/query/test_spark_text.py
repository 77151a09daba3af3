"""What is not handed to Spark, because the two engines would not agree, or because a name would mean something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dolake.query.guard import parse
from dolake.query.relation import Relation
from dolake.query.routing import _fits
from dolake.query.spark_text import NotForSpark, SparkStatement, in_spark
from dolake.query.syntax import read


def constants(expressions: Sequence[str], _: frozenset[str]) -> list[tuple[Any, str]]:
    with duckdb.connect() as connection:
        found = connection.execute("SELECT " + ", ".join(expressions))
        kinds = [str(each[1]) for each in found.description]
        return list(zip((column.to_pylist()[0] for column in found.to_arrow_table().columns), kinds, strict=True))


def spark_sql(sql: str) -> SparkStatement:
    statement = parse(sql)
    relations = [
        Relation(each.table, f"SELECT * FROM iceberg_scan('/w/{each.table}.metadata.json')", ("id", "x", "name"))  # noqa: S608
        for each in statement.references
    ]
    return in_spark(read(statement.bind(relations))[0], [], constants)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT * FROM a JOIN b USING (id)", "USING"),
        ("WITH scan_1 AS (SELECT 1 AS x) SELECT count(*) FROM a", "scan_1"),
        ("WITH SCAN_2 AS (SELECT 1 AS x) SELECT x FROM SCAN_2", "SCAN_2"),
        ("SELECT -x AS x FROM a ORDER BY x + 0 LIMIT 1", "alias"),
        ("SELECT abs(x) AS x FROM a GROUP BY x HAVING x > 1", "alias"),
        ("SELECT any_value(x) FROM a", "any_value"),
        ("SELECT x || ' EUR' FROM a", "||"),
        ("SELECT upper(name) FROM a", "upper"),
        ("SELECT trim(name) FROM a", "trim"),
        ("SELECT round(x, 2) FROM a", "round"),
        ("SELECT CAST(x AS INTEGER) FROM a", "cast"),
        ("SELECT CAST(x AS VARCHAR) FROM a", "cast"),
        ("SELECT substr(name, 0, 2) FROM a", "substr"),
        ('SELECT "${x}" FROM a', "name"),
        ("SELECT random() FROM a", "random"),
        ("SELECT x FROM a QUALIFY row_number() OVER (ORDER BY x) = 1", "QUALIFY"),
    ],
)
def test_what_the_two_would_not_agree_on_is_refused(sql: str, what: str) -> None:
    with pytest.raises(NotForSpark, match=what.replace("||", r"\|\|")):
        spark_sql(sql)


def test_no_text_of_the_user_is_in_the_statement() -> None:
    sql = "SELECT id AS \"a`b\" FROM a WHERE name = '''; DROP TABLE x; --' AND name LIKE '${spark.app.name}%'"
    text = spark_sql(sql).sql
    assert "`a``b`" in text
    assert "DROP" not in text
    assert "${" not in text


def test_two_uses_of_a_table_are_one_view() -> None:
    assert list(spark_sql("SELECT count(*) FROM a JOIN a AS b ON a.id = b.x").scans) == ["scan_1"]


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        (pa.int64(), pa.decimal128(38, 0), True),
        (pa.int32(), pa.int64(), True),
        (pa.float64(), pa.float64(), True),
        (pa.string(), pa.large_string(), True),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Etc/UTC"), True),
        (pa.list_(pa.string()), pa.list_(pa.string()), True),
        (pa.duration("us"), pa.int64(), False),
        (pa.int64(), pa.string(), False),
        (pa.float64(), pa.decimal128(12, 2), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.date32(), False),
    ],
)
def test_a_column_of_another_type_is_no_answer(have: pa.DataType, want: pa.DataType, *, fits: bool) -> None:
    assert _fits(have, want) is fits
