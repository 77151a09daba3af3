"""Conditions that say plain things of a row, answered with Arrow: DuckDB's statements were half of a round's work.

From pages.py, which asks DuckDB for every other condition. Plain is what has one meaning in both: a column compared
with a value of its own kind, the rest of a division, IN, BETWEEN, IS NULL, and AND, OR and NOT of those. Promise:
exactly DuckDB's answer, or None; tests/query/test_plain_conditions.py compares them. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce
from string import ascii_uppercase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dolake.errors import DoLakeError
from dolake.query.guard import parse_condition
from dolake.query.syntax import Node, Unreadable, read
from dolake.tables.schema import EXACT_MAX

logger = logging.getLogger(__name__)

Find = Callable[[str], pa.Array]
"""The values of a column, by its name in small letters."""
Test = Callable[[Find], pa.Array]
"""For each row true, false or null."""
Value = Callable[[Find], pa.Array]

_COMPARISONS: dict[str, tuple[Any, str]] = {
    "COMPARE_EQUAL": (pc.equal, "COMPARE_EQUAL"),
    "COMPARE_NOTEQUAL": (pc.not_equal, "COMPARE_NOTEQUAL"),
    "COMPARE_LESSTHAN": (pc.less, "COMPARE_GREATERTHAN"),
    "COMPARE_GREATERTHAN": (pc.greater, "COMPARE_LESSTHAN"),
    "COMPARE_LESSTHANOREQUALTO": (pc.less_equal, "COMPARE_GREATERTHANOREQUALTO"),
    "COMPARE_GREATERTHANOREQUALTO": (pc.greater_equal, "COMPARE_LESSTHANOREQUALTO"),
}
"""With the one that means the same when its sides are changed."""
_JUNCTIONS = {"CONJUNCTION_AND": pc.and_kleene, "CONJUNCTION_OR": pc.or_kleene}
_INTEGERS = (pa.int32(), pa.int64())
_DIGITS_MAX = 15
"""So many digits are a double for DuckDB and for us, and the same one."""
_LENGTH_MAX = 500
"""Longer ones are left to DuckDB: each part costs Arrow a pass over the rows, and memory for as long as it is kept."""
_SMALL = {ord(large): ord(large.lower()) for large in ascii_uppercase}


class _NotPlain(Exception):
    """DuckDB must be asked."""


def plain_answer(condition: str, find: Find) -> NDArray[np.bool_] | None:
    """Which rows meet a condition; None where DuckDB must be asked."""
    test = _test_of(condition) if len(condition) <= _LENGTH_MAX else None
    if test is None:
        return None
    try:
        answer = test(find)
    except (_NotPlain, pa.ArrowException):
        return None
    met: NDArray[np.bool_] = pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    return met


def finder(rows: pa.Table) -> Find:
    """For all conditions on these rows."""
    names = [_lower(each) for each in rows.column_names]

    @cache
    def find(name: str) -> pa.Array:
        if names.count(name) != 1:
            raise _NotPlain
        column = rows.column(names.index(name))
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    return find


@lru_cache(maxsize=4096)
def _test_of(condition: str) -> Test | None:
    try:
        return _test(read(f"SELECT 1 WHERE {parse_condition(condition)}")[0]["where_clause"])
    except (_NotPlain, DoLakeError, Unreadable):  # what is wrong is told to who wants it, and not to all of the round
        return None
    except Exception:  # a mistake of ours costs a statement, and nobody the changes
        logger.exception("plain condition could not be read")
        return None


def _test(node: Node) -> Test:
    match node["class"], node["type"]:
        case "COMPARISON", kind if kind in _COMPARISONS:
            return _comparison(kind, node["left"], node["right"])
        case "BETWEEN", "COMPARE_BETWEEN":
            if _is_constant(node["input"]):  # DuckDB makes all three of one type
                raise _NotPlain
            low = _comparison("COMPARE_GREATERTHANOREQUALTO", node["input"], node["lower"])
            high = _comparison("COMPARE_LESSTHANOREQUALTO", node["input"], node["upper"])
            return lambda find: pc.and_kleene(low(find), high(find))
        case "CONJUNCTION", kind if kind in _JUNCTIONS:
            join, tests = _JUNCTIONS[kind], [_test(each) for each in node["children"]]
            return lambda find: reduce(join, [test(find) for test in tests])
        case "OPERATOR", "OPERATOR_NOT":
            denied = _test(node["children"][0])
            return lambda find: pc.invert(denied(find))
        case "OPERATOR", "COMPARE_IN":
            return _one_of(node["children"])
        case "OPERATOR", "COMPARE_NOT_IN":
            among = _one_of(node["children"])
            return lambda find: pc.invert(among(find))
        case "OPERATOR", "OPERATOR_IS_NULL":
            name = _name_of(node["children"][0])
            return lambda find: pc.is_null(find(name))
        case "OPERATOR", "OPERATOR_IS_NOT_NULL":
            name = _name_of(node["children"][0])
            return lambda find: pc.is_valid(find(name))
        case "COLUMN_REF", _:
            return _column_of(node, (pa.bool_(),))
        case _:
            raise _NotPlain


def _comparison(kind: str, left: Node, right: Node) -> Test:
    if _is_constant(left):
        left, right, kind = right, left, _COMPARISONS[kind][1]
    value, constant = _value(left), _constant(right)
    compare = _COMPARISONS[kind][0]
    if isinstance(constant, bool) and compare not in (pc.equal, pc.not_equal):
        raise _NotPlain

    def test(find: Find) -> pa.Array:
        values = value(find)
        return compare(values, _fitting(constant, values))

    return test


def _one_of(nodes: Sequence[Node]) -> Test:
    value, constants = _value(nodes[0]), [_constant(each) for each in nodes[1:]]

    def test(find: Find) -> pa.Array:
        values = value(find)
        if values.type == pa.float64():  # Arrow looks fractions up by their bits
            raise _NotPlain
        known = pa.array([_fitting(each, values).as_py() for each in constants], values.type)
        return pc.if_else(pc.is_valid(values), pc.is_in(values, known), pa.scalar(None, pa.bool_()))

    return test


def _fitting(constant: bool | int | float | str, values: pa.Array) -> pa.Scalar:
    """The constant as a value of this column, where that is how DuckDB compares the two."""
    kind = values.type
    match constant:
        case bool() if kind == pa.bool_():
            return pa.scalar(constant, kind)
        case bool():  # which Python takes for a number
            raise _NotPlain
        case str() if kind == pa.string():
            return pa.scalar(constant, kind)
        case int() if kind in _INTEGERS:
            return pa.scalar(constant, kind)  # one that does not fit is Arrow's error, and so DuckDB's to answer
        case int() | float() if kind == pa.float64() and not _has_nan(values):
            return pa.scalar(float(constant), kind)
        case _:
            raise _NotPlain


def _has_nan(values: pa.Array) -> bool:
    """For DuckDB it is larger than everything, and equal to itself."""
    return bool(pc.any(pc.is_nan(values)).as_py())


def _value(node: Node) -> Value:
    match node["class"], node.get("function_name"):
        case "COLUMN_REF", _:
            return _column(node)
        case "FUNCTION", "%" if node["is_operator"] and len(node["children"]) == 2:
            return _rest(*node["children"])
        case _:
            raise _NotPlain


def _rest(dividend: Node, divisor: Node) -> Value:
    number, column = _constant(divisor), _column_of(dividend, _INTEGERS)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**31:
        raise _NotPlain

    def rest(find: Find) -> pa.Array:
        values = column(find)
        return pc.subtract(values, pc.multiply(pc.divide(values, number), number)).cast(pa.int64())

    return rest


def _column(node: Node) -> Value:
    name = _name_of(node)
    return lambda find: find(name)


def _column_of(node: Node, kinds: Sequence[pa.DataType]) -> Value:
    """One that has one of these types."""
    name = _name_of(node)

    def column(find: Find) -> pa.Array:
        values = find(name)
        if values.type not in kinds:
            raise _NotPlain
        return values

    return column


def _name_of(node: Node) -> str:
    if node["class"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        raise _NotPlain
    return _lower(node["column_names"][0])


def _lower(name: str) -> str:
    """Names that differ in this alone are the same to DuckDB: it knows small letters of ASCII."""
    return name.translate(_SMALL)


def _is_constant(node: Node) -> bool:
    return node["class"] in ("CONSTANT", "CAST")


def _constant(node: Node) -> bool | int | float | str:
    if node["class"] == "CAST":
        return _truth(node)
    if node["class"] != "CONSTANT" or node["value"]["is_null"]:
        raise _NotPlain
    value, kind = node["value"]["value"], node["value"]["type"]
    match kind["id"]:
        case "VARCHAR":
            return str(value)
        case "INTEGER" | "BIGINT" if abs(value) <= EXACT_MAX:
            return int(value)
        case "DECIMAL" if kind["type_info"]["width"] <= _DIGITS_MAX:
            return float(value / 10 ** kind["type_info"]["scale"])
        case "DOUBLE" if isinstance(value, float):
            return value
        case _:
            raise _NotPlain


def _truth(node: Node) -> bool:
    """`true` and `false`, as DuckDB's parser has them."""
    child = node["child"]
    word = child["value"].get("value") if child["class"] == "CONSTANT" else None
    if node["cast_type"]["id"] != "BOOLEAN" or word not in ("t", "f"):
        raise _NotPlain
    return bool(word == "t")
