"""Scan planning over HTTP: the server reads the manifests, and the client gets the files that it needs.

From rest.py, which serves these routes with its own; to plans.py and, in its threads, scan_planner.py. Who may load a
table may have its scans planned. Promise: an answer is bounded, and leads to the next page until all are fetched; a
plan that takes long is answered with its id, to be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from dolake.catalog.access import give
from dolake.catalog.call import Call
from dolake.catalog.documents import Document
from dolake.catalog.errors import NoSuchPlan, NoSuchPlanTask
from dolake.catalog.pages import Pages, unpacked
from dolake.catalog.plans import Owner, Plan, Work
from dolake.catalog.readers import uuid_of
from dolake.catalog.replies import Answer, Handler, json_answer, long_answer, pinned_metadata
from dolake.catalog.scans import PlanTask, Scan, read_scan, read_task
from dolake.catalog.tenants import check_paths
from dolake.catalog.values import Json, read_text
from dolake.errors import DoLakeError, InvalidInput, NotFound, Unavailable

_POLL_MS = 1_000
_TABLE = "/namespaces/{namespace}/tables/{table}"


async def plan_scan(call: Call) -> Answer:
    """Which files a scan reads: all of them, or the first page, or the id to ask with later."""
    document, metadata = await _load(call)
    scan = await call.catalog.run(read_scan, call.body, metadata)
    plans = call.catalog.plans
    plan = plans.begin(_owner(call, document), scan, _work(call, metadata, scan))
    if not await plans.wait(plan, plans.settings.plan_wait_ms):
        return json_answer({"status": "submitted", "plan-id": plan.id})
    if plan.has_failed:
        plans.drop(plan)  # the client hears of it now, and has no id to ask with
    given = await give(call, lambda: document.metadata)
    return await _page(call, plan, 0, {"status": "completed", "plan-id": plan.id} | given.listed)


async def fetch_plan(call: Call) -> Answer:
    """The first page of a plan that was not made in time."""
    plan, document = await _known(call)
    if not await call.catalog.plans.wait(plan, _POLL_MS):
        return json_answer({"status": "submitted"})
    if plan.is_cancelled.is_set():
        return json_answer({"status": "cancelled"})
    given = await give(call, lambda: document.metadata)
    try:
        return await _page(call, plan, 0, {"status": "completed"} | given.listed)
    except DoLakeError as error:
        code = 400 if isinstance(error, InvalidInput) else 404 if isinstance(error, NotFound) else 503
        shown = {"message": error.message, "type": error.code, "code": code, "hint": error.hint}
        return json_answer({"status": "failed", "error": shown})


async def cancel_plan(call: Call) -> Answer:
    """Stop planning, and forget what is planned."""
    plan, _ = await _known(call)
    call.catalog.plans.drop(plan)
    return web.Response(status=204)


async def fetch_tasks(call: Call) -> Answer:
    """One more page. Where its plan is not kept any more it is made again, which gives the same pages."""
    task = read_task(read_text(call.body, "plan-task"))
    document, metadata = await _load(call)
    plans, owner = call.catalog.plans, _owner(call, document)
    plan = plans.find(task.plan_id, owner)
    if plan is None or plan.scan != task.scan:
        plan = plans.begin(owner, task.scan, _work(call, metadata, task.scan), task.plan_id)
    if not await plans.wait(plan, plans.settings.plan_timeout_ms):
        raise Unavailable("other scans are being planned", hint="try again in a moment")
    if plan.has_failed:
        plans.drop(plan)  # what failed once, as with a disk that was away, is tried again by who asks again
    return await _page(call, plan, task.page, {})


ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", f"{_TABLE}/plan", plan_scan),
    ("GET", f"{_TABLE}/plan/{{plan-id}}", fetch_plan),
    ("DELETE", f"{_TABLE}/plan/{{plan-id}}", cancel_plan),
    ("POST", f"{_TABLE}/tasks", fetch_tasks),
]
HANDLERS = tuple(handler for _, _, handler in ROUTES)
"""They change nothing: a pinned warehouse has them too, and answers are not kept for who sends the same key again."""


async def _load(call: Call) -> tuple[Document, Json]:
    """The table, and what its metadata says at the moment that the request is pinned to."""
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    if call.pin is None:
        return document, await call.catalog.run(lambda: document.metadata)
    return document, await call.catalog.run(pinned_metadata, call, document, call.pin)


def _owner(call: Call, document: Document) -> Owner:
    return call.grant.id, str(uuid_of(document.metadata))


async def _known(call: Call) -> tuple[Plan, Document]:
    document, _ = await _load(call)
    plan = call.catalog.plans.find(call.parts["plan-id"], _owner(call, document))
    if plan is None:
        raise NoSuchPlan("this plan does not exist", hint="it was cancelled, or not used for long: plan the scan again")
    return plan, document


def _work(call: Call, metadata: Json, scan: Scan) -> Work:
    settings, storage, grant = call.catalog.plans.settings, call.catalog.storage, call.grant

    def work(may_go_on: Callable[[], None]) -> list[bytes]:
        from dolake.catalog.manifests import Manifests  # with PyIceberg, which takes a second
        from dolake.catalog.scan_planner import plan

        manifests = Manifests(storage, may_go_on, lambda paths: check_paths(storage, grant, paths))
        return plan(metadata, scan, manifests, Pages(settings.plan_tasks_max, settings.plan_memory_max_bytes // 2))

    return work


async def _page(call: Call, plan: Plan, number: int, says: Json) -> Answer:
    """One page in its envelope, with the plan task of the next."""
    pages = plan.pages
    if not 0 <= number < len(pages):
        raise NoSuchPlanTask("this plan task does not exist", hint="plan the scan again")
    if number + 1 < len(pages):
        says = says | {"plan-tasks": [PlanTask(plan.id, number + 1, plan.scan).encoded()]}

    def enveloped() -> bytes:
        opening = msgspec.json.encode(says)[:-1] + (b"," if says else b"")
        return b"".join((opening, unpacked(pages[number]), b"}"))

    return await long_answer(call, await call.catalog.run(enveloped), {})
