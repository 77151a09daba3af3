"""States of sources in a journal's files: after a torn write, in an earlier format, in a repair, on a full disk."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.changes import Batch
from dolake.errors import BufferOverflowError, Damaged, MessageValidationError
from dolake.journal import embedded, record, segment
from dolake.journal.embedded import EmbeddedJournal
from dolake.journal.reader import JournalReader
from dolake.journal.repair import check_journal, repair_journal
from dolake.positions import START
from dolake.wire.source_state import decode_state
from tests.support.aio import run, until
from tests.support.journals import (
    SOURCE,
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
    state_of,
)
from tests.support.property import examples


def state(journal: EmbeddedJournal) -> dict[str, Any]:
    return decode_state(journal.point(SOURCE).state)


# --- after a torn write ----------------------------------------------------------------------------------------------

Kind = tuple[int, bool]
"""How many changes a batch has, and whether a state goes with it; without changes one always does."""


def batches_of(kinds: list[Kind]) -> list[Batch]:
    """Batches of these kinds. Each state says how many batches there are up to it."""
    sequences, found = itertools.count(1), []
    for number, (count, has_state) in enumerate(kinds, 1):
        patch = {"at": number, str(number % 3): {"n": number, "gone": None}}
        batch = state_of(number, patch)
        if count:
            first = next(sequences)
            last = max([first, *itertools.islice(sequences, count - 1)])
            with_changes = batch_of(first, last, number=number, pad=300 * count)
            batch = replace(with_changes, source_state=batch.source_state if has_state else b"")
        found.append(batch)
    return found


def expected_after(batches: list[Batch]) -> tuple[int, dict[str, Any], list[int]]:
    """Position, state and sequences when exactly these are durable."""
    point = record.StreamPoint()
    for batch in batches:
        point = point.after(batch)
    position = sum(max(1, batch.change_count) for batch in batches)
    sequences = [
        at for each in batches if each.change_count for at in range(each.sequence_first, each.sequence_last + 1)
    ]
    return position, decode_state(point.state), sequences


async def write_image(home: Path, durable: list[Batch], torn: list[Batch]) -> Path:
    """The files of a process that was killed while `torn` was written in one go, behind what is durable."""
    disk = GatedDisk()
    async with opened(home / "live", disk=disk) as journal:
        await keep(journal, *durable[:-1])
        disk.hold()
        last = await journal.append(durable[-1])
        await until(lambda: disk.arrived_count == 1)
        for batch in torn:
            await journal.append(batch)
        disk.let_one_go()
        await last.wait()
        await until(lambda: disk.arrived_count == 2)
        image = copy_files(home / "live", home / "image")
        disk.let_go()
    return image


kinds = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=examples(60))
@given(durable=kinds, torn=kinds, where=st.floats(0, 1), spoils=st.booleans(), seed=st.integers(0, 2**32))
def test_a_torn_write_leaves_the_state_of_the_records_that_are_left(
    durable: list[Kind], torn: list[Kind], where: float, spoils: bool, seed: int
) -> None:
    async def story(home: Path) -> None:
        batches = batches_of(durable + torn)
        image = await write_image(home, batches[: len(durable)], batches[len(durable) :])
        path, mark = segments_of(image)[-1], mark_of(image)
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0"))
        at = mark.offset + int(where * (end - mark.offset))
        data[at:] = random.Random(seed).randbytes(len(data) - at) if spoils else bytes(len(data) - at)
        path.write_bytes(bytes(data))
        wholes = [expected_after(batches[:count]) for count in range(len(batches) + 1)]
        async with opened(image) as journal:
            left = next(whole for whole in wholes if whole[0] == journal.durable)
            assert left[0] == journal.durable >= mark.position
            assert (state(journal), sequences_in(journal.read(START))) == left[1:]
            await keep(journal, *batches[len(durable) - 1 :])
            assert (journal.durable, state(journal), sequences_in(journal.read(START))) == wholes[-1]

    with tempfile.TemporaryDirectory() as name:
        run(story(Path(name)))


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (batch_of(1, 3, number=1, pad=5_000), state_of(2, {"at": 3})),
        (state_of(1, {"at": 1}), batch_of(1, 3, number=2, pad=5_000)),
        (state_of(1, {"at": 1}), state_of(2, {"at": 2})),
    ],
)
async def test_nothing_is_kept_before_an_earlier_batch_of_its_stream_that_was_refused(
    first: Batch, second: Batch, tmp_path: Path
) -> None:
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        disk.hold()
        held = await journal.append(state_of(1, {}, stream=replace(SOURCE, shard="other")))
        await until(lambda: disk.arrived_count == 1)
        disk.is_full = True
        tickets = [await journal.append(first), await journal.append(second)]
        disk.let_go()
        await held.wait()
        for ticket in tickets:
            with pytest.raises(BufferOverflowError):
                await ticket.wait()
        disk.is_full = False
        assert (journal.point(SOURCE).number, state(journal)) == (0, {})
        await keep(journal, first, second)
        assert (journal.point(SOURCE).number, journal.durable) == (2, expected_after([first, second])[0] + 1)


async def test_the_states_of_all_streams_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STATES_MAX_BYTES", 100)
    async with opened(tmp_path) as journal:
        await keep(
            journal, state_of(1, {"a": "x" * 40}), state_of(1, {"a": "x" * 40}, stream=replace(SOURCE, shard="b"))
        )
        with pytest.raises(MessageValidationError, match="the states of all streams together would have 1"):
            await journal.append(state_of(2, {"b": "x" * 20}))
        await keep(journal, state_of(2, {"a": None}), state_of(3, {"b": "x" * 40}))
        assert state(journal) == {"b": "x" * 40}


# --- who reads -------------------------------------------------------------------------------------------------------


async def test_who_follows_the_journal_sees_states_only_when_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, state_of(1, {"at": 1}), batch_of(1, 2, number=2), state_of(3, {"at": 3}))
        with JournalReader(tmp_path) as reader:
            looks = itertools.count()
            assert [each.number for each in reader.follow(is_stopped=lambda: next(looks) == 2)] == [2]
            assert [each.number for each in reader.read(with_states=True)] == [1, 2, 3]
            states = [each for each in reader.read(with_states=True) if not each.change_count]
            assert [(each.position, each.end, each.payload, each.source_state) for each in states] == [
                (0, 1, b"", b'{"at": 1}'),
                (3, 4, b"", b'{"at": 3}'),
            ]
            assert [each.number for each in reader.read(3, 4, with_states=True)] == [3]


# --- an earlier format -----------------------------------------------------------------------------------------------


def as_format_1(directory: Path) -> None:
    """Write each file as the release before this one did."""
    for path in segments_of(directory):
        descriptor = path.open("rb")
        with descriptor:
            head = segment.read_header(descriptor.fileno(), path)
            pieces = [(header, bytes(body)) for _, header, body in segment.Scan(descriptor.fileno())]
        raw = bytearray(head.encode())
        raw[8] = 1
        for header, body in pieces:
            meta, payload = body[: header.meta_length], body[header.meta_length :]
            raw += b"".join(
                record.encode(
                    header.kind,
                    old_meta(header.kind, meta),
                    payload,
                    position=header.position,
                    change_count=header.change_count,
                    commit_timestamp_ms=header.commit_timestamp_ms,
                    synced=min(header.synced, len(raw)),
                )
            )
        path.write_bytes(bytes(raw))


def old_meta(kind: record.Kind, meta: bytes) -> bytes:
    found = msgspec.msgpack.decode(meta)
    if kind is record.Kind.BATCH:
        return msgspec.msgpack.encode(found[:7])
    streams, tables = found
    return msgspec.msgpack.encode([[[source, shard, point[:3]] for source, shard, point in streams], tables])


async def test_a_journal_of_format_1_is_read_and_goes_on_in_format_2(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        last = await fill(journal, 2)
    as_format_1(tmp_path)
    (tmp_path / "durable.mark").unlink()
    versions = [path.read_bytes()[8] for path in segments_of(tmp_path)]
    assert set(versions) == {1}
    async with opened(tmp_path) as journal:
        assert sequences_in(journal.read(START)) == list(range(1, last + 1))
        await keep(journal, state_of(last + 1, {"at": last}))
    versions = [path.read_bytes()[8] for path in segments_of(tmp_path)]
    assert (set(versions[:-1]), versions[-1]) == ({1}, 2)
    async with opened(tmp_path) as journal:
        assert sequences_in(journal.read(START)) == list(range(1, last + 1))
        assert state(journal) == {"at": last}


async def test_a_file_is_raised_before_anything_of_the_new_format_is_in_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 3))
    as_format_1(tmp_path)
    (tmp_path / "durable.mark").unlink()
    disk = GatedDisk()
    async with opened(tmp_path, disk=disk):
        assert [path.read_bytes()[8] for path in segments_of(tmp_path)] == [2]


# --- damage ----------------------------------------------------------------------------------------------------------


async def test_a_repair_keeps_states_forms_and_flags(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(
            journal,
            state_of(1, {"at": 1, "kept": True}),
            batch_of(1, 2, number=2),
            replace(batch_of(3, 4, number=3), source_state=b'{"at":4}'),
            state_of(4, {"later": 1}),
        )
    with JournalReader(tmp_path) as reader:
        before = {each.number: each for each in reader.read(with_states=True)}
    (path,) = segments_of(tmp_path)
    flip(path, path.read_bytes().index(b'"value-1"'))
    assert [problem for problem in check_journal(tmp_path).problems if "changes 1 to 3 are missing" in problem]
    assert list(repair_journal(tmp_path, is_dry_run=False))[-1] == "done"
    assert not check_journal(tmp_path).problems
    with JournalReader(tmp_path) as reader:
        after = {each.number: each for each in reader.read(with_states=True)}
    assert after == {number: each for number, each in before.items() if number != 2}
    async with opened(tmp_path) as journal:
        assert (journal.durable, state(journal)) == (6, {"at": 4, "kept": True, "later": 1})


async def test_a_lost_state_that_was_durable_is_damage(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await keep(journal, batch_of(1, 1), state_of(2, {"at": 1}))
        mark = mark_of(tmp_path)
    (path,) = segments_of(tmp_path)
    flip(path, mark.offset - 20)
    with pytest.raises(Damaged, match="records up to position 2 were durable, intact ones end at 1"):
        async with opened(tmp_path):
            pass


async def test_many_streams_tell_their_states_at_once(tmp_path: Path) -> None:
    streams = [replace(SOURCE, shard=str(shard)) for shard in range(40)]
    async with opened(tmp_path) as journal:
        await asyncio.gather(
            *(keep(journal, *(state_of(n, {"at": n}, stream=stream) for n in range(1, 6))) for stream in streams)
        )
        assert journal.durable == 200
        assert {decode_state(journal.point(stream).state)["at"] for stream in streams} == {5}
