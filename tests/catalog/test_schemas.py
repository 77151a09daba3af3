"""Schemas that strangers send."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.catalog.schemas import Columns, checked_schema, same_schema
from dolake.errors import InvalidInput
from tests.catalog.examples import ORDERS, field, schema


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def listed(id_: int, element: Any, *, required: bool = True) -> dict[str, Any]:
    return {"type": "list", "element-id": id_, "element": element, "element-required": required}


def mapped(key_id: int, value_id: int, value: Any) -> dict[str, Any]:
    return {
        "type": "map",
        "key-id": key_id,
        "key": "string",
        "value-id": value_id,
        "value": value,
        "value-required": True,
    }


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (None, "non-object"),
        (schema(field(1, "a"), field(2, "a")), "multiple fields for name a: 1 and 2"),
        (schema(field(1, "a"), field(1, "b")), "multiple fields for id 1: a and b"),
        (schema(field(1, "a", struct(field(2, "b"))), field(3, "a.b")), "multiple fields for name a.b"),
        (schema(field(1, "a", "longish")), "Cannot parse type string"),
        (schema(field(1, "a", "unknown", required=True)), "required field with unknown type: a"),
        (schema(field(1, "a", None)), "Cannot parse type"),
        (schema(field(1, "a", {"type": "set"})), "Cannot parse type"),
        (schema({"id": 1, "name": "a", "type": "long"}), "missing field: required"),
        (schema({"id": 1, "type": "long", "required": True}), "missing field: name"),
        (schema({"name": "a", "type": "long", "required": True}), "missing field: id"),
        (schema(field(1, "a", listed(2, "long")) | {"doc": 3}), "doc"),
        (schema(field(1, "a", {"type": "list", "element-id": 2, "element": "long"})), "element-required"),
        (schema(field(1, "a", {**mapped(2, 3, "long"), "key-id": "2"})), "key-id"),
        (schema(field(1, "a"), identifier_field_ids=[2]), "field does not exist"),
        (schema(field(1, "a"), identifier_field_ids=[1]), "not a required field"),
        (schema(field(1, "a", "double", required=True), identifier_field_ids=[1]), "float or double"),
        (schema(field(1, "a", struct(), required=True), identifier_field_ids=[1]), "not a primitive"),
        (schema(field(1, "a"), identifier_field_ids="1"), "non-array"),
        (
            schema(field(1, "a", struct(field(2, "b", required=True))), identifier_field_ids=[2]),
            "nested in an optional field a",
        ),
        (schema(field(1, "a", listed(2, "long"), required=True), identifier_field_ids=[2]), "nested in a"),
    ],
    ids=str,
)
def test_a_schema_that_java_could_not_read_is_refused(sent: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        checked_schema(sent)


def test_an_identifier_may_be_in_required_structs() -> None:
    sent = schema(field(1, "a", struct(field(2, "b", required=True)), required=True), identifier_field_ids=[2])
    assert checked_schema(sent)[0] == sent


def test_types_nested_beyond_reason_are_refused() -> None:
    type_: Any = "long"
    for id_ in range(2, 200):
        type_ = listed(id_, type_)
    with pytest.raises(InvalidInput, match="nested deeper"):
        checked_schema(schema(field(1, "a", type_)))


def test_a_schema_without_an_id_has_id_0_and_null_identifiers_are_none() -> None:
    checked, _ = checked_schema({"type": "struct", "fields": [field(1, "a")], "identifier-field-ids": None})
    assert checked == schema(field(1, "a"))


def test_columns_are_found_by_path_and_by_the_path_without_element_and_value() -> None:
    columns = Columns(
        schema(
            field(1, "points", listed(2, struct(field(3, "x")))),
            field(4, "by_day", mapped(5, 6, struct(field(7, "n"), field(8, "value", struct(field(9, "deep")))))),
            field(10, "plain", listed(11, listed(12, "long"))),
        )
    )
    names = {
        "points": 1,
        "points.element": 2,
        "points.element.x": 3,
        "points.x": 3,
        "by_day.key": 5,
        "by_day.value": 6,
        "by_day.value.n": 7,
        "by_day.n": 7,
        "by_day.value.value.deep": 9,
        "by_day.value.deep": 9,
        "plain.element.element": 12,
    }
    assert {name: columns.find(name).id for name in names} == names  # type: ignore[union-attr]
    assert columns.find("x") is None
    assert columns.highest_id == 12
    assert [parent.id for parent in columns.ancestors(columns.by_id[9])] == [8, 6, 4]


def test_schemas_are_compared_without_id_and_spelling() -> None:
    one = schema(field(1, "a", mapped(2, 3, "decimal(9,2)")), field(4, "g", "geometry"))
    other = schema(field(1, "a", mapped(2, 3, "Decimal(9, 2)")), field(4, "g", "geometry(ogc:crs84)"), id_=7)
    assert same_schema(one, other)
    assert not same_schema(one, ORDERS)
    assert not same_schema(schema(field(1, "a")), schema(field(2, "a")))
