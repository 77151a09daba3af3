"""What SQL may say: one SELECT over tables of the lake, made of known parts and known functions.

From answering.py, with what a user sent; to statement.py. DuckDB's own parser makes the tree (syntax.py); what is in it
and not listed here or in functions.py is refused. Tables are replaced by marks, and DuckDB reads the result once more:
what runs is the tree that was checked, with a relation where a table stood. DuckDB's own settings are the second wall
(engine.py). Pure. Promise: parse() returns a statement that can name no file, no catalog, no setting and no function
with an effect, or raises InvalidSql or ForbiddenSql, and nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dolake.errors import ForbiddenSql, InvalidSql
from dolake.query.functions import AGGREGATES, FUNCTIONS, GROWING, SESSION_NAMES, TABLE_FUNCTIONS, TYPES, words
from dolake.query.marking import Marking
from dolake.query.show_statements import as_select
from dolake.query.spelling import Text, spell
from dolake.query.statement import Filter, ParameterRef, Parameters, Reference, Statement
from dolake.query.survey import Survey
from dolake.query.syntax import Node, Unreadable, is_same, parts, read

__all__ = ["Filter", "ParameterRef", "Parameters", "Reference", "Statement", "parse", "parse_condition"]

_KEPT_LENGTH_MAX = 10_000
_WITH_CONDITION = "SELECT * FROM x WHERE ("
_ONLY_SELECT = "only a single SELECT can be asked"

_EXPRESSIONS: dict[str, frozenset[str]] = {
    "BETWEEN": frozenset(("COMPARE_BETWEEN", "COMPARE_NOT_BETWEEN")),
    "CASE": frozenset(("CASE_EXPR",)),
    "CAST": frozenset(("OPERATOR_CAST",)),
    "COLLATE": frozenset(("COLLATE",)),
    "COLUMN_REF": frozenset(("COLUMN_REF",)),
    "COMPARISON": words(
        """COMPARE_EQUAL COMPARE_NOTEQUAL COMPARE_LESSTHAN COMPARE_GREATERTHAN COMPARE_LESSTHANOREQUALTO
        COMPARE_GREATERTHANOREQUALTO COMPARE_DISTINCT_FROM COMPARE_NOT_DISTINCT_FROM"""
    ),
    "CONJUNCTION": frozenset(("CONJUNCTION_AND", "CONJUNCTION_OR")),
    "CONSTANT": frozenset(("VALUE_CONSTANT",)),
    "FUNCTION": frozenset(("FUNCTION",)),
    "LAMBDA": frozenset(("LAMBDA",)),
    "OPERATOR": words(
        """ARRAY_CONSTRUCTOR ARRAY_EXTRACT ARRAY_SLICE COMPARE_IN COMPARE_NOT_IN GROUPING_FUNCTION OPERATOR_COALESCE
        OPERATOR_IS_NOT_NULL OPERATOR_IS_NULL OPERATOR_NOT OPERATOR_NULLIF OPERATOR_TRY OPERATOR_UNPACK
        STRUCT_EXTRACT"""
    ),
    "PARAMETER": frozenset(("VALUE_PARAMETER",)),
    "POSITIONAL_REFERENCE": frozenset(("POSITIONAL_REFERENCE",)),
    "STAR": frozenset(("STAR",)),
    "SUBQUERY": frozenset(("SUBQUERY",)),
    "WINDOW": words(
        """WINDOW_AGGREGATE WINDOW_CUME_DIST WINDOW_FILL WINDOW_FIRST_VALUE WINDOW_LAG WINDOW_LAST_VALUE WINDOW_LEAD
        WINDOW_NTH_VALUE WINDOW_NTILE WINDOW_PERCENT_RANK WINDOW_RANK WINDOW_RANK_DENSE WINDOW_ROW_NUMBER"""
    ),
}
_NODES = words(
    """SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE
    BASE_TABLE EMPTY EXPRESSION_LIST JOIN PIVOT SUBQUERY TABLE_FUNCTION
    ORDER_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER DISTINCT_MODIFIER ORDER_DEFAULT ASCENDING DESCENDING
    DECIMAL_TYPE_INFO LIST_TYPE_INFO STRUCT_TYPE_INFO ARRAY_TYPE_INFO STRING_TYPE_INFO UNBOUND_TYPE_INFO"""
)
"""Queries, what stands behind FROM, the rest of a query, and what types are made of."""


def parse(sql: str, namespace: str = "default") -> Statement:
    """Read a statement. Bare names are tables of this namespace."""
    return _kept(sql, namespace) if len(sql) <= _KEPT_LENGTH_MAX else _parse(sql, namespace)


def _parse(sql: str, namespace: str) -> Statement:
    text = spell(as_select(sql, namespace))
    try:
        tree = _only_tree(read(text.sql))
        _check(tree, text)
        survey = Survey(namespace)
        survey.take(tree)
        marking = Marking(survey, text, tree)
        marked = marking.apply()
        _check_tables(tree, survey.common_names)
        _check_same(marked, tree)
    except Unreadable as error:
        raise _refused(error, text) from error
    except RecursionError as error:
        raise InvalidSql("the statement is nested too deeply") from error
    return Statement(marking.references, text.parameters, tuple(marking.pieces(marked)), frozenset(survey.common_names))


_kept = lru_cache(maxsize=512)(_parse)


@lru_cache(maxsize=4096)
def parse_condition(condition: str) -> str:
    """A condition on the columns of one row, as text that can stand behind WHERE and means nothing else there.

    What is checked is a whole statement with the condition in its place: whatever closes the parenthesis, adds a clause
    or another statement makes a tree that differs from a plain one in more than its condition.
    """
    text = spell(condition)
    if text.parameters.kind != "none":
        raise InvalidSql("a condition has no parameters", hint="write the values into it")
    if not text.tokens:
        raise InvalidSql("the condition is empty", hint="leave it out, or write one such as amount > 100")
    try:
        tree, plain = (_only_tree(read(_WITH_CONDITION + each + ")")) for each in (text.sql, "y"))
        found = tree.pop("where_clause", None)
        plain.pop("where_clause")
        if not found or not is_same(tree, plain):
            raise InvalidSql("this is more than one condition", hint="write what may stand behind WHERE, and no more")
        for each in parts(found):
            if "query_location" in each:
                each["query_location"] -= len(_WITH_CONDITION)
        _check(found, text)
        _check_condition(found)
    except Unreadable as error:
        if error.position is not None:
            error.position = max(0, error.position - len(_WITH_CONDITION))
        raise _refused(error, text) from error
    except RecursionError as error:
        raise InvalidSql("the condition is nested too deeply") from error
    return f"({text.sql})"


_NOT_OF_ONE_ROW = AGGREGATES | TABLE_FUNCTIONS | GROWING


def _check_condition(tree: Node) -> None:
    """Only what can be said of one row."""
    for item in parts(tree):
        if item.get("class") in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER", "POSITIONAL_REFERENCE"):
            raise ForbiddenSql(f"{_words(item['class'])} cannot be used in a condition on one row")
        if item.get("class") == "FUNCTION" and item["function_name"].lower() in _NOT_OF_ONE_ROW:
            raise ForbiddenSql(f"the function {item['function_name'][:80]} cannot be used in a condition on one row")


def _only_tree(trees: list[Node]) -> Node:
    if not trees:
        raise InvalidSql("there is no statement", hint="send a SELECT")
    if len(trees) > 1:
        raise ForbiddenSql(_ONLY_SELECT, hint=f"there are {len(trees)} statements; send them one by one")
    return trees[0]


def _check_same(marked: str, tree: Node) -> None:
    """DuckDB reads the text that will run, and finds the tree that was checked."""
    try:
        trees = read(marked)
    except Unreadable as error:
        raise InvalidSql("a table cannot stand here", hint="write SELECT ... FROM ...") from error
    if len(trees) != 1 or not is_same(trees[0], tree):
        raise InvalidSql("the statement cannot be read again as it was", hint="write it in a plainer way")


def _refused(error: Unreadable, text: Text) -> InvalidSql | ForbiddenSql:
    """DuckDB's words for it, with the place in the user's text."""
    message = error.message
    if message.startswith("Only SELECT") or "SELECT INTO" in message or "locking clause" in message:
        return ForbiddenSql(
            _ONLY_SELECT, hint="nothing can be changed here; a PIVOT must name its values with IN (...)"
        )
    if "NameListToString" in message:
        return InvalidSql("a table's name has too many parts", hint='put the namespace into quotes: "a.b.c".orders')
    if "expression depth" in message or message.startswith("memory exhausted"):
        return InvalidSql("the statement is nested too deeply")
    place = f", {text.line_and_column(error.position)}" if error.position is not None else ""
    return InvalidSql(f"{message[:500]}{place}")


# --- what is allowed --------------------------------------------------------------------------------------------------


def _check(tree: Node, text: Text) -> None:
    """Every part of the tree is one of those listed."""
    for item in parts(tree):
        if "class" in item:
            _check_expression(item, item["type"], text)
        elif "type_info" in item:
            _check_type(item)
        elif isinstance(item.get("type"), str):
            _check_node(item, item["type"], text)


def _check_expression(item: Node, kind: Any, text: Text) -> None:
    if kind not in _EXPRESSIONS.get(item["class"], ()):
        raise ForbiddenSql(f"{_words(kind)} cannot be used{_place_of(item, text)}")
    if item["class"] in ("FUNCTION", "WINDOW"):
        name = item["function_name"].lower()
        if name not in FUNCTIONS and name not in TABLE_FUNCTIONS:
            hint = "functions that compute something of numbers, texts, times, JSON and lists can"
            raise ForbiddenSql(f"the function {name[:80]} cannot be used{_place_of(item, text)}", hint=hint)
    elif item["class"] == "COLUMN_REF" and len(item["column_names"]) == 1:
        name = item["column_names"][0].lower()
        if name in SESSION_NAMES:
            raise ForbiddenSql(f"{name} cannot be used", hint=f"if it is a column, say of which table: o.{name}")


def _check_type(item: Node) -> None:
    name = item["id"]
    if name == "UNBOUND":
        info = item["type_info"] or {}
        name = str(info.get("name", "")).upper() if not info.get("schema") and not info.get("catalog") else ""
    if name not in TYPES:
        raise ForbiddenSql(f"the type {name[:80] or 'of another catalog'} cannot be used")


def _check_node(item: Node, kind: str, text: Text) -> None:
    if kind == "SHOW_REF":
        hint = "these can: SHOW TABLES [FROM namespace], SHOW NAMESPACES, DESCRIBE table, as a statement of their own"
        raise ForbiddenSql("this form of SHOW, DESCRIBE or SUMMARIZE cannot be used", hint=hint)
    if kind not in _NODES:
        raise ForbiddenSql(f"{_words(kind)} cannot be used{_place_of(item, text)}")
    if kind == "TABLE_FUNCTION" and item["function"].get("function_name", "").lower() not in TABLE_FUNCTIONS:
        name = str(item["function"].get("function_name"))[:80]
        hint = f"behind FROM can stand tables, queries, and {', '.join(sorted(TABLE_FUNCTIONS))}"
        raise ForbiddenSql(f"the function {name} cannot be used as a table{_place_of(item, text)}", hint=hint)
    if kind == "PIVOT" and any(each.get("pivot_enum") or each.get("subquery") for each in item["pivots"]):
        raise ForbiddenSql("a PIVOT must name its values", hint="write ON column IN (...)")


def _check_tables(tree: Node, allowed: set[str]) -> None:
    """What is left as a table is a WITH of the statement's own."""
    for item in parts(tree):
        if item.get("type") == "BASE_TABLE" and (item["table_name"].lower() not in allowed or item["catalog_name"]):
            raise ForbiddenSql(f"{item['table_name'][:80]} cannot be used as a table here")


def _words(kind: Any) -> str:
    return str(kind).replace("_", " ")


def _place_of(item: Node, text: Text) -> str:
    index = text.index_at(item.get("query_location", -1))
    return f", {text.place_of(index)}" if index is not None else ""
