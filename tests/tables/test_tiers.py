"""Which place a file is in, how old a partition is, and what moves in which pieces: pure rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dolake.errors import InvalidInput
from dolake.tables.maintenance import FileFacts, Held, TableFacts, candidates, held_by, moves_due, moves_to
from dolake.tables.tiers import COLD, WARM, Tiers, checked_tiers, partition_end_ms
from tests.tables.test_maintenance import MB, RULES

TIERS = Tiers("file:///lake/warehouse", "file:///lake/warehouse-cold")
DAY_MS = 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_a_path_says_its_tier() -> None:
    assert TIERS.of("file:///lake/warehouse/default/t/data/a.parquet") == WARM
    assert TIERS.of("file:///lake/warehouse-cold/default/t/data/a.parquet") == COLD
    assert TIERS.of("file:///lake/warehouse-colder/default/t/data/a.parquet") == WARM


def test_a_table_has_the_same_path_in_both_places_and_one_elsewhere_a_path_of_its_own() -> None:
    assert TIERS.folders("file:///lake/warehouse/default/t") == (
        "file:///lake/warehouse/default/t",
        "file:///lake/warehouse-cold/default/t",
    )
    one, other = (TIERS.folder(f"file:///shared/{name}", COLD) for name in "ab")
    assert one != other
    assert one.startswith("file:///lake/warehouse-cold/~elsewhere/")


@pytest.mark.parametrize("cold", ["s3://b/lake", "s3://b"])
def test_a_cold_place_with_the_warehouse_in_it_is_refused(cold: str) -> None:
    with pytest.raises(InvalidInput, match="cold location"):
        checked_tiers(Tiers("s3://b/lake", cold))
    assert checked_tiers(Tiers("s3://b/lake", "s3://b/lake/cold"))


@pytest.mark.parametrize(
    ("transform", "kind", "value", "end"),
    [
        ("day", "timestamptz", "2024-01-15", "2024-01-16"),
        ("day", "timestamptz", 19737, "2024-01-16"),
        ("day", "date", 0, "1970-01-02"),
        ("hour", "timestamp", 24, "1970-01-02T01:00:00"),
        ("month", "date", 11, "1971-01-01"),
        ("month", "date", 648, "2024-02-01"),
        ("year", "date", 54, "2025-01-01"),
        ("identity", "date", "2024-02-28", "2024-02-29"),
    ],
)
def test_a_partition_ends_with_its_span_of_time(transform: str, kind: str, value: Any, end: str) -> None:
    assert partition_end_ms([(transform, kind, value)]) == ms(end)


@pytest.mark.parametrize(
    "field",
    [
        ("bucket[4]", "string", 3),
        ("identity", "string", "2024-01-15"),
        ("day", "date", None),
        ("year", "date", 9_000),
        ("void", "date", None),
    ],
)
def test_what_is_no_span_of_time_never_ends(field: tuple[str, str, Any]) -> None:
    assert partition_end_ms([field]) is None
    assert partition_end_ms([field, ("day", "date", "2024-01-15"), ("month", "date", "2024-03")]) == ms("2024-04-01")


def file(path: str, day: int | None, size_mb: int = 1, **more: Any) -> FileFacts:
    ended_ms = None if day is None else (day + 1) * DAY_MS
    tier = COLD if path.startswith("cold") else WARM
    facts = FileFacts(path, size_mb * MB, 1_000, partition=f"dt={day}", tier=tier, ended_ms=ended_ms)
    return replace(facts, **more)


def test_warm_files_of_partitions_that_ended_long_enough_ago_move_the_largest_first() -> None:
    facts = TableFacts("t", [file("a", 9), file("c", 1), file("b", 3), file("d", None), file("cold", 1), file("e", 3)])
    now_ms = 14 * DAY_MS
    assert [each.paths for each in moves_due(facts, RULES, 10, now_ms)] == [("b", "e"), ("c",)]
    assert [each.paths for each in moves_due(facts, RULES, 10, now_ms - 1)] == [("c",)], "not a millisecond early"
    assert moves_due(facts, RULES, 0, now_ms) == [], "0 means never"
    assert {each.kind for each in moves_due(facts, RULES, 1, now_ms)} == {"tiers"}


def test_a_move_is_cut_into_pieces_of_files_and_bytes() -> None:
    facts = TableFacts("t", [file(str(n), 1, 100, rows=1_000_000) for n in range(5)])
    assert [len(each.paths) for each in moves_to(facts, RULES, COLD)] == [2, 2, 1]
    assert [len(each.paths) for each in moves_to(facts, replace(RULES, move_size_max_bytes=1), COLD)] == [1] * 5
    few = replace(RULES, max_files_to_compact=4, move_size_max_bytes=1_000 * MB)
    assert [len(each.paths) for each in moves_to(facts, few, COLD)] == [4, 1]
    assert moves_to(facts, RULES, WARM) == []


def test_files_of_two_tiers_do_not_become_one() -> None:
    facts = TableFacts("t", [file(f"{place}{n}", 1) for place in ("cold", "warm") for n in range(6)])
    found = candidates(facts, RULES, 0, is_urgent=False)
    assert sorted(sorted(each.paths)[0][:4] for each in found) == ["cold", "warm"]
    assert all(len({path[:4] for path in each.paths}) == 1 for each in found)


def test_what_a_tier_holds_and_costs() -> None:
    held = held_by([file("a", 1, 500, deleted_rows=100), file("b", 2, 500), file("cold", 1, 250)])
    assert held == {WARM: Held(2, 1_900, 1_000 * MB), COLD: Held(1, 1_000, 250 * MB)}
    assert held[WARM].cost(0.015) == pytest.approx(0.015)
