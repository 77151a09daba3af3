"""Seen before? The rules alone, and then the whole journal against a model of what its senders were told."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import Batch, StreamId
from dolake.errors import InvalidSequence, Unavailable
from dolake.journal import dedup
from dolake.journal.base import Appended
from dolake.journal.dedup import RecentChanges
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.journal.record import Record, StreamPoint
from dolake.positions import START
from dolake.settings import JournalSettings
from dolake.wire.binary import decode_raw_batch
from tests.support.aio import run
from tests.support.clock import Clock
from tests.support.disk import FailingDisk
from tests.support.journals import (
    SOURCE,
    WINDOW_MS,
    batch_of,
    batch_with,
    copy_files,
    fill,
    keep,
    opened,
    seen_in,
    sequences_in,
)
from tests.support.property import examples

# --- the rules alone -------------------------------------------------------------------------------------------------


def record_of(batch: Batch) -> Record:
    return Record(
        position=0,
        change_count=batch.change_count,
        commit_timestamp_ms=1,
        stream=batch.stream,
        epoch=batch.epoch,
        number=batch.number,
        sequence_first=batch.sequence_first,
        sequence_last=batch.sequence_last,
        tables=batch.tables,
        payload=batch.payload,
    )


def remember(recent: RecentChanges, batch: Batch, *, now_ms: int, segment: int = 0, offset: int = 0) -> None:
    recent.add(
        batch.stream,
        batch.epoch,
        batch.sequence_last,
        before=batch.sequence_first - 1,
        segment=segment,
        offset=offset,
        end=batch.sequence_last,
        now_ms=now_ms,
    )


def test_a_batch_is_new_when_all_of_it_lies_beyond_the_point() -> None:
    point = StreamPoint(epoch=0, sequence=5, number=1)
    assert dedup.is_new(point, batch_of(6, 7))
    assert dedup.is_new(point, batch_of(100, 100))
    assert not dedup.is_new(point, batch_of(5, 7))
    assert not dedup.is_new(point, batch_of(1, 5))
    assert dedup.is_new(StreamPoint(), batch_of(1, 1))


def test_a_newer_epoch_is_new_from_its_first_sequence_on() -> None:
    point = StreamPoint(epoch=3, sequence=500, number=9)
    assert dedup.is_new(point, batch_of(1, 2, epoch=4))
    assert dedup.reset_for_epoch(point, batch_of(1, 2, epoch=4)) == StreamPoint(epoch=4)
    assert dedup.reset_for_epoch(point, batch_of(1, 2, epoch=3)) == point


def test_an_older_epoch_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidSequence, match=r"epoch 2 .* is in epoch 3") as refusal:
        dedup.is_new(StreamPoint(epoch=3), batch_of(900, 901, epoch=2))
    assert "sourceEpoch" in refusal.value.hint


def test_equal_changes_are_the_same_whatever_their_borders_and_other_streams_between_them() -> None:
    kept = [batch_of(1, 3), batch_of(1, 9, stream=StreamId("other"), value="theirs"), batch_of(4, 6)]
    records = [record_of(batch) for batch in kept]
    for first, last in ((1, 6), (2, 5), (3, 4), (6, 8)):
        dedup.check_same(batch_of(first, last), 6, 0, records)


def test_what_lies_before_the_memory_is_not_compared() -> None:
    records = [record_of(batch_of(4, 6))]
    dedup.check_same(batch_of(1, 6), 6, 3, records)
    dedup.check_same(batch_of(1, 3, value="long ago"), 6, 3, records)
    with pytest.raises(InvalidSequence, match="sequence 4 "):
        dedup.check_same(batch_of(3, 4, value="changed"), 6, 3, records)


def test_the_refusal_names_the_first_sequence_that_differs_and_no_row_data() -> None:
    records = [record_of(batch_of(1, 5, value="secret"))]
    with pytest.raises(InvalidSequence, match="sequence 3 of source-1") as refusal:
        dedup.check_same(batch_of(3, 7, value="hidden"), 5, 0, records)
    assert "secret" not in str(refusal.value)
    assert "hidden" not in str(refusal.value)


def test_another_epoch_is_no_witness() -> None:
    records = [record_of(batch_of(1, 2, epoch=1))]
    with pytest.raises(InvalidSequence, match="never sent"):
        dedup.check_same(batch_of(1, 2, epoch=2), 2, 0, records)


def test_time_and_metadata_may_be_stamped_anew() -> None:
    sent = batch_of(1, 2)
    message = json.loads(sent.payload)
    for event in message["events"]:
        event["timestamp"] += 1000
        event["metadata"] = {"attempt": 2}
    dedup.check_same(replace(sent, payload=json.dumps(message).encode()), 2, 0, [record_of(sent)])


@settings(max_examples=examples(60))
@given(
    sequences=st.lists(st.integers(1, 60), min_size=1, max_size=20, unique=True).map(sorted), known=st.integers(0, 60)
)
def test_what_is_left_of_a_batch_is_everything_beyond_the_point(sequences: list[int], known: int) -> None:
    batch = batch_with(sequences, number=4, table="orders")
    left = dedup.without_known(batch, known)
    expected = [sequence for sequence in sequences if sequence > known]
    if not expected:
        assert left is None
        return
    assert left is not None
    message = decode_raw_batch(left.payload)
    assert [event.sequence for event in message.events] == expected
    assert (left.sequence_first, left.sequence_last, left.change_count) == (expected[0], expected[-1], len(expected))
    assert (left.stream, left.epoch, left.number, left.tables) == (batch.stream, 0, 4, ("orders",))
    whole = {event.sequence: event for event in decode_raw_batch(batch.payload).events}
    assert all(bytes(event.after) == bytes(whole[event.sequence].after) for event in message.events)  # type: ignore[arg-type]


def test_tables_that_no_change_is_left_of_are_not_named() -> None:
    message = json.loads(batch_of(1, 3).payload)
    message["events"][0]["table"] = "gone"
    batch = replace(batch_of(1, 3), tables=("gone", "users"), payload=json.dumps(message).encode())
    left = dedup.without_known(batch, 1)
    assert left is not None
    assert left.tables == ("users",)


def test_places_are_remembered_for_the_window_and_not_longer() -> None:
    recent = RecentChanges(window_ms=1000)
    for at in range(1, 101):
        remember(recent, batch_of(at, at), now_ms=at * 100)
    firsts = [span.before + 1 for span in recent.since(SOURCE, 0, 10_000)]
    lasts = [span.sequence_last for span in recent.since(SOURCE, 0, 10_000)]
    assert min(firsts) <= 90, "a change of exactly one window ago is still compared"
    assert min(lasts) >= 89
    assert lasts[-1] == 100
    assert recent.since(SOURCE, 0, 11_001) == []


def test_many_records_of_a_moment_share_a_place() -> None:
    recent = RecentChanges(window_ms=60_000)
    for at in range(1, 10_001):
        remember(recent, batch_of(at, at), now_ms=at // 100)
    spans = recent.since(SOURCE, 0, 100)
    assert len(spans) < 100
    assert spans[0].before == 0
    assert [span.sequence_last + 1 for span in spans[:-1]] == [span.before + 1 for span in spans[1:]]


def test_a_place_never_reaches_from_one_segment_into_the_next() -> None:
    """Else what is still there would be forgotten together with the segment before it."""
    recent = RecentChanges(window_ms=60_000)
    for at in range(1, 7):
        remember(recent, batch_of(at, at), now_ms=1, segment=at // 4 * 4)
    assert [(span.segment, span.before + 1, span.sequence_last) for span in recent.since(SOURCE, 0, 1)] == [
        (0, 1, 3),
        (4, 4, 6),
    ]


def test_streams_and_epochs_are_remembered_apart_and_forgotten_when_silent() -> None:
    recent = RecentChanges(window_ms=1000)
    other = StreamId("source-1", "shard")
    remember(recent, batch_of(1, 2), now_ms=0)
    remember(recent, batch_of(1, 3, epoch=1), now_ms=500)
    remember(recent, batch_of(1, 4, stream=other), now_ms=2000)
    assert [span.sequence_last for span in recent.since(SOURCE, 0, 500)] == [2]
    assert [span.sequence_last for span in recent.since(SOURCE, 1, 500)] == [3]
    recent.drop_expired(2000)
    assert recent.since(SOURCE, 0, 0) == recent.since(SOURCE, 1, 0) == []
    assert [span.sequence_last for span in recent.since(other, 0, 2000)] == [4]


# --- with a journal --------------------------------------------------------------------------------------------------


async def test_with_deduplication_off_everything_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.is_deduplicating = False
        assert [answer.change_count for answer in await keep(journal, batch_of(1, 2), batch_of(1, 2))] == [2, 2]
        assert sequences_in(journal.read(START)) == [1, 2, 1, 2]


async def test_content_in_a_segment_that_is_kept_is_compared_although_the_one_before_it_is_gone(tmp_path: Path) -> None:
    tight = JournalSettings(size_max_bytes=4 * 65536, segment_size_bytes=65536, group_size_max_bytes=65536)
    async with opened(tmp_path, settings=tight) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 2)
        journal.release("pipeline", last)
        oldest = journal.oldest
        assert oldest > 0, "more than half full: what is released goes before the window is over"
        assert (await keep(journal, batch_of(1, 1, value="its content is gone")))[0].duplicate_count == 1
        for at in range(oldest + 1, last + 1):
            with pytest.raises(InvalidSequence):
                await journal.append(batch_of(at, at, value="changed"))


async def test_a_retry_of_thousands_of_batches_is_compared_with_all_of_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        tickets = [await journal.append(batch_of(at, at)) for at in range(1, 1501)]
        await tickets[-1].wait()
        assert (await keep(journal, batch_of(1, 1500)))[0].duplicate_count == 1500
        message = json.loads(batch_of(1, 1500).payload)
        message["events"][1234]["after"]["value"] = "changed"
        with pytest.raises(InvalidSequence, match="sequence 1235 "):
            await journal.append(replace(batch_of(1, 1500), payload=json.dumps(message).encode()))


# --- any interleaving, against a model -------------------------------------------------------------------------------

Step = tuple[str, int, int, int]
STREAMS = [StreamId("a"), StreamId("a", "1"), StreamId("b")]
TIGHT = JournalSettings(size_max_bytes=5 * 65536, segment_size_bytes=65536, group_size_max_bytes=65536)


@dataclass
class Sender:
    """One source: it sends its changes in order, goes back to the first refused one, and remembers what it was told."""

    stream: StreamId
    epoch: int = 0
    changes: list[int] = field(default_factory=list)
    """The sequences of this epoch, in order."""
    sent_count: int = 0
    number: int = 0
    acknowledged: dict[int, set[int]] = field(default_factory=dict)
    unknown: dict[int, set[int]] = field(default_factory=dict)
    """Per epoch: what was durable for sure, and what was on its way when the journal was killed."""

    def told(self, epoch: int = -1) -> set[int]:
        return self.acknowledged.setdefault(self.epoch if epoch < 0 else epoch, set())

    def batch(self, start: int, count: int, value: str = "") -> Batch:
        sequences = self.changes[start : start + count]
        self.number += 1
        return batch_with(
            sequences, stream=self.stream, epoch=self.epoch, number=self.number, value=value, pad=900 * len(sequences)
        )


class World:
    """A journal, its senders, and everything that can happen to them."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.chance = home, random.Random(seed)
        self.disk, self.clock = FailingDisk(), Clock()
        self.senders = [Sender(stream) for stream in STREAMS]
        self.removed: list[Record] = []
        self.flight: set[asyncio.Future[Appended]] = set()
        self.life = 0
        self.journal = self.open()

    def open(self) -> EmbeddedJournal:
        directory = self.home / str(self.life)
        try:
            return open_journal(directory, TIGHT, window_ms=WINDOW_MS, clock_ms=self.clock, disk=self.disk)
        except Unavailable:
            assert self.disk.is_full
            self.disk.is_full = False
            return self.open()

    async def send(self, sender: Sender, batch: Batch) -> None:
        """Like the receiver: what is refused is sent again from there on; the answer comes in a callback."""
        sequences = [event.sequence for event in decode_raw_batch(batch.payload).events]
        start = sender.changes.index(sequences[0])

        def answer(done: asyncio.Future[Appended]) -> None:
            self.flight.discard(done)
            error = done.exception()
            if error is None:
                sender.told(batch.epoch).update(sequences)
                appended = done.result()
                assert appended.change_count + appended.duplicate_count == len(sequences)
            else:
                assert isinstance(error, Unavailable), error
                go_back()

        def go_back() -> None:
            if sender.epoch == batch.epoch:
                sender.sent_count = min(sender.sent_count, start)

        sender.sent_count = max(sender.sent_count, start + len(sequences))
        try:
            ticket = await self.journal.append(batch)
        except Unavailable:
            go_back()
        else:
            self.flight.add(ticket.done)
            ticket.done.add_done_callback(answer)

    async def new(self, sender: Sender, gap: int, count: int) -> None:
        """The next changes, some of them after a hole in the sequence."""
        while len(sender.changes) < sender.sent_count + count:
            sender.changes.append((sender.changes[-1] if sender.changes else 0) + 1 + gap % 3)
        await self.send(sender, sender.batch(sender.sent_count, count))

    async def retry(self, sender: Sender, back: int, count: int) -> None:
        """From an earlier place, with other borders, and perhaps beyond what was sent so far."""
        start = max(0, sender.sent_count - back)
        if start < len(sender.changes):
            await self.send(sender, sender.batch(start, count))

    async def falsify(self, sender: Sender, back: int, count: int) -> None:
        """Other content under sequences that are durable."""
        known = [at for at, sequence in enumerate(sender.changes) if sequence in sender.told()]
        if known:
            start = max(0, known[-1] + 1 - back - 1)
            batch = sender.batch(start, min(count, known[-1] + 1 - start), value="false")
            try:
                answer = await (await self.journal.append(batch)).wait()
                assert answer.change_count == 0, "other content was written under a durable sequence"
            except (InvalidSequence, Unavailable):
                pass

    async def restore(self, sender: Sender, *_: int) -> None:
        """The source's database was restored: a new epoch, numbered from 1 again."""
        await self.settle()
        if sender.told():
            old = sender.batch(0, 1)
            sender.epoch, sender.changes, sender.sent_count = sender.epoch + 1, [], 0
            await self.new(sender, 0, 2)
            await self.settle()
            if sender.told():
                with pytest.raises(InvalidSequence):
                    await self.journal.append(old)

    async def take_over(self, sender: Sender, *_: int) -> None:
        """Another connection asks where the stream is and goes on from there, with batch numbers of its own."""
        point = self.journal.point(sender.stream)
        if point.epoch == sender.epoch:
            durable = [at for at, sequence in enumerate(sender.changes) if sequence <= point.sequence]
            sender.number, sender.sent_count = self.chance.randint(0, 5), min(sender.sent_count, len(durable))
            await self.retry(sender, 0, 3)

    async def toggle_room(self, *_: object) -> None:
        self.disk.is_full = not self.disk.is_full

    async def move_clock(self, _: Sender, back: int, count: int) -> None:
        self.clock.move((count - 3) * (WINDOW_MS // 2) + back)

    async def breathe(self, _: Sender, back: int, __: int) -> None:
        for _moment in range(back):
            await asyncio.sleep(0)

    async def settle(self, *_: object) -> None:
        while self.flight:
            await asyncio.wait(set(self.flight))
            await asyncio.sleep(0)

    async def close_and_open(self, *_: object) -> None:
        await self.journal.close()
        await self.settle()
        self.journal = self.open()

    async def kill_and_open(self, *_: object) -> None:
        """Only what was told before the kill counts; what was on its way may be there or not."""
        image = copy_files(self.home / str(self.life), self.home / str(self.life + 1))
        before = {
            id(sender): {epoch: set(told) for epoch, told in sender.acknowledged.items()} for sender in self.senders
        }
        await self.journal.close()
        await self.settle()
        self.life += 1
        assert image.exists()
        self.journal = self.open()
        for sender in self.senders:
            for epoch, told in sender.acknowledged.items():
                known = before[id(sender)].get(epoch, set())
                sender.unknown.setdefault(epoch, set()).update(told - known)
                sender.acknowledged[epoch] = known
            durable = [s for s in sender.changes if s in sender.told()]
            sender.sent_count = len(durable)

    async def trim(self, _: Sender, back: int, count: int) -> None:
        """Every consumer passes most of what is there."""
        await self.settle()
        try:
            places = [self.journal.register(name, START) for name in ("pipeline", "query")]
        except Unavailable:
            assert self.disk.is_full
            return
        kept = list(self.journal.read(self.journal.oldest))
        target = max(places[1], self.journal.durable - back)
        self.journal.release("pipeline", self.journal.durable)
        self.journal.release("query", target)
        assert self.journal.oldest <= target
        self.removed += [record for record in kept if record.end <= self.journal.oldest]

    async def step(self, step: Step) -> None:
        name, who, back, count = step
        await getattr(self, name)(self.senders[who], back, count)

    async def check(self) -> None:
        """What is in the journal is what was told, once, in order; nothing else."""
        kept = [*self.removed, *self.journal.read(self.journal.oldest)]
        assert [record.position for record in kept[1:]] == [record.end for record in kept[:-1]]
        assert not kept or kept[0].position == START
        times = [record.commit_timestamp_ms for record in kept]
        assert times == sorted(times)
        seen = seen_in(kept)
        for sender in self.senders:
            of_stream = [(epoch, sequence) for name, epoch, sequence, _ in seen if name == str(sender.stream)]
            assert of_stream == sorted(set(of_stream)), "once, in order, epoch after epoch"
            for epoch in range(sender.epoch + 1):
                there = {sequence for at, sequence in of_stream if at == epoch}
                told, unknown = sender.told(epoch), sender.unknown.get(epoch, set())
                assert told <= there, "an acknowledged change is not there"
                assert there <= told | unknown, "a refused change is there"
        assert not [value for *_, value in seen if value == "false"]


steps: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(
        [
            *["new"] * 8,
            *["retry"] * 4,
            *["take_over", "falsify", "restore", "toggle_room", "toggle_room", "move_clock"],
            *["breathe", "breathe", "settle", "close_and_open", "kill_and_open", "trim", "trim"],
        ]
    ),
    st.integers(0, len(STREAMS) - 1),
    st.integers(0, 8),
    st.integers(1, 6),
)


async def live(home: Path, script: Sequence[Step], seed: int) -> None:
    world = World(home, seed)
    try:
        for step in script:
            await world.step(step)
        world.disk.is_full = False
        await world.settle()
        await world.check()
        await world.close_and_open()
        await world.check()
    finally:
        world.disk.is_full = False
        await world.journal.close()


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(script=st.lists(steps, min_size=5, max_size=60), seed=st.integers(0, 2**16))
def test_whatever_happens_every_acknowledged_change_is_there_once_and_in_order(script: list[Step], seed: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        run(live(Path(home), script, seed))
