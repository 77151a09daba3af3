"""What differs between two moments of a table."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.errors import InvalidInput
from dolake.query.diff import Side, diff_sql, side_of
from tests.query.asking import Asker, asking
from tests.verify.lake import HandLake, delete, insert, update


def differences(asker: Asker, before: Side, after: Side) -> dict[str, Any]:
    view = asker.reader.open([before, after], asker.asked, asker.run)
    old, new = view.relation(before), view.relation(after)
    for name, table in (*old.arrow.items(), *new.arrow.items()):
        asker.connection.register(name, table)
    rows = asker.connection.execute(diff_sql(old, new)).to_arrow_table().to_pylist()
    return {row["key"]: (row["kind"], row["before"], row["after"], row["columns"]) for row in rows}


def row(**values: Any) -> dict[str, Any]:
    return {"n": None, "m": None, "more": None, "_rescued": None} | values


def test_rows_added_removed_and_changed_between_a_snapshot_and_now(hand_lake: HandLake) -> None:
    hand_lake.publish(insert("a", n=1, m=1), insert("b", n=2, m=2), insert("c", n=3, m=3))
    then = hand_lake.metadata("default.items")["current-snapshot-id"]
    hand_lake.publish(update("a", {"n": 1, "m": 1}, {"n": 10, "m": 1}), delete("b", {"n": 2}))
    hand_lake.append(insert("d", n=4, more="x"))
    with asking(hand_lake.home) as asker:
        found = differences(asker, Side("items", snapshot_id=then), Side("items"))
        back = differences(asker, Side("items"), Side("items", snapshot_id=then))
    assert found == {
        "a": ("changed", row(n=1, m=1), row(n=10, m=1), ["n"]),
        "b": ("removed", row(n=2, m=2), None, None),
        "d": ("added", None, row(n=4, more="x"), None),
    }
    assert {key: each[0] for key, each in back.items()} == {"a": "changed", "b": "added", "d": "removed"}


def test_equal_moments_do_not_differ(hand_lake: HandLake) -> None:
    hand_lake.publish(insert("a", n=1, address={"city": "Ulm"}))
    with asking(hand_lake.home) as asker:
        assert not differences(asker, Side("items"), Side("items", as_of="2030-01-01"))


@pytest.mark.parametrize("moment", [True, [], {"when": 1}, 1.5, {"snapshotId": None}])
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a moment"):
        side_of("default", "items", moment)


def test_a_column_that_one_side_lacks_has_the_type_of_the_other(hand_lake: HandLake) -> None:
    hand_lake.publish(insert("a", n=1))
    then = hand_lake.metadata("default.items")["current-snapshot-id"]
    hand_lake.append(insert("b", n=2, phone="+1"))
    with asking(hand_lake.home) as asker:
        view = asker.reader.open(sides := [Side("items", snapshot_id=then), Side("items")], asker.asked, asker.run)
        relations = [view.relation(each) for each in sides]
        for name, table in relations[1].arrow.items():
            asker.connection.register(name, table)
        found = asker.connection.execute(diff_sql(*relations)).to_arrow_table()
    assert str(found.schema.field("before").type) == str(found.schema.field("after").type)
    assert [row["after"]["phone"] for row in found.to_pylist()] == ["+1"]
