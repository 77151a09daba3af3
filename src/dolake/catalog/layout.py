"""Schema, partition spec and sort order of a table: adding one, choosing one, removing old ones.

From commit.py, each update in order, and check_layout() once at the end of the commit. The ids that a client proposes
for new ones are not taken: an equal one that the table already has is used again, else the next free id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dolake.catalog.draft import LAST_ADDED, Draft
from dolake.catalog.readers import default_sort_order, default_spec
from dolake.catalog.schemas import Columns, check_format, checked_schema, same_schema
from dolake.catalog.specs import (
    UNSORTED_ID,
    check_order,
    check_spec,
    check_spec_names,
    checked_order,
    checked_spec,
    has_sequential_ids,
    highest_field_id,
    numbered_spec,
    same_order,
    same_spec,
)
from dolake.catalog.values import Json, read_int, read_ints, read_text, refuse


def add_schema(draft: Draft, update: Json) -> None:
    """`last-column-id` in the update is not looked at, as in Java: the schema itself tells the highest id."""
    schema, columns = checked_schema(update.get("schema"))
    check_format(columns, draft.format_version)
    schemas, last_column_id = draft.metadata["schemas"], draft.metadata["last-column-id"]
    highest = max(last_column_id, columns.highest_id)
    id_ = next((known.get("schema-id", 0) for known in schemas if same_schema(known, schema)), None)
    if id_ is not None and highest == last_column_id:
        draft.last_added["schema"] = id_ if id_ in draft.added["schema"] else None
        return
    if id_ is None:
        id_ = max([draft.metadata["current-schema-id"], *(known.get("schema-id", 0) + 1 for known in schemas)])
        draft.own_list("schemas").append({**schema, "schema-id": id_})
    draft.metadata["last-column-id"] = highest
    _note_added(draft, "schema", id_)


def set_current_schema(draft: Draft, update: Json) -> None:
    id_ = _or_last_added(draft, "schema", read_int(update, "schema-id"))
    if id_ == draft.metadata["current-schema-id"]:
        return
    if all(schema.get("schema-id", 0) != id_ for schema in draft.metadata["schemas"]):
        refuse(f"Cannot set current schema to unknown schema: {id_}")
    draft.metadata["current-schema-id"] = id_
    for spec in draft.metadata["partition-specs"]:
        check_spec_names(spec, draft.columns())
    draft.is_changed = draft.is_layout_changed = True


def remove_schemas(draft: Draft, update: Json) -> None:
    ids = set(read_ints(update, "schema-ids"))
    if draft.metadata["current-schema-id"] in ids:
        refuse("Cannot remove the current schema")
    _remove_by_id(draft, "schemas", "schema-id", ids)


def add_spec(draft: Draft, update: Json) -> None:
    spec = checked_spec(update.get("spec"))
    metadata, columns = draft.metadata, draft.columns()
    check_spec_names(spec, columns)
    check_spec(spec, columns)
    for known in metadata["partition-specs"]:
        if same_spec(known, spec):
            _note_reused(draft, "spec", known["spec-id"])
            return
    spec = numbered_spec(spec, metadata["partition-specs"], metadata["last-partition-id"], draft.format_version)
    if draft.format_version == 1 and not has_sequential_ids(spec):
        refuse(f"Spec does not use sequential IDs that are required in v1: {spec['fields']}")
    id_ = max([0, *(known["spec-id"] + 1 for known in metadata["partition-specs"])])
    draft.own_list("partition-specs").append({**spec, "spec-id": id_})
    metadata["last-partition-id"] = max(metadata["last-partition-id"], highest_field_id(spec))
    _note_added(draft, "spec", id_)


def set_default_spec(draft: Draft, update: Json) -> None:
    _set_default(draft, "default-spec-id", _or_last_added(draft, "spec", read_int(update, "spec-id")))


def remove_partition_specs(draft: Draft, update: Json) -> None:
    ids = set(read_ints(update, "spec-ids"))
    if draft.metadata["default-spec-id"] in ids:
        refuse("Cannot remove the default partition spec")
    _remove_by_id(draft, "partition-specs", "spec-id", ids)


def rename_partition_field(draft: Draft, update: Json) -> None:
    """Our own update: in all specs at once, to make room for a column of that name.

    Iceberg's library takes no column with the name of a partition field, also not of a spec that is long out of use;
    to readers the name is nothing but a name, because manifests go by the field's id.
    """
    name, new = read_text(update, "name"), read_text(update, "new-name")
    specs = draft.metadata["partition-specs"]
    if any(field["name"] == new for spec in specs for field in spec["fields"]) or draft.columns().find(new):
        refuse(f"Cannot rename partition field {name} to {new}: that name is taken")
    if not any(field["name"] == name for spec in specs for field in spec["fields"]):
        refuse(f"Cannot rename partition field {name}: there is none")
    draft.keep("partition-specs", [_with_field_name(spec, name, new) for spec in specs])
    draft.is_changed = True


def _with_field_name(spec: Json, name: str, new: str) -> Json:
    fields = [{**field, "name": new} if field["name"] == name else field for field in spec["fields"]]
    return {**spec, "fields": fields}


def add_sort_order(draft: Draft, update: Json) -> None:
    order = checked_order(update.get("sort-order"))
    orders = draft.metadata["sort-orders"]
    check_order(order, draft.columns())
    for known in orders:
        if same_order(known, order):
            _note_reused(draft, "order", known["order-id"])
            return
    id_ = max([1, *(known["order-id"] + 1 for known in orders)]) if order["fields"] else UNSORTED_ID
    draft.own_list("sort-orders").append({**order, "order-id": id_})
    _note_added(draft, "order", id_)


def set_default_sort_order(draft: Draft, update: Json) -> None:
    _set_default(draft, "default-sort-order-id", _or_last_added(draft, "order", read_int(update, "sort-order-id")))


def _or_last_added(draft: Draft, kind: str, id_: int) -> int:
    if id_ != LAST_ADDED:
        return id_
    last = draft.last_added[kind]
    if last is None:
        refuse(f"Cannot set last added {kind}: no {kind} has been added")
    return last


def _note_added(draft: Draft, kind: str, id_: int) -> None:
    draft.added[kind].add(id_)
    draft.last_added[kind] = id_
    draft.is_changed = True


def _note_reused(draft: Draft, kind: str, id_: int) -> None:
    """Java's rule, kept as it is: an old one counts as last added only after a new one in the same commit."""
    draft.last_added[kind] = id_ if draft.last_added[kind] in draft.added[kind] else None


def _set_default(draft: Draft, key: str, id_: int) -> None:
    """Whether it exists is asked at the end of the commit: it may be added after."""
    if draft.metadata[key] != id_:
        draft.metadata[key] = id_
        draft.is_changed = draft.is_layout_changed = True


def _remove_by_id(draft: Draft, key: str, id_key: str, ids: set[int]) -> None:
    if ids:
        draft.keep(key, [entry for entry in draft.metadata[key] if entry.get(id_key, 0) not in ids])
        draft.is_changed = draft.is_layout_changed = True


def check_layout(metadata: Mapping[str, Any], columns: Columns) -> None:
    """The default spec and order exist and fit the current schema. Older ones need not: their columns may be gone."""
    for key, what in (("partition-specs", "Partition specs"), ("sort-orders", "Sort orders")):
        if not metadata[key]:
            refuse(f"{what} cannot be null or empty")
    spec, order = default_spec(metadata), default_sort_order(metadata)
    if spec is None:
        refuse(f"Cannot set default partition spec to unknown spec: {metadata['default-spec-id']}")
    if order is None:
        refuse(f"Cannot set default sort order to unknown order: {metadata['default-sort-order-id']}")
    check_spec(spec, columns)
    check_order(order, columns)
