"""The settings of the journal: how large it gets, and whether it is copied to the store.

From schema.py, which has all other sections.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from dolake.settings.words import BYTES_MAX, GIB, KIB, MIB, MS_MAX, RESTART, says, whole


class JournalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that make changes durable."""

    size_max_bytes: Annotated[
        int, whole("Most bytes on disk; at the bound batches get `buffer_full`.", 128 * KIB, BYTES_MAX)
    ] = 8 * GIB
    segment_size_bytes: Annotated[int, whole("Size of one journal file.", 64 * KIB, GIB, RESTART)] = 64 * MIB
    group_size_max_bytes: Annotated[int, whole("Most bytes made durable by one sync.", KIB, GIB)] = 8 * MIB
    copy: Annotated[
        bool,
        says("Copy sealed segments and the catalog to the store, for the day on which this machine is lost.", RESTART),
    ] = False
    copy_interval_ms: Annotated[
        int, whole("Longest that a durable change waits until it is copied, while the store is well.", 1_000, MS_MAX)
    ] = 30_000
