"""The un-flushed tail: what it keeps in memory."""

from __future__ import annotations

from pathlib import Path

from dolake.query.tail import Tail
from tests.verify.lake import HandLake, insert


def test_a_state_without_changes_is_passed_and_no_position_is_wrong_behind_it(tmp_path: Path) -> None:
    lake = HandLake(tmp_path)
    lake.append_state({"at": 0})
    lake.append(insert("1", n=1), insert("2", n=2))
    tail = Tail(tmp_path / "journal", has_source_in_key=False, bytes_max=1 << 20)
    try:
        tail.follow(0, tail.durable())
        lake.append_state({"at": 3})
        tail.follow(0, tail.durable())
        lake.append_state({"at": 4})
        lake.append(insert("3", n=3))
        tail.follow(4, tail.durable())
        found = tail.table("items")
        assert found is not None
        rows, _ = found.changes((), tail.cut(4, tail.durable()))
        assert (rows.column("_key").to_pylist(), rows.column("_position").to_pylist()) == (["3"], [5])
        assert (tail.start, tail.durable(), tail.byte_count > 0) == (4, 6, True)
    finally:
        tail.close()
        lake.close()


def test_published_changes_are_let_go_although_newer_ones_follow_and_nobody_asks(tmp_path: Path) -> None:
    """A stream never stops, so there is always something newer."""
    lake = HandLake(tmp_path)
    lake.append(*(insert(f"first-{number}", n=number) for number in range(10)))
    tail = Tail(tmp_path / "journal", has_source_in_key=False, bytes_max=1 << 20)
    try:
        for round_ in range(1, 6):
            lake.append(*(insert(f"{round_}-{number}", n=number) for number in range(10)))
            tail.follow(tail.durable() - 15, tail.durable())
            tail.follow(tail.durable() - 5, tail.durable())
            found = tail.table("items")
            assert found is not None
            assert found.change_count == 5
        assert found is not None
        rows, _ = found.changes((), tail.cut(tail.durable() - 5, tail.durable()))
        assert rows.column("_key").to_pylist() == [f"5-{number}" for number in range(5, 10)]
        assert rows.column("_source").to_pylist() == ["shop"] * 5
    finally:
        tail.close()
        lake.close()
