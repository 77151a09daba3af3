"""Rollback: a table becomes what it was, by changes like any others; and when not."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from dolake.catalog.base import Name
from dolake.errors import NoSuchMoment, OutcomeUnknown
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.receiver.endpoint import Receiver
from dolake.receiver.progress import Progress
from dolake.server.appending import BATCH_BYTES_MAX, BATCH_CHANGES_MAX
from dolake.server.lake import Lake
from dolake.server.rollback import Difference, Differences, Rollbacks, Target, image_of
from dolake.server.tables import rollbacks_of
from dolake.settings import SettingsStore
from dolake.tables.layout import KEY
from dolake.wire.messages import CDCEvent, encode, validate_cdc_batch_message
from tests.support.aio import run, until
from tests.support.clock import Clock
from tests.support.disk import FailingDisk
from tests.support.http import ask
from tests.support.kept import records_of
from tests.support.lake import running_lake, settings_of
from tests.support.speaker import Speaker, batch, event
from tests.verify.lake import HandLake, delete, differing, insert, update

Json = dict[str, Any]
ITEMS = Name(("default",), "items")
ROLLBACK = "/v1/tables/default/items/rollback"


# --- telling the difference ------------------------------------------------------------------------------------------


def rows_of(location: str, snapshot_id: int | None = None) -> dict[str, Json]:
    """The rows of a table by their keys, as another library reads them; of a snapshot, or now."""
    table = StaticTable.from_metadata(location)
    return {row[KEY]: row for row in table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()}


def differences_of(now: dict[str, Json], then: dict[str, Json]) -> list[Difference]:
    found = [Difference("INSERT", key, after=row) for key, row in then.items() if key not in now]
    found += [Difference("DELETE", key, before=row) for key, row in now.items() if key not in then]
    both = [key for key in now if key in then and now[key] != then[key]]
    return found + [Difference("UPDATE", key, now[key], then[key]) for key in both]


def in_tables(lake: Lake) -> Differences:
    """What the tables say: right while all is published."""

    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        *namespace, name = table.split(".")
        location = lake.catalog.tables.load(Name(tuple(namespace), name)).location
        now = await asyncio.to_thread(rows_of, location)
        then = await asyncio.to_thread(rows_of, location, target.snapshot_id)
        for each in differences_of(now, then):
            yield each

    return differences


def just(found: Iterable[Difference]) -> Differences:
    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        for each in found:
            yield each

    return differences


def inserts(count: int, size: int = 0) -> list[Difference]:
    return [Difference("INSERT", str(n), after={"n": n, "pad": "x" * size}) for n in range(count)]


# --- asking ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def rolling_back(home: Path, found: Differences | None = None, **flags: Any) -> AsyncIterator[tuple[Lake, str]]:
    async with running_lake(home, settings=settings_of(**flags)) as (lake, url):
        rollbacks_of(lake).differences = found or in_tables(lake)
        yield lake, url


async def roll_back(url: str, body: Any, path: str = ROLLBACK) -> Json:
    status, _, answer = await ask(url, path, "POST", data=json.dumps(body))
    assert status == 200, answer
    found: Json = answer
    return found


async def refusal(url: str, body: Any, path: str = ROLLBACK) -> tuple[int, str]:
    status, _, answer = await ask(url, path, "POST", data=json.dumps(body))
    return status, answer["error"]["type"]


async def send(url: str, *events: Json, number: int = 1) -> None:
    async with Speaker(url) as speaker:
        await speaker.connect()
        answer = await speaker.ask(batch(number, list(events)))
        assert answer["type"] == "ack", answer


def changes_in(home: Path, *, source: str = "dolake.rollback") -> list[list[CDCEvent]]:
    """The batches of a source as the journal keeps them, checked by the receiver's own rules."""
    records = [record for record in records_of(home) if record.stream.source == source]
    for record in records:
        assert (record.stream.shard, record.epoch) == ("", 0)
    return [validate_cdc_batch_message(record.payload).events for record in records]


# --- what it does ----------------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> HandLake:
    """Ten rows, then some of them changed, gone and new."""
    lake = HandLake(tmp_path)
    at = "2026-01-02T03:04:05.678901Z"
    rows = [insert(str(n), n=n, word=f"w{n}", big=2**60 + n, at=at, o={"a": n}, l=[1, 2], _key="own") for n in range(9)]
    lake.publish(*rows, insert("misfit", n="no number", word="w"))
    lake.publish(
        update("1", {"n": 1}, {"n": 100, "word": "changed"}),
        update("misfit", {}, {"n": 5}),
        delete("2", {"n": 2}),
        delete("3", {"n": 3}),
        insert("new", n=77),
        update("moved", {"n": 4}, {"n": 4}, metadata={"previousRowId": "4"}),
    )
    return lake


def snapshots_of(lake: HandLake) -> tuple[int, ...]:
    return tuple(each["snapshot-id"] for each in lake.metadata("default.items")["snapshots"])


def test_a_table_becomes_what_it_was_and_its_history_goes_on(published: HandLake) -> None:
    lake = published
    first, second = snapshots_of(lake)
    wanted = rows_of(lake.tables.load(ITEMS).location, first)

    async def back_to_the_first() -> Json:
        async with rolling_back(lake.home) as (_, url):
            return await roll_back(url, {"snapshotId": str(first)})

    lake.close()
    answer = run(back_to_the_first())
    assert answer == {"table": "default.items", "position": 23, "changes": {"added": 3, "removed": 2, "changed": 2}}
    lake.open()
    lake.publish_all()
    location = lake.tables.load(ITEMS).location
    assert rows_of(location) == wanted
    assert rows_of(location, second) != wanted  # what was undone can be seen, and brought back
    assert snapshots_of(lake)[:2] == (first, second)
    lake.publish(update("1", {"n": 1}, {"n": 2}))  # what comes later finds everything in its place
    assert not differing(lake.verify())
    lake.close()


async def test_a_rollback_can_be_rolled_back(published: HandLake) -> None:
    lake = published
    first, second = snapshots_of(lake)
    wanted = rows_of(lake.tables.load(ITEMS).location)
    for snapshot_id in (first, second):
        lake.close()
        async with rolling_back(lake.home) as (_, url):
            await roll_back(url, {"snapshotId": snapshot_id})
        lake.open()
        lake.publish_all()
    assert rows_of(lake.tables.load(ITEMS).location) == wanted
    lake.close()


async def test_its_changes_are_one_transaction_in_batches_of_a_bounded_size(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just(inserts(2 * BATCH_CHANGES_MAX + 1))) as (_, url):
        await send(url, event(1, table="items"))
        answer = await roll_back(url, {"asOf": 1})
        assert answer["position"] == 2 * BATCH_CHANGES_MAX + 2
        assert answer["changes"] == {"added": 2 * BATCH_CHANGES_MAX + 1, "removed": 0, "changed": 0}
    batches = changes_in(tmp_path)
    assert [len(each) for each in batches] == [BATCH_CHANGES_MAX, BATCH_CHANGES_MAX, 1]
    events = [each for batch in batches for each in batch]
    assert [each.sequence for each in events] == list(range(1, len(events) + 1))
    assert [each.row_id for each in events] == [str(n) for n in range(len(events))]
    assert {each.table for each in events} == {"items"}
    metadata = [each.metadata or {} for each in events]
    assert len({each["transactionId"] for each in metadata}) == 1
    assert metadata[0]["transactionId"].startswith("rollback-")
    assert [at for at, each in enumerate(metadata) if each.get("transactionEnd")] == [len(events) - 1]


async def test_rows_of_any_size_are_appended_in_batches_of_a_bounded_size(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just(inserts(8, BATCH_BYTES_MAX // 3))) as (_, url):
        await send(url, event(1, table="items"))
        await roll_back(url, {"asOf": 1})
    assert [len(each) for each in changes_in(tmp_path)] == [3, 3, 2]


async def test_the_next_rollback_goes_on_in_the_same_stream_with_a_transaction_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):  # also after a restart
        async with rolling_back(tmp_path, just(inserts(2))) as (lake, url):
            await send(url, event(1, table="items"))
            for _ in range(2):
                await roll_back(url, {"asOf": 1})
            assert lake.journal.stream_count == 2
    batches = changes_in(tmp_path)
    assert [[each.sequence for each in batch] for batch in batches] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert len({(batch[0].metadata or {})["transactionId"] for batch in batches}) == 4


async def test_where_nothing_differs_nothing_is_appended(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just([])) as (lake, url):
        await send(url, event(1, table="items"))
        answer = await roll_back(url, {"asOf": "2026-01-01T00:00:00+01:00"})
        none = {"added": 0, "removed": 0, "changed": 0}
        assert answer == {"table": "default.items", "position": 1, "changes": none}
        assert lake.journal.durable == 1


async def test_it_counts_like_any_change_that_is_durable_and_not_yet_published(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just(inserts(5))) as (lake, url):
        await send(url, event(1, table="items"))
        answer = await roll_back(url, {"asOf": 1})
        assert answer["position"] == lake.progress.tail.durable == lake.journal.durable == 6
        body = (await ask(url, "/status")).body
        assert body["buffer"]["eventCount"] == 6
        assert body["lag"]["items"]["changes"] == 6
        assert body["state"] == "receiving"


async def test_what_others_send_meanwhile_is_kept_and_stands_before_the_rollbacks_changes(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (lake, url):

        async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
            yield Difference("UPDATE", "1", {"n": 2}, {"n": 1})
            await send(url, event(2, table="items", row_id="1", after={"n": 3}), number=2)

        rollbacks_of(lake).differences = differences
        await send(url, event(1, table="items", row_id="1", after={"n": 2}))
        await roll_back(url, {"asOf": 1})
    assert [str(record.stream) for record in records_of(tmp_path)] == ["source-1", "source-1", "dolake.rollback"]


async def test_a_table_that_is_durable_and_not_yet_published_can_go_back_to_a_time(tmp_path: Path) -> None:
    seen: list[tuple[str, Target]] = []

    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        seen.append((table, target))
        yield Difference("DELETE", "1", {"n": 2})

    async with rolling_back(tmp_path, differences) as (_, url):
        await send(url, event(1, table="shop.items"), event(2, table="default.items"))
        for path in ("/v1/tables/shop/items/rollback", ROLLBACK):
            answer = await roll_back(url, {"asOf": "2026-01-01T00:00:00.0019Z"}, path)
            assert answer["changes"] == {"added": 0, "removed": 1, "changed": 0}
    moment = Target(as_of_ms=1_767_225_600_001)
    assert seen == [("shop.items", moment), ("default.items", moment)]
    assert [batch[0].table for batch in changes_in(tmp_path)] == ["shop.items", "items"]


# --- how rows become images ------------------------------------------------------------------------------------------


def as_json(row: Json) -> bytes:
    return encode(image_of(row))


def test_an_image_has_the_sources_names_and_the_values_that_did_not_fit() -> None:
    row = {
        "_key": "1",
        "_rescued": '{"n":"four","_key_":[1.50,12345678901234567890123],"a.b":{"c":null}}',
        "_source": "shop",
        "_before": {"n": 1},
        "n": None,
        "_file_": "own",
        "__file__": "as it was",
        "big": 2**63 - 1,
    }
    assert json.loads(as_json(row)) == {
        "n": "four",
        "_key": [1.5, 12345678901234567890123],
        "a.b": {"c": None},
        "_file": "own",
        "__file__": "as it was",
        "big": 9223372036854775807,
    }
    assert b'"_key":[1.50,12345678901234567890123]' in as_json(row)  # to the digit


def test_a_moment_in_an_image_is_one_that_a_source_could_have_sent() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    assert as_json({"at": moment, "all": [moment]}) == (
        b'{"at":"2026-01-02T03:04:05.678901Z","all":["2026-01-02T03:04:05.678901Z"]}'
    )


def test_a_row_without_values_is_an_image_without_values_and_no_row_is_none() -> None:
    assert image_of({"_key": "1", "n": None}) == {}
    assert image_of(None) is None


# --- when it is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"snapshotId": 1, "asOf": 1},
        {"snapshotId": None},
        {"snapshotId": "snap-42"},
        {"snapshotId": -1},
        {"snapshotId": 1.5},
        {"snapshotId": 10**30},
        {"snapshotId": True},
        {"asOf": "yesterday"},
        {"asOf": ""},
        {"asOf": 10**18},
        {"asOf": {}},
        [],
        "text",
        None,
    ],
)
async def test_a_body_that_names_no_moment_is_refused(tmp_path: Path, body: Any) -> None:
    async with rolling_back(tmp_path, just(inserts(1))) as (lake, url):
        await send(url, event(1, table="items"))
        assert await refusal(url, body) == (400, "invalid_input")
        assert lake.journal.durable == 1


async def test_only_tables_of_sources_go_back_and_only_to_snapshots_that_they_have(published: HandLake) -> None:
    (first, _) = snapshots_of(published)
    own = {"name": "own", "schema": published.schema("default.items")}
    published.close()
    async with rolling_back(published.home) as (lake, url):
        await lake.catalog.run(lake.catalog.tables.create, Name(("default",), "own"), own, is_pipeline=False)
        before = lake.journal.durable
        assert await refusal(url, {"snapshotId": 1}) == (404, "no_such_snapshot")
        elsewhere = {
            "items__changes": (400, "invalid_input"),
            "own": (400, "invalid_input"),
            "nothing": (404, "unknown_table"),
        }
        for table, wanted in elsewhere.items():
            assert await refusal(url, {"snapshotId": first}, f"/v1/tables/default/{table}/rollback") == wanted
        assert lake.journal.durable == before


async def test_where_each_source_owns_its_rows_nothing_is_rolled_back(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just(inserts(1)), lake__key_scope="source") as (lake, url):
        await send(url, event(1, table="items"))
        status, _, body = await ask(url, ROLLBACK, "POST", data=json.dumps({"asOf": 1}))
        assert (status, body["error"]["type"]) == (400, "invalid_input")
        assert "source" in body["error"]["hint"]
        assert lake.journal.durable == 1


async def test_where_queries_are_off_nobody_can_tell_the_difference_and_it_is_refused(tmp_path: Path) -> None:
    async with running_lake(tmp_path) as (_, url):
        await send(url, event(1, table="items"))
        assert await refusal(url, {"asOf": 1}) == (409, "conflict")


async def test_a_table_takes_one_rollback_at_a_time_and_others_are_not_affected(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    waiting: list[str] = []

    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        yield Difference("DELETE", "1", {"n": 1})
        if table == "default.items":
            waiting.append(table)
            await go_on.wait()

    async with rolling_back(tmp_path, differences) as (_, url):
        await send(url, event(1, table="items"), event(2, table="users"))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(roll_back(url, {"asOf": 1}))
            await until(lambda: bool(waiting))
            assert await refusal(url, {"asOf": 1}) == (409, "conflict")
            assert (await roll_back(url, {"asOf": 1}, "/v1/tables/default/users/rollback"))["position"] == 3
            go_on.set()
        assert first.result()["position"] == 4
        await roll_back(url, {"asOf": 1})


async def test_a_difference_that_cannot_be_told_to_its_end_leaves_nothing_behind(tmp_path: Path) -> None:
    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        for each in inserts(3 * BATCH_CHANGES_MAX):
            yield each
        raise NoSuchMoment("that was before the first change", hint="the oldest moment is 2026-01-01T00:00:00Z")

    async with rolling_back(tmp_path, differences) as (lake, url):
        await send(url, event(1, table="items"))
        status, _, body = await ask(url, ROLLBACK, "POST", data=json.dumps({"asOf": 1}))
        assert (status, body["error"]["type"]) == (404, "no_such_moment")
        assert body["error"]["hint"] == "the oldest moment is 2026-01-01T00:00:00Z"
        assert lake.journal.durable == 1
        rollbacks_of(lake).differences = just(inserts(1))
        await roll_back(url, {"asOf": 1})  # and the table is free again


async def test_what_the_journal_has_no_room_for_is_refused_before_it_begins(tmp_path: Path) -> None:
    sizes = {"size_max_bytes": 4 << 20, "segment_size_bytes": 1 << 20, "group_size_max_bytes": 1 << 20}
    small = {f"journal__{name}": value for name, value in sizes.items()}
    async with rolling_back(tmp_path, just(inserts(5, 1 << 20)), **small) as (lake, url):
        await send(url, event(1, table="items"))
        assert await refusal(url, {"asOf": 1}) == (503, "buffer_full")
        assert lake.journal.durable == 1


async def test_while_publishing_fails_and_changes_are_refused_a_rollback_is_too(tmp_path: Path) -> None:
    async with rolling_back(tmp_path, just(inserts(5)), lake__enable_fallback=False) as (lake, url):
        await send(url, event(1, table="items"))
        lake.progress.breaker = "open"
        assert await refusal(url, {"asOf": 1}) == (503, "buffer_full")
        lake.progress.breaker = "closed"
        lake.receiver.is_closing = True
        assert await refusal(url, {"asOf": 1}) == (503, "unavailable")
        assert lake.journal.durable == 1


class FillingDisk(FailingDisk):
    """A disk that is full after a few syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs_left: int | None = None

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if self.syncs_left is not None:
            self.syncs_left -= 1
            self.is_full = self.syncs_left <= 0


async def test_one_that_stops_in_the_middle_says_how_far_it_came_and_that_asking_again_helps(tmp_path: Path) -> None:
    disk, settings = FillingDisk(), settings_of()
    journal = open_journal(tmp_path / "journal", settings.current.journal, window_ms=1000, disk=disk)
    try:
        receiver = receiver_of(journal, settings)
        rollbacks = Rollbacks(tmp_path)
        rollbacks.differences = just(inserts(3 * BATCH_CHANGES_MAX))
        disk.syncs_left = 2
        with pytest.raises(OutcomeUnknown, match=f"after {2 * BATCH_CHANGES_MAX} of {3 * BATCH_CHANGES_MAX} changes"):
            await rollbacks.roll_back(receiver, "items", Target(as_of_ms=1))
        assert journal.durable == 2 * BATCH_CHANGES_MAX
        disk.is_full, disk.syncs_left = False, None
        rollbacks.differences = just(inserts(3 * BATCH_CHANGES_MAX)[2 * BATCH_CHANGES_MAX :])
        done = await rollbacks.roll_back(receiver, "items", Target(as_of_ms=1))
        assert (done.position, done.added) == (3 * BATCH_CHANGES_MAX, BATCH_CHANGES_MAX)
    finally:
        await journal.close()


def receiver_of(journal: EmbeddedJournal, settings: SettingsStore) -> Receiver:
    clock = Clock()
    return Receiver(journal, Progress(clock), settings, clock)


@pytest.mark.slow
async def test_a_large_one_takes_little_memory(tmp_path: Path) -> None:
    found = (Difference("INSERT", str(n), after={"n": n, "pad": "x" * 1000}) for n in range(25_000))
    settings = settings_of()
    journal = open_journal(tmp_path / "journal", settings.current.journal, window_ms=1000)
    rollbacks = Rollbacks(tmp_path)
    rollbacks.differences = just(found)
    tracemalloc.start()
    try:
        done = await rollbacks.roll_back(receiver_of(journal, settings), "items", Target(as_of_ms=1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await journal.close()
    assert done.added == 25_000
    assert peak < 16 << 20, f"{peak >> 20} MiB for 25"


async def test_moments_are_read_as_times_in_utc_and_cut_to_the_millisecond(tmp_path: Path) -> None:
    seen: list[int | None] = []

    async def differences(table: str, target: Target) -> AsyncGenerator[Difference, None]:
        seen.append(target.as_of_ms)
        for each in inserts(0):
            yield each

    async with rolling_back(tmp_path, differences) as (_, url):
        await send(url, event(1, table="items"))
        for sent in (7, "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 01:00+01:00", "1969-12-31T23:59:59.9999Z"):
            await roll_back(url, {"asOf": sent})
    new_year = 1_767_225_600_000
    assert seen == [7, new_year, new_year, new_year, -1]
