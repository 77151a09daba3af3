"""The query process: HTTP on a Unix socket that only the server can reach, and a thread for each query at work.

From server/query_process.py, which starts it and passes questions on; to answering.py. Promise: no query keeps another
from its turn for longer than its time; one that cannot be stopped, or a DuckDB that gives up on itself, ends the whole
process, because the server starts another within a second and nothing but answers is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from dolake.errors import Conflict, DoLakeError, NotFound, QueryUnavailable
from dolake.identity.grants import EVERYTHING, Grant
from dolake.identity.grants import from_header as grant_from_header
from dolake.query import answering
from dolake.query.announcing import decode_check_wanted, decode_pages_wanted
from dolake.query.answering import Parts
from dolake.query.changes import Changes
from dolake.query.copying import COPYING_HEADER, from_header
from dolake.query.job import Job, Work
from dolake.query.question import DiffQuestion, PlanQuestion, Question, read_body
from dolake.query.reader import LakeReader
from dolake.query.rest import BODY_MAX_BYTES, GRANT_HEADER, QUERY_ID, error_response, format_for
from dolake.query.rows_question import read_question
from dolake.query.rows_sql import find_rows
from dolake.query.slots import Slots
from dolake.query.watch import Stop, Watch
from dolake.settings import QuerySettings

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EXIT_STUCK, EXIT_BROKEN, EXIT_FULL = 3, 4, 5
_THREADS_MAX = 1_000
_PAST_THREADS = 2
_LAST_WORDS_S = 0.5
_MEMORY_BESIDE_BYTES = 512 * 1024 * 1024
"""What Python, Arrow and pieces of answers take beside DuckDB and the tail; also how far DuckDB overshoots."""


class Worker:
    """All queries of this process."""

    def __init__(self, settings: QuerySettings, leave: Callable[[int], None] = os._exit) -> None:
        self.settings = settings
        self.slots = Slots(settings)
        self.jobs: dict[str, Job] = {}
        self.watch = Watch(
            memory_max_bytes=_bound(settings),
            on_stuck=self._note_stuck,
            on_late=self._note_late,
            on_full=self._note_full,
        )
        self.parts: Parts | None = None
        """What it answers with; put here before the first question comes."""
        self._leave = leave
        self._is_leaving = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="query")
        self._changes: Changes | None = None
        self._live_thread = ThreadPoolExecutor(1, thread_name_prefix="live")
        self._past_threads = ThreadPoolExecutor(_PAST_THREADS, thread_name_prefix="past")
        # Whoever comes waits for nobody's slow condition on the past.
        self._check_threads = ThreadPoolExecutor(_PAST_THREADS, thread_name_prefix="check")

    def follow(self, settings: QuerySettings) -> None:
        """What can change at once does."""
        self.settings = settings
        self.watch.memory_max_bytes = _bound(settings)
        self.slots.follow(settings)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors_as_json], client_max_size=BODY_MAX_BYTES)
        app.router.add_post("/query", self.query)
        app.router.add_post("/plan", self.plan)
        app.router.add_post("/route", self.route)
        app.router.add_post("/diff", self.diff)
        app.router.add_post("/changes", self.changes)
        app.router.add_post("/changes/check", self.check_wish)
        app.router.add_post("/rows", self.rows)
        app.router.add_delete("/query/{id}", self.cancel)
        app.router.add_get("/queries", self.list_jobs)
        app.router.add_get("/health", self.health)
        app.router.add_get("/stats", self.stats)
        return app

    # --- questions ----------------------------------------------------------------------------------------------------

    async def query(self, request: web.Request) -> web.StreamResponse:
        question = read_body(await request.read(), Question)
        form = question.format or format_for(request.headers.get("Accept", ""))
        work = partial(answering.answer, self._parts(), question, self.settings, form, _grant_of(request))
        return await self._answer(request, question.sql, question.timeout_ms, work)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        question = read_body(await request.read(), PlanQuestion)
        work = partial(answering.plan, self._parts(), question, _grant_of(request))
        return await self._answer(request, question.statement(), question.timeout_ms, work)

    async def route(self, request: web.Request) -> web.StreamResponse:
        question = read_body(await request.read(), PlanQuestion)
        work = partial(answering.routed, self._parts(), question, self.settings, _grant_of(request))
        return await self._answer(request, question.statement(), question.timeout_ms, work)

    async def diff(self, request: web.Request) -> web.StreamResponse:
        question = read_body(await request.read(), DiffQuestion)
        work = partial(answering.difference, self._parts(), question, self.settings, _grant_of(request))
        return await self._answer(request, f"diff of {question.table}", question.timeout_ms, work)

    async def changes(self, request: web.Request) -> web.Response:
        """Pages for subscribers. They have threads of their own: no query keeps them waiting."""
        wanted = decode_pages_wanted(await request.read())
        threads = self._live_thread if wanted.keeps else self._past_threads
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(threads, self._changes_of(self._parts()).pages, wanted)
        return web.Response(body=answer, content_type="application/octet-stream")

    async def check_wish(self, request: web.Request) -> web.Response:
        wanted = decode_check_wanted(await request.read())
        loop = asyncio.get_running_loop()
        return _json(await loop.run_in_executor(self._check_threads, self._changes_of(self._parts()).check, wanted))

    def _changes_of(self, parts: Parts) -> Changes:
        if self._changes is None:
            assert isinstance(parts.reader, LakeReader), "only tests have others"
            self._changes = Changes(parts.reader, parts.engine)
        return self._changes

    def let_go(self) -> None:
        """Of what is kept in memory for subscribers who do not ask any more."""
        if self._changes is not None:
            self._changes.let_go()

    async def rows(self, request: web.Request) -> web.StreamResponse:
        """Rows by key that the quick way could not find."""
        question = read_question(await request.read())
        work = partial(find_rows, self._parts(), question, _grant_of(request))
        return await self._answer(request, f"rows of {question.name} by key", question.timeout_ms, work)

    async def _answer(self, request: web.Request, sql: str, timeout_ms: int | None, work: Work) -> web.StreamResponse:
        wanted_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        stop = Stop(min(wanted_ms, self.settings.timeout_max_ms))
        job = Job(sql, stop, request.headers[QUERY_ID]) if QUERY_ID in request.headers else Job(sql, stop)
        job.owner = _grant_of(request).id
        job.copying = from_header(request.headers.get(COPYING_HEADER))
        request[_ID] = job.id
        await self._begin(job, work)
        try:
            return await _send(request, job)
        except BaseException:
            job.cancel("the client left")  # unless it has ended anyway
            raise

    async def _begin(self, job: Job, work: Work) -> None:
        if job.id in self.jobs:
            raise Conflict(f"another query has the id {job.id}", hint="choose another, or none")
        self.jobs[job.id] = job
        try:
            await self.slots.take(job)
            job.has_turn = True
        except BaseException:
            del self.jobs[job.id]
            raise
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, job.run, self.watch, work)
        running.add_done_callback(lambda _: self._end(job))

    def _end(self, job: Job) -> None:
        """Its thread is free; only now the next one can have its turn."""
        del self.jobs[job.id]
        self._give_turn_back(job)
        if job.stop.error:
            job.abort()  # a client that is slow to read need not read all that is left
        if self.parts and self.parts.engine.is_broken:
            logger.error("duckdb gave up", extra={"query_id": job.id})
            self.leave(EXIT_BROKEN)

    def _give_turn_back(self, job: Job) -> None:
        if job.has_turn:
            job.has_turn = False
            self.slots.give_back()

    # --- about questions ----------------------------------------------------------------------------------------------

    async def cancel(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None or not job.belongs_to(_grant_of(request)):
            raise NotFound(f"no query {request.match_info['id'][:64]} is at work", hint="GET /v1/queries lists them")
        job.cancel()
        if job.stop.error:
            self.slots.refuse(job, job.stop.error)
        return web.Response(status=204)

    async def list_jobs(self, request: web.Request) -> web.Response:
        grant = _grant_of(request)
        return _json({"queries": [job.as_json() for job in self.jobs.values() if job.belongs_to(grant)]})

    async def health(self, _: web.Request) -> web.Response:
        self._parts()
        return _json({"status": "ok"})

    async def stats(self, _: web.Request) -> web.Response:
        return _json(
            {
                "running": self.slots.running,
                "queued": self.slots.queued,
                "memoryBytes": self.watch.resident_bytes(),
                "memoryMaxBytes": self.watch.memory_max_bytes,
            }
        )

    def _parts(self) -> Parts:
        if self.parts is None or self._is_leaving.is_set():
            raise QueryUnavailable("the query process starts anew", hint="ask again in a moment")
        return self.parts

    # --- the end ------------------------------------------------------------------------------------------------------

    def _note_stuck(self, stop: Stop) -> None:
        self.leave(EXIT_STUCK)  # before anybody is told, who might ask once more at once
        for job in [job for job in list(self.jobs.values()) if job.stop is stop]:
            logger.error(
                "query could not be stopped", extra={"query_id": job.id, "elapsed": job.as_json()["elapsedMs"]}
            )
            job.fail(stop.error or QueryUnavailable("the query process starts anew"))

    def _note_late(self, stop: Stop) -> None:
        """It waits for the store and ends when that does; whoever asked need not, nor who waits for its turn."""
        for job in [job for job in list(self.jobs.values()) if job.stop is stop]:
            logger.warning("query waits for the store", extra={"query_id": job.id})
            job.fail(stop.error or QueryUnavailable("the store does not answer", hint="ask again"))
            job.soon(self._give_turn_back)

    def _note_full(self) -> None:
        if not self._is_leaving.is_set():
            logger.error("query process took too much memory", extra={"bytes": self.watch.resident_bytes()})
        self.leave(EXIT_FULL)
        for job in list(self.jobs.values()):
            if job.stop.error:
                job.fail(job.stop.error)

    def leave(self, code: int) -> None:
        """End the process, when those who wait have been told why."""
        if not self._is_leaving.is_set():
            self._is_leaving.set()
            last_words = threading.Timer(_LAST_WORDS_S, self._leave, [code])
            last_words.daemon = True
            last_words.start()


def _grant_of(request: web.Request) -> Grant:
    """Whose question it is; the server's own come without."""
    told = request.headers.get(GRANT_HEADER)
    return EVERYTHING if told is None else grant_from_header(told)


def _bound(settings: QuerySettings) -> int:
    return settings.memory_max_bytes + settings.tail_max_bytes + _MEMORY_BESIDE_BYTES


_ID = web.RequestKey("query_id", str)


async def _send(request: web.Request, job: Job) -> web.StreamResponse:
    """The answer; one that is short in one go, so that whatever goes wrong with it still has its status."""
    pieces = job.pieces()
    first = await anext(pieces, b"")
    second = await anext(pieces, None)
    headers = {**job.headers, QUERY_ID: job.id}
    if second is None:
        return web.Response(body=first, headers=headers)
    response = web.StreamResponse(headers=headers)
    job.state = "sending"
    await response.prepare(request)
    job.abort = partial(_abort, request)
    await response.write(first)
    await response.write(second)
    try:
        async for piece in pieces:
            await response.write(piece)
    except DoLakeError as error:
        logger.info("answer cut off", extra={"query_id": job.id, "reason": error.message})
        _abort(request)
    return response


def _abort(request: web.Request) -> None:
    if request.transport:
        request.transport.abort()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except DoLakeError as error:
        response = error_response(error)
    except web.HTTPException:
        raise
    except Exception:
        if _ID not in request:  # else its thread has logged it
            logger.exception("request failed", extra={"path": request.path})
        response = error_response(DoLakeError("an error of ours; the log has it"))
    if _ID in request and not response.prepared:
        response.headers[QUERY_ID] = request[_ID]
    return response


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


@contextlib.asynccontextmanager
async def listening(worker: Worker, socket: str) -> AsyncIterator[None]:
    """Serve on this socket; a handler whose client has left is cancelled, and its query with it."""
    runner = web.AppRunner(worker.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.UnixSite(runner, socket).start()
        yield
    finally:
        await runner.cleanup()
