"""Keeps the home's copy in the store up to date while the server runs.

From lifecycle.py, which runs `run`; to backup/store_copy.py, in a thread. Promise: a durable change waits at most
`journal.copy_interval_ms` for its copy while the store is well; segments that are not copied are not removed; a store
that fails costs a warning and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dolake.catalog.catalog import Catalog
from dolake.errors import DoLakeError, InvalidInput
from dolake.journal.embedded import EmbeddedJournal
from dolake.settings import Settings, SettingsStore

logger = logging.getLogger(__name__)
CONSUMER = "copy"


class JournalCopy:
    """See the module."""

    def __init__(
        self,
        home: Path,
        settings: SettingsStore,
        journal: EmbeddedJournal,
        catalog: Catalog,
        clock_ms: Callable[[], int],
    ) -> None:
        from dolake.backup.store_copy import StoreCopy
        from dolake.storage.s3 import S3Storage  # its client is for lakes in a store alone

        assert isinstance(catalog.storage, S3Storage), "refused before"
        self._settings, self._journal = settings, journal
        self._copy = StoreCopy(
            home,
            catalog.storage,
            settings.current.catalog,
            journal,
            journal.recovered.journal_id.hex(),
            hold=catalog.tables.hold,
            clock_ms=clock_ms,
        )
        self._is_stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self._failure = ""
        journal.register(CONSUMER, journal.oldest)

    def as_json(self) -> dict[str, Any]:
        """For /status."""
        last = self._copy.last
        return {
            "position": last.position if last else None,
            "takenMs": last.taken_ms if last else None,
            "failure": self._failure or None,
        }

    @property
    def position(self) -> int:
        """How many changes the copy has; 0 before the first round."""
        return self._copy.last.position if self._copy.last else 0

    @property
    def oldest(self) -> int:
        """The first position of which the copy has the changes; 0 before the first round."""
        return self._copy.last.segments[0].base if self._copy.last else 0

    async def run(self) -> None:
        """Round after round, until `stop`."""
        while not self._is_stopping.is_set():
            await self.copy_now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.current.journal.copy_interval_ms / 1000):
                    await self._is_stopping.wait()

    async def stop(self, wait_ms: int) -> None:
        """One last round, so that all that was acknowledged is in the copy."""
        self._is_stopping.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self.copy_now()

    async def copy_now(self) -> None:
        async with self._turn:
            try:
                copied = await asyncio.to_thread(self._copy.bring_up_to_now)
            except (DoLakeError, OSError, sqlite3.Error) as error:
                if not self._failure:
                    logger.warning("journal not copied", extra={"reason": str(error)})
                self._failure = str(error)
                return
            if self._failure:
                logger.info("journal copied again", extra={"position": copied.position})
            self._failure = ""
            self._journal.release(CONSUMER, copied.position)


def refuse_without_store(settings: Settings) -> None:
    """A copy on the same disk would be lost with it."""
    if settings.journal.copy and not settings.storage.location:
        raise InvalidInput(
            "journal.copy is set, but the tables are in a folder of this machine",
            hint="set storage.location, or take backups with `dolake backup`",
        )
