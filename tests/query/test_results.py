"""An answer as bytes: every type in its form without loss, in pieces, in bounded memory."""

from __future__ import annotations

import csv
import io
import json
import math
import tracemalloc
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.query.engine import Engine
from dolake.query.results import PIECE_BYTES, Answer, arrow_pieces, csv_pieces, json_pieces, unique
from dolake.query.values import json_values
from dolake.settings import QuerySettings

FORMS = [
    ("NULL::INTEGER", "INTEGER", None),
    ("true", "BOOLEAN", True),
    ("127::TINYINT", "TINYINT", 127),
    ("9007199254740992", "BIGINT", 9007199254740992),
    ("9007199254740993", "BIGINT", "9007199254740993"),
    ("-9007199254740992", "BIGINT", -9007199254740992),
    ("(-9223372036854775808)::BIGINT", "BIGINT", "-9223372036854775808"),
    ("18446744073709551615::UBIGINT", "UBIGINT", "18446744073709551615"),
    ("1::HUGEINT", "HUGEINT", "1"),
    ("170141183460469231731687303715884105727::HUGEINT", "HUGEINT", "170141183460469231731687303715884105727"),
    ("sum(1::BIGINT)", "HUGEINT", "1"),
    ("1.50::DECIMAL(18, 2)", "DECIMAL(18,2)", "1.50"),
    ("-0.00000001::DECIMAL(20, 10)", "DECIMAL(20,10)", "-0.0000000100"),
    ("99999999999999999999999999999999999999::DECIMAL(38, 0)", "DECIMAL(38,0)", "9" * 38),
    ("0.1::DOUBLE", "DOUBLE", 0.1),
    ("1e300::DOUBLE", "DOUBLE", 1e300),
    ("'NaN'::DOUBLE", "DOUBLE", "NaN"),
    ("'Infinity'::DOUBLE", "DOUBLE", "Infinity"),
    ("'-Infinity'::FLOAT", "FLOAT", "-Infinity"),
    ("1.1::FLOAT", "FLOAT", 1.1),
    ("TIMESTAMPTZ '2025-01-14 01:00:00+01'", "TIMESTAMP WITH TIME ZONE", "2025-01-14T00:00:00.000000Z"),
    ("TIMESTAMP '2025-01-14 00:00:00.5'", "TIMESTAMP", "2025-01-14T00:00:00.500000"),
    ("TIMESTAMP_S '2025-01-14 00:00:01'", "TIMESTAMP_S", "2025-01-14T00:00:01.000000"),
    ("TIMESTAMP_NS '2025-01-14 00:00:00.123456789'", "TIMESTAMP_NS", "2025-01-14T00:00:00.123456789"),
    ("TIMESTAMP '0001-01-01'", "TIMESTAMP", "0001-01-01T00:00:00.000000"),
    ("make_timestamp(2147483647)", "TIMESTAMP", "1970-01-01T00:35:47.483647"),
    ("'infinity'::TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", "infinity"),
    ("'-infinity'::DATE", "DATE", "-infinity"),
    ("NULL::TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE", None),
    ("DATE '2025-01-14'", "DATE", "2025-01-14"),
    ("TIME '12:00:01.5'", "TIME", "12:00:01.500000"),
    ("'\\xAA\\x00'::BLOB", "BLOB", "qgA="),
    ("'8c0f5dd2-9a1c-4cf1-bd3e-2f8d5c8a5f6e'::UUID", "UUID", "8c0f5dd2-9a1c-4cf1-bd3e-2f8d5c8a5f6e"),
    ("'a'::ENUM('a', 'b')", "ENUM('a', 'b')", "a"),
    ("'{\"x\": 1}'::JSON", "JSON", '{"x": 1}'),
    ("[1, NULL, 9007199254740993]", "BIGINT[]", [1, None, "9007199254740993"]),
    ("[]::INTEGER[]", "INTEGER[]", []),
    ("[[1.5::DECIMAL(9, 1)], NULL]", "DECIMAL(9,1)[][]", [["1.5"], None]),
    ("[1, 2]::INTEGER[2]", "INTEGER[2]", [1, 2]),
    ("{'a': 1, 'b': [TIMESTAMP '2025-01-14']}", None, {"a": 1, "b": ["2025-01-14T00:00:00.000000"]}),
    ("NULL::STRUCT(a INTEGER)", "STRUCT(a INTEGER)", None),
    ("MAP {'k': 1, 'l': NULL}", "MAP(VARCHAR, INTEGER)", [{"key": "k", "value": 1}, {"key": "l", "value": None}]),
    ("union_value(n := 2::HUGEINT)", "UNION(n HUGEINT)", "2"),
    ("INTERVAL '14 months 2 days 3.5 seconds'", "INTERVAL", "1 year 2 months 2 days 00:00:03.5"),
    ("INTERVAL '0 seconds'", "INTERVAL", "00:00:00"),
    ("INTERVAL '-90 minutes'", "INTERVAL", "-01:30:00"),
    ("'line\nwith \"quotes\" and \U0001f986'", "VARCHAR", 'line\nwith "quotes" and \U0001f986'),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(QuerySettings(threads=2), [], tmp_path_factory.mktemp("scratch"))
    yield engine
    engine.close()


def as_json(engine: Engine, sql: str, rows_max: int = 10**9) -> Any:
    with engine.start(sql) as running:
        answer = Answer("q1", running.columns, {"position": 7}, ["careful"])
        return json.loads(b"".join(json_pieces(answer, answer.cut(running.batches(), rows_max))))


def as_csv(engine: Engine, sql: str, rows_max: int = 10**9) -> str:
    with engine.start(sql) as running:
        answer = Answer("q1", running.columns)
        return b"".join(csv_pieces(answer, answer.cut(running.batches(), rows_max))).decode()


def as_arrow(engine: Engine, sql: str, rows_max: int = 10**9) -> Any:
    with engine.start(sql) as running:
        answer = Answer("q1", running.columns, {"position": 7}, ["careful"])
        data = b"".join(arrow_pieces(answer, answer.cut(running.batches(), rows_max), running.schema))
    return pa.ipc.open_stream(data)


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expression", "kind", "value"), FORMS, ids=[form[0][:40] for form in FORMS])
def test_every_type_has_its_form(engine: Engine, expression: str, kind: str | None, value: Any) -> None:
    answer = as_json(engine, f"SELECT {expression} AS x")
    assert answer["rows"] == [{"x": value}]
    assert kind is None or answer["columns"] == [{"name": "x", "type": kind, "nullable": True}]


@pytest.mark.parametrize(("expression", "value"), [(form[0], form[2]) for form in FORMS if "(1" not in form[0]][:30])
def test_a_form_is_the_same_beside_nulls(engine: Engine, expression: str, value: Any) -> None:
    sql = f"SELECT CASE WHEN i = 1 THEN NULL ELSE {expression} END AS x FROM range(3) t(i) ORDER BY i"  # noqa: S608
    rows = as_json(engine, sql)
    assert [row["x"] for row in rows["rows"]] == [value, None, value]


def test_an_answer_says_all_that_belongs_to_it(engine: Engine) -> None:
    answer = as_json(engine, "SELECT 1 AS a, 'x' AS b")
    assert list(answer) == [
        "queryId", "columns", "rows", "rowCount", "truncated", "warnings", "freshness", "elapsedMs",
    ]  # fmt: skip
    assert answer["queryId"] == "q1"
    assert (answer["rowCount"], answer["truncated"]) == (1, False)
    assert (answer["warnings"], answer["freshness"]) == (["careful"], {"position": 7})
    assert answer["elapsedMs"] >= 0


def test_an_answer_without_rows_has_its_columns(engine: Engine) -> None:
    answer = as_json(engine, "SELECT 1 AS a WHERE false")
    assert (answer["rows"], answer["rowCount"]) == ([], 0)
    assert answer["columns"] == [{"name": "a", "type": "INTEGER", "nullable": True}]


def test_a_column_name_that_comes_again_gets_a_number(engine: Engine) -> None:
    answer = as_json(engine, "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a")
    assert answer["rows"] == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
    assert [column["name"] for column in answer["columns"]] == ["a", "a_2", "a_1", "a_3"]


@pytest.mark.parametrize("name", ['with "quotes"', "line\nbreak", "back\\slash", "ключ", "", "a b"])
def test_a_column_may_have_any_name(engine: Engine, name: str) -> None:
    quoted = name.replace('"', '""')
    sql = f'SELECT 1 AS "{quoted}"' if name else "SELECT 1 AS x"
    assert as_json(engine, sql)["rows"] == [{name or "x": 1}]
    assert next(csv.reader(io.StringIO(as_csv(engine, sql)))) == [name or "x"]


@pytest.mark.parametrize(
    ("rows_max", "count", "is_cut"), [(0, 0, True), (1, 1, True), (4_999, 4_999, True), (5_000, 5_000, False)]
)
def test_rows_beyond_the_limit_are_cut_and_that_is_said(
    engine: Engine, rows_max: int, count: int, *, is_cut: bool
) -> None:
    sql = "SELECT i FROM range(5000) t(i)"
    answer = as_json(engine, sql, rows_max)
    assert (len(answer["rows"]), answer["rowCount"], answer["truncated"]) == (count, count, is_cut)
    assert len(as_csv(engine, sql, rows_max).splitlines()) == 1 + count
    assert as_arrow(engine, sql, rows_max).read_all().num_rows == count


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=8))
def test_names_become_unique_and_those_that_are_stay(names: list[str]) -> None:
    found = unique(names)
    assert len(set(found)) == len(names)
    assert all(own == name or own.startswith(f"{name}_") for own, name in zip(found, names, strict=True))
    assert [own for own, name in zip(found, names, strict=True) if names.count(name) == 1] == [
        name for name in names if names.count(name) == 1
    ]


@given(st.lists(st.none() | st.decimals(min_value=-(10**20), max_value=10**20, places=8)))
def test_decimals_lose_nothing(values: list[Decimal | None]) -> None:
    texts = json_values(pa.array(values, pa.decimal128(38, 8)))
    assert [None if text is None else Decimal(text) for text in texts] == values
    assert not any("E" in text for text in texts if text)


@given(st.lists(st.none() | st.floats()))
def test_doubles_lose_nothing(values: list[float | None]) -> None:
    found = json.loads(json.dumps(json_values(pa.array(values, pa.float64()))))
    for value, told in zip(values, found, strict=True):
        if value is None:
            assert told is None
        elif math.isnan(value):
            assert told == "NaN"
        else:
            assert float(told) == value


# --- CSV and Arrow ---------------------------------------------------------------------------------------------------


def test_csv_follows_rfc_4180_and_tells_nothing_from_empty(engine: Engine) -> None:
    text = as_csv(engine, """SELECT 1 AS id, 'a,"b"\n' AS "the, name", NULL AS x, '' AS y, [1.5::DECIMAL(3, 1)] AS z""")
    assert text == 'id,"the, name",x,y,z\r\n1,"a,""b""\n",,"","[""1.5""]"\r\n'


def test_csv_has_values_as_json_has_them(engine: Engine) -> None:
    sql = (
        "SELECT TIMESTAMPTZ '2025-01-14' AS a, 1.5::DECIMAL(3, 1) AS b, 'NaN'::DOUBLE AS c, true AS d, "
        "0.5::DOUBLE AS e, DATE '2025-01-14' AS f, {'x': 1} AS g, 1::HUGEINT AS h, NULL::DOUBLE AS i"
    )
    (row,) = csv.DictReader(io.StringIO(as_csv(engine, sql)))
    assert row == {
        "a": "2025-01-14T00:00:00.000000Z", "b": "1.5", "c": "NaN", "d": "true", "e": "0.5",
        "f": "2025-01-14", "g": '{"x":1}', "h": "1", "i": "",
    }  # fmt: skip


def test_arrow_has_its_notes_in_the_schema_and_the_counts_at_the_end(engine: Engine) -> None:
    stream = as_arrow(engine, "SELECT i, i AS i FROM range(10) t(i) ORDER BY i", rows_max=5)
    notes = json.loads(stream.schema.metadata[b"dolake"])
    assert (notes["queryId"], notes["freshness"], notes["warnings"]) == ("q1", {"position": 7}, ["careful"])
    assert [column["type"] for column in notes["columns"]] == ["BIGINT", "BIGINT"]
    batches = []
    last: dict[bytes, bytes] = {}
    for batch, metadata in stream.iter_batches_with_custom_metadata():
        batches.append(batch)
        last = dict(metadata or {})
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["i", "i_1"]
    assert table.column(0).to_pylist() == [0, 1, 2, 3, 4]
    counts = json.loads(last[b"dolake"])
    assert (counts["rowCount"], counts["truncated"]) == (5, True)


# --- pieces ----------------------------------------------------------------------------------------------------------


def wide_batches(count: int) -> Iterator[pa.RecordBatch]:
    for _ in range(count):
        yield pa.record_batch({"id": range(2048), "text": ["x" * 1_000] * 2048})


@pytest.mark.parametrize("encode", [json_pieces, csv_pieces])
def test_pieces_are_of_a_size_that_is_worth_sending(encode: Any) -> None:
    answer = Answer("q1", [("id", "BIGINT"), ("text", "VARCHAR")])
    sizes = [len(piece) for piece in encode(answer, answer.cut(wide_batches(4), 10**9))]
    assert all(PIECE_BYTES <= size <= 8 * PIECE_BYTES for size in sizes[:-1])
    assert len(sizes) > 4


@pytest.mark.parametrize("encode", [json_pieces, csv_pieces])
def test_memory_does_not_grow_with_the_answer(encode: Any) -> None:
    def peak(batches: Iterable[pa.RecordBatch]) -> int:
        answer = Answer("q1", [("id", "BIGINT"), ("text", "VARCHAR")])
        tracemalloc.start()
        for _ in encode(answer, answer.cut(batches, 10**9)):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(wide_batches(40)) < 1.5 * peak(wide_batches(4)) + 1_000_000


def test_a_row_is_never_split_over_the_limit_of_memory(engine: Engine, tmp_path: Path) -> None:
    answer = as_json(engine, "SELECT repeat('x', 3_000_000) AS x FROM range(3)")
    assert [len(row["x"]) for row in answer["rows"]] == [3_000_000] * 3
