"""The state against the last change of each key: what the state must be, whatever happened in between.

From run.py, once a table's changes and rows are in the workshop. Counts and checksums of 1,024 ranges of keys are
compared first; only where a range differs are keys looked at one by one. Promise: each key whose row is missing, too
much, there twice or not what its last change says is counted, and the first ones are named.

A key change is an UPDATE that names the key which its row had before, and takes that key's row away. A table of changes
that an older release has made does not say so. The journal does, for what it still keeps; moves.py looks for others
between `find_suspects` and `name_suspects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dolake.positions import Position
from dolake.verify.base import NAMED_MAX, Check, short

if TYPE_CHECKING:
    import duckdb

# A moment is twice the position, so that a key is gone just before the change that moved its row away.
_FOLD = """
CREATE OR REPLACE TABLE folded AS
SELECT scope, key, max(moment) AS moment, arg_max(is_gone, moment) AS is_gone, arg_max(checksum, moment) AS checksum
FROM (
    SELECT scope, key, 2 * position + 1 AS moment, operation NOT IN ('INSERT', 'UPDATE') AS is_gone, checksum
    FROM changes WHERE number = $number
        AND position > (SELECT coalesce(max(position), -1) FROM changes
            WHERE number = $number AND operation IN ('TRUNCATE', 'DROP'))
    UNION ALL
    SELECT scope, previous, 2 * position, true, 0
    FROM changes WHERE number = $number AND previous IS NOT NULL
        AND position > (SELECT coalesce(max(position), -1) FROM changes
            WHERE number = $number AND operation IN ('TRUNCATE', 'DROP'))
    UNION ALL
    SELECT CASE WHEN $has_scope THEN source ELSE '' END, previous, 2 * position, true, 0
    FROM journal WHERE number = $number AND previous IS NOT NULL
)
GROUP BY scope, key
"""
_RANGES = """
WITH wanted AS (
    SELECT range_of(scope, key) AS range, count(*) AS rows, sum(hash(scope, key, checksum)) AS checksum
    FROM folded WHERE NOT is_gone GROUP BY range
), found AS (
    SELECT range_of(scope, key) AS range, count(*) AS rows, sum(hash(scope, key, checksum)) AS checksum
    FROM state WHERE number = $number GROUP BY range
)
SELECT range FROM wanted FULL JOIN found USING (range)
WHERE (wanted.rows, wanted.checksum) IS DISTINCT FROM (found.rows, found.checksum)
"""
_KEYS = """
CREATE OR REPLACE TABLE suspects AS
WITH found AS (
    SELECT scope, key, count(*) AS copies, min(checksum) AS checksum, min(file) AS file, arg_min(row, file) AS row
    FROM state WHERE number = $number AND range_of(scope, key) IN (SELECT unnest($chosen)) GROUP BY scope, key
), wanted AS (
    FROM folded WHERE NOT is_gone AND range_of(scope, key) IN (SELECT unnest($chosen))
)
SELECT scope, key, wanted.moment // 2 AS position, file, row, copies,
    CASE WHEN copies IS NULL THEN 'missing' WHEN moment IS NULL THEN 'extra' WHEN copies > 1 THEN 'doubled'
        ELSE 'different' END AS kind
FROM wanted FULL JOIN found USING (scope, key)
WHERE copies IS NULL OR moment IS NULL OR copies > 1 OR wanted.checksum <> found.checksum
"""
_COUNTS = "SELECT kind, count(*) FROM suspects GROUP BY kind ORDER BY kind"
_NAMED = """
SELECT scope, key, position, copies, file, row FROM suspects WHERE kind = $kind
ORDER BY position, scope, key LIMIT $limit
"""


@dataclass(frozen=True, slots=True)
class Different:
    """A key whose row is not what its last change says: where both are."""

    key: str
    position: Position
    file: int
    row: int


def find_suspects(connection: duckdb.DuckDBPyConnection, number: int, *, has_scope: bool, check: Check) -> bool:
    """Compare a table's rows with its changes; whether the table `suspects` now has keys that differ."""
    values: dict[str, Any] = {"number": number}
    connection.execute(_FOLD, values | {"has_scope": has_scope})
    counted = connection.execute("SELECT count(*) FROM folded WHERE NOT is_gone").fetchone()
    check.compared = int(counted[0]) if counted else 0
    chosen = [range_ for (range_,) in connection.execute(_RANGES, values).fetchall()]
    if chosen:
        connection.execute(_KEYS, values | {"chosen": chosen})
    return bool(chosen)


def name_suspects(connection: duckdb.DuckDBPyConnection, check: Check) -> list[Different]:
    """Count and name them. Those with another row are returned, for rows.py to say how it differs."""
    different = []
    for kind, count in connection.execute(_COUNTS).fetchall():
        rows = connection.execute(_NAMED, {"kind": kind, "limit": NAMED_MAX}).fetchall()
        if kind == "moved":
            check.note(
                f"{count} keys have no row, and a later UPDATE of another key has theirs as the row before it, such as "
                f"{_key(rows[0])}: they count as moved"
            )
        elif kind == "different":
            check.difference_count += count
            different = [Different(_key(row), row[2], *row[4:]) for row in rows]
        else:
            check.differ_all([_SENTENCES[kind].format(key=_key(row), at=row[2], copies=row[3]) for row in rows], count)
    return different


_SENTENCES = {
    "missing": "{key} has no row; its last change, at position {at}, is no DELETE",
    "extra": "{key} has a row; it has no change, or its last one took it away",
    "doubled": "{key} has {copies} rows",
}


def _key(row: tuple[Any, ...]) -> str:
    scope, key = row[:2]
    return f"key {short(key)} of {scope}" if scope else f"key {short(key)}"
