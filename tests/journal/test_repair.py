"""The way out of a damaged journal: it says what is lost, keeps the rest where it was, and the journal goes on."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import StreamId
from dolake.errors import Damaged, InvalidSequence
from dolake.journal import segment
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record, StreamPoint
from dolake.journal.repair import ASIDE, check_journal, repair_journal
from dolake.positions import START
from tests.support.aio import run, until
from tests.support.clock import Clock
from tests.support.journals import (
    SOURCE,
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
)
from tests.support.property import examples

QUIET = StreamId("quiet")


async def build(directory: Path, segment_count: int = 1) -> list[Record]:
    """A closed journal: one batch of a stream that then falls silent, and batches of three changes of another."""
    async with opened(directory) as journal:
        await keep(journal, batch_of(1, 2, stream=QUIET, epoch=3, number=9, table="rare"))
        at = 1
        while journal.segment_count < segment_count or at < 16:
            await keep(journal, batch_of(at, at + 2, number=at, pad=9_000 if segment_count > 1 else 200))
            at += 3
        return list(journal.read(START))


def offsets_of(path: Path) -> dict[int, int]:
    """Where each record of a file begins, by its first position; the checkpoint is left out."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return {header.position: offset for offset, header, _ in segment.Scan(descriptor) if header.change_count}
    finally:
        os.close(descriptor)


def home_of(record: Record, directory: Path) -> tuple[Path, int]:
    """The file and the byte where this record begins."""
    path = [path for path in segments_of(directory) if int(path.stem) <= record.position][-1]
    return path, offsets_of(path)[record.position]


async def problem_of(directory: Path) -> str:
    """What opening says."""
    with pytest.raises(Damaged) as damage:
        async with opened(directory):
            pass
    return damage.value.message


def repair(directory: Path) -> list[str]:
    return list(repair_journal(directory, is_dry_run=False))


async def check_goes_on(directory: Path, kept: list[Record], end: int) -> None:
    """These records are there, where and as they were; the journal ends at `end`, takes batches, and is whole."""
    report = check_journal(directory)
    assert report.problems == []
    assert report.record_count == len(kept)
    async with opened(directory) as journal:
        assert list(journal.read(journal.oldest)) == kept
        assert journal.durable == end
        (answer,) = await keep(journal, batch_of(1000, 1001))
        assert answer.end == end + 2
        last = await fill(journal, 1, first=2000)
    async with opened(directory) as journal:
        records = list(journal.read(journal.oldest))
        assert records[: len(kept)] == kept
        assert sequences_in(records[len(kept) :]) == [1000, 1001, *range(2000, last + 1)]
        times = [record.commit_timestamp_ms for record in records]
        assert times == sorted(times)
    with JournalReader(directory) as reader:
        assert list(reader.read(reader.oldest())) == records


# --- nothing to do ---------------------------------------------------------------------------------------------------


async def test_a_sound_journal_has_no_problems_and_is_left_alone(tmp_path: Path) -> None:
    kept = await build(tmp_path, 3)
    report = check_journal(tmp_path)
    assert report.problems == []
    assert report.segment_count == len(segments_of(tmp_path)) == 3
    assert report.record_count == len(kept)
    assert report.change_count == sum(record.change_count for record in kept)
    assert report.byte_count == sum(path.stat().st_size for path in segments_of(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert repair(tmp_path) == ["no damaged record was found"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_directory_is_no_journal(tmp_path: Path) -> None:
    assert check_journal(tmp_path).problems == []
    assert repair(tmp_path) == ["there is no journal here"]


async def test_a_torn_write_is_not_damage(tmp_path: Path) -> None:
    """Nobody was promised those bytes, in whatever order they arrived; recovery cuts them off by itself."""
    disk = GatedDisk()
    async with opened(tmp_path / "live", disk=disk) as journal:
        await keep(journal, batch_of(1, 1))
        disk.hold()
        first = await journal.append(batch_of(2, 2))
        await until(lambda: disk.arrived_count == 1)
        for at in (3, 4, 5):
            await journal.append(batch_of(at, at, pad=600))
        disk.let_one_go()
        await first.wait()
        await until(lambda: disk.arrived_count == 2)
        image = copy_files(tmp_path / "live", tmp_path / "image")
        disk.let_go()
    path, start = segments_of(image)[-1], mark_of(image).offset
    data = bytearray(path.read_bytes())
    data[start : start + 512] = bytes(512)
    path.write_bytes(bytes(data))
    assert check_journal(image).problems == []
    assert repair(image) == ["no damaged record was found"]
    async with opened(image) as journal:
        assert sequences_in(journal.read(START)) == [1, 2]
        await keep(journal, batch_of(3, 3), batch_of(4, 4), batch_of(5, 5))


# --- one damaged record ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_count", [1, 4], ids=["one file", "four files"])
@pytest.mark.parametrize("which", [0, 1, 4, -1], ids=["first", "second", "middle", "last"])
@pytest.mark.parametrize("part", [0, 5, 20, 60, 100], ids=["magic", "checksum", "header", "meta", "payload"])
async def test_a_flipped_byte_costs_one_batch_and_nothing_else(
    tmp_path: Path, segment_count: int, which: int, part: int
) -> None:
    records = await build(tmp_path, segment_count)
    lost = records[which]
    path, offset = home_of(lost, tmp_path)
    flip(path, offset + part)
    damaged = path.read_bytes()

    problem = await problem_of(tmp_path)
    assert path.name in problem
    assert f"at byte {offset}" in problem

    report = check_journal(tmp_path)
    assert any(path.name in line and f"bytes {offset} to " in line for line in report.problems) or which == -1
    assert any(f"changes {lost.position} to {lost.end}" in line for line in report.problems)
    assert report.record_count == len(records) - 1

    lines = repair(tmp_path)
    assert any(path.name in line and f"lost: changes {lost.position} to {lost.end}" in line for line in lines)
    assert lines[-1] == "done"
    assert damaged in [aside.read_bytes() for aside in (tmp_path / ASIDE).iterdir()]
    kept = [record for record in records if record is not lost]
    await check_goes_on(tmp_path, kept, records[-1].end)


async def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    records = await build(tmp_path, 3)
    path, offset = home_of(records[4], tmp_path)
    flip(path, offset + 70)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    planned = list(repair_journal(tmp_path, is_dry_run=True))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert [*planned, "done"] == repair(tmp_path)


async def test_a_file_with_another_ones_name_is_reported_and_never_mended(tmp_path: Path) -> None:
    await build(tmp_path, 3)
    first, second = sorted(tmp_path.glob("*.segment"))[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert any("another file's name" in problem for problem in check_journal(tmp_path).problems)
    with pytest.raises(Damaged, match="another file's name"):
        repair(tmp_path)
    assert second.read_bytes() == content


async def test_oldest_files_that_nobody_released_are_missed(tmp_path: Path) -> None:
    await build(tmp_path, 3)
    oldest = sorted(tmp_path.glob("*.segment"))[0]
    oldest.unlink()
    assert any("nobody released" in problem for problem in check_journal(tmp_path).problems)


async def test_a_mark_that_was_never_written_is_no_damage(tmp_path: Path) -> None:
    await build(tmp_path, 1)
    (tmp_path / "durable.mark").write_bytes(b"")
    assert check_journal(tmp_path).problems == []


async def test_damage_in_several_places_is_mended_in_one_go(tmp_path: Path) -> None:
    records = await build(tmp_path, 4)
    lost = [records[1], records[2], records[5], records[-2]]
    for path, offset in [home_of(record, tmp_path) for record in lost]:
        data = bytearray(path.read_bytes())
        data[offset : offset + 400] = bytes(400)
        path.write_bytes(bytes(data))
    lines = repair(tmp_path)
    assert any(f"changes {lost[0].position} to {lost[1].end}" in line for line in lines)
    await check_goes_on(tmp_path, [record for record in records if record not in lost], records[-1].end)


async def test_what_a_stream_lost_can_be_sent_again_in_a_new_epoch(tmp_path: Path) -> None:
    records = await build(tmp_path)
    path, offset = home_of(records[2], tmp_path)
    flip(path, offset + 70)
    repair(tmp_path)
    lost = batch_of(4, 6)
    async with opened(tmp_path) as journal:
        with pytest.raises(InvalidSequence):
            await journal.append(lost)
        await keep(journal, batch_of(4, 6, epoch=1))
        assert journal.point(SOURCE) == StreamPoint(1, 6, 1)


async def test_the_last_batch_if_lost_can_simply_be_sent_again_and_gets_a_new_position(tmp_path: Path) -> None:
    """A consumer may have passed its old position: a batch that took the same one would never be read."""
    records = await build(tmp_path)
    path, offset = home_of(records[-1], tmp_path)
    flip(path, offset + 70)
    repair(tmp_path)
    lost = records[-1]
    async with opened(tmp_path) as journal:
        (answer,) = await keep(journal, batch_of(lost.sequence_first, lost.sequence_last))
        assert answer.change_count == 3
        assert [record.position for record in journal.read(lost.end)] == [lost.end]


async def test_streams_tables_and_consumers_outlive_a_repair(tmp_path: Path) -> None:
    records = await build(tmp_path, 4)
    async with opened(tmp_path) as journal:
        journal.register("pipeline", 3)
    for path, offset in [home_of(record, tmp_path) for record in (records[0], records[5])]:
        flip(path, offset + 70)
    repair(tmp_path)
    async with opened(tmp_path) as journal:
        assert journal.point(QUIET) == StreamPoint(3, 2, 9), "a checkpoint behind the damage remembers it"
        assert journal.tables == {"rare", "users"}
        assert journal.register("pipeline", START) == 3


async def test_a_gap_is_passed_by_readers_and_followers(tmp_path: Path) -> None:
    records = await build(tmp_path)
    for path, offset in [home_of(record, tmp_path) for record in (records[2], records[-1])]:
        flip(path, offset + 70)
    repair(tmp_path)
    async with opened(tmp_path) as journal:
        assert journal.durable == records[-1].end
    with JournalReader(tmp_path) as reader:
        expected = [record for record in records if record not in (records[2], records[-1])]
        for start in range(records[-1].end):
            assert list(reader.read(start)) == [record for record in expected if record.end > start]
        naps = iter([False, False, True])
        assert list(reader.follow(START, poll_ms=0, is_stopped=lambda: next(naps))) == expected


async def test_a_follower_that_was_there_all_the_time_goes_on_after_a_repair(tmp_path: Path) -> None:
    records = await build(tmp_path)
    with JournalReader(tmp_path) as reader:
        assert list(reader.read(START)) == records
        path, offset = home_of(records[2], tmp_path)
        flip(path, offset + 70)
        repair(tmp_path)
        async with opened(tmp_path) as journal:
            await keep(journal, batch_of(500, 501))
        assert reader.durable() == records[-1].end + 2
        assert sequences_in(reader.read(records[-1].end)) == [500, 501]


# --- more than a record ----------------------------------------------------------------------------------------------


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 9_000)


def cut_to_a_stump(path: Path) -> None:
    os.truncate(path, 70)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def break_header(path: Path) -> None:
    flip(path, 20)


def break_magic(path: Path) -> None:
    flip(path, 3)


def break_checkpoint(path: Path) -> None:
    flip(path, 90)


def break_header_and_checkpoint(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:120] = bytes(120)
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


SPOILS = [
    cut_short,
    cut_to_a_stump,
    cut_to_nothing,
    break_header,
    break_magic,
    break_checkpoint,
    break_header_and_checkpoint,
]


@pytest.mark.parametrize(
    ("spoil", "which"),
    # The oldest file may also have been removed by right, so its absence alone tells nothing.
    [*((spoil, which) for spoil in SPOILS for which in (0, 1, -1)), (remove, 1), (remove, -1)],
)
async def test_a_damaged_file_loses_only_what_cannot_be_read(
    tmp_path: Path, spoil: Callable[[Path], None], which: int
) -> None:
    records = await build(tmp_path, 4)
    paths = segments_of(tmp_path)
    path, index = paths[which], which % len(paths)
    base = int(path.stem)
    following = int(paths[index + 1].stem) if index + 1 < len(paths) else records[-1].end
    inside = [record for record in records if base <= record.position < following]
    spoil(path)

    assert "segment at byte" in await problem_of(tmp_path)
    assert check_journal(tmp_path).problems != []
    spoilt = path.read_bytes() if path.exists() else None
    assert repair(tmp_path)[-1] == "done"
    if spoilt is not None:
        assert spoilt in [aside.read_bytes() for aside in (tmp_path / ASIDE).iterdir()]

    is_readable = spoil in (break_header, break_magic, break_checkpoint, break_header_and_checkpoint)
    lost = [] if is_readable else inside
    if spoil is cut_short:
        lost = inside[-1:]
    kept = [record for record in records if record not in lost]
    await check_goes_on(tmp_path, kept, records[-1].end)


async def test_a_lost_checkpoint_is_made_again_from_what_came_before(tmp_path: Path) -> None:
    await build(tmp_path, 3)
    break_checkpoint(segments_of(tmp_path)[-1])
    repair(tmp_path)
    async with opened(tmp_path) as journal:
        assert journal.point(QUIET) == StreamPoint(3, 2, 9)
        assert journal.tables == {"rare", "users"}
        assert (await keep(journal, batch_of(1, 2, stream=QUIET, epoch=3, table="rare")))[0].change_count == 0


async def test_a_checkpoint_that_nothing_came_before_is_lost_and_that_is_said(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as journal:
        await keep(journal, batch_of(1, 2, stream=QUIET))
        journal.register("pipeline", START)
        await fill(journal, 2)
        clock.move(WINDOW_MS + 1)
        journal.release("pipeline", journal.durable)
        assert journal.segment_count == 1
        point = journal.point(SOURCE)
    break_checkpoint(segments_of(tmp_path)[0])
    assert any("checkpoint" in line for line in repair(tmp_path))
    async with opened(tmp_path) as journal:
        assert journal.point(SOURCE) == point
        assert journal.point(QUIET) == StreamPoint()


async def test_the_only_file_missing_leaves_positions_where_they_were(tmp_path: Path) -> None:
    records = await build(tmp_path)
    segments_of(tmp_path)[0].unlink()
    assert check_journal(tmp_path).problems != []
    assert repair(tmp_path)[-1] == "done"
    await check_goes_on(tmp_path, [], records[-1].end)


async def test_files_of_a_newer_format_are_not_touched(tmp_path: Path) -> None:
    """What looks broken to this release may be sound."""
    await build(tmp_path, 2)
    path = segments_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[8] = 3
    path.write_bytes(bytes(data))
    for look in (lambda: check_journal(tmp_path), lambda: repair(tmp_path)):
        with pytest.raises(Damaged, match="format 3"):
            look()
    assert path.read_bytes() == bytes(data)


async def test_a_repair_that_is_killed_can_be_done_again(tmp_path: Path) -> None:
    records = await build(tmp_path, 3)
    lost = [records[1], records[-2]]
    for path, offset in [home_of(record, tmp_path) for record in lost]:
        flip(path, offset + 70)
    lines = repair_journal(tmp_path, is_dry_run=False)
    next(lines)
    next(lines)  # the first file is done, the second one announced
    del lines
    assert repair(tmp_path)[-1] == "done"
    await check_goes_on(tmp_path, [record for record in records if record not in lost], records[-1].end)


async def test_copies_are_never_overwritten(tmp_path: Path) -> None:
    records = await build(tmp_path)
    wounds = []
    for record in records[1:4]:
        path, offset = home_of(record, tmp_path)
        flip(path, offset + 70)
        wounds.append(path.read_bytes())
        repair(tmp_path)
    asides = [path.read_bytes() for path in (tmp_path / ASIDE).iterdir() if path.suffix == segment.SUFFIX]
    assert all(wound in asides for wound in wounds)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    directory = tmp_path_factory.mktemp("sound")
    return directory, run(build(directory, 3))


@settings(max_examples=examples(60))
@given(
    which=st.integers(0, 2),
    wounds=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 12_000)), min_size=1, max_size=3),
    with_mark=st.booleans(),
)
def test_whatever_was_overwritten_all_intact_batches_survive_where_they_were(
    sound: tuple[Path, list[Record]], which: int, wounds: list[tuple[float, int]], with_mark: bool
) -> None:
    original, records = sound
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "journal"
        shutil.copytree(original, directory)
        path = segments_of(directory)[which]
        offsets = offsets_of(path)
        data = bytearray(path.read_bytes())
        whole = bytes(data)
        for where, length in wounds:
            at = int(where * len(data))
            data[at : at + length] = b"\xa5" * len(data[at : at + length])
        data[8:12] = whole[8:12]  # another version is not for us to mend
        path.write_bytes(bytes(data))
        if not with_mark:
            (directory / MARK_FILE).unlink()
        ends = {**dict(zip(offsets, [*list(offsets.values())[1:], len(data)], strict=True))}
        broken = {
            position
            for position, start in offsets.items()
            if data[start : ends[position]] != whole[start : ends[position]]
        }
        list(repair_journal(directory, is_dry_run=False))

        async def story() -> list[Record]:
            async with opened(directory) as journal:
                return list(journal.read(journal.oldest))

        kept = run(story())
        assert [record for record in records if record.position not in broken] == [
            record for record in kept if record.position not in broken
        ]
        assert all(record in records for record in kept)
        assert re.search("no damaged", repair(directory)[-1])
