"""One lake under test: its home, its server, four streams, the dictionary they should add up to, and the crashes.

From test_oracle.py and chaos.py. A run sends one half of its changes, arms a crash, sends the other half while it
happens, waits until all is published and compares. Promise: leaving the `with` block leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pyspark.sql import SparkSession

from dolake.errors import Unavailable
from tests.oracle import engines, processes
from tests.oracle.backends import LOCAL, Backend
from tests.oracle.changes import TABLES, Group, Step, examples, groups
from tests.oracle.checks import Oracle
from tests.oracle.model import Model
from tests.oracle.streams import Batch, Stream
from tests.support.server import ServerProcess

SERVER_POINTS = ("publish_unanswered", "before_ack", "before_trim")
UPKEEP_POINTS = ("rewritten", "before_rewrite", "landed", "expired", "collected")
PIPELINE_POINTS = ("before_staging", "staged", "before_publish", "published", *UPKEEP_POINTS)
_STREAMS = (("shop", ""), ("shop", "eu"), ("crm", ""), ("till", ""))
_SETTINGS = """\
[lake]
freshness_target_ms = 300
transaction_wait_max_ms = 120000
[tables.orders]
format_version = {formats[orders]}
mask = {{secret = "truncate(2)"}}
exclude_columns = ["hidden"]
[tables.users]
format_version = {formats[users]}
rebuild_rows_max = 300
mask = {{secret = "truncate(2)"}}
exclude_columns = ["hidden"]
[tables."shop.items"]
format_version = {formats[shop.items]}
partition_by = ["bucket(3, name)", "active"]
sort_by = "id desc"
mask = {{secret = "truncate(2)"}}
exclude_columns = ["hidden"]
[pipeline]
retry_delay_ms = 100
[compaction]
min_files_to_compact = 2
compaction_interval_ms = 3000
[maintenance]
small_files_max = 3
deleted_share_max = 0.05
snapshots_max = 10
gc_grace_ms = 500
[journal]
segment_size_bytes = 65536
group_size_max_bytes = 65536
"""
_PUBLISH_SIZES = (40, 300, 200_000)
_CRASH_WAIT_S = 300.0
_ORPHANS_WAIT_S = 120.0
_PUBLISH_WAIT_S = 300.0
_SHOWN_MAX = 20
_STIR_GROUPS = 12
_NAMESAKE = Group([Step("users", "INSERT", "key-0", {"ID": 1}, None, None)], "none")
"""One table sees `ID` before `id`, the others mostly after it: only the first of the two is a column."""


class Trouble(Protocol):
    """See troubles.py."""

    async def prepare(self) -> None:
        """While the first half is sent."""

    async def arm(self) -> None:
        """Before the second half is sent, so that something is left to be published after it."""

    async def settle(self) -> None:
        """While the second half is sent: it happens, and is over."""


class Lake:
    """See the module."""

    def __init__(
        self,
        home: Path,
        *,
        seed: int,
        backend: Backend = LOCAL,
        of_format_3: Collection[str] = (),
    ) -> None:
        self.home, self.seed, self.backend = home, seed, backend
        self._formats = {table: 3 if table in of_format_3 else 2 for table in TABLES}
        self.restart_count = 0
        self.dice = random.Random(seed)
        self._model = Model()
        self.streams = [Stream(*name, self.dice, lambda: self.server.url) for name in _STREAMS]
        self.server = self._new_server()
        self._sending = asyncio.Lock()
        self._has_run = False

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_server()

    @property
    def change_count(self) -> int:
        """How many changes were sent so far."""
        return len(self._model.sent)

    def _new_server(self) -> ServerProcess:
        environ, settings = self.backend.environ, _SETTINGS.format(formats=self._formats)
        return ServerProcess(self.home, has_pipeline=True, has_queries=False, settings=settings, environ=environ)

    # --- a run -------------------------------------------------------------------------------------------------------

    def run(self, group_count: int, trouble: Trouble | None = None) -> None:
        """Send about so many groups of random changes, half of them while the trouble comes; all of it is published."""
        if not self._has_run:
            self._has_run = True
            asyncio.run(self.send([[_NAMESAKE], [], [], []], is_persisted=False))
        self._cut_publishes(self.dice.choice(_PUBLISH_SIZES))
        seed = self.dice.randrange(2**32)
        shares = _dealt(examples(groups(), group_count, seed), 2 * len(self.streams))
        asyncio.run(self._run(shares[: len(self.streams)], shares[len(self.streams) :], trouble))
        self.publish()

    def _cut_publishes(self, size: int) -> None:
        """No publish has more changes than this, but for a transaction."""
        status, answer = self.server.get("/v1/config", method="PATCH", body={"pipeline": {"batch_events_max": size}})
        assert (status, answer["needsRestart"]) == (200, []), answer

    async def _run(self, first: list[list[Group]], second: list[list[Group]], trouble: Trouble | None) -> None:
        self._sending = asyncio.Lock()  # of this run's event loop
        async with asyncio.TaskGroup() as tasks:
            flushing = tasks.create_task(self._flush_now_and_then())
            async with asyncio.TaskGroup() as begin:
                begin.create_task(self.send(first, is_persisted=self.dice.random() < 0.5))
                if trouble is not None:
                    begin.create_task(trouble.prepare())
            if trouble is not None:
                await trouble.arm()
            async with asyncio.TaskGroup() as rest:
                rest.create_task(self.send(second))
                if trouble is not None:
                    rest.create_task(trouble.settle())
            flushing.cancel()

    async def send(
        self,
        shares: Sequence[Iterable[Group]],
        *,
        batch_max: int = 40,
        pause_max_s: float = 0.1,
        is_persisted: bool = True,
    ) -> None:
        """Each stream delivers its share, all at the same time; who comes meanwhile waits."""
        async with self._sending, asyncio.TaskGroup() as tasks:
            for stream, share in zip(self.streams, shares, strict=True):
                batches = self.batches(stream, share, batch_max)
                tasks.create_task(stream.deliver(batches, pause_max_s=pause_max_s, is_persisted=is_persisted))

    def batches(
        self, stream: Stream, share: Iterable[Group], batch_max: int = 40, *, is_ended: bool = True
    ) -> list[Batch]:
        """These groups as the stream's next batches. They count as sent from now on."""
        changes = stream.number(share, is_ended=is_ended)
        self._model.add(changes)
        return stream.cut(changes, batch_max)

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.1, 1.5))
            with contextlib.suppress(OSError):  # the server may be gone at this moment
                await asyncio.to_thread(self.server.get, "/flush", method="POST")

    def publish(self) -> None:
        """Ask for a flush until all is published."""
        give_up_at = time.monotonic() + _PUBLISH_WAIT_S
        answer: Any = None
        while time.monotonic() < give_up_at:
            with contextlib.suppress(OSError):
                status, answer = self.server.get("/flush", method="POST")
                if status == 200 and answer["success"]:
                    return
            time.sleep(0.2)
        raise AssertionError(f"not published after {_PUBLISH_WAIT_S:.0f} s: {answer}; {self.server.log[-3000:]}")

    def differences(self, spark: SparkSession | None = None, tables: Iterable[str] = TABLES) -> list[str]:
        """Compare everything that is published with the model; one sentence for each difference."""
        _, row = self.server.get("/v1/published")
        _, status = self.server.get("/status")
        ends = {id_: end for stream in self.streams for id_, end in stream.ends.items()}
        with engines.opened(self.server.url, spark, self.backend.store) as (catalog, readers):
            found = Oracle(self._model, ends, self._formats).differences(catalog, readers, tables)
        if not row["position"] == status["durablePosition"] == self.change_count:
            found.append(f"{row} is published, {status['durablePosition']} durable, {self.change_count} sent")
        return [f"seed {self.seed}: {sentence}" for sentence in found]

    def assert_right(self, spark: SparkSession | None = None, tables: Iterable[str] = TABLES) -> None:
        found = self.differences(spark, tables)
        assert not found, "\n".join([f"{len(found)} differences:", *found[:_SHOWN_MAX]])

    # --- for troubles ------------------------------------------------------------------------------------------------

    async def pipeline(self) -> int:
        """The process of the pipeline, once there is one. It leads the session in which all its children are."""
        found: list[int] = []

        def is_there() -> bool:
            pid = processes.pipeline_of(self.server.pid)
            if pid is not None and os.getsid(pid) == pid:
                found.append(pid)
            return bool(found)

        await self.until(is_there, "there is no pipeline process with a session of its own")
        return found[0]

    async def generation(self) -> int:
        _, row = await asyncio.to_thread(self.server.get, "/v1/published")
        return int(row["generation"])

    async def take_over(self, pipeline: int, generation: int) -> None:
        """This pipeline has died: nothing of it is left, and one other comes."""
        await asyncio.to_thread(_assert_nothing_left, [pipeline])
        self.restart_count += 1
        assert await self.pipeline() != pipeline
        assert await self.generation() == generation + 1, "one more pipeline was started than died"

    async def server_ended(self) -> None:
        """Wait for a server that dies by itself."""
        code = await asyncio.to_thread(self.server.wait_exit, _CRASH_WAIT_S)
        assert code < 0, f"the server ended with {code}"

    def kill_server(self) -> list[int]:
        """SIGKILL, if it runs; returns the sessions of which nothing is left, and sees to that."""
        try:
            pid = self.server.pid
        except Unavailable:
            return []
        pipeline = processes.pipeline_of(pid)
        self.server.kill()
        sessions = [pid, pipeline] if pipeline else [pid]
        _assert_nothing_left(sessions)
        return sessions

    async def restart(self, sessions: Iterable[int]) -> None:
        """Start the server again, now that nothing is left of these sessions."""
        await asyncio.to_thread(_assert_nothing_left, sessions)
        await asyncio.to_thread(self.server.start)
        self.restart_count += 1

    async def stir(self) -> None:
        """A few more changes, so that there is something to publish and to look after."""
        await self.send(_dealt(examples(groups(), _STIR_GROUPS, self.dice.randrange(2**32)), len(self.streams)))

    async def until(self, is_true: Callable[[], bool], otherwise: str) -> None:
        give_up_at = time.monotonic() + _CRASH_WAIT_S
        while not await asyncio.to_thread(is_true):
            assert time.monotonic() < give_up_at, f"{otherwise}; the server's last words: {self.server.log[-3000:]}"
            await asyncio.sleep(0.05)


def _assert_nothing_left(sessions: Iterable[int]) -> None:
    left = processes.left_of(sessions, _ORPHANS_WAIT_S)
    assert not left, f"alive after {_ORPHANS_WAIT_S:.0f} s: {left}"


def _dealt(all_: list[Group], hands: int) -> list[list[Group]]:
    return [all_[hand::hands] for hand in range(hands)]
