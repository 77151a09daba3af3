"""Values leave `_rescued` for their column, when that has become wide enough."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dolake.pipeline.lifting import fractions_in, lifted
from dolake.tables.layout import BEFORE, RESCUED

ROW = pa.struct([("n", pa.float64()), ("m", pa.int64())])
SCHEMA = pa.schema(
    [("_operation", pa.string()), ("n", pa.float64()), ("m", pa.int64()), (BEFORE, ROW), (RESCUED, pa.string())]
)


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def row(
    n: float | None = None, rescued: str | None = None, before: Any = None, operation: str = "UPDATE"
) -> dict[str, Any]:
    return {"_operation": operation, "n": n, "m": 1, BEFORE: before, RESCUED: rescued}


def test_columns_are_found_whose_fractions_wait() -> None:
    texts = [None, '{"n":1.5,"m":"x"}', '{"_before":{"m":2e-3}}', '{"k":0.5,"t":7}', '{"w":123456789012345678901234}']
    rescued = pa.chunked_array([pa.array(texts, pa.string())])
    assert fractions_in(rescued, {"n", "m", "t", "w"}) == {"n", "m"}
    assert fractions_in(rescued, frozenset()) == frozenset()
    assert fractions_in(pa.chunked_array([pa.nulls(3, pa.string())]), {"n"}) == frozenset()


def test_a_value_moves_to_its_column_and_what_still_does_not_fit_stays() -> None:
    rows = rows_of(
        row(1.0),
        row(rescued='{"n":2.5}'),
        row(rescued='{"m":"text","n":0.5}'),
        row(rescued='{"n":"text"}'),
        row(7.0, '{"_before":{"n":3.5}}', {"n": None, "m": 4}),
        row(rescued='{"n":4.5,"_before":{"m":"x","n":5.5}}', before={"n": None, "m": None}),
    )
    found = lifted(rows, {"n": "double"}).to_pylist()
    assert [each["n"] for each in found] == [1.0, 2.5, 0.5, None, 7.0, 4.5]
    assert [each[RESCUED] for each in found] == [
        None,
        None,
        '{"m":"text"}',
        '{"n":"text"}',
        None,
        '{"_before":{"m":"x"}}',
    ]
    assert [each[BEFORE] for each in found[4:]] == [{"n": 3.5, "m": 4}, {"n": 5.5, "m": None}]
    assert [each[BEFORE] for each in found[:4]] == [None] * 4


def test_a_row_that_was_deleted_gets_its_value_as_it_is_and_as_it_was() -> None:
    gone = row(rescued='{"n":2.5}', before={"n": None, "m": 1}, operation="DELETE")
    unseen = row(rescued='{"n":2.5}', operation="DELETE")
    found = lifted(
        rows_of(gone, unseen, row(rescued='{"n":3.5}', before={"n": 1.0, "m": 1})), {"n": "double"}
    ).to_pylist()
    assert [each["n"] for each in found] == [2.5, 2.5, 3.5]
    assert [each[BEFORE] for each in found] == [{"n": 2.5, "m": 1}, None, {"n": 1.0, "m": 1}]
    assert {each[RESCUED] for each in found} == {None}


def test_rows_without_such_a_value_stay_as_they_are() -> None:
    rows = rows_of(row(1.0), row(2.0))
    assert lifted(rows, {"n": "double"}) is rows
    state = rows_of(row(rescued='{"m":"x"}')).drop_columns([BEFORE])
    assert lifted(state, {"n": "double"}).equals(state)
