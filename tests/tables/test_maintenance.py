"""Which files are merged, and how many there can be."""

from __future__ import annotations

import dataclasses

from dolake.tables.maintenance import (
    MERGE_FILES_MAX,
    MERGE_FILES_MIN,
    MERGE_ROWS_MAX,
    Candidate,
    FileFacts,
    Rules,
    TableFacts,
    candidates,
    files_to_merge,
    groups_to_merge,
    memory_of,
)
from dolake.tables.thinning import History, Steps

MB = 1_000_000
RULES = Rules(
    min_files_to_compact=5,
    max_files_to_compact=100,
    target_file_size_bytes=128 * MB,
    deleted_share_max=0.2,
    small_files_max=8,
    manifests_max=100,
    snapshots=Steps(all_ms=1_000, minutely_ms=1_000, hourly_ms=1_000, daily_ms=1_000, count_max=1_000),
    move_size_max_bytes=256 * MB,
    memory_max_bytes=512 * MB,
)


def sizes(*rows: int) -> dict[str, int]:
    return {f"{number}.parquet": count for number, count in enumerate(rows)}


def test_few_files_and_large_files_stay_as_they_are() -> None:
    assert files_to_merge({}) == []
    assert files_to_merge(sizes(*[100] * (MERGE_FILES_MIN - 1))) == []
    assert files_to_merge(sizes(*[60_000] * 20)) == []


def test_enough_small_files_become_one_and_a_much_larger_one_stays() -> None:
    small = sizes(*[100] * MERGE_FILES_MIN, 5_000)
    assert files_to_merge(small) == [f"{number}.parquet" for number in range(MERGE_FILES_MIN)]
    assert len(files_to_merge(sizes(*[100] * MERGE_FILES_MIN, 2_000))) == MERGE_FILES_MIN + 1


def test_a_file_without_rows_goes_at_once() -> None:
    assert files_to_merge(sizes(0, 100, 0)) == ["0.parquet", "2.parquet"]


def test_a_publish_never_merges_much() -> None:
    many = sizes(*[40_000] * 20)
    assert len(files_to_merge(many)) == 2
    assert len(files_to_merge(sizes(*[100] * 300))) == MERGE_FILES_MAX


def test_a_thousand_publishes_leave_few_small_files_and_write_a_row_a_few_times() -> None:
    files: dict[str, int] = {}
    written = 0
    for number in range(1_000):
        merged = files_to_merge(files)
        rows = sum(files.pop(path) for path in merged)
        if merged:
            files[f"merged-{number}"] = rows
        files[f"new-{number}"] = 500
        written += rows + 500
        assert len([rows for rows in files.values() if rows <= 50_000]) <= MERGE_FILES_MIN + 1
    assert len(files) <= 20
    assert written <= 8 * 500 * 1_000


# --- beside the stream -----------------------------------------------------------------------------------------------


def files(*sizes_mb: float, rows: int = 1_000, deleted: int = 0) -> list[FileFacts]:
    return [FileFacts(f"{at}.parquet", round(size * MB), rows, deleted) for at, size in enumerate(sizes_mb)]


def due(found: list[FileFacts], *, is_urgent: bool = False, rules: Rules = RULES) -> list[Candidate]:
    return candidates(TableFacts("shop.orders", found), rules, 0, is_urgent=is_urgent)


def test_what_is_good_stays() -> None:
    assert due([]) == []
    assert due(files(128, 100, 97, 130, 500, 96.1)) == []  # as large as they should be
    assert due(files(1, 2, 3, 4)) == []  # too few to be worth it
    assert due(files(128, rows=1_000, deleted=200)) == []  # not worn enough
    assert due(files(90, 90, 90, 90, 90)) == []  # they would become hardly fewer


def test_small_files_are_merged_at_the_hourly_look() -> None:
    (found,) = due(files(1, 2, 3, 4, 5, 128))
    assert (found.table, found.kind, len(found.paths)) == ("shop.orders", "files", 5)
    assert found.reason == "5 files of 3 MB could be 1"
    assert found.score == 4


def test_many_files_of_a_size_do_not_wait() -> None:
    assert due(files(*[1] * 7), is_urgent=True) == []
    assert [len(each.paths) for each in due(files(*[1] * 8), is_urgent=True)] == [8]
    assert due(files(0.1, 1, 3, 5, 10, 20, 30, 60, 80), is_urgent=True) == []  # nine, in four tiers
    assert [len(each.paths) for each in due(files(*[0.01] * 8, 1.5), is_urgent=True)] == [8]


def test_files_of_which_much_is_deleted_do_not_wait_however_large_they_are() -> None:
    assert due(files(128, rows=1_000, deleted=999), is_urgent=True) == []  # so few that it is not worth it
    (found,) = due(files(128, rows=10_000, deleted=2_001), is_urgent=True)
    assert (found.kind, found.reason) == ("deletes", "20% of the rows in 1 files are deleted")


def test_while_there_is_no_time_more_files_and_deleted_rows_may_wait() -> None:
    worn, many = files(128, rows=10_000, deleted=3_000), files(*[1] * 20)
    assert due(worn, is_urgent=True)
    assert due(many, is_urgent=True)
    assert due([*worn, *many], is_urgent=True, rules=RULES.relaxed()) == []
    assert len(due(files(*[1] * 64), is_urgent=True, rules=RULES.relaxed())) == 1


def test_what_would_become_no_fewer_is_never_due() -> None:
    assert due(files(*[70] * 8, rows=70_000), is_urgent=True) == []
    assert due(files(*[48] * 8, rows=5_000_000), is_urgent=True) == []


def test_the_most_useful_comes_first() -> None:
    worn = dataclasses.replace(files(128, deleted=900)[0], path="worn")
    assert [each.kind for each in due([worn, *files(*[1] * 50)])] == ["files", "deletes"]


def test_partitions_are_looked_at_each_for_itself() -> None:
    spread = [dataclasses.replace(file, partition=str(at % 4)) for at, file in enumerate(files(*[1] * 16))]
    assert due(spread) == []
    assert {each.partition for each in due([*spread, dataclasses.replace(spread[0], path="one more")])} == {"0"}


def test_a_piece_has_at_most_so_many_files_and_so_much_memory() -> None:
    assert [len(each.paths) for each in due(files(*[0.1] * 250))] == [100, 100, 50]
    large = files(*[20] * 40, rows=1_000_000)
    pieces = due(large)
    assert sum(len(each.paths) for each in pieces) <= 40
    assert all(each.memory_bytes <= RULES.memory_max_bytes for each in pieces)
    assert memory_of(large) > RULES.memory_max_bytes


def test_manifests_and_snapshots_are_due_by_number_and_age() -> None:
    def kinds(manifests: int, times_ms: list[int], now_ms: int) -> list[str]:
        facts = TableFacts("t", [], manifests, History([(time_ms, at) for at, time_ms in enumerate(times_ms)]))
        return [each.kind for each in candidates(facts, RULES, now_ms, is_urgent=False)]

    assert kinds(100, [0, 1, 2], 1_000) == []
    assert kinds(101, [0], 1_000) == ["manifests"]
    assert kinds(0, [0, 1, 2], 1_001) == ["snapshots"]
    assert kinds(0, [5_000] * 1_001, 5_000) == ["snapshots"]


def test_files_of_different_partitions_are_never_merged() -> None:
    live = {f"{day}/{number}": 100 for day in "abc" for number in range(MERGE_FILES_MIN if day != "c" else 2)} | {
        "c/e": 0
    }
    partitions = {path: path[0] for path in live}
    groups = groups_to_merge(live, partitions)
    assert sorted(sorted(group)[0][0] for group in groups) == ["a", "b", "c"]
    assert all(len({path[0] for path in group}) == 1 for group in groups)
    assert [group for group in groups if group[0][0] == "c"] == [["c/e"]], "one that has no row left goes"


def test_a_publish_merges_a_bounded_number_of_rows_over_all_partitions() -> None:
    live = {f"{day}/{number}": 9_000 for day in range(50) for number in range(MERGE_FILES_MIN)} | {"7/e": 0}
    groups = groups_to_merge(live, {path: path.split("/")[0] for path in live})
    assert 0 < sum(live[path] for group in groups for path in group) <= MERGE_ROWS_MAX
    assert any("7/e" in group for group in groups)
