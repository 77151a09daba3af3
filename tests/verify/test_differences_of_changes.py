"""Damage to the history, one kind at a time: lost, doubled and altered changes, a clock or a stream that falls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dolake.catalog.base import Name
from tests.verify.lake import HandLake, Rows, check_of, differing, insert

CHANGES = "default.items__changes"


def altered(rows: Rows, position: int, **columns: Any) -> Rows:
    return [row | columns if row["_position"] == position else row for row in rows]


def test_a_change_that_is_lost_is_named_by_its_position_and_by_the_journal(lake: HandLake) -> None:
    lake.rewrite(CHANGES, lambda rows: [row for row in rows if row["_position"] != 24], at=1)  # a delete of nothing
    report = lake.verify()
    assert differing(report) == {"positions", "journal"}
    assert check_of(report, "positions").differences == ["position 24 is in no table of changes"]
    assert check_of(report, "journal").differences == [
        "position 24 is in the journal, and not in default.items: DELETE of 'never there', sequence 25"
    ]


def test_a_change_that_is_lost_is_named_also_when_the_journal_is_gone(lake: HandLake) -> None:
    lake.trim()
    lake.rewrite(CHANGES, lambda rows: [row for row in rows if not 2 <= row["_position"] < 5])
    report = lake.verify()
    assert check_of(report, "positions").differences == ["positions 2 to 4 are in no table of changes"]
    assert check_of(report, "positions").difference_count == 3


def test_the_last_changes_are_missed_too(lake: HandLake) -> None:
    lake.files[CHANGES][0].pop()
    lake.commit(CHANGES)
    lake.files["shop.orders__changes"][0].pop()
    lake.commit("shop.orders__changes")
    assert check_of(lake.verify(), "positions").differences == ["positions 27 to 28 are in no table of changes"]


def test_a_change_that_is_there_twice_is_named(lake: HandLake) -> None:
    lake.rewrite(CHANGES, lambda rows: [*rows, rows[0]])
    report = lake.verify()
    assert differing(report) == {"positions", "sequences"}
    assert check_of(report, "positions").differences == ["position 0 is there twice, in default.items"]
    assert check_of(report, "sequences").differences == [
        "shop: sequence 1 at position 0 is there twice, first at position 0"
    ]


def test_a_whole_file_that_is_there_twice_is_named(lake: HandLake) -> None:
    """As if a publish had been repeated: the state does not show it."""
    data, _ = lake.files[CHANGES]
    lake.rewrite(CHANGES, lambda rows: rows * 2)
    assert check_of(lake.verify(), "positions").difference_count == 20
    assert len(data) == 3


def test_a_change_of_another_key_is_named_by_the_journal(lake: HandLake) -> None:
    lake.rewrite(CHANGES, lambda rows: altered(rows, 24, _key="nothing"), at=1)
    report = lake.verify()
    assert differing(report) == {"journal"}
    assert check_of(report, "journal").differences == [
        "position 24 in default.items: key 'nothing', in the journal 'never there'"
    ]


def test_a_change_with_another_sequence_or_operation_is_named(lake: HandLake) -> None:
    lake.rewrite(CHANGES, lambda rows: altered(rows, 24, _sequence=24, _operation="UPDATE"), at=1)
    report = lake.verify("items")
    assert check_of(report, "journal").differences == [
        "position 24 in default.items: operation 'UPDATE', in the journal 'DELETE'; sequence 24, in the journal 25"
    ]
    assert check_of(report, "sequences").differences == [
        "shop: sequence 24 at position 24 is there twice, first at position 23"
    ]


def test_a_sequence_that_falls_is_named_also_when_the_journal_is_gone(lake: HandLake) -> None:
    lake.trim()
    lake.rewrite(CHANGES, lambda rows: altered(rows, 24, _sequence=7), at=1)
    assert check_of(lake.verify(), "sequences").differences == [
        "shop: sequence 7 at position 24 comes behind 24 at position 23"
    ]


def test_without_deduplication_a_sequence_may_come_again(lake: HandLake) -> None:
    lake.trim()
    lake.rewrite(CHANGES, lambda rows: altered(rows, 24, _sequence=7), at=1)
    report = lake.verify(is_deduplicating=False)
    assert not check_of(report, "sequences").difference_count
    assert "enable_deduplication is off" in check_of(report, "sequences").notes[0]


def test_a_commit_time_that_falls_is_named(lake: HandLake) -> None:
    lake.trim()

    def earlier(rows: Rows) -> Rows:
        (row,) = [row for row in rows if row["_position"] == 24]
        return altered(rows, 24, _commit_timestamp=row["_commit_timestamp"] - timedelta(milliseconds=7))

    lake.rewrite(CHANGES, earlier, at=1)
    report = lake.verify()
    assert differing(report) == {"commit times"}
    assert check_of(report, "commit times").differences == [
        "the commit timestamp of position 24 in default.items is before that of the change ahead of it, by 7 ms"
    ]


def test_a_change_beyond_the_published_position_is_named(lake: HandLake) -> None:
    lake.rewrite(CHANGES, lambda rows: altered(rows, 27, _position=40), at=2)
    found = check_of(lake.verify(), "positions").differences
    assert "default.items has 1 changes from position 40 on; published is what is before 29" in found


def test_a_table_that_is_gone_is_named_by_the_journal(lake: HandLake) -> None:
    for name in ("orders", "orders__changes"):
        lake.store.drop(Name(("shop",), name), "table")
    found = check_of(lake.verify(), "journal").differences
    assert found == ["the journal has 3 published changes of shop.orders, and there is no such table"]


def test_a_journal_that_is_damaged_is_named(lake: HandLake) -> None:
    (path,) = lake.journal.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[data.find(b"never there")] ^= 1
    path.write_bytes(data)
    (what,) = check_of(lake.verify(), "journal").differences
    assert what.startswith("the journal is damaged in ")


def test_a_journal_that_ends_before_the_published_position_is_named(lake: HandLake) -> None:
    from dolake.catalog.base import Publish

    lake.store.commit([], Publish(29, 35, lake.generation, 1))
    report = lake.verify()
    assert check_of(report, "journal").differences == ["the tables are published up to 35, but the journal ends at 29"]


def test_a_lake_whose_journal_is_gone_is_compared_without_it(lake: HandLake) -> None:
    for path in lake.journal.iterdir():
        path.unlink()
    report = lake.verify()
    assert "there is no journal to compare with" in check_of(report, "journal").notes[0]
    assert not report.difference_count


def test_a_lost_change_of_a_new_table_is_found_among_others(lake: HandLake) -> None:
    lake.publish(insert("1", "one", n=1), insert("1", "two", n=1), insert("2", "one", n=2))
    lake.rewrite("default.two__changes", lambda rows: [row | {"_position": 29} for row in rows])
    found = check_of(lake.verify(), "positions").differences
    assert found == [
        "position 29 is there twice, in default.one and default.two",
        "position 30 is in no table of changes",
    ]
