"""The catalog as the server holds it: store, files, tables and views, and the threads they run in.

From server/lake.py, which opens and closes it; to rest.py, which asks it. Nothing of it blocks the event loop: `run`
takes a call to the catalog's own threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dolake.catalog.base import Name
from dolake.catalog.documents import Documents
from dolake.catalog.places import Places
from dolake.catalog.plans import Plans
from dolake.catalog.stores import open_store
from dolake.catalog.tables import Tables
from dolake.catalog.views import Views
from dolake.positions import Position
from dolake.settings import CatalogSettings
from dolake.storage.base import Storage

if TYPE_CHECKING:
    from dolake.storage.delegation import Delegation  # 40 MB that a lake on a folder does without

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_THREADS = 8


class Catalog:
    """Everything below /v1 that Iceberg's clients talk to."""

    def __init__(
        self,
        home: Path,
        storage: Storage,
        settings: CatalogSettings,
        clock_ms: Callable[[], int],
        delegation: Delegation | None = None,
    ) -> None:
        self.clock_ms = clock_ms
        self.storage = storage
        self.store = open_store(home, settings)
        documents = Documents(self.storage)
        self.tables = Tables(self.store, documents, clock_ms)
        self.views = Views(self.store, documents, clock_ms)
        self.places = Places(self.store, documents)
        self.delegation = delegation
        """What clients are handed to reach files in a store; None where they are handed nothing."""
        self.pipeline_secret = secrets.token_urlsafe(32)
        """Minted anew at each start and given to the pipeline alone: who shows it may change managed tables."""
        self.on_published: Callable[[Position], None] = lambda _position: None
        """Called on the event loop when a publish of the pipeline has become visible."""
        self._published_ms = self.store.published().at_ms
        self.forget_next_ms = 0
        """When answers that nobody can ask for again are next removed."""
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self.plans = Plans(settings, clock_ms)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="catalog")

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Make this call in one of the catalog's threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))

    @contextlib.asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """One at a time for each key; others go on."""
        lock, waiting = self._turns.get(key, (asyncio.Lock(), 0))
        self._turns[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[key]
            if waiting == 1:
                del self._turns[key]
            else:
                self._turns[key] = lock, waiting - 1

    @contextlib.asynccontextmanager
    async def turns(self, names: Iterable[Name]) -> AsyncIterator[None]:
        """Who waits for a busy table waits here, and not in one of the threads that everybody else needs."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted({repr((name.namespace, name.name)) for name in names}):
                await stack.enter_async_context(self.turn(key))
            yield

    def publish_time_ms(self) -> int:
        """The moment of a publish that comes now: it never decreases, also when somebody sets the clock back."""
        self._published_ms = max(self._published_ms, self.clock_ms())
        return self._published_ms

    def is_pipeline(self, secret: str | None) -> bool:
        return secret is not None and hmac.compare_digest(
            secret.encode(errors="replace"), self.pipeline_secret.encode()
        )

    async def close(self) -> None:
        await self.plans.close()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self.tables.close)
        self.store.close()
        if self.delegation:
            await asyncio.to_thread(self.delegation.close)
        await asyncio.to_thread(self.storage.close)
