"""The reading half of the client: questions in SQL, and what the lake says about itself.

From aio.py, whose LakeClient has all of this beside send(); asking.py writes the questions, http.py carries them,
results.py and answers.py are what comes back. Promise: a question sees everything that this client has sent before it;
one that is cancelled ends on the server too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dolake import errors
from dolake.client.answers import (
    Diff,
    Drop,
    Plan,
    Quarantine,
    QuarantineEntry,
    QuarantineList,
    QuarantinePage,
    QueryList,
    Replay,
    Rollback,
    Route,
    RunningQuery,
    Snapshot,
    SnapshotList,
    Subscription,
    SubscriptionList,
    Table,
    TablePage,
    TableSchema,
    diff_of,
)
from dolake.client.asking import (
    AsOf,
    Moment,
    Parameters,
    checked_query_id,
    least_position,
    moment_of,
    place_of,
    question,
    table_path,
)
from dolake.client.forgetting import Forgetting
from dolake.client.http import Http
from dolake.client.lookups import SILENCE_MAX_S, TIMEOUT_S, LookingUp
from dolake.client.results import QueryResult, joined
from dolake.client.subscribing import ChangeBatch, Since, Wanted, batches, start_of, texts
from dolake.client.tiering import Tiering
from dolake.positions import START, Position

QUERY_ID = "X-DoLake-Query-Id"
_QUARANTINE = "/v1/quarantine"
_PAGE = 1_000
_SNAPSHOTS_MAX = 10_000
GRACE_S = 30.0
"""How much longer than its own timeout we wait for the server: it says itself when time is over."""

Emptied = TypeVar("Emptied", Replay, Drop)


class Reading(LookingUp, Forgetting, Tiering):
    """What a client can ask. Without `async with` each call makes a connection of its own."""

    def __init__(self, http: Http, *, read_your_writes: bool) -> None:
        self._http = http
        self._reads_own_writes = read_your_writes
        self._position_changed = START
        self._has_arrow: bool | None = None

    # --- questions --------------------------------------------------------------------------------------------------

    async def query(
        self,
        sql: str | None = None,
        params: Parameters | None = None,
        *,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        entity_type: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the server keeps it, and ends the work
        min_position: Position | None = None,
        max_age: float | None = None,
        namespace: str | None = None,
        query_id: str | None = None,
        engine: Literal["auto", "duckdb", "spark"] | None = None,
    ) -> QueryResult:
        """Ask one SELECT, and return all of its answer.

        result = await lake.query("SELECT SUM(amount) AS total FROM orders WHERE city = ?", ["Oslo"])
        print(result.rows[0].total, result.freshness.age_ms)
        then = await lake.query("SELECT COUNT(*) FROM orders", as_of=datetime(2025, 1, 14))

        sql: one SELECT over the lake's tables; or entity_type: a table, of which all rows are asked for.
        params: a list for `?` and `$1`, a dictionary for `:name` and `$name`.
        as_of: the lake at this moment: a datetime (without a zone it is UTC), a date, ISO 8601 text, or milliseconds.
        snapshot_id: the tables at this snapshot.
        partition: {"date_start": ..., "date_end": ...} or {column: value}: read only these.
        limit: rows at most; `result.truncated` says whether there were more.
        timeout: seconds for all of it; the server's own setting otherwise.
        min_position: read at least up to here, beside what this client has sent itself.
        max_age: seconds for which a change may have been durable that the answer lacks; TooStale if it cannot be had.
        namespace: where tables without a namespace are looked for.
        query_id: a name for cancel(), at most 64 letters, digits and hyphens; a random one otherwise.
        engine: "duckdb" or "spark"; otherwise Spark answers what reads much. `result.freshness.engine` says who did.
        """
        body = question(
            sql,
            params,
            as_of=as_of,
            snapshot_id=snapshot_id,
            partition=partition,
            entity_type=entity_type,
            limit=limit,
            timeout=timeout,
            max_age=max_age,
            namespace=namespace,
            engine=engine,
        )
        async with aclosing(self._batches(body, timeout, min_position, query_id)) as batches:
            return joined([batch async for batch in batches])

    def query_batches(
        self,
        sql: str | None = None,
        params: Parameters | None = None,
        *,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        entity_type: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        min_position: Position | None = None,
        max_age: float | None = None,
        namespace: str | None = None,
        query_id: str | None = None,
        engine: Literal["auto", "duckdb", "spark"] | None = None,
    ) -> AsyncGenerator[QueryResult, None]:
        """Ask like query(), and take the answer a batch at a time: for answers that are larger than memory.

        async for batch in lake.query_batches("SELECT * FROM events"):
            for row in batch:
                print(row.id)

        There is at least one batch, so that columns are known. Where pyarrow is missing, all rows are in it.
        """
        body = question(
            sql,
            params,
            as_of=as_of,
            snapshot_id=snapshot_id,
            partition=partition,
            entity_type=entity_type,
            limit=limit,
            timeout=timeout,
            max_age=max_age,
            namespace=namespace,
            engine=engine,
        )
        return self._batches(body, timeout, min_position, query_id)

    async def plan(
        self,
        sql: str | None = None,
        params: Parameters | None = None,
        *,
        table: str | None = None,
        columns: Sequence[str] = ("*",),
        where: str | None = None,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> Plan:
        """How a question would be answered: which files would be read, which would not, and why.

        plan = await lake.plan("SELECT * FROM events WHERE day >= '2024-01-01'")
        print(plan.tables[0].files)
        plan = await lake.plan(table="events", where="day >= '2024-01-01'")
        """
        self._check_usable()
        if table is None:
            body = question(sql, params, as_of=as_of, snapshot_id=snapshot_id, partition=partition, namespace=namespace)
        elif sql is not None:
            raise errors.InvalidInput("a plan is either for SQL or for a table")
        else:
            space, _, name = table.rpartition(".")
            body = {
                "table": {"namespace": (space or namespace or "default").split("."), "name": name},
                "columns": list(columns),
            } | ({} if where is None else {"where": where})
        return await self._http.ask("POST", "/v1/query/plan", Plan, body, silence_max_s=SILENCE_MAX_S)

    async def route(
        self,
        sql: str | None = None,
        params: Parameters | None = None,
        *,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        namespace: str | None = None,
        engine: Literal["auto", "duckdb", "spark"] | None = None,
    ) -> Route:
        """Which engine would answer a question, why, and from which files and partitions.

        route = await lake.route("SELECT city, SUM(amount) FROM orders GROUP BY city")
        print(route.engine, route.reason)
        """
        self._check_usable()
        when: dict[str, Any] = {"as_of": as_of, "snapshot_id": snapshot_id}
        body = question(sql, params, **when, partition=partition, namespace=namespace, engine=engine)
        return await self._http.ask("POST", "/v1/query/route", Route, body, silence_max_s=SILENCE_MAX_S)

    async def cancel(self, query_id: str) -> bool:
        """End a question that is being answered; False when it was over already.

        asking = asyncio.create_task(lake.query(sql, query_id="nightly"))
        await lake.cancel("nightly")

        To cancel the task is enough where there is one: its connection is closed, and the server ends the work.
        """
        self._check_usable()
        try:
            await self._http.ask_bytes("DELETE", f"/v1/query/{checked_query_id(query_id)}")
        except errors.NotFound:
            return False
        return True

    async def list_queries(self) -> list[RunningQuery]:
        """Questions that the server is answering now, whoever asked them.

        for running in await lake.list_queries():
            print(running.query_id, running.elapsed_ms, running.sql)
        """
        self._check_usable()
        return (await self._http.ask("GET", "/v1/queries", QueryList)).queries

    # --- tables and their past --------------------------------------------------------------------------------------

    async def list_tables(self, *, changes: bool = False) -> list[Table]:
        """All tables of the lake; with `changes` also those that keep the history of others.

        for table in await lake.list_tables():
            print(table.full_name, table.rows)
        """
        self._check_usable()
        found: list[Table] = []
        options = {"pageSize": str(_PAGE)} | ({"changes": "true"} if changes else {})
        while True:
            page = await self._http.ask("GET", f"/v1/tables?{urlencode(options)}", TablePage)
            found += page.tables
            if not page.next_page_token:
                return found
            options["pageToken"] = page.next_page_token

    async def list_snapshots(self, table: str | None = None, *, limit: int | None = None) -> list[Snapshot]:
        """The newest snapshots of a table, or of all tables; 100 of them where `limit` does not say.

        for snapshot in await lake.list_snapshots("orders"):
            print(snapshot.snapshot_id, snapshot.timestamp, snapshot.total_records)
        """
        self._check_usable()
        path = "/v1/snapshots" if table is None else f"{table_path(table)}/snapshots"
        path += "" if limit is None else f"?limit={limit:d}"
        return (await self._http.ask("GET", path, SnapshotList)).snapshots

    async def get_schema(self, table: str | None = None) -> TableSchema:
        """The columns of a table, and those that it had before. A lake with one table need not be told which.

        schema = await lake.get_schema("customers")
        print(schema.version, [field.name for field in schema.fields])
        """
        self._check_usable()
        if table is None:
            names = [found.full_name for found in await self.list_tables()]
            if len(names) != 1:
                raise errors.InvalidInput(
                    f"the lake has {len(names)} tables, so the schema of which one is meant?",
                    hint=f'get_schema("{names[0]}")' if names else "send it a change first",
                )
            table = names[0]
        return await self._http.ask("GET", f"{table_path(table)}/schema", TableSchema)

    async def diff(self, table: str, *, from_: Moment, to: Moment | None = None, limit: int | None = None) -> Diff:
        """Rows that came, went and changed between two moments; `to` is now where it is left out.

        diff = await lake.diff("orders", from_="2025-01-14T00:00:00Z")
        for row in diff.changed:
            print(row.key, row.columns, row.before, row.after)
        """
        self._check_usable()
        body = {"table": table, "from": place_of(from_)}
        if to is not None:
            body["to"] = place_of(to)
        elif (position := least_position(await self._own_position(TIMEOUT_S))) is not None:
            body["minPosition"] = position
        if limit is not None:
            body["limit"] = limit
        data = await self._http.ask_bytes("POST", "/v1/diff", body, silence_max_s=SILENCE_MAX_S)
        try:
            return diff_of(data)
        except msgspec.DecodeError as error:
            raise errors.Unavailable(f"/v1/diff answered something that this client does not know: {error}") from None

    async def rollback_to(
        self, snapshot_id: int | str | None = None, table: str | None = None, *, as_of: AsOf | None = None
    ) -> Rollback:
        """Make a table what it was at a snapshot or moment. That is a new change: the history before it stays.

        before = await lake.list_snapshots("orders")
        rollback = await lake.rollback_to(before[3].snapshot_id)
        print(rollback.changes)

        table: needed with as_of; the snapshot's own otherwise.
        """
        self._check_usable()
        if (snapshot_id is None) == (as_of is None):
            raise errors.InvalidInput("a rollback goes to a snapshot_id or to a moment (as_of)")
        if table is None:
            if snapshot_id is None:
                raise errors.InvalidInput(
                    "a rollback to a moment needs a table", hint='rollback_to(table="orders", ...)'
                )
            table = await self._table_of(str(snapshot_id))
        body = {"snapshotId": str(snapshot_id)} if as_of is None else {"asOf": moment_of(as_of)}
        found = await self._http.ask(
            "POST", f"{table_path(table)}/rollback", Rollback, body, is_reading=False, silence_max_s=SILENCE_MAX_S
        )
        self._position_changed = max(self._position_changed, found.position)
        return found

    async def _table_of(self, snapshot_id: str) -> str:
        tables = {
            found.table for found in await self.list_snapshots(limit=_SNAPSHOTS_MAX) if found.snapshot_id == snapshot_id
        }
        if not tables:
            raise errors.NoSuchSnapshot(
                f"no table has a snapshot {snapshot_id}", hint="list_snapshots() has those that are kept"
            )
        if len(tables) > 1:
            raise errors.InvalidInput(
                f"{' and '.join(sorted(tables))} have a snapshot {snapshot_id}", hint="say which: table=..."
            )
        return tables.pop()

    # --- changes that could not be written ----------------------------------------------------------------------------

    async def list_quarantines(self) -> list[Quarantine]:
        """The tables that have changes which could not be written, and how many.

        for each in await lake.list_quarantines():
            print(each.full_name, each.entries)
        """
        self._check_usable()
        return (await self._http.ask("GET", _QUARANTINE, QuarantineList, silence_max_s=SILENCE_MAX_S)).tables

    async def list_quarantine(
        self, table: str | None = None, *, after: Position | None = None, limit: int | None = None
    ) -> list[QuarantineEntry]:
        """The changes of a table, or of all tables, which could not be written, in their order.

        for entry in await lake.list_quarantine("orders"):
            print(entry.position, entry.reason, entry.event)

        after: those of later positions only.  limit: so many of each table at most; all of them otherwise.
        """
        self._check_usable()
        if table is None:
            tables = [each.full_name for each in await self.list_quarantines()]
            return [entry for each in tables for entry in await self.list_quarantine(each, after=after, limit=limit)]
        found: list[QuarantineEntry] = []
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)
            options = {"limit": str(size)} | ({} if after is None else {"after": str(after)})
            path = f"{table_path(table, _QUARANTINE)}?{urlencode(options)}"
            page = await self._http.ask("GET", path, QuarantinePage, silence_max_s=SILENCE_MAX_S)
            found += page.entries
            if page.next_after is None:
                break
            after = page.next_after
        return found

    async def replay_quarantine(self, table: str, positions: Iterable[Position] | None = None) -> Replay:
        """Send changes which could not be written again, in their order: these, or all. Returns when that is durable.

        replay = await lake.replay_quarantine("orders")
        print(replay.replayed, replay.refused)
        """
        path = f"{table_path(table, _QUARANTINE)}/replay"
        return await self._empty_quarantine(path, Replay, positions)

    async def drop_quarantine(self, table: str, positions: Iterable[Position] | None) -> Drop:
        """Let changes which could not be written go for good: these, or all where `positions` is None.

        drop = await lake.drop_quarantine("orders", [4711])
        print(drop.dropped, drop.refused)
        """
        path = f"{table_path(table, _QUARANTINE)}/drop"
        return await self._empty_quarantine(path, Drop, positions)

    async def _empty_quarantine(self, path: str, kind: type[Emptied], positions: Iterable[Position] | None) -> Emptied:
        self._check_usable()
        body = {} if positions is None else {"positions": list(positions)}
        found = await self._http.ask("POST", path, kind, body, is_reading=False, silence_max_s=SILENCE_MAX_S)
        self._position_changed = max(self._position_changed, found.position)
        return found

    # --- the server -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        tables: str | Iterable[str],
        *,
        operations: str | Iterable[str] | None = None,
        where: str | None = None,
        since: Since = None,
        name: str | None = None,
        columns: Iterable[str] | None = None,
        transactions: bool = False,
        give_up_after: float | None = None,
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Changes as they come, from a moment on, for as long as one listens.

        async for batch in lake.subscribe(tables=["orders"], operations=["INSERT"], where="amount > 100"):
            for event in batch.events:
                print(event.operation, event.after.id)

        since: `now` (the default), `beginning`, a position, a moment (a datetime, without a zone it is UTC, or ISO 8601
            text), the token of a batch, or a batch.
        name: a named subscription, whose position the server keeps. A batch is acknowledged when the loop asks for the
            next one, or by `await batch.ack()`. It begins at `since` the first time, and later where it was.
        columns: only these in `before` and `after`.
        transactions: a batch has all of a transaction or nothing of it.
        give_up_after: seconds without a connection after which it raises; None tries for ever, once it had one.
        """
        self._check_usable()
        wanted = Wanted(texts(tables) or (), texts(operations), where, texts(columns), name, transactions)
        found = batches(self._http, self._http.transport, wanted, start_of(since), give_up_after)
        async with aclosing(found):
            async for batch in found:
                yield batch

    async def list_subscriptions(self) -> list[Subscription]:
        """Named subscriptions, and how far each has come."""
        self._check_usable()
        return (await self._http.ask("GET", "/v1/subscriptions", SubscriptionList)).subscriptions

    async def drop_subscription(self, name: str) -> None:
        """Forget a named subscription; its reader is disconnected."""
        self._check_usable()
        await self._http.ask_bytes("DELETE", f"/v1/subscriptions/{quote(name, safe='')}")

    async def status(self) -> dict[str, Any]:
        """The server's state and buffer, from GET /status.

        status = await lake.status()
        print(status["state"], status["buffer"])
        """
        self._check_usable()
        return await self._http.get("/status")

    async def sources(self) -> dict[str, Any]:
        """The streams that the lake knows, from GET /v1/sources; for administrators also what the server follows.

        for stream in (await lake.sources())["streams"]:
            print(stream["source"], stream["connected"])
        """
        self._check_usable()
        return await self._http.get("/v1/sources")

    async def health(self) -> dict[str, Any]:
        """GET /health, also when the answer is that the server is not ready.

        health = await lake.health()
        print(health["ready"])
        """
        self._check_usable()
        return await self._http.get("/health", is_any_status_fine=True)

    # --- what aio.py knows --------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_usable(self) -> None:
        """Raises when this client was closed."""

    @abstractmethod
    async def _settled_position(self) -> Position:
        """Waits until everything that was sent so far is durable or refused; then the position behind it."""

    # --- how --------------------------------------------------------------------------------------------------------

    async def _batches(
        self, body: dict[str, Any], timeout_s: float | None, min_position: Position | None, query_id: str | None
    ) -> AsyncGenerator[QueryResult, None]:
        self._check_usable()
        query_id = checked_query_id(query_id) if query_id is not None else secrets.token_hex(16)
        began_s = time.monotonic()
        own = None
        if "asOf" not in body and "snapshotId" not in body:
            own = await self._own_position(timeout_s or TIMEOUT_S)
        if (position := least_position(min_position, own)) is not None:
            body = body | {"minPosition": position}
        if timeout_s is not None:
            left_ms = round((began_s + timeout_s - time.monotonic()) * 1000)
            body = body | {"timeoutMs": max(1, left_ms)}
        answer = self._http.answer(
            "POST",
            "/v1/query",
            body | {"format": "arrow" if await self._is_arrow_there() else "json"},
            headers={QUERY_ID: query_id},
            silence_max_s=SILENCE_MAX_S if timeout_s is None else timeout_s + GRACE_S,
            cut_off=errors.QueryUnavailable,
        )
        async with answer as response:
            if response.content_type == "application/json":
                yield QueryResult.from_json(await response.read())
            else:
                from dolake.client.arrow import results_in

                async for batch in results_in(response.content.iter_any()):
                    yield batch

    async def _own_position(self, timeout_s: float) -> Position | None:
        if not self._reads_own_writes:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return max(await self._settled_position(), self._position_changed)
        except TimeoutError:
            raise errors.QueryTimeout(
                f"what this client has sent was not acknowledged within {timeout_s:g} s, so nothing was asked",
                hint="connect(read_your_writes=False) asks without waiting for it",
            ) from None

    async def _is_arrow_there(self) -> bool:
        """Arrow is quicker and JSON needs nothing. pyarrow takes a moment to load, so nobody's loop waits for it."""
        if self._has_arrow is None:
            self._has_arrow = importlib.util.find_spec("pyarrow") is not None
            if self._has_arrow:
                await asyncio.to_thread(importlib.import_module, "dolake.client.arrow")
        return self._has_arrow
