"""What befalls a lake in the middle of a run: a crash at a named point, or a kill from outside at any moment.

From test_oracle.py and chaos.py; driver.py takes the three steps. Promise: a trouble is over when another process
has taken over, nothing of the dead one is left, and exactly one pipeline was started in its place.
"""

from __future__ import annotations

import asyncio

import psutil

from tests.oracle.driver import PIPELINE_POINTS, UPKEEP_POINTS, Lake

_PATIENCE_S = 5.0


class CrashAt:
    """The process that passes this point next dies there.

    `then` is the point to be ready for afterwards. A server that outlived its pipeline is killed for that while the
    next pipeline starts, which is one more moment to try, and saves a start of Spark.
    """

    def __init__(self, lake: Lake, point: str, then: str | None = None) -> None:
        self._lake, self._point, self._then = lake, point, then
        self._pipeline = self._generation = 0

    async def prepare(self) -> None:
        """A server that waits for another point is killed in the middle of things, and one for this point started."""
        if self._lake.point != self._point:
            await KillServer(self._lake, self._point).prepare()

    async def arm(self) -> None:
        self._pipeline, self._generation = await self._lake.pipeline(), await self._lake.generation()
        self._lake.flag.touch()

    async def settle(self) -> None:
        if self._point in PIPELINE_POINTS:
            await self._until_reached()
            await self._lake.take_over(self._pipeline, self._generation)
            if self._then not in (None, self._point):
                await KillServer(self._lake, self._then).prepare()
        else:
            await self._lake.server_ended()
            await self._lake.restart(self._then, [self._pipeline])

    async def _until_reached(self) -> None:
        """Upkeep passes its points only when something is due, so changes go on until it is."""
        reaching = asyncio.create_task(
            self._lake.until(lambda: not self._lake.flag.exists(), f"{self._point} was not reached")
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

    def __init__(self, lake: Lake, then: str | None = None) -> None:
        self._lake, self._then = lake, then

    async def prepare(self) -> None:
        await asyncio.sleep(self._lake.dice.uniform(0, 1.0))
        await self._lake.restart(self._then, await asyncio.to_thread(self._lake.kill_server))

    async def arm(self) -> None:
        """Nothing to do."""

    async def settle(self) -> None:
        """Once is enough."""
