"""Which files are merged, and how many there can be."""

from __future__ import annotations

from dolake.tables.maintenance import MERGE_FILES_MIN, files_to_merge


def sizes(*rows: int) -> dict[str, int]:
    return {f"{number}.parquet": count for number, count in enumerate(rows)}


def test_few_files_and_files_of_different_sizes_stay_as_they_are() -> None:
    assert files_to_merge({}) == []
    assert files_to_merge(sizes(*[100] * (MERGE_FILES_MIN - 1))) == []
    assert files_to_merge(sizes(100, 2_000, 8_000, 30_000, 100_000, 400_000, 2_000_000, 9_000_000)) == []


def test_enough_files_of_a_size_become_one() -> None:
    small = sizes(*[100] * MERGE_FILES_MIN, 50_000)
    assert files_to_merge(small) == [f"{number}.parquet" for number in range(MERGE_FILES_MIN)]


def test_a_file_without_rows_goes_at_once() -> None:
    assert files_to_merge(sizes(0, 100, 0)) == ["0.parquet", "2.parquet"]


def test_what_would_take_too_long_is_left_to_compaction() -> None:
    assert files_to_merge(sizes(*[200_000] * 20)) == []


def test_a_thousand_publishes_leave_few_files_and_write_a_row_a_few_times() -> None:
    files: dict[str, int] = {}
    written = 0
    for number in range(1_000):
        merged = files_to_merge(files)
        rows = sum(files.pop(path) for path in merged)
        if merged:
            files[f"merged-{number}"] = rows
        files[f"new-{number}"] = 500
        written += rows + 500
    assert len(files) <= 40
    assert written <= 6 * 500 * 1_000
