"""Plain conditions have DuckDB's own answers, whatever the rows are; all others are left to it."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dolake.query.pages import condition_sql
from dolake.query.plain_conditions import finder, plain_answer
from dolake.query.sqltext import literal
from tests.support.property import examples

SCHEMA = pa.schema(
    [
        ("_position", pa.int64()),
        ("small", pa.int32()),
        ("n", pa.int64()),
        ("amount", pa.float64()),
        ("city", pa.string()),
        ("Flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
    ]
)
INTEGERS = [-(2**53), -21, -20, -1, 0, 1, 3, 19, 20, 2**31, 2**53]
FRACTIONS = ["-0.0", "0.0", "0.1", "0.30000000000000004", "1.5", "-1.50", "1e3", "123456789.123456"]
TEXTS = ["", "Oslo", "oslo", "Österbro", "O'Hara", "a%b", "0"]
COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "!="]


integers = st.sampled_from(INTEGERS).map(str)
texts = st.sampled_from(TEXTS).map(literal)
numbers = st.one_of(integers, st.sampled_from(FRACTIONS))
named_integers = st.sampled_from(["n", "N", '"n"', "small", "n % 20", "small % 7", "_position % 3"])
comparisons = st.sampled_from(COMPARISONS)


def compared(names: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{} {} {}".format, names, comparisons, values),
        st.builds("{} {} {}".format, values, comparisons, names),
        st.builds("{} BETWEEN {} AND {}".format, names, values, values),
        st.builds("{} BETWEEN {} AND {}".format, values, names, st.sampled_from(["n", "amount", "small"])),
    )


def listed(names: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(values, min_size=1, max_size=4).map(", ".join)
    return st.builds("{} {} ({})".format, names, st.sampled_from(["IN", "NOT IN"]), lists)


atoms = st.one_of(
    compared(named_integers, numbers),
    compared(st.just("amount"), numbers),
    compared(st.just("city"), texts),
    listed(named_integers, integers),
    listed(st.just("city"), texts),
    listed(st.just("amount"), numbers),
    st.builds(
        "{} IS {} NULL".format, st.sampled_from(["n", "city", "amount", "tags", "flag"]), st.sampled_from(["", "NOT"])
    ),
    st.sampled_from(["flag", "NOT Flag", "flag = true", "flag <> FALSE", "true = flag", "flag > false"]),
    st.sampled_from(["flag = NULL::BOOLEAN", "n = true", "n IS NULL = flag"]),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=5,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "small": st.none() | st.sampled_from([-(2**31), -21, -7, 0, 1, 7, 2**31 - 1]),
            "n": st.none() | st.sampled_from([*INTEGERS, -(2**63), 2**63 - 1]),
            "amount": st.none() | st.sampled_from([float(each) for each in FRACTIONS] + [1e300, float("inf")]),
            "city": st.none() | st.sampled_from([*TEXTS, "Zürich"]),
            "Flag": st.none() | st.booleans(),
            "tags": st.none() | st.just(["a"]),
        }
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def by_duckdb(duck: duckdb.DuckDBPyConnection, table: pa.Table, condition: str) -> list[bool]:
    duck.register("rows", table)
    found = duck.execute(condition_sql("rows", "orders", [f"({condition})"])).fetchall()
    return [bool(met) for _, met in sorted(found)]


def table_of(values: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"_position": at, **row} for at, row in enumerate(values)], SCHEMA)


@given(values=rows, condition=conditions)
@example(values=[{"amount": float("nan")}, {"amount": 1.0}, {}], condition="amount > 0.5")
@example(values=[{"n": -21}], condition="n % 20 = -1")
@settings(max_examples=examples(400))
def test_an_answer_is_duckdbs(duck: duckdb.DuckDBPyConnection, values: list[dict[str, Any]], condition: str) -> None:
    table = table_of(values)
    met = plain_answer(condition, finder(table))
    if met is not None:
        assert met.tolist() == by_duckdb(duck, table, condition)


@pytest.mark.parametrize(
    "condition",
    [
        "n % 20 = 3",
        "3 = n % 20",
        "City = 'Oslo' AND amount >= 1.5",
        "small IN (1, 2) OR NOT flag",
        "tags IS NOT NULL",
        "amount BETWEEN 0 AND 1e3",
        "city NOT IN ('a', 'b')",
    ],
)
def test_what_is_said_most_often_is_plain(condition: str) -> None:
    assert plain_answer(condition, finder(table_of([{"n": 3, "small": 1, "amount": 2.0}]))) is not None


@pytest.mark.parametrize(
    "condition",
    [
        "nothing = 1",
        "((",
        "flag = NULL::BOOLEAN",
        "flag IN (NULL::BOOLEAN)",
        "n % NULL::BOOLEAN = 1",
        "n = true",
        "9007199254740992 BETWEEN n AND amount",
        "n = 1" + " OR n = 1" * 100,
        "amount < 1e400",
        "getenv('HOME') = 'x'",
        "n = 1.5",
        "n = '1'",
        "city = 1",
        "n + 1 = 2",
        "n % 0 = 1",
        "n % -3 = 1",
        "city LIKE 'O%'",
        "orders.n = 1",
        "n = NULL",
        "n IS DISTINCT FROM 1",
        "n = 99999999999999999999",
        "small = 3000000000",
        "lower(city) = 'oslo'",
        "flag > false",
        "n",
        "n = small",
        "amount IN (0.0)",
        "amount = 0.12345678901234567",
    ],
)
def test_what_may_mean_something_else_is_left_to_duckdb(condition: str) -> None:
    assert plain_answer(condition, finder(table_of([{"n": 3}]))) is None


def test_a_fraction_that_is_no_number_is_left_to_duckdb() -> None:
    assert plain_answer("amount > 1", finder(table_of([{"amount": float("nan")}]))) is None


def test_names_are_the_same_where_duckdb_takes_them_for_it() -> None:
    find = finder(pa.table({"_position": [0], "straße": [1], "ÄB": [1], "dup": [1], "DUP": [1], "Éa": [1], "ÉA": [1]}))
    assert plain_answer('"Éa" = 1', find) is None
    assert plain_answer('"STRAßE" = 1', find) is not None
    assert plain_answer("STRASSE = 1", find) is None
    assert plain_answer('"äb" = 1', find) is None
    assert plain_answer("dup = 1", find) is None
    assert plain_answer('"straße" = 1', find) is not None
