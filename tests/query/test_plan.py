"""Which files need not be opened, and that DuckDB does not open them either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolake.query.plan import Condition
from dolake.query.reader import Asked
from tests.query.asking import Asker, Named, asking
from tests.verify.lake import HandLake, insert

DAYS = [f"2026-01-{day:02d}T12:00:00Z" for day in range(1, 9)]


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A file a day."""
    lake = HandLake(tmp_path_factory.mktemp("lake"))
    for number, day in enumerate(DAYS):
        rows = [
            insert(f"{number}-{at}", n=number * 10 + at, at=day, name=f"day-{number}", empty=None) for at in range(5)
        ]
        lake.publish(*rows, insert(f"x-{number}", "other", n=1))
    with asking(lake.home) as found:
        yield found
    lake.close()


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (Condition("n", "=", (23,)), 1),
        (Condition("N", ">=", (60,)), 2),
        (Condition("n", "<", (10,)), 1),
        (Condition("n", "<=", (10,)), 2),
        (Condition("n", ">", (74,)), 0),
        (Condition("n", "in", (1, 72)), 2),
        (Condition("n", "in", (17, 18)), 0),
        (Condition("at", ">=", ("2026-01-07",)), 2),
        (Condition("at", "<", ("2026-01-02T00:00:00Z",)), 1),
        (Condition("name", "=", ("day-3",)), 1),
        (Condition("n", "is_null"), 0),
        (Condition("n", "not_null"), 8),
        (Condition("unknown", "=", (1,)), 8),
        (Condition("n", "=", ("text",)), 8),
    ],
    ids=str,
)
def test_a_file_whose_bounds_exclude_all_rows_is_pruned_with_the_reason(
    asker: Asker, condition: Condition, kept: int
) -> None:
    view = asker.view(named := Named("items"))
    view.relation(named)
    files = view.planned(0, [condition])
    assert sum(file.reason is None for file in files) == kept
    assert all(condition.column.lower() in file.reason for file in files if file.reason)
    assert view.files([[condition]]) == {"read": kept, "pruned": 8 - kept}


@pytest.mark.parametrize(
    ("where", "most"), [("n = 23", 1), ("\"at\" >= TIMESTAMPTZ '2026-01-07 00:00:00Z'", 2), ("true", 8)]
)
def test_duckdb_opens_no_more_files_than_the_plan_keeps(asker: Asker, where: str, most: int) -> None:
    named = Named("items")
    relation = asker.reader.open([named], Asked(), asker.run).relation(named)
    asker.connection.execute("SET enable_external_file_cache = false")
    asker.connection.execute("CALL enable_logging('FileSystem', level = 'trace')")
    found = asker.connection.execute(f"SELECT sum(n) FROM ({relation.sql}) WHERE {where}").fetchone()  # noqa: S608
    asker.connection.execute("CALL disable_logging()")
    logged: list[tuple[Any, ...]] = asker.connection.execute(
        "SELECT DISTINCT path FROM duckdb_logs_parsed('FileSystem') WHERE op = 'OPEN' AND path LIKE '%/data/%'"
    ).fetchall()
    asker.connection.execute("CALL truncate_duckdb_logs()")
    assert found is not None
    assert 0 < len(logged) <= most


def test_without_conditions_every_file_is_read(asker: Asker, tmp_path: Path) -> None:
    view = asker.view(named := Named("items"))
    view.relation(named)
    assert view.files([]) == {"read": 8, "pruned": 0}
