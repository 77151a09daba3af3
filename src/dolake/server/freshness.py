"""How fresh the lake is, over HTTP: how far tables and sources are durable, published and visible; and a wait for it.

From app.py. Our own SQL and look-ups show what is durable, so there `visible` is `durable`; other engines read the
tables, so for them `published` counts. Who starts a job elsewhere can wait here until that is fresh enough.
docs/explain/freshness.md says what each word promises.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from dolake.errors import TooStale
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.query.sqltext import iso
from dolake.receiver.freshness import Mark, Point
from dolake.server.lake import Lake
from dolake.server.operations import LAKE, json_response
from dolake.server.tables import number_in
from dolake.tables.names import plain_table_name

_AGE_MAX_MS = 7 * 24 * 3600 * 1000
_WAIT_MS, _WAIT_MAX_MS = 10_000, 600_000
_LOOK_S = 0.05
Json = dict[str, Any]


async def freshness(request: web.Request) -> web.Response:
    """How far tables and sources are durable, published and visible; with maxAgeMs, once the tables are so fresh."""
    lake, grant, table = request.app[LAKE], grant_of(request), request.query.get("table")
    if "maxAgeMs" in request.query:
        age_max_ms = number_in(request, "maxAgeMs", 0, _AGE_MAX_MS, low=0)
        await _wait(lake, grant, table, age_max_ms, number_in(request, "waitMs", _WAIT_MS, _WAIT_MAX_MS, low=0))
    return json_response(_report(lake, grant, table))


async def _wait(lake: Lake, grant: Grant, table: str | None, age_max_ms: int, wait_ms: int) -> None:
    """Until nothing that is older waits to be published. One who waits is not what makes it happen earlier."""
    give_up_ms = lake.clock_ms() + wait_ms
    while (age_ms := _age_ms(lake, grant, table)) > age_max_ms:
        if lake.clock_ms() >= give_up_ms:
            raise TooStale(
                f"the tables are {age_ms} ms behind, and {age_max_ms} were asked for",
                hint="ask again, wait for longer (waitMs), or look at the pipeline in /status",
            )
        await asyncio.sleep(_LOOK_S)


def _age_ms(lake: Lake, grant: Grant, table: str | None) -> int:
    """How long the oldest change waits that is durable and not published."""
    if table is None and grant.is_lake_wide:
        oldest_ms = lake.progress.tail.oldest_ms
        return 0 if oldest_ms is None else max(0, lake.clock_ms() - oldest_ms)
    waiting = [each.oldest_ms for _, each in _tables(lake, grant, table)]
    return max((lake.clock_ms() - each for each in waiting if each is not None), default=0)


def _tables(lake: Lake, grant: Grant, table: str | None) -> list[tuple[str, Mark]]:
    wanted = None if table is None else plain_table_name(table)
    found = [(name, each) for name, each in lake.progress.table_marks.by_name.items() if grant.sees_table(name)]
    return sorted((name, each) for name, each in found if wanted in (None, plain_table_name(name)))


def _report(lake: Lake, grant: Grant, table: str | None) -> Json:
    now_ms, progress = lake.clock_ms(), lake.progress
    durable = Point(lake.journal.durable, progress.last_durable_ms)
    published = Point(progress.tail.committed, progress.last_flush_ms)
    age_ms = _age_ms(lake, grant, table)
    return {
        "at": iso(now_ms),
        "targetMs": lake.settings.current.lake.freshness_target_ms,
        "durable": _point(durable),
        "published": _point(published) | {"ageMs": age_ms, "lagChanges": progress.tail.change_count},
        "visible": _point(durable) | {"ageMs": 0},
        "tables": {name: _mark(each, now_ms) for name, each in _tables(lake, grant, table)},
        "sources": {
            name: _mark(each, now_ms, has_sequence=True)
            for name, each in sorted(progress.sources.by_name.items())
            if grant.knows_source(name)
        },
    }


def _mark(mark: Mark, now_ms: int, *, has_sequence: bool = False) -> Json:
    oldest_ms = mark.oldest_ms
    waits = {"ageMs": 0 if oldest_ms is None else max(0, now_ms - oldest_ms), "lagChanges": mark.change_count}
    return {
        "durable": _point(mark.durable, has_sequence=has_sequence),
        "published": _point(mark.published, has_sequence=has_sequence) | waits,
        "visible": _point(mark.durable, has_sequence=has_sequence) | {"ageMs": 0},
    }


def _point(point: Point, *, has_sequence: bool = False) -> Json:
    found: Json = {"position": point.position, "at": None if point.at_ms is None else iso(point.at_ms)}
    return found | {"sequence": point.sequence} if has_sequence else found


ROUTES = [("GET", "/v1/freshness", freshness)]
