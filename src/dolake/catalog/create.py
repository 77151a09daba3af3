"""The first metadata of a table or a view, from a create request.

From rest.py, also for a staged create, which shows this metadata and stores nothing: the later commit carries it as
updates. Column and partition ids are given out anew, as Java's TableMetadata.newTableMetadata does, so that whatever
ids a client made up, they begin at 1 and 1000.
"""

from __future__ import annotations

from collections.abc import Mapping

from dolake.catalog.commit import fit_to_format, without_trailing_slash
from dolake.catalog.draft import FORMAT_DEFAULT, FORMAT_MAX
from dolake.catalog.schemas import Columns, check_format, checked_schema, fresh_schema
from dolake.catalog.specs import (
    FIELD_ID_START,
    check_order,
    check_spec,
    check_spec_names,
    checked_order,
    checked_spec,
    unpartitioned,
    unsorted,
)
from dolake.catalog.values import Json, property_int, read_object, read_text_map, refuse
from dolake.catalog.view_updates import ViewDraft, add_schema, add_version, set_current_version, settled
from dolake.tables.metadata import create_table_metadata

RESERVED_PROPERTIES = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
_NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}
_METRICS_OF_COLUMN = "write.metadata.metrics.column."
_COMMIT_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)
_ENCRYPTION_PROPERTIES = frozenset({"encryption.key-id", "encryption.data-key-length"})


def new_table_metadata(
    request: Json, *, location: str, uuid: str, now_ms: int, format_version: int = FORMAT_DEFAULT
) -> Json:
    """Metadata of a new, empty table; `format_version` is for requests that do not name one in their properties."""
    schema, columns = checked_schema(request.get("schema"))
    sent = read_text_map(request, "properties") if request.get("properties") is not None else {}
    version = property_int(sent, "format-version", format_version)
    if not 1 <= version <= FORMAT_MAX:
        refuse(f"Unsupported format version: v{version} (supported: v{FORMAT_MAX})")
    properties = {**_NEW_TABLE_PROPERTIES, **{k: v for k, v in sent.items() if k not in RESERVED_PROPERTIES}}
    _check_properties(properties, columns, version)
    fresh, new_ids = fresh_schema(schema)
    check_format(Columns(fresh), version)
    spec, order = _fresh_spec(request, columns, new_ids), _fresh_order(request, columns, new_ids)
    metadata = create_table_metadata(
        without_trailing_slash(location),
        fresh,
        partition_spec=spec,
        sort_order=order,
        properties=properties,
        table_uuid=uuid,
        now_ms=now_ms,
        format_version=version,
    )
    fit_to_format(metadata)
    return metadata


def new_view_metadata(request: Json, *, location: str, uuid: str, now_ms: int) -> Json:
    """Metadata of a new view with one version, number 1, made now."""
    version = read_object(request, "view-version")
    properties = read_text_map(request, "properties") if request.get("properties") is not None else {}
    empty = {"view-uuid": uuid, "format-version": 1, "location": location, "properties": properties}
    draft = ViewDraft(empty, now_ms)
    if not version.get("representations"):
        refuse("Cannot create view without specifying a query")
    schema_id = add_schema(draft, request.get("schema"))
    first = {**version, "version-id": 1, "schema-id": schema_id, "timestamp-ms": now_ms}
    first.setdefault("summary", {})
    set_current_version(draft, add_version(draft, first))
    return settled(draft)


def _fresh_spec(request: Json, columns: Columns, new_ids: Mapping[int, int]) -> Json:
    if request.get("partition-spec") is None:
        return unpartitioned()
    spec = checked_spec(request["partition-spec"])
    check_spec_names(spec, columns)
    check_spec(spec, columns)
    fields = [
        {**field, "source-id": _fresh_id(field, new_ids), "field-id": FIELD_ID_START + place}
        for place, field in enumerate(spec["fields"])
    ]
    return {**spec, "spec-id": 0, "fields": fields}


def _fresh_order(request: Json, columns: Columns, new_ids: Mapping[int, int]) -> Json:
    if request.get("write-order") is None:
        return unsorted()
    order = checked_order(request["write-order"])
    check_order(order, columns)
    fields = [{**field, "source-id": _fresh_id(field, new_ids)} for field in order["fields"]]
    return {**order, "order-id": 1 if fields else 0, "fields": fields}


def _fresh_id(field: Json, new_ids: Mapping[int, int]) -> int:
    if field["source-id"] not in new_ids:
        refuse(f"Cannot find source column for partition field: {field['name']}")
    return new_ids[field["source-id"]]


def _check_properties(properties: Mapping[str, str], columns: Columns, version: int) -> None:
    """Only for new tables, as in Java: a table that has such a property already must stay usable."""
    for key in properties:
        column = key.removeprefix(_METRICS_OF_COLUMN)
        if column != key and columns.find(column) is None:
            refuse(f"Invalid metrics config, could not find column {column} from table prop {key} in schema")
    for key in _COMMIT_PROPERTIES:
        if property_int(properties, key, 0) < 0:
            refuse(f"Table property {key} must have non negative integer value")
    if version < 3 and (encryption := sorted(_ENCRYPTION_PROPERTIES & properties.keys())):
        refuse(f"Invalid properties for v{version}: {', '.join(encryption)}")
