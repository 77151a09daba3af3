"""Forget a key, over HTTP: the pipeline lets it go from the tables, then the journal and the query process do here.

From app.py and lifecycle.py; the pipeline's part is pipeline/forgetting.py. docs/howto/forget-a-key.md has what an
operator should know. Promise: a job is done when the journal has let go, too, or says why not; the key is in no log, no
file and no answer.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from aiohttp import web

from dolake.catalog.base import Name
from dolake.errors import Conflict, DoLakeError, InvalidInput, UnknownTable
from dolake.identity.request import grant_of
from dolake.journal import segment
from dolake.journal.repair import ASIDE
from dolake.pipeline.link import JobReport
from dolake.positions import Position
from dolake.server.lake import Lake
from dolake.server.operations import LAKE, json_response
from dolake.server.tables import table_in
from dolake.server.upkeep import job_json, source_tables
from dolake.tables.names import RESERVED_SUFFIXES, plain_table_name

logger = logging.getLogger(__name__)

_PUBLISH_WAIT_S = 60.0
_KEY_BYTES_MAX = 64 * 1024
_HINT = 'send {"key": "4711"}'
_OUTSIDE = (
    "backups, and copies of the journal, that were made before",
    "the source itself, and what subscribers and other engines have taken from here",
    "rows of other keys and tables that mention this one",
)


class _Body(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    key: str | int
    source: str | None = None
    is_patient: bool = msgspec.field(name="patient", default=False)


async def forget(request: web.Request) -> web.Response:
    """Forget a key of a table, everywhere; answers at once with the job."""
    lake, name = request.app[LAKE], table_in(request)
    body = _body_of(await request.read())
    if lake.pipeline is None:
        raise Conflict("the pipeline is off, and forgetting with it", hint="set pipeline.enabled and start again")
    _check_source(body.source, has_source_in_key=lake.settings.current.lake.key_scope == "source")
    table = await _known(lake, name)
    assert grant_of(request).sees_table(table), "table_in has looked"
    lake.progress.request_flush()
    report = lake.pipeline.ask_forget(
        table, str(body.key), lake.journal.durable, source=body.source, is_patient=body.is_patient
    )
    return json_response(job_json(report), status=202)


def _body_of(raw: bytes) -> _Body:
    try:
        body = msgspec.json.decode(raw, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body cannot be read: {error}", hint=_HINT) from None
    if not 0 < len(str(body.key).encode(errors="surrogatepass")) <= _KEY_BYTES_MAX:
        raise InvalidInput("a key has 1 to 65,536 bytes", hint=_HINT)
    return body


def _check_source(source: str | None, *, has_source_in_key: bool) -> None:
    if source is not None and not has_source_in_key:
        raise InvalidInput("the source is no part of the keys of this lake", hint="leave `source` out")
    if source is None and has_source_in_key:
        hint = "with lake.key_scope = source each source has rows of its own: send `source`, too"
        raise InvalidInput("a key alone does not say which row", hint=hint)


async def _known(lake: Lake, name: Name) -> str:
    """The table's plain name; one that is durable and not published yet has a moment to come."""
    table = plain_table_name(str(name))
    if table.endswith(RESERVED_SUFFIXES):
        raise InvalidInput(
            f"{name} belongs to another table", hint="forget the key of that one: its history and quarantine go with it"
        )
    if table not in await lake.catalog.run(source_tables, lake.catalog):
        if table not in {plain_table_name(each) for each in lake.journal.tables}:
            raise UnknownTable(
                f"Table does not exist: {name}",
                table=plain_table_name(str(name)),
                hint="only keys of tables of sources are forgotten",
            )
        await _publish(lake, lake.journal.durable)
    return table


async def _publish(lake: Lake, position: Position) -> None:
    lake.progress.request_flush()
    async with asyncio.timeout(_PUBLISH_WAIT_S):
        await lake.progress.wait_committed(position)


class Forgets:
    """Ends jobs whose key has left the tables, one after the other."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._reports: asyncio.Queue[JobReport] = asyncio.Queue()
        """As many as there are jobs, and a pipeline does one at a time."""

    def take(self, report: JobReport) -> None:
        self._reports.put_nowait(report)

    async def run(self) -> None:
        """Until the server stops: then whoever asked asks again."""
        while True:
            report = await self._reports.get()
            try:
                await self._finish(report)
            except Exception as error:  # whatever it is, changes are taken and published without it
                logger.exception("forgetting not finished")
                assert self._lake.pipeline is not None, "it has reported"
                reason = f"the journal was not asked: {error}"[:500]
                self._lake.pipeline.jobs.note(msgspec.structs.replace(report, state="failed", reason=reason))

    async def _finish(self, report: JobReport) -> None:
        pipeline, done = self._lake.pipeline, report.forgotten
        assert pipeline is not None, "it has reported"
        assert done is not None, "that is what it has reported"
        if self._lake.query:
            self._lake.query.let_go()
        waits = list(done.waits)
        freed = 0
        try:
            kept_from, freed = await self._lake.journal.let_go(self._published, _PUBLISH_WAIT_S)
            if kept_from < done.position:
                waits.append(self._why_kept(kept_from))
            waits += await self._copied(done.position)
        except DoLakeError as error:
            waits.append(f"the journal keeps what it has: {error.message}; forget the key again")
        now_ms = self._lake.clock_ms()
        last_ms = done.last_byte_ms if len(waits) == len(done.waits) else None
        final = msgspec.structs.replace(
            done,
            journal_bytes_removed=freed,
            last_byte_ms=None if last_ms is None else max(last_ms, now_ms),
            waits=tuple(waits),
            outside=await self._outside(report.table, pipeline.jobs.key_of(report.job_id)),
        )
        took_ms = max(report.took_ms, now_ms - report.started_ms)
        pipeline.jobs.note(msgspec.structs.replace(report, forgotten=final, took_ms=took_ms))

    async def _published(self, position: Position) -> None:
        self._lake.progress.request_flush()
        await self._lake.progress.wait_committed(position)
        if self._lake.journal_copy:
            await self._lake.journal_copy.copy_now()  # what is not copied is not removed

    async def _copied(self, position: Position) -> list[str]:
        """What the journal's copy in the store still has: it keeps its last segment, which knows all streams."""
        copy = self._lake.journal_copy
        if copy is None:
            return []
        await copy.copy_now()
        if copy.oldest >= position:
            return []
        return [f"the journal's copy in the store has positions from {copy.oldest} on, until more changes are copied"]

    def _why_kept(self, kept_from: Position) -> str:
        places = self._lake.journal.consumers.all()
        last = min(places.values(), default=0)
        who = ", ".join(sorted(name for name, at in places.items() if at == last)) or "nobody"
        window_s = self._lake.settings.current.lake.deduplication_window_ms // 1000
        return (
            f"the journal keeps positions from {kept_from} on, because {who} has come to {last} only, as where a"
            f" transaction is open; they go with the first publish {window_s} s later, or by forgetting the key again"
        )

    async def _outside(self, table: str, key: str | None) -> tuple[str, ...]:
        found = list(_OUTSIDE)
        aside = self._lake.home.journal_path / ASIDE
        if count := len(await asyncio.to_thread(lambda: list(aside.glob(f"*{segment.SUFFIX}")))):
            found.append(f"{count} damaged files that a repair of the journal has set aside in {ASIDE}/")
        if key is not None and self._lake.subscriptions:
            known = self._lake.subscriptions.names.all()
            named = [each.name for each in known if table in each.wish.tables and key in each.wish.where]
            found += [f"the condition of the named subscription {name}" for name in named]
        return tuple(found)


ROUTES = [("POST", "/v1/tables/{namespace}/{table}/forget", forget)]
