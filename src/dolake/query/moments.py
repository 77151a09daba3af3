"""When a table is asked about, as a statement says it behind the table's name.

From spelling.py, as tokens: `FOR SYSTEM_TIME AS OF ...` and its like become DuckDB's `AT (TIMESTAMP => ...)`, behind
the alias where DuckDB wants it. From survey.py, as DuckDB's tree: what the clause means. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dolake.errors import InvalidSql
from dolake.query.filters import constant
from dolake.query.functions import words
from dolake.query.statement import ParameterRef
from dolake.query.syntax import Node, is_same, parts, read, select_of
from dolake.query.tokens import Token, closing, place_in

_NO_ALIAS = words(
    """all analyse analyze and any anti array as asc asof asymmetric at authorization binary both by case cast check
    collate collation column columns constraint create cross default deferrable desc describe distinct do else end
    except false fetch for foreign freeze from full generated glob group having ilike in initially inner intersect into
    is isnull join lambda lateral leading left like limit map natural not notnull null offset on only or order outer
    overlaps pivot pivot_longer pivot_wider placing positional primary qualify references returning right select semi
    show similar some struct summarize symmetric table tablesample then to trailing true try_cast union unique unpack
    unpivot using variadic verbose when where window with"""
)
"""DuckDB's reserved words, and those that cannot name a table without quotes."""
_TIMES = frozenset(("system_time", "timestamp"))
_VERSIONS = frozenset(("system_version", "version"))
_UNITS = re.compile(r"(?:year|quarter|month|week|day|hour|minute|second|millisecond|microsecond)s?", re.IGNORECASE)
_NO_CONSTANT = frozenset(("PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "WINDOW"))
_CLOCKS = frozenset(("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"))


# --- as text ----------------------------------------------------------------------------------------------------------


def with_time_travel(tokens: Sequence[Token], sql: str) -> Sequence[Token]:
    """Every clause about the past as `AT (TIMESTAMP => ...)` or `AT (VERSION => ...)`, behind the alias."""
    if not any(token.word in ("for", "at") for token in tokens):
        return tokens
    spelled: list[Token] = []
    at = 0
    while at < len(tokens):
        clause = _for_clause(tokens, at, sql) or _at_clause(tokens, at)
        if clause is None:
            spelled.append(tokens[at])
            at += 1
            continue
        unit, value, end = clause
        alias_end = _alias_end(tokens, end)
        spelled += tokens[end:alias_end]
        spelled += _at(unit, value, tokens[at].start)
        at = alias_end
    return spelled


def _at(unit: str, value: Sequence[Token], start: int) -> list[Token]:
    opened = [Token("word", "AT", start, " "), Token("sign", "(", start, " "), Token("word", unit, start, "")]
    arrow = Token("sign", "=>", start, " ")
    return [*opened, arrow, value[0]._replace(gap=" "), *value[1:], Token("sign", ")", start, "")]


def _at_clause(tokens: Sequence[Token], at: int) -> tuple[str, Sequence[Token], int] | None:
    """`AT (TIMESTAMP => ...)`, as DuckDB has it."""
    words = [token.text.lower() for token in tokens[at : at + 4]]
    if words[:2] != ["at", "("] or len(words) < 4 or words[2] not in ("timestamp", "version") or words[3] != "=>":
        return None
    end = closing(tokens, at + 1)
    value = tokens[at + 4 : end]
    return (words[2].upper(), value, end + 1) if value and end < len(tokens) else None


def _for_clause(tokens: Sequence[Token], at: int, sql: str) -> tuple[str, Sequence[Token], int] | None:
    """`FOR SYSTEM_TIME AS OF ...` and its like."""
    words = [token.word for token in tokens[at : at + 4]]
    if words[:1] != ["for"] or words[2:] != ["as", "of"] or words[1] not in _TIMES | _VERSIONS:
        return None
    end = _value_end(tokens, at + 4)
    if end is None:
        hint = "a text, a number, or a sum of such and of intervals: NOW() - INTERVAL '1 hour'"
        raise InvalidSql(f"there is no moment behind AS OF at {place_in(sql, tokens[at].start)}", hint=hint)
    return ("TIMESTAMP" if words[1] in _TIMES else "VERSION"), tokens[at + 4 : end], end


def _value_end(tokens: Sequence[Token], at: int) -> int | None:
    """Where a sum of values ends; an alias may follow it, so not every expression can stand here."""
    end = _operand_end(tokens, at)
    while end is not None and end < len(tokens) and tokens[end].text in ("+", "-"):
        end = _operand_end(tokens, end + 1)
    return end


def _operand_end(tokens: Sequence[Token], at: int) -> int | None:
    if at >= len(tokens):
        return None
    token = tokens[at]
    if token.kind in ("string", "number", "parameter"):
        end = at + 1
    elif token.text == "(":
        end = closing(tokens, at) + 1
    elif token.kind == "word":
        end = at + 1
        words = [each.word for each in tokens[end : end + 3]]
        if words == ["with", "time", "zone"]:
            end += 3
        if end < len(tokens) and tokens[end].kind in ("string", "number") and token.word not in _NO_ALIAS:
            end += 1
        elif end < len(tokens) and tokens[end].text == "(":
            end = closing(tokens, end) + 1
        if token.word == "interval" and end < len(tokens) and _UNITS.fullmatch(tokens[end].text):
            end += 1
    else:
        return None
    return _cast_end(tokens, end)


def _cast_end(tokens: Sequence[Token], end: int) -> int:
    while end + 1 < len(tokens) and tokens[end].text == "::":
        end += 2
        if end < len(tokens) and tokens[end].text == "(":
            end = closing(tokens, end) + 1
    return min(end, len(tokens))


def _alias_end(tokens: Sequence[Token], at: int) -> int:
    """Behind `AS o (a, b)`, or `o`, where such an alias follows."""
    end = at + 1 if at < len(tokens) and tokens[at].word == "as" else at
    if end >= len(tokens) or not (
        tokens[end].kind == "name" or (tokens[end].word and tokens[end].word not in _NO_ALIAS)
    ):
        return at
    end += 1
    if end < len(tokens) and tokens[end].text == "(":
        return min(closing(tokens, end) + 1, len(tokens))
    return end


# --- as a tree --------------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A time or a snapshot; or, for a time that is no literal, its expression."""

    as_of: str | int | None = None
    snapshot_id: int | None = None
    expression: Node | None = None


def moment_of(clause: Node | None) -> Moment:
    """What `AT (...)` says."""
    if not clause:
        return Moment()
    value = constant(clause["expr"])
    if isinstance(value, ParameterRef):
        raise InvalidSql("a moment behind a table cannot be a parameter", hint="write it there, or send asOf")
    if clause["unit"].upper() == "VERSION":
        return Moment(snapshot_id=_snapshot_id(value))
    if isinstance(value, str | int) and not isinstance(value, bool):
        return Moment(as_of=value)
    text = _text_of_time(clause["expr"])
    return Moment(as_of=text) if text is not None else Moment(expression=clause["expr"])


def _snapshot_id(value: object) -> int:
    if isinstance(value, str) and value.removeprefix("snap-").isdecimal():
        value = int(value.removeprefix("snap-"))
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise InvalidSql("a version is the id of a snapshot", hint="write its digits; GET /v1/snapshots lists them")
    return value


def _text_of_time(node: Node) -> str | None:
    """Of `TIMESTAMP '...'`, as it is written."""
    is_time = node["class"] == "CAST" and node["cast_type"]["id"] in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE")
    value = constant(node["child"]) if is_time else None
    return value.strip() if isinstance(value, str) else None


def check_constant(node: Node, sql: str) -> None:
    """The text is of its own, so DuckDB must read it as it read the whole."""
    for item in parts(node):
        names = item.get("column_names") or []
        if item.get("class") in _NO_CONSTANT or (names and (len(names) > 1 or names[0].lower() not in _CLOCKS)):
            raise InvalidSql("a moment behind a table must be a constant", hint="NOW() - INTERVAL '1 hour' is one")
    trees = read(f"SELECT {sql}")
    if len(trees) != 1 or not is_same(trees[0], select_of(node)):
        raise InvalidSql("the moment behind a table cannot be read alone", hint="write it in a plainer way")
