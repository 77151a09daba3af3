"""Readers in this process and in others: each durable batch once, in order, and never a byte beyond the last sync.

Run as a program this file is the other process: `write DIR` appends and prints each acknowledged position, `follow DIR`
prints every record as it comes.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from dolake.changes import StreamId
from dolake.errors import Damaged, NotFound
from dolake.journal import segment
from dolake.journal.embedded import open_journal
from dolake.journal.mark import FILE_NAME, MarkFile
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.positions import START
from tests.support.aio import until
from tests.support.clock import Clock
from tests.support.journals import (
    SMALL,
    WINDOW_MS,
    GatedDisk,
    batch_of,
    copy_files,
    fill,
    flip,
    keep,
    mark_of,
    opened,
    segments_of,
    sequences_in,
    write_journal,
)

LARGE = SMALL.__class__(size_max_bytes=1 << 30, segment_size_bytes=65536, group_size_max_bytes=65536)


def test_a_reader_needs_a_journal(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no journal in"):
        JournalReader(tmp_path)


async def test_a_journal_without_changes_yields_none(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with JournalReader(tmp_path) as reader:
            assert list(reader.read(START)) == []
            assert reader.durable() == reader.oldest() == START


async def test_a_reader_beside_the_writer_sees_a_batch_from_the_moment_it_is_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with JournalReader(tmp_path) as reader:
            for at in range(1, 30):
                await keep(journal, batch_of(at, at, pad=9_000))
                assert reader.durable() == at
                assert sequences_in(reader.read(at - 1)) == [at]
            assert journal.segment_count > 3
            assert sequences_in(reader.read(START)) == list(range(1, 30))


async def test_written_but_not_yet_synced_bytes_are_not_read(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        await keep(journal, batch_of(1, 2))
        disk.hold()
        ticket = await journal.append(batch_of(3, 4))
        await until(lambda: disk.arrived_count == 1)
        with JournalReader(tmp_path) as reader:
            assert reader.durable() == 2
            assert sequences_in(reader.read(START)) == [1, 2]
            disk.let_go()
            await ticket.wait()
            assert sequences_in(reader.read(START)) == [1, 2, 3, 4]


async def test_a_read_ends_where_the_journal_ended_when_it_began(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 1), batch_of(2, 2))
        records = journal.read(START)
        first = next(records)
        await fill(journal, 2, first=3)
        assert sequences_in([first, *records]) == [1, 2]


async def test_reading_goes_on_across_segments_from_any_position(tmp_path: Path) -> None:
    *_, last = await write_journal(tmp_path, 4)
    with JournalReader(tmp_path) as reader:
        for start in range(last + 1):
            assert sequences_in(reader.read(start)) == list(range(start + 1, last + 1))
            assert sequences_in(reader.read(START, start)) == list(range(1, start + 1))


async def test_a_place_seen_before_is_found_by_segment_and_byte(tmp_path: Path) -> None:
    *_, last = await write_journal(tmp_path, 3)
    with JournalReader(tmp_path) as reader:
        for base in segment.list_bases(tmp_path):
            assert sequences_in(reader.read_at(base, segment.HEADER_SIZE, last)) == list(range(base + 1, last + 1))
            assert sequences_in(reader.read_at(base, segment.HEADER_SIZE, base + 1)) == [base + 1]


@pytest.mark.parametrize("which", [0, 1, -1], ids=["oldest", "middle", "newest"])
@pytest.mark.parametrize("where", ["checkpoint", "record", "last byte"])
async def test_damage_is_never_skipped_in_silence(tmp_path: Path, which: int, where: str) -> None:
    *_, last = await write_journal(tmp_path, 4)
    path = segments_of(tmp_path)[which]
    size = path.stat().st_size
    with JournalReader(tmp_path) as reader:
        intact = [record.end for record in reader.read(START)][-1]
        assert intact == last
        flip(path, {"checkpoint": 80, "record": size // 2, "last byte": size - 10}[where])
        with pytest.raises(Damaged, match=path.name):
            list(reader.read(START))


@pytest.mark.parametrize("which", [0, 1, -1], ids=["oldest", "middle", "newest"])
async def test_a_missing_segment_is_never_skipped_in_silence(tmp_path: Path, which: int) -> None:
    await write_journal(tmp_path, 4)
    segments_of(tmp_path)[which].unlink()
    with JournalReader(tmp_path) as reader, pytest.raises((Damaged, NotFound)):
        list(reader.read(START))


async def test_a_newest_segment_that_is_gone_is_damage_also_for_who_begins_there(tmp_path: Path) -> None:
    """Only the oldest go by right."""
    await write_journal(tmp_path, 4)
    newest = segments_of(tmp_path)[-1]
    newest.unlink()
    with JournalReader(tmp_path) as reader, pytest.raises(Damaged):
        list(reader.read(int(newest.stem)))


async def test_a_reader_that_fell_behind_what_is_kept_is_told_so(tmp_path: Path) -> None:
    """It is slow, not the journal damaged: nobody should be sent to look for a broken disk."""
    clock = Clock()
    async with opened(tmp_path, clock=clock) as journal:
        journal.register("pipeline", START)
        last = await fill(journal, 5)
        with JournalReader(tmp_path) as reader:
            records = reader.read(START)
            next(records)
            clock.move(WINDOW_MS + 1)
            journal.release("pipeline", last)
            with pytest.raises(NotFound):
                list(records)
            assert reader.oldest() == journal.oldest > 0
            assert sequences_in(reader.read(reader.oldest())) == list(range(reader.oldest() + 1, last + 1))


def limited(reader: JournalReader, start: int, count: int) -> list[Record]:
    """The first records that a follower gets."""
    found: list[Record] = []
    for record in reader.follow(start, poll_ms=1):
        found.append(record)
        if len(found) == count:
            break
    return found


async def test_a_follower_waits_for_what_comes_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 2))
        with JournalReader(tmp_path) as reader:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(asyncio.to_thread(limited, reader, START, 25))
                for at in range(3, 27):
                    await keep(journal, batch_of(at, at, pad=9_000))
            assert sequences_in(following.result()) == list(range(1, 27))


async def test_a_follower_stops_when_it_is_told_to(tmp_path: Path) -> None:
    kept = await write_journal(tmp_path)
    with JournalReader(tmp_path) as reader:
        answers = iter([False, False, False, True])
        assert sequences_in(reader.follow(START, poll_ms=1, is_stopped=lambda: next(answers))) == kept


async def test_a_follower_follows_into_the_next_life_of_the_journal(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 2))
    with JournalReader(tmp_path) as reader:
        assert sequences_in(reader.read(START)) == [1, 2]
        async with opened(tmp_path) as journal:
            await fill(journal, 1, first=3)
            assert sequences_in(reader.read(START))[:3] == [1, 2, 3]
            assert reader.durable() == journal.durable


async def test_a_mark_that_is_being_written_is_read_again(tmp_path: Path) -> None:
    """Else a reader between two syncs would think for a moment that the journal is empty or shorter than it was."""
    await write_journal(tmp_path)
    file = MarkFile(tmp_path, writable=False)
    whole = (tmp_path / FILE_NAME).read_bytes()
    torn = b"\xff" * len(whole)

    class HalfWritten:
        reads = 0

        def __getitem__(self, part: slice) -> bytes:
            self.reads += 1
            return (torn if self.reads <= 3 else whole)[part]

    file._map = HalfWritten()  # type: ignore[assignment]
    mark = file.read()
    assert mark is not None
    assert mark.position == mark_of(tmp_path).position


# --- other processes -------------------------------------------------------------------------------------------------


@contextmanager
def process(role: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    command = [sys.executable, __file__, role, str(directory)]
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={"PYTHONPATH": root})
    assert child.stdout is not None
    try:
        yield child, child.stdout
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()


def line_of(record: Record) -> str:
    return f"{record.position} {record.end} {record.sequence_first} {zlib.crc32(record.payload)}"


def read_lines(stream: IO[bytes], is_enough: Callable[[list[str]], bool]) -> list[str]:
    """Lines as they come, until there are enough; the other process's end is a failure."""
    lines: list[str] = []
    while not is_enough(lines):
        line = stream.readline()
        assert line.endswith(b"\n"), "the other process ended"
        lines.append(line.decode().strip())
    return lines


@pytest.mark.slow
async def test_a_follower_in_another_process_sees_exactly_what_survives_kill_9(tmp_path: Path) -> None:
    """It checks by itself that no record lies beyond the mark; here we check that none of them was taken back."""
    acknowledged = 0
    with process("write", tmp_path) as (_, stream):
        read_lines(stream, lambda lines: len(lines) >= 1)
    with process("follow", tmp_path) as (_, followed):
        for count in (40, 1, 7, 150, 3):
            with process("write", tmp_path) as (writer, stream):
                lines = read_lines(stream, lambda lines, count=count: len(lines) >= count)  # type: ignore[misc]
                writer.send_signal(signal.SIGKILL)
                lines += [line.decode().strip() for line in stream.readlines() if line.endswith(b"\n")]
                acknowledged = int(lines[-1])
            image = copy_files(tmp_path, tmp_path / f"after-{acknowledged}")
            assert (await journal_lines(image))[1] >= acknowledged
        kept, durable = await journal_lines(tmp_path)
        assert durable >= acknowledged
        seen = read_lines(followed, lambda lines: bool(lines) and int(lines[-1].split()[1]) >= durable)
    assert seen == kept
    assert [int(line.split()[2]) for line in kept] == list(range(1, len(kept) + 1))


async def journal_lines(directory: Path) -> tuple[list[str], int]:
    """What is there after recovery."""
    async with opened(directory, settings=LARGE) as journal:
        return [line_of(record) for record in journal.read(START)], journal.durable


async def write_forever(directory: Path) -> None:
    stream = StreamId("shop")
    journal = open_journal(directory, LARGE, window_ms=WINDOW_MS)
    at = journal.point(stream).sequence
    while True:
        tickets = []
        for _ in range(at % 5 + 1):
            at += 1
            tickets.append(await journal.append(batch_of(at, at, stream=stream, number=at, pad=at * 37 % 5000)))
        for ticket in tickets:
            print((await ticket.wait()).end, flush=True)


def follow_forever(directory: Path) -> None:
    mark = MarkFile(directory, writable=False)
    with JournalReader(directory) as reader:
        for record in reader.follow(START, poll_ms=1):
            found = mark.read()
            assert found is not None
            assert record.end <= found.position, "a record beyond the mark"
            print(line_of(record), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        asyncio.run(write_forever(Path(sys.argv[2])))
    else:
        follow_forever(Path(sys.argv[2]))
