"""A bank for test_the_total_never_changes.py: sources that move amounts between two tables, and readers that add up.

Each owner is a stream of its own. A transaction changes several accounts and never the owner's total; its changes go
out in batches that know nothing of transactions. Promise: a reader fails at the first total that is wrong, and at an
error that no kill explains.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import duckdb
import psutil

from dolake.client import LakeClient, QueryResult, create_lake_client
from dolake.errors import Unavailable
from tests.journeys.asking_support import iso, kill_query_process, now_ms
from tests.oracle.changes import Boundary, Group, Step
from tests.oracle.processes import pipeline_of
from tests.oracle.streams import Stream
from tests.support.server import ServerProcess
from tools.duckdb_client import duck_on

TABLES = ("checking", "bank.savings")
TOTAL = 20_000
_ACCOUNTS = 10
_ANSWER_WAIT_S = 240.0
_SETTLED_MS = 1_000
"""Other engines ask about moments that are so long over that no publish of that time is still on its way."""
_REMEMBERED_MAX = 60
_PAUSE_S = 0.05
"""Between two questions of a reader, so that some of the machine is left for Spark."""

_ALL = " UNION ALL ".join(f"SELECT owner, amount, version FROM {table}" for table in TABLES)  # noqa: S608
BY_OWNER = f"SELECT owner, SUM(amount) AS total, SUM(version) AS version FROM ({_ALL}) GROUP BY owner ORDER BY owner"  # noqa: S608
_QUESTIONS = (
    BY_OWNER,
    "SELECT 'all' AS owner, (SELECT SUM(amount) FROM checking) + (SELECT SUM(amount) FROM bank.savings) AS total",
    """
    WITH c AS (SELECT owner, SUM(amount) AS total FROM checking GROUP BY owner),
         s AS (SELECT owner, SUM(amount) AS total FROM bank.savings GROUP BY owner)
    SELECT owner, c.total + s.total AS total FROM c JOIN s USING (owner)
    """,
)


class Owner:
    """One source, and what its accounts hold."""

    def __init__(self, name: str, boundary: Boundary, dice: random.Random, url: Callable[[], str]) -> None:
        self.name, self._boundary, self._dice = name, boundary, dice
        self.stream = Stream(name, "", dice, url)
        self._amounts = {table: dict[str, int]() for table in TABLES}
        self._version = self._opened = 0

    async def open_accounts(self) -> None:
        """All of the money, in one transaction."""
        share = TOTAL // (_ACCOUNTS * len(TABLES))
        steps = [self._insert(table, share) for table in TABLES for _ in range(_ACCOUNTS)]
        await self._deliver([Group(steps, "ended")], pause_max_s=0)

    async def move_money(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await self._deliver([self._transaction() for _ in range(10)], pause_max_s=0.06)

    async def finish(self) -> None:
        """End what is open."""
        await self.stream.deliver(self.stream.cut(self.stream.number([])), is_persisted=False)

    async def _deliver(self, groups: list[Group], *, pause_max_s: float) -> None:
        changes = self.stream.number(groups, is_ended=False)
        batches = self.stream.cut(changes, self._dice.choice([1, 2, 5, 30]))
        await self.stream.deliver(batches, pause_max_s=pause_max_s, is_persisted=False)

    def _transaction(self) -> Group:
        steps = list[Step]()
        for _ in range(self._dice.choice([1, 1, 2, 5])):
            steps += self._dice.choices([self._move, self._close, self._open, self._rename], [8, 1, 1, 1])[0]()
        return Group(steps, self._boundary)

    def _move(self) -> list[Step]:
        (one, first), (other, second) = self._account(TABLES[0]), self._account(TABLES[1])
        amount = self._dice.randint(-50, 50)
        return [self._add(one, first, -amount), self._add(other, second, amount)]

    def _close(self) -> list[Step]:
        table, key = self._account(self._dice.choice(TABLES))
        if len(self._amounts[table]) < 3:
            return self._open()
        amount = self._amounts[table].pop(key)
        return [Step(table, "DELETE", key, None, None, None), self._add(*self._account(TABLES[0]), amount)]

    def _open(self) -> list[Step]:
        amount = self._dice.randint(1, 100)
        return [self._add(*self._account(TABLES[1]), -amount), self._insert(self._dice.choice(TABLES), amount)]

    def _rename(self) -> list[Step]:
        """The account goes on under another key, and a part of its money goes elsewhere in the same change."""
        table, key = self._account(self._dice.choice(TABLES))
        self._opened += 1
        renamed, amount = f"{self.name}-{self._opened}", self._amounts[table].pop(key)
        self._amounts[table][renamed] = amount - 1
        moved = Step(table, "UPDATE", renamed, self._row(amount - 1), None, key)
        return [moved, self._add(*self._account(TABLES[0]), 1)]

    def _account(self, table: str) -> tuple[str, str]:
        return table, self._dice.choice(sorted(self._amounts[table]))

    def _insert(self, table: str, amount: int) -> Step:
        self._opened += 1
        key = f"{self.name}-{self._opened}"
        self._amounts[table][key] = amount
        return Step(table, "INSERT", key, self._row(amount), None, None)

    def _add(self, table: str, key: str, amount: int) -> Step:
        before = self._row(self._amounts[table][key])
        self._amounts[table][key] += amount
        after = self._row(self._amounts[table][key])
        return Step(table, "UPDATE", key, after, before if self._dice.random() < 0.5 else None, None)

    def _row(self, amount: int) -> dict[str, Any]:
        self._version += 1
        return {"owner": self.name, "amount": amount, "version": self._version}


class Bank:
    """Owners, readers and kills on one server."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server, self.seed = server, seed
        self._dice = random.Random(seed)
        self._owners = [
            Owner("ender", "ended", self._dice, lambda: server.url),
            Owner("opener", "left open", self._dice, lambda: server.url),
        ]
        self._stopping = asyncio.Event()
        self._trouble_count, self._is_back, self._is_down = 0, True, False
        """Until somebody was answered again, refusals are what the last kill explains."""
        self._loaded_ms = self._published_ms = self._published_first = 0
        self._moments: list[int] = []
        self._remembered: list[tuple[int, int]] = []
        self.answers: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    async def run(self, troubles: list[str]) -> None:
        for owner in self._owners:
            await owner.open_accounts()
        self._loaded_ms = now_ms() + 1
        async with asyncio.TaskGroup() as tasks:

            def start(work: Coroutine[Any, Any, None]) -> None:
                # Threads cannot be cancelled: whoever ends tells them.
                tasks.create_task(work).add_done_callback(lambda _: self._stopping.set())

            for owner in self._owners:
                start(owner.move_money(self._stopping))
            for reader in (self._read_live, self._read_live, self._read_the_past):
                start(reader())
            start(self._befall(troubles, start))
        for owner in self._owners:
            await owner.finish()

    async def _befall(self, troubles: list[str], start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        await self._first_publish()
        for engine in (self._read_timestamps, self._read_pins):
            start(asyncio.to_thread(engine))
        for trouble in (*troubles, None):
            await self._enough_answers()
            if trouble is not None:
                await self._trouble(trouble)

    # --- what befalls the server -------------------------------------------------------------------------------------

    async def _trouble(self, trouble: str) -> None:
        await asyncio.sleep(self._dice.uniform(0, 0.3))  # when the kill comes, not how we wait for something
        published = await asyncio.to_thread(self._published)
        self._note_a_kill()
        if trouble == "query":
            await asyncio.to_thread(kill_query_process, self.server)
        elif trouble == "pipeline":
            pid = await asyncio.to_thread(pipeline_of, self.server.pid)
            if pid is not None:
                psutil.Process(pid).kill()
        else:
            self._is_down = True
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.start)
            self._is_down = False
        self._note_a_kill()
        if trouble != "query":
            await self._until(lambda: self._published() > published, f"nothing was published after a {trouble} kill")

    def _note_a_kill(self) -> None:
        """Before and after it, because an answer may come between our note and the signal."""
        self._trouble_count, self._is_back = self._trouble_count + 1, False

    async def _first_publish(self) -> None:
        lake = create_lake_client(self.server.url)
        await self._until(lambda: self._published() > 0, "nothing was published")
        firsts = [(await lake.list_snapshots(table))[-1] for table in TABLES]
        self._published_ms = max(int(first.timestamp.timestamp() * 1000) for first in firsts if first.timestamp) + 1
        self._published_first = max(first.position or 0 for first in firsts)

    async def _enough_answers(self, count: int = 4) -> None:
        before = Counter(self.answers)
        ways = ("live", "as of", "timestamp", "pin")
        await self._until(
            lambda: all(self.answers[way] >= before[way] + count for way in ways),
            f"too few answers: {self.answers - before}",
        )

    async def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        async with asyncio.timeout(_ANSWER_WAIT_S) as limit:
            while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - another process has no event to wait for
                await asyncio.sleep(0.05)
        assert not limit.expired(), f"{otherwise}, seed {self.seed}: {self.server.log[-3000:]}"

    def _published(self) -> int:
        status, row = self.server.get("/v1/published")
        return int(row["position"]) if status == 200 else 0

    # --- our own SQL -------------------------------------------------------------------------------------------------

    async def _read_live(self) -> None:
        """All of it, now. What was seen once is seen from then on, also through kills."""
        lake, position = create_lake_client(self.server.url), 0
        while not self._stopping.is_set():
            result = await self._ask(lake, "live", self._dice.choice(_QUESTIONS))
            if result is not None:
                assert result.freshness.position >= position, f"the lake went back, seed {self.seed}"
                position = result.freshness.position

    async def _read_the_past(self) -> None:
        """Any moment since the accounts were opened: also the very moments of changes, inside of transactions."""
        lake = create_lake_client(self.server.url)
        while not self._stopping.is_set():
            moment = self._dice.choice([self._dice.randint(self._loaded_ms, now_ms()), *self._moments[-40:]])
            is_old = moment < now_ms() - 2_000
            result = await self._ask(lake, "as of", self._dice.choice(_QUESTIONS), as_of=moment)
            if result is not None and is_old and "version" in result.rows[0]:
                self._remembered.append((moment, _version_of(result)))
            if self._dice.random() < 0.1:
                await self._look_for_moments(lake)

    async def _look_for_moments(self, lake: LakeClient) -> None:
        sql = "SELECT DISTINCT epoch_ms(_commit_timestamp) AS moment FROM checking ORDER BY moment DESC LIMIT 40"
        with suppress(Unavailable):
            found = [int(row.moment) for row in await lake.query(sql)]
            self._moments = [max(each, self._loaded_ms) for each in found]

    async def _ask(self, lake: LakeClient, way: str, sql: str, **options: Any) -> QueryResult | None:
        count, was_back = self._trouble_count, self._is_back
        try:
            result = await lake.query(sql, **options)
        except Unavailable:
            if was_back and self._trouble_count == count:
                raise  # nothing was killed
            self.refusals[way] += 1
            await asyncio.sleep(_PAUSE_S)
            return None
        self._is_back = self._is_back or self._trouble_count == count
        self._check(way, [(str(row.owner), int(row.total)) for row in result], options or sql)
        await asyncio.sleep(_PAUSE_S)
        return result

    async def ask_again(self) -> None:
        """A moment of the past looks the same for ever: the same question, now that all is published."""
        lake = create_lake_client(self.server.url)
        chosen = self._dice.sample(self._remembered, min(_REMEMBERED_MAX, len(self._remembered)))
        assert len(chosen) >= 5
        for moment, version in chosen:
            found = _version_of(await lake.query(BY_OWNER, as_of=moment))
            assert found == version, f"{iso(moment)} looked different before, seed {self.seed}"

    # --- DuckDB on the catalog ---------------------------------------------------------------------------------------

    def _read_timestamps(self) -> None:
        with duck_on(self.server.url, threads=1) as duck:
            while not self._stopping.is_set():
                at = f"AT (TIMESTAMP => TIMESTAMP '{iso(self._settled_moment()).rstrip('Z')}')"
                self._ask_duck(duck, "timestamp", f"lake.default.checking {at}", f"lake.bank.savings {at}")

    def _read_pins(self) -> None:
        """A position that is published, or a moment."""
        with duck_on(self.server.url, threads=1) as duck:
            while not self._stopping.is_set():
                pin: int | str = iso(self._settled_moment())
                if self._dice.random() < 0.6 and not self._is_down:
                    try:
                        pin = self._dice.randint(self._published_first, max(self._published_first, self._published()))
                    except OSError:
                        continue
                warehouse = (
                    f"'lake@{pin}' AS pin (TYPE iceberg, ENDPOINT '{self.server.url}', AUTHORIZATION_TYPE 'none')"
                )
                if self._attempt(lambda: duck.execute(f"ATTACH {warehouse}")):  # noqa: B023 - called at once
                    self._ask_duck(duck, "pin", "pin.default.checking", "pin.bank.savings", pin)
                    duck.execute("DETACH pin")

    def _settled_moment(self) -> int:
        return self._dice.randint(self._published_ms, max(self._published_ms, now_ms() - _SETTLED_MS))

    def _ask_duck(self, duck: duckdb.DuckDBPyConnection, way: str, one: str, other: str, pin: Any = "") -> None:
        rows = list[tuple[str, int]]()
        sql = f"SELECT owner, SUM(amount) FROM (SELECT owner, amount FROM {one} UNION ALL SELECT owner, amount FROM {other}) GROUP BY owner"  # noqa: S608, E501
        if self._attempt(lambda: rows.extend(duck.execute(sql).fetchall())):
            self._check(way, rows, pin or one)
            time.sleep(_PAUSE_S)
        else:
            self.refusals[way] += 1

    def _attempt(self, work: Callable[[], object]) -> bool:
        """False when a kill came in between; any other error is one."""
        count, was_down = self._trouble_count, self._is_down
        try:
            work()
        except duckdb.Error:
            if was_down or self._trouble_count != count:
                return False
            raise
        return True

    def _check(self, way: str, totals: list[tuple[str, int]], what: object) -> None:
        wanted = {owner.name: TOTAL for owner in self._owners}
        found = dict(totals)
        is_right = found in (wanted, {"all": sum(wanted.values())})
        assert is_right, f"{way}, {what}: {found}, seed {self.seed}"
        self.answers[way] += 1


def _version_of(result: QueryResult) -> int:
    """Of the owner who says where transactions end: where one is left open, only the next one shows that it ended."""
    return next(int(row.version) for row in result if row.owner == "ender")
