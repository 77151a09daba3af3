"""SQL cut into tokens, by DuckDB's rules for quotes and comments, so that it can be edited without being understood.

For spelling.py, moments.py and marking.py. Should a token be taken for something else here than by DuckDB, then nothing
is lost but an answer: what DuckDB makes of the edited text is what guard.py checks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dolake.errors import InvalidSql

TOKENS_MAX = 50_000
CONDITIONS_MAX = 5_000
"""DuckDB's parser takes time by the square of how many are joined by AND or OR."""

_TOKEN = re.compile(
    r"""(?P<gap>[\s\u200b\ufeff]+|--[^\r\n]*)
    |(?P<comment>/\*)
    |(?P<string>'[^']*+(?:''[^']*+)*+'|[eE]'(?:[^'\\]|\\.|'')*+')
    |(?P<name>"[^"]*+(?:""[^"]*+)*+")
    |(?P<dollar>\$(?:[^\W\d]\w*)?\$)
    |(?P<parameter>\?\d*|\$\w+)
    |(?P<open>['"])
    |(?P<word>[^\W\d][\w$]*)
    |(?P<number>\d[\w.]*)
    |(?P<sign>::|=>|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_END = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A piece of SQL, with what stood before it: nothing, a space or a new line."""

    kind: str
    text: str
    start: int
    gap: str

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "word" else ""


def tokens_of(sql: str) -> list[Token]:
    """Without comments. What is not closed is refused here, since DuckDB cannot be shown half of it."""
    tokens: list[Token] = []
    at, gap, conditions = 0, "", 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # the last branch takes any character
        kind, text = str(match.lastgroup), match.group()
        if kind in ("comment", "open"):
            end = _comment_end(sql, at) if kind == "comment" else None
            if end is None:
                raise InvalidSql(f"{text} at {place_in(sql, at)} is not closed")
            at, gap = end, gap or " "
            continue
        if kind == "gap":
            at, gap = match.end(), "\n" if "\n" in text or gap == "\n" else " "
            continue
        end = match.end()
        if kind == "dollar":
            end = sql.find(text, end) + len(text)
            if end < match.end():
                raise InvalidSql(f"{text} at {place_in(sql, at)} is not closed")
            kind, text = "string", sql[at:end]
        conditions += kind == "word" and text.lower() in ("and", "or")
        tokens.append(Token(kind, text, at, gap))
        if len(tokens) > TOKENS_MAX or conditions > CONDITIONS_MAX:
            raise InvalidSql("the statement has too many parts", hint="send long lists as one parameter")
        at, gap = end, ""
    return tokens


def _comment_end(sql: str, at: int) -> int | None:
    """Comments can stand in comments."""
    depth = 0
    for match in _COMMENT_END.finditer(sql, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    return None


def closing(tokens: Sequence[Token], index: int) -> int:
    depth = 0
    for at in range(index, len(tokens)):
        depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        if depth == 0:
            return at
    return len(tokens)


def place_in(sql: str, at: int) -> str:
    line = sql.count("\n", 0, at) + 1
    return f"line {line}, column {at - sql.rfind(chr(10), 0, at)}"
