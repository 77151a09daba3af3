"""The parts of a running server, and what it is doing: the one object that routes are given.

From server/lifecycle.py, which fills it while the server starts; to operations.py and app.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from dolake.catalog.catalog import Catalog
from dolake.crashpoints import reach
from dolake.errors import Conflict, Damaged, Unavailable
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.positions import Position
from dolake.receiver.endpoint import Receiver
from dolake.receiver.limiter import RateLimiter
from dolake.receiver.progress import Progress, Tail
from dolake.server.auth import Doorkeeper
from dolake.server.home import Home
from dolake.server.journal_copy import CONSUMER, JournalCopy
from dolake.server.query_process import QueryProcess
from dolake.server.sources import Sources
from dolake.server.spark_process import SparkProcess
from dolake.settings import Settings, SettingsStore, SourceSettings, SubscriptionSettings
from dolake.storage.opening import open_delegation, open_storage, place_of
from dolake.subscriptions.endpoint import Subscriptions
from dolake.subscriptions.feeds import Feeds
from dolake.subscriptions.names import Names
from dolake.subscriptions.source import Source
from dolake.wire.messages import ServerState

logger = logging.getLogger(__name__)
_PIPELINE = "pipeline"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Lake:
    """Everything that one server owns. Until `open` is done it is `recovering`."""

    def __init__(
        self,
        home: Home,
        settings: SettingsStore,
        clock_ms: Callable[[], int] = now_ms,
        *,
        followed: tuple[SourceSettings, ...] = (),
    ) -> None:
        self.home, self.settings, self.clock_ms = home, settings, clock_ms
        self.started_ms = clock_ms()
        self.progress = Progress(clock_ms)
        self.doorkeeper = Doorkeeper(home.path, clock_ms)
        self.sources = Sources(home.path, settings, self.doorkeeper, followed)
        current = settings.current
        self.limiter = RateLimiter(
            current.rate_limit, clock_ms=clock_ms, trusted_proxies=current.server.trusted_proxies
        )
        self.recovery_done = 0
        self.recovery_total = 0
        self._receiver: Receiver | None = None
        self._catalog: Catalog | None = None
        self._is_closed = False
        self.own_port: int | None = None
        """Where the server's own processes come in without TLS; None where there is no TLS."""
        self.pipeline: SparkProcess | None = None
        """None until the server listens, and for good where the settings say so."""
        self.query: QueryProcess | None = None
        """The same."""
        self.journal_copy: JournalCopy | None = None
        """The same."""
        self.subscriptions: Subscriptions | None = None
        """None until the journal is recovered."""

    @property
    def receiver(self) -> Receiver:
        if self._receiver is None:
            raise Unavailable("the journal is being recovered", hint="ask /health/ready, then try again")
        return self._receiver

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            raise Unavailable("the catalog is being opened", hint="ask /health/ready, then try again")
        return self._catalog

    @property
    def has_catalog(self) -> bool:
        return self._catalog is not None

    @property
    def journal(self) -> EmbeddedJournal:
        return self.receiver.journal

    @property
    def state(self) -> ServerState:
        return self._receiver.state if self._receiver else "recovering"

    @property
    def is_ready(self) -> bool:
        """Whether a batch sent now can be kept."""
        receiver = self._receiver
        return receiver is not None and not receiver.is_closing and receiver.journal.failure is None

    def problems(self) -> list[str]:
        """What fails although batches are kept; empty when all is well. Names no table: /health is open to all."""
        problems = [self.pipeline.problem] if self.pipeline and self.pipeline.problem else []
        if self._receiver and self.progress.breaker == "open":
            problems.append("publishing fails; publish.lastFailure of GET /v1/write-stats says why")
        problems += self.sources.problems()
        return problems

    async def open(self) -> None:
        """Recover the journal in a thread while /health already answers, then let the receiver work."""
        lake = self.settings.current.lake
        self._catalog = await asyncio.to_thread(self._open_catalog)
        self.doorkeeper.is_pipeline = self._catalog.is_pipeline
        logger.info("journal recovery started", extra={"journal": str(self.home.journal_path)})
        journal = await asyncio.to_thread(
            open_journal,
            self.home.journal_path,
            self.settings.current.journal,
            window_ms=lake.deduplication_window_ms,
            is_deduplicating=lake.enable_deduplication,
            clock_ms=self.clock_ms,
            on_progress=self._note_recovery,
        )
        published = await self._catalog.run(self._catalog.store.published)
        is_ours = await self._is_ours(journal)
        if not is_ours:
            published = replace(published, position=journal.durable)  # which is of no importance to the tables
        if published.position > journal.durable:
            raise Damaged(
                f"the tables are published up to {published.position}, but the journal ends at {journal.durable}",
                hint="the journal folder is older than the catalog: restore the one that belongs to it",
            )
        found = journal.recovered
        self.progress.tail = Tail(published.position)
        if journal.durable > published.position:
            self.progress.tail.add(
                journal.durable,
                found.record_count,
                journal.used_bytes,
                found.commit_timestamp_ms,
                oldest_ms=found.oldest_timestamp_ms,
            )
        journal.register(_PIPELINE, published.position)
        journal.release(_PIPELINE, published.position)
        self._catalog.on_published = self._note_published
        self._receiver = Receiver(journal, self.progress, self.settings, self.clock_ms, self.limiter)
        self._receiver.takes_changes = is_ours
        self._receiver.pressure.start()
        self._receiver.is_live = self.doorkeeper.book.is_live
        self.doorkeeper.on_change(lambda: self.receiver.end_all_but(self.doorkeeper.book.is_live))
        loop = asyncio.get_running_loop()

        def follow(changed: Settings) -> None:
            loop.call_soon_threadsafe(self._follow, changed)

        self.settings.on_change(follow)
        self._follow(self.settings.current)  # what was changed while the journal was recovered

    async def _is_ours(self, journal: EmbeddedJournal) -> bool:
        """Whether the lake's tables are made of this journal; else all that this server may serve is the catalog."""
        settings, own = self.settings.current, journal.recovered.journal_id.hex()
        has_pipeline = settings.pipeline.enabled
        owner = await self.catalog.run(self.catalog.store.claim, own, journal.durable, has_pipeline=has_pipeline)
        if owner in ("", own):
            return True
        if has_pipeline or settings.query.enabled:
            raise Conflict(
                "the lake in this Postgres is made of another server's journal",
                hint="to serve only its catalog here too, set pipeline.enabled and query.enabled to false;"
                " for a lake of its own, name another catalog.store_schema",
            )
        logger.warning("only the catalog is served", extra={"journal": own, "lake_of": owner})
        if journal.durable:
            logger.error("changes in this journal are not in the lake", extra={"changes": journal.durable})
        return False

    def _open_catalog(self) -> Catalog:
        current = self.settings.current
        place = place_of(current.lake, current.storage, current.catalog)
        storage = open_storage(self.home.path, current.lake, place)
        delegation = open_delegation(storage, current.storage, self.clock_ms)
        return Catalog(self.home.path, storage, current.catalog, self.clock_ms, delegation)

    def start_pipeline(self, url: str) -> SparkProcess:
        """Spark starts while the server already takes changes."""
        self.pipeline = SparkProcess(self.home, self.settings, self.progress, self.catalog, url, self.clock_ms)
        return self.pipeline

    def start_journal_copy(self) -> JournalCopy | None:
        """None where the settings want no copy; then nothing waits for one."""
        if not self.settings.current.journal.copy:
            self.journal.unregister(CONSUMER)
            return None
        self.journal_copy = JournalCopy(self.home.path, self.settings, self.journal, self.catalog, self.clock_ms)
        return self.journal_copy

    def start_query(self) -> QueryProcess:
        """Questions are answered from the moment the tables and the journal can be read."""
        self.query = QueryProcess(self.home, self.settings)
        return self.query

    def query_process(self) -> QueryProcess:
        """For the routes that ask it."""
        if self.query is None:
            assert self.receiver, "raises while the journal is recovered"
            raise Conflict("queries are off", hint="set query.enabled and start again")
        return self.query

    async def open_subscriptions(self) -> Subscriptions:
        """Named ones are read; nobody is told anything before `feeds.run`."""
        names = Names(self.home.path / "subscriptions", self.clock_ms)
        await names.open()

        def settings() -> SubscriptionSettings:
            return self.settings.current.subscriptions

        def durable() -> Position:
            return self.journal.durable

        lake, source = self.journal.recovered.journal_id, Source(self.query_process)
        feeds = Feeds(source, lake, durable, settings, self.clock_ms)
        self.progress.on_change(feeds.notice)
        self.doorkeeper.on_change(lambda: feeds.end_all_but(self.doorkeeper.book.is_live), is_always=True)
        self.subscriptions = Subscriptions(source, feeds, names, lake=lake, durable=durable, settings=settings)
        return self.subscriptions

    def open_feeds(self) -> Subscriptions:
        """For the routes of subscribers."""
        if self.subscriptions is None:
            assert self.receiver, "raises while the journal is recovered"
            assert self.query_process(), "raises where queries are off"
            raise Unavailable("the server is starting", hint="try again in a moment")
        assert self.query_process(), "raises where queries are off"
        return self.subscriptions

    async def close(self) -> None:
        """In the direction of the data: let the sources end, close the door, make durable, publish, let go."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.sources.stop()
        wait_ms = self.settings.current.server.shutdown_wait_ms
        if self._receiver:
            self._receiver.pressure.stop()
            await self._receiver.close(wait_ms)
        if self.subscriptions:
            self.subscriptions.feeds.stop()
            self.subscriptions.names.close()
        if self.pipeline:
            await self.pipeline.stop(wait_ms)
        if self.query:
            await self.query.stop()
        if self.journal_copy:
            await self.journal_copy.stop(wait_ms)
        if self._receiver:
            await self._receiver.journal.close()
        if self._catalog:
            await self._catalog.close()

    def _follow(self, settings: Settings) -> None:
        self.receiver.tables.tables_max = settings.server.tables_max
        self.limiter.follow(settings.rate_limit, settings.server.trusted_proxies)
        self.journal.follow_settings(
            settings.journal,
            is_deduplicating=settings.lake.enable_deduplication,
            window_ms=settings.lake.deduplication_window_ms,
        )

    def _note_published(self, position: Position) -> None:
        """The catalog has moved: tell senders, then let the journal go on."""
        reach("before_ack")
        self.progress.published(position, self.catalog.storage.root)
        reach("before_trim")
        self.journal.release(_PIPELINE, position)

    def _note_recovery(self, done: int, total: int) -> None:
        self.recovery_done, self.recovery_total = done, total
