"""What is hot, warm and cold, what that costs, and the order to move some of it: over HTTP.

From app.py; to the catalog, whose manifests say where each file is, and through spark_process.py to the pipeline, which
moves. docs/reference/http.md has the shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast, get_args

from aiohttp import web

from dolake.catalog.base import Name
from dolake.catalog.catalog import Catalog
from dolake.catalog.facts import table_facts
from dolake.errors import InvalidInput, NotFound
from dolake.identity.request import grant_of
from dolake.server.compaction import body_of, pipeline_of
from dolake.server.operations import LAKE, json_response
from dolake.server.upkeep import checked_partitions, checked_tables, job_json
from dolake.settings import StorageSettings
from dolake.settings.tables import archive_after_days
from dolake.tables.layout import table_names
from dolake.tables.maintenance import Held, held_by
from dolake.tables.tiers import COLD, WARM, Tier

_MOVE_KEYS = frozenset(("namespace", "table", "partitions", "to"))


async def show_tiers(request: web.Request) -> web.Response:
    """Rows, bytes and cost of each tier; of one table or namespace if the query names it."""
    lake, query = request.app[LAKE], request.query
    catalog, grant = lake.catalog, grant_of(request)
    wanted = query.get("namespace"), query.get("table")
    sources = await catalog.run(checked_tables, catalog, *wanted, grant)
    held = await catalog.run(_held, catalog, sources)
    settings = lake.settings.current
    found: dict[str, Held] = {tier: sum((each[tier] for each in held.values()), Held()) for tier in (WARM, COLD)}
    if grant.is_lake_wide and wanted == (None, None):
        tail = lake.progress.tail
        found = {"hot": Held(0, tail.change_count, tail.byte_count)} | found
    return json_response(
        {
            "tiers": [_tier_json(tier, each, settings.storage) for tier, each in found.items()],
            "tables": [_table_json(name, each) for name, each in held.items()],
            "archiveAfterDays": settings.lake.archive_after_days,
            "coldLocation": catalog.storage.tiers.cold,
        }
    )


async def move_tier(request: web.Request) -> web.Response:
    """Move partitions of a table to the cold tier, or back; answers at once with the job."""
    lake, body = request.app[LAKE], await body_of(request)
    if unknown := sorted(body.keys() - _MOVE_KEYS):
        raise InvalidInput(f"unknown key {unknown[0]!r}", hint=f"there are {', '.join(sorted(_MOVE_KEYS))}")
    to, partitions = _checked_tier(body.get("to")), checked_partitions(body.get("partitions"))
    if body.get("table") is None:
        raise InvalidInput("a move names its table", hint='such as {"table": "orders", "to": "cold"}')
    wanted = body.get("namespace"), body["table"]
    tables = await lake.catalog.run(checked_tables, lake.catalog, *wanted, grant_of(request))
    if to == COLD and not partitions and not archive_after_days(lake.settings.current.lake, tables[0]):
        hint = 'name partitions, such as ["dt=2024-01-15"], or set archive_after_days'
        raise InvalidInput("nobody has said which partitions are old", hint=hint)
    return json_response(job_json(pipeline_of(lake).ask_upkeep(tables, ("tiers",), partitions, to)), status=202)


def _checked_tier(tier: object) -> Tier:
    if tier not in get_args(Tier):
        raise InvalidInput("to must be warm or cold", hint='such as {"table": "orders", "to": "cold"}')
    return cast("Tier", tier)


def _held(catalog: Catalog, sources: Iterable[str]) -> dict[tuple[str, ...], dict[Tier, Held]]:
    """What each table has where, in its current snapshot."""
    found: dict[tuple[str, ...], dict[Tier, Held]] = {}
    for source in sources:
        for full_name in table_names(source):
            try:
                document = catalog.tables.load(Name(full_name[:-1], full_name[-1]))
            except NotFound:  # one that was adopted has no changes, or it was dropped just now
                continue
            found[full_name] = held_by(table_facts(".".join(full_name), document, catalog.storage).files)
    return found


def _tier_json(tier: str, held: Held, settings: StorageSettings) -> dict[str, Any]:
    price: float = getattr(settings, f"{tier}_price")
    return {"tier": tier, **_held_json(held), "pricePerGbMonth": price, "costPerMonth": round(held.cost(price), 6)}


def _table_json(name: tuple[str, ...], held: dict[Tier, Held]) -> dict[str, Any]:
    tiers: dict[str, Any] = {tier: _held_json(each) for tier, each in held.items()}
    return {"namespace": ".".join(name[:-1]), "table": name[-1], **tiers}


def _held_json(held: Held) -> dict[str, int]:
    return {"files": held.files, "rows": held.rows, "bytes": held.size_bytes}


ROUTES = [
    ("GET", "/v1/tiers", show_tiers),
    ("POST", "/v1/tiers/move", move_tier),
]
