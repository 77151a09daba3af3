"""SQL as DuckDB itself reads it: its own parser, and its tree as plain dicts.

For guard.py. The tree comes from the parser that will read the statement again when it runs: a second one with its own
ideas of comments, quotes or precedence would let through what it misunderstands. Nothing is looked up and nothing runs.
Promise: a tree, or Unreadable.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import duckdb
import msgspec

from dolake.query.sqltext import literal

Node = dict[str, Any]

DEPTH_MAX = 200
"""Of expressions, joins and queries in each other; deeper ones end in an error long before Python's stack does."""
_UNORDERED = frozenset(("exclude_list", "qualified_exclude_list"))
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_CONFIG: dict[str, Any] = {
    "threads": 1,
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}
_lock = threading.Lock()
_database: duckdb.DuckDBPyConnection | None = None
_free: list[duckdb.DuckDBPyConnection] = []
"""Connections that nobody uses now: as many as there were questions at once."""


class Unreadable(Exception):
    """What DuckDB says about a text that is not SQL, and where in it."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.message, self.position = message, position


def read(sql: str) -> list[Node]:
    """The trees of the statements in this text."""
    try:
        answer = _decode(_answer("read", sql))
    except msgspec.DecodeError as error:  # DuckDB says inf, which is no JSON
        raise Unreadable(f"a number is too large: {error}") from error
    if answer["error"]:
        position = answer.get("position")
        raise Unreadable(answer["error_message"], int(position) if position else None)
    return [each["node"] for each in answer["statements"]]


def parts(tree: Any) -> list[Node]:
    """Everything in a tree, itself first. Inside of constants nothing is looked for."""
    found: list[Node] = []
    stack = [tree]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            found.append(item)
            if item.get("class") != "CONSTANT":
                stack.extend([value for value in item.values() if type(value) is dict or type(value) is list])
        elif type(item) is list:
            stack.extend(item)
    return found


def copy_of(tree: Node) -> Node:
    copied: Node = _decode(_encode(tree))
    return copied


def is_same(one: Node, other: Node) -> bool:
    """Whether two trees differ only in where their parts stand. Forgets that in both."""
    for each in (*parts(one), *parts(other)):
        each.pop("query_location", None)
        if each.get("class") == "STAR":
            for key in _UNORDERED & each.keys():
                each[key] = sorted(each[key], key=repr)
    return one == other


def name_of(expression: Node) -> str:
    """How DuckDB calls a column that has no other name."""
    statement = {"node": select_of(expression), "named_param_map": []}
    sql = _answer("write", _encode({"error": False, "statements": [statement]}).decode())
    return sql.removeprefix("SELECT ")


def select_of(expression: Node) -> Node:
    """A SELECT of this alone."""
    return {**read("SELECT 1")[0], "select_list": [expression]}


def subquery_of(column: str) -> Node:
    """A query behind FROM that gives this column."""
    tree: Node = _decode(_subquery())
    tree["subquery"]["node"]["select_list"][0]["column_names"] = [column]
    return tree


@cache
def _subquery() -> bytes:
    return _encode(read("FROM (SELECT x) AS y")[0]["from_table"])


def _answer(prepared: str, argument: str) -> str:
    """What DuckDB says. A connection that had to complain is not used again, nor is its database."""
    try:
        connection = _free.pop()
    except IndexError:
        connection = _connect()
    try:
        # A literal, since a parameter costs as much as the rest: DuckDB looks for pandas and others each time.
        row = connection.execute(f"EXECUTE {prepared}({literal(argument)})").fetchone()
    except duckdb.Error as error:
        _forget()
        raise Unreadable(str(error)) from error
    _free.append(connection)
    if row is None:
        raise Unreadable("there is nothing to read")
    return str(row[0])


def _connect() -> duckdb.DuckDBPyConnection:
    """One more to an empty database, which can reach nothing."""
    global _database
    with _lock:
        if _database is None:
            _database = duckdb.connect(config=_CONFIG)
        connection = _database.cursor()
    connection.execute(f"SET max_expression_depth = {DEPTH_MAX}")
    connection.execute("PREPARE read AS SELECT json_serialize_sql($1::VARCHAR)")
    connection.execute("PREPARE write AS SELECT json_deserialize_sql($1::VARCHAR::JSON)")
    return connection


def _forget() -> None:
    """After an error of its own a database may refuse everything; the next question gets a new one."""
    global _database
    with _lock:
        _database = None
        _free.clear()
