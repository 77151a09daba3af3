"""Schemas, partition specs and sort orders of a table that exists."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.errors import InvalidInput
from tests.catalog.examples import ORDERS, act, commit, field, ids, order, schema, spec, table

WIDER = schema(*ORDERS["fields"], field(4, "amount", "decimal(9,2)"))
BY_DAY = spec(("at_day", "day", 2, 1000))
BY_ID = spec(("id_bucket", "bucket[16]", 1, 1001))


def add_schema(sent: Any) -> dict[str, Any]:
    return act("add-schema", schema=sent)


def add_spec(sent: Any) -> dict[str, Any]:
    return act("add-spec", spec=sent)


def add_order(sent: Any) -> dict[str, Any]:
    return act("add-sort-order", sort_order=sent)


# --- schemas ---------------------------------------------------------------------------------------------------------


def test_a_new_schema_gets_the_next_id_whatever_the_client_proposed() -> None:
    made = commit(table(), add_schema({**WIDER, "schema-id": 77}), act("set-current-schema", schema_id=-1))
    assert ids(made["schemas"], "schema-id") == [0, 1]
    assert made["current-schema-id"] == 1
    assert made["last-column-id"] == 4


def test_a_type_is_stored_in_its_canonical_spelling() -> None:
    made = commit(table(), add_schema(WIDER))
    assert made["schemas"][1]["fields"][3]["type"] == "decimal(9, 2)"


def test_an_equal_schema_is_used_again() -> None:
    metadata = commit(table(), add_schema(WIDER))
    again = schema(*ORDERS["fields"], field(4, "amount", "DECIMAL( 9, 2 )"))
    made = commit(metadata, add_schema(again), act("set-current-schema", schema_id=1))
    assert ids(made["schemas"], "schema-id") == [0, 1]
    assert made["current-schema-id"] == 1


def test_a_schema_with_another_doc_default_or_identifier_is_another_schema() -> None:
    metadata = table(3)
    for other in (
        schema(*ORDERS["fields"][:2], field(3, "note", "string", doc="what they said")),
        schema(*ORDERS["fields"][:2], field(3, "note", "string", initial_default="-")),
        schema(*ORDERS["fields"], identifier_field_ids=[1]),
    ):
        assert len(commit(metadata, add_schema(other))["schemas"]) == 2


def test_an_old_schema_that_is_added_again_was_not_added_last() -> None:
    metadata = commit(table(), add_schema(WIDER))
    with pytest.raises(InvalidInput, match="no schema has been added"):
        commit(metadata, add_schema(WIDER), act("set-current-schema", schema_id=-1))


def test_last_added_means_added_in_this_commit() -> None:
    with pytest.raises(InvalidInput, match="no schema has been added"):
        commit(table(), act("set-current-schema", schema_id=-1))


def test_a_schema_added_twice_in_one_commit_is_the_last_added_one() -> None:
    other = schema(field(1, "id", required=True))
    updates = [add_schema(WIDER), add_schema(other), add_schema(WIDER), act("set-current-schema", schema_id=-1)]
    assert commit(table(), *updates)["current-schema-id"] == 1


def test_the_highest_column_id_never_falls() -> None:
    metadata = commit(table(), add_schema(WIDER), act("set-current-schema", schema_id=-1))
    made = commit(metadata, add_schema({**schema(field(1, "id")), "last-column-id": 1}))
    assert made["last-column-id"] == 4


def test_an_unknown_schema_cannot_become_current() -> None:
    with pytest.raises(InvalidInput, match="unknown schema: 9"):
        commit(table(), act("set-current-schema", schema_id=9))


def test_a_schema_in_use_cannot_lose_the_columns_of_the_default_spec_or_order() -> None:
    metadata = table(partition_spec=BY_DAY, write_order=order(3))
    for kept, reason in (([1, 3], "partition field: at_day"), ([1, 2], "sort field")):
        smaller = schema(*(each for each in ORDERS["fields"] if each["id"] in kept))
        with pytest.raises(InvalidInput, match=reason):
            commit(metadata, add_schema(smaller), act("set-current-schema", schema_id=-1))


def test_a_column_of_an_old_spec_may_go() -> None:
    metadata = commit(table(partition_spec=BY_DAY), add_spec(spec()), act("set-default-spec", spec_id=-1))
    smaller = schema(ORDERS["fields"][0], ORDERS["fields"][2])
    assert commit(metadata, add_schema(smaller), act("set-current-schema", schema_id=-1))["current-schema-id"] == 1


def test_a_new_column_cannot_take_the_name_of_a_partition() -> None:
    metadata = table(partition_spec=BY_DAY)
    clash = schema(*ORDERS["fields"], field(4, "at_day", "date"))
    with pytest.raises(InvalidInput, match="different field in schema: at_day"):
        commit(metadata, add_schema(clash), act("set-current-schema", schema_id=-1))


@pytest.mark.parametrize("type_", ["timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography"])
def test_types_of_format_3_are_refused_before_it(type_: str) -> None:
    newer = schema(*ORDERS["fields"], field(4, "new", type_))
    with pytest.raises(InvalidInput, match=rf"Invalid type for new: {type_}.* is not supported until v3"):
        commit(table(2), add_schema(newer))
    assert commit(table(3), add_schema(newer))["last-column-id"] == 4


def test_initial_defaults_are_refused_before_format_3() -> None:
    newer = schema(*ORDERS["fields"], field(4, "new", "long", initial_default=0))
    with pytest.raises(InvalidInput, match="Invalid initial default for new"):
        commit(table(2), add_schema(newer))
    assert commit(table(3), add_schema(newer))["schemas"][1]["fields"][3]["initial-default"] == 0


def test_old_schemas_can_be_removed_but_not_the_current_one() -> None:
    metadata = commit(table(), add_schema(WIDER), act("set-current-schema", schema_id=-1))
    assert ids(commit(metadata, act("remove-schemas", schema_ids=[0, 99]))["schemas"], "schema-id") == [1]
    with pytest.raises(InvalidInput, match="Cannot remove the current schema"):
        commit(metadata, act("remove-schemas", schema_ids=[1]))


# --- partition specs -------------------------------------------------------------------------------------------------


def test_a_new_spec_gets_the_next_id_and_its_fields_keep_theirs() -> None:
    made = commit(table(), add_spec({**BY_DAY, "spec-id": 50}), act("set-default-spec", spec_id=-1))
    assert made["partition-specs"][1] == {**BY_DAY, "spec-id": 1}
    assert (made["default-spec-id"], made["last-partition-id"]) == (1, 1000)


def test_a_partition_field_is_renamed_in_all_specs_to_make_room_for_a_column() -> None:
    metadata = commit(table(partition_spec=BY_DAY), add_spec(spec(*_both())), act("set-default-spec", spec_id=-1))
    made = commit(metadata, act("rename-partition-field", name="at_day", new_name="other"))
    assert [[field["name"] for field in each["fields"]] for each in made["partition-specs"]] == [
        ["other"],
        ["other", "id_bucket"],
    ]
    assert metadata["partition-specs"][0]["fields"][0]["name"] == "at_day", "what a commit begins with stays"
    for name, new in (("at_day", "id_bucket"), ("at_day", "id"), ("gone", "new")):
        with pytest.raises(InvalidInput, match="Cannot rename partition field"):
            commit(metadata, act("rename-partition-field", name=name, new_name=new))


def _both() -> list[tuple[str, str, int, int]]:
    return [("at_day", "day", 2, 1000), ("id_bucket", "bucket[16]", 1, 1001)]


def test_an_equal_spec_is_used_again_whatever_its_field_ids() -> None:
    metadata = table(partition_spec=BY_DAY)
    assert commit(metadata, add_spec(spec(("at_day", "DAY", 2, 1007)))) is metadata


def test_the_highest_partition_id_never_falls() -> None:
    metadata = commit(table(), add_spec(spec(("at_day", "day", 2, 1005))))
    assert commit(metadata, add_spec(BY_ID))["last-partition-id"] == 1005


def test_fields_without_ids_get_the_id_of_the_same_partition_or_a_free_one() -> None:
    metadata = table(partition_spec=BY_DAY)
    sent = spec(("id_bucket", "bucket[16]", 1, 0), ("day", "day", 2, 0))
    for each in sent["fields"]:
        del each["field-id"]
    made = commit(metadata, add_spec(sent))
    assert ids(made["partition-specs"][1]["fields"], "field-id") == [1001, 1000]
    assert made["last-partition-id"] == 1001


def test_format_1_wants_partition_ids_in_sequence() -> None:
    with pytest.raises(InvalidInput, match="sequential IDs that are required in v1"):
        commit(table(1), add_spec(BY_ID))
    assert commit(table(1), add_spec(BY_DAY))["last-partition-id"] == 1000


def test_partition_ids_end_where_32_bits_do() -> None:
    metadata = commit(table(), add_spec(spec(("at_day", "day", 2, 2**31 - 1))))
    with pytest.raises(InvalidInput, match="beyond 32 bits"):
        commit(metadata, add_spec({"fields": [{"name": "id", "transform": "identity", "source-id": 1}]}))


def test_fields_without_ids_count_from_1000_in_format_1() -> None:
    metadata = table(1, partition_spec=spec(("at_day", "day", 2, 1000), ("id", "identity", 1, 1001)))
    made = commit(metadata, add_spec({"fields": [{"name": "id", "transform": "identity", "source-id": 1}]}))
    assert ids(made["partition-specs"][1]["fields"], "field-id") == [1000]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (spec(("x", "identity", 9, 1000)), "Cannot find source column"),
        (spec(("id_day", "day", 1, 1000)), "Invalid source type long for transform: day"),
        (spec(("at_trunc", "truncate[4]", 2, 1000)), "Invalid source type timestamptz"),
        (spec(("id_bucket", "bucket[0]", 1, 1000)), "must be > 0"),
        (spec(("note", "bucket[4]", 1, 1000)), "different field in schema: note"),
        (spec(("", "identity", 1, 1000)), "empty partition name"),
        (spec(("a", "identity", 1, 1000), ("a", "day", 2, 1001)), "more than once: a"),
        (spec(("a", "identity", 1, 1000), ("b", "day", 2, 1000)), "field id more than once"),
        (
            {"fields": [{**BY_DAY["fields"][0]}, {"name": "b", "transform": "identity", "source-id": 1}]},
            "1 missing of 2",
        ),
        ({"fields": {}}, "non-array"),
        ({"fields": ["at"]}, "non-object"),
    ],
    ids=str,
)
def test_a_spec_that_does_not_fit_is_refused(sent: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(table(), add_spec(sent))


def test_an_unknown_transform_is_kept_for_a_later_format() -> None:
    made = commit(table(), add_spec(spec(("z", "zOrder[3]", 1, 1000))))
    assert made["partition-specs"][1]["fields"][0]["transform"] == "zOrder[3]"


def test_a_void_partition_needs_no_column() -> None:
    assert len(commit(table(), add_spec(spec(("gone", "void", 9, 1000))))["partition-specs"]) == 2


def test_an_unknown_spec_or_order_cannot_be_the_default() -> None:
    with pytest.raises(InvalidInput, match="unknown spec: 9"):
        commit(table(), act("set-default-spec", spec_id=9))
    with pytest.raises(InvalidInput, match="unknown order: 9"):
        commit(table(), act("set-default-sort-order", sort_order_id=9))


def test_old_specs_can_be_removed_but_not_the_default() -> None:
    metadata = commit(table(), add_spec(BY_DAY), act("set-default-spec", spec_id=-1))
    assert ids(commit(metadata, act("remove-partition-specs", spec_ids=[0, 99]))["partition-specs"], "spec-id") == [1]
    with pytest.raises(InvalidInput, match="Cannot remove the default partition spec"):
        commit(metadata, act("remove-partition-specs", spec_ids=[1]))


# --- sort orders -----------------------------------------------------------------------------------------------------


def test_a_new_order_gets_the_next_id_and_an_equal_one_is_used_again() -> None:
    made = commit(table(), add_order(order(1, id_=9)), act("set-default-sort-order", sort_order_id=-1))
    made = commit(made, add_order(order(2)))
    assert ids(made["sort-orders"], "order-id") == [0, 1, 2]
    assert made["default-sort-order-id"] == 1
    assert commit(made, add_order(order(1, id_=5))) is made


def test_back_to_unsorted_is_order_0() -> None:
    metadata = table(write_order=order(1))
    made = commit(metadata, add_order(order()), act("set-default-sort-order", sort_order_id=-1))
    assert made["sort-orders"][1] == order()
    assert made["default-sort-order-id"] == 0


def test_directions_are_stored_in_lower_case() -> None:
    sent = {"order-id": 1, "fields": [{**order(1)["fields"][0], "direction": "DESC", "null-order": "NULLS-LAST"}]}
    stored = commit(table(), add_order(sent))["sort-orders"][1]["fields"][0]
    assert (stored["direction"], stored["null-order"]) == ("desc", "nulls-last")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (order(9), "Cannot find source column for sort field"),
        ({"order-id": 0, "fields": order(1)["fields"]}, "reserved for unsorted"),
        ({"order-id": 3, "fields": []}, "Unsorted order ID must be 0"),
        ({"order-id": 1, "fields": [{**order(1)["fields"][0], "direction": "up"}]}, "Unexpected direction"),
        ({"order-id": 1, "fields": [{**order(1)["fields"][0], "null-order": "lost"}]}, "Unexpected null-order"),
        ({"order-id": 1, "fields": [{**order(1)["fields"][0], "transform": "day"}]}, "Invalid source type long"),
    ],
    ids=str,
)
def test_an_order_that_does_not_fit_is_refused(sent: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(table(), add_order(sent))


def test_the_table_needs_a_schema_before_a_spec_or_an_order() -> None:
    for update in (add_spec(spec()), add_order(order())):
        with pytest.raises(InvalidInput, match="Cannot find schema"):
            commit(None, update)
