"""The words between subscriptions and the query process: which changes are wanted, from where, and a page of them.

From subscriptions/feeds.py, over the query process's socket; to changes.py, which reads. An answer is a line of JSON
and behind it the events of all pages, each as JSON, so that they can be passed on without being read again. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dolake.positions import Position


class Wish(Struct, frozen=True, rename="camel"):
    """Which changes somebody wants to hear of. Equal wishes hear the same."""

    tables: tuple[str, ...]
    """By their plain names, in order."""
    operations: tuple[str, ...] = ()
    """None means all."""
    where: str = ""
    """A condition on the row."""
    columns: tuple[str, ...] = ()
    """None means all."""
    transactions: bool = False
    """Whether a page must hold all of a transaction or nothing of it."""


class Entry(Struct, frozen=True):
    """One page that is wanted: of this wish, from here on."""

    wish: int
    start: Position


class PagesWanted(Struct, frozen=True):
    """All that is asked at once."""

    wishes: list[Wish]
    entries: list[Entry]
    rows_max: int
    bytes_max: int
    keeps: bool = False
    """Whether to keep what comes behind these pages in memory, since they are asked for again at once."""
    may_read_tables: bool = True
    """Whether pages may come from tables; without, such an entry gets none."""


class Page(Struct, frozen=True, omit_defaults=True):
    """Up to `end` this is all there is."""

    end: Position
    count: int = 0
    size: int = 0
    is_live: bool = False
    """Read from the tail: what comes next is there too."""
    problem: tuple[str, str, str] | None = None
    """A code, a message and a hint: this wish cannot be read."""


class PagesHead(Struct, frozen=True):
    """Ahead of the events of all pages."""

    durable: Position
    published: Position
    pages: list[Page]


class Checked(Struct, frozen=True):
    """A wish that can be read, and where it begins."""

    start: Position
    durable: Position


class CheckWanted(Struct, frozen=True):
    """Whether a wish can be read, and how far the journal was at this time (or is now)."""

    wish: Wish
    time_ms: int | None = None


encode: Any = msgspec.json.Encoder().encode
decode_pages_wanted = msgspec.json.Decoder(PagesWanted).decode
decode_check_wanted = msgspec.json.Decoder(CheckWanted).decode
decode_head = msgspec.json.Decoder(PagesHead).decode
decode_checked = msgspec.json.Decoder(Checked).decode


def to_bytes(head: PagesHead, bodies: list[bytes]) -> bytes:
    return b"".join([encode(head), b"\n", *bodies])


def from_bytes(answer: bytes) -> tuple[PagesHead, list[memoryview]]:
    """The head, and the events of each page: JSON objects with commas between."""
    line, _, _ = answer.partition(b"\n")
    head = decode_head(line)
    at, bodies, whole = len(line) + 1, [], memoryview(answer)
    for page in head.pages:
        bodies.append(whole[at : at + page.size])
        at += page.size
    return head, bodies
