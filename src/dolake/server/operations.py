"""What an operator asks over HTTP: health, status, metrics, figures, settings, flush.

docs/reference/http.md has every route and shape. Errors have one shape everywhere, Iceberg's:
{"error": {"message", "type", "code", "hint"}}.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import msgspec
import psutil
from aiohttp import web

import dolake
from dolake.errors import InvalidInput
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.server.lake import Lake
from dolake.server.metrics import metrics_text

LAKE = web.AppKey("lake", Lake)
_FLUSH_WAIT_S = 60.0


def json_response(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    """200 when a batch sent now can be kept, 503 otherwise; `degraded` when it is kept, but something else fails."""
    lake = request.app[LAKE]
    reasons = lake.problems()
    body = {
        "status": lake.state if not lake.is_ready else "degraded" if reasons else "ok",
        "live": True,
        "ready": lake.is_ready,
        "version": dolake.__version__,
    }
    if reason := _why_not_ready(lake) or "; ".join(reasons):
        body["reason"] = reason
    return json_response(body, status=200 if lake.is_ready else 503)


async def health_live(_: web.Request) -> web.Response:
    """200 while the process answers at all."""
    return json_response({"status": "ok", "live": True})


async def status(request: web.Request) -> web.Response:
    """The status message of the protocol, and what else an operator wants on one page."""
    lake = request.app[LAKE]
    if not lake.is_ready and lake.state == "recovering":
        body: dict[str, Any] = {"type": "status", "timestamp": lake.clock_ms(), "state": "recovering"}
        body["recovery"] = {"segmentsDone": lake.recovery_done, "segmentsTotal": lake.recovery_total}
        return json_response(body)
    receiver, journal, grant = lake.receiver, lake.journal, grant_of(request)
    lags = lake.progress.tables.lags(lake.clock_ms())
    lag = {table: dataclasses.asdict(each) for table, each in sorted(lags.items()) if grant.sees_table(table)}
    if not grant.is_lake_wide:
        return json_response(_status_of_some(lake, grant) | {"lag": lag})
    message = receiver.answers.status(lake.state, receiver.speakers.source_count)
    body = msgspec.to_builtins(message)
    body |= {
        "version": dolake.__version__,
        "uptimeMs": lake.clock_ms() - lake.started_ms,
        "connections": receiver.connection_count,
        "durablePosition": journal.durable,
        "committedPosition": lake.progress.tail.committed,
        "circuitBreakerState": lake.progress.breaker,
        "publisherAttached": lake.progress.is_attached,
        "streams": journal.stream_count,
        "tables": len(receiver.tables),
        "journal": {
            "segments": journal.segment_count,
            "usedBytes": journal.used_bytes,
            "sizeMaxBytes": journal.size_max_bytes,
            "oldestPosition": journal.oldest,
            "consumers": journal.consumers.all(),
            **({"copy": lake.journal_copy.as_json()} if lake.journal_copy else {}),
        },
    }
    body["lag"] = lag
    body["limits"] = {
        "load": round(receiver.pressure.load, 3),
        "loopLagMs": round(receiver.pressure.lag_ms, 1),
        "limitedConnections": lake.limiter.limited_connection_count,
        "addresses": lake.limiter.address_count,
        "refused": lake.limiter.refused_counts,
    }
    body["pipeline"] = lake.pipeline.stats.as_json() if lake.pipeline else {"state": "off"}
    body["query"] = lake.query.stats.as_json() if lake.query else {"state": "off"}
    body["sources"] = [each.summary() for each in lake.sources]
    body["subscriptions"] = lake.subscriptions.as_json() if lake.subscriptions else {"subscribers": 0}
    if reason := _why_not_ready(lake):
        body["reason"] = reason
    return json_response(body)


def _status_of_some(lake: Lake, grant: Grant) -> dict[str, Any]:
    """For a token of some namespaces: how the lake is, and nothing of what others do with it."""
    message = lake.receiver.answers.status(lake.state, lake.receiver.speakers.count_known(grant.knows_source))
    body: dict[str, Any] = msgspec.to_builtins(message)
    body["buffer"] = {"utilization": body["buffer"]["utilization"]}
    body |= {
        "version": dolake.__version__,
        "durablePosition": lake.journal.durable,
        "committedPosition": lake.progress.tail.committed,
        "circuitBreakerState": lake.progress.breaker,
        "publisherAttached": lake.progress.is_attached,
        "tables": sum(map(grant.sees_table, lake.journal.tables)),
        "pipeline": {"state": lake.pipeline.stats.state if lake.pipeline else "off"},
        "query": {"state": lake.query.stats.state if lake.query else "off"},
    }
    if reason := _why_not_ready(lake):
        body["reason"] = reason
    return body


async def metrics(request: web.Request) -> web.Response:
    body, content_type = metrics_text(request.app[LAKE], grant_of(request))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def flush(request: web.Request) -> web.Response:
    """Ask for a publish now and answer when what is durable at this moment is in the tables."""
    lake = request.app[LAKE]
    wanted = lake.journal.durable
    before = lake.progress.tail.committed
    lake.progress.request_flush()
    if lake.pipeline or lake.progress.is_attached:
        async with asyncio.timeout(_FLUSH_WAIT_S):
            await lake.progress.wait_committed(wanted)
    committed = lake.progress.tail.committed
    body: dict[str, Any] = {
        "success": committed >= wanted,
        "durablePosition": wanted,
        "committedPosition": committed,
        "eventsFlushed": committed - before,
    }
    if committed < wanted:
        body["message"] = "the pipeline is off: every change is durable in the journal and waits there"
    return json_response(body)


async def memory_stats(request: web.Request) -> web.Response:
    lake = request.app[LAKE]
    tail = lake.progress.tail
    return json_response(
        {
            "residentBytes": await asyncio.to_thread(lambda: psutil.Process().memory_info().rss),
            "inFlightBytes": lake.journal.in_flight_bytes,
            "maxBufferSize": lake.settings.current.lake.max_buffer_size,
            "unpublishedEvents": tail.change_count,
            "unpublishedBytes": tail.byte_count,
            "connections": lake.receiver.connection_count,
            "streams": lake.journal.stream_count,
        }
    )


async def write_stats(request: web.Request) -> web.Response:
    lake = request.app[LAKE]
    stats, progress = lake.journal.stats, lake.progress
    return json_response(
        {
            "journal": {
                "batches": stats.batch_count,
                "events": stats.change_count,
                "bytes": stats.byte_count,
                "syncs": stats.sync_count,
                "batchesPerSync": round(stats.batch_count / max(1, stats.sync_count), 2),
                "syncMsMean": round(1000 * stats.sync_seconds / max(1, stats.sync_count), 3),
                "refusedBatches": stats.refused_count,
            },
            "publish": {
                "attached": progress.is_attached,
                "count": progress.flush_count,
                "failures": progress.failure_count,
                "lastFailure": progress.last_failure,
                "lastFlushTime": progress.last_flush_ms,
            },
        }
    )


async def scaling_status(request: web.Request) -> web.Response:
    """How near each limit is, so that something can be grown before it is met."""
    lake = request.app[LAKE]
    current = lake.settings.current
    journal = lake.journal
    return json_response(
        {
            "cores": os.cpu_count(),
            "loadAverage": round(os.getloadavg()[0], 2),
            "connections": lake.receiver.connection_count,
            "connectedSources": lake.receiver.speakers.source_count,
            "bufferUtilization": round(journal.utilization, 4),
            "inFlightUtilization": round(journal.in_flight_bytes / current.lake.max_buffer_size, 4),
            "backpressure": journal.utilization >= current.rate_limit.backpressure_threshold,
            "tables": len(lake.receiver.tables),
            "tablesMax": current.server.tables_max,
            "roles": ["receiver", "journal"],
        }
    )


async def settings(request: web.Request) -> web.Response:
    """Every setting with its value and where that came from."""
    return json_response(request.app[LAKE].settings.origins())


async def change_settings(request: web.Request) -> web.Response:
    """Validate all, then apply all; says which wait for a restart or are overruled."""
    try:
        patch = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}", hint='send an object, e.g. {"maxBufferSize": 1}') from None
    result = await asyncio.to_thread(request.app[LAKE].settings.change, patch)
    return json_response(
        {"applied": result.applied, "needsRestart": result.needs_restart, "overruled": result.overruled}
    )


def _why_not_ready(lake: Lake) -> str:
    if lake.state == "recovering":
        return f"the journal is being recovered: {lake.recovery_done} of {lake.recovery_total} segments read"
    if lake.journal.failure:
        return str(lake.journal.failure)
    return "the server is shutting down" if lake.receiver.is_closing else ""


ROUTES = [
    ("GET", "/health", health),
    ("GET", "/health/live", health_live),
    ("GET", "/health/ready", health),
    ("GET", "/status", status),
    ("GET", "/metrics", metrics),
    ("POST", "/flush", flush),
    ("GET", "/v1/memory-stats", memory_stats),
    ("GET", "/v1/write-stats", write_stats),
    ("GET", "/v1/scaling/status", scaling_status),
    ("GET", "/v1/settings", settings),
    ("PATCH", "/v1/config", change_settings),
]
