"""Tables that a source is still copying: an answer about one of them says so, because rows are missing in it. Pure.

From the server, which knows the states of the sources, in a header of each query; to answering.py, for the answer's
freshness and warnings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from dolake.tables.names import plain_table_name

COPYING_HEADER = "X-DoLake-Copying"
_HEADER_BYTES_MAX = 7_000
_decode = msgspec.json.Decoder(dict[str, tuple[int, int]]).decode


class Named(Protocol):
    """A table as a statement names it."""

    @property
    def namespace(self) -> str: ...
    @property
    def table(self) -> str: ...


def to_header(copying: Mapping[str, tuple[int, int]]) -> str:
    """By table: rows that are copied, and rows that there are. As many as a header takes."""
    kept: dict[str, tuple[int, int]] = {}
    size = 2
    for name, rows in copying.items():
        size += 6 * len(name) + 50
        if size > _HEADER_BYTES_MAX:
            break
        kept[name] = rows
    return json.dumps(kept, separators=(",", ":"))


def from_header(told: str | None) -> dict[str, tuple[int, int]]:
    return _decode(told) if told else {}


def copying_in(references: Iterable[Named], copying: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Those of the tables that the statement names. A table's history and its rescued values are copied with it."""
    found = {}
    for reference in references:
        name = plain_table_name(f"{reference.namespace}.{reference.table.partition('__')[0]}")
        whole = plain_table_name(f"{reference.namespace}.{reference.table}")
        for each in (whole, name):
            if each in copying:
                copied, total = copying[each]
                found[each] = {"copied": copied, "total": total}
    return found


def warnings_of(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """In words, for people."""
    return [
        f"table {name} is not complete: {rows['copied']:,} of about {rows['total']:,} rows are copied so far"
        for name, rows in found.items()
    ]
