"""Who may change the tables, in which order, and whose files must stay."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest

from dolake.errors import OutcomeUnknown
from dolake.pipeline.files import new_file
from dolake.pipeline.garbage import _OUR_DATA, Found, Waiting
from dolake.pipeline.turns import InFlight, Turns


def test_who_comes_again_and_again_waits_for_those_who_came_before() -> None:
    turns, order, is_done = Turns(), list[str](), threading.Event()

    def land() -> None:
        with turns:
            order.append("landed")
        is_done.set()

    with turns:
        waiting = threading.Thread(target=land)
        waiting.start()
        while turns._given < 2:
            time.sleep(0.001)
    for _ in range(3):
        with turns:
            order.append("published")
    waiting.join()
    assert order[0] == "landed"


def test_files_of_a_commit_must_stay_while_it_is_under_way_and_when_nobody_knows() -> None:
    in_flight, before_s = InFlight(), time.time()
    assert in_flight.since_s >= before_s
    with in_flight.one(), in_flight.one():
        began_s = in_flight.since_s
        time.sleep(0.01)
        assert in_flight.since_s == began_s <= time.time() - 0.01
    assert in_flight.since_s > began_s
    with pytest.raises(ValueError, match="known"), in_flight.one():
        raise ValueError("it is known that this failed")
    after_s = in_flight.since_s
    with pytest.raises(OutcomeUnknown), in_flight.one():
        raise OutcomeUnknown("nobody knows")
    time.sleep(0.01)
    assert after_s - 1 < in_flight.since_s < time.time() - 0.01


@pytest.mark.parametrize("work", ["12", "compacted", "retyped"])
def test_files_of_every_kind_of_work_can_become_garbage(work: str) -> None:
    """A file that this does not know stays for ever."""
    name = new_file("file:/table", f"{work}-{uuid.uuid4().hex[:12]}").rpartition("/")[2]
    assert _OUR_DATA.fullmatch(name)


def test_a_file_goes_only_when_it_was_unnamed_long_ago_and_is_unnamed_now(tmp_path: Path) -> None:
    old, young = Found("/old", time.time() - 100, 1), Found("/young", time.time() + 100, 1)

    def look(*found: Found, grace_s: float, since_s: float | None = None) -> list[str]:
        waiting = Waiting(tmp_path / "upkeep" / "table.json")  # each time from the disk, as after a restart
        chosen = time.time() if since_s is None else since_s
        return [each.path for each in waiting.look(list(found), grace_s=grace_s, in_flight_since_s=chosen)]

    assert look(old, young, grace_s=60) == []
    assert look(old, young, grace_s=0.0) == ["/old"]
    (tmp_path / "upkeep" / "table.json").write_bytes(b"{")  # lost: they wait once more
    assert look(old, grace_s=0.01) == []
    assert look(old, grace_s=0.0, since_s=time.time() - 200) == []  # a commit is under way since then
    time.sleep(0.02)
    assert look(old, grace_s=0.01) == [], "while it was in flight it did not wait"
    time.sleep(0.02)
    assert look(grace_s=0.01) == []  # something named it again meanwhile
    assert look(old, grace_s=0.01) == []
    time.sleep(0.02)
    assert look(old, grace_s=0.01) == ["/old"]
