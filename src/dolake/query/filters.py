"""The simple conditions of a WHERE, for leaving out files unread: columns compared with constants, joined by AND.

From survey.py, with DuckDB's tree of the WHERE; to plan.py, as Filters. Pure. Promise: a row that fails a condition
found here fails the whole WHERE; what is not understood is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import NamedTuple

from dolake.query.statement import Operator, ParameterRef, Value
from dolake.query.syntax import Node

_COMPARISONS: dict[str, tuple[Operator, Operator]] = {
    "COMPARE_EQUAL": ("=", "="),
    "COMPARE_LESSTHAN": ("<", ">"),
    "COMPARE_LESSTHANOREQUALTO": ("<=", ">="),
    "COMPARE_GREATERTHAN": (">", "<"),
    "COMPARE_GREATERTHANOREQUALTO": (">=", "<="),
}
"""And the same from the other side."""
_TESTS: dict[str, Operator] = {"OPERATOR_IS_NULL": "is_null", "OPERATOR_IS_NOT_NULL": "not_null"}
_TOO_FINE = re.compile(r"\.\d{7}")
_INTEGERS = frozenset(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"))


class Condition(NamedTuple):
    """A column, as the statement writes it, and what it is compared with."""

    column: tuple[str, ...]
    op: Operator
    values: tuple[Value | ParameterRef, ...] = ()


def conditions(where: Node | None) -> Iterator[Condition]:
    """Those of a WHERE that every row must meet."""
    stack = [where] if where else []
    while stack:
        node = stack.pop()
        if node["type"] == "CONJUNCTION_AND":
            stack.extend(reversed(node["children"]))
        else:
            yield from _simple(node)


def constant(node: Node) -> Value | ParameterRef | None:
    """The value of a literal; None where it is none, or NULL."""
    match node["class"]:
        case "PARAMETER":
            return ParameterRef(node["identifier"])
        case "CONSTANT":
            return _literal(node["value"])
        case "CAST" if not node["try_cast"] and node["child"]["class"] == "CONSTANT":
            return _cast(_literal(node["child"]["value"]), node["cast_type"]["id"])
    return None


def _simple(node: Node) -> Iterator[Condition]:
    match node["class"]:
        case "COMPARISON" if node["type"] in _COMPARISONS:
            forth, back = _COMPARISONS[node["type"]]
            yield from _compared(node["left"], forth, [node["right"]])
            yield from _compared(node["right"], back, [node["left"]])
        case "BETWEEN" if node["type"] == "COMPARE_BETWEEN":
            yield from _compared(node["input"], ">=", [node["lower"]])
            yield from _compared(node["input"], "<=", [node["upper"]])
        case "OPERATOR" if node["type"] == "COMPARE_IN":
            yield from _compared(node["children"][0], "in", node["children"][1:])
        case "OPERATOR" if node["type"] in _TESTS:
            yield from _compared(node["children"][0], _TESTS[node["type"]], [])


def _compared(left: Node, op: Operator, right: list[Node]) -> Iterator[Condition]:
    values = tuple(value for each in right if (value := constant(each)) is not None)
    if left["class"] == "COLUMN_REF" and len(values) == len(right):
        yield Condition(tuple(left["column_names"]), op, values)


def _literal(value: Node) -> Value | None:
    if value["is_null"]:
        return None
    kind, found = value["type"]["id"], value["value"]
    if kind == "DECIMAL" and isinstance(found, int):
        return Decimal(found).scaleb(-value["type"]["type_info"]["scale"])
    if kind == "HUGEINT" and isinstance(found, dict):
        return int(found.get("upper", 0)) * 2**64 + int(found.get("lower", 0))
    return found if isinstance(found, int | float | str | bool) else None


def _cast(value: Value | None, kind: str) -> Value | None:
    """Only casts that lose nothing, and times up to microseconds."""
    if isinstance(value, str):
        return value if kind == "VARCHAR" else None if _TOO_FINE.search(value) else _time(value.strip(), kind)
    if isinstance(value, int) and kind in _INTEGERS:
        return value
    return None


def _time(text: str, kind: str) -> Value | None:
    try:
        match kind:
            case "DATE":
                return date.fromisoformat(text)
            case "TIMESTAMP":
                return datetime.fromisoformat(text).replace(tzinfo=None)
            case "TIMESTAMP WITH TIME ZONE":
                return datetime.fromisoformat(text)
            case "BOOLEAN":
                return {"t": True, "f": False}.get(text)
    except ValueError:
        pass
    return None
