"""Rows and their values: the same from JSON and from Arrow, by name and by number."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import polars
import pyarrow as pa
import pytest

from dolake import errors
from dolake.client import QueryResult, Row, connect
from dolake.client.rows import layout_of
from dolake.client.values import reader_of
from dolake.query.results import Answer, arrow_pieces, json_pieces
from tests.support.answering_lake import answering_lake, arrow_answer, plain_answer

KINDS: list[tuple[str, Any]] = [
    ("42", 42),
    ("NULL::BIGINT", None),
    ("9007199254740993::BIGINT", 2**53 + 1),
    ("-9223372036854775807::BIGINT", -(2**63) + 1),
    ("18446744073709551615::UBIGINT", 2**64 - 1),
    ("170141183460469231731687303715884105::HUGEINT", 170141183460469231731687303715884105),
    ("SUM(3)", 3),
    ("1.50::DECIMAL(10, 2)", Decimal("1.50")),
    ("12345678901234567890.123456789::DECIMAL(38, 9)", Decimal("12345678901234567890.123456789")),
    ("1.1::FLOAT", 1.1),
    ("2.0::DOUBLE", 2.0),
    ("'Infinity'::DOUBLE", float("inf")),
    ("TRUE", True),
    ("'ä\"\n'", 'ä"\n'),
    ("'\\xAA\\x00'::BLOB", b"\xaa\x00"),
    ("DATE '2025-01-14'", date(2025, 1, 14)),
    ("TIME '12:34:56.5'", time(12, 34, 56, 500_000)),
    ("TIMESTAMP '2025-01-14 01:02:03.000004'", datetime(2025, 1, 14, 1, 2, 3, 4)),  # noqa: DTZ001 - it has no zone
    ("TIMESTAMP_NS '2025-01-14 00:00:00.123456789'", datetime(2025, 1, 14, 0, 0, 0, 123456)),  # noqa: DTZ001
    ("TIMESTAMPTZ '2025-01-14 01:00:00+01'", datetime(2025, 1, 14, tzinfo=UTC)),
    ("TIMESTAMPTZ 'infinity'", "infinity"),
    ("DATE '-infinity'", "-infinity"),
    ("INTERVAL '3 days 4 hours -1 second'", timedelta(days=3, hours=3, minutes=59, seconds=59)),
    ("INTERVAL '14 months'", timedelta(days=420)),
    ("UUID '00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
    ("'x'::ENUM('x', 'y')", "x"),
    ("""'{"a": 1}'::JSON""", '{"a": 1}'),
    ("[1, NULL, 3]", [1, None, 3]),
    ("[[1.5::DECIMAL(2, 1)], NULL]", [[Decimal("1.5")], None]),
    ("[DATE '2025-01-14']::DATE[1]", [date(2025, 1, 14)]),
    (
        """{'a': 1, 'b "c"': [TIMESTAMPTZ '2025-01-14 00:00:00Z'], 'n': NULL::DECIMAL(3, 1)}""",
        {"a": 1, 'b "c"': [datetime(2025, 1, 14, tzinfo=UTC)], "n": None},
    ),
    ("MAP {'k, )': 1.5::DECIMAL(2, 1)}", {"k, )": Decimal("1.5")}),
    ("MAP {[1]: 2::HUGEINT}", [([1], 2)]),
]


def encoded(sql: str) -> tuple[bytes, bytes]:
    """What DuckDB says to this, as JSON and as Arrow, in the server's own way."""
    with duckdb.connect() as database:
        relation = database.sql(sql)
        columns = [(name, str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
        table = relation.to_arrow_table()

    def answered() -> tuple[Answer, Any]:
        answer = Answer("q-1", columns, {"position": 7})
        return answer, answer.cut(table.to_batches(), 1000)

    return b"".join(json_pieces(*answered())), b"".join(arrow_pieces(*answered(), table.schema))


async def read_both_ways(
    json_body: bytes, arrow_body: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[QueryResult, QueryResult]:
    """What the client makes of both, over a real connection, with pyarrow and without."""

    answers = {"POST /v1/query": arrow_answer(arrow_body)}
    async with answering_lake(answers) as lake:
        by_arrow = await connect(lake.url).query("SELECT 1")
        lake.answers["POST /v1/query"] = plain_answer(msgspec.json.decode(json_body))
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "pyarrow", None)
            by_json = await connect(lake.url).query("SELECT 1")
        assert [body["format"] for body in lake.bodies()] == ["arrow", "json"]
        return by_json, by_arrow


@pytest.mark.parametrize(("sql", "value"), KINDS, ids=[sql for sql, _ in KINDS])
async def test_a_value_is_the_same_from_json_and_from_arrow(
    sql: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for result in await read_both_ways(*encoded(f"SELECT {sql} AS v, NULL AS nothing"), monkeypatch):
        (found, nothing) = result.rows[0]
        assert (found, type(found), nothing) == (value, type(value), None)
        if isinstance(found, datetime) and found.tzinfo:
            assert found.tzinfo is UTC


async def test_both_answers_have_the_same_columns_rows_and_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT i AS id, i * 1.5 AS total, 'a' AS a, 'b' AS a FROM range(2500) AS t(i)"
    by_json, by_arrow = await read_both_ways(*encoded(sql), monkeypatch)
    assert by_json.rows == by_arrow.rows[: len(by_json)]
    assert len(by_json) == len(by_arrow) == 1000
    assert by_json.truncated
    assert by_arrow.truncated
    assert by_json.columns == by_arrow.columns
    assert [column.name for column in by_json.columns] == ["id", "total", "a", "a_1"]
    assert by_json.freshness == by_arrow.freshness


# --- rows ------------------------------------------------------------------------------------------------------------


def row(**values: Any) -> Row:
    return Row(layout_of(list(values)), list(values.values()))


def test_a_row_is_read_by_dot_by_name_and_by_number() -> None:
    order = row(id=7, count=3, _operation="INSERT")
    assert order.count == order["count"] == order[1] == order[-2] == 3
    assert order._operation == "INSERT"
    assert order[:2] == (7, 3)
    number, *rest = order
    assert (number, rest) == (7, [3, "INSERT"])
    assert (len(order), "id" in order, "other" in order) == (3, True, False)


def test_a_row_is_a_mapping_where_one_is_wanted() -> None:
    order = row(id=7, city="Oslo")
    assert list(order.keys()) == ["id", "city"]
    assert order.as_dict() == dict(order) == {**order} == {"id": 7, "city": "Oslo"}


def test_columns_that_are_named_like_a_method_are_reached_by_brackets() -> None:
    clash = row(keys=1, as_dict=2, _Row__values=3)
    assert [clash["keys"], clash["as_dict"], clash["_Row__values"]] == [1, 2, 3]
    assert list(clash.keys()) == ["keys", "as_dict", "_Row__values"]


def test_rows_are_equal_to_what_has_the_same_in_it() -> None:
    order = row(id=7, city="Oslo")
    assert order == row(id=7, city="Oslo")
    assert order == {"id": 7, "city": "Oslo"}
    assert order == (7, "Oslo")
    assert order != row(number=7, city="Oslo")
    assert order != {"id": 7}
    assert order != "Oslo"
    assert len({order, row(id=7, city="Oslo")}) == 1


def test_a_row_can_be_copied_and_kept() -> None:
    order = row(id=7, city="Oslo")
    assert copy.deepcopy(order) == copy.copy(order) == pickle.loads(pickle.dumps(order)) == order  # noqa: S301


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    order = row(id=7, city="Oslo")
    with pytest.raises(AttributeError, match="no column 'town'; it has id, city"):
        _ = order.town
    with pytest.raises(KeyError, match="no column 'town'"):
        _ = order["town"]
    with pytest.raises(IndexError):
        _ = order[2]
    assert repr(order) == "Row(id=7, city='Oslo')"


# --- whole answers ---------------------------------------------------------------------------------------------------


async def results(monkeypatch: pytest.MonkeyPatch) -> Sequence[QueryResult]:
    return await read_both_ways(
        *encoded("SELECT i AS n, i::DECIMAL(5, 1) AS d FROM range(3) AS t(i) ORDER BY i"), monkeypatch
    )


async def test_an_answer_is_a_list_of_rows_with_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in await results(monkeypatch):
        assert [row.n for row in result] == [0, 1, 2]
        assert (len(result), result.scalar()) == (3, 0)
        assert result.first() == {"n": 0, "d": Decimal("0.0")}
        assert repr(result) == "<QueryResult: 3 rows of n, d>"
        assert result.rows is result.rows


async def test_an_answer_becomes_an_arrow_table_or_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    by_json, by_arrow = await results(monkeypatch)
    table = by_arrow.to_arrow()
    assert table.schema == pa.schema({"n": pa.int64(), "d": pa.decimal128(5, 1)})
    assert table.schema.metadata is None
    with pytest.raises(errors.DoLakeError, match=r"needs pyarrow.*pip install pyarrow"):
        by_json.to_arrow()


async def test_an_answer_becomes_a_polars_frame_with_or_without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in await results(monkeypatch):
        frame = result.to_polars()
        assert isinstance(frame, polars.DataFrame)
        assert frame["n"].to_list() == [0, 1, 2]
        assert frame["d"].sum() == Decimal("3.0")


async def test_lengths_of_time_become_durations_in_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    for result in await read_both_ways(*encoded("SELECT INTERVAL '36 hours' AS i"), monkeypatch):
        assert result.to_polars()["i"].to_list() == [timedelta(hours=36)]


async def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result = await results(monkeypatch)
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(errors.DoLakeError, match=f"needs {name}.*pip install {name}"):
            getattr(result, f"to_{name}")()


@pytest.mark.parametrize(
    "kind", ["VARCHAR", "BOOLEAN", "UUID", "ENUM('DATE', 'x[]')", '"NULL"', "VARCHAR[]", "NEW_ONE"]
)
def test_what_json_has_itself_is_not_touched(kind: str) -> None:
    assert reader_of(kind) is None
