"""The sources that the server runs, over HTTP: list, add, pause, resume, remove; and the streams that the lake knows.

From app.py; `dolake sources` asks here. What the routes change is in sources.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from dolake.errors import InvalidInput
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.server.lake import Lake
from dolake.server.operations import LAKE, json_response
from dolake.wire.source_state import decode_state


async def list_sources(request: web.Request) -> web.Response:
    """The sources that the server runs, for administrators, and the streams that the lake knows."""
    lake, grant = request.app[LAKE], grant_of(request)
    body: dict[str, Any] = {"streams": _streams(lake, grant)}
    if grant.is_administrator:
        body = {"sources": [each.as_json() for each in lake.sources]} | body
    return json_response(body)


def _streams(lake: Lake, grant: Grant) -> list[dict[str, Any]]:
    speakers = lake.receiver.speakers
    return [
        {
            "source": stream.source,
            "shard": stream.shard,
            "epoch": point.epoch,
            "lastDurableSequence": point.sequence,
            "connected": speakers.speaker_of(stream) is not None,
            "state": decode_state(point.state),
        }
        for stream, point in sorted(lake.journal.points().items(), key=lambda each: str(each[0]))
        if grant.knows_source(stream.source) and not stream.is_own
    ]


async def add_source(request: web.Request) -> web.Response:
    """Follow a database from now on, also after a restart."""
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"the body is not JSON: {error}", hint='send a source, e.g. {"path": "/srv/app.db"}'
        ) from None
    return json_response((await request.app[LAKE].sources.add(body)).as_json())


async def pause_source(request: web.Request) -> web.Response:
    """End its process until it is resumed, also after a restart."""
    return json_response((await request.app[LAKE].sources.pause(request.match_info["source"])).as_json())


async def resume_source(request: web.Request) -> web.Response:
    """Follow it again, from where it was."""
    return json_response((await request.app[LAKE].sources.resume(request.match_info["source"])).as_json())


async def remove_source(request: web.Request) -> web.Response:
    """Follow it no longer. Its tables in the lake stay."""
    await request.app[LAKE].sources.remove(request.match_info["source"])
    return web.Response(status=204)


ROUTES = [
    ("GET", "/v1/sources", list_sources),
    ("POST", "/v1/sources", add_source),
    ("POST", "/v1/sources/{source}/pause", pause_source),
    ("POST", "/v1/sources/{source}/resume", resume_source),
    ("DELETE", "/v1/sources/{source}", remove_source),
]
