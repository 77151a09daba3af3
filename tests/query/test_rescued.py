"""Which queries are warned of values that did not fit their columns."""

from __future__ import annotations

import pytest

from dolake.query.guard import parse
from dolake.query.relation import Relation
from dolake.query.rescued import has_rescued, rescued_warnings

ORDERS = Relation("default.orders", "SELECT 1", ("id", "paid", "deletedAt"), ("_key", "_rescued"))


def warned(sql: str) -> list[str]:
    """The columns that the answer is said to lack values of."""
    counts = {"paid": 1, "deletedAt": 2, "a.b": 3}
    found = rescued_warnings(parse(sql, "default"), ORDERS, counts)
    return [name for name in counts for text in found if f" of {name} " in text or f" of {name}," in text]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "FROM orders",
        "SELECT o.* FROM orders o",
        "SELECT DISTINCT * FROM orders",
        "SELECT id, * FROM orders",
        "SELECT COLUMNS('p.*') FROM orders",
        "WITH x AS (FROM orders) SELECT count(*) FROM x",
    ],
)
def test_a_query_that_shows_all_columns_is_warned_of_each(sql: str) -> None:
    assert warned(sql) == ["paid", "deletedAt", "a.b"]


def test_a_query_is_warned_of_the_columns_that_it_names_and_of_no_other() -> None:
    assert warned("SELECT count(*) FROM orders") == []
    assert warned("SELECT id * 2 FROM orders") == []
    assert warned("SELECT sum(PAID) FROM orders") == ["paid"]
    assert warned("SELECT id FROM orders WHERE deletedat IS NULL") == ["deletedAt"]
    assert warned("SELECT id AS paid_by FROM orders") == []


def test_a_warning_says_how_many_rows_and_where_their_values_are() -> None:
    found = rescued_warnings(parse("FROM orders", "default"), ORDERS, {"paid": 1, "a.b": 3})
    assert found == [
        "default.orders: 1 row has a value of paid that did not fit; paid is NULL there, look in _rescued",
        "default.orders: 3 rows have values of a.b, which cannot be a column; look in _rescued",
    ]
    assert has_rescued(ORDERS)
    assert not has_rescued(Relation("default.own", "SELECT 1", ("id",)))
