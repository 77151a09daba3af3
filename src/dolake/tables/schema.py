"""What a table's columns are: their types and names, how they are found in a first batch, and how they grow.

From pipeline/rows.py, which shows each JSON value to a `fitter` and what is new to `Seen`; to the pipeline's writer,
which adds what `grow` names to the Iceberg table. All of it can be JSON, because it travels between Spark's workers and
its driver. Promise: a value fits a column exactly, or it is refused and the caller keeps its JSON text; a type never
changes here. The rules that need saying:

- A name that cannot be a column (`problem_with_column_name`), or differs from a column only in case, is no column: its
  value is refused. The same inside a struct, where it refuses the whole column's value.
- A null, and a field that is not there, are the same thing. `[]` and `{}` say nothing about a type yet.
- A string column takes every JSON value: a string as it is, anything else as its JSON text.
- A fraction is the nearest double; an integer must be exact, so beyond 2^53 it is none.
- A table has room for so many leaves (columns that are no struct and no list); structs inside structs count by theirs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

import msgspec

LEAVES_MAX = 1_000
DEPTH_MAX = 20
NAME_LENGTH_MAX_BYTES = 128
EXACT_MAX = 2**53
"""The largest integer up to which a double holds every one."""
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
TIMESTAMP_MIN_US, TIMESTAMP_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""0001-01-01 to the end of 9999: what Iceberg's readers agree on."""
ELEMENT = "element"
"""How a path names what is inside a list; Iceberg and Spark use the same word."""

ICEBERGS_NAMES = ("_row_id", "_file", "_pos", "_partition", "_spec_id", "_deleted", "_last_updated_sequence_number")
OUR_NAMES = (
    "_key",
    "_rescued",
    "_before",
    "_operation",
    "_sequence",
    "_source",
    "_timestamp",
    "_commit_timestamp",
    "_position",
    "_transaction",
    "_previous_key",
)
_RESERVED = frozenset((*ICEBERGS_NAMES, *OUR_NAMES))


# --- types -----------------------------------------------------------------------------------------------------------

Primitive = Literal["long", "double", "boolean", "string", "timestamptz"]


class Field(msgspec.Struct, frozen=True):
    """A named type: a table's column, or a part of a struct."""

    name: str
    type: Type


class StructType(msgspec.Struct, frozen=True, tag="struct", tag_field="type"):
    fields: tuple[Field, ...]


class ListType(msgspec.Struct, frozen=True, tag="list", tag_field="type"):
    element: Type


Type = Primitive | StructType | ListType
Columns = tuple[Field, ...]


def count_leaves(columns: Iterable[Field]) -> int:
    return sum(_leaves_of(column.type) for column in columns)


def _leaves_of(type_: Type) -> int:
    match type_:
        case StructType():
            return count_leaves(type_.fields)
        case ListType():
            return _leaves_of(type_.element)
        case _:
            return 1


# --- names -----------------------------------------------------------------------------------------------------------


def column_name(source_name: str) -> str:
    """What a source's column is called in the table: a trailing underscore sets it apart from a reserved name.

    `_file_` becomes `_file__` in turn, so that two columns of a source never meet, whichever comes first.
    """
    return f"{source_name}_" if source_name.rstrip("_").casefold() in _RESERVED else source_name


def source_name(column_name: str) -> str | None:
    """The way back; None for a name that no source's column can get, such as `_key`."""
    if column_name.rstrip("_").casefold() not in _RESERVED:
        return column_name
    return column_name[:-1] if column_name.endswith("_") else None


@lru_cache(maxsize=16_384)
def problem_with_column_name(name: str) -> str | None:
    """Say in words why this cannot be a column's name, or None when it can."""
    if not name:
        return "is empty"
    if len(name.encode(errors="surrogatepass")) > NAME_LENGTH_MAX_BYTES:
        return f"is longer than {NAME_LENGTH_MAX_BYTES} bytes"
    if "." in name:
        return "contains a dot, which separates the parts of a path in Iceberg"
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            return f"contains {character!r}, which cannot be part of a name"
    return None


def can_be_added(name: str, taken: frozenset[str] | set[str]) -> bool:
    """`taken` holds names in folded case: engines that ignore case could not tell `Id` from `id`."""
    return name.casefold() not in taken and problem_with_column_name(name) is None


def _folded(fields: Iterable[Field]) -> frozenset[str]:
    return frozenset(field.name.casefold() for field in fields)


# --- what a batch shows ----------------------------------------------------------------------------------------------

Kind = Literal["long", "wide", "double", "boolean", "string", "timestamptz", "json"]
"""`wide` is a long that no double holds exactly, `json` a value that only its own text can hold."""


class Seen(msgspec.Struct, omit_defaults=True):
    """All that the values of one column have been so far; the order of merging decides the order of fields, no more."""

    kinds: set[Kind] = msgspec.field(default_factory=set)
    fields: dict[str, Seen] = msgspec.field(default_factory=dict)
    element: Seen | None = None

    def add(self, value: Any, depth: int = 1) -> Seen:
        """Take in one decoded JSON value that stands `depth` levels deep; a column's own value stands at 1."""
        if isinstance(value, dict | list) and depth > DEPTH_MAX:
            self.kinds.add("json")
        elif isinstance(value, dict):
            for name, part in value.items():
                self.fields.setdefault(name, Seen()).add(part, depth + 1)
        elif isinstance(value, list):
            self.element = self.element or Seen()
            for part in value:
                self.element.add(part, depth + 1)
        elif value is not None:
            self.kinds.add(_kind_of(value))
        return self

    def merge(self, other: Seen) -> None:
        self.kinds |= other.kinds
        for name, part in other.fields.items():
            self.fields.setdefault(name, Seen()).merge(part)
        if other.element is not None:
            self.element = self.element or Seen()
            self.element.merge(other.element)

    def type(self) -> Type | None:
        """The one type that fits what was seen; None as long as nothing tells (null, [], {}).

        long and double are double while every long is exact there; a mixture of anything else is a string.
        """
        shapes = [shape for shape in (self._scalar(), self._struct(), self._list()) if shape is not None]
        if len(shapes) > 1:
            return "string"
        return shapes[0] if shapes else None

    def _scalar(self) -> Primitive | None:
        match sorted(self.kinds):
            case []:
                return None
            case ["boolean" | "double" | "long" | "string" | "timestamptz" as kind]:
                return kind
            case ["long", "wide"] | ["wide"]:
                return "long"
            case ["double", "long"]:
                return "double"
            case _:
                return "string"

    def _struct(self) -> StructType | None:
        fields: list[Field] = []
        taken: set[str] = set()
        for name, part in self.fields.items():
            type_ = part.type()
            if type_ is not None and can_be_added(name, taken):
                fields.append(Field(name, type_))
                taken.add(name.casefold())
        return StructType(tuple(fields)) if fields else None

    def _list(self) -> ListType | None:
        type_ = self.element.type() if self.element else None
        return ListType(type_) if type_ is not None else None


def infer(value: Any) -> Type | None:
    """The type that one decoded JSON value asks for; None when it does not tell."""
    return Seen().add(value).type()


def _kind_of(value: bool | int | float | str) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if not LONG_MIN <= value <= LONG_MAX:
            return "json"
        return "long" if abs(value) <= EXACT_MAX else "wide"
    if isinstance(value, float):
        return "double"
    return "string" if timestamp_us(value) is None else "timestamptz"


_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,6}0{0,3})?)?(Z|[+-]\d\d(?::?[0-5]\d)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def timestamp_us(text: str) -> int | None:
    """Microseconds since 1970 of an ISO 8601 date and time; without a zone it is UTC. None for any other text.

    A date alone, a 24th hour, a leap second and digits below the microsecond are other text: they would not come back.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(text if found[1] else f"{text}Z")
    except ValueError:
        return None
    result = (moment - _EPOCH) // _MICROSECOND
    return result if TIMESTAMP_MIN_US <= result <= TIMESTAMP_MAX_US else None


# --- growing ---------------------------------------------------------------------------------------------------------


class Addition(msgspec.Struct, frozen=True):
    """A column to add, or a field inside the column that `parent` leads to, list elements named `element`."""

    parent: tuple[str, ...]
    field: Field


def grow(columns: Columns, seen: Seen, leaves_max: int = LEAVES_MAX) -> list[Addition]:
    """What to add so that the table can hold what was seen; `seen.fields` are the source's columns by their own names.

    What exceeds the room is left out: a reader that meets it again finds the table full and refuses it.
    """
    room = leaves_max - count_leaves(columns)
    additions = []
    renamed = {column_name(name): part for name, part in seen.fields.items()}
    for addition in _new_fields(columns, renamed, ()):
        type_ = _trimmed(addition.field.type, room)
        if type_ is None:
            break
        additions.append(Addition(addition.parent, Field(addition.field.name, type_)))
        room -= _leaves_of(type_)
    return additions


def with_additions(columns: Columns, additions: Iterable[Addition]) -> Columns:
    """The columns after `grow`: each addition stands last where it belongs, as Iceberg puts it."""
    for addition in additions:
        columns = _with_field(columns, addition.parent, addition.field)
    return columns


def _new_fields(known: tuple[Field, ...], seen: dict[str, Seen], path: tuple[str, ...]) -> Iterator[Addition]:
    types = {field.name: field.type for field in known}
    taken = set(_folded(known))
    for name, part in seen.items():
        if name in types:
            yield from _new_inside(types[name], part, (*path, name))
        elif can_be_added(name, taken) and (type_ := part.type()) is not None:
            taken.add(name.casefold())
            yield Addition(path, Field(name, type_))


def _new_inside(type_: Type, seen: Seen, path: tuple[str, ...]) -> Iterator[Addition]:
    match type_:
        case StructType():
            yield from _new_fields(type_.fields, seen.fields, path)
        case ListType() if seen.element is not None:
            yield from _new_inside(type_.element, seen.element, (*path, ELEMENT))


def _trimmed(type_: Type, room: int) -> Type | None:
    """The type with at most `room` leaves, the first ones; None when there is no room at all."""
    match type_:
        case StructType():
            fields = []
            for field in type_.fields:
                part = _trimmed(field.type, room)
                if part is None:
                    break
                fields.append(Field(field.name, part))
                room -= _leaves_of(part)
            return StructType(tuple(fields)) if fields else None
        case ListType():
            element = _trimmed(type_.element, room)
            return None if element is None else ListType(element)
        case _:
            return type_ if room > 0 else None


def _with_field(fields: tuple[Field, ...], parent: tuple[str, ...], new: Field) -> tuple[Field, ...]:
    if not parent:
        return (*fields, new)
    head, *rest = parent
    return tuple(
        Field(head, _with_field_inside(field.type, tuple(rest), new)) if field.name == head else field
        for field in fields
    )


def _with_field_inside(type_: Type, parent: tuple[str, ...], new: Field) -> Type:
    match type_:
        case ListType():
            return ListType(_with_field_inside(type_.element, parent[1:], new))
        case StructType():
            return StructType(_with_field(type_.fields, parent, new))
        case _:
            raise TypeError(f"a {type_} has no room for {new.name!r}")


# --- fitting ---------------------------------------------------------------------------------------------------------


class Misfit(Exception):
    """The value does not fit the column's type, and no addition would help."""


class NewField(Exception):
    """The value would fit if the struct had one more field, and the table has room for it."""


Fitter = Callable[[Any], Any]
"""Takes a decoded JSON value; returns what the column holds (a timestamp as microseconds) or raises one of the two."""


def fitter(type_: Type, *, is_full: bool, depth: int = 1) -> Fitter:
    """The function that fits values to this type; `is_full` says that the table has no room for a new field."""
    match type_:
        case StructType():
            return _fitter_of_struct(type_, is_full=is_full, depth=depth)
        case ListType():
            return _fitter_of_list(type_, is_full=is_full, depth=depth)
        case _:
            return _FITTERS[type_]


def _fit_long(value: Any) -> int:
    if type(value) is int and LONG_MIN <= value <= LONG_MAX:
        return value
    if type(value) is float and abs(value) <= EXACT_MAX and value.is_integer():
        return int(value)
    raise Misfit


def _fit_double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= EXACT_MAX:
        return float(value)
    raise Misfit


def _fit_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise Misfit


def _fit_string(value: Any) -> str:
    return value if type(value) is str else msgspec.json.encode(value).decode()


def _fit_timestamp(value: Any) -> int:
    result = timestamp_us(value) if type(value) is str else None
    if result is None:
        raise Misfit
    return result


_FITTERS: dict[Primitive, Fitter] = {
    "long": _fit_long,
    "double": _fit_double,
    "boolean": _fit_boolean,
    "string": _fit_string,
    "timestamptz": _fit_timestamp,
}


def _fitter_of_struct(type_: StructType, *, is_full: bool, depth: int) -> Fitter:
    parts = {field.name: fitter(field.type, is_full=is_full, depth=depth + 1) for field in type_.fields}
    taken = _folded(type_.fields)

    def fit_struct(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit
        fitted: dict[str, Any] = {}
        has_new = False
        for name, part in value.items():
            if part is None:
                continue
            try:
                if name in parts:
                    fitted[name] = parts[name](part)
                else:
                    is_new = not is_full and can_be_added(name, taken)
                    raise NewField if is_new and Seen().add(part, depth + 1).type() is not None else Misfit
            except NewField:  # a misfit further on still refuses the whole, and then nothing needs to be added
                has_new = True
        if has_new:
            raise NewField
        return fitted

    return fit_struct


def _fitter_of_list(type_: ListType, *, is_full: bool, depth: int) -> Fitter:
    fit = fitter(type_.element, is_full=is_full, depth=depth + 1)

    def fit_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Misfit
        fitted: list[Any] = []
        has_new = False
        for part in value:
            try:
                fitted.append(None if part is None else fit(part))
            except NewField:
                has_new = True
        if has_new:
            raise NewField
        return fitted

    return fit_list
