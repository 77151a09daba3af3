"""A lake on which all parts agree: verify is silent about it, and says how much it compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dolake.errors import NotFound
from dolake.storage.local import path_of
from dolake.verify.base import Check, Report
from tests.verify.lake import HandLake, check_of, delete, insert, update


def clean(report: Report) -> Report:
    assert not report.difference_count, [each for check in report.checks for each in check.differences]
    return report


def notes_of(report: Report) -> list[str]:
    return [note for check in report.checks for note in check.notes]


def test_a_lake_on_which_all_agrees_has_no_difference(lake: HandLake) -> None:
    report = clean(lake.verify())
    assert report.position == 29
    assert {(size.table, size.changes, size.rows) for size in report.tables} == {
        ("default.items", 26, 20),
        ("shop.orders", 3, 1),
    }
    for name in ("positions", "sequences", "commit times", "journal"):
        assert check_of(report, name).compared == 29
    assert not notes_of(report)


@pytest.mark.parametrize("name", ["items", "default.items"])
def test_one_table_can_be_verified_alone(lake: HandLake, name: str) -> None:
    report = clean(lake.verify(name))
    assert [size.table for size in report.tables] == ["default.items"]
    assert {check.table for check in report.checks} == {"default.items"}
    assert check_of(report, "journal").compared == 26


def test_a_table_that_does_not_exist_is_an_error(lake: HandLake) -> None:
    with pytest.raises(NotFound, match="no table default"):
        lake.verify("nothing")


def test_a_lake_without_a_table_is_clean(empty: HandLake) -> None:
    assert clean(empty.verify()).tables == []


def test_a_snapshot_that_no_publish_made_is_taken_as_it_is(lake: HandLake) -> None:
    lake.commit("default.items")
    lake.commit("default.items__changes")
    clean(lake.verify())


def test_changes_that_wait_for_their_publish_are_no_difference(lake: HandLake) -> None:
    lake.append(insert("waiting", n=1))
    assert clean(lake.verify()).position == 29


def test_where_sources_share_keys_each_has_its_own_row(tmp_path: Path) -> None:
    lake = HandLake(tmp_path, has_source_in_key=True)
    for source in ("one", "two"):
        lake.publish(insert("1", n=1), insert("2", n=2), source=source)
    lake.publish(update("1", {"n": 1}, {"n": 11}), delete("2", {"n": 2}), source="two")
    lake.publish(update("22", {"n": 2}, {"n": 22}, metadata={"previousRowId": "2"}), source="one")
    report = clean(lake.verify())
    assert [(size.changes, size.rows) for size in report.tables] == [(7, 3)]
    lake.close()


def test_a_table_whose_name_looks_like_a_pattern_is_found(empty: HandLake) -> None:
    empty.publish(insert("1", "a[1]", n=1), insert("2", "a[1]", n=2))
    empty.publish(update("1", {"n": 1}, {"n": 11}, "a[1]"))
    assert clean(empty.verify()).tables[0].rows == 2


def test_columns_may_be_called_as_duckdb_calls_its_own(empty: HandLake) -> None:
    odd: dict[str, Any] = {"it's": {'"a"': 1}}
    empty.publish(insert("1", file_row_number=1, file_index=2, filename="x", **odd))
    empty.publish(update("1", {"file_index": 2}, {"file_index": 3, "it's": {'"a"': 2}}), insert("2", filename="y"))
    clean(empty.verify())


# --- what the journal no longer has ----------------------------------------------------------------------------------


def test_a_key_that_moved_long_ago_is_known_by_its_change(lake: HandLake) -> None:
    lake.publish(insert("a", "moving", n=1), insert("b", "moving", n=1), insert("c", "moving", n=2))
    lake.publish(update("x", {"n": 1}, {"n": 5}, "moving", metadata={"previousRowId": "a"}))
    lake.publish(update("c", {"n": 1}, {"n": 6}, "moving", metadata={"previousRowId": "b"}))
    clean(lake.verify())
    lake.trim()
    assert not check_of_table(clean(lake.verify()), "default.moving").notes


def check_of_table(report: Report, table: str) -> Check:
    return next(check for check in report.checks if (check.table, check.name) == (table, "state"))


def test_a_new_epoch_begins_its_sequences_anew(empty: HandLake) -> None:
    empty.publish(insert("1", n=1), insert("2", n=2))
    empty.publish(insert("3", n=3), insert("4", n=4), epoch=1)
    assert not notes_of(clean(empty.verify()))
    empty.trim()
    assert "a new epoch of this source, as it seems" in notes_of(clean(empty.verify()))[0]


# --- what a repair has lost ------------------------------------------------------------------------------------------


def test_changes_that_a_repair_lost_before_they_were_published_are_no_difference(empty: HandLake) -> None:
    empty.publish(insert("1", n=1))
    empty.append(insert("2", word="lost forever"), insert("3", n=3))
    empty.append(insert("4", n=4))
    empty.lose_in_journal("lost forever")
    empty.publish_all()
    assert notes_of(clean(empty.verify())) == ["positions 1 to 2 are lost: the journal has a gap there, from a repair"]
    empty.trim()
    assert "a repair of the journal set aside" in notes_of(clean(empty.verify()))[0]


def test_changes_that_a_repair_lost_after_they_were_published_are_no_difference(empty: HandLake) -> None:
    empty.publish(insert("1", word="lost forever"), insert("2", word="x"))
    empty.publish(insert("3", word="y"))
    empty.lose_in_journal("lost forever")
    report = clean(empty.verify())
    assert check_of(report, "journal").compared == 1


# --- a lake that moves on meanwhile ----------------------------------------------------------------------------------


def test_files_that_go_with_their_snapshot_while_they_are_read_are_no_difference(lake: HandLake) -> None:
    """Compaction and expiry work beside us: what we wanted to read is gone, and by right."""
    expired: list[str] = []

    def progress(what: str, _done: int, _total: int) -> None:
        if what == "default.items: files" and not expired:
            expired.append(lake.files["default.items"][0][2]["file-path"])
            old = lake.metadata("default.items")["snapshots"]
            lake.rewrite("default.items", lambda rows: rows, at=2)
            lake.expire("default.items", [snapshot["snapshot-id"] for snapshot in old])
            path_of(expired[0]).unlink()

    clean(lake.verify(progress=progress))
    assert expired


def test_a_publish_while_we_read_is_left_for_the_next_time(lake: HandLake) -> None:
    published: list[int] = []

    def progress(what: str, _done: int, _total: int) -> None:
        if what == "default.items: changes" and not published:
            lake.publish(insert("late", n=1), update("5", {"n": 55}, {"n": 56}))
            published.append(lake.store.published().position)

    report = clean(lake.verify(progress=progress))
    assert (report.position, published) == (29, [31])
    assert clean(lake.verify()).position == 31


def test_an_update_that_rescued_only_of_the_row_before_it_is_no_difference(empty: HandLake) -> None:
    empty.publish(insert("a", n=1))
    empty.publish(update("a", {"n": 1, "": True}, {"n": 2}))
    clean(empty.verify())


def test_a_change_that_was_forgotten_is_not_lost_and_may_be_in_the_journal_still(lake: HandLake) -> None:
    kept = ("_position", "_sequence", "_source", "_timestamp", "_commit_timestamp")

    def blank(row: dict[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(row) | {name: row[name] for name in kept} | {"_key": "", "_operation": "FORGOTTEN"}

    changes = "default.items__changes"
    lake.rewrite(changes, lambda rows: [blank(row) if row["_key"] == "9" else row for row in rows])
    assert lake.verify().difference_count, "the state has it"
    gone = ("3", "4", "5", "6", "9")  # the others are in later files, or nowhere
    lake.rewrite("default.items", lambda rows: [row for row in rows if row["_key"] not in gone])
    report = clean(lake.verify())
    assert check_of(report, "positions").compared == 29
