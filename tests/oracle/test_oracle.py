"""Random changes through crashes at every named point: the tables equal a dictionary, the changes are there once.

`make chaos` does the same at greater length. All tests share one lake, so that what a crash broke shows in the next.
"""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import SparkSession

from dolake.crashpoints import POINTS
from tests.oracle.changes import Group, Step
from tests.oracle.driver import PIPELINE_POINTS, SERVER_POINTS, Lake
from tests.oracle.troubles import CrashAt, KillPipeline, KillServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_POINTS = (*SERVER_POINTS, *PIPELINE_POINTS)


def test_every_named_point_is_tried() -> None:
    """But for those that need a new column or a forgotten key: tests/pipeline tries them."""
    assert sorted((*_POINTS, "half_grown", "forgotten")) == sorted(POINTS)


def test_a_backlog_that_is_written_in_several_parts_adds_up(lake: Lake) -> None:
    """Sent while Spark starts, so that the first publish is large enough to be cut into slices."""
    keys = [f"key-{number}" for number in range(5_000)]
    lots = [[Group([_bulk_step(hand, at, keys) for at in range(11_000)], "none")] for hand in range(4)]
    asyncio.run(lake.send(lots, batch_max=2_000, pause_max_s=0))
    lake.publish()
    lake.assert_right(tables=["bulk"])


def test_a_long_run_without_a_crash_adds_up(lake: Lake) -> None:
    lake.run(450)
    lake.assert_right()


@pytest.mark.parametrize("point", _POINTS)
def test_a_crash_loses_nothing_and_doubles_nothing(lake: Lake, point: str) -> None:
    lake.run(50, CrashAt(lake, point))
    lake.assert_right()


@pytest.mark.chaos
def test_a_pipeline_killed_at_any_moment_loses_nothing_and_doubles_nothing(lake: Lake) -> None:
    lake.run(50, KillPipeline(lake))
    lake.assert_right()


@pytest.mark.chaos
def test_a_server_killed_at_any_moment_loses_nothing_and_doubles_nothing(lake: Lake) -> None:
    lake.run(50, KillServer(lake))
    lake.assert_right()


def test_a_transaction_is_whole_also_where_another_one_begins_inside_it(lake: Lake) -> None:
    asyncio.run(_interleave(lake))
    lake.publish()
    lake.assert_right(tables=["users"])


def test_spark_sees_what_duckdb_and_pyiceberg_see(lake: Lake, spark: SparkSession) -> None:
    lake.publish()
    lake.assert_right(spark)


async def _interleave(lake: Lake) -> None:
    """The first stream's transaction ends while the second one's is open; the second one's ends a little later."""
    first, second = lake.streams[:2]
    outer, inner = ([_note(f"{name}-{at}") for at in range(4)] for name in ("outer", "inner"))
    batches = lake.batches(first, [Group(outer, "ended")], 1, is_ended=False)
    await first.deliver(batches[:2], is_persisted=False)
    await second.deliver(lake.batches(second, [Group(inner, "left open")], is_ended=False), is_persisted=False)
    await first.deliver(batches[2:], is_persisted=False)
    await asyncio.sleep(1.5)  # time for a publish that should not be
    await second.deliver(lake.batches(second, []))


def _note(key: str) -> Step:
    return Step("users", "UPDATE", key, {"name": f"n{key}"}, None, None)


def _bulk_step(hand: int, at: int, keys: list[str]) -> Step:
    key = keys[(at * (hand + 3)) % len(keys)]
    if at % 17 == 0:
        return Step("bulk", "DELETE", key, None, None, None)
    moved = keys[(at * 7) % len(keys)] if at % 29 == 0 else None
    return Step("bulk", "UPDATE", key, {"id": at, "name": f"n{hand}"}, None, moved)
