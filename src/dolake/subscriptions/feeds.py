"""Feeds: who wants the same and is at the same place hears it together, from the past into the present.

From endpoint.py, which adds and removes subscribers; pages come from source.py. A feed is a wish, a position and all
subscribers there. Those near the end are asked for in one round, which takes what has become durable since the last;
one that is far behind reads page by page on its own, as does a subscriber that is slower than its feed; when two feeds
meet they become one. So nothing is queued for anybody: who is slow reads later. Promise: each subscriber gets each
change of its wish once and in order, or is told why no more come and where to go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from dolake.errors import DoLakeError, TooSlow, Unauthorized, Unavailable
from dolake.identity.grants import EVERYTHING, Grant
from dolake.positions import Position
from dolake.query.announcing import Entry, Page, PagesWanted, Wish
from dolake.settings import SubscriptionSettings
from dolake.subscriptions.outlets import Message, Outlet, batch_message, heartbeat_message
from dolake.subscriptions.source import Source, error_of
from dolake.subscriptions.tokens import token_of

logger = logging.getLogger(__name__)
_IDLE_S = 0.5
_RETRY_S = 0.2
_DRAIN_LOOK_S = 0.02
_ALONE_MAX = 4
_WATCH_S = 0.5


@dataclass(eq=False)
class Subscriber:
    """One connection, and how far it has been told."""

    wish: Wish
    position: Position
    outlet: Outlet
    name: str | None = None
    grant: Grant = EVERYTHING
    ended: asyncio.Future[DoLakeError | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done when no more comes: with the reason, or with none where the connection is gone."""
    told_s: float = field(default_factory=time.monotonic)
    _taken: int = -1
    _taken_s: float = 0.0

    def end(self, error: DoLakeError | None = None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def stuck_s(self, now_s: float) -> float:
        """For how long it has taken nothing, though something waits for it."""
        taken = self.outlet.taken_bytes
        if taken != self._taken or not self.outlet.waiting_bytes:
            self._taken, self._taken_s = taken, now_s
        return now_s - self._taken_s


@dataclass(eq=False)
class Feed:
    """Who hears the same."""

    wish: Wish
    position: Position
    subscribers: set[Subscriber]


@dataclass
class FeedStats:
    """Figures for /status and /metrics."""

    batch_count: int = 0
    event_count: int = 0
    byte_count: int = 0
    round_count: int = 0
    round_seconds: float = 0.0
    ended_counts: Counter[str] = field(default_factory=Counter)


class Feeds:
    """All feeds. Everything here runs on the event loop."""

    def __init__(
        self,
        source: Source,
        lake: bytes,
        durable: Callable[[], Position],
        settings: Callable[[], SubscriptionSettings],
        clock_ms: Callable[[], int],
    ) -> None:
        self._source, self._lake, self._durable, self._settings = source, lake, durable, settings
        self._clock_ms = clock_ms
        self.stats = FeedStats()
        self._feeds: dict[Subscriber, Feed] = {}
        self._live: dict[Feed, None] = {}
        self._wake = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._alone = asyncio.Semaphore(_ALONE_MAX)
        self._stopping = asyncio.Event()
        self._is_down = False

    # --- who subscribes -----------------------------------------------------------------------------------------------

    @property
    def subscribers(self) -> list[Subscriber]:
        return list(self._feeds)

    def token(self, position: Position) -> str:
        return token_of(self._lake, position)

    def add(self, subscriber: Subscriber) -> None:
        """From its position on it is told everything."""
        if self._tasks is None or self._stopping.is_set():
            raise Unavailable("the server is starting or stopping", hint="try again in a moment")
        self._put(subscriber)
        self._wake.set()

    def remove(self, subscriber: Subscriber) -> None:
        feed = self._feeds.pop(subscriber, None)
        if feed is not None:
            feed.subscribers.discard(subscriber)
            if not feed.subscribers:
                self._live.pop(feed, None)

    def end_all_but(self, is_live: Callable[[Grant], bool]) -> None:
        """Let those go whose token was revoked or has expired."""
        gone = [each for each in self.subscribers if not is_live(each.grant)]
        if gone:
            self._end(gone, Unauthorized("the token is not valid any more", hint="ask for another one"))

    def notice(self) -> None:
        """More is durable."""
        self._wake.set()

    def _put(self, subscriber: Subscriber) -> None:
        feed = Feed(subscriber.wish, subscriber.position, {subscriber})
        self._feeds[subscriber] = feed
        self._live[feed] = None

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            loops = [tasks.create_task(_for_ever(each)) for each in (self._tell_live, self._watch)]
            await self._stopping.wait()
            for subscriber in self.subscribers:
                subscriber.end(Unavailable("the server stops", hint="connect again and go on with the token"))
            for each in loops:
                each.cancel()

    def stop(self) -> None:
        self._stopping.set()

    async def _tell_live(self) -> None:
        """Round after round, as changes become durable."""
        while True:
            # The timeout is for a transaction that is waited for no longer.
            await _set_or_later(self._wake, _IDLE_S)
            self._wake.clear()
            began_s = time.monotonic()
            durable = self._durable()
            feeds = [feed for feed in self._live if feed.position < durable]
            if feeds:
                await self._round(feeds)
                spent_s = time.monotonic() - began_s
                self.stats.round_count += 1
                self.stats.round_seconds += spent_s
                await asyncio.sleep(max(0.0, self._settings().interval_ms / 1000 - spent_s))

    async def _round(self, feeds: list[Feed]) -> None:
        wishes = list(dict.fromkeys(feed.wish for feed in feeds))
        number = {wish: at for at, wish in enumerate(wishes)}
        entries = [Entry(number[feed.wish], feed.position) for feed in feeds]
        try:
            head, bodies = await self._source.pages(self._wanted(wishes, entries, is_round=True))
        except DoLakeError as error:
            self._note_down(error)
            await asyncio.sleep(_RETRY_S)
            self._wake.set()
            return
        self._is_down = False
        for feed, page, body in zip(feeds, head.pages, bodies, strict=True):
            if feed not in self._live:
                continue
            if page.problem is None and not page.is_live:
                self._go_alone(feed)
                continue
            self._deliver(feed, page, body)
            await asyncio.sleep(0)  # let senders be acknowledged between two feeds
        self._merge()

    def _wanted(self, wishes: list[Wish], entries: list[Entry], *, is_round: bool) -> PagesWanted:
        settings = self._settings()
        return PagesWanted(
            wishes,
            entries,
            settings.batch_events_max,
            settings.batch_bytes_max,
            keeps=is_round,
            may_read_tables=not is_round,
        )

    def _note_down(self, error: DoLakeError) -> None:
        if not self._is_down:
            logger.warning("changes cannot be read", extra={"reason": str(error)})
        self._is_down = True

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _deliver(self, feed: Feed, page: Page, body: memoryview | bytes) -> None:
        """Tell all of a feed; who has too much waiting stays behind, in a feed of its own."""
        if page.problem is not None:
            self._end(list(feed.subscribers), error_of(*page.problem))
            return
        start, feed.position = feed.position, page.end
        message: Message | None = None
        if page.count:
            message = batch_message(self.token(page.end), start, page.end, page.count, body)
        buffer_max, now_s, told = self._settings().buffer_max_bytes, time.monotonic(), 0
        for subscriber in list(feed.subscribers):
            if message is None:
                subscriber.position = page.end
            elif subscriber.outlet.waiting_bytes > buffer_max:
                self._part(feed, subscriber)
            else:
                subscriber.outlet.write(message)
                subscriber.position, subscriber.told_s = page.end, now_s
                told += 1
        self.stats.batch_count += told
        self.stats.event_count += told * page.count
        self.stats.byte_count += told * len(body)
        if start < page.end < self._durable():  # where a transaction is waited for, the next change wakes us
            self._wake.set()

    def _part(self, feed: Feed, subscriber: Subscriber) -> None:
        feed.subscribers.discard(subscriber)
        if not feed.subscribers:
            self._live.pop(feed, None)
        self._put(subscriber)
        self._go_alone(self._feeds[subscriber])

    def _merge(self) -> None:
        """Feeds of the same wish at the same place are one from now on."""
        known: dict[tuple[Wish, Position], Feed] = {}
        for feed in list(self._live):
            first = known.setdefault((feed.wish, feed.position), feed)
            if first is not feed:
                first.subscribers |= feed.subscribers
                for subscriber in feed.subscribers:
                    self._feeds[subscriber] = first
                del self._live[feed]

    def _end(self, subscribers: Iterable[Subscriber], error: DoLakeError) -> None:
        for subscriber in subscribers:
            self.stats.ended_counts[error.code] += 1
            self.remove(subscriber)
            subscriber.end(error)

    # --- alone --------------------------------------------------------------------------------------------------------

    def _go_alone(self, feed: Feed) -> None:
        self._live.pop(feed, None)
        assert self._tasks is not None
        self._tasks.create_task(self._follow_safely(feed))

    async def _follow_safely(self, feed: Feed) -> None:
        try:
            await self._follow(feed)
        except Exception:  # a mistake of ours costs these subscribers their connection, and nobody anything else
            logger.exception("subscription failed")
            self._end(list(feed.subscribers), Unavailable("an error of ours; the log has it", hint="connect again"))

    async def _follow(self, feed: Feed) -> None:
        """Page by page, at the pace of who reads, until the present is reached."""
        while feed.subscribers and not self._stopping.is_set():
            await self._drained(feed)
            if not feed.subscribers:
                return
            try:
                async with self._alone:
                    wanted = self._wanted([feed.wish], [Entry(0, feed.position)], is_round=False)
                    head, (body,) = await self._source.pages(wanted)
            except DoLakeError as error:
                self._note_down(error)
                await asyncio.sleep(_RETRY_S)
                continue
            (page,) = head.pages
            self._deliver(feed, page, body)
            is_full = page.count >= self._settings().batch_events_max
            if feed.subscribers and page.is_live and not is_full:
                self._live[feed] = None
                self._wake.set()
                return
            if not page.count:
                await asyncio.sleep(_DRAIN_LOOK_S)

    async def _drained(self, feed: Feed) -> None:
        low = self._settings().buffer_max_bytes // 2
        while any(subscriber.outlet.waiting_bytes > low for subscriber in feed.subscribers):
            if self._stopping.is_set():
                return
            await asyncio.sleep(_DRAIN_LOOK_S)

    # --- heartbeats, and those who are gone or stuck ------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            settings = self._settings()
            await asyncio.sleep(min(_WATCH_S, settings.heartbeat_ms / 2000, settings.too_slow_after_ms / 4000))
            now_s, beats = time.monotonic(), dict[Position, Message]()
            for subscriber in self.subscribers:
                if subscriber.outlet.is_closing:
                    self.remove(subscriber)
                    subscriber.end()
                elif subscriber.stuck_s(now_s) * 1000 >= settings.too_slow_after_ms:
                    self._end([subscriber], _too_slow(settings))
                elif (
                    now_s - subscriber.told_s
                ) * 1000 >= settings.heartbeat_ms and not subscriber.outlet.waiting_bytes:
                    at = subscriber.position
                    beat = beats.get(at) or heartbeat_message(self.token(at), at, self._clock_ms())
                    beats[at] = beat
                    subscriber.outlet.write(beat)
                    subscriber.told_s = now_s


def _too_slow(settings: SubscriptionSettings) -> TooSlow:
    return TooSlow(
        f"nothing was taken for {settings.too_slow_after_ms / 1000:g} s, though changes wait",
        hint="connect again and go on with the token; take batches faster, or ask for less",
    )


async def _for_ever(loop: Callable[[], Awaitable[None]]) -> None:
    """A mistake of ours in one round must not end all that the server does."""
    while True:
        try:
            await loop()
        except Exception:
            logger.exception("subscriptions failed for a moment")
            await asyncio.sleep(_IDLE_S)


async def _set_or_later(event: asyncio.Event, wait_s: float) -> None:
    """Cheaper than a timeout around each wait."""
    if not event.is_set():
        loop = asyncio.get_running_loop()
        timer = loop.call_later(wait_s, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()
