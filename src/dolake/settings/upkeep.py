"""The settings of upkeep, but for those of the seeds: when it sets in, how much it does at once, how patient it is.

From schema.py, which has all other sections.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dolake.settings.words import BYTES_MAX, COUNT_MAX, DAYS_MAX, KIB, MIB, MS_MAX, whole


class MaintenanceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tables may look like before upkeep sets in, and how patient it is."""

    deleted_share_max: Annotated[
        float, Meta(gt=0.0, le=1.0, description="Share of deleted rows from which a data file is written anew at once.")
    ] = 0.2
    small_files_max: Annotated[
        int, whole("Small files of similar size from which they are merged at once.", 2, COUNT_MAX)
    ] = 8
    manifests_max: Annotated[int, whole("Manifests from which they are rewritten.", 2, COUNT_MAX)] = 100
    snapshots_max: Annotated[
        int, whole("Most snapshots that a table keeps; beyond that the most crowded go.", 1, COUNT_MAX)
    ] = 3_000
    snapshots_all_ms: Annotated[int, whole("Age up to which all snapshots are kept.", 0, MS_MAX)] = 600_000
    snapshots_minutely_ms: Annotated[
        int, whole("Age up to which the last snapshot of each minute is kept.", 0, MS_MAX)
    ] = 24 * 3_600_000
    snapshots_hourly_ms: Annotated[int, whole("Age up to which the last snapshot of each hour is kept.", 0, MS_MAX)] = (
        30 * 24 * 3_600_000
    )
    snapshot_age_max_ms: Annotated[
        int, whole("How long a snapshot is kept at all: beyond the other ages, the last of each day.", 1, MS_MAX)
    ] = 365 * 24 * 3_600_000
    gc_grace_ms: Annotated[
        int, whole("How long a file that no snapshot names any more is kept for readers.", 0, MS_MAX)
    ] = 24 * 3_600_000
    memory_max_bytes: Annotated[int, whole("Most memory that one piece of upkeep takes.", 64 * MIB, BYTES_MAX)] = (
        512 * MIB
    )
    move_size_max_bytes: Annotated[
        int, whole("Most bytes of data files that move to another tier in one piece.", KIB, BYTES_MAX)
    ] = 256 * MIB
    restored_days: Annotated[
        int, whole("Days for which a partition stays warm that was moved back by hand.", 0, DAYS_MAX)
    ] = 7
