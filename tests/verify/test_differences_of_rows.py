"""Damage to rows and files of the tables, one kind at a time: verify names it, and nothing that is sound."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dolake.storage.local import path_of
from tests.verify.lake import HandLake, Rows, check_of, differing, insert, update

STATE, CHANGES = "default.items", "default.items__changes"


def changed(key: str, **columns: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [row | columns if row["_key"] == key else row for row in rows]


def without(key: str) -> Callable[[Rows], Rows]:
    return lambda rows: [row for row in rows if row["_key"] != key]


def test_a_row_with_another_value_is_named_with_its_column(lake: HandLake) -> None:
    lake.rewrite(STATE, changed("66", n=67), at=1)
    report = lake.verify()
    assert differing(report) == {"state"}
    assert check_of(report, "state").differences == [
        "key '66', changed at position 25: n is 67, and 66 in its last change"
    ]


def test_every_kind_of_column_is_compared(lake: HandLake) -> None:
    other: dict[str, Any] = {
        "word": "",
        "o": {"a": 2},
        "l": ["x", "y"],
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "_rescued": "{}",
        "n": None,
    }
    for column, value in other.items():
        lake.rewrite(STATE, changed("5", **{column: value}), at=2)
        (what,) = check_of(lake.verify(), "state").differences
        assert f"{column} is" in what
        lake.rewrite(STATE, changed("5", **{column: 55 if column == "n" else None}), at=2)
    assert not lake.verify().difference_count


@pytest.mark.parametrize(("column", "value"), [("l", []), ("o", {"a": None})])
def test_an_empty_list_or_struct_is_not_a_null(lake: HandLake, column: str, value: Any) -> None:
    lake.rewrite(STATE, changed("5", **{column: value}), at=2)
    assert check_of(lake.verify(), "state").difference_count == 1


def test_what_was_rescued_of_the_row_before_is_not_asked_of_the_state(lake: HandLake) -> None:
    lake.rewrite(STATE, changed("4", _rescued='{"n":"five"}'), at=1)
    (what,) = check_of(lake.verify(), "state").differences
    assert what.startswith("key '4', changed at position 22: _rescued is ")


def test_a_row_that_is_missing_is_named(lake: HandLake) -> None:
    lake.rewrite(STATE, without("66"), at=1)
    report = lake.verify()
    assert differing(report) == {"state"}
    (what,) = check_of(report, "state").differences
    assert what == "key '66' has no row; its last change, at position 25, is no DELETE"


def test_a_row_that_was_deleted_and_is_there_is_named(lake: HandLake) -> None:
    lake.files[STATE] = lake.files[STATE][0], []  # no row of the first file is deleted any more
    lake.commit(STATE, has_index=False)
    report = lake.verify()
    found = check_of(report, "state").differences
    assert "key '6' has a row; it has no change, or its last one took it away" in found
    assert {what for what in found if what.endswith("has 2 rows")} == {f"key '{key}' has 2 rows" for key in "345"}
    assert "index" in differing(report)


def test_a_row_that_nobody_sent_is_named(lake: HandLake) -> None:
    lake.rewrite(STATE, lambda rows: [*rows, rows[0] | {"_key": "nobody's"}], at=2)
    (what,) = check_of(lake.verify(), "state").differences
    assert what.startswith('key "nobody\'s" has a row')


def test_a_key_that_only_seems_to_have_moved_is_named(lake: HandLake) -> None:
    """An UPDATE with this row before it is there; but it is the one that its own key had."""
    lake.publish(insert("a", "moving", n=1), insert("b", "moving", n=1))
    lake.publish(update("b", {"n": 1}, {"n": 2}, "moving"))
    lake.trim()
    lake.rewrite("default.moving", lambda _rows: [])
    (what,) = check_of(lake.verify("moving"), "state").differences
    assert what.startswith("key 'a' has no row")


def test_many_differences_are_counted_and_the_first_ones_named(lake: HandLake) -> None:
    lake.publish(*(insert(str(n), "many", n=n) for n in range(100)))
    lake.rewrite("default.many", lambda rows: [row | {"n": -1} for row in rows])
    check = check_of(lake.verify(), "state")
    assert (check.difference_count, len(check.differences)) == (100, 20)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [STATE, CHANGES])
def test_a_data_file_that_is_missing_is_named(lake: HandLake, name: str) -> None:
    location = lake.files[name][0][1]["file-path"]
    path_of(location).unlink()
    report = lake.verify()
    assert f"{location} is missing" in check_of(report, "files").differences[0]
    assert "state" in differing(report)


def test_a_data_file_that_was_cut_short_is_named(lake: HandLake) -> None:
    path = path_of(lake.files[STATE][0][0]["file-path"])
    path.write_bytes(path.read_bytes()[:-1])
    assert "the table says" in check_of(lake.verify(), "files").differences[0]


def test_a_data_file_that_is_no_parquet_is_named_and_the_others_are_read(lake: HandLake) -> None:
    path = path_of(lake.files[CHANGES][0][1]["file-path"])
    path.write_bytes(bytes(path.stat().st_size))
    report = lake.verify()
    (what,) = check_of(report, "rows").differences
    assert what.startswith(f"file://{path} cannot be read: ")
    assert check_of(report, "positions").difference_count == 5


def test_a_delete_file_that_is_missing_is_named(lake: HandLake) -> None:
    location = lake.files[STATE][1][0]["file-path"]
    path_of(location).unlink()
    assert f"{location} is missing" in check_of(lake.verify(), "files").differences[0]


def test_a_manifest_that_is_missing_is_named(lake: HandLake) -> None:
    for path in path_of(lake.location(STATE)).joinpath("metadata").glob("*-ManifestWriterV2.avro"):
        path.unlink()
    assert "the manifests of default.items cannot be read" in check_of(lake.verify(), "files").differences[0]


def test_a_table_without_its_other_one_is_named(lake: HandLake) -> None:
    from dolake.catalog.base import Name

    lake.store.drop(Name(("default",), "items"), "table")
    assert check_of(lake.verify(), "files").differences == [
        "default.items__changes is alone: the other of the two tables is missing"
    ]
