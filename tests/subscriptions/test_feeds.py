"""Feeds alone, with a lake and with readers whose pace the test decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dolake.identity.grants import Grant
from dolake.positions import Position
from dolake.query.announcing import Entry, Page, PagesHead, PagesWanted, Wish
from dolake.settings import SubscriptionSettings
from dolake.subscriptions.feeds import Feeds, Subscriber
from dolake.subscriptions.outlets import Outlet
from dolake.subscriptions.source import Source
from tests.support.aio import until

ORDERS, NOTES = Wish(("orders",)), Wish(("notes",))
SETTINGS = SubscriptionSettings(
    heartbeat_ms=60_000, interval_ms=1, too_slow_after_ms=60_000, buffer_max_bytes=1_000, batch_events_max=3
)


class Lake(Source):
    """Each position is a change of a table. What is before `live_from` is in the tables and not in the tail."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.live_from = 0
        self.asked: list[Entry] = []

    def durable(self) -> Position:
        return len(self.tables)

    def add(self, *tables: str) -> None:
        self.tables += tables

    async def pages(self, wanted: PagesWanted) -> tuple[PagesHead, list[memoryview]]:
        await asyncio.sleep(0)
        pages, bodies = [], []
        for entry in wanted.entries:
            self.asked.append(entry)
            page, body = self._page(wanted.wishes[entry.wish], entry.start, wanted)
            pages.append(page)
            bodies.append(memoryview(body))
        return PagesHead(self.durable(), 0, pages), bodies

    def _page(self, wish: Wish, start: Position, wanted: PagesWanted) -> tuple[Page, bytes]:
        is_live = start >= self.live_from
        if not is_live and not wanted.may_read_tables:
            return Page(start), b""
        found = [at for at in range(start, self.durable()) if self.tables[at] in wish.tables]
        kept = found[: wanted.rows_max]
        end = self.durable() if len(kept) == len(found) else found[len(kept)]
        body = b",".join(b'{"position":%d}' % at for at in kept)
        return Page(end, len(kept), len(body), is_live=is_live), body


class Pipe(asyncio.WriteTransport):
    """A connection that takes what is written when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[bytes] = []
        self.stuck_bytes = 0

    def write(self, data: Any) -> None:
        self.texts.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def is_closing(self) -> bool:
        return False

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(text.partition(b"data: ")[2].partition(b"\n")[0]) for text in self.texts]

    def positions(self) -> list[Position]:
        return [event["position"] for each in self.said() if each["type"] == "batch" for event in each["events"]]


class Harness:
    """A lake, its feeds and their subscribers."""

    def __init__(self, settings: SubscriptionSettings = SETTINGS) -> None:
        self.lake, self.settings = Lake(), settings
        self.feeds = Feeds(self.lake, bytes(16), self.lake.durable, lambda: self.settings, lambda: 0)

    def subscribe(
        self, wish: Wish = ORDERS, start: Position = 0, grant: Grant | None = None
    ) -> tuple[Subscriber, Pipe]:
        pipe = Pipe()
        subscriber = Subscriber(wish, start, Outlet(pipe, "events"))
        if grant:
            subscriber.grant = grant
        self.feeds.add(subscriber)
        return subscriber, pipe

    def add(self, *tables: str) -> None:
        self.lake.add(*tables)
        self.feeds.notice()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with running(Harness()) as harness:
        yield harness


@contextlib.asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(harness.feeds.run())
        await asyncio.sleep(0)
        try:
            yield harness
        finally:
            harness.feeds.stop()


async def test_a_slow_subscriber_is_sent_nothing_until_it_has_read_and_then_everything_once(harness: Harness) -> None:
    slow, slow_pipe = harness.subscribe()
    quick, quick_pipe = harness.subscribe()
    harness.add("orders")
    await until(lambda: slow_pipe.positions() == quick_pipe.positions() == [0])
    slow_pipe.stuck_bytes = SETTINGS.buffer_max_bytes + 1
    harness.add("orders", "orders")
    await until(lambda: quick_pipe.positions() == [0, 1, 2])
    harness.add("orders")
    await until(lambda: quick_pipe.positions() == [0, 1, 2, 3])
    assert (slow_pipe.positions(), slow.position) == ([0], 1)
    assert [each.start for each in harness.lake.asked].count(1) == 1, (
        "nothing is read for a subscriber that cannot take it"
    )
    slow_pipe.stuck_bytes = 0
    await until(lambda: slow.position == 4)
    assert slow_pipe.positions() == [0, 1, 2, 3]
    harness.add("orders")
    await until(lambda: slow.position == quick.position == 5)
    assert slow_pipe.positions() == quick_pipe.positions() == [0, 1, 2, 3, 4]


async def test_where_nothing_is_for_a_subscriber_nothing_is_said_and_its_position_moves_on(harness: Harness) -> None:
    quiet, pipe = harness.subscribe(NOTES)
    harness.add("orders", "orders")
    await until(lambda: quiet.position == 2)
    assert pipe.texts == []
    harness.add("notes")
    await until(lambda: pipe.positions() == [2])
    assert [(each["from"], each["position"]) for each in pipe.said()] == [(2, 3)]


async def test_a_batch_begins_where_the_last_one_ended_and_its_token_says_where_it_ends(harness: Harness) -> None:
    _, pipe = harness.subscribe()
    harness.add("orders", "notes", "orders", "orders", "orders", "notes")
    await until(lambda: pipe.positions() == [0, 2, 3, 4])
    assert [(each["from"], each["position"], each["count"]) for each in pipe.said()] == [(0, 4, 3), (4, 6, 1)]
    assert [each["token"] for each in pipe.said()] == [harness.feeds.token(4), harness.feeds.token(6)]


async def test_feeds_of_different_wishes_at_the_same_place_stay_apart_and_equal_ones_are_asked_for_once(
    harness: Harness,
) -> None:
    (_, orders), (_, notes), (_, again) = harness.subscribe(), harness.subscribe(NOTES), harness.subscribe()
    harness.add("orders", "notes")
    await until(lambda: (orders.positions(), notes.positions(), again.positions()) == ([0], [1], [0]))
    harness.lake.asked.clear()
    harness.add("notes", "orders")
    await until(lambda: (orders.positions(), notes.positions(), again.positions()) == ([0, 3], [1, 2], [0, 3]))
    assert len([each for each in harness.lake.asked if each.start == 2]) == 2


async def test_subscribers_of_one_wish_at_different_places_each_get_what_they_miss(harness: Harness) -> None:
    harness.add("orders", "orders", "orders")
    (_, first), (_, later) = harness.subscribe(start=0), harness.subscribe(start=2)
    await until(lambda: (first.positions(), later.positions()) == ([0, 1, 2], [2]))
    harness.add(*["orders"] * 8)
    await until(lambda: (first.positions(), later.positions()) == (list(range(11)), list(range(2, 11))))
    _, beginning = harness.subscribe(start=0)
    _, middle = harness.subscribe(start=5)
    await until(lambda: (beginning.positions(), middle.positions()) == (list(range(11)), list(range(5, 11))))


async def test_a_subscriber_from_the_past_reads_page_by_page_and_then_with_the_others(harness: Harness) -> None:
    harness.add(*["orders"] * 10)
    harness.lake.live_from = 8
    (_, past), (_, now) = harness.subscribe(start=0), harness.subscribe(start=10)
    await until(lambda: past.positions() == list(range(10)))
    harness.add("orders", "orders")
    await until(lambda: past.positions() == list(range(12)) and now.positions() == [10, 11])


async def test_a_subscriber_whose_token_is_revoked_hears_no_more_and_is_told_why(harness: Harness) -> None:
    revoked, pipe = harness.subscribe(grant=Grant("gone", "gone"))
    stays, others = harness.subscribe(grant=Grant("here", "here"))
    harness.feeds.end_all_but(lambda grant: grant.id == "here")
    harness.add("orders")
    await until(lambda: others.positions() == [0])
    assert pipe.positions() == []
    error = revoked.ended.result()
    assert error is not None
    assert error.code == "unauthorized"
    assert harness.feeds.subscribers == [stays]


async def test_a_subscriber_that_takes_nothing_for_too_long_is_disconnected_and_an_idle_one_is_not() -> None:
    settings = msgspec.structs.replace(SETTINGS, too_slow_after_ms=100)
    async with running(Harness(settings)) as harness:
        stuck, pipe = harness.subscribe()
        idle, _ = harness.subscribe()
        pipe.stuck_bytes = 1
        await until(stuck.ended.done)
        error = stuck.ended.result()
        assert error is not None
        assert error.code == "too_slow"
        assert harness.feeds.subscribers == [idle]


async def test_every_subscriber_is_told_when_the_server_stops(harness: Harness) -> None:
    subscriber, _ = harness.subscribe()
    harness.feeds.stop()
    error = await subscriber.ended
    assert error is not None
    assert error.retryable
