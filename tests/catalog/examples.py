"""Small tables and views, and the updates that change them, for the tests of the metadata engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from dolake.catalog.commit import apply_updates
from dolake.catalog.create import new_table_metadata, new_view_metadata

Json = dict[str, Any]

UUID = "0194c5a0-0000-7000-8000-000000000001"
OTHER_UUID = "0194c5a0-0000-7000-8000-000000000002"
START_MS = 1_700_000_000_000
FILE = "file:///warehouse/shop/orders/metadata/00001.metadata.json"


def hyphened(fields: Json) -> Json:
    """Underscores in the names of Python's arguments stand for the hyphens of the specification."""
    return {key.replace("_", "-"): value for key, value in fields.items()}


def field(id_: int, name: str, type_: Any = "long", *, required: bool = False, **others: Any) -> Json:
    return {"id": id_, "name": name, "type": type_, "required": required, **hyphened(others)}


def schema(*fields: Json, id_: int = 0, **others: Any) -> Json:
    return {"type": "struct", "schema-id": id_, "fields": list(fields), **hyphened(others)}


ORDERS = schema(field(1, "id", required=True), field(2, "at", "timestamptz"), field(3, "note", "string"))


def spec(*fields: tuple[str, str, int, int], id_: int = 0) -> Json:
    """Each field as name, transform, source id, field id."""
    keys = ("name", "transform", "source-id", "field-id")
    return {"spec-id": id_, "fields": [dict(zip(keys, each, strict=True)) for each in fields]}


def order(*source_ids: int, id_: int = 1) -> Json:
    fields = [
        {"transform": "identity", "source-id": source, "direction": "asc", "null-order": "nulls-first"}
        for source in source_ids
    ]
    return {"order-id": id_ if fields else 0, "fields": fields}


def table(format_version: int = 2, *, history: int = 0, **request: Any) -> Json:
    """A table of orders with this many snapshots in `main`, one a second, as a client would have made it."""
    request = {"name": "orders", "schema": ORDERS, **hyphened(request)}
    metadata = new_table_metadata(
        request, location="file:///warehouse/shop/orders", uuid=UUID, now_ms=START_MS, format_version=format_version
    )
    for number in range(1, history + 1):
        metadata = commit(metadata, *append(metadata, number), now_ms=START_MS + number * 1000)
    return metadata


def commit(metadata: Json | None, *updates: Json, now_ms: int = START_MS + 20_000, location: str | None = FILE) -> Json:
    """Apply, and prove on the way that neither metadata nor updates were changed."""
    before, sent = copy.deepcopy(metadata), copy.deepcopy(updates)
    result = apply_updates(metadata, updates, now_ms=now_ms, metadata_location=location)
    assert metadata == before
    assert updates == sent
    return result


def snapshot(id_: int, sequence: int | None, parent: int | None = None, **others: Any) -> Json:
    made: Json = {
        "snapshot-id": id_,
        "timestamp-ms": START_MS + id_ * 1000,
        "manifest-list": f"file:///warehouse/shop/orders/metadata/snap-{id_}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    if sequence is not None:
        made["sequence-number"] = sequence
    if parent is not None:
        made["parent-snapshot-id"] = parent
    return {**made, **hyphened(others)}


def append(metadata: Json, id_: int, **others: Any) -> list[Json]:
    """One more snapshot on `main`, with the numbers that this table's format wants."""
    version = metadata["format-version"]
    parent = metadata["current-snapshot-id"]
    if version > 2:
        others = {"first_row_id": metadata["next-row-id"], "added_rows": 10, **others}
    sequence = metadata["last-sequence-number"] + 1 if version > 1 else None
    made = snapshot(id_, sequence, None if parent in (None, -1) else parent, **others)
    return [add(made), main(id_)]


def add(made: Json) -> Json:
    return {"action": "add-snapshot", "snapshot": made}


def main(id_: int) -> Json:
    return ref("main", id_)


def ref(name: str, id_: int, type_: str = "branch", **limits: int) -> Json:
    return {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": id_, "type": type_, **hyphened(limits)}


def act(action: str, **fields: Any) -> Json:
    return {"action": action, **hyphened(fields)}


def need(type_: str, **fields: Any) -> Json:
    return {"type": type_, **hyphened(fields)}


def ids(entries: Sequence[Json], key: str = "snapshot-id") -> list[int]:
    return [entry[key] for entry in entries]


def view_version(id_: int = 1, sql: str = "select 1", *dialects: str, **others: Any) -> Json:
    return {
        "version-id": id_,
        "schema-id": 0,
        "timestamp-ms": START_MS + id_ * 1000,
        "summary": {"engine-name": "spark"},
        "default-namespace": ["shop"],
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect} for dialect in dialects or ("spark",)],
        **hyphened(others),
    }


def view(**properties: str) -> Json:
    request = {"name": "latest", "schema": ORDERS, "view-version": view_version(), "properties": properties}
    return new_view_metadata(request, location="file:///warehouse/shop/latest", uuid=UUID, now_ms=START_MS)
