"""Conditions of subscribers, tried together: one that is slow or wrong costs nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dolake.errors import ForbiddenSql, InvalidSql
from dolake.query import pages
from dolake.query.engine import Engine
from dolake.query.guard import parse_condition
from dolake.query.pages import Key, Matches, Slice
from dolake.query.watch import Stop
from dolake.settings import QuerySettings

SLOW = "sha256(" * 60 + "name" + ")" * 60 + " = ''"
ROWS = 400_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(QuerySettings(), [tmp_path], tmp_path / "scratch")
    yield engine
    engine.close()


def test_a_slow_condition_is_refused_and_others_have_their_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_CONDITIONS_MAX_MS", 1_000)
    ids = list(range(ROWS))
    rows = pa.table({"_position": ids, "_operation": ["INSERT"] * ROWS, "id": ids, "name": list(map(str, ids))})
    slices = {Key(table, 0): Slice(rows, table) for table in ("mine", "other")}
    wanted = {Key("mine", 0): [SLOW, "id > 1", "nonsense > 1"], Key("other", 0): ["id = 1"]}
    matches = Matches(engine, slices, wanted, Stop(60_000))
    assert matches.mask(Key("mine", 0), "id > 1").sum() == ROWS - 2
    assert matches.mask(Key("other", 0), "id = 1").sum() == 1
    with pytest.raises(InvalidSql, match="takes longer"):
        matches.mask(Key("mine", 0), SLOW)
    with pytest.raises(InvalidSql, match="nonsense"):
        matches.mask(Key("mine", 0), "nonsense > 1")


@pytest.mark.parametrize("where", ["length(repeat(name, 100000)) > 1", "levenshtein(name, city) > 1"])
def test_what_makes_much_of_little_is_no_condition(where: str) -> None:
    with pytest.raises(ForbiddenSql, match="condition on one row"):
        parse_condition(where)


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("a > 1 b", "line 1, column 7"),
        ("x\n= = 2", "line 2, column 3"),
        ("a = 1 AND\n  b c", "line 2, column 5"),
        ("getenv('x') = 'y' AND a = 1", "line 1, column 1"),
        ("a = 1 AND\n getenv('x') = 'y'", "line 2, column 2"),
        ("amount < 1e400", "too large"),
    ],
)
def test_an_error_says_where_in_the_condition_it_is(where: str, place: str) -> None:
    with pytest.raises((InvalidSql, ForbiddenSql), match=place):
        parse_condition(where)
