"""The SDK: `connect` to a lake, `send` it changes and `query` it. `dolake.client.sync` has the same without async.

lake = create_lake_client("http://localhost:8787")
result = await lake.query("SELECT COUNT(*) FROM orders")
print(result.rows[0].count)
"""

from dolake.client.aio import LakeClient, connect
from dolake.client.answers import (
    Diff,
    Drop,
    Plan,
    Quarantine,
    QuarantineEntry,
    Replay,
    Rollback,
    RunningQuery,
    Snapshot,
    Table,
    TableSchema,
)
from dolake.client.outgoing import ChangeLike
from dolake.client.results import Column, Freshness, QueryResult
from dolake.client.rows import Row
from dolake.client.window import Receipt

create_lake_client = connect

__all__ = [
    "ChangeLike",
    "Column",
    "Diff",
    "Drop",
    "Freshness",
    "LakeClient",
    "Plan",
    "Quarantine",
    "QuarantineEntry",
    "QueryResult",
    "Receipt",
    "Replay",
    "Rollback",
    "Row",
    "RunningQuery",
    "Snapshot",
    "Table",
    "TableSchema",
    "connect",
    "create_lake_client",
]
