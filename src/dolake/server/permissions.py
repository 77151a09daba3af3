"""Which scope each route asks for: one row per route, in one place.

From auth.py, which looks a request up here. A route without a row is for administrators of the whole lake alone, and
fails tests/server/test_permissions.py, where the answers that each token gets are written down. That a token sees only
its namespaces is not decided here but where names are read: `table_in`, `Call.namespace`, the query process.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolake.identity.grants import Scope


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: one of these scopes; without any, a valid token of any kind."""

    scopes: tuple[Scope, ...] = ()
    is_open: bool = False
    """No token is asked for."""
    is_lake_wide: bool = False
    """It shows or changes the whole lake: not for tokens of some namespaces."""
    is_audited: bool = False
    """An administrative act."""


OPEN = Need(is_open=True)
ANY = Need()
INGEST, READ, WRITE = Need(("ingest",)), Need(("read",)), Need(("write",))
FLUSH = Need(("ingest", "write"))
ACT = Need(("write",), is_audited=True)
"""A change that somebody may want to know of later."""
ADMIN = Need(("admin",), is_audited=True)
"""Of the token's own namespaces."""
FIGURES = Need(("admin",), is_lake_wide=True)
LAKE_ADMIN = Need(("admin",), is_lake_wide=True, is_audited=True)

_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"

PERMISSIONS: dict[str, Need] = {
    "GET /": OPEN,
    "GET /health": OPEN,
    "GET /health/live": OPEN,
    "GET /health/ready": OPEN,
    "POST /v1/oauth/tokens": OPEN,
    "GET /openapi.json": ANY,
    "GET /v1/config": ANY,
    "GET /ws": INGEST,
    "POST /flush": FLUSH,
    "GET /status": READ,
    "GET /metrics": READ,
    "GET /v1/memory-stats": FIGURES,
    "GET /v1/write-stats": FIGURES,
    "GET /v1/scaling/status": FIGURES,
    "GET /v1/settings": FIGURES,
    "PATCH /v1/config": LAKE_ADMIN,
    # Upkeep.
    "GET /v1/compaction/candidates": READ,
    "POST /v1/compaction/run": ADMIN,
    "POST /v1/compaction/auto": ADMIN,
    "GET /v1/compaction/metrics": READ,
    "GET /v1/compaction/jobs": READ,
    "GET /v1/compaction/jobs/{job}": READ,
    "DELETE /v1/compaction/jobs/{job}": ADMIN,
    "GET /v1/tiers": READ,
    "POST /v1/tiers/move": ADMIN,
    "POST /v1/tables/{namespace}/{table}/retype": ADMIN,
    # Tables.
    "GET /v1/tables": READ,
    "GET /v1/snapshots": READ,
    "GET /v1/tables/{namespace}/{table}/snapshots": READ,
    "GET /v1/tables/{namespace}/{table}/schema": READ,
    "POST /v1/tables/{namespace}/{table}/rollback": ACT,
    "POST /v1/tables/{namespace}/{table}/forget": ADMIN,
    "GET /v1/quarantine": READ,
    "GET /v1/quarantine/{namespace}/{table}": READ,
    "POST /v1/quarantine/{namespace}/{table}/replay": ACT,
    "POST /v1/quarantine/{namespace}/{table}/drop": ACT,
    "GET /v1/freshness": READ,
    # Sources.
    "GET /v1/sources": READ,
    "POST /v1/sources": LAKE_ADMIN,
    "POST /v1/sources/{source}/pause": LAKE_ADMIN,
    "POST /v1/sources/{source}/resume": LAKE_ADMIN,
    "DELETE /v1/sources/{source}": LAKE_ADMIN,
    # Questions.
    "POST /v1/query": READ,
    "POST /v1/query/plan": READ,
    "POST /v1/query/route": READ,
    "POST /v1/diff": READ,
    "GET /v1/tables/{namespace}/{table}/rows/{key}": READ,
    "POST /v1/tables/{namespace}/{table}/rows": READ,
    "GET /v1/queries": READ,
    "DELETE /v1/query/{query}": READ,
    # Subscriptions.
    "GET /v1/subscribe": READ,
    "GET /v1/subscriptions": READ,
    "DELETE /v1/subscriptions/{subscription}": READ,
    "POST /v1/subscriptions/{subscription}/ack": READ,
    # The Iceberg catalog.
    "GET /v1/published": READ,
    "POST /v1/published": FIGURES,
    "GET /v1/namespaces": READ,
    "POST /v1/namespaces": WRITE,
    f"GET {_NAMESPACE}": READ,
    f"HEAD {_NAMESPACE}": READ,
    f"DELETE {_NAMESPACE}": ACT,
    f"POST {_NAMESPACE}/properties": WRITE,
    f"PATCH {_NAMESPACE}/properties": WRITE,
    f"GET {_NAMESPACE}/tables": READ,
    f"POST {_NAMESPACE}/tables": WRITE,
    f"GET {_TABLE}": READ,
    f"HEAD {_TABLE}": READ,
    f"POST {_TABLE}": WRITE,
    f"POST {_TABLE}/commits": WRITE,
    f"DELETE {_TABLE}": ACT,
    f"POST {_TABLE}/metrics": READ,
    f"POST {_TABLE}/unregister": ACT,
    f"POST {_TABLE}/adopt": ADMIN,
    f"GET {_TABLE}/partitions": READ,
    f"GET {_TABLE}/partition-stats": READ,
    f"POST {_TABLE}/plan": READ,
    f"GET {_TABLE}/plan/{{plan-id}}": READ,
    f"DELETE {_TABLE}/plan/{{plan-id}}": READ,
    f"POST {_TABLE}/tasks": READ,
    f"GET {_TABLE}/credentials": READ,
    f"POST {_TABLE}/sign": READ,
    f"POST {_NAMESPACE}/register": ACT,
    "POST /v1/tables/rename": ACT,
    "POST /v1/transactions/commit": WRITE,
    f"GET {_NAMESPACE}/views": READ,
    f"POST {_NAMESPACE}/views": WRITE,
    f"GET {_VIEW}": READ,
    f"HEAD {_VIEW}": READ,
    f"POST {_VIEW}": WRITE,
    f"DELETE {_VIEW}": ACT,
    "POST /v1/views/rename": ACT,
    f"POST {_NAMESPACE}/register-view": ACT,
}


def need_of(method: str, pattern: str) -> Need:
    """HEAD is served wherever GET is."""
    found = PERMISSIONS.get(f"{method} {pattern}")
    if found is None and method == "HEAD":
        found = PERMISSIONS.get(f"GET {pattern}")
    return found or LAKE_ADMIN
