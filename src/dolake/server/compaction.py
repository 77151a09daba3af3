"""What an operator asks of upkeep over HTTP: what is due, do it, how far is it, stop it.

From app.py; to upkeep.py and, through spark_process.py, to the pipeline. docs/reference/http.md has the shapes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from dolake.errors import Conflict, InvalidInput
from dolake.identity.request import grant_of
from dolake.server.lake import Lake
from dolake.server.operations import LAKE, json_response
from dolake.server.spark_process import SparkProcess
from dolake.server.upkeep import (
    JobBoard,
    candidate_json,
    checked_kinds,
    checked_partitions,
    checked_tables,
    due,
    job_json,
    totals_json,
)

_RUN_KEYS = frozenset(("namespace", "table", "partitions", "kinds"))


async def list_candidates(request: web.Request) -> web.Response:
    """What is due now, the most useful first; of one table or namespace if the query names it."""
    lake, query = request.app[LAKE], request.query
    catalog = lake.catalog
    tables = await catalog.run(checked_tables, catalog, query.get("namespace"), query.get("table"), grant_of(request))
    found = await catalog.run(due, catalog, lake.settings.current, tables, lake.clock_ms(), lake.home.path)
    return json_response({"candidates": [candidate_json(each) for each in found]})


async def run_job(request: web.Request) -> web.Response:
    """Do what is due in one table, a namespace or everywhere; answers at once with the job."""
    lake, body = request.app[LAKE], await body_of(request)
    if unknown := sorted(body.keys() - _RUN_KEYS):
        raise InvalidInput(f"unknown key {unknown[0]!r}", hint=f"there are {', '.join(sorted(_RUN_KEYS))}")
    partitions = checked_partitions(body.get("partitions"))
    kinds = checked_kinds(body["kinds"]) if "kinds" in body else ("files", "deletes")
    wanted = body.get("namespace"), body.get("table")
    tables = await lake.catalog.run(checked_tables, lake.catalog, *wanted, grant_of(request))
    return json_response(job_json(pipeline_of(lake).ask_upkeep(tables, kinds, partitions)), status=202)


async def run_auto(request: web.Request) -> web.Response:
    """The look at all tables that is due every `compaction_interval_ms`, now."""
    lake = request.app[LAKE]
    tables = await lake.catalog.run(checked_tables, lake.catalog, None, None, grant_of(request))
    return json_response(job_json(pipeline_of(lake).ask_upkeep(tables)), status=202)


async def compaction_metrics(request: web.Request) -> web.Response:
    """What upkeep did since this server started."""
    board, grant = _board(request.app[LAKE]), grant_of(request)
    running = [job_json(report) for report in board.seen_by(grant) if report.state in ("queued", "running")]
    totals = totals_json(board) if grant.is_lake_wide else {}
    return json_response(totals | {"running": running})


async def list_jobs(request: web.Request) -> web.Response:
    """All jobs that are remembered, the newest last."""
    return json_response(
        {"jobs": [job_json(report) for report in _board(request.app[LAKE]).seen_by(grant_of(request))]}
    )


async def show_job(request: web.Request) -> web.Response:
    """How far a job is, or how it ended."""
    return json_response(job_json(_board(request.app[LAKE]).find(request.match_info["job"], grant_of(request))))


async def cancel_job(request: web.Request) -> web.Response:
    """Before its next piece; what is done stays done."""
    pipeline = pipeline_of(request.app[LAKE])
    pipeline.jobs.find(request.match_info["job"], grant_of(request))
    return json_response(job_json(pipeline.cancel_upkeep(request.match_info["job"])))


def _board(lake: Lake) -> JobBoard:
    """Without a pipeline nothing was ever done."""
    return lake.pipeline.jobs if lake.pipeline else JobBoard(lake.clock_ms)


def pipeline_of(lake: Lake) -> SparkProcess:
    if lake.pipeline is None:
        raise Conflict("the pipeline is off, and upkeep with it", hint="set pipeline.enabled and start again")
    return lake.pipeline


async def body_of(request: web.Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.read() or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"the body is not JSON: {error}", hint='send {"table": "users"}, or nothing for all'
        ) from None
    if not isinstance(body, dict):
        raise InvalidInput("the body is not an object", hint='send {"table": "users"}, or nothing for all')
    return body


ROUTES = [
    ("GET", "/v1/compaction/candidates", list_candidates),
    ("POST", "/v1/compaction/run", run_job),
    ("POST", "/v1/compaction/auto", run_auto),
    ("GET", "/v1/compaction/metrics", compaction_metrics),
    ("GET", "/v1/compaction/jobs", list_jobs),
    ("GET", "/v1/compaction/jobs/{job}", show_job),
    ("DELETE", "/v1/compaction/jobs/{job}", cancel_job),
]
