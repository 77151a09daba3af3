"""Which files hold rows of a key, and what is left of a change when they are written anew: tasks without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from dolake.pipeline.holding import (
    BlankJob,
    HeldJob,
    MovesJob,
    Wanted,
    blank,
    closed,
    find_held,
    find_moves,
    held,
    in_quarantine,
    in_state,
)
from dolake.pipeline.tasks import TablePlan
from dolake.tables.forgetting import Life, Move, lives_of
from tests.pipeline.test_tasks import EVENTS, OPTIONS, change, job_of, rows_of, staged_of

NESTED = change(6, "INSERT", "d", after={"n": 6, "o": {"x": [{"y": 1.5}]}, "l": ["p"]})


def written(folder: Path) -> tuple[TablePlan, str, str]:
    """The plan of a table, and its files of changes and state."""
    job = job_of(folder, [*EVENTS, NESTED])
    staged = staged_of(job)
    assert staged.state_file
    return job.plans["users"], staged.changes_file["file-path"], staged.state_file["file-path"]


def blanked(plan: TablePlan, path: str, wanted: Wanted) -> tuple[list[dict[str, Any]], int]:
    done = blank(BlankJob(path, wanted, plan.changes_schema, plan.changes_location, OPTIONS, "forgotten-1"))
    return rows_of(done.entry), done.count


def test_a_blank_change_keeps_where_and_when_it_was_and_others_keep_all(tmp_path: Path) -> None:
    plan, changes, _ = written(tmp_path)
    before = rows_of({"file-path": changes})
    after, count = blanked(plan, changes, Wanted((Life("b"), Life("d"))))
    assert count == 3
    kept = {"_sequence", "_source", "_commit_timestamp", "_position"}
    for old, new in zip(before, after, strict=True):
        if old["_key"] not in ("b", "d"):
            assert new == old
            continue
        given = {"_key": "", "_operation": "FORGOTTEN", "_timestamp": old["_commit_timestamp"]}
        assert {name: value for name, value in new.items() if value is not None} == given | {
            name: old[name] for name in kept
        }


def test_a_moved_row_is_found_under_its_keys_and_only_while_they_are_its_own(tmp_path: Path) -> None:
    plan, changes, state = written(tmp_path)
    moves = find_moves(MovesJob((changes, f"{changes}.gone")))
    assert moves == {changes: [Move(4, "a", "c")]}
    wanted = Wanted(lives_of("c", moves[changes]))
    assert find_held(HeldJob((changes,), wanted)) == {changes: 3}
    assert find_held(HeldJob((changes, state), in_state(wanted))) == {changes: 3, state: 1}, "it does not say when"
    later = Wanted((Life("a", 3), Life("b", 4)))
    assert find_held(HeldJob((changes,), later)) == {}
    rows, count = blanked(plan, changes, wanted)
    assert (count, [row["_key"] for row in rows]) == (3, ["", "b", "", "b", "", "d"])


def test_a_source_has_keys_of_its_own(tmp_path: Path) -> None:
    _, changes, _ = written(tmp_path)
    source = rows_of({"file-path": changes})[0]["_source"]
    assert find_held(HeldJob((changes,), Wanted((Life("b"),), source))) == {changes: 2}
    assert find_held(HeldJob((changes,), Wanted((Life("b"),), "another"))) == {}
    assert find_moves(MovesJob((changes,), "another")) == {}


def test_in_a_quarantine_the_key_is_a_column_or_stands_in_the_event() -> None:
    events = [
        '{"rowId":"a"}',
        '{"rowId":"c","metadata":{"previousRowId":"a"}}',
        '{"rowId":"d","metadata":{"previousRowId":"x"}}',
        'no JSON, and "previousRowId" in it',
        None,
    ]
    keys = ["a", "c", "d", "e", "f"]
    rows = pa.table({"key": keys, "position": [1, 2, 3, 4, 5], "source": ["s"] * 5, "event": events})
    assert held(rows, in_quarantine(Wanted((Life("a"),)))).tolist() == [True, True, False, False, False]
    assert held(rows, in_quarantine(Wanted(closed([Life("a")], 2)))).tolist() == [True, False, False, False, False]
