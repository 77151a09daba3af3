"""What is asked about single rows: a table, keys, and a moment.

From rows_rest.py, which reads requests; to lookup.py and rows_sql.py. Light, because the server imports it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dolake.catalog.base import Name
from dolake.errors import DoLakeError, InvalidInput, UnknownTable
from dolake.positions import Position
from dolake.tables.layout import CHANGES_SUFFIX, QUARANTINE_SUFFIX
from dolake.tables.names import plain_table_name

KEYS_MAX = 1_000


class RowsBody(Struct, frozen=True, rename="camel", kw_only=True):
    """`POST /v1/tables/{namespace}/{table}/rows`, as clients send it."""

    keys: list[str]
    source: str | None = None
    as_of: str | int | float | None = None
    snapshot_id: int | str | None = None
    min_position: Position | None = None
    timeout_ms: int | None = None


class RowsQuestion(RowsBody, frozen=True, rename="camel", kw_only=True):
    """The same with its table, as the server passes it on."""

    namespace: list[str]
    table: str
    is_single: bool = False
    """One row is asked for by its path: then the answer is that row, or 404."""

    @property
    def name(self) -> Name:
        return Name(tuple(self.namespace), self.table)

    def checked(self) -> RowsQuestion:
        """Refuse what cannot be answered, whatever is in the lake."""
        if self.table.endswith((CHANGES_SUFFIX, QUARANTINE_SUFFIX)):
            raise wrong_kind(self.name)
        if len(self.keys) > KEYS_MAX:
            raise InvalidInput(f"{len(self.keys)} keys are too many", hint=f"send at most {KEYS_MAX} at once")
        if self.as_of is not None and self.snapshot_id is not None:
            raise InvalidInput("asOf and snapshotId do not go together", hint="a row is asked for at one moment")
        if self.timeout_ms is not None and self.timeout_ms <= 0:
            raise InvalidInput(f"timeoutMs is {self.timeout_ms}", hint="say how long it may take, or leave it out")
        return self

    def checked_source(self, has_source_in_key: bool) -> str:
        """The part of the key that a source is, where it is one."""
        if not has_source_in_key:
            if self.source is not None:
                raise InvalidInput("the source is no part of the keys of this lake", hint="leave `source` out")
            return ""
        if self.source is None:
            hint = "with lake.key_scope = source each source has rows of its own: send `source`, too"
            raise InvalidInput("a key alone does not say which row", hint=hint)
        return self.source


def unknown_table(name: Name) -> UnknownTable:
    """The same words for one that is not there and one that the asker does not see."""
    return UnknownTable(
        f"there is no table {name}", table=plain_table_name(str(name)), hint="GET /v1/tables lists them"
    )


def wrong_kind(name: Name) -> DoLakeError:
    return InvalidInput(f"{name} has no rows that are found by key", hint="POST /v1/query reads it")


def read_question(raw: bytes) -> RowsQuestion:
    """What the server has passed on."""
    return msgspec.json.decode(raw, type=RowsQuestion).checked()
