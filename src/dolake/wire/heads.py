"""Which rows a batch touches, read without making its events.

From the journal, by query/key_tail.py, which follows every change and looks at few of them. Promise: the tables and row
ids are those that `decode_raw_batch` finds, in either form, for less than half of its price.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dolake.wire.binary import decode_columns, is_binary


class _Head(Struct, rename="camel", gc=False):
    table: str
    row_id: str
    metadata: Raw | UnsetType = UNSET


class _Heads(Struct):
    events: list[_Head]


_decode = msgspec.json.Decoder(_Heads).decode


class Heads(Struct, frozen=True, gc=False):
    """Of each event its table and its row, in order."""

    tables: list[str]
    all_row_ids: list[str]
    has_metadata: bool

    def row_ids(self, table: str, first: int = 0) -> list[str]:
        """Of the events of this table, from the `first` event on."""
        pairs = zip(self.tables[first:], self.all_row_ids[first:], strict=True)
        return [row_id for name, row_id in pairs if name == table]


def decode_heads(payload: bytes) -> Heads:
    """Of a batch as the journal keeps it."""
    if is_binary(payload):
        columns = decode_columns(payload).events
        return Heads([columns.tables[at] for at in columns.table], columns.row_id, columns.metadata is not None)
    events = _decode(payload).events
    has_metadata = any(each.metadata is not UNSET for each in events)
    return Heads([each.table for each in events], [each.row_id for each in events], has_metadata)
