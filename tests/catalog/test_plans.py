"""Plans that are made and kept: how many, how long, and what is done to one that takes too much."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dolake.catalog.errors import NoSuchPlan, NoSuchPlanTask, ScanTooLarge
from dolake.catalog.pages import Pages, unpacked
from dolake.catalog.plans import Plans
from dolake.catalog.scans import PlanTask, Scan, read_task
from dolake.errors import Unavailable
from dolake.settings import CatalogSettings

SCAN, ME = Scan(1, 0), ("me", "table")
MIB = 1024 * 1024


def of_size(size: int) -> Callable[[Callable[[], None]], list[bytes]]:
    return lambda _may_go_on: [bytes(size)]


def endless(may_go_on: Callable[[], None]) -> list[bytes]:
    while True:
        may_go_on()
        time.sleep(0.001)


async def test_a_plan_is_its_owners_alone() -> None:
    plans = Plans(CatalogSettings(), lambda: 0)
    plan = plans.begin(ME, SCAN, of_size(3))
    assert await plans.wait(plan, 10_000)
    assert plans.find(plan.id, ME) is plan
    assert plans.find(plan.id, ("you", "table")) is None
    assert plans.find(plan.id, ("me", "other")) is None
    await plans.close()


async def test_the_longest_unused_plans_make_room() -> None:
    plans = Plans(CatalogSettings(plan_memory_max_bytes=2 * MIB), lambda: 0)
    made = []
    for _ in range(3):
        made.append(plans.begin(ME, SCAN, of_size(MIB - 1)))
        assert await plans.wait(made[-1], 10_000)
        assert plans.find(made[0].id, ME), "used again and again, it stays"
    assert plans.find(made[1].id, ME) is None
    assert plans.kept_bytes <= 2 * MIB
    await plans.close()


async def test_a_plan_that_nobody_used_for_ten_minutes_is_forgotten() -> None:
    now_ms = [0]
    plans = Plans(CatalogSettings(), lambda: now_ms[0])
    plan = plans.begin(ME, SCAN, of_size(3))
    assert await plans.wait(plan, 10_000)
    now_ms[0] = 9 * 60_000
    assert plans.find(plan.id, ME)
    now_ms[0] += 11 * 60_000
    assert plans.find(plan.id, ME) is None
    assert plans.kept_count == 0
    await plans.close()


async def test_planning_ends_when_it_is_cancelled_or_takes_too_long() -> None:
    plans = Plans(CatalogSettings(plan_timeout_ms=50), lambda: 0)
    slow = plans.begin(ME, SCAN, endless)
    assert not await plans.wait(slow, 1)
    assert await plans.wait(slow, 10_000)
    with pytest.raises(ScanTooLarge, match="longer than 50 ms"):
        assert slow.pages
    await plans.close()
    plans = Plans(CatalogSettings(), lambda: 0)
    plan = plans.begin(ME, SCAN, endless)
    plans.drop(plan)
    assert plans.find(plan.id, ME) is None
    assert await plans.wait(plan, 10_000)
    with pytest.raises(NoSuchPlan):
        assert plan.pages
    assert plans.outcome_counts["NoSuchPlanIdException"] == 1
    plans.begin(ME, SCAN, endless)
    await plans.close()  # does not wait for what would not end


async def test_more_plans_at_once_than_can_be_made_are_refused() -> None:
    plans, go_on = Plans(CatalogSettings(), lambda: 0), threading.Event()

    def waiting(_may_go_on: Any) -> list[bytes]:
        go_on.wait(10)
        return []

    for _ in range(64):
        plans.begin(ME, SCAN, waiting)
    with pytest.raises(Unavailable, match="too many scans"):
        plans.begin(ME, SCAN, waiting)
    go_on.set()
    await plans.close()


def test_a_page_has_few_bytes_and_every_delete_file_that_it_names() -> None:
    pages = Pages(tasks_max=100, packed_max_bytes=MIB, page_max_bytes=60)
    for number in range(6):
        pages.add(b'{"n":%d}' % number, [("d", b'"shared"'), (f"{number}", b'"d%d"' % number)], b"true")
    made = [msgspec.json.decode(b"{" + unpacked(page) + b"}") for page in pages.close()]
    assert len(made) > 1
    assert [task["data-file"]["n"] for page in made for task in page["file-scan-tasks"]] == list(range(6))
    for page in made:
        for task in page["file-scan-tasks"]:
            named = [page["delete-files"][at] for at in task["delete-file-references"]]
            assert named == ["shared", f"d{task['data-file']['n']}"]


def test_a_plan_that_grows_past_its_bound_is_refused() -> None:
    pages = Pages(tasks_max=1, packed_max_bytes=500)

    def fill() -> None:
        for number in range(100):
            pages.add(b'{"n":%d}' % number, [], b"true")

    with pytest.raises(ScanTooLarge, match="more than 500 bytes"):
        fill()


def test_a_plan_task_says_all_of_its_scan() -> None:
    scan = Scan(1, 2, 3, {"type": "is-null", "term": "é"}, False, ("a",), ("b",), 4)
    task = PlanTask("f79c3e09-677c-4bbd-a479-3f349cb785e7", 7, scan)
    assert read_task(task.encoded()) == task


def test_a_plan_task_with_a_filter_without_a_bottom_never_was() -> None:
    deep: Any = 1
    for _ in range(700):
        deep = [deep]
    with pytest.raises(NoSuchPlanTask):
        read_task(PlanTask("f79c3e09-677c-4bbd-a479-3f349cb785e7", 7, Scan(1, 0, None, deep)).encoded())
