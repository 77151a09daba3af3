"""Which columns a batch asks for: types inferred from its values, and how a table grows to hold them.

From pipeline/rows.py, which shows what is new to `Seen`; to the pipeline's writer, which adds what `grow` names to the
Iceberg table. Pure. The rules that need saying:

- A name that cannot be a column (`problem_with_column_name`), or differs from a column only in case, is no column: its
  value is refused. The same inside a struct, where it refuses the whole column's value.
- A null, and a field that is not there, are the same thing. `[]` and `{}` say nothing about a type yet.
- A table has room for so many leaves (columns that are no struct and no list); structs inside structs count by theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from dolake.tables.types import (
    ELEMENT,
    Columns,
    Field,
    ListType,
    Primitive,
    StructType,
    Type,
    can_be_added,
    can_become,
    column_name,
    count_leaves,
    folded,
    leaves_of,
)

LEAVES_MAX = 1_000
DEPTH_MAX = 20
EXACT_MAX = 2**53
"""The largest integer up to which a double holds every one."""
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
TIMESTAMP_MIN_US, TIMESTAMP_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""0001-01-01 to the end of 9999: what Iceberg's readers agree on."""


# --- what a batch shows ----------------------------------------------------------------------------------------------

Kind = Literal["long", "wide", "double", "boolean", "string", "timestamptz", "json"]
"""`wide` is a long that no double holds exactly, `json` a value that only its own text can hold."""


class Inference(msgspec.Struct, frozen=True):
    """What decides which type values get that nobody has declared."""

    has_timestamps: bool = True
    fields_max: int = 200
    """An object with more fields than this is a map that is used as columns: it becomes JSON text."""


_USUAL = Inference()


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

    def type(self, inference: Inference = _USUAL) -> Type | None:
        """The one type that fits what was seen; None as long as nothing tells (null, [], {}).

        long and double are double while every long is exact there; a mixture of anything else is a string.
        """
        shapes = (self._scalar(inference), self._struct(inference), self._list(inference))
        found = [shape for shape in shapes if shape is not None]
        if len(found) > 1:
            return "string"
        return found[0] if found else None

    def _scalar(self, inference: Inference) -> Primitive | None:
        match sorted(self.kinds):
            case []:
                return None
            case ["timestamptz"] if not inference.has_timestamps:
                return "string"
            case ["boolean" | "double" | "long" | "string" | "timestamptz" as kind]:
                return kind
            case ["long", "wide"] | ["wide"]:
                return "long"
            case ["double", "long"]:
                return "double"
            case _:
                return "string"

    def _struct(self, inference: Inference) -> StructType | Primitive | None:
        if len(self.fields) > inference.fields_max:
            return "string"
        fields: list[Field] = []
        taken: set[str] = set()
        for name, part in self.fields.items():
            type_ = part.type(inference)
            if type_ is not None and can_be_added(name, taken):
                fields.append(Field(name, type_))
                taken.add(name.casefold())
        return StructType(tuple(fields)) if fields else None

    def _list(self, inference: Inference) -> ListType | None:
        type_ = self.element.type(inference) if self.element else None
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
        return "double" if math.isfinite(value) else "json"
    return "string" if timestamp_us(value) is None else "timestamptz"


_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,6}0{0,3})?)?(Z|[+-]\d\d(?::?[0-5]\d)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def timestamp_us(text: str, *, has_zone: bool | None = None) -> int | None:
    """Microseconds since 1970 of an ISO 8601 date and time; without a zone it is UTC. None for any other text.

    `has_zone` asks for one that names its zone, or for one that does not.

    A date alone, a 24th hour, a leap second and digits below the microsecond are other text: they would not come back.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None or (has_zone is not None and has_zone != bool(found[1])):
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


class Growth(msgspec.Struct, frozen=True):
    """How a table's columns change so that they hold what was seen."""

    additions: tuple[Addition, ...] = ()
    promotions: Columns = ()
    """Columns that get a wider type as they are: Iceberg reads the files that are there as the new type."""
    rebuilds: Columns = ()
    """Columns that get another type, in files that are written anew."""

    def __bool__(self) -> bool:
        return bool(self.additions or self.promotions or self.rebuilds)


def grow(
    columns: Columns,
    seen: Seen,
    *,
    leaves_max: int = LEAVES_MAX,
    inference: Inference = _USUAL,
    declared: Columns = (),
    rebuildable: Set[str] = frozenset(),
) -> Growth:
    """What has to change so that the table can hold what was seen; `seen.fields` are the source's columns.

    Declared columns are there from the beginning; where one is declared twice, the last word counts. Where a column has
    another type already, that one is widened if it can be, and stays otherwise. What exceeds the room is left out: a
    reader that meets it again finds the table full.
    """
    room = leaves_max - count_leaves(columns)
    types = {field.name: field.type for field in declared}
    additions = []
    for addition in _additions(columns, seen, types, inference):
        type_ = _trimmed(addition.field.type, room)
        if type_ is None:
            break
        additions.append(Addition(addition.parent, Field(addition.field.name, type_)))
        room -= leaves_of(type_)
    kinds = {column_name(name): part.kinds for name, part in seen.fields.items()}
    wider = [
        (each, wider_type(each, kinds.get(each.name, set()), types.get(each.name), rebuildable)) for each in columns
    ]
    changed = [(each.type, Field(each.name, type_)) for each, type_ in wider if type_ is not None]
    return Growth(
        tuple(additions),
        promotions=tuple(field for old, field in changed if can_become(old, field.type)),
        rebuilds=tuple(field for old, field in changed if not can_become(old, field.type)),
    )


def wider_type(column: Field, kinds: Set[Kind], declared: Type | None, rebuildable: Set[str]) -> Type | None:
    """The type that a column should have instead, because of values that do not fit it or because somebody says so."""
    can_be_rebuilt = column.name in rebuildable
    match column.type, declared:
        case old, new if new is not None and new != old and can_become(old, new):
            return new
        case "int" | "long", "double" if can_be_rebuilt:
            return "double"
        case "int" | "long", _ if "double" in kinds and can_be_rebuilt:
            return "double"
        case "int", _ if kinds & {"long", "wide"}:
            return "long"
        case _:
            return None


def grown(columns: Columns, growth: Growth) -> Columns:
    """The columns after `grow`: each addition stands last where it belongs, as Iceberg puts it."""
    types = {field.name: field.type for field in (*growth.promotions, *growth.rebuilds)}
    columns = tuple(Field(each.name, types.get(each.name, each.type)) for each in columns)
    for addition in growth.additions:
        columns = _with_field(columns, addition.parent, addition.field)
    return columns


def _additions(columns: Columns, seen: Seen, declared: Mapping[str, Type], inference: Inference) -> Iterator[Addition]:
    """Declared columns first, in their order; then the others, as they were seen."""
    taken = set(folded(columns))
    for name, type_ in declared.items():
        if can_be_added(name, taken):
            taken.add(name.casefold())
            yield Addition((), Field(name, type_))
    renamed = {column_name(name): part for name, part in seen.fields.items()}
    yield from _new_fields(columns, renamed, (), taken, inference)


def _new_fields(
    known: tuple[Field, ...], seen: dict[str, Seen], path: tuple[str, ...], taken: set[str], inference: Inference
) -> Iterator[Addition]:
    types = {field.name: field.type for field in known}
    for name, part in seen.items():
        if name in types:
            yield from _new_inside(types[name], part, (*path, name), inference)
        elif can_be_added(name, taken) and (type_ := part.type(inference)) is not None:
            taken.add(name.casefold())
            yield Addition(path, Field(name, type_))


def _new_inside(type_: Type, seen: Seen, path: tuple[str, ...], inference: Inference) -> Iterator[Addition]:
    match type_:
        case StructType():
            yield from _new_fields(type_.fields, seen.fields, path, set(folded(type_.fields)), inference)
        case ListType() if seen.element is not None:
            yield from _new_inside(type_.element, seen.element, (*path, ELEMENT), inference)


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
                room -= leaves_of(part)
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
