"""Whether the lake has what a shop has in its books, as DuckDB reads it.

From pipeline.py and soak.py, once everything that was sent is published.
"""

from __future__ import annotations

from benchmarks.shop import Shop
from benchmarks.stream import Json
from dolake.cli.child import ChildServer
from tools.duckdb_client import duck_on


def compare_books(server: ChildServer, shop: Shop) -> dict[str, Json]:
    """Count and sum of keys of each state table, and the number of changes, beside what the shop has in its books."""
    books: dict[str, Json] = {}
    with duck_on(server.url) as duck:
        for table, living in shop.living.items():
            wanted = (living.count, living.key_sum, shop.changes[table])
            state = duck.execute(f"SELECT count(*), sum(id) FROM lake.default.{table}").fetchone()  # noqa: S608
            changes = duck.execute(f"SELECT count(*) FROM lake.default.{table}__changes").fetchone()  # noqa: S608
            assert state is not None
            assert changes is not None
            rows, key_sum, change_count = state[0], int(state[1]), changes[0]
            books[table] = {
                "rows": rows,
                "key_sum": key_sum,
                "changes": change_count,
                "right": (rows, key_sum, change_count) == wanted,
                "wanted": dict(zip(("rows", "key_sum", "changes"), wanted, strict=True)),
            }
    return books
