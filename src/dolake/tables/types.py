"""What a column can be: its type, and its name in the table.

The nouns of schema.py (which types a batch asks for), fitting.py (which values a type takes) and layout.py (what
Iceberg is told). All of it can be JSON, because it travels between Spark's workers and its driver.

Inference knows five of the primitive types: boolean, long, double, string and timestamptz. The others are declared: by
a source, by the settings, or by who has made the table.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import msgspec

NAME_LENGTH_MAX_BYTES = 128
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

Primitive = str
"""Iceberg's own word, such as `long` or `decimal(10, 2)`: one of PRIMITIVES, or a decimal."""
PRIMITIVES = (
    "boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "uuid", "binary"
)  # fmt: skip


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


_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")
_FLOAT = re.compile(r"float\s*\(\s*(\d{1,2})\s*\)")
_FLOAT_BITS_MAX = 24
"""`float(53)` is SQL for a double: the number counts bits."""
_SIZE = re.compile(r"\s*\(\s*\d+(?:\s*,\s*\d+)?\s*\)")
PRECISION_MAX = 38
_OTHER_WORDS = {
    "bool": "boolean",
    "integer": "int", "int4": "int", "smallint": "int", "int2": "int", "tinyint": "int", "mediumint": "int",
    "bigint": "long", "int8": "long",
    "real": "float", "float4": "float",
    "double precision": "double", "float8": "double",
    "datetime": "timestamp", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "text": "string", "varchar": "string", "char": "string", "character": "string", "character varying": "string",
    "json": "string", "jsonb": "string",
    "time": "string", "time without time zone": "string", "interval": "string",
    "bytea": "binary", "blob": "binary", "varbinary": "binary", "bytes": "binary",
}  # fmt: skip
"""What databases call these types. Spark reads no table that has a time of day alone: so that is text."""


def parse_type(text: str) -> Primitive | None:
    """The type that a source or a setting means, in Iceberg's word for it; None where nobody knows it."""
    word = " ".join(text.strip().lower().split())
    if found := _DECIMAL.fullmatch(word):
        precision, scale = int(found[1]), int(found[2] or 0)
        return f"decimal({precision}, {scale})" if scale <= precision and 0 < precision <= PRECISION_MAX else None
    if (found := _FLOAT.fullmatch(word)) and int(found[1]) > _FLOAT_BITS_MAX:
        return "double"
    word = _SIZE.sub("", word).strip()
    word = _OTHER_WORDS.get(word, word)
    return word if word in PRIMITIVES else None


@lru_cache(maxsize=1024)
def decimal_of(type_: Primitive) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for any other type."""
    found = _DECIMAL.fullmatch(type_)
    return (int(found[1]), int(found[2] or 0)) if found else None


def can_become(old: Type, new: Type) -> bool:
    """Whether Iceberg reads files of the old type as the new one, so that nothing needs to be written anew."""
    match old, new:
        case ("int", "long") | ("float", "double"):
            return True
        case str(), str():
            before, after = decimal_of(old), decimal_of(new)
            return before is not None and after is not None and before[1] == after[1] and before[0] < after[0]
        case _:
            return False


def count_leaves(columns: Iterable[Field]) -> int:
    return sum(leaves_of(column.type) for column in columns)


def leaves_of(type_: Type) -> int:
    match type_:
        case StructType():
            return count_leaves(type_.fields)
        case ListType():
            return leaves_of(type_.element)
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


def folded(fields: Iterable[Field]) -> frozenset[str]:
    return frozenset(field.name.casefold() for field in fields)
