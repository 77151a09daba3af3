"""What its owner wants of a table: types that are declared, values that are left out or masked, how it is laid out.

From the settings (the lake's own, and `[tables."shop.orders"]`); to all that read changes and must come to the same
result: the pipeline and the query process. Everything here can be compared, hashed and sent to another process.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from dolake.tables.layout import QUARANTINE_SUFFIX
from dolake.tables.names import plain_table_name
from dolake.tables.partitions import BY_DATE
from dolake.tables.schema import LEAVES_MAX, Inference
from dolake.tables.types import Columns, Field


class ReadingRules(msgspec.Struct, frozen=True):
    """What decides how a JSON row becomes columns."""

    declared: Columns = ()
    """Columns whose type is not inferred, by the names that the table gives them."""
    inference: Inference = Inference()
    leaves_max: int = LEAVES_MAX
    included: tuple[str, ...] | None = None
    """The source's columns that the lake takes; None takes all."""
    excluded: tuple[str, ...] = ()
    masks: tuple[tuple[str, str], ...] = ()
    """The source's columns of which the lake keeps something else: `hash`, `redact`, `truncate(3)`."""
    mask_secret: str = ""
    """What goes into every hash, so that nobody can try out values."""

    def is_touched(self, column: str) -> bool:
        """Whether something of this column is kept from the lake; engines and we do not tell names by case."""
        name = column.casefold()
        return name in {each.casefold() for each in (*self.excluded, *(masked for masked, _ in self.masks))}

    def takes(self, column: str) -> bool:
        """Whether the lake has this column of the source as it is."""
        is_included = self.included is None or column.casefold() in {each.casefold() for each in self.included}
        return is_included and not self.is_touched(column)

    @property
    def changes_values(self) -> bool:
        """Whether a row must be gone through before it is read."""
        return self.included is not None or bool(self.excluded or self.masks)


class LayoutRules(msgspec.Struct, frozen=True):
    """How the files of a table's state are arranged."""

    partition_by: tuple[str, ...] = ()
    """Transforms such as `day(created_at)`, `bucket(16, user_id)` or `region`."""
    sort_by: tuple[str, ...] = ()
    """Columns such as `created_at` or `total desc`."""
    target_file_size_bytes: int | None = None
    row_group_size: int | None = None
    compression: str | None = None
    format_version: int = 2
    """Of Iceberg, for the state; a table that has a later one already keeps it."""

    @property
    def is_by_date(self) -> bool:
        """The layout of the whole lake: for tables that have no partitions of their own."""
        return self.partition_by == (BY_DATE,)


class TableRules(msgspec.Struct, frozen=True):
    """All of it."""

    reading: ReadingRules = ReadingRules()
    layout: LayoutRules = LayoutRules()
    rebuild_rows_max: int = 1_000_000
    """Changes up to which a column gets another type within a publish."""
    is_fail_stop: bool = False
    """Whether a row that cannot be written stops the lake, instead of going to quarantine."""


QUARANTINE_COLUMNS: Columns = (
    Field("position", "long"),
    Field("reason", "string"),
    Field("table", "string"),
    Field("operation", "string"),
    Field("key", "string"),
    Field("sequence", "long"),
    Field("source", "string"),
    Field("event", "string"),
)
"""Of a table's quarantine: why a change could not be written, and the change itself."""
_OF_QUARANTINE = TableRules(reading=ReadingRules(declared=QUARANTINE_COLUMNS))


class LakeRules(msgspec.Struct, frozen=True):
    """Of all tables: those that are named have rules of their own."""

    default: TableRules = TableRules()
    tables: Mapping[str, TableRules] = {}
    included: tuple[str, ...] = ("*",)
    """Patterns of the tables that the lake takes, as sources name them."""
    excluded: tuple[str, ...] = ()

    def of(self, table: str) -> TableRules:
        if table.endswith(QUARANTINE_SUFFIX):
            return _OF_QUARANTINE
        return self.tables.get(plain_table_name(table), self.default)

    def takes(self, table: str) -> bool:
        """Whether changes of this table come into the lake at all."""
        name = plain_table_name(table).removesuffix(QUARANTINE_SUFFIX)
        return _matches(name, self.included) and not _matches(name, self.excluded)

    @property
    def takes_all(self) -> bool:
        return self.included == ("*",) and not self.excluded


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, plain_table_name(pattern)) for pattern in patterns)


# --- what the lake takes of a row ------------------------------------------------------------------------------------

_split_row = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_TRUNCATE = re.compile(r"truncate\(\s*(\d{1,6})\s*\)")
_HASH = re.compile(rb'null|"[0-9a-f]{64}"')
MASKS = "`hash`, `redact` or `truncate(3)`"
REDACTED = "***"


def problem_with_mask(text: str) -> str | None:
    """Say in words why this is no mask, or None when it is one."""
    return None if text in ("hash", "redact") or _TRUNCATE.fullmatch(text) else f"is not {MASKS}"


def without_secrets(image: bytes, rules: ReadingRules, *, is_own: bool = False) -> bytes:
    """The row as the lake may keep it: columns left out, values masked; the text of all others as it was written.

    What is no row at all could hold anything, so nothing is left of it. `is_own`: the row was in the lake before, so
    what is a hash already stays that hash.
    """
    if not rules.changes_values or image in (b"", b"null"):
        return image
    try:
        values = _split_row(image)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b"null"
    masks, excluded = _masks_of(rules, is_own), {name.casefold() for name in rules.excluded}
    included = None if rules.included is None else {name.casefold() for name in rules.included}
    kept = {}
    for name, raw in values.items():
        folded = name.casefold()
        if folded not in excluded and (included is None or folded in included):
            kept[name] = masks[folded](raw) if folded in masks else raw
    return _encode(kept)


ValueMask = Callable[[Any], Any]


def value_mask(mask: str, secret: str) -> ValueMask:
    """What a source sends instead of a value: the same that the lake would keep of it."""
    masked = _mask_of(mask, secret.encode(), False)
    return lambda value: masked(Raw(_encode(value)))


Mask = Callable[[Raw], Any]


@lru_cache(maxsize=256)
def _masks_of(rules: ReadingRules, is_own: bool) -> dict[str, Mask]:
    return {name.casefold(): _mask_of(mask, rules.mask_secret.encode(), is_own) for name, mask in rules.masks}


def _mask_of(mask: str, secret: bytes, is_own: bool) -> Mask:
    """A null stays a null: that a value is missing is no secret."""
    if mask == "hash" and is_own:
        return lambda raw: raw if _HASH.fullmatch(bytes(raw)) else _mask_of(mask, secret, False)(raw)
    if mask == "hash":
        return lambda raw: None if bytes(raw) == b"null" else _hashed(_text_of(raw), secret)
    if found := _TRUNCATE.fullmatch(mask):
        length = int(found[1])
        return lambda raw: None if bytes(raw) == b"null" else _text_of(raw)[:length]
    return lambda raw: None if bytes(raw) == b"null" else REDACTED


def _text_of(raw: Raw) -> str:
    """A text as it is; anything else as its JSON."""
    return str(_decode(raw)) if bytes(raw).startswith(b'"') else bytes(raw).decode()


def _hashed(text: str, secret: bytes) -> str:
    return hmac.new(secret, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
