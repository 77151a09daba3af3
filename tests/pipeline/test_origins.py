"""Where rows come from: what they say themselves, or what follows from their place."""

from __future__ import annotations

import json

import pyarrow as pa

from dolake.pipeline.origins import Origin, traced, with_origins

NAMES = ["_row_id", "_last_updated_sequence_number"]


def told(rows: pa.Table) -> list[tuple[int | None, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in NAMES), strict=True))


def test_a_row_is_known_by_its_place_in_the_file() -> None:
    rows = traced(pa.table({"n": [1, 2]}), Origin(100, 7), first=5)
    assert told(rows) == [(105, 7), (106, 7)]
    assert [rows.schema.field(name).metadata for name in NAMES] == [
        {b"PARQUET:field_id": b"2147483540"},
        {b"PARQUET:field_id": b"2147483539"},
    ]


def test_what_a_file_says_of_its_rows_comes_first() -> None:
    moved = pa.table(
        {"n": [1, 2], NAMES[0]: pa.array([3, None], pa.int64()), NAMES[1]: pa.array([2, None], pa.int64())}
    )
    assert told(traced(moved, Origin(100, 7), first=0)) == [(3, 2), (101, 7)]


def test_rows_that_never_had_an_id_get_none_here() -> None:
    assert told(traced(pa.table({"n": [1]}), Origin(None, 7), first=0)) == [(None, None)]


def test_the_schema_of_such_a_file_has_both_columns_at_its_end() -> None:
    schema = {"type": "struct", "schema-id": 4, "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}]}
    fields = json.loads(with_origins(json.dumps(schema)))["fields"]
    assert [(field["name"], field["id"]) for field in fields] == [
        ("n", 1),
        (NAMES[0], 2147483540),
        (NAMES[1], 2147483539),
    ]
