"""Columns of two tables side by side, also where one of them has grown and the other has not yet."""

from __future__ import annotations

from typing import Any

from dolake.verify.shapes import Column, shared_columns, side_of, type_name


def field(id_: int, name: str, type_: Any = "long") -> dict[str, Any]:
    return {"id": id_, "name": name, "required": False, "type": type_}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def struct(*names: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [field(0, name) for name in names]}


def test_our_own_columns_are_not_the_sources() -> None:
    columns, conflicts = shared_columns(schema(field(1, "_key", "string"), field(2, "n")), schema(field(1, "n")))
    assert (columns, conflicts) == ([Column("n", "long")], [])


def test_a_column_that_one_table_does_not_have_yet_is_null_there() -> None:
    state, changes = schema(field(1, "n"), field(2, "new", "string")), schema(field(7, "n"))
    columns, _ = shared_columns(state, changes)
    assert side_of(state, columns).values(columns) == ["c1", "c2"]
    assert side_of(changes, columns).values(columns) == ["c7", "CAST(NULL AS VARCHAR)"]


def test_a_field_inside_a_column_that_one_table_does_not_have_yet_is_read_in_both() -> None:
    lists = [{"type": "list", "element": struct(*names)} for names in (("a",), ("b", "a"))]
    columns, _ = shared_columns(schema(field(1, "l", lists[0])), schema(field(1, "l", lists[1])))
    assert type_name(columns[0].type) == 'STRUCT("a" BIGINT, "b" BIGINT)[]'


def test_a_column_of_two_types_cannot_be_compared_and_is_named() -> None:
    for other in ("string", struct("a"), {"type": "list", "element": "long"}):
        columns, conflicts = shared_columns(schema(field(1, "n"), field(2, "m")), schema(field(1, "n", other)))
        assert ([column.name for column in columns], conflicts) == (["m"], ["n"])


def test_names_of_strangers_are_quoted() -> None:
    type_ = struct("it's", 'a "name"')
    assert type_name(type_) == 'STRUCT("it\'s" BIGINT, "a ""name""" BIGINT)'
    assert "it''s" in side_of(schema(field(1, "o", type_)), [Column("o", type_)]).parquet_schema


def test_the_row_before_is_read_under_the_names_that_it_once_had() -> None:
    now, once = schema(field(1, "_before", struct("z"))), schema(field(1, "_before", struct("a", "Z")))
    text = side_of(now, [Column("z", "long")], [once, now]).parquet_schema
    assert 'STRUCT("a" BIGINT, "z" BIGINT)' in text
