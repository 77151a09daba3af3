"""After any kind of stop: everything that was acknowledged is found, what is torn is cut off, damage is said aloud."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import Batch, StreamId
from dolake.errors import Damaged, Unavailable
from dolake.journal import segment
from dolake.journal.base import Ticket
from dolake.journal.disk import Disk
from dolake.journal.embedded import EmbeddedJournal, open_journal
from dolake.journal.mark import FILE_NAME
from dolake.journal.record import StreamPoint
from dolake.journal.segment import HEADER_SIZE
from dolake.positions import START
from tests.support.aio import run, until
from tests.support.disk import FailingDisk
from tests.support.journals import (
    SMALL,
    WINDOW_MS,
    GatedDisk,
    batch_of,
    copy_files,
    fill,
    keep,
    mark_of,
    opened,
    read_again,
    segments_of,
    sequences_in,
    write_journal,
)
from tests.support.property import examples

Spoil = Callable[[bytearray, int, random.Random], None]
"""Changes the bytes of a file from this offset on."""


def cut(data: bytearray, at: int, _: random.Random) -> None:
    del data[at:]


def fill_with_zeros(data: bytearray, at: int, _: random.Random) -> None:
    data[at:] = bytes(len(data) - at)


def fill_with_garbage(data: bytearray, at: int, chance: random.Random) -> None:
    data[at:] = chance.randbytes(len(data) - at)


def overwrite_some(data: bytearray, at: int, chance: random.Random) -> None:
    size = min(chance.randint(1, 3000), len(data) - at)
    data[at : at + size] = chance.randbytes(size)


def run_in_a_folder(story: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """One example of a property test: it needs a new loop, so its test is not a coroutine."""
    with tempfile.TemporaryDirectory() as name:
        run(story(Path(name)))


async def write_image(home: Path, durable: Sequence[int], torn: Sequence[int]) -> Path:
    """A journal as a crash in the middle of a sync leaves it.

    Batches of these sizes are durable; one group more is written but not synced. The mark is from before that group.
    """
    disk = GatedDisk()
    numbers = iter(range(1, len(durable) + len(torn) + 1))

    async def append(journal: EmbeddedJournal, size: int) -> Ticket:
        at = next(numbers)
        return await journal.append(batch_of(at, at, number=at, pad=size))

    async with opened(home / "live", disk=disk) as journal:
        for size in durable[:-1]:
            await (await append(journal, size)).wait()
        disk.hold()
        last = await append(journal, durable[-1])
        await until(lambda: disk.arrived_count == 1)
        for size in torn:  # these queue up behind the held sync, and so become one group
            await append(journal, size)
        disk.let_one_go()
        await last.wait()
        if torn:
            await until(lambda: disk.arrived_count == 2)
        image = copy_files(home / "live", home / "image")
        disk.let_go()
    return image


async def check_opens(image: Path, durable_count: int, sent_count: int) -> None:
    """Nothing acknowledged is lost, the rest is there from the front or not at all, and the journal goes on."""
    async with opened(image) as journal:
        kept = sequences_in(journal.read(START))
        assert kept == list(range(1, len(kept) + 1))
        assert durable_count <= len(kept) <= sent_count
        assert journal.durable == len(kept)
        answers = await keep(journal, *[batch_of(at, at, number=at) for at in range(len(kept) + 1, sent_count + 3)])
        assert all(answer.change_count == 1 for answer in answers)
    assert await read_again(image) == list(range(1, sent_count + 3))


sizes = st.lists(st.integers(0, 4000), min_size=1, max_size=5)


@settings(max_examples=examples(60))
@given(
    durable=sizes,
    torn=sizes,
    where=st.floats(0, 1),
    spoil=st.sampled_from([cut, fill_with_zeros, fill_with_garbage, overwrite_some]),
    seed=st.integers(0, 2**32),
)
def test_a_torn_write_at_any_byte_costs_only_what_was_never_acknowledged(
    durable: list[int], torn: list[int], where: float, spoil: Spoil, seed: int
) -> None:
    async def story(home: Path) -> None:
        image = await write_image(home, durable, torn)
        mark = mark_of(image)
        assert mark.position == len(durable)
        path = segments_of(image)[-1]
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0"))
        assert end > mark.offset, "the group was written"
        spoil(data, mark.offset + int(where * (end - mark.offset)), random.Random(seed))
        path.write_bytes(bytes(data))
        await check_opens(image, len(durable), len(durable) + len(torn))

    run_in_a_folder(story)


@settings(max_examples=examples(60))
@given(durable=sizes, torn=sizes, seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_blocks_of_the_last_group_that_arrive_in_any_order_cost_only_that_group(
    durable: list[int], torn: list[int], seed: int, share: float
) -> None:
    async def story(home: Path) -> None:
        image = await write_image(home, durable, torn)
        mark, chance = mark_of(image), random.Random(seed)
        path = segments_of(image)[-1]
        data = bytearray(path.read_bytes())
        for start in range(mark.offset // 512 * 512, len(data), 512):
            if chance.random() < share:
                # A block that did not arrive is as it was before: the durable bytes in it stay.
                first = max(start, mark.offset)
                data[first : start + 512] = bytes(min(start + 512, len(data)) - first)
        path.write_bytes(bytes(data))
        await check_opens(image, len(durable), len(durable) + len(torn))

    run_in_a_folder(story)


@settings(max_examples=examples(60))
@given(
    durable=sizes,
    torn=st.one_of(st.just([]), sizes),
    where=st.floats(0, 1, exclude_max=True),
    spoil=st.sampled_from([cut, fill_with_zeros, fill_with_garbage, overwrite_some]),
    seed=st.integers(0, 2**32),
)
def test_damage_before_the_mark_stops_recovery_and_changes_nothing(
    durable: list[int], torn: list[int], where: float, spoil: Spoil, seed: int
) -> None:
    async def story(home: Path) -> None:
        image = await write_image(home, durable, torn)
        path = segments_of(image)[-1]
        data, end = bytearray(path.read_bytes()), mark_of(image).offset
        at = int(where * end)
        spoil(data, at, random.Random(seed))
        path.write_bytes(bytes(data))
        problem = ""
        try:
            async with opened(image) as journal:
                kept = sequences_in(journal.read(START))
        except Damaged as damage:
            problem = damage.message
        if problem:
            assert re.search(rf"{path.name} (at byte \d+|has journal format)", problem)
            assert path.read_bytes() == bytes(data)
        else:
            assert end - at < 8, "only the zeros that pad the last record may be wrong in silence"
            assert spoil is not cut
            assert kept[: len(durable)] == list(range(1, len(durable) + 1))

    run_in_a_folder(story)


@settings(max_examples=examples(60))
@given(durable=sizes, where=st.floats(0, 1, exclude_max=True), with_mark=st.booleans())
def test_a_flipped_byte_in_a_record_with_synced_ones_behind_it_is_damage_even_without_a_mark(
    durable: list[int], where: float, with_mark: bool
) -> None:
    """After a power failure the mark may be older than the journal; the records themselves prove what was durable."""

    async def story(home: Path) -> None:
        async with opened(home / "live") as journal:
            for at, size in enumerate([*durable, 0], start=1):
                await keep(journal, batch_of(at, at, pad=size))
                if at == len(durable):
                    end = mark_of(home / "live").offset
        image = home / "live"
        if not with_mark:
            (image / FILE_NAME).unlink()
        path = segments_of(image)[-1]
        data = bytearray(path.read_bytes())
        at = int(where * end)
        data[at] ^= 0x40
        path.write_bytes(bytes(data))
        try:
            async with opened(image) as journal:
                kept = sequences_in(journal.read(START))
        except Damaged:
            return
        assert kept == list(range(1, len(durable) + 2)), "only a byte that means nothing may be wrong in silence"

    run_in_a_folder(story)


# --- stories ---------------------------------------------------------------------------------------------------------


async def test_an_empty_directory_becomes_a_journal(tmp_path: Path) -> None:
    assert await read_again(tmp_path / "new" / "journal") == []
    assert await read_again(tmp_path / "new" / "journal") == []


async def test_a_journal_whose_first_start_was_killed_begins_again(tmp_path: Path) -> None:
    for name, size in ((FILE_NAME, 0), (FILE_NAME, 4096), ("next.tmp", 65536), ("consumers.json.tmp", 3)):
        (tmp_path / name).write_bytes(bytes(size))
        assert await read_again(tmp_path) == []
        for path in tmp_path.iterdir():
            path.unlink()


async def test_leftovers_of_files_in_the_making_are_removed(tmp_path: Path) -> None:
    kept = await write_journal(tmp_path)
    (tmp_path / "next.tmp").write_bytes(b"half a segment")
    assert await read_again(tmp_path) == kept
    assert not list(tmp_path.glob("*.tmp"))


async def test_a_journal_without_its_mark_is_found_from_its_records(tmp_path: Path) -> None:
    kept = await write_journal(tmp_path, 3)
    (tmp_path / FILE_NAME).unlink()
    assert await read_again(tmp_path) == kept


async def test_an_older_mark_is_no_limit_for_what_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 1))
        old = (tmp_path / FILE_NAME).read_bytes()
        last = await fill(journal, 2, first=2)
    (tmp_path / FILE_NAME).write_bytes(old)
    assert await read_again(tmp_path) == list(range(1, last + 1))


async def test_a_mark_of_another_journal_says_nothing(tmp_path: Path) -> None:
    await write_journal(tmp_path / "long", 2)
    kept = await write_journal(tmp_path / "short")
    (tmp_path / "short" / FILE_NAME).write_bytes((tmp_path / "long" / FILE_NAME).read_bytes())
    assert await read_again(tmp_path / "short") == kept


async def test_a_segment_of_another_journal_is_damage(tmp_path: Path) -> None:
    await write_journal(tmp_path / "a", 2)
    await write_journal(tmp_path / "b", 2)
    first = segments_of(tmp_path / "a")[0]
    first.write_bytes((tmp_path / "b" / first.name).read_bytes())
    with pytest.raises(Damaged, match="belongs to another journal"):
        await read_again(tmp_path / "a")


@pytest.mark.parametrize("which", [1, -1], ids=["middle", "newest"])
async def test_a_missing_segment_is_damage(tmp_path: Path, which: int) -> None:
    await write_journal(tmp_path, 4)
    segments_of(tmp_path)[which].unlink()
    with pytest.raises(Damaged, match=r"segment at byte \d+"):
        await read_again(tmp_path)


async def test_the_only_segment_missing_is_damage_and_no_new_journal(tmp_path: Path) -> None:
    await write_journal(tmp_path)
    segments_of(tmp_path)[0].unlink()
    with pytest.raises(Damaged, match="missing"):
        await read_again(tmp_path)
    assert not segments_of(tmp_path)


@pytest.mark.parametrize("missing", [1, 8, 100])
async def test_a_sealed_segment_that_is_cut_short_is_damage(tmp_path: Path, missing: int) -> None:
    await write_journal(tmp_path, 3)
    path = segments_of(tmp_path)[1]
    os.truncate(path, path.stat().st_size - missing)
    with pytest.raises(Damaged, match=rf"{path.name} at byte \d+: .*the next file begins at"):
        await read_again(tmp_path)


async def test_a_record_that_is_missing_between_two_others_is_damage(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 1))
        start = mark_of(tmp_path).offset
        await keep(journal, batch_of(2, 2))
        end = mark_of(tmp_path).offset
        await keep(journal, batch_of(3, 3))
    (path,) = segments_of(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:start] + data[end:])
    with pytest.raises(Damaged, match=rf"at byte {start}: a record says position 2 where 1 follows"):
        await read_again(tmp_path)


async def test_reserved_space_behind_a_sealed_segment_is_no_damage(tmp_path: Path) -> None:
    """Cutting it off is not synced, so a power failure may bring it back."""
    kept = await write_journal(tmp_path, 3)
    for path in segments_of(tmp_path):
        path.write_bytes(path.read_bytes().ljust(65536, b"\0"))
    assert await read_again(tmp_path) == kept


async def test_another_format_version_is_refused(tmp_path: Path) -> None:
    await write_journal(tmp_path)
    path = segments_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(bytes(data))
    with pytest.raises(Damaged, match="format 9"):
        await read_again(tmp_path)


async def test_streams_tables_and_the_clock_are_found_again(tmp_path: Path) -> None:
    other = StreamId("shop", "eu")
    async with opened(tmp_path) as journal:
        await keep(
            journal,
            batch_of(1, 3, number=5, table="users"),
            batch_of(4, 9, stream=other, epoch=2, number=7, table="orders"),
        )
        last = await fill(journal, 2, first=4)
        tables = journal.tables
    async with opened(tmp_path, clock=lambda: 1) as journal:
        assert journal.tables == tables == {"users", "orders"}
        assert journal.stream_count == 2
        assert journal.point(other) == StreamPoint(2, 9, 7)
        assert journal.point(StreamId("source-1")).sequence == last
        assert journal.recovered.commit_timestamp_ms == mark_of(tmp_path).commit_timestamp_ms > 1


async def test_progress_is_told_for_every_segment(tmp_path: Path) -> None:
    await write_journal(tmp_path, 4)
    told: list[tuple[int, int]] = []
    journal = open_journal(
        tmp_path, SMALL, window_ms=WINDOW_MS, on_progress=lambda done, total: told.append((done, total))
    )
    await journal.close()
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


async def test_a_torn_write_is_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = await write_image(tmp_path, [10], [2000])
    path = segments_of(image)[-1]
    data = bytearray(path.read_bytes())
    del data[mark_of(image).offset + 1000 :]
    path.write_bytes(bytes(data))
    async with opened(image) as journal:
        assert 0 < journal.recovered.torn_bytes <= 1000
    assert "torn write cut off" in caplog.messages


async def test_what_was_cut_off_never_comes_back(tmp_path: Path) -> None:
    """Of a torn group its second batch had arrived whole; the first one, sent again, would fit exactly before it."""
    image = await write_image(tmp_path, [10], [600, 700])
    path, start = segments_of(image)[-1], mark_of(image).offset
    data = bytearray(path.read_bytes())
    data[start : start + 512] = bytes(512)
    path.write_bytes(bytes(data))
    async with opened(image) as journal:
        assert sequences_in(journal.read(START)) == [1]
        await keep(journal, batch_of(2, 2, number=2, pad=600))
        after = copy_files(image, tmp_path / "after")
    assert await read_again(after) == [1, 2]


class RecordingDisk(Disk):
    """Remembers which bytes were written and in which order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int, int]] = []

    def write(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        super().write(descriptor, buffers, offset)
        self.done.append(("write", offset, offset + sum(map(len, buffers))))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.done.append(("sync", 0, 0))


async def test_what_is_kept_beyond_the_mark_is_written_and_synced_again_before_it_is_trusted(tmp_path: Path) -> None:
    """The process may have died after a failed sync, and then the bytes that we read are not those on disk."""
    image = await write_image(tmp_path, [10, 20], [300, 400])
    start, disk = mark_of(image).offset, RecordingDisk()
    async with opened(image, disk=disk) as journal:
        assert journal.durable == 4
        end = mark_of(image).offset
    written = [(first, last) for what, first, last in disk.done if what == "write"]
    assert written == [(start, end)]
    assert ("sync", 0, 0) in disk.done[disk.done.index(("write", start, end)) :]


async def test_all_of_the_last_segment_is_written_again_where_the_mark_is_from_an_earlier_one(tmp_path: Path) -> None:
    """After a power failure the mark may be older: then its place in the file before says nothing about this one."""
    async with opened(tmp_path / "live") as journal:
        last = await fill(journal, 1)
        first = copy_files(tmp_path / "live", tmp_path / "first")
        await fill(journal, 1, first=last + 1)
        image = copy_files(tmp_path / "live", tmp_path / "image")
    (image / FILE_NAME).write_bytes((first / FILE_NAME).read_bytes())
    disk = RecordingDisk()
    async with opened(image, disk=disk) as journal:
        end = mark_of(image).offset
        assert journal.segment_count == 3
    assert ("write", HEADER_SIZE, end) in disk.done


async def test_a_journal_that_cannot_be_synced_does_not_open(tmp_path: Path) -> None:
    image = await write_image(tmp_path, [10], [300])
    before, disk = mark_of(image), FailingDisk()
    disk.is_sync_failing = True
    with pytest.raises(Unavailable, match="cannot be opened"):
        async with opened(image, disk=disk):
            pass
    assert mark_of(image) == before


async def test_a_closed_journal_opens_without_a_write(tmp_path: Path) -> None:
    await write_journal(tmp_path, 2)
    disk = RecordingDisk()
    async with opened(tmp_path, disk=disk):
        assert [what for what in disk.done if what[0] == "write"] == []


async def test_recovery_is_the_same_however_often_it_is_killed(tmp_path: Path) -> None:
    image = await write_image(tmp_path, [10, 20], [300, 400, 500])
    os.truncate(segments_of(image)[-1], mark_of(image).offset + 900)
    seen = []
    for life in range(3):
        async with opened(image) as journal:
            seen.append(list(journal.read(START)))
            image = copy_files(image, tmp_path / f"life-{life}")
    assert seen[0] == seen[1] == seen[2]


async def test_a_full_disk_does_not_keep_a_journal_from_opening(tmp_path: Path) -> None:
    kept = await write_journal(tmp_path, 2)
    disk = FailingDisk()
    disk.is_full = True
    async with opened(tmp_path, disk=disk) as journal:
        assert sequences_in(journal.read(START)) == kept
        disk.is_full = False
        await keep(journal, batch_of(len(kept) + 1, len(kept) + 1))
    assert segment.list_bases(tmp_path)
    assert len(await read_again(tmp_path)) == len(kept) + 1


async def test_a_journal_that_a_full_disk_keeps_from_opening_opens_once_there_is_room(tmp_path: Path) -> None:
    """Where even bytes that are there cannot be written again, as on file systems that copy on write."""
    image = await write_image(tmp_path, [10], [300])
    disk = FailingDisk()
    disk.is_full = True
    for directory in (image, tmp_path / "new"):
        disk.is_full = True
        with pytest.raises(Unavailable, match="cannot be opened"):
            async with opened(directory, disk=disk):
                pass
        disk.is_full = False
        async with opened(directory, disk=disk) as journal:
            assert sequences_in(journal.read(START)) == ([1, 2] if directory is image else [])


async def test_a_segment_begun_but_not_yet_written_to_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        last = await fill(journal, 1)
    newest = segments_of(tmp_path)[-1]
    data = newest.read_bytes()
    async with opened(tmp_path) as journal:
        offset = segment_start(newest)
    newest.write_bytes(data[:offset])
    (tmp_path / FILE_NAME).unlink()
    async with opened(tmp_path) as journal:
        kept = sequences_in(journal.read(START))
        assert kept == list(range(1, last))
        await keep(journal, batch_of(last, last))
    assert await read_again(tmp_path) == list(range(1, last + 1))


def segment_start(path: Path) -> int:
    """Where the first batch of a file begins."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        offset, _, _ = segment.first_checkpoint(path, descriptor)
        assert offset > HEADER_SIZE
        return offset
    finally:
        os.close(descriptor)


async def test_batches_are_bound_to_what_they_were(tmp_path: Path) -> None:
    """Bytes that survive are the bytes that were sent, payload and all."""
    sent: list[Batch] = [batch_of(at, at, pad=at * 100, number=at) for at in range(1, 9)]
    async with opened(tmp_path / "live") as journal:
        await keep(journal, *sent)
        image = copy_files(tmp_path / "live", tmp_path / "image")
    async with opened(image) as journal:
        assert [record.payload for record in journal.read(START)] == [batch.payload for batch in sent]
