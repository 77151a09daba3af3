"""Where a publish ends: bounded, and never inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolake.changes import Batch, StreamId
from dolake.journal.reader import JournalReader
from dolake.pipeline.cut import Cut, Limits, next_cut
from dolake.settings import JournalSettings
from tests.support import speaker
from tests.support.clock import Clock
from tests.support.journals import keep, opened, state_of
from tests.support.property import examples

LIMITS = Limits(events_max=1_000, bytes_max=1 << 20, transaction_wait_max_ms=10_000, transaction_bytes_max=1 << 20)
A, B, C, D = map(StreamId, "abcd")
TRUNCATE = "truncate"
"""Instead of a transaction: the table itself is changed."""


def batch_of(
    stream: StreamId, number: int, first: int, transactions: Sequence[str | None], *, end: bool = False
) -> Batch:
    """A change for each of these; `end` says that the last of them ends its transaction."""
    events: list[dict[str, Any]] = []
    for index, transaction in enumerate(transactions):
        metadata: dict[str, Any] = {} if transaction is None else {"transactionId": transaction}
        if transaction == TRUNCATE:
            metadata = {"ddl": {"action": "truncate"}}
        if end and index == len(transactions) - 1:
            metadata["transactionEnd"] = True
        events.append(speaker.event(first + index, metadata=metadata) if metadata else speaker.event(first + index))
    message = speaker.batch(number, events, source=stream.source)
    payload = json.dumps(message, separators=(",", ":")).encode()
    return Batch(stream, 0, number, first, first + len(events) - 1, len(events), ("users",), payload)


async def cut_of(
    directory: Path, batches: Sequence[Batch], *, limits: Limits = LIMITS, now_ms: int = 0, start: int = 0, **more: Any
) -> Cut:
    async with opened(directory, clock=Clock(), settings=JournalSettings()) as journal:
        await keep(journal, *batches)
    with JournalReader(directory) as reader:
        return next_cut(reader, start, reader.durable(), limits, now_ms=now_ms, **more)


async def test_a_cut_ends_with_the_batch_that_reaches_its_limit(tmp_path: Path) -> None:
    batches = [batch_of(A, number, number * 10, [None] * 10) for number in range(1, 6)]
    few = Limits(25, 1 << 20, 0, 1 << 20)
    cut = await cut_of(tmp_path, batches, limits=few)
    assert (cut.start, cut.end, set(cut.tables)) == (0, 30, {"users"})
    with JournalReader(tmp_path) as reader:
        rest = next_cut(reader, cut.end, 50, few, place=cut.next_place)
    assert (rest.start, rest.end) == (30, 50)


async def test_a_cut_passes_states_without_changes_and_one_of_them_alone_has_nothing_to_write(tmp_path: Path) -> None:
    batches = [state_of(1, {}, stream=A), batch_of(A, 2, 1, [None] * 2), state_of(3, {}, stream=A)]
    cut = await cut_of(tmp_path, batches)
    assert (cut.start, cut.end, len(cut.slices)) == (0, 3, 1)
    rest = await cut_of(tmp_path, [], start=3, place=cut.next_place)
    assert (rest.start, rest.end, rest.slices) == (3, 4, ())
    assert await cut_of(tmp_path, [], start=0) == cut


async def test_a_state_does_not_end_the_transaction_that_its_stream_is_in(tmp_path: Path) -> None:
    batches = [batch_of(A, 1, 1, [None, "t1"]), state_of(2, {}, stream=A)]
    cut = await cut_of(tmp_path, batches)
    assert (cut.start, cut.end) == (0, 1)
    more = await cut_of(tmp_path, [batch_of(A, 3, 3, ["t1"], end=True)], start=1)
    assert (more.start, more.end) == (1, 4)


async def test_an_open_transaction_waits_and_so_does_what_follows_it(tmp_path: Path) -> None:
    batches = [batch_of(A, 1, 1, [None, None, "t1", "t1"]), batch_of(B, 1, 1, [None] * 3)]
    cut = await cut_of(tmp_path, batches)
    assert (cut.start, cut.end) == (0, 2)


async def test_an_open_transaction_at_the_beginning_leaves_nothing_to_publish(tmp_path: Path) -> None:
    cut = await cut_of(tmp_path, [batch_of(A, 1, 1, ["t1", "t1"])])
    assert (cut.slices, cut.end) == ((), 0)
    assert cut.waiting_since_ms is not None


async def test_a_transaction_is_complete_at_its_end_at_the_next_one_and_at_a_change_without_one(tmp_path: Path) -> None:
    ended = await cut_of(tmp_path / "ended", [batch_of(A, 1, 1, ["t1"]), batch_of(A, 2, 2, ["t1"], end=True)])
    assert ended.end == 2
    followed = await cut_of(tmp_path / "followed", [batch_of(A, 1, 1, ["t1", "t1", "t2"])])
    assert followed.end == 2
    plain = await cut_of(tmp_path / "plain", [batch_of(A, 1, 1, ["t1"]), batch_of(A, 2, 2, [None])])
    assert plain.end == 2
    beside = await cut_of(tmp_path / "beside", [batch_of(A, 1, 1, ["t1", None])])
    assert beside.end == 2


async def test_a_transaction_of_one_stream_is_not_ended_by_another_stream(tmp_path: Path) -> None:
    cut = await cut_of(tmp_path, [batch_of(A, 1, 1, [None, "t1"]), batch_of(B, 1, 1, ["t1"], end=True)])
    assert cut.end == 1


async def test_a_transaction_is_found_also_where_its_name_is_written_with_an_escape(tmp_path: Path) -> None:
    plain = batch_of(A, 1, 1, [None, "t1"])
    escaped = replace(plain, payload=plain.payload.replace(b"transactionId", rb"transaction\u0049d"))
    assert escaped.payload != plain.payload
    cut = await cut_of(tmp_path, [escaped])
    assert cut.end == 1


async def test_a_cut_goes_back_over_every_transaction_that_crosses_its_end(tmp_path: Path) -> None:
    """It ends before an open transaction, so before one that crosses this place, so before one that crosses that."""
    batches = [
        batch_of(A, 1, 1, ["t1"]),
        batch_of(B, 1, 1, ["t1"]),
        batch_of(A, 2, 2, ["t1"], end=True),
        batch_of(C, 1, 1, ["t1"]),
        batch_of(B, 2, 2, ["t1"], end=True),
    ]
    cut = await cut_of(tmp_path, [batch_of(D, 1, 1, [None]), *batches])
    assert cut.end == 1


async def test_a_cut_up_to_the_last_change_of_a_transaction_ends_before_its_first(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=JournalSettings()) as journal:
        await keep(journal, batch_of(A, 1, 1, [None, "t1", "t1"], end=True))
    with JournalReader(tmp_path) as reader:
        assert next_cut(reader, 0, 2, LIMITS).end == 1


async def test_the_oldest_open_transaction_says_how_long_a_publish_waits(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, settings=JournalSettings()) as journal:
        await keep(journal, batch_of(A, 1, 1, ["t1"]))
        began_ms = clock.now_ms
        clock.move(LIMITS.transaction_wait_max_ms)
        await keep(journal, batch_of(B, 1, 1, ["t1"]))
    with JournalReader(tmp_path) as reader:
        waiting = next_cut(reader, 0, reader.durable(), LIMITS, now_ms=clock.now_ms - 1)
        overdue = next_cut(reader, 0, reader.durable(), LIMITS, now_ms=clock.now_ms)
    assert (waiting.end, waiting.waiting_since_ms) == (0, began_ms)
    assert overdue.end == 2


async def test_a_transaction_that_waited_for_long_is_whole_where_its_end_lies_behind_a_full_cut(tmp_path: Path) -> None:
    batches = [batch_of(A, 1, 1, [None, "t1"]), batch_of(A, 2, 3, ["t1"], end=True)]
    few = Limits(2, 1 << 20, 10_000, 1 << 20)
    cut = await cut_of(tmp_path, batches, limits=few, now_ms=10**15)
    assert cut.end == 1


async def test_a_transaction_that_waited_for_long_is_published_as_it_is(tmp_path: Path) -> None:
    cut = await cut_of(tmp_path, [batch_of(A, 1, 1, ["t1", "t1"])], now_ms=10**15)
    assert cut.end == 2


async def test_a_transaction_that_grew_too_large_is_published_as_it_is(tmp_path: Path) -> None:
    small = Limits(1, 1, 10**9, 1_000)
    batches = [batch_of(A, number, number * 10, ["t1"] * 10) for number in range(1, 4)]
    cut = await cut_of(tmp_path, batches, limits=small)
    assert 0 < cut.end < 30


async def test_a_change_of_the_table_parts_a_transaction_of_another_stream_in_two_and_no_more(tmp_path: Path) -> None:
    """Also where the publishes after it are so small that they end before the transaction goes on."""
    batches = [
        batch_of(A, 1, 1, ["t1", "t1"]),
        batch_of(B, 1, 1, [TRUNCATE]),
        batch_of(B, 2, 2, [None]),
        batch_of(A, 2, 3, ["t1", "t1"]),
        batch_of(B, 3, 3, [None]),
        batch_of(A, 3, 5, ["t1"], end=True),
    ]
    cut = await cut_of(tmp_path, batches, limits=Limits(1, 1 << 20, 10**15, 1 << 30))
    ends = [cut.end]
    with JournalReader(tmp_path) as reader:
        while cut.end < 8:
            cut = next_cut(reader, cut.end, 8, Limits(1, 1 << 20, 10**15, 1 << 30), place=cut.next_place)
            ends.append(cut.end)
    assert ends == [2, 3, 4, 8]


async def test_changes_behind_a_change_of_the_table_in_the_same_batch_are_published_too(tmp_path: Path) -> None:
    cut = await cut_of(tmp_path, [batch_of(A, 1, 1, [None, TRUNCATE, None, None])])
    ends = [cut.end]
    with JournalReader(tmp_path) as reader:
        for _ in range(2):
            cut = next_cut(reader, cut.end, 4, LIMITS, place=cut.next_place)
            ends.append(cut.end)
    assert ends == [1, 2, 4]


async def test_a_change_of_the_table_inside_a_transaction_of_its_own_stream_parts_it_there(tmp_path: Path) -> None:
    batch = batch_of(A, 1, 1, ["t1", TRUNCATE, "t1"], end=True)
    ddl = b'"metadata":{"ddl"'
    cut = await cut_of(
        tmp_path, [replace(batch, payload=batch.payload.replace(ddl, b'"metadata":{"transactionId":"t1","ddl"'))]
    )
    ends = [cut.end]
    with JournalReader(tmp_path) as reader:
        for _ in range(2):
            cut = next_cut(reader, cut.end, 3, LIMITS, place=cut.next_place)
            ends.append(cut.end)
    assert ends == [1, 2, 3]


async def test_one_task_reads_a_cut_in_which_a_change_builds_on_an_earlier_one(tmp_path: Path) -> None:
    """Columns that a change leaves out are those of the change before it, which another task may have read."""
    batches = [batch_of(A, number, number * 1_000, [None] * 1_000) for number in range(1, 41)]
    *_, last = batches
    batches[-1] = replace(
        last, payload=last.payload.replace(b'"rowId"', b'"metadata":{"unchanged":["note"]},"rowId"', 1)
    )
    cut = await cut_of(tmp_path, batches, limits=Limits(100_000, 1 << 30, 0, 1 << 30), parallel=8)
    assert [(part.start, part.end) for part in cut.slices] == [(0, 40_000)]


async def test_slices_cover_the_cut_without_gap_or_overlap(tmp_path: Path) -> None:
    batches = [batch_of(A, number, number * 1_000, [None] * 1_000) for number in range(1, 46)]
    wide = Limits(100_000, 1 << 30, 0, 1 << 30)
    cut = await cut_of(tmp_path, batches, limits=wide, parallel=8)
    assert [part.start for part in cut.slices] == [0, *(part.end for part in cut.slices[:-1])]
    assert (cut.slices[-1].end, len(cut.slices)) == (45_000, 2)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(
        st.tuples(st.sampled_from([A, B]), st.lists(st.sampled_from([None, "t1", "t2"]), min_size=1, max_size=4)),
        min_size=1,
        max_size=8,
    ),
    events_max=st.integers(1, 6),
)
async def test_no_transaction_is_ever_split(
    tmp_path_factory: Any, plan: list[tuple[StreamId, list[str | None]]], events_max: int
) -> None:
    sequences, numbers = {A: 1, B: 1}, {A: 1, B: 1}
    batches, owners = [], []
    for stream, transactions in plan:
        batches.append(batch_of(stream, numbers[stream], sequences[stream], transactions))
        owners += [(stream, transaction) for transaction in transactions]
        sequences[stream] += len(transactions)
        numbers[stream] += 1
    directory = tmp_path_factory.mktemp("journal")
    limits = Limits(events_max, 1 << 20, 10**15, 1 << 30)
    cut = await cut_of(directory, batches, limits=limits)
    for stream in (A, B):
        own = [(at, transaction) for at, (owner, transaction) in enumerate(owners) if owner == stream]
        for (at, before), (after, transaction) in pairwise(own):
            if before is not None and before == transaction:
                assert not at < cut.end <= after, "a transaction is half inside"
