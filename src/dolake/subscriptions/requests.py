"""What a subscriber asks for, read and checked: tables, operations, condition, columns, where to begin, a name.

From endpoint.py, as the first message of a socket or the query of an address. Pure. Promise: what passes can be shared
by all who ask for the same, however they spelled it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dolake.errors import InvalidInput, UnknownTable
from dolake.positions import Position
from dolake.query.announcing import Wish
from dolake.subscriptions.tokens import PREFIX, position_in
from dolake.tables.layout import DDL_OPERATIONS
from dolake.tables.names import RESERVED_SUFFIXES, plain_table_name, problem_with_table_name

OPERATIONS = ("INSERT", "UPDATE", "DELETE", *dict.fromkeys(DDL_OPERATIONS.values()))
TABLES_MAX = 1_000
COLUMNS_MAX = 1_000
WHERE_LENGTH_MAX = 10_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Subscribe(Struct, frozen=True, tag="subscribe", rename="camel"):
    """The first message of a subscriber."""

    tables: Annotated[list[str], Meta(min_length=1, max_length=TABLES_MAX)]
    operations: list[str] | None = None
    where: Annotated[str, Meta(max_length=WHERE_LENGTH_MAX)] | None = None
    columns: Annotated[list[str], Meta(max_length=COLUMNS_MAX)] | None = None
    from_: int | str = msgspec.field(default="now", name="from")
    name: str | None = None
    transactions: bool = False

    def wish(self) -> Wish:
        """The same for all who mean the same."""
        return Wish(
            tuple(sorted({_checked_table(each) for each in self.tables})),
            tuple(sorted({_checked_operation(each) for each in self.operations or ()})),
            (self.where or "").strip(),
            tuple(sorted(set(self.columns or ()))),
            self.transactions,
        )

    def checked_name(self) -> str | None:
        return None if self.name is None else checked_name(self.name)

    @property
    def is_resuming(self) -> bool:
        """Whether it says itself where to go on."""
        return isinstance(self.from_, str) and self.from_.startswith(PREFIX)


class Acknowledge(Struct, frozen=True, tag="ack", rename="camel"):
    """Everything up to this token is done with."""

    token: str


Said = Subscribe | Acknowledge
_decoder = msgspec.json.Decoder[Said](Said)


def read_message(data: bytes) -> Said:
    try:
        said: Said = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"the message cannot be read: {error}", hint="docs/reference/subscriptions.md has the messages"
        ) from None
    return said


_LISTS = ("tables", "operations", "columns")


def read_query(query: Mapping[str, str], last_event_id: str | None) -> Subscribe:
    """The same from an address; lists have commas between. A browser that comes back says what it had last."""
    given: dict[str, Any] = {"type": "subscribe"}
    for name, text in query.items():
        if name in _LISTS:
            given[name] = [part.strip() for part in text.split(",") if part.strip()]
        elif name == "transactions":
            given[name] = text.lower() in ("", "1", "true", "yes")
        elif name in ("where", "from", "name"):
            given[name] = text
    if last_event_id:
        given["from"] = last_event_id
    said = read_message(msgspec.json.encode(given))
    assert isinstance(said, Subscribe)
    return said


class Beginning(Struct, frozen=True):
    """Where to begin: at a position, or at a time whose position must be looked for."""

    position: Position | None = None
    time_ms: int | None = None


def beginning_of(wanted: int | str, lake: bytes, durable: Position) -> Beginning:
    """What `from` means. Digits in a text are a position, too: an address knows only texts."""
    text = str(wanted).strip()
    if text == "now":
        return Beginning(durable)
    if text == "beginning":
        return Beginning(0)
    if text.startswith(PREFIX):
        return Beginning(position_in(text, lake, durable))
    if re.fullmatch(r"-?\d{1,18}", text):
        position = int(text)
        if not 0 <= position <= durable:
            raise InvalidInput(
                f"there is no position {position}; the lake ends at {durable}",
                hint="begin at `beginning`, `now`, a position between, a time or a resume token",
            )
        return Beginning(position)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:80]!r} is no place to begin at",
            hint="write `now`, `beginning`, a position, a time as 2026-11-15T12:00:00Z, or a resume token",
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Beginning(time_ms=int(moment.timestamp() * 1000))


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} cannot name a subscription",
            hint="use up to 128 letters, digits, `_`, `.` and `-`; the first one a letter, a digit or `_`",
        )
    return name


def _checked_table(table: str) -> str:
    plain = plain_table_name(table)
    if plain.casefold().endswith(RESERVED_SUFFIXES):
        raise UnknownTable(f"{table[:80]!r} has no changes of its own", hint="name the table that it belongs to")
    if problem := problem_with_table_name(plain):
        raise InvalidInput(f"the name of the table {table[:80]!r} {problem}")
    return plain


def _checked_operation(operation: str) -> str:
    if operation.upper() not in OPERATIONS:
        raise InvalidInput(f"there is no operation {operation[:80]!r}", hint=f"there are {', '.join(OPERATIONS)}")
    return operation.upper()
