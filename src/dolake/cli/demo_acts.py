"""The demo's story, act by act. Everything that it prints was measured or read in this run.

From demo.py; on the stage of demo_stage.py. An act that finds anything else than the truth ends the demo with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dolake.cli.compact import Server
from dolake.cli.demo_engines import books, compacted, read_by_duckdb, read_by_pyiceberg, verified
from dolake.cli.demo_shop import ORDERS, rows_of
from dolake.cli.demo_stage import Stage
from dolake.cli.demo_view import Reading, View, plain_table
from dolake.client import LakeClient
from dolake.errors import Damaged, DoLakeError, QueryUnavailable, Unavailable

WAIT_S = 150.0
"""For each of the things that only a starved machine is slow at."""
_LOOK_EVERY_S = 0.25
_RATE_OVER_S = 2.0
_REVENUE = """
SELECT
  date_trunc('hour', created_at) as hour,
  SUM(amount) as revenue,
  COUNT(*) as orders
FROM orders
WHERE created_at >= NOW() - INTERVAL '24 hours'
GROUP BY 1
ORDER BY 1
"""

_LONGEST = """
SELECT id, count(_operation) AS versions, max(_commit_timestamp) - min(_commit_timestamp) AS life
FROM orders WHERE id > ? GROUP BY id ORDER BY versions DESC, life DESC LIMIT 1
"""


class Story:
    """One run."""

    def __init__(self, view: View, stage: Stage, lake: LakeClient) -> None:
        self._view, self._stage, self._lake = view, stage, lake
        self._quiet_at = datetime.now(UTC)
        self._stock: list[tuple[Any, ...]] = []
        self._selling_since = 0.0
        self._seen: deque[tuple[float, int]] = deque()

    # --- changes arrive ----------------------------------------------------------------------------------------------

    async def copy(self, row_count: int) -> None:
        self._view.act("Copy", f"Four SQLite files with {row_count:,} rows, which know nothing of lakes:")
        self._view.say(
            "$ dolake source sqlite customers.db inventory.db orders.db events.db --to " + self._stage.server.url
        )
        began = time.monotonic()
        await asyncio.to_thread(self._stage.start_source)
        await self._stage.told(WAIT_S)
        status = await self._lake.status()
        await self._answering()
        took_s = time.monotonic() - began
        self._view.say(f"{status['durablePosition']:,} rows are durable and can be asked for after {took_s:.1f} s")
        self._stock = await asyncio.to_thread(rows_of, self._stage.shop, "inventory")
        self._quiet_at = datetime.now(UTC)

    async def _answering(self) -> None:
        """Until questions are answered: the process that does it may still be starting."""
        give_up_at = time.monotonic() + WAIT_S
        while True:
            try:
                await self._lake.query("SELECT count(*) FROM orders")
                return
            except QueryUnavailable:
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(_LOOK_EVERY_S)

    async def stream(self, seconds: float) -> None:
        self._view.act(
            "Stream", f"The shop sells, about {self._stage.rate:,} changes a second, in a process of its own:"
        )
        await asyncio.sleep(0.1)  # the moment that is asked for later lies before the first sale
        await asyncio.to_thread(self._stage.start_selling)
        self._selling_since = time.monotonic()
        readings: list[Reading] = []
        with self._view.watching():
            while time.monotonic() - self._selling_since < seconds:
                readings.append(await self._read())
                self._view.take(readings[-1])
                await asyncio.sleep(_LOOK_EVERY_S)
        if self._view.is_terminal and readings:
            steady = readings[len(readings) // 2 :]
            rate = sum(each.rate for each in steady) / len(steady)
            newest = sorted(each.in_sql_ms for each in steady)[len(steady) // 2]
            lag = max(each.lag_ms for each in steady)
            self._view.say(
                f"{readings[-1].durable:,} durable; {rate:,.0f} changes a second, lag {lag:,.0f} ms at most, "
                f"newest event in SQL {newest:,.0f} ms old (median)"
            )

    async def _read(self) -> Reading:
        status, found, newest = await asyncio.gather(
            self._lake.status(),
            asyncio.to_thread(self._stage.standing),
            self._lake.query("SELECT max(at_ms) AS at_ms FROM events"),
        )
        now_s, durable = time.monotonic(), status["durablePosition"]
        self._seen.append((now_s, durable))
        while now_s - self._seen[0][0] > _RATE_OVER_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return Reading(
            elapsed_s=now_s - self._selling_since,
            durable=durable,
            rate=(durable - before) / max(now_s - since_s, 0.001),
            lag_ms=max((each.lag_ms for each in found if each.pending), default=0),
            in_sql_ms=max(0.0, time.time() * 1000 - newest.rows[0].at_ms),
            in_tables_s=max((each["seconds"] for each in status["lag"].values()), default=0.0),
        )

    # --- questions ---------------------------------------------------------------------------------------------------

    async def revenue(self) -> None:
        self._view.act("Ask", "Revenue by hour, of all orders up to this moment:")
        for line in _REVENUE.strip().splitlines():
            self._view.say(f"  {line}")
        began = time.perf_counter()
        result = await self._lake.query(_REVENUE)
        took_ms = 1000 * (time.perf_counter() - began)
        shown = plain_table("hour", "revenue", "orders", right=(1, 2))
        for row in result.rows:
            shown.add_row(f"{row.hour:%Y-%m-%d %H:%M}", f"{row.revenue:,.2f}", f"{row.orders:,}")
        self._view.show(shown)
        fresh = result.freshness
        self._view.say(f"took {took_ms:.0f} ms; {fresh.age_ms:.0f} ms old, all tables at position {fresh.position:,}")

    async def past(self) -> None:
        ago_s = (datetime.now(UTC) - self._quiet_at) / timedelta(seconds=1)
        self._view.act("Travel", f"The stock as it was {ago_s:.0f} s ago, before the first sale, and as it is:")
        sql = "SELECT product_id, product_name, quantity, reorder_point FROM inventory ORDER BY 1"
        began = time.perf_counter()
        then = await self._lake.query(sql, as_of=self._quiet_at)
        took_ms = 1000 * (time.perf_counter() - began)
        now = {row.product_id: row.quantity for row in (await self._lake.query(sql)).rows}
        found = [(row.product_id, row.product_name, row.quantity, row.reorder_point) for row in then.rows]
        shown = plain_table("product", f"at {self._quiet_at:%H:%M:%S} UTC", "now", right=(1, 2))
        for product, name, quantity, _ in found[:3]:
            shown.add_row(name, f"{quantity:,}", f"{now[product]:,}")
        self._view.show(shown)
        is_same = sorted(found) == sorted(self._stock)
        self._view.say(f"took {took_ms:.0f} ms; all {len(found)} rows as the shop had them then: {_yes(is_same)}")
        _require(is_same, "the stock of the past is not what the shop had then")

    async def history(self) -> None:
        found = await self._lake.query(_LONGEST, params=[ORDERS])
        number = found.rows[0].id
        self._view.act("Remember", f"Everything that ever happened to order {number}, the one with the longest story:")
        sql = (
            "SELECT _operation, status, amount, _commit_timestamp AS at, _sequence FROM orders "
            "WHERE id = ? ORDER BY _position"
        )
        began = time.perf_counter()
        result = await self._lake.query(sql, params=[number])
        took_ms = 1000 * (time.perf_counter() - began)
        shown = plain_table("operation", "status", "amount", "durable at", "sequence", right=(2, 4))
        for row in result.rows:
            shown.add_row(row[0], row.status, f"{row.amount:.2f}", f"{row.at:%H:%M:%S.%f}"[:-3], f"{row[4]:,}")
        self._view.show(shown)
        self._view.say(f"took {took_ms:.0f} ms")
        _require(len(result.rows) >= 2, "an order that was moved has one version")

    async def engines(self) -> None:
        """The same moment of the same table, by two engines that know nothing of each other or of us."""
        self._view.act("Share", "The same table at the same moment, through the Iceberg REST catalog:")
        await asyncio.to_thread(self._stage.stop_selling)  # however long Spark takes to start, there is no more to do
        position = await self._published()
        url = self._stage.server.url
        shown = plain_table("read by", "orders", "revenue", "took", right=(1, 2, 3))
        answers = []
        for name, read in (("DuckDB", read_by_duckdb), ("PyIceberg", read_by_pyiceberg)):
            began = time.perf_counter()
            count, total = await asyncio.to_thread(read, url, position)
            took_ms = 1000 * (time.perf_counter() - began)
            answers.append((count, total))
            shown.add_row(name, f"{count:,}", f"{total:,.2f}", f"{took_ms:.0f} ms")
        self._view.show(shown)
        is_same = answers[0] == answers[1]
        self._view.say(
            f"both at position {position:,} (warehouse lake@{position}): {'the same' if is_same else 'DIFFERENT'}"
        )
        _require(is_same, "two engines see two tables")

    async def _published(self) -> int:
        """A position that has been published since the shop began to sell; Spark may still be starting."""
        give_up_at = time.monotonic() + WAIT_S
        while time.monotonic() < give_up_at:
            status = await self._lake.status()
            tables = {table.name for table in await self._lake.list_tables()} if status["committedPosition"] else set()
            if "orders" in tables:
                return int(status["committedPosition"])
            await asyncio.sleep(_LOOK_EVERY_S)
        raise Unavailable("Spark has published nothing yet", hint=self._stage.server.log[-2000:])

    # --- trouble, and the books --------------------------------------------------------------------------------------

    async def crash(self) -> None:
        self._view.act("Crash", "kill -9 of the server, while the shop sells:")
        before = (await self._lake.status())["durablePosition"]
        await asyncio.to_thread(self._stage.start_selling)
        give_up_at = time.monotonic() + WAIT_S
        while (await self._lake.status())["durablePosition"] < before + self._stage.rate:
            _require(time.monotonic() < give_up_at, "the shop's sales did not arrive", self._stage.server.log[-2000:])
            await asyncio.to_thread(self._stage.standing)
        acknowledged = (await self._lake.status())["durablePosition"]
        process = self._stage.server.pid
        await asyncio.to_thread(self._stage.server.kill)
        self._view.say(f"killed process {process} with {acknowledged:,} changes acknowledged")
        await asyncio.sleep(1.0)
        waiting = sum(each.pending for each in await asyncio.to_thread(self._stage.standing))
        began = time.monotonic()
        await asyncio.to_thread(self._stage.server.start)
        took_ms = 1000 * (time.monotonic() - began)
        recovered = (await self._lake.status())["durablePosition"]
        self._view.say(
            f"started again in {took_ms:.0f} ms; the journal has {recovered:,}: nothing acknowledged is lost"
        )
        _require(recovered >= acknowledged, f"the journal has {recovered} changes, {acknowledged} were acknowledged")
        self._view.say(f"{waiting:,} changes waited in the shop's files meanwhile; the source reconnected by itself")

    async def settle(self) -> None:
        self._view.act("Close the books", "The shop closes, and every row of its files is compared with the lake:")
        await asyncio.to_thread(self._stage.stop_selling)
        await self._stage.told(WAIT_S)
        durable = (await self._lake.status())["durablePosition"]
        began = time.monotonic()
        while (await self._lake.status())["committedPosition"] < durable:
            _require(time.monotonic() - began < WAIT_S, "Spark did not publish", self._stage.server.log[-2000:])
            await asyncio.to_thread(flush, self._stage.server.url)
        self._view.say(
            f"all {durable:,} changes are in the tables, {time.monotonic() - began:.1f} s after the last sale"
        )
        began = time.perf_counter()
        compared = await asyncio.to_thread(books, self._stage.server.url, self._stage.shop)
        took_ms = 1000 * (time.perf_counter() - began)
        shown = plain_table("table", "rows in SQLite", "rows in Iceberg", "changes kept", "", right=(1, 2, 3))
        for table, ours, theirs, changes, is_same in compared:
            shown.add_row(table, f"{ours:,}", f"{theirs:,}", f"{changes:,}", "same" if is_same else "DIFFERENT")
        self._view.show(shown)
        self._view.say(f"every column of every row, read by DuckDB in {took_ms:.0f} ms")
        _require(all(is_same for *_, is_same in compared), "the lake is not what the shop has")

    async def compact(self) -> None:
        self._view.act("Compact", "Small files become large ones, and deleted rows go:")
        self._view.say(await asyncio.to_thread(compacted, self._stage.server.url))

    async def verify(self) -> None:
        self._view.act("Verify", "Journal, changes, state and key index, compared by another process:")
        home = self._stage.server.home
        self._view.say(f"$ dolake verify --home {home}")
        code, lines = await asyncio.to_thread(verified, home)
        for line in lines if code else lines[-1:]:
            self._view.say(line)
        _require(code == 0, "verify found differences")


def flush(url: str) -> None:
    try:
        Server(Path(), url).ask("/flush", method="POST")
    except DoLakeError:  # a Spark that is just starting takes longer than one answer may
        time.sleep(_LOOK_EVERY_S)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


def _require(is_so: bool, otherwise: str, hint: str = "this is a bug of DoLake: please report it") -> None:
    if not is_so:
        raise Damaged(otherwise, hint=hint)
