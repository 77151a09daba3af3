"""What sources declare of a table's columns, and what the table keeps of that: comments, and which types are guesses.

From pipeline/reading.py, which finds it in `metadata.schema`; to the pipeline's writer and to the tail of the query
process. Pure. A *guess* is a column whose type its source declared with `isHint`: values that contradict it change the
column. Any other declared type is strict: what does not fit stays in `_rescued`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from dolake.tables.types import PRECISION_MAX, Columns, Type, decimal_of

ANY_TEXT = "string"
"""The type that every value fits."""


class Declaration(msgspec.Struct, frozen=True):
    """What some changes declare: a type for each column, and for some a comment, or that the type is a guess."""

    columns: Columns = ()
    comments: dict[str, str] = {}
    guesses: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.columns)

    def then(self, later: Declaration) -> Declaration:
        """Both, with the last word on each column."""
        types = {field.name: field for field in (*self.columns, *later.columns)}
        known = {field.name for field in later.columns}
        comments = {name: text for name, text in self.comments.items() if name not in known}
        return Declaration(tuple(types.values()), comments | later.comments, (self.guesses - known) | later.guesses)

    def without_guesses(self, names: Iterable[str]) -> Declaration:
        """The settings declare these columns, and nothing changes them."""
        return Declaration(self.columns, self.comments, self.guesses.difference(names))

    @property
    def types(self) -> dict[str, Type]:
        return {field.name: field.type for field in self.columns}


class Notes(msgspec.Struct, frozen=True):
    """What a table has noted of earlier declarations."""

    comments: dict[str, str] = {}
    guesses: frozenset[str] = frozenset()
    undecided: frozenset[str] = frozenset()
    """Guesses of which the table has no value: there the next guess counts."""
    pinned: frozenset[str] = frozenset()
    """Columns that divide or sort the table: their types never change."""

    @property
    def open(self) -> frozenset[str]:
        """Columns that values may change."""
        return self.guesses - self.pinned

    def is_behind(self, columns: Columns, declared: Declaration) -> bool:
        """Whether these columns must note something new."""
        return self.guesses_after(columns, declared) != self.guesses or bool(self.new_comments(columns, declared))

    def guesses_after(self, columns: Columns, declared: Declaration) -> frozenset[str]:
        """Which columns are guesses when the last word on each is noted."""
        names = {column.name for column in columns}
        return self.guesses.difference(declared.types) | (declared.guesses & names)

    def new_comments(self, columns: Columns, declared: Declaration) -> dict[str, str]:
        """A comment is about a type: it says nothing about a column that has another one."""
        types = declared.types
        return {
            column.name: comment
            for column in columns
            if (comment := declared.comments.get(column.name)) is not None
            and types.get(column.name) == column.type
            and comment != self.comments.get(column.name, "")
        }

    def changed(self, columns: Columns, declared: Declaration) -> dict[str, str]:
        """Columns without a value that are now declared with another type."""
        types = declared.types
        return {
            column.name: type_
            for column in columns
            if column.name in self.undecided - self.pinned
            and isinstance(type_ := types.get(column.name, column.type), str)
            and type_ != column.type
        }

    def noted(self, columns: Columns, declared: Declaration, before: Columns) -> Notes:
        """What these become when this is noted; `before` are the columns that the table had without it."""
        guesses = self.guesses_after(columns, declared)
        new = guesses - self.guesses - {column.name for column in before}
        comments = self.comments | self.new_comments(columns, declared)
        return Notes(comments, guesses, (self.undecided & guesses) | new, self.pinned)


def read_guesses(text: str | None) -> dict[str, bool]:
    """From the property of a table of changes: each guess, and whether the column has a value."""
    return {str(name): bool(has_values) for name, has_values in json.loads(text).items()} if text else {}


# --- values that contradict a guess ----------------------------------------------------------------------------------


def type_for(type_: Type, value: Any) -> str:
    """The type that a column of this type needs so that it holds a value, decoded from JSON, that does not fit it."""
    digits, number = decimal_of(type_) if isinstance(type_, str) else None, _number(value)
    if digits is None or number is None:
        return ANY_TEXT
    found = number.as_tuple()
    exponent = int(found.exponent)
    whole, scale = max(len(found.digits) + exponent, 0), max(-exponent, 0)
    return _decimal(max(digits[0] - digits[1], whole), max(digits[1], scale))


def type_for_both(one: str, other: str) -> str:
    """The type that a column needs where some values ask for one and some for the other."""
    first, second = decimal_of(one), decimal_of(other)
    if first is None or second is None:
        return one if one == other else ANY_TEXT
    return _decimal(max(first[0] - first[1], second[0] - second[1]), max(first[1], second[1]))


def _decimal(whole: int, scale: int) -> str:
    return f"decimal({whole + scale}, {scale})" if whole + scale <= PRECISION_MAX else ANY_TEXT


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = Decimal(getattr(value, "text", repr(value)))
    return number if number.is_finite() else None
