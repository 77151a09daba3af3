"""A statement that guard.py has read: the tables it names, what it asks of each, and the SQL once they are known.

From guard.py, which makes it; to answering.py, which has the tables opened and binds them. Immutable, so it can be
kept and bound again and again. Promise: what is bound is the checked text with relations in the places of its tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

from dolake.errors import InvalidSql
from dolake.query.relation import Relation
from dolake.query.sqltext import names, quoted
from dolake.tables.types import OUR_NAMES

HIDDEN = frozenset(OUR_NAMES)
"""Columns that `*` leaves out."""

Operator = Literal["=", "<", "<=", ">", ">=", "in", "is_null", "not_null"]


@dataclass(frozen=True, slots=True)
class ParameterRef:
    """In place of a value that comes with the request: the parameter's number or name."""

    name: str


Value = int | float | Decimal | str | bool | date | datetime
"""A timestamp that names no zone is a datetime without one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What every row that matters must meet: a column compared with constants."""

    column: str
    op: Operator
    values: tuple[Value | ParameterRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """A table as a statement names it, in one place."""

    number: int
    namespace: str
    table: str
    alias: str
    """How the rest of the statement calls it."""
    hidden: frozenset[str] = frozenset()
    """Columns that `*` leaves out and that are named for this table here, in lower case."""
    as_of: str | int | None = None
    as_of_sql: str | None = None
    """Where the time is an expression: SQL that DuckDB can compute without any table."""
    snapshot_id: int | None = None
    filters: tuple[Filter, ...] = ()
    """Rows that fail one of these can be left out unread."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What has to come with the request. In the bound SQL they are `$1`, `$2`, or `$name`."""

    kind: Literal["none", "positional", "named"] = "none"
    count: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relation goes."""

    number: int


@dataclass(frozen=True, slots=True)
class Star:
    """Behind a `*`: what it leaves out."""

    numbers: tuple[int, ...]
    """References whose hidden columns stay out."""
    own: frozenset[str]
    """Names of hidden columns that the user leaves out himself: where a table has one of its own, that one too."""
    others: tuple[str, ...]
    """What else he leaves out, as SQL."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Made by guard.parse()."""

    references: tuple[Reference, ...]
    parameters: Parameters
    pieces: tuple[str | Place | Star, ...]
    common_names: frozenset[str]
    """What it calls its own common table expressions, in lower case."""

    def bind(self, relations: Sequence[Relation]) -> str:
        """The SQL to run, with a relation in the place of each reference."""
        if len(relations) != len(self.references):
            raise ValueError(f"{len(self.references)} references, {len(relations)} relations")
        self._check_names(relations)
        return "".join(self._text_of(piece, relations) for piece in self.pieces)

    def _text_of(self, piece: str | Place | Star, relations: Sequence[Relation]) -> str:
        match piece:
            case str():
                return piece
            case Place(number):
                return f"({self._with_only_named(self.references[number], relations[number])})"
            case Star(numbers, own, others):
                out = [text for number in numbers for text in self._left_out(number, relations[number], own)]
                return f" EXCLUDE ({', '.join((*others, *out))})" if others or out else ""

    def _left_out(self, number: int, relation: Relation, own: frozenset[str]) -> list[str]:
        reference = self.references[number]
        hidden = [name for name in relation.hidden if name.lower() in reference.hidden]
        mine = [name for name in relation.columns if name.lower() in own]
        return [f"{quoted(reference.alias)}.{quoted(name)}" for name in (*hidden, *mine)]

    def _with_only_named(self, reference: Reference, relation: Relation) -> str:
        """Hidden columns that nobody named would show up behind COLUMNS, in PIVOT or in a natural join."""
        named = [name for name in relation.hidden if name.lower() in reference.hidden]
        if len(named) == len(relation.hidden):
            return relation.sql
        # A table whose changes had no column yet has nothing else, and no SELECT goes without.
        shown = (*relation.columns, *named) or relation.hidden[:1]
        return f"SELECT {names(shown)} FROM ({relation.sql})"  # noqa: S608

    def _check_names(self, relations: Sequence[Relation]) -> None:
        """A WITH of the statement must not stand in for what a relation reads."""
        for name in (name for each in relations for name in each.arrow):
            if name.lower() in self.common_names:
                raise InvalidSql(f"the name {name} is taken", hint=f"call WITH {name} something else")
