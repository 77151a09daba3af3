"""A part of the tables instead of all: by days, or by values of columns."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from dolake.errors import InvalidInput
from dolake.query.partition import Partition, conditions_of, narrowed
from dolake.query.relation import Relation

EVENTS = Relation(
    "default.events",
    "SELECT i AS id, TIMESTAMPTZ '2024-01-30 12:00:00Z' + to_days(i::INTEGER) AS created_at, "
    "'2024-01-' || (30 + i) AS text, 'it''s ' || (i % 2) AS kind, i = 1 AS flag FROM range(4) t(i)",
    ("id", "created_at", "text", "kind", "flag"),
)
OTHERS = Relation("default.others", "SELECT 1 AS x", ("x",))


def narrow(relations: list[Relation], partition: Partition | None) -> list[Relation]:
    pairs = zip(relations, conditions_of(relations, partition), strict=True)
    return [narrowed(relation, conditions) for relation, conditions in pairs]


def ids(partition: dict[str, Any]) -> list[int]:
    (found,) = narrow([EVENTS], partition)
    return [id_ for (id_,) in duckdb.sql(f"SELECT id FROM ({found.sql}) ORDER BY id").fetchall()]  # noqa: S608


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [
        ({"dateStart": "2024-01-31"}, [1, 2, 3]),
        ({"dateEnd": "2024-01-31"}, [0, 1]),
        ({"dateStart": "2024-01-31", "dateEnd": "2024-02-01"}, [1, 2]),
        ({"dateEnd": "2024-01-31T00:00:00Z"}, [0]),
        ({"dateStart": "2024-01-31", "column": "TEXT"}, [1, 2, 3]),
        ({"id": 2}, [2]),
        ({"ID": 2}, [2]),
        ({"kind": "it's 1"}, [1, 3]),
        ({"kind": "it's 1", "id": [1, 2]}, [1]),
        ({"flag": True}, [1]),
        ({"id": None}, []),
        ({"kind": "' OR true --"}, []),
    ],
)
def test_only_rows_of_the_partition_are_read(partition: dict[str, Any], wanted: list[int]) -> None:
    assert ids(partition) == wanted


def test_tables_without_its_columns_stay_whole() -> None:
    first, second = narrow([EVENTS, OTHERS], {"id": 1})
    assert first.sql != EVENTS.sql
    assert second is OTHERS


def test_without_a_partition_all_is_read() -> None:
    assert narrow([EVENTS], None) == [EVENTS]
    assert narrow([EVENTS], {}) == [EVENTS]


@pytest.mark.parametrize(
    "partition",
    [
        {"nothing": 1},
        {"dateStart": "2024-01-01", "column": "nothing"},
        {"dateStart": "2024-01-01", "id": 1},
        {"dateEnd": "2024-13-99"},
        {"dateEnd": "9999-12-31"},
        {"id": {"x": 1}},
        {"id": []},
        {"id": [None]},
    ],
)
def test_a_partition_that_means_nothing_is_refused(partition: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        narrow([EVENTS], partition)
