"""What users may write beyond DuckDB's grammar, said in DuckDB's own words.

From guard.py, before DuckDB's parser. `?` and `:name` become `$1` and `$name`, `default.orders` gets its quotes,
comments go, and clauses about the past become `AT (...)` (moments.py). None of this decides what is allowed. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dolake.errors import InvalidSql
from dolake.query.functions import words
from dolake.query.moments import with_time_travel
from dolake.query.statement import Parameters
from dolake.query.tokens import Token, closing, place_in, tokens_of

LENGTH_MAX = 1_000_000
PARAMETERS_MAX = 1_000
_OPERAND_FOLLOWS = words(
    """all and any as between by case distinct else escape having ilike in is like limit not of offset on or select
    similar some then to using values when where"""
)


class Edit(NamedTuple):
    """This text in the place of tokens from start up to end."""

    start: int
    end: int
    text: str


class Text:
    """A statement in DuckDB's words that still knows where its tokens stood in the user's."""

    def __init__(self, source: str, tokens: Sequence[Token], parameters: Parameters) -> None:
        self.source, self.tokens, self.parameters = source, tokens, parameters
        self._indexes: dict[int, int] = {}

    @property
    def sql(self) -> str:
        return "".join(token.gap + token.text for token in self.tokens)

    def index_at(self, location: int) -> int | None:
        """The token at this place of DuckDB's tree, which counts bytes."""
        if not self._indexes:
            at = 0
            for index, token in enumerate(self.tokens):
                at += len(token.gap)
                self._indexes[at] = index
                at += len(token.text.encode())
        return self._indexes.get(location)

    def line_and_column(self, position: int) -> str:
        """Where in the user's text this place is; DuckDB's errors count characters."""
        starts = [0]
        for token in self.tokens:
            starts.append(starts[-1] + len(token.gap) + len(token.text))
        index = min(bisect_right(starts, position) - 1, len(self.tokens) - 1)
        return self.place_of(max(index, 0))

    def place_of(self, index: int) -> str:
        at = self.tokens[index].start if self.tokens else 0
        return place_in(self.source, at)

    def closing(self, index: int) -> int:
        """The token that closes the parenthesis at this one."""
        return closing(self.tokens, index)

    def edited(self, edits: Iterable[Edit]) -> str:
        pieces, done = [], 0
        for edit in sorted(edits):
            pieces += [token.gap + token.text for token in self.tokens[done : edit.start]]
            has_gap = edit.end > edit.start and not edit.text.startswith(" ")
            pieces.append((self.tokens[edit.start].gap if has_gap else "") + edit.text)
            done = edit.end
        return "".join(pieces + [token.gap + token.text for token in self.tokens[done:]])


def spell(sql: str) -> Text:
    """The statement as DuckDB would have it."""
    if len(sql) > LENGTH_MAX:
        hint = f"at most {LENGTH_MAX} characters; send long lists as one parameter"
        raise InvalidSql(f"the statement has {len(sql)} characters", hint=hint)
    if "\0" in sql or not _is_text(sql):
        raise InvalidSql("the statement has characters that are no text")
    tokens, parameters = _with_parameters(tokens_of(sql))
    return Text(sql, with_time_travel(tokens, sql), parameters)


def _is_text(sql: str) -> bool:
    try:
        sql.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- parameters and names ---------------------------------------------------------------------------------------------


def _with_parameters(tokens: Sequence[Token]) -> tuple[list[Token], Parameters]:
    """`?`, `$1`, `$name` and `:name` as DuckDB writes them, and what they are."""
    spelled: list[Token] = []
    marks, numbers, named = 0, set[int](), dict[str, str]()  # DuckDB does not care for the case of names
    rest = iter(enumerate(tokens))
    for index, token in rest:
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.text == "?":
            marks += 1
            token = token._replace(text=f"${marks}")
        elif token.kind == "parameter" and token.text[1:].isdecimal():
            numbers.add(int(token.text[1:][:9]))
            token = token._replace(text=f"${token.text[1:]}")
        elif token.kind == "parameter":
            token = token._replace(text="$" + named.setdefault(token.text[1:].lower(), token.text[1:]))
        elif token.text == ":" and following and _is_name(following) and _operand_follows(spelled):
            name = named.setdefault(following.text.lower(), following.text)
            token = Token("parameter", f"${name}", token.start, token.gap)
            next(rest)
        elif token.word == "default" and following and following.text == ".":
            token = token._replace(kind="name", text='"default"')
        spelled.append(token)
    return spelled, _parameters(marks, numbers, list(named.values()))


def _is_name(token: Token) -> bool:
    return token.kind == "word" and not token.gap


def _operand_follows(tokens: Sequence[Token]) -> bool:
    """Whether a value is due here: a colon that is none of a slice, a struct, a lambda or an alias."""
    is_in_brackets = bool(tokens) and tokens[-1].text == "["
    last = tokens[-2 if is_in_brackets else -1] if len(tokens) > is_in_brackets else None
    if last is None or last.word in _OPERAND_FOLLOWS:
        return True
    return last.kind == "sign" and last.text not in (")", "]", "}")


def _parameters(marks: int, numbers: set[int], named: list[str]) -> Parameters:
    if sum(map(bool, (marks, numbers, named))) > 1:
        raise InvalidSql("parameters of several kinds are mixed", hint="use only ?, only $1, $2, or only :name")
    count = marks or len(numbers)
    if max(count, len(named)) > PARAMETERS_MAX:
        raise InvalidSql(f"there are more than {PARAMETERS_MAX} parameters", hint="send long lists as one parameter")
    if numbers and numbers != set(range(1, count + 1)):
        raise InvalidSql("the parameters are not numbered from $1 without a gap")
    if named:
        return Parameters("named", len(named), tuple(named))
    return Parameters("positional", count) if count else Parameters()
