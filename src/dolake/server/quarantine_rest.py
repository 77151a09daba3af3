"""Changes that could not be written, over HTTP: which there are, send them again, let them go.

From app.py; to quarantine.py. docs/reference/http.md has the shapes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import msgspec
from aiohttp import web

from dolake.errors import InvalidInput
from dolake.identity.request import grant_of
from dolake.positions import Position
from dolake.server.operations import LAKE, json_response
from dolake.server.quarantine import Done, quarantines_of
from dolake.server.tables import number_in, table_in

LIMIT_MAX, POSITIONS_MAX = 10_000, 10_000
_LIMIT = 100
_POSITION_MAX = 2**63 - 1
_HINT = 'send {"positions": [4711]}, or {} for all of them'


async def all_quarantines(request: web.Request) -> web.Response:
    """The tables that have changes which could not be written, and how many."""
    grant = grant_of(request)
    counts = await quarantines_of(request.app[LAKE]).counts(lambda table: grant.sees(table.namespace))
    found = [
        {"namespace": ".".join(table.namespace), "name": table.name, "entries": count}
        for table, count in counts.items()
    ]
    return json_response({"tables": found})


async def table_quarantine(request: web.Request) -> web.Response:
    """The changes of a table which could not be written, in their order, page by page."""
    table = table_in(request)
    after = number_in(request, "after", -1, _POSITION_MAX, low=0)
    limit = number_in(request, "limit", _LIMIT, LIMIT_MAX)
    entries, following = await quarantines_of(request.app[LAKE]).page(table, after, limit)
    described = [{"table": str(table)} | asdict(each) for each in entries]
    return json_response({"entries": described, "nextAfter": following})


async def replay_quarantine(request: web.Request) -> web.Response:
    """Send changes which could not be written again, in their order."""
    table, positions = table_in(request), _positions_in(await request.read())
    done = await quarantines_of(request.app[LAKE]).replay(table, positions)
    return json_response({"table": str(table), "replayed": done.count} | _described(done))


async def drop_quarantine(request: web.Request) -> web.Response:
    """Let changes which could not be written go for good."""
    table, positions = table_in(request), _positions_in(await request.read())
    done = await quarantines_of(request.app[LAKE]).drop(table, positions)
    return json_response({"table": str(table), "dropped": done.count} | _described(done))


def _described(done: Done) -> dict[str, object]:
    refused = [{"position": position, "reason": reason} for position, reason in sorted(done.refused.items())]
    return {"position": done.position, "refused": refused}


class _Body(msgspec.Struct):
    positions: list[Annotated[int, msgspec.Meta(ge=0, le=_POSITION_MAX)]] | None = None


def _positions_in(raw: bytes) -> list[Position] | None:
    try:
        positions = msgspec.json.decode(raw or b"{}", type=_Body).positions
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body cannot be read: {error}", hint=_HINT) from None
    if positions is not None and len(positions) > POSITIONS_MAX:
        raise InvalidInput(
            f"these are {len(positions)} positions", hint=f"send at most {POSITIONS_MAX}, or {{}} for all"
        )
    return positions


ROUTES = [
    ("GET", "/v1/quarantine", all_quarantines),
    ("GET", "/v1/quarantine/{namespace}/{table}", table_quarantine),
    ("POST", "/v1/quarantine/{namespace}/{table}/replay", replay_quarantine),
    ("POST", "/v1/quarantine/{namespace}/{table}/drop", drop_quarantine),
]
