"""What befalls a lake in the middle of a run: a crash at a named point, or a kill from outside at any moment.

From test_oracle.py and chaos.py; driver.py takes the three steps. Promise: a trouble is over when another process
has taken over, nothing of the dead one is left, and exactly one pipeline was started in its place.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack

import psutil

from tests.oracle.driver import PIPELINE_POINTS, UPKEEP_POINTS, Lake
from tools.faulty_proxy import FaultyProxy, Request

_PATIENCE_S = 5.0
_LOST_SHARE = 0.2
_LOST_MIN = 5
_CUTS_MIN = 10


class CrashAt:
    """The process that passes this point next dies there."""

    def __init__(self, lake: Lake, point: str) -> None:
        self._lake, self._point = lake, point
        self._pipeline = self._generation = 0

    async def prepare(self) -> None:
        """Nothing to do."""

    async def arm(self) -> None:
        self._pipeline, self._generation = await self._lake.pipeline(), await self._lake.generation()
        self._lake.server.crash_at(self._point)

    async def settle(self) -> None:
        if self._point in PIPELINE_POINTS:
            await self._until_reached()
            await self._lake.take_over(self._pipeline, self._generation)
        else:
            await self._lake.server_ended()
            await self._lake.restart([self._pipeline])

    async def _until_reached(self) -> None:
        """Upkeep passes its points only when something is due, so changes go on until it is."""
        reaching = asyncio.create_task(
            self._lake.until(lambda: not self._lake.server.is_crash_due, f"{self._point} was not reached")
        )
        while self._point in UPKEEP_POINTS:
            await asyncio.wait([reaching], timeout=_PATIENCE_S)
            if reaching.done():
                break
            await self._lake.stir()
        await reaching


class KillPipeline:
    """SIGKILL for the pipeline, at any moment."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    async def prepare(self) -> None:
        """Nothing to do."""

    async def arm(self) -> None:
        """Nothing to do."""

    async def settle(self) -> None:
        await asyncio.sleep(self._lake.dice.uniform(0, 1.0))
        pipeline, generation = await self._lake.pipeline(), await self._lake.generation()
        psutil.Process(pipeline).kill()
        await self._lake.take_over(pipeline, generation)


class KillServer:
    """SIGKILL for the server, at any moment: also while Spark starts, or a batch arrives."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    async def prepare(self) -> None:
        await asyncio.sleep(self._lake.dice.uniform(0, 1.0))
        await self._lake.restart(await asyncio.to_thread(self._lake.kill_server))

    async def arm(self) -> None:
        """Nothing to do."""

    async def settle(self) -> None:
        """Once is enough."""


# --- a store and a database that fail --------------------------------------------------------------------------------


class KillInUpload:
    """SIGKILL for whoever uploads a file with such a name next, while it does: the store never sees the file whole."""

    def __init__(self, lake: Lake, name: str, *, is_servers: bool = False) -> None:
        self._lake, self._is_servers = lake, is_servers
        self._name = re.compile(name)
        self._open = ExitStack()

    async def prepare(self) -> None:
        """Nothing to do."""

    async def arm(self) -> None:
        self._fault = self._open.enter_context(_proxy(self._lake).fault("hang", self._is_it, left=1))

    def _is_it(self, request: Request) -> bool:
        return request.is_write and bool(self._name.search(request.path))

    async def settle(self) -> None:
        with self._open:
            await self._lake.until(lambda: self._fault.hits > 0, f"no {self._name.pattern} was uploaded")
            pipeline, generation = await self._lake.pipeline(), await self._lake.generation()
            if self._is_servers:
                sessions = await asyncio.to_thread(self._lake.kill_server)
            else:
                psutil.Process(pipeline).kill()
        if self._is_servers:
            await self._lake.restart(sessions)
        else:
            await self._lake.take_over(pipeline, generation)


class LoseAnswers:
    """For some seconds the store does what it is asked and often does not say so, or sends half of a file."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._open = ExitStack()

    async def prepare(self) -> None:
        """Nothing to do."""

    async def arm(self) -> None:
        proxy, dice = _proxy(self._lake), self._lake.dice
        is_lost = lambda request: request.is_write and dice.random() < _LOST_SHARE  # noqa: E731 - two of a kind
        is_half = lambda request: request.method == "GET" and dice.random() < _LOST_SHARE  # noqa: E731
        self._faults = [
            self._open.enter_context(proxy.fault("lose_answer", is_lost)),
            self._open.enter_context(proxy.fault("truncate", is_half)),
        ]

    async def settle(self) -> None:
        with self._open:
            for fault in self._faults:
                await self._lake.until(lambda fault=fault: fault.hits >= _LOST_MIN, f"no {fault.kind}")  # type: ignore[misc]


class CutDatabase:
    """Every moment the database ends all connections of the server, in whatever they are."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._cut_count = 0

    async def prepare(self) -> None:
        """Nothing to do."""

    async def arm(self) -> None:
        """Nothing to do."""

    async def settle(self) -> None:
        postgres = self._lake.backend.postgres
        assert postgres, "its catalog is in no database"
        published = await self._published()
        while self._cut_count < _CUTS_MIN or await self._published() == published:
            self._cut_count += await asyncio.to_thread(postgres.end_links)
            await asyncio.sleep(self._lake.dice.uniform(0, 0.3))

    async def _published(self) -> int:
        _, row = await asyncio.to_thread(self._lake.server.get, "/v1/published")
        return int(row["position"])


def _proxy(lake: Lake) -> FaultyProxy:
    assert lake.backend.store, "its files are in no store"
    assert lake.backend.store.proxy, "nothing is between the server and its store"
    return lake.backend.store.proxy
