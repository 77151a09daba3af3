"""Which transactions of the tail are whole at a position, and which of its changes are shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.errors import Unavailable
from dolake.positions import Position
from dolake.query.tail import Tail
from dolake.tables.rules import LakeRules
from tests.verify.lake import HandLake, insert

BANK, SHOP = StreamId("bank"), StreamId("shop")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[HandLake]:
    with contextlib.closing(HandLake(tmp_path)) as lake:
        yield lake


@contextlib.contextmanager
def tail_of(
    lake: HandLake, *, start: Position = 0, bytes_max: int = 1 << 20, rules: LakeRules | None = None
) -> Iterator[Tail]:
    """The tail from here on, read up to its end."""
    tail = Tail(lake.journal, has_source_in_key=False, bytes_max=bytes_max, rules=rules or LakeRules())
    try:
        tail.follow(start, tail.durable())
        yield tail
    finally:
        tail.close()


def change(key: str, transaction: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {} if transaction is None else {"metadata": {"transactionId": transaction} | more}
    return insert(key, n=1) | metadata


def held(tail: Tail) -> list[dict[str, Position]]:
    """What is held back at each position, from the beginning to the end of the journal."""
    return [{each.source: at for each, at in tail.cut(0, end).held} for end in range(tail.durable() + 1)]


def shown(tail: Tail, start: Position, end: Position) -> list[str]:
    found = tail.table("items")
    assert found is not None
    return list(found.changes((), tail.cut(start, end))[0].column("_key").to_pylist())


def test_a_transaction_is_held_back_until_its_end_and_from_then_on_never(lake: HandLake) -> None:
    lake.append(change("a"), source="bank")
    lake.append(change("b", "t"), source="bank")
    lake.append(change("c"), source="shop")
    lake.append(change("d", "t", transactionEnd=True), source="bank")
    with tail_of(lake) as tail:
        assert held(tail) == [{}, {}, {"bank": 1}, {"bank": 1}, {}]
        assert shown(tail, 0, 3) == ["a", "c"]
        assert shown(tail, 0, 4) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("is_one_batch", [False, True], ids=["in the next batch", "in the same batch"])
@pytest.mark.parametrize("after", [None, "other"], ids=["without a transaction", "of another transaction"])
def test_the_next_change_of_its_stream_that_is_not_of_it_ends_a_transaction(
    lake: HandLake, after: str | None, is_one_batch: bool
) -> None:
    batches = [change("a", "t"), change("b", "t"), change("c", after), change("d", after, transactionEnd=True)]
    for batch in [batches] if is_one_batch else [[each] for each in batches]:
        lake.append(*batch, source="bank")
    with tail_of(lake) as tail:
        assert held(tail) == [{}, {"bank": 0}, {"bank": 0}, {} if after is None else {"bank": 2}, {}]


def test_a_transaction_that_has_ended_is_still_held_back_for_an_answer_from_before_its_end(lake: HandLake) -> None:
    """A view that is being made keeps its position, although the tables are further by then."""
    lake.append(change("a"), change("b", "t"), source="bank")
    lake.append(change("c"), source="shop")
    lake.append(change("d", "t", transactionEnd=True), source="bank")
    with tail_of(lake) as tail:
        assert tail.pin(1)
        tail.follow(1, tail.durable())
        assert held(tail)[3] == {"bank": 1}
        assert shown(tail, 1, 3) == ["c"]


# --- what is kept of the tail ----------------------------------------------------------------------------------------


def test_what_a_view_that_is_being_made_reads_stays_until_it_is_unpinned(lake: HandLake) -> None:
    for key in "abcd":
        lake.append(change(key))
    with tail_of(lake) as tail:
        assert tail.pin(1)
        tail.follow(3, tail.durable())
        assert (tail.start, shown(tail, 1, 4)) == (1, ["b", "c", "d"])
        tail.unpin(1)
        tail.follow(3, tail.durable())
        assert (tail.start, shown(tail, 3, 4)) == (3, ["d"])
        assert not tail.pin(2)
        assert tail.pin(3)


def test_a_publish_beyond_all_that_was_read_takes_nothing_from_a_view_that_is_being_made(lake: HandLake) -> None:
    lake.append(change("a"), change("b"))
    with tail_of(lake) as tail:
        assert tail.pin(0)
        lake.append(change("c"), change("d"))
        tail.follow(4, tail.durable())
        assert shown(tail, 0, 4) == ["a", "b", "c", "d"]


def test_a_tail_that_begins_inside_a_batch_has_only_what_is_not_in_the_tables(lake: HandLake) -> None:
    lake.append(change("a"), change("b"), change("c"))
    with tail_of(lake, start=2) as tail:
        assert shown(tail, 2, 3) == ["c"]
        found = tail.table("items")
        assert found is not None
        assert found.change_count == 1


def test_a_tail_that_would_be_larger_than_its_limit_is_refused(lake: HandLake) -> None:
    lake.append(*(change(str(number)) for number in range(100)))
    with pytest.raises(Unavailable, match="wait to be published"), tail_of(lake, bytes_max=1_000):
        pass


def test_a_table_that_the_lake_does_not_take_is_not_in_the_tail(lake: HandLake) -> None:
    lake.append(insert("a", n=1), insert("b", "private.items", n=1))
    with tail_of(lake, rules=LakeRules(excluded=("private.*",))) as tail:
        assert shown(tail, 0, 2) == ["a"]
        assert tail.table("private.items") is None


def test_the_time_of_a_position_and_the_position_at_a_time_are_those_of_the_journal(lake: HandLake) -> None:
    for key in "abc":
        lake.append(change(key))
    with tail_of(lake) as tail:
        times = [tail.time_of(position) or 0 for position in (1, 2, 3)]
        assert 0 < times[0] < times[1] < times[2]
        for position, time_ms in enumerate(times, 1):
            assert tail.position_at(time_ms) == position
            assert tail.position_at(time_ms - 1) == (position - 1 or None)
        tail.follow(2, tail.durable())
        assert tail.time_of(2) == times[1]
