"""What upkeep a table needs, as pure rules over what is known of its files.

From pipeline/staging.py, which does it within a publish. Small files are merged as they come, so that a table that is
changed every second has few files, and few delete files beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

MERGE_FILES_MIN = 8
MERGE_ROWS_MAX = 500_000
"""A publish must not take long: larger files are left to compaction."""
_TIER_ROWS = 1_000
_TIER_STEP = 4


def files_to_merge(
    live_rows: Mapping[str, int], *, files_min: int = MERGE_FILES_MIN, rows_max: int = MERGE_ROWS_MAX
) -> list[str]:
    """Files of similar size that should become one now, and files that have no row left.

    Each tier holds files up to four times as large as the one before, and is merged when it has `files_min` of them. So
    a row is written again once for each tier, and the number of files grows with the logarithm of the rows.
    """
    empty = [path for path, rows in live_rows.items() if not rows]
    tiers: dict[int, list[str]] = {}
    for path, rows in live_rows.items():
        if rows:
            tiers.setdefault(_tier_of(rows), []).append(path)
    for _, paths in sorted(tiers.items()):
        if len(paths) >= files_min and sum(live_rows[path] for path in paths) <= rows_max:
            return [*empty, *paths]
    return empty


def _tier_of(rows: int) -> int:
    tier, limit = 0, _TIER_ROWS
    while rows > limit:
        tier, limit = tier + 1, limit * _TIER_STEP
    return tier
