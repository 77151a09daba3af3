"""The SDK: `connect` to a lake, `send` it changes and `query` it. `dolake.client.sync` has the same without async.

lake = create_lake_client("http://localhost:8787")
result = await lake.query("SELECT COUNT(*) FROM orders")
print(result.rows[0].count)
"""

from dolake.client.aio import LakeClient, connect
from dolake.client.answers import (
    Changed,
    Diff,
    Drop,
    Forgotten,
    Job,
    LakeFreshness,
    Plan,
    Quarantine,
    QuarantineEntry,
    Replay,
    Rollback,
    Route,
    RunningQuery,
    Snapshot,
    Subscription,
    Table,
    TableSchema,
    TierList,
)
from dolake.client.lookups import FoundRows
from dolake.client.outgoing import ChangeLike
from dolake.client.results import Column, Freshness, QueryResult
from dolake.client.rows import Row
from dolake.client.subscribing import ChangeBatch, ChangeEvent
from dolake.client.window import Receipt

create_lake_client = connect

__all__ = [
    "ChangeBatch",
    "ChangeEvent",
    "ChangeLike",
    "Changed",
    "Column",
    "Diff",
    "Drop",
    "Forgotten",
    "FoundRows",
    "Freshness",
    "Job",
    "LakeClient",
    "LakeFreshness",
    "Plan",
    "Quarantine",
    "QuarantineEntry",
    "QueryResult",
    "Receipt",
    "Replay",
    "Rollback",
    "Route",
    "Row",
    "RunningQuery",
    "Snapshot",
    "Subscription",
    "Table",
    "TableSchema",
    "TierList",
    "connect",
    "create_lake_client",
]
