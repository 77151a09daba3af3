"""Where a publish may end: never inside a transaction, also where transactions of several streams overlap."""

from __future__ import annotations

import json
from pathlib import Path

from dolake.changes import Batch, StreamId
from dolake.journal.reader import JournalReader
from dolake.pipeline.cut import Cut, Limits, next_cut
from tests.support import speaker
from tests.support.journals import keep, opened

_LIMITS = Limits(events_max=1_000, bytes_max=1 << 20, transaction_wait_max_ms=1 << 40, transaction_bytes_max=1 << 20)
_A, _B = StreamId("a"), StreamId("b")


async def test_nothing_is_published_of_a_transaction_in_which_one_that_is_open_began(tmp_path: Path) -> None:
    """A's transaction is 0, 1 and 3; B's began at 2 and is open. A publish of 0 and 1 would show half of A's."""
    journal = (_batch(_A, 1, 2, "t1"), _batch(_B, 1, 1, "t2"), _batch(_A, 3, 3, "t1", is_end=True))
    assert (await _cut(tmp_path, *journal)).end == 0


async def test_what_is_whole_before_such_a_transaction_is_published(tmp_path: Path) -> None:
    journal = (
        _batch(_A, 1, 2, None),
        _batch(_A, 3, 4, "t1"),
        _batch(_B, 1, 1, "t2"),
        _batch(_A, 5, 5, "t1", is_end=True),
    )
    assert (await _cut(tmp_path, *journal)).end == 2


async def test_a_full_cut_goes_on_to_where_no_transaction_is_split(tmp_path: Path) -> None:
    """The cut is full at once, and the first place at which everything is whole is behind both transactions."""
    journal = (
        _batch(_A, 1, 2, "t1"),
        _batch(_B, 1, 2, "t2"),
        _batch(_A, 3, 3, "t1", is_end=True),
        _batch(_B, 3, 3, "t2", is_end=True),
        _batch(_B, 4, 4, None),
    )
    limits = Limits(1, 1 << 20, 1 << 40, 1 << 20)
    assert (await _cut(tmp_path, *journal, limits=limits)).end == 6


async def _cut(directory: Path, *batches: Batch, limits: Limits = _LIMITS) -> Cut:
    async with opened(directory) as journal:
        await keep(journal, *batches)
        with JournalReader(directory) as reader:
            return next_cut(reader, 0, journal.durable, limits)


def _batch(stream: StreamId, first: int, last: int, transaction: str | None, *, is_end: bool = False) -> Batch:
    metadata = {} if transaction is None else {"metadata": {"transactionId": transaction, "transactionEnd": is_end}}
    events = speaker.events(first, last, **metadata)
    message = speaker.batch(first, events, source=stream.source)
    return Batch(stream, 0, first, first, last, len(events), ("users",), json.dumps(message).encode())
