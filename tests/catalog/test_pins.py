"""A pin shows what was there at one moment, and refuses where that is gone."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.catalog.errors import IllegalArgument
from dolake.catalog.pins import pinned
from tests.catalog.examples import START_MS, act, append, commit, ids, main, table


def published(*positions: int) -> dict[str, Any]:
    """A managed table with a snapshot for each of these positions of the journal: ids count from 1."""
    made = commit(table(), act("set-properties", updates={"dolake.managed": "true"}))
    for number, position in enumerate(positions, start=1):
        summary = {"operation": "append", "dolake.published-to": str(position)}
        made = commit(made, *append(made, number, summary=summary))
    return made


def without(metadata: dict[str, Any], *gone: int) -> dict[str, Any]:
    return commit(metadata, act("remove-snapshots", snapshot_ids=list(gone)))


def shown(metadata: dict[str, Any], position: int) -> int:
    found: int = pinned(metadata, position, None)["current-snapshot-id"]
    return found


def test_each_position_shows_the_last_publish_that_it_covers() -> None:
    made = published(10, 20, 30)
    assert [shown(made, position) for position in (9, 10, 19, 20, 29, 30, 99)] == [-1, 1, 1, 2, 2, 3, 3]
    then = pinned(made, 20, None)
    assert ids(then["snapshots"]) == ids(then["snapshot-log"]) == [1, 2]


def test_what_is_left_around_a_gap_is_shown_and_what_is_gone_is_refused() -> None:
    made = without(published(10, 20, 30, 40, 50), 2, 3)
    assert [shown(made, position) for position in (9, 10, 19, 40, 49, 50)] == [-1, 1, 1, 4, 4, 5]
    then = pinned(made, 45, None)
    assert ids(then["snapshots"]) == ids(then["snapshot-log"]) == [1, 4], "not only up to the gap"
    for position in (20, 25, 30, 39):
        with pytest.raises(IllegalArgument, match=r"no snapshot of this moment any more.*lake@10"):
            shown(made, position)


def test_a_moment_before_all_that_is_kept_is_refused_and_not_an_empty_table() -> None:
    made = without(published(10, 20, 30), 1)
    assert shown(made, 20) == 2
    with pytest.raises(IllegalArgument, match="the first that is kept of this table is lake@20"):
        shown(made, 10)


def test_a_compaction_between_leaves_no_gap() -> None:
    made = without(published(10, 10, 20), 2)
    assert [shown(made, position) for position in (10, 15, 20)] == [1, 1, 3]


def test_a_table_of_somebody_else_is_shown_as_it_was_then_also_when_it_went_back_later() -> None:
    back = commit(table(history=3), main(1), now_ms=START_MS + 50_000)
    at_2, now = (pinned(back, None, START_MS + ms) for ms in (2_500, 60_000))
    assert (at_2["current-snapshot-id"], ids(at_2["snapshot-log"])) == (2, [1, 2])
    assert (now["current-snapshot-id"], ids(now["snapshot-log"])) == (1, [1, 2, 3, 1])
    made = without(table(history=4), 2)
    assert [pinned(made, None, START_MS + ms)["current-snapshot-id"] for ms in (1_500, 2_500, 3_500)] == [1, 1, 3]


def test_a_table_without_a_log_is_followed_by_the_parents_of_its_snapshots() -> None:
    made = table(history=3) | {"snapshot-log": []}
    assert [pinned(made, None, START_MS + ms)["current-snapshot-id"] for ms in (500, 1_500, 3_500)] == [-1, 1, 3]
