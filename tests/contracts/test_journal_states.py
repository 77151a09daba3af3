"""What every journal promises of the states of its sources. The backends are those of test_journal.py."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.errors import InvalidSequence, MessageValidationError, NotFound
from dolake.journal.base import Appended, Journal
from dolake.positions import START
from dolake.wire.source_state import STATE_MAX_BYTES, decode_state
from tests.contracts.test_journal import OTHER, Backend, backend, crash, journal, reopen
from tests.support.journals import SOURCE, WINDOW_MS, batch_of, keep, sequences_in, state_of

__all__ = ["backend", "journal"]


def state(journal: Journal, stream: StreamId = SOURCE) -> dict[str, Any]:
    return decode_state(journal.point(stream).state)


@pytest.mark.parametrize("end", [reopen, crash])
async def test_a_state_is_the_merge_of_all_patches_also_after_a_restart(
    backend: Backend, journal: Journal, end: Any
) -> None:
    await keep(
        journal,
        state_of(1, {"place": 1, "tables": {"a": 1, "b": 2}}),
        replace(batch_of(1, 3, number=2), source_state=b'{"place":3,"tables":{"a":null}}'),
        state_of(1, {"other": True}, stream=OTHER),
        batch_of(4, 4, number=3),
    )
    for _ in range(2):
        assert state(journal) == {"place": 3, "tables": {"b": 2}}
        assert state(journal, OTHER) == {"other": True}
        journal = await end(backend, journal)


async def test_a_state_without_changes_has_a_position_and_readers_of_changes_go_past_it(journal: Journal) -> None:
    answers = await keep(
        journal, batch_of(1, 2), state_of(2, {"at": 2}), state_of(3, {"at": 3}), batch_of(3, 3, number=4)
    )
    assert answers == [
        Appended(2, 2),
        Appended(3, 0, has_state=True),
        Appended(4, 0, has_state=True),
        Appended(5, 1),
    ]
    assert sequences_in(journal.read(START)) == [1, 2, 3]
    assert [(record.position, record.end) for record in journal.read(START)] == [(0, 2), (4, 5)]
    assert sequences_in(journal.read(2)) == [3]
    assert list(journal.read(2, 4)) == []


async def test_a_state_sent_again_is_a_duplicate(backend: Backend, journal: Journal) -> None:
    first, second = state_of(7, {"at": 1}), state_of(8, {"at": 2})
    await keep(journal, first, second)
    assert await keep(journal, first, second) == [Appended(2, 0), Appended(2, 0)]
    assert all(answer.is_duplicate for answer in await keep(journal, state_of(7, {"at": 1.0})))
    journal = await crash(backend, journal)
    assert await keep(journal, first, second) == [Appended(2, 0), Appended(2, 0)]
    assert state(journal) == {"at": 2}


async def test_a_state_on_its_way_is_a_duplicate_only_when_it_is_durable(backend: Backend, journal: Journal) -> None:
    sent: list[asyncio.Task[Any]] = []

    async def send_twice() -> None:
        ticket = await journal.append(state_of(1, {"at": 1}))
        sent.append(asyncio.create_task(ticket.wait()))
        sent.append(asyncio.create_task(keep(journal, state_of(1, {"at": 1}))))

    await backend.hold(send_twice)
    assert not any(task.done() for task in sent)
    backend.let_go()
    assert [await task for task in sent] == [Appended(1, 0, has_state=True), [Appended(1, 0)]]


async def test_another_state_under_an_old_number_is_refused_with_the_number_that_is_expected(journal: Journal) -> None:
    await keep(journal, state_of(1, {"at": 1}), batch_of(1, 1, number=2))
    for batch, message in (
        (state_of(1, {"at": 9}), "batch 1 of source-1 was sent before with other content"),
        (state_of(2, {"at": 9}), "batch 2 of source-1 was sent before with other content"),
        (state_of(0, {"at": 9}), "batch 0 of source-1 is not known any more"),
    ):
        with pytest.raises(InvalidSequence, match=message) as refusal:
            await journal.append(batch)
        assert refusal.value.expected == 3
    assert state(journal) == {"at": 1}


async def test_an_old_number_that_nobody_can_compare_any_more_is_refused(backend: Backend, journal: Journal) -> None:
    await keep(journal, state_of(1, {"at": 1}), state_of(2, {"at": 2}))
    backend.clock.move(WINDOW_MS + 1)
    with pytest.raises(InvalidSequence, match="is not known any more"):
        await journal.append(state_of(1, {"at": 1}))


async def test_the_state_of_a_batch_goes_with_its_changes(journal: Journal) -> None:
    """Changes that are all durable bring no state with them; of others the state is taken."""
    await keep(journal, batch_of(1, 3, number=1))
    again = replace(batch_of(1, 3, number=2), source_state=b'{"at":3}')
    assert (await keep(journal, again))[0].is_duplicate
    assert state(journal) == {}
    more = replace(batch_of(2, 4, number=2), source_state=b'{"at":4}')
    assert await keep(journal, more) == [Appended(4, 1, duplicate_count=2, has_state=True)]
    assert state(journal) == {"at": 4}


async def test_a_new_epoch_begins_without_a_state(backend: Backend, journal: Journal) -> None:
    await keep(journal, state_of(5, {"old": 1}), state_of(1, {"new": 1}, epoch=1))
    assert (state(journal), journal.point(SOURCE).number) == ({"new": 1}, 1)
    await keep(journal, batch_of(1, 1, epoch=2))
    assert state(journal) == {}
    with pytest.raises(InvalidSequence, match="epoch 1 of source-1 is over"):
        await journal.append(state_of(2, {"late": 1}, epoch=1))
    journal = await crash(backend, journal)
    assert state(journal) == {}


async def test_a_state_that_would_grow_too_large_is_refused_and_the_one_before_it_stays(journal: Journal) -> None:
    half = "x" * (STATE_MAX_BYTES // 2)
    await keep(journal, state_of(1, {"a": half}))
    with pytest.raises(MessageValidationError, match="is too large"):
        await journal.append(state_of(2, {"b": half}))
    assert list(state(journal)) == ["a"]
    await keep(journal, state_of(2, {"a": None, "b": half}))
    assert list(state(journal)) == ["b"]


async def test_states_outlive_the_records_that_brought_them(backend: Backend, journal: Journal) -> None:
    journal.register("pipeline", START)
    await keep(journal, state_of(1, {"place": 7}, stream=OTHER), replace(batch_of(1, 1), source_state=b'{"at":1}'))
    last = 1
    for last in range(2, 12):
        await keep(journal, batch_of(last, last, number=last, pad=backend.unit_bytes // 3))
    backend.clock.move(WINDOW_MS + 1)
    journal.release("pipeline", last)
    assert next(iter(journal.read(last - 1))).position > 1
    with pytest.raises(NotFound, match="no longer in the journal"):
        list(journal.read(START))
    for _ in range(2):
        assert (state(journal, OTHER), state(journal)) == ({"place": 7}, {"at": 1})
        journal = await crash(backend, journal)


async def test_states_alone_fill_and_free_the_journal_like_changes(backend: Backend, journal: Journal) -> None:
    """A source that is idle and tells its state for ever must not fill the disk."""
    journal.register("pipeline", START)
    filling = "x" * (backend.unit_bytes // 3)
    end = START
    for number in range(1, 40):
        (answer,) = await keep(journal, state_of(number, {"at": number, "filling": filling}))
        end = answer.end
        backend.clock.move(WINDOW_MS + 1)
        journal.release("pipeline", end)
    assert end == 39
    journal = await crash(backend, journal)
    assert state(journal)["at"] == 39
